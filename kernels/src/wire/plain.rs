//! The definition: ranges, codes and numbers, one after the other.

use super::{BlockRows, BlockShape, Cell, GROUP, Groups, Side};
use crate::cpu::Dtype;
use half::{bf16, f16};

/// The least and the largest number of each group; those that are infinite or none have no say. Ranges of values reach to zero.
pub(crate) fn low_high(form: BlockShape, rows: BlockRows<'_>, groups: &mut Groups) {
    let Groups { low, high, .. } = groups;
    let none = match form.side {
        Side::Keys => (f32::INFINITY, f32::NEG_INFINITY),
        Side::Values => (0.0, 0.0),
    };
    low.fill(none.0);
    high.fill(none.1);
    for (t, row) in rows.as_slice().iter().enumerate() {
        for c in 0..form.dim {
            let (x, group) = (rows.dtype.get(row, c), group(form, t, c));
            if x.is_finite() {
                low[group] = low[group].min(x);
                high[group] = high[group].max(x);
            }
        }
    }
    for (low, high) in low.iter_mut().zip(high) {
        if low > high {
            (*low, *high) = (0.0, 0.0);
        }
    }
}

fn group(form: BlockShape, token: usize, channel: usize) -> usize {
    match form.side {
        Side::Keys => channel,
        Side::Values => token * form.dim.div_ceil(GROUP) + channel / GROUP,
    }
}

/// Codes of all rows.
pub(crate) fn encode(form: BlockShape, rows: BlockRows<'_>, groups: &Groups, codes: &mut [u8]) {
    let (dtype, rows) = (rows.dtype, rows.as_slice());
    let code = |t, c| code(form, rows[t], dtype, (t, c), groups);
    let dim = form.dim;
    match form.cell() {
        Cell::Byte => {
            for t in 0..form.tokens {
                for (c, out) in codes[t * dim..][..dim].iter_mut().enumerate() {
                    *out = code(t, c).clamp(-127, 127) as u8;
                }
            }
        }
        Cell::Half => {
            let four = |t, c| code(t, c).clamp(0, 15) as u8;
            for t in (0..form.tokens - form.tokens % 2).step_by(2) {
                for (c, out) in codes[t / 2 * dim..][..dim].iter_mut().enumerate() {
                    *out = four(t, c) | four(t + 1, c) << 4;
                }
            }
            if form.tokens % 2 == 1 {
                encode_alone(form, rows[form.tokens - 1], dtype, groups, codes);
            }
        }
    }
}

/// Codes of four bits of a last row that has no partner.
pub(crate) fn encode_alone(form: BlockShape, row: &[u8], dtype: Dtype, groups: &Groups, codes: &mut [u8]) {
    let (t, half) = (form.tokens - 1, form.dim.div_ceil(2));
    let four = |c| code(form, row, dtype, (t, c), groups).clamp(0, 15) as u8;
    for (c, out) in codes[t / 2 * form.dim..].iter_mut().enumerate() {
        *out = four(c) | if half + c < form.dim { four(half + c) << 4 } else { 0 };
    }
}

fn code(form: BlockShape, row: &[u8], dtype: Dtype, (t, c): (usize, usize), groups: &Groups) -> i32 {
    let group = group(form, t, c);
    nearest(dtype.get(row, c).mul_add(groups.factor[group], -groups.offset[group]))
}

/// The nearest whole number, the even one of two. What has none in 32 bits becomes the least, as vector units have it.
fn nearest(x: f32) -> i32 {
    let whole = x.round_ties_even();
    if (-2_147_483_648.0..2_147_483_648.0).contains(&whole) { whole as i32 } else { i32::MIN }
}

/// The numbers of rows from the `first` on, as many as `out` has room for, from the steps and shifts of all groups.
pub(crate) fn decode(form: BlockShape, codes: &[u8], first: usize, groups: &Groups, dtype: Dtype, out: &mut [u8]) {
    for (n, out) in out.chunks_exact_mut(form.dim * dtype.bytes()).enumerate() {
        decode_row(form, codes, first + n, groups, dtype, out);
    }
}

fn decode_row(form: BlockShape, codes: &[u8], row: usize, groups: &Groups, dtype: Dtype, out: &mut [u8]) {
    let dim = form.dim;
    let half = dim.div_ceil(2);
    let code = |c: usize| match form.cell() {
        Cell::Byte => f32::from(codes[row * dim + c] as i8),
        Cell::Half if row % 2 == 1 => f32::from(codes[row / 2 * dim + c] >> 4),
        Cell::Half if row + 1 < form.tokens || c < half => f32::from(codes[row / 2 * dim + c] & 15),
        Cell::Half => f32::from(codes[row / 2 * dim + c - half] >> 4),
    };
    for (c, out) in out.chunks_exact_mut(dtype.bytes()).enumerate() {
        let group = group(form, row, c);
        store(code(c).mul_add(groups.factor[group], groups.offset[group]), dtype, out);
    }
}

/// Narrows to a page's elements; what is too large for half precision becomes its largest number.
pub(super) fn store(x: f32, dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::F32 => out.copy_from_slice(&x.to_le_bytes()),
        Dtype::F16 => out.copy_from_slice(&f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes()),
        Dtype::Bf16 => out.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
    }
}
