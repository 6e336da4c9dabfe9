//! Guesses at an answer's next tokens, checked in the step that computes them (speculative decoding).
//!
//! Text repeats itself: what followed the last occurrence of an answer's last tokens is likely to follow again (prompt
//! lookup). The last stage chooses a token after each guess as it would have without, by the same logits and the same
//! draw, and stops at the first that was guessed wrong: an answer has the tokens it would have had. What that costs
//! depends on the device and on how many answers there are, so that both ways are timed and the better one is taken.

use crate::Time;
use std::collections::BTreeMap;
use tsnode_protocol::Token;

/// Tokens that must occur again for what follows them to be a guess.
const GRAM: usize = 3;
/// Tokens guessed at a time.
const MOST: usize = 4;
/// With more answers a step is bound by arithmetic on any device, and guesses are not free.
const MOST_ANSWERS: usize = 32;
/// Steps of each way that are timed before one is preferred.
const TRIALS: u32 = 16;
/// After so many steps the other way is tried again once.
const AGAIN: u32 = 64;
/// What a step weighs less with every step after it.
const FADES: f64 = 0.98;

/// Whether an answer's next tokens are guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guesses {
    /// Where steps with guesses are measured to give more tokens in a second.
    #[default]
    Measured,
    /// Never.
    Never,
}

/// Where an answer's tokens occurred before.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// What comes after the last occurrence of these tokens.
    after: BTreeMap<[Token; GRAM], usize>,
    seen: usize,
}

impl Lookup {
    /// What may follow these tokens, which are those of the call before and some more.
    pub fn guess<'t>(&mut self, tokens: &'t [Token], most: usize) -> &'t [Token] {
        let Some(last) = tokens.last_chunk::<GRAM>() else { return &[] };
        // All but the last tokens themselves, after which nothing is known.
        for end in (self.seen + 1).max(GRAM)..tokens.len() {
            if let Some(gram) = tokens[..end].last_chunk::<GRAM>() {
                self.after.insert(*gram, end);
            }
        }
        self.seen = tokens.len() - 1;
        let Some(&from) = self.after.get(last) else { return &[] };
        &tokens[from..tokens.len().min(from + most.min(MOST))]
    }
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

/// Both ways, for about so many answers.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    with: Pace,
    without: Pace,
    turns: u32,
}

#[derive(Debug)]
struct Timed {
    since: Time,
    size: u32,
    with: bool,
}

/// Whether steps of so many answers are worth looking for guesses at all.
pub(super) fn may_help(answers: usize) -> bool {
    (1..=MOST_ANSWERS).contains(&answers)
}

/// Whether guesses help.
#[derive(Debug, Default)]
pub(super) struct Guessing {
    /// By the logarithm of the number of answers.
    ways: BTreeMap<u32, Ways>,
    /// Steps on their way that are timed.
    timed: BTreeMap<u64, Timed>,
}

impl Guessing {
    /// Whether a step of so many answers, for which there are guesses, should use them.
    pub fn helps(&mut self, answers: usize) -> bool {
        let ways = self.ways.entry(answers.ilog2()).or_default();
        ways.turns += 1;
        let known = ways.with.steps.min(ways.without.steps) >= TRIALS;
        let better = if known { ways.with.rate() > ways.without.rate() } else { ways.with.steps <= ways.without.steps };
        // What was slower may have become faster.
        better != (known && ways.turns.is_multiple_of(AGAIN))
    }

    /// A step of answers alone sets off, for which there were guesses.
    pub fn sent(&mut self, step: u64, now: Time, answers: usize, with: bool) {
        self.timed.insert(step, Timed { since: now, size: answers.max(1).ilog2(), with });
    }

    /// What was on its way is lost.
    pub fn lose_steps(&mut self) {
        self.timed.clear();
    }

    /// It is done, and has given so many tokens.
    pub fn done(&mut self, step: u64, now: Time, tokens: u32) {
        let Some(Timed { since, size, with }) = self.timed.remove(&step) else { return };
        let ways = self.ways.entry(size).or_default();
        let pace = if with { &mut ways.with } else { &mut ways.without };
        pace.add(tokens, now.saturating_sub(since).as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    #[test]
    fn what_followed_last_is_guessed() {
        let mut lookup = Lookup::default();
        let mut all = tokens(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 8, 8, 1, 2]);
        assert!(lookup.guess(&all, 4).is_empty());
        all.push(Token(3));
        assert_eq!(lookup.guess(&all, 9), &all[8..12]);
        assert_eq!(lookup.guess(&all, 2), &all[8..10]);
        all.push(Token(4));
        assert_eq!(lookup.guess(&all, 2), &all[4..6], "2, 3, 4 came once before");
        let mut same = Lookup::default();
        let all = tokens(&[7; 8]);
        assert_eq!(same.guess(&all, 4), &all[7..], "up to the last token, after which nothing is known");
        assert!(Lookup::default().guess(&tokens(&[7; 3]), 4).is_empty());
    }

    /// A device whose steps with guesses take `times` as long and give `each` tokens.
    fn chosen(times: u32, each: u32) -> usize {
        let mut guessing = Guessing::default();
        let mut now = Time::ZERO;
        let mut with = 0;
        for step in 0..1000 {
            let guesses = guessing.helps(1);
            guessing.sent(step, now, 1, guesses);
            now += Duration::from_millis(if guesses { 10 * u64::from(times) } else { 10 });
            guessing.done(step, now, if guesses { each } else { 1 });
            with += usize::from(guesses);
        }
        with
    }

    #[test]
    fn the_faster_way_is_taken() {
        assert!(chosen(2, 3) > 950, "{}", chosen(2, 3));
        assert!(chosen(3, 2) < 50, "{}", chosen(3, 2));
    }
}
