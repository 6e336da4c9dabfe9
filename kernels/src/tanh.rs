//! The hyperbolic tangent and what families make of it, in plain operations of one order: the same bits everywhere.

use crate::cpu::plain::exp;

/// tanh to three units in the last place: Cephes' polynomial where a difference of exponentials would lose digits,
/// `1 - 2 / (e^2x + 1)` elsewhere.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let square = x * x;
    let p = -5.704_988_7e-3f32;
    let p = p.mul_add(square, 2.063_908_8e-2);
    let p = p.mul_add(square, -5.373_971_6e-2);
    let p = p.mul_add(square, 1.333_144_2e-1);
    let p = p.mul_add(square, -3.333_328e-1);
    let small = (p * square).mul_add(x, x);
    let large = (1.0 - 2.0 / (exp(2.0 * size) + 1.0)).copysign(x);
    if size < 0.625 { small } else { large }
}

/// Presses every number of `x` smoothly between `-cap` and `cap` (Gemma 2).
#[inline(always)]
pub fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = tanh(*x / cap) * cap;
    }
}

/// `gate[i] = gelu(gate[i]) * up[i]`, with GELU by its tanh form (Hendrycks and Gimpel 2016).
#[inline(always)]
pub fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let inner = SQRT_2_OVER_PI * (x * x * x).mul_add(0.044_715, x);
        *gate = 0.5 * x * (1.0 + tanh(inner)) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_close_to_the_real_one() {
        for i in -3000..=3000 {
            let x = i as f32 / 200.0;
            let (ours, real) = (tanh(x) as f64, (x as f64).tanh());
            assert!((ours - real).abs() <= 2e-7 * real.abs(), "tanh({x}) = {ours}, not {real}");
        }
        assert_eq!((tanh(0.0), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn capped_numbers_keep_their_order_and_stay_inside() {
        let mut x = [-1e9, -50.0, -1.0, 0.0, 1.0, 50.0, 1e9];
        soft_cap(&mut x, 30.0);
        assert!(x.is_sorted() && x[0] >= -30.0 && x[6] <= 30.0);
        assert!((x[4] - 0.999_63).abs() < 1e-5);
    }

    #[test]
    fn gelu_is_close_to_the_real_one() {
        for i in -800..=800 {
            let x = i as f64 / 100.0;
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let real = 0.5 * x * (1.0 + inner.tanh());
            let mut ours = [x as f32];
            gelu_mul(&mut ours, &[1.0]);
            assert!((ours[0] as f64 - real).abs() <= 1e-6, "gelu({x}) = {}, not {real}", ours[0]);
        }
    }
}
