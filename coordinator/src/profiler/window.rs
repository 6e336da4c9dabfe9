//! The last lengths and when they came, as many as fit a fixed number of places.

use crate::Time;
use std::collections::VecDeque;

/// Places.
const PLACES: usize = 512;
/// Arrivals that say nothing of how they vary yet.
const FEW: usize = 32;

/// The last lengths.
#[derive(Clone, Debug, Default)]
pub(super) struct Window(VecDeque<(Time, u32)>);

impl Window {
    /// One more; the oldest goes if there is no place.
    pub(super) fn add(&mut self, now: Time, tokens: u32) {
        if self.0.len() == PLACES {
            self.0.pop_front();
        }
        self.0.push_back((now, tokens));
    }

    /// Forgets what was before.
    pub(super) fn keep_since(&mut self, time: Time) {
        self.0.retain(|(at, _)| *at >= time);
    }

    /// How many a second; `None` while there are fewer than two, or all came at once.
    pub(super) fn rate(&self) -> Option<f64> {
        let span = self.0.back()?.0.saturating_sub(self.0.front()?.0).as_secs_f64();
        (span > 0.0).then(|| (self.0.len() - 1) as f64 / span)
    }

    /// Square of the coefficient of variation of the gaps; `None` while there are too few of them to say, or all came at once.
    pub(super) fn variation(&self) -> Option<f64> {
        let mean = self.rate().filter(|_| self.0.len() > FEW)?.recip();
        let gaps = self.0.iter().zip(self.0.iter().skip(1)).map(|(a, b)| b.0.saturating_sub(a.0).as_secs_f64());
        let squares: f64 = gaps.map(|gap| (gap - mean).powi(2)).sum();
        Some(squares / (self.0.len() - 1) as f64 / mean.powi(2))
    }

    /// The lengths, the shortest first.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.0.iter().map(|(_, tokens)| *tokens).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(at: impl Iterator<Item = f64>) -> Window {
        let mut window = Window::default();
        at.for_each(|at| window.add(Time::from_secs_f64(at), 1));
        window
    }

    #[test]
    fn bursts_vary_and_what_comes_in_turn_does_not() {
        let even = came((0..500).map(|n| f64::from(n) * 0.25));
        assert!(even.variation().unwrap() < 1e-6);
        // Ten at once, every ten seconds: of ten gaps one is ten times the mean.
        let bursts = came((0..500).map(|n| f64::from(n / 10) * 10.0));
        let variation = bursts.variation().unwrap();
        assert!((variation - 9.0).abs() < 0.5, "{variation}");
        assert_eq!(came((0..20).map(f64::from)).variation(), None, "too few");
        assert_eq!(came((0..500).map(|_| 3.0)).variation(), None, "all at once");
    }
}
