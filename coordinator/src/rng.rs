//! Random choices from a seed that are the same on every machine and in every version: SplitMix64 (Steele et al. 2014).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        finished(self.0)
    }

    /// Evenly from [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly from 0..n; 0 when n is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// With this mean, exponentially.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// Spreads a number's bits: sums of such numbers are equal only where the numbers are.
#[must_use]
pub fn mixed(x: u64) -> u64 {
    finished(x.wrapping_add(0x9E37_79B9_7F4A_7C15))
}

/// SplitMix64's last step.
fn finished(x: u64) -> u64 {
    let z = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_even_and_repeatable() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            let n = a.below(10);
            assert_eq!(n, b.below(10));
            counts[n] += 1;
        }
        // Ten standard deviations of a binomial around 1,000.
        assert!(counts.iter().all(|c| c.abs_diff(1000) < 300), "{counts:?}");
    }
}
