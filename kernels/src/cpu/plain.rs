//! The definition: what every fast version must give, to the bit.

use super::{LANES, Matrix};

/// Adds the lanes of a dot product: halves first, so that vector instructions can do it the same way.
#[inline(always)]
#[must_use]
pub fn reduce(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// `out[r][o] = x[r] · w[o]`.
pub fn dots(x: &[f32], w: Matrix<'_>, out: &mut [f32]) {
    if w.cols == 0 || w.rows == 0 {
        return out.fill(0.0);
    }
    for (x, out) in x.chunks_exact(w.cols).zip(out.chunks_exact_mut(w.rows)) {
        for (o, out) in out.iter_mut().enumerate() {
            let mut lanes = [0.0; LANES];
            for (k, x) in x.iter().enumerate() {
                let lane = &mut lanes[k % LANES];
                *lane = x.mul_add(w.dtype.get(w.bytes, o * w.cols + k), *lane);
            }
            *out = reduce(lanes);
        }
    }
}

/// `out[d] += p[t] * v[t][d]`, in the order of `t`.
pub fn weighted_rows(p: &[f32], v: Matrix<'_>, out: &mut [f32]) {
    for (t, p) in p.iter().enumerate() {
        for (d, out) in out.iter_mut().enumerate() {
            *out = p.mul_add(v.dtype.get(v.bytes, t * v.cols + d), *out);
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

/// Softmax in place; the sum runs in order.
#[inline(always)]
pub fn softmax(x: &mut [f32]) {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in x.iter_mut() {
        *x = exp(*x - top);
    }
    let sum: f32 = x.iter().sum();
    let scale = 1.0 / sum;
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
