//! What a device's turns were used for: steps of each model, the sequences in them and what they took, and for how long the device
//! was nobody's while somebody waited. It is counted where turns are given, so that a peer and the simulator count alike.

use super::arbiter::DeviceWork;
use crate::{policy::batching::ServiceNo, time::Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tsnode_protocol::Seconds;

/// What a model had of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceUse {
    /// Its steps.
    pub steps: u64,
    /// How long they took, all together.
    pub busy: Seconds,
    /// Sequences in them, each counted in every step that it was in.
    pub sequences: u64,
    /// Tokens of prompts in them.
    pub prompt_tokens: u64,
    /// Turns that were no steps: memory set aside or given back, KV packed or unpacked.
    pub errands: u64,
    /// How long these took, all together.
    pub errands_busy: Seconds,
    /// How long all of them waited for their turns.
    pub waited: Seconds,
    /// How long the device was nobody's before its turns, while somebody waited.
    pub idle: Seconds,
    /// How often it was kept for its next step in vain.
    pub passed: u64,
}

impl ServiceUse {
    /// What came since then.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            steps: self.steps.saturating_sub(before.steps),
            busy: self.busy - before.busy,
            sequences: self.sequences.saturating_sub(before.sequences),
            prompt_tokens: self.prompt_tokens.saturating_sub(before.prompt_tokens),
            errands: self.errands.saturating_sub(before.errands),
            errands_busy: self.errands_busy - before.errands_busy,
            waited: self.waited - before.waited,
            idle: self.idle - before.idle,
            passed: self.passed.saturating_sub(before.passed),
        }
    }

    /// A step's time on average; nothing where there was none.
    #[must_use]
    pub fn step(&self) -> Seconds {
        self.busy / self.steps.max(1) as f64
    }
}

impl std::iter::Sum for ServiceUse {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            steps: a.steps + b.steps,
            busy: a.busy + b.busy,
            sequences: a.sequences + b.sequences,
            prompt_tokens: a.prompt_tokens + b.prompt_tokens,
            errands: a.errands + b.errands,
            errands_busy: a.errands_busy + b.errands_busy,
            waited: a.waited + b.waited,
            idle: a.idle + b.idle,
            passed: a.passed + b.passed,
        })
    }
}

/// A turn that was asked for.
#[derive(Clone, Copy, Debug)]
struct AskedTurn {
    at: Time,
    /// Of a step: its sequences, and its tokens of prompts.
    step: Option<(u64, u64)>,
}

/// Of all models of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceUse {
    services: BTreeMap<ServiceNo, ServiceUse>,
    asked: BTreeMap<ServiceNo, AskedTurn>,
    /// When the last turn was over.
    free: Time,
}

impl DeviceUse {
    pub fn asks<R>(&mut self, now: Time, service: ServiceNo, work: &DeviceWork<R>) {
        let step = match work {
            DeviceWork::Step(shares) => {
                let tokens = shares.iter().map(|share| u64::from(share.prompt_tokens)).sum();
                Some((shares.len() as u64, tokens))
            }
            DeviceWork::Errand => None,
        };
        self.asked.insert(service, AskedTurn { at: now, step });
    }

    /// A turn is over that took so long.
    pub fn over(&mut self, now: Time, service: ServiceNo, took: Seconds) {
        let earliest = self.asked.values().map(|asked| asked.at).min().unwrap_or(now);
        let Some(asked) = self.asked.remove(&service) else { return };
        let began = now.saturating_sub(Time::try_from_secs_f64(took.0).unwrap_or_default());
        let between = |since: Time| Seconds(began.saturating_sub(since).as_secs_f64());
        let used = self.services.entry(service).or_default();
        used.waited += between(asked.at);
        used.idle += between(self.free.max(earliest));
        match asked.step {
            Some((sequences, prompt_tokens)) => {
                used.steps += 1;
                used.busy += took;
                used.sequences += sequences;
                used.prompt_tokens += prompt_tokens;
            }
            None => {
                used.errands += 1;
                used.errands_busy += took;
            }
        }
        self.free = now;
    }

    /// It was kept for one that did not ask in time.
    pub fn passes(&mut self, service: ServiceNo) {
        self.services.entry(service).or_default().passed += 1;
    }

    pub fn of(&self, service: ServiceNo) -> ServiceUse {
        self.services.get(&service).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::sharing::arbiter::StepShare;

    #[test]
    fn a_device_is_idle_where_somebody_waits_and_nobody_has_a_turn() {
        let [one, other] = [0, 1].map(ServiceNo);
        let (at, took) = (Time::from_millis, |ms: f64| Seconds(ms / 1e3));
        let step = |prompts: &[u32]| {
            let share = |(request, &prompt_tokens): (usize, &u32)| StepShare { request, prompt_tokens };
            DeviceWork::Step(prompts.iter().enumerate().map(share).collect())
        };
        let mut used = DeviceUse::default();
        // Nobody waits until the second; one waits a millisecond, and the other for its step of ten.
        used.asks(at(1000), one, &step(&[0, 30, 12]));
        used.asks(at(1005), other, &DeviceWork::<usize>::Errand);
        used.over(at(1011), one, took(10.0));
        // Four go by before its turn begins; what the first one asks for meanwhile came later.
        used.asks(at(1013), one, &step(&[0]));
        used.over(at(1016), other, took(1.0));
        used.over(at(1036), one, took(20.0));
        let close = |is: Seconds, ms: f64| assert!((is.0 * 1e3 - ms).abs() < 1e-6, "{is:?} for {ms} ms");
        let first = used.of(one);
        assert_eq!((first.steps, first.sequences, first.prompt_tokens, first.errands), (2, 4, 42, 0));
        close(first.busy, 30.0);
        close(first.step(), 15.0);
        close(first.waited, 1.0 + 3.0);
        close(first.idle, 1.0);
        let second = used.of(other);
        assert_eq!((second.steps, second.errands), (0, 1));
        close(second.errands_busy, 1.0);
        close(second.waited, 10.0);
        close(second.idle, 4.0);
        assert_eq!(first.since(&first), ServiceUse::default());
        assert_eq!(used.of(ServiceNo(2)), ServiceUse::default());
    }
}
