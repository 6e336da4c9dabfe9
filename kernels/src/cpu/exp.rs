//! Softmax and gates, whatever the instruction set: [`plain::exp`] for a register of numbers.

use super::isa::Isa;
use super::{LANES, plain};

/// See [`plain::exp`]: the same operations in the same order.
#[inline(always)]
fn exp<I: Isa<W>, const W: usize>(isa: I, x: I::Floats) -> I::Floats {
    let all = |v: f32| isa.splat(v);
    let clamped = isa.clamp(x, -87.3, 88.3);
    let n = isa.floor(isa.mul_add(clamped, all(std::f32::consts::LOG2_E), all(0.5)));
    let r = isa.mul_add(n, all(2.121_944_4e-4), isa.mul_add(n, all(-0.693_359_4), clamped));
    let mut p = all(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5e-1] {
        p = isa.mul_add(p, r, all(c));
    }
    let y = isa.add(isa.mul_add(p, isa.mul(r, r), r), all(1.0));
    isa.zero_below(-87.3, x, isa.mul(y, isa.power_of_two(n)))
}

/// See [`plain::softmax`].
#[inline(always)]
pub(super) fn softmax<I: Isa<W>, const W: usize>(isa: I, x: &mut [f32]) {
    let (wide, rest) = x.as_chunks_mut::<W>();
    let mut top = isa.splat(f32::NEG_INFINITY);
    for x in wide.iter() {
        top = isa.larger(isa.load(x), top);
    }
    let top = rest.iter().fold(isa.largest(top), |top, x| if *x > top { *x } else { top });
    let mut sums = isa.no_sums();
    for x in wide.iter_mut() {
        let e = exp(isa, isa.sub(isa.load(x), isa.splat(top)));
        isa.store(e, x);
        sums = isa.add_to(sums, e);
    }
    let mut lanes = isa.sums(sums);
    for (k, x) in rest.iter_mut().enumerate() {
        *x = plain::exp(*x - top);
        lanes[k % LANES] += *x;
    }
    let scale = 1.0 / plain::reduce(lanes);
    for x in x.iter_mut() {
        *x *= scale;
    }
}

/// See [`plain::silu_mul`].
#[inline(always)]
pub(super) fn silu_mul<I: Isa<W>, const W: usize>(isa: I, gate: &mut [f32], up: &[f32]) {
    // Longer ones end where the shorter does.
    let done = gate.len().min(up.len()) / W * W;
    for (gate, up) in gate.as_chunks_mut::<W>().0.iter_mut().zip(up.as_chunks::<W>().0) {
        let g = isa.load(gate);
        let silu = isa.div(g, isa.add(isa.splat(1.0), exp(isa, isa.neg(g))));
        isa.store(isa.mul(silu, isa.load(up)), gate);
    }
    plain::silu_mul(&mut gate[done..], &up[done..]);
}
