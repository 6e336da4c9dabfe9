//! The definition: what every fast version must give, to the bit.

use super::{KEYS, LANES, Lanes, Matrix, dense::Block};
pub(super) use super::{
    bf16::{lanes_of_two, round as round_to_bf16},
    quantised::wide,
    rounded::round,
    simple::{add_rms_norm, gelu_mul, layer_norm, rms_norm, soft_cap, turn_heads},
};
pub(super) use crate::wire::{choose, decode, encode, low_high, pack_keys, read, unpack_keys};

/// Adds the lanes of a dot product: halves first, so that vector instructions can do it the same way.
#[inline(always)]
#[must_use]
pub fn reduce(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Goes on with the lanes of every row and output, over the block's columns. `acc` is `[row][output]`. Of bfloat16 matrices it
/// is [`lanes_of_two`].
pub(super) fn lanes(block: Block<'_>, acc: &mut [Lanes]) {
    let Block { x, w, from, len, .. } = block;
    for (x, acc) in x.chunks_exact(w.cols).zip(acc.chunks_exact_mut(w.rows)) {
        for (o, lanes) in acc.iter_mut().enumerate() {
            for (k, x) in x[from..from + len].iter().enumerate() {
                let lane = &mut lanes[k % LANES];
                *lane = x.mul_add(w.dtype.get(w.bytes, o * w.cols + from + k), *lane);
            }
        }
    }
}

/// The columns after the last whole group of lanes.
pub(super) fn last_lanes(x: &[f32], w: Matrix<'_>, acc: &mut [Lanes]) {
    let whole = w.cols - w.cols % LANES;
    for (x, acc) in x.chunks_exact(w.cols).zip(acc.chunks_exact_mut(w.rows)) {
        for (o, lanes) in acc.iter_mut().enumerate() {
            for (k, (x, lane)) in x[whole..].iter().zip(lanes).enumerate() {
                *lane = x.mul_add(w.dtype.get(w.bytes, o * w.cols + whole + k), *lane);
            }
        }
    }
}

/// Adds up all lanes.
pub(super) fn reduce_all(acc: &[Lanes], sums: &mut [f32]) {
    for (sum, lanes) in sums.iter_mut().zip(acc) {
        *sum = reduce(*lanes);
    }
}

/// `out[r * stride + o] = x[r] · w[o]`: short rows, whole in one go.
pub(super) fn scores(x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(w.cols).zip(out.chunks_mut(stride)) {
        for (o, out) in out.iter_mut().enumerate().take(w.rows) {
            let mut lanes = [0.0; LANES];
            for (k, x) in x.iter().enumerate() {
                let lane = &mut lanes[k % LANES];
                *lane = x.mul_add(w.dtype.get(w.bytes, o * w.cols + k), *lane);
            }
            *out = reduce(lanes);
        }
    }
}

/// `out[r][d] += p[r][t] * v[t][d]`, in the order of `t`, for the `v.rows()` numbers from `from` on of every row of `p`,
/// `stride` numbers apart.
pub(super) fn weighted_rows(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    for (p, out) in p.chunks(stride).zip(out.chunks_exact_mut(v.cols)) {
        for (t, p) in p.iter().enumerate().take(v.rows) {
            for (d, out) in out.iter_mut().enumerate() {
                *out = p.mul_add(v.dtype.get(v.bytes, t * v.cols + d), *out);
            }
        }
    }
}

/// [`weighted_rows`] for the channels after the last whole group of lanes.
pub(super) fn last_channels(p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
    let whole = v.cols - v.cols % LANES;
    if whole == v.cols {
        return;
    }
    for (p, out) in p.chunks(stride).zip(out.chunks_exact_mut(v.cols)) {
        for (d, out) in out.iter_mut().enumerate().skip(whole) {
            for (t, p) in p.iter().enumerate().take(v.rows) {
                *out = p.mul_add(v.dtype.get(v.bytes, t * v.cols + d), *out);
            }
        }
    }
}

/// All numbers of a matrix, widened.
pub(super) fn widen(w: Matrix<'_>, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate().take(w.rows * w.cols) {
        *out = w.dtype.get(w.bytes, i);
    }
}

/// Lays sixteen keys of `dim` channels, one after the other, side by side: `[channel][key]`.
pub(super) fn beside(keys: &[f32], dim: usize, out: &mut [f32]) {
    for (key, numbers) in keys.chunks_exact(dim).enumerate() {
        for (channel, number) in numbers.iter().enumerate() {
            out[channel * KEYS + key] = *number;
        }
    }
}

/// [`scores`] times `scale`, of keys laid out by [`beside`]: `out[i * stride + t] = scale · (q[i] · key[t])`.
pub(super) fn chunk_scores(q: &[&[f32]], dim: usize, keys: &[f32], scale: f32, stride: usize, out: &mut [f32]) {
    for (q, out) in q.iter().zip(out.chunks_mut(stride)) {
        for (t, out) in out.iter_mut().enumerate().take(keys.len() / dim) {
            let mut lanes = [0.0; LANES];
            for (k, q) in q.iter().enumerate() {
                let lane = &mut lanes[k % LANES];
                *lane = q.mul_add(keys[(t / KEYS * dim + k) * KEYS + t % KEYS], *lane);
            }
            *out = reduce(lanes) * scale;
        }
    }
}

/// e to the power of `x`, to two units in the last place: 2^n by exponent bits times a polynomial on [-ln2/2, ln2/2]
/// (Cephes' coefficients). Below -87.3 it is 0, above 88.3 it stays at the largest power.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    const LOG2E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.3, 88.3);
    let n = clamped.mul_add(LOG2E, 0.5).floor();
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_6e-1);
    let p = p.mul_add(r, 5e-1);
    let y = p.mul_add(r * r, r) + 1.0;
    // n lies in -126..=127 after clamping, so the exponent bits are in range.
    let power = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.3 { 0.0 } else { y * power }
}

/// Softmax in place; the sum runs in lanes.
#[inline(always)]
pub fn softmax(x: &mut [f32]) {
    let mut tops = [f32::NEG_INFINITY; LANES];
    for x in x.chunks(LANES) {
        for (top, x) in tops.iter_mut().zip(x) {
            *top = if *x > *top { *x } else { *top };
        }
    }
    let top = tops.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for x in x.chunks_mut(LANES) {
        for (sum, x) in sums.iter_mut().zip(x) {
            *x = exp(*x - top);
            *sum += *x;
        }
    }
    let scale = 1.0 / reduce(sums);
    for x in x.iter_mut() {
        *x *= scale;
    }
}

/// `gate[i] = silu(gate[i]) * up[i]`.
#[inline(always)]
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// The sum of numbers, wrapping.
#[inline(always)]
pub(super) fn sum(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |sum, n| sum.wrapping_add(*n))
}

/// `count` multiply-adds in chains enough to keep every unit busy.
#[inline(always)]
pub(super) fn multiply_only(count: usize) -> f32 {
    // Hidden from the compiler, which else works out the end: 1 stays 1.
    let mut chains = [[std::hint::black_box(0.5f32); LANES]; 12];
    for _ in 0..count / (12 * LANES) {
        for chain in &mut chains {
            for lane in chain {
                *lane = lane.mul_add(0.999, 0.001);
            }
        }
    }
    chains.into_iter().map(reduce).sum()
}
