//! Which strategy of speculative decoding gives most tokens in a second: all are timed in turn, and the best is taken.
//!
//! What a draft token costs depends on the device, on how many answers there are, and with a draft model on that model; what it
//! gives depends on the text. A step's time begins when its draft tokens are asked for, so that those who propose them are paid for.

use crate::Time;
use std::collections::BTreeMap;

/// With more answers a step is bound by arithmetic on any device, and draft tokens are not free.
const MOST_ANSWERS: usize = 32;
/// Steps of each way that are timed before one is preferred.
const TRIALS: u32 = 16;
/// After so many steps another way is tried again once.
const AGAIN: u32 = 64;
/// The draft model is tried for so many steps in a row, and as much more rarely: it reads what an answer has so far once, which
/// a single step could never repay.
const RUN: u32 = 32;
/// What a step weighs less with every step after it.
const FADES: f64 = 0.98;

/// Where a step has its draft tokens from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strategy {
    /// It has none.
    #[default]
    Plain,
    /// What followed the same tokens before.
    Lookup,
    /// The same, and a draft model for answers of which nothing occurred before.
    Draft,
}

/// Whether steps of so many answers are worth looking for draft tokens at all.
pub(super) fn may_help(answers: usize) -> bool {
    (1..=MOST_ANSWERS).contains(&answers)
}

/// Answers' tokens and the time they took, with old ones fading.
#[derive(Clone, Copy, Debug, Default)]
struct TokenRate {
    tokens: f64,
    seconds: f64,
    steps: u32,
}

impl TokenRate {
    fn add(&mut self, tokens: u32, seconds: f64) {
        self.tokens = self.tokens * FADES + f64::from(tokens);
        self.seconds = self.seconds * FADES + seconds;
        self.steps += 1;
    }

    fn rate(&self) -> f64 {
        self.tokens / self.seconds.max(1e-9)
    }
}

/// All ways, for about so many answers.
#[derive(Clone, Debug, Default)]
struct Paces {
    ways: BTreeMap<Strategy, TokenRate>,
    turns: u32,
    /// Steps in which the draft model is still tried.
    run: u32,
}

impl Paces {
    fn choose(&mut self, possible: &[Strategy]) -> Strategy {
        self.turns = self.turns.wrapping_add(1);
        if self.run > 0 && possible.contains(&Strategy::Draft) {
            self.run -= 1;
            return Strategy::Draft;
        }
        let best = possible.iter().copied().max_by(|a, b| self.pace(*a).rate().total_cmp(&self.pace(*b).rate()));
        let best = best.unwrap_or_default();
        let Some(tried) = self.untimed(possible).or_else(|| self.again(possible, best)) else { return best };
        if tried == Strategy::Draft {
            self.run = RUN - 1;
        }
        tried
    }

    /// One that is not known well enough, the least known first.
    fn untimed(&self, possible: &[Strategy]) -> Option<Strategy> {
        let steps = |strategy: &Strategy| self.pace(*strategy).steps;
        possible.iter().copied().filter(|strategy| steps(strategy) < TRIALS).min_by_key(steps)
    }

    /// What was slower may have become faster: now and then another than the best is tried.
    fn again(&self, possible: &[Strategy], best: Strategy) -> Option<Strategy> {
        if possible.len() < 2 || !self.turns.is_multiple_of(AGAIN) {
            return None;
        }
        let nth = self.turns / AGAIN;
        let others = || possible.iter().copied().filter(|strategy| *strategy != best);
        if nth.is_multiple_of(RUN) && others().any(|strategy| strategy == Strategy::Draft) {
            return Some(Strategy::Draft);
        }
        let cheap = || others().filter(|strategy| *strategy != Strategy::Draft);
        cheap().nth(nth as usize % cheap().count().max(1))
    }

    fn pace(&self, strategy: Strategy) -> TokenRate {
        self.ways.get(&strategy).copied().unwrap_or_default()
    }
}

#[derive(Debug)]
struct TimedStrategy {
    since: Time,
    size: u32,
    strategy: Strategy,
}

/// Which way helps most.
#[derive(Debug, Default)]
pub(super) struct StrategyTuner {
    /// By the logarithm of the number of answers.
    paces: BTreeMap<u32, Paces>,
    /// Steps on their way that are timed.
    timed: BTreeMap<u64, TimedStrategy>,
}

impl StrategyTuner {
    /// The way that a step of so many answers should take, of those that are open to it.
    pub fn choose(&mut self, answers: usize, possible: &[Strategy]) -> Strategy {
        self.paces.entry(size(answers)).or_default().choose(possible)
    }

