//! The last lengths and when they came, as many as fit a fixed number of places.

use crate::Time;
use std::collections::VecDeque;

/// Places.
const PLACES: usize = 512;

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

    /// The lengths, the shortest first.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.0.iter().map(|(_, tokens)| *tokens).collect();
        all.sort_unstable();
        all
    }
}
