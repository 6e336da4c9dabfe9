//! Codes of rows.

use super::{
    super::{Bf16, F16, F32, StoredNumber},
    BlockScales, ChannelPairs, Packs, WIDE, ask_for_next, fits,
};
use crate::{
    cpu::Dtype,
    pages::Side,
    wire::{self, BlockRows, BlockShape, Cell, Groups},
};
use std::arch::x86_64::*;

/// See [`wire::encode`].
#[inline(always)]
pub(in super::super::super) fn encode<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    groups: &Groups,
    codes: &mut [u8],
) {
    match rows.dtype {
        Dtype::F32 => all_codes::<V, F32, N>(by, form, rows, groups, codes),
        Dtype::F16 => all_codes::<V, F16, N>(by, form, rows, groups, codes),
        Dtype::Bf16 => all_codes::<V, Bf16, N>(by, form, rows, groups, codes),
    }
}

#[inline(always)]
fn all_codes<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    form: BlockShape,
    rows: BlockRows<'_>,
    groups: &Groups,
    codes: &mut [u8],
) {
    const { assert!(N * V::COUNT == WIDE) }
    assert!(codes.len() == form.cell_bytes(), "codes of another form");
    if !fits::<S>(form, rows) || form.tokens == 0 {
        return wire::encode(form, rows, groups, codes);
    }
    let (scales, codes_at) = (BlockScales::new(form, groups), codes.as_mut_ptr());
    // SAFETY: rows and 32 channels behind `c` exist, and bytes for their codes.
    unsafe {
        match (form.cell(), form.side) {
            (Cell::Half, Side::Keys) => {
                for c in (0..form.dim).step_by(WIDE) {
                    let wide = scales.of::<V, N>(by, 0, c);
                    for t in (0..form.tokens & !1).step_by(2) {
                        two_rows::<V, S, N>(by, rows, (t, c), [&wide; 2], codes_at.add(t / 2 * form.dim + c));
                    }
                }
            }
            (Cell::Half, Side::Values) => {
                for t in (0..form.tokens & !1).step_by(2) {
                    for c in (0..form.dim).step_by(WIDE) {
                        ask_for_next::<S>(rows, t + 1, c);
                        let wide = [&scales.of::<V, N>(by, t, c), &scales.of::<V, N>(by, t + 1, c)];
                        two_rows::<V, S, N>(by, rows, (t, c), wide, codes_at.add(t / 2 * form.dim + c));
                    }
                }
            }
            (Cell::Byte, side) => {
                for c in (0..form.dim).step_by(WIDE) {
                    let mut wide = scales.of::<V, N>(by, 0, c);
                    for (t, row) in rows.as_slice().iter().enumerate() {
                        if side == Side::Values {
                            wide = scales.of::<V, N>(by, t, c);
                        }
                        let out = codes_at.add(t * form.dim + c).cast::<[u8; WIDE]>();
                        by.put_bytes(rounded::<V, S, N>(by, row, c, &wide), &mut *out);
                    }
                }
            }
        }
    }
    if form.cell() == Cell::Half && form.tokens % 2 == 1 {
        wire::encode_alone(form, rows.as_slice()[form.tokens - 1], S::DTYPE, groups, codes);
    }
}

/// Codes of four bits of 32 channels of rows `t` and `t + 1`.
///
/// # Safety
/// There are such rows, and 32 numbers of `S` behind `c` in each; `out` points to 32 writable bytes.
#[inline(always)]
unsafe fn two_rows<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    rows: BlockRows<'_>,
    (t, c): (usize, usize),
    wide: [&ChannelPairs<V, N>; 2],
    out: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (first, second) = (rows.as_slice().get_unchecked(t), rows.as_slice().get_unchecked(t + 1));
        let first = rounded::<V, S, N>(by, first, c, wide[0]);
        let second = rounded::<V, S, N>(by, second, c, wide[1]);
        _mm256_storeu_si256(out.cast(), by.halves(first, second));
    }
}

/// Rounded codes of 32 channels, not yet within their bounds. No closure: vector code in one might be called, not inlined.
///
/// # Safety
/// The row has 32 numbers of `S` behind `c`.
#[inline(always)]
unsafe fn rounded<V: Packs<N>, S: StoredNumber, const N: usize>(
    by: V,
    row: &[u8],
    c: usize,
    wide: &ChannelPairs<V, N>,
) -> [V::Whole; N] {
    let mut codes = [by.none(); N];
    for (i, (code, [inverse, zero])) in codes.iter_mut().zip(wide).enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe { S::load(by, row.as_ptr().add((c + V::COUNT * i) * S::BYTES)) };
        *code = by.code(x, *inverse, *zero);
    }
    codes
}