    /// A step of answers alone begins, for which there was a choice.
    pub fn begins(&mut self, step: u64, now: Time, answers: usize, strategy: Strategy) {
        self.timed.insert(step, TimedStrategy { since: now, size: size(answers), strategy });
    }

    /// What was on its way is lost.
    pub fn lose_steps(&mut self) {
        self.timed.clear();
    }

    /// One step came to nothing.
    pub fn lose(&mut self, step: u64) {
        self.timed.remove(&step);
    }

    /// It is done, and has given so many tokens.
    pub fn done(&mut self, step: u64, now: Time, tokens: u32) {
        let Some(TimedStrategy { since, size, strategy }) = self.timed.remove(&step) else { return };
        let pace = self.paces.entry(size).or_default().ways.entry(strategy).or_default();
        pace.add(tokens, now.saturating_sub(since).as_secs_f64());
    }
}

fn size(answers: usize) -> u32 {
    answers.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// How a way does: milliseconds of a step, and its tokens.
    type Does = (u64, u32);

    /// Of a thousand steps on a device where each way does so, those of each.
    fn chosen(ways: &[(Strategy, Does)]) -> BTreeMap<Strategy, usize> {
        let (mut strategies, mut now, mut taken) = (StrategyTuner::default(), Time::ZERO, BTreeMap::new());
        let possible: Vec<Strategy> = ways.iter().map(|(strategy, _)| *strategy).collect();
        for step in 0..1000 {
            let strategy = strategies.choose(1, &possible);
            strategies.begins(step, now, 1, strategy);
            let (_, (ms, tokens)) = ways.iter().find(|(w, _)| *w == strategy).copied().unwrap();
            now += Duration::from_millis(ms);
            strategies.done(step, now, tokens);
            *taken.entry(strategy).or_default() += 1;
        }
        taken
    }

    const PLAIN: (Strategy, Does) = (Strategy::Plain, (10, 1));

    #[test]
    fn the_faster_of_two_is_taken() {
        let taken = chosen(&[PLAIN, (Strategy::Lookup, (20, 3))]);
        assert!(taken[&Strategy::Lookup] > 950, "{taken:?}");
        let taken = chosen(&[PLAIN, (Strategy::Lookup, (30, 2))]);
        assert!(taken[&Strategy::Lookup] < 50, "{taken:?}");
    }

    #[test]
    fn the_fastest_of_three_is_taken() {
        for (lookup, draft, best) in [
            ((12, 2), (40, 5), Strategy::Lookup),
            ((12, 1), (30, 5), Strategy::Draft),
            ((12, 2), (15, 5), Strategy::Draft),
            ((12, 1), (60, 5), Strategy::Plain),
            ((12, 1), (30, 1), Strategy::Plain),
        ] {
            let taken = chosen(&[PLAIN, (Strategy::Lookup, lookup), (Strategy::Draft, draft)]);
            assert!(taken[&best] > 900, "{best:?}: {taken:?}");
            assert_eq!(taken.len(), 3, "all are tried: {taken:?}");
        }
    }

    /// A draft model reads an answer of so many milliseconds before its first draft tokens.
    #[test]
    fn the_draft_model_is_tried_long_enough_to_repay_its_reading() {
        let (mut strategies, mut now, mut drafted) = (StrategyTuner::default(), Time::ZERO, 0);
        let mut read = false;
        for step in 0..500 {
            let strategy = strategies.choose(1, &[Strategy::Plain, Strategy::Draft]);
            strategies.begins(step, now, 1, strategy);
            let reads = strategy == Strategy::Draft && !std::mem::replace(&mut read, strategy == Strategy::Draft);
            let ms = if strategy == Strategy::Draft { 12 } else { 10 } + if reads { 500 } else { 0 };
            now += Duration::from_millis(ms);
            strategies.done(step, now, if strategy == Strategy::Draft { 4 } else { 1 });
            drafted += usize::from(strategy == Strategy::Draft);
            read |= strategy == Strategy::Draft;
        }
        assert!(drafted > 450, "{drafted}");
    }

    #[test]
    fn a_slower_draft_model_is_tried_again_in_runs_only() {
        let (mut strategies, mut now, mut at) = (StrategyTuner::default(), Time::ZERO, Vec::new());
        for step in 0..3 * u64::from(AGAIN * RUN) {
            let strategy = strategies.choose(1, &[Strategy::Plain, Strategy::Draft]);
            strategies.begins(step, now, 1, strategy);
            now += Duration::from_millis(if strategy == Strategy::Draft { 90 } else { 10 });
            strategies.done(step, now, 1);
            at.extend((strategy == Strategy::Draft).then_some(step));
        }
        let runs = at.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).collect::<Vec<_>>();
        assert!(runs.len() <= 5 && runs.iter().all(|run| *run <= RUN as usize), "{runs:?}");
    }
}
