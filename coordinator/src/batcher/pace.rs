//! How long a group's steps take, as its leader sees them: what gateways expect of it beside what its peers' adverts claim.

use crate::Time;
use std::collections::VecDeque;
use tsnode_protocol::Seconds;

/// Weight of a new step: about the last ten count.
const NEW: f64 = 0.1;

/// Times of steps, from setting off to their tokens.
#[derive(Debug, Default)]
pub(super) struct Pace {
    on_the_way: VecDeque<(u64, Time)>,
    /// Of the last steps (s).
    mean: Option<f64>,
}

impl Pace {
    /// A step sets off.
    pub fn sets_off(&mut self, step: u64, now: Time) {
        self.on_the_way.push_back((step, now));
    }

    /// A step has come round; those before it have too, or are lost.
    pub fn done(&mut self, step: u64, now: Time) {
        while let Some((number, at)) = self.on_the_way.front().copied().filter(|(number, _)| *number <= step) {
            self.on_the_way.pop_front();
            if number == step {
                let took = now.saturating_sub(at).as_secs_f64();
                let mean = self.mean.get_or_insert(took);
                *mean += NEW * (took - *mean);
            }
        }
    }

    /// What was on its way is lost.
    pub fn lose_steps(&mut self) {
        self.on_the_way.clear();
    }

    /// Of the last steps; nothing before the first.
    pub fn mean(&self) -> Option<Seconds> {
        self.mean.map(Seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn steps_are_timed_that_come_round_and_the_last_ones_count() {
        let (mut pace, ms) = (Pace::default(), Duration::from_millis);
        let seconds = |pace: &Pace| pace.mean().map(|s| (s.0 * 1e3).round() as u32);
        assert_eq!(seconds(&pace), None);
        // Two on their way at once; the first of them is lost with its ring.
        pace.sets_off(0, ms(0));
        pace.sets_off(1, ms(10));
        pace.done(1, ms(110));
        assert_eq!(seconds(&pace), Some(100));
        pace.sets_off(2, ms(200));
        pace.lose_steps();
        pace.done(2, ms(900));
        assert_eq!(seconds(&pace), Some(100));
        for step in 3..60 {
            pace.sets_off(step, ms(1000 * step));
            pace.done(step, ms(1000 * step + 20));
        }
        assert_eq!(seconds(&pace), Some(20));
    }
}
