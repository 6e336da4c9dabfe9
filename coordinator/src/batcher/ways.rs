//! Which way of guessing gives most tokens in a second: all are timed in turn, and the best is taken.
//!
//! What a guess costs depends on the device, on how many answers there are, and with a draft model on that model; what it
//! gives depends on the text. A step's time begins when its guesses are asked for, so that those who make them are paid for.

use crate::Time;
use std::collections::BTreeMap;

/// With more answers a step is bound by arithmetic on any device, and guesses are not free.
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

/// Where a step has its guesses from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// It has none.
    #[default]
    Plain,
    /// What followed the same tokens before.
    Lookup,
    /// The same, and a draft model for answers of which nothing occurred before.
    Draft,
}

/// Whether steps of so many answers are worth looking for guesses at all.
pub(super) fn may_help(answers: usize) -> bool {
    (1..=MOST_ANSWERS).contains(&answers)
}

/// Answers' tokens and the time they took, with old ones fading.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    tokens: f64,
    seconds: f64,
    steps: u32,
}

impl Pace {
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
    ways: BTreeMap<Way, Pace>,
    turns: u32,
    /// Steps in which the draft model is still tried.
    run: u32,
}

impl Paces {
    fn choose(&mut self, possible: &[Way]) -> Way {
        self.turns = self.turns.wrapping_add(1);
        if self.run > 0 && possible.contains(&Way::Draft) {
            self.run -= 1;
            return Way::Draft;
        }
        let best = possible.iter().copied().max_by(|a, b| self.pace(*a).rate().total_cmp(&self.pace(*b).rate()));
        let best = best.unwrap_or_default();
        let Some(tried) = self.untimed(possible).or_else(|| self.again(possible, best)) else { return best };
        if tried == Way::Draft {
            self.run = RUN - 1;
        }
        tried
    }

    /// One that is not known well enough, the least known first.
    fn untimed(&self, possible: &[Way]) -> Option<Way> {
        let steps = |way: &Way| self.pace(*way).steps;
        possible.iter().copied().filter(|way| steps(way) < TRIALS).min_by_key(steps)
    }

    /// What was slower may have become faster: now and then another than the best is tried.
    fn again(&self, possible: &[Way], best: Way) -> Option<Way> {
        if possible.len() < 2 || !self.turns.is_multiple_of(AGAIN) {
            return None;
        }
        let nth = self.turns / AGAIN;
        let others = || possible.iter().copied().filter(|way| *way != best);
        if nth.is_multiple_of(RUN) && others().any(|way| way == Way::Draft) {
            return Some(Way::Draft);
        }
        let cheap = || others().filter(|way| *way != Way::Draft);
        cheap().nth(nth as usize % cheap().count().max(1))
    }

    fn pace(&self, way: Way) -> Pace {
        self.ways.get(&way).copied().unwrap_or_default()
    }
}

#[derive(Debug)]
struct Timed {
    since: Time,
    size: u32,
    way: Way,
}

/// Which way helps most.
#[derive(Debug, Default)]
pub(super) struct Guessing {
    /// By the logarithm of the number of answers.
    paces: BTreeMap<u32, Paces>,
    /// Steps on their way that are timed.
    timed: BTreeMap<u64, Timed>,
}

impl Guessing {
    /// The way that a step of so many answers should take, of those that are open to it.
    pub fn choose(&mut self, answers: usize, possible: &[Way]) -> Way {
        self.paces.entry(size(answers)).or_default().choose(possible)
    }

    /// A step of answers alone begins, for which there was a choice.
    pub fn begins(&mut self, step: u64, now: Time, answers: usize, way: Way) {
        self.timed.insert(step, Timed { since: now, size: size(answers), way });
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
        let Some(Timed { since, size, way }) = self.timed.remove(&step) else { return };
        let pace = self.paces.entry(size).or_default().ways.entry(way).or_default();
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
    fn chosen(ways: &[(Way, Does)]) -> BTreeMap<Way, usize> {
        let (mut guessing, mut now, mut taken) = (Guessing::default(), Time::ZERO, BTreeMap::new());
        let possible: Vec<Way> = ways.iter().map(|(way, _)| *way).collect();
        for step in 0..1000 {
            let way = guessing.choose(1, &possible);
            guessing.begins(step, now, 1, way);
            let (_, (ms, tokens)) = ways.iter().find(|(w, _)| *w == way).copied().unwrap();
            now += Duration::from_millis(ms);
            guessing.done(step, now, tokens);
            *taken.entry(way).or_default() += 1;
        }
        taken
    }

    const PLAIN: (Way, Does) = (Way::Plain, (10, 1));

    #[test]
    fn the_faster_of_two_is_taken() {
        let taken = chosen(&[PLAIN, (Way::Lookup, (20, 3))]);
        assert!(taken[&Way::Lookup] > 950, "{taken:?}");
        let taken = chosen(&[PLAIN, (Way::Lookup, (30, 2))]);
        assert!(taken[&Way::Lookup] < 50, "{taken:?}");
    }

    #[test]
    fn the_fastest_of_three_is_taken() {
        for (lookup, draft, best) in [
            ((12, 2), (40, 5), Way::Lookup),
            ((12, 1), (30, 5), Way::Draft),
            ((12, 2), (15, 5), Way::Draft),
            ((12, 1), (60, 5), Way::Plain),
            ((12, 1), (30, 1), Way::Plain),
        ] {
            let taken = chosen(&[PLAIN, (Way::Lookup, lookup), (Way::Draft, draft)]);
            assert!(taken[&best] > 900, "{best:?}: {taken:?}");
            assert_eq!(taken.len(), 3, "all are tried: {taken:?}");
        }
    }

    /// A draft model reads an answer of so many milliseconds before its first guesses.
    #[test]
    fn the_draft_model_is_tried_long_enough_to_repay_its_reading() {
        let (mut guessing, mut now, mut drafted) = (Guessing::default(), Time::ZERO, 0);
        let mut read = false;
        for step in 0..500 {
            let way = guessing.choose(1, &[Way::Plain, Way::Draft]);
            guessing.begins(step, now, 1, way);
            let reads = way == Way::Draft && !std::mem::replace(&mut read, way == Way::Draft);
            let ms = if way == Way::Draft { 12 } else { 10 } + if reads { 500 } else { 0 };
            now += Duration::from_millis(ms);
            guessing.done(step, now, if way == Way::Draft { 4 } else { 1 });
            drafted += usize::from(way == Way::Draft);
            read |= way == Way::Draft;
        }
        assert!(drafted > 450, "{drafted}");
    }

    #[test]
    fn a_slower_draft_model_is_tried_again_in_runs_only() {
        let (mut guessing, mut now, mut at) = (Guessing::default(), Time::ZERO, Vec::new());
        for step in 0..3 * u64::from(AGAIN * RUN) {
            let way = guessing.choose(1, &[Way::Plain, Way::Draft]);
            guessing.begins(step, now, 1, way);
            now += Duration::from_millis(if way == Way::Draft { 90 } else { 10 });
            guessing.done(step, now, 1);
            at.extend((way == Way::Draft).then_some(step));
        }
        let runs = at.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).collect::<Vec<_>>();
        assert!(runs.len() <= 5 && runs.iter().all(|run| *run <= RUN as usize), "{runs:?}");
    }
}
