//! How much longer a thread computes while other processors of its computer compute, too: they have one memory and its caches, and two of
//! one core the same units. Measured before it is simulated; where nothing was, nothing takes longer.

use crate::policy::batching::Batch;

/// So many times as long, by how many processors compute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContentionCurve {
    /// Processors beside whose threads nothing was measured: those of one machine alone.
    alone: f64,
    /// Processors that compute, and so many times as long, in order of both.
    points: Vec<(f64, f64)>,
}

impl ContentionCurve {
    /// Through what was measured while so many processors computed, against a machine alone with so many of them.
    ///
    /// More that compute make nobody quicker, and nobody slower than taking turns on the processors of one would: what was measured beside
    /// that is taken to be chance. Of what is no number, or of no more processors than one machine has, nothing is taken.
    #[must_use]
    pub fn measured(alone: f64, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let is_sound =
            |(busy, times): &(f64, f64)| alone > 0.0 && *busy > alone && busy.is_finite() && times.is_finite();
        let mut points: Vec<(f64, f64)> = points.into_iter().filter(is_sound).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut least = 1.0_f64;
        for (busy, times) in &mut points {
            least = times.clamp(least, (*busy / alone).max(least));
            *times = least;
        }
        Self { alone, points }
    }

    /// So many times as long while so many processors compute: once for a machine alone, straight between points, and beyond the last
    /// as there.
    #[must_use]
    pub fn at(&self, busy: f64) -> f64 {
        let next = self.points.partition_point(|(measured, _)| *measured < busy);
        let (low, below) = next.checked_sub(1).map_or((self.alone, 1.0), |last| self.points[last]);
        match self.points.get(next) {
            Some(&(high, above)) if busy > low => below + (above - below) * (busy - low) / (high - low),
            _ => below,
        }
    }

    /// What was measured: processors that computed, and so many times as long.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// The same of steps with prompts, which wait for arithmetic, and of those of answers alone, which wait for memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contention {
    /// Of a step with a prompt in it.
    pub prompts: ContentionCurve,
    /// Of a step of answers alone.
    pub answers: ContentionCurve,
    /// How much longer steps of both kinds take than a thread's share of its host's processors says, by threads a processor: each that has
    /// its turn finds caches that another has filled.
    pub oversubscribed: Oversubscription,
}

/// So many times as long, by how many threads compute on each processor of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Oversubscription {
    /// Of a step with a prompt in it.
    pub prompts: ContentionCurve,
    /// Of a step of answers alone.
    pub answers: ContentionCurve,
}

impl Contention {
    /// So many times as long a batch takes while so many processors compute, its own among them, each of its host with so many threads.
    pub(super) fn times(&self, batch: &Batch, busy: f64, threads_each: f64) -> f64 {
        let Self { prompts, answers, oversubscribed } = self;
        if batch.prompts > 0 {
            prompts.at(busy) * oversubscribed.prompts.at(threads_each)
        } else {
            answers.at(busy) * oversubscribed.answers.at(threads_each)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_points_it_is_straight_and_beyond_them_even() {
        let curve = ContentionCurve::measured(1.0, [(4.0, 1.75), (2.0, 1.25)]);
        let at = [0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0].map(|busy| curve.at(busy));
        assert_eq!(at, [1.0, 1.0, 1.125, 1.25, 1.5, 1.75, 1.75]);
        // Two threads of one machine are what it was measured with.
        let twos = ContentionCurve::measured(2.0, [(2.0, 9.0), (4.0, 1.5)]);
        assert_eq!([1.0, 2.0, 3.0, 4.0].map(|busy| twos.at(busy)), [1.0, 1.0, 1.25, 1.5]);
        assert_eq!(twos.points(), [(4.0, 1.5)]);
    }

    #[test]
    fn it_grows_and_is_at_least_once_and_at_most_what_turns_take() {
        let curve = ContentionCurve::measured(1.0, [(2.0, 0.9), (3.0, 1.4), (4.0, 1.2), (5.0, 77.0)]);
        assert_eq!(curve.points(), [(2.0, 1.0), (3.0, 1.4), (4.0, 1.4), (5.0, 5.0)]);
        let odd = [(f64::NAN, 2.0), (2.0, f64::NAN), (f64::INFINITY, 2.0), (2.0, f64::INFINITY), (0.5, 3.0)];
        assert!(ContentionCurve::measured(1.0, odd).points().is_empty());
        for alone in [0.0, -1.0, f64::NAN] {
            assert_eq!(ContentionCurve::measured(alone, [(2.0, 1.5)]).at(2.0), 1.0, "{alone}");
        }
        let nothing = Contention::default();
        assert_eq!([0.0, 1.0, 8.0].map(|busy| nothing.times(&Batch::prompt(5), busy, busy)), [1.0; 3]);
    }

    #[test]
    fn a_step_with_a_prompt_is_a_prompts() {
        let curve = |times| ContentionCurve::measured(1.0, [(2.0, times)]);
        let oversubscribed = Oversubscription { prompts: curve(1.1), answers: curve(1.2) };
        let both = Contention { prompts: curve(1.5), answers: curve(1.25), oversubscribed };
        let of = |batch: Batch| both.times(&batch, 2.0, 1.0);
        let answers = Batch::answers(3, 90);
        assert_eq!([of(Batch::prompt(9)), of(Batch::prompt(9).with_answers(3, 90)), of(answers)], [1.5, 1.5, 1.25]);
        assert_eq!([both.times(&answers, 2.0, 2.0), both.times(&Batch::prompt(9), 1.0, 4.0)], [1.25 * 1.2, 1.1]);
    }
}
