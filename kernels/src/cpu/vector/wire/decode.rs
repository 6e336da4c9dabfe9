//! Rows of codes.

use super::{
    super::{Bf16, F16, F32},
    BlockScales, ChannelPairs, Packs, StoreNumbers, WIDE,
};
use crate::{
    cpu::Dtype,
    pages::Side,
    wire::{self, BlockShape, Cell, Groups},
};
use std::arch::x86_64::*;

/// See [`wire::decode`].
#[inline(always)]
pub(in super::super::super) fn decode<V: Packs<N>, const N: usize>(
    by: V,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    groups: &Groups,
    dtype: Dtype,
    out: &mut [u8],
) {
    match dtype {
        Dtype::F32 => decode_rows::<V, F32, N>(by, form, codes, first, groups, out),
        Dtype::F16 => decode_rows::<V, F16, N>(by, form, codes, first, groups, out),
        Dtype::Bf16 => decode_rows::<V, Bf16, N>(by, form, codes, first, groups, out),
    }
}

#[inline(always)]
fn decode_rows<V: Packs<N>, S: StoreNumbers, const N: usize>(
    by: V,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    groups: &Groups,
    out: &mut [u8],
) {
    const { assert!(N * V::COUNT == WIDE) }
    let (dim, row) = (form.dim, form.dim * S::BYTES);
    let end = first + out.len() / row;
    assert!(end <= form.tokens && out.len().is_multiple_of(row) && codes.len() == form.cell_bytes());
    if !dim.is_multiple_of(WIDE) || first == end {
        return wire::decode(form, codes, first, groups, S::DTYPE, out);
    }
    // Its own bytes hold the codes of such a row, in another order.
    let alone = form.cell() == Cell::Half && form.tokens % 2 == 1 && end == form.tokens;
    let rows = first..end - usize::from(alone);
    let (out, last) = out.split_at_mut(rows.len() * row);
    let scales = BlockScales::new(form, groups);
    // SAFETY: 32 channels behind `c` exist in every row of codes, scales and `out`.
    unsafe {
        match form.side {
            Side::Keys => {
                for c in (0..dim).step_by(WIDE) {
                    let wide = scales.of::<V, N>(by, 0, c);
                    for row in rows.clone() {
                        let at = out.as_mut_ptr().add(((row - rows.start) * dim + c) * S::BYTES);
                        let numbers = match (form.cell(), row % 2) {
                            (Cell::Byte, _) => by.numbers(load(codes, row * dim + c)),
                            (Cell::Half, 0) => by.half_codes::<false>(load(codes, row / 2 * dim + c)),
                            (Cell::Half, _) => by.half_codes::<true>(load(codes, row / 2 * dim + c)),
                        };
                        put::<V, S, N>(by, numbers, &wide, at);
                    }
                }
            }
            Side::Values => {
                let mut at = out.as_mut_ptr();
                for row in rows.clone() {
                    for c in (0..dim).step_by(WIDE) {
                        let [step, shift] = scales.of_group(row, c);
                        if form.cell() == Cell::Half {
                            by.put_group::<S>(half(load(codes, row / 2 * dim + c), row), step, shift, at);
                        } else {
                            let wide = [[by.all(step), by.all(shift)]; N];
                            put::<V, S, N>(by, by.numbers(load(codes, row * dim + c)), &wide, at);
                        }
                        at = at.add(WIDE * S::BYTES);
                    }
                }
            }
        }
    }
    if alone {
        wire::decode(form, codes, rows.end, groups, S::DTYPE, last);
    }
}

/// # Safety
/// There are 32 bytes behind `at`. AVX2.
#[inline(always)]
unsafe fn load(codes: &[u8], at: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(codes.as_ptr().add(at).cast()) }
}

/// The codes of four bits that belong to a row.
#[inline]
#[target_feature(enable = "avx2")]
fn half(bytes: __m256i, row: usize) -> __m256i {
    let own = if row % 2 == 1 { _mm256_srli_epi16::<4>(bytes) } else { bytes };
    _mm256_and_si256(own, _mm256_set1_epi8(15))
}

/// Codes of 32 channels as stored numbers.
///
/// # Safety
/// `at` points to 32 writable numbers.
#[inline(always)]
pub(super) unsafe fn put<V: Packs<N>, S: StoreNumbers, const N: usize>(
    by: V,
    codes: [V::Numbers; N],
    wide: &ChannelPairs<V, N>,
    at: *mut u8,
) {
    for (i, (code, [step, shift])) in codes.into_iter().zip(wide).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { S::store(by, at.add(V::COUNT * i * S::BYTES), by.multiply_add(code, *step, *shift)) };
    }
}
