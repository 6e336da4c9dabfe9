//! How long a group's steps take, as its leader sees them: what gateways expect of it beside what its peers' adverts claim, and
//! hold those claims against.

use crate::Time;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tsnode_protocol::{Quickest, RequestId, Sampled, Seconds, StepSize, TimedStep, ring::StepEntry};

/// Weight of a new step: about the last ten count.
const NEW: f64 = 0.1;
/// Steps of a kind that the quickest is one of.
const STEPS: usize = 64;
/// Of fewer none is called the quickest: all may have been disturbed.
const ENOUGH: usize = 32;
/// Fewer tokens of a prompt say more of what every step costs than of prompts.
const PROMPT: u32 = 16;

/// A step that has set off.
#[derive(Clone, Copy, Debug)]
struct Started {
    step: u64,
    size: StepSize,
    at: Time,
    /// What the compute thread had been busy for by then, as far as was known.
    busy: Option<Duration>,
}

/// Times of steps, from setting off to their tokens.
///
/// Two of them: answers wait for all of it, and that is a group's pace. What its speed is judged by is the part in which a
/// processor computed: neighbours that take the processors make the first long, and the second not.
#[derive(Debug, Default)]
pub(super) struct Pace {
    on_the_way: VecDeque<Started>,
    /// As last heard.
    busy: Option<Duration>,
    /// Of the last steps (s).
    mean: Option<f64>,
    /// Tokens that each sequence got of them.
    chosen: Option<f64>,
    /// The last ones with tokens of prompts.
    prompts: VecDeque<TimedStep>,
    /// The last ones of answers alone.
    answers: VecDeque<TimedStep>,
}

impl Pace {
    /// A step sets off.
    pub fn sets_off(&mut self, step: u64, size: StepSize, now: Time) {
        self.on_the_way.push_back(Started { step, size, at: now, busy: self.busy });
    }

    /// A step has come round, `busy` being what the compute thread has computed for since it began; those before it have come
    /// round too, or are lost.
    pub fn done(&mut self, step: u64, now: Time, busy: Option<Duration>) {
        while let Some(started) = self.on_the_way.front().copied().filter(|s| s.step <= step) {
            self.on_the_way.pop_front();
            if started.step == step {
                let took = now.saturating_sub(started.at);
                let computed = busy.zip(started.busy).map_or(took, |(now, then)| now.saturating_sub(then).min(took));
                self.took(started.size, took.as_secs_f64(), computed.as_secs_f64());
            }
        }
        self.busy = busy;
    }

    fn took(&mut self, size: StepSize, took: f64, computed: f64) {
        let mean = self.mean.get_or_insert(took);
        *mean += NEW * (took - *mean);
        let last = match size {
            StepSize { prompts: PROMPT.., .. } => &mut self.prompts,
            StepSize { prompts: 0, answers: 1.., .. } => &mut self.answers,
            _ => return,
        };
        if last.len() == STEPS {
            last.pop_front();
        }
        last.push_back(TimedStep { took: Seconds(computed), size });
    }

    /// A step has chosen these.
    pub fn chose(&mut self, tokens: &[(RequestId, Sampled)]) {
        let sequences: BTreeSet<RequestId> = tokens.iter().map(|(request, _)| *request).collect();
        if sequences.is_empty() {
            return;
        }
        let each = tokens.len() as f64 / sequences.len() as f64;
        let mean = self.chosen.get_or_insert(each);
        *mean += NEW * (each - *mean);
    }

    /// Tokens that each sequence got of one of the last steps that chose any.
    pub fn chosen(&self) -> Option<f64> {
        self.chosen
    }

    /// What was on its way is lost.
    pub fn lose_steps(&mut self) {
        self.on_the_way.clear();
    }

    /// Of the last steps; nothing before the first.
    pub fn mean(&self) -> Option<Seconds> {
        self.mean.map(Seconds)
    }

    /// The quickest of the last steps of each kind, where there were enough.
    pub fn quickest(&self) -> Quickest {
        let least = |last: &VecDeque<TimedStep>, took: fn(&TimedStep) -> f64| {
            let enough = Some(last).filter(|last| last.len() >= ENOUGH)?;
            enough.iter().copied().min_by(|a, b| took(a).total_cmp(&took(b)))
        };
        Quickest {
            prompts: least(&self.prompts, |step| step.took.0 / f64::from(step.size.prompts)),
            answers: least(&self.answers, |step| step.took.0),
        }
    }
}

