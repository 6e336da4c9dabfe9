//! eˣ for what waits: of plain sums and products, so that peers whose systems bring different mathematics find the same bits,
//! and without branches, so that several are computed at once.

/// Where eˣ is nothing that counts; further down its exponent would have no bits.
const LEAST: f64 = -700.0;
/// ln 2 in two parts: products of the first with whole numbers up to 2¹¹ are exact.
const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
/// Added to a small number it leaves its nearest whole number in the last bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// eˣ for x ≤ 0, within 10⁻¹¹ of it in proportion (e⁻⁷⁰⁰ below that): 2ᵏ·eʳ with |r| ≤ ln 2 / 2 and Taylor's series of eʳ up to
/// r⁹, whose rest is below that. Shares of requests are told to four digits.
pub fn exp(x: f64) -> f64 {
    let x = if x > LEAST { x } else { LEAST };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = x - k * LN_2[0] - k * LN_2[1];
    let r2 = r * r;
    let r4 = r2 * r2;
    // 1/n!, in pairs (Estrin's scheme): fewer products wait for each other.
    let low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0));
    let middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5_040.0));
    let high = 1.0 / 40_320.0 + r * (1.0 / 362_880.0);
    let e = low + r4 * (middle + r4 * high);
    f64::from_bits(e.to_bits().wrapping_add(shifted.to_bits() << 52))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_what_the_system_says() {
        let mut x = 0.0f64;
        while x > LEAST {
            let apart = (exp(x) / x.exp() - 1.0).abs();
            assert!(apart < 1e-11, "e^{x}: {apart:e} off");
            x -= 0.000_917 + x.abs() * 1e-4;
        }
        assert!(exp(f64::NEG_INFINITY) < 1e-300 && exp(f64::NAN) < 1e-300);
        assert_eq!(exp(0.0).to_bits(), 1.0f64.to_bits());
    }

    /// On every machine.
    #[test]
    fn has_these_bits() {
        let found = [-0.1, -1.0, -2.5, -17.0, -300.25].map(|x| exp(x).to_bits());
        let expected = [
            0x3fec_f46d_99d5_2b3b,
            0x3fd7_8b56_362c_a968,
            0x3fb5_0385_c094_e8e2,
            0x3e66_39e3_175a_1f17,
            0x24dc_7582_3310_2acd,
        ];
        assert_eq!(found, expected);
    }
}
