//! Percentiles of measured times.

/// Values in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// In order; what is no number is left out.
    #[must_use]
    pub fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = values.filter(|v| !v.is_nan()).collect();
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    /// The value that a share of them does not pass, linear between neighbours; 0 of none.
    #[must_use]
    pub fn at(&self, share: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0.0 };
        let place = share.clamp(0.0, 1.0) * last as f64;
        let (low, part) = (place.floor() as usize, place.fract());
        let (a, b) = (self.0[low], self.0[(low + 1).min(last)]);
        if part == 0.0 { a } else { a + (b - a) * part }
    }

    /// Their mean; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.iter().sum::<f64>() / self.0.len() as f64 }
    }
}