/// What is computed in a step of these.
pub(super) fn size(entries: &[StepEntry]) -> StepSize {
    let mut size = StepSize::default();
    for entry in entries {
        let (tokens, before) = (entry.tokens.len() as u64, u64::from(entry.start));
        if entry.prompt {
            size.prompts += tokens as u32;
            size.pairs += tokens * (tokens + 2 * before);
        } else {
            size.answers += tokens as u32;
            size.context += tokens * before;
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tsnode_protocol::Token;

    const ANSWER: StepSize = StepSize { prompts: 0, pairs: 0, answers: 1, context: 100 };

    #[test]
    fn what_drafts_add_to_a_step_is_counted_for_each_sequence() {
        let mut pace = Pace::default();
        let of = |n: u8| (RequestId([n; 16]), Sampled { token: Token(7), logprob: None, top: vec![] });
        pace.chose(&[]);
        assert_eq!(pace.chosen(), None);
        pace.chose(&[of(1), of(2)]);
        assert_eq!(pace.chosen(), Some(1.0));
        (0..200).for_each(|_| pace.chose(&[of(1), of(1), of(1), of(1), of(2), of(2)]));
        assert!((pace.chosen().unwrap() - 3.0).abs() < 1e-3, "{:?}", pace.chosen());
    }

    fn ms(n: u64) -> Time {
        Duration::from_millis(n)
    }

    #[test]
    fn steps_are_timed_that_come_round_and_the_last_ones_count() {
        let mut pace = Pace::default();
        let seconds = |pace: &Pace| pace.mean().map(|s| (s.0 * 1e3).round() as u32);
        assert_eq!(seconds(&pace), None);
        // Two on their way at once; the first of them is lost with its ring.
        pace.sets_off(0, ANSWER, ms(0));
        pace.sets_off(1, ANSWER, ms(10));
        pace.done(1, ms(110), None);
        assert_eq!(seconds(&pace), Some(100));
        pace.sets_off(2, ANSWER, ms(200));
        pace.lose_steps();
        pace.done(2, ms(900), None);
        assert_eq!(seconds(&pace), Some(100));
        for step in 3..60 {
            pace.sets_off(step, ANSWER, ms(1000 * step));
            pace.done(step, ms(1000 * step + 20), None);
        }
        assert_eq!(seconds(&pace), Some(20));
    }

    /// Steps of this size, one after the other, that took so long (ms).
    fn took(pace: &mut Pace, size: StepSize, times: &[u64]) {
        for (step, took) in (0..).zip(times) {
            pace.sets_off(step, size, ms(0));
            pace.done(step, ms(*took), None);
        }
    }

    /// Neighbours take the processor for nine tenths of every step: clients wait, and the group is none the slower for it.
    #[test]
    fn a_step_is_judged_by_what_was_computed_in_it() {
        let mut pace = Pace::default();
        for step in 0..64 {
            pace.sets_off(step, ANSWER, ms(1000 * step));
            pace.done(step, ms(1000 * step + 100), Some(ms(10 * (step + 1))));
        }
        assert_eq!(pace.mean(), Some(Seconds(0.1)));
        assert_eq!(pace.quickest().answers.unwrap().took, Seconds(0.01));
        // A thread cannot have computed for longer than a step took: it is no excuse for being slow to add to.
        pace.sets_off(64, ANSWER, ms(70_000));
        pace.done(64, ms(70_005), Some(ms(900_000)));
        assert_eq!(pace.quickest().answers.unwrap().took, Seconds(0.005));
    }

    #[test]
    fn the_quickest_of_many_is_the_one_that_nothing_disturbed() {
        let (mut pace, quiet) = (Pace::default(), Quickest::default());
        took(&mut pace, ANSWER, &[40; 31]);
        assert_eq!(pace.quickest(), quiet, "all of a few may have been disturbed");
        took(&mut pace, ANSWER, &[7, 900]);
        assert_eq!(pace.quickest().answers.unwrap().took, Seconds(0.007));
        took(&mut pace, ANSWER, &[40; STEPS]);
        assert_eq!(pace.quickest().answers.unwrap().took, Seconds(0.04), "the last ones count");
        // Those with prompts are another kind, and the longer ones of them say more.
        let prompt = |prompts| StepSize { prompts, pairs: 0, answers: 3, context: 100 };
        took(&mut pace, prompt(16), &[30; 40]);
        took(&mut pace, prompt(320), &[160]);
        took(&mut pace, prompt(PROMPT - 1), &[1; 40]);
        let quickest = pace.quickest();
        assert_eq!(quickest.prompts.unwrap(), TimedStep { took: Seconds(0.16), size: prompt(320) });
        assert_eq!(quickest.answers.unwrap().took, Seconds(0.04));
    }

    #[test]
    fn a_steps_size_is_that_of_its_parts() {
        let entry = |start, tokens, prompt| StepEntry {
            request: RequestId([1; 16]),
            start,
            tokens: vec![tsnode_protocol::Token(7); tokens],
            sample: true,
            prompt,
        };
        let entries = [entry(10, 30, true), entry(0, 5, true), entry(100, 1, false), entry(50, 3, false)];
        let pairs = 40 * 40 - 10 * 10 + 5 * 5;
        assert_eq!(size(&entries), StepSize { prompts: 35, pairs, answers: 4, context: 100 + 3 * 50 });
    }
}
