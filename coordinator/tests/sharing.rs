//! Several services on one machine (SeaLLM §4.2): the order against brute force, and what must hold under every order.
#![allow(clippy::unwrap_used)] // What cannot be had fails the test.

use proptest::prelude::*;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, Batching, Limits, ServiceNo},
        doubling::{Doubling, Profile},
        pages::Pages,
        routing::{Asked, ShortestQueue},
        sharing::order::{Lead, Memory, Prompts, Rules},
    },
    simulator::{
        cost::{IterationCost, Several},
        machines::{Alike, Arrival, Machine, Outcome, Simulation},
    },
};
use tsnode_protocol::{Seconds, SecondsPerToken};

/// A model that takes so long for a prompt token and for a step, whatever the batch.
#[derive(Clone, Copy, Debug)]
struct Speed {
    token: f64,
    step: f64,
}

impl IterationCost for Speed {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let step = if batch.answers > 0 { self.step } else { 0.0 };
        Seconds(self.token * batch.prompt_tokens as f64 + step)
    }
}

fn run(batching: Box<dyn Batching>, cost: Arc<dyn IterationCost>, arrivals: &[Arrival]) -> Outcome {
    let links = Alike { per_token: SecondsPerToken(0.0) };
    let machine = Machine { batching, cost };
    Simulation::new(vec![machine], Box::new(ShortestQueue::new(1)), Box::new(links)).run(arrivals, &|_| false)
}

const ONE: Limits = Limits { tasks: 1, tokens: 1 << 20 };
const AMPLE: u64 = 1 << 40;
/// As printed, as we run it, and with one rule of the two.
const RULES: [Rules; 3] = [
    Rules { prompts: Prompts::Wait, memory: Memory::Kept, lead: Lead::First },
    Rules { prompts: Prompts::Join, memory: Memory::Kept, lead: Lead::First },
    Doubling::RULES,
];

/// Every order of `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for shorter in permutations(last) {
        for place in 0..=last {
            let mut order = shorter.clone();
            order.insert(place, last);
            all.push(order);
        }
    }
    all
}

/// A service whose requests are all alike.
#[derive(Clone, Copy, Debug)]
struct Kind {
    speed: Speed,
    prompt: u32,
    answer: u32,
}

impl Kind {
    fn asked(&self, service: usize) -> Asked {
        Asked { service: ServiceNo(service as u16), ..Asked::new(self.prompt, self.answer) }
    }

    fn takes(&self) -> f64 {
        self.speed.token * f64::from(self.prompt) + self.speed.step * f64::from(self.answer - 1)
    }
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = (1u32..50, 1u32..50, 1u32..200, 1u32..60).prop_map(|(token, step, prompt, answer)| Kind {
        speed: Speed { token: f64::from(token) * 1e-4, step: f64::from(step) * 1e-3 },
        prompt,
        answer,
    });
    prop::collection::vec(kind, 1..5)
}

/// The machine's services with what is exactly right of them.
fn exact(kinds: &[Kind], rules: Rules) -> (Box<dyn Batching>, Arc<dyn IterationCost>) {
    let profile = |k: &Kind| Profile::of(&[Seconds(k.takes())]);
    let pages = Pages::new(AMPLE, vec![16; kinds.len()]);
    let policy = Doubling::new(kinds.iter().map(profile).collect(), ONE, pages).by(rules);
    let speeds = kinds.iter().map(|k| Arc::new(k.speed) as Arc<dyn IterationCost>).collect();
    (Box::new(policy), Arc::new(Several::new(speeds).unwrap()))
}

/// Least sum of latencies over means when what is left is done in one order or another, from `from` on.
fn best(left: &[(f64, f64, f64)], from: f64) -> f64 {
    let cost = |order: Vec<usize>| {
        let mut now = from;
        let ends = order.into_iter().map(|i| {
            let (time, came, mean) = left[i];
            now += time;
            (now - came) / mean
        });
        ends.sum::<f64>()
    };
    permutations(left.len()).into_iter().map(cost).fold(f64::INFINITY, f64::min)
}

fn total(outcome: &Outcome, kinds: &[Kind]) -> f64 {
    let mean = |a: &Arrival| kinds[usize::from(a.asked.service.0)].takes();
    outcome.traces.iter().map(|t| (t.end - t.arrival.at).0 / mean(&t.arrival)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Theorem 1, for requests that are present together.
    #[test]
    fn no_order_of_present_requests_is_better(
        kinds in kinds(),
        of in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        rules in prop::sample::select(RULES.to_vec()),
    ) {
        // They come while the machine is at something else that takes a second, so that all are there when it chooses.
        let mut arrivals: Vec<Arrival> = of
            .iter()
            .map(|i| i.index(kinds.len()))
            .map(|k| Arrival { at: Seconds(0.5), asked: kinds[k].asked(k) })
            .collect();
        let left: Vec<_> = arrivals.iter().map(|a| kinds[usize::from(a.asked.service.0)].takes()).map(|t| (t, 0.5, t)).collect();
        let other = Kind { speed: Speed { token: 1.0, step: 1.0 }, prompt: 1, answer: 1 };
        arrivals.insert(0, Arrival { at: Seconds(0.0), asked: other.asked(kinds.len()) });
        let kinds: Vec<Kind> = kinds.into_iter().chain([other]).collect();
        let (policy, cost) = exact(&kinds, rules);
        let found = total(&run(policy, cost, &arrivals), &kinds);
        let least = 1.0 + best(&left, 1.0);
        prop_assert!((found - least).abs() < 1e-9 * least, "{found} where {least} can be had");
    }

    /// The same from the moment on when others come while one is being answered: what it has had counts.
    #[test]
    fn nor_when_they_come_while_one_runs(
        kinds in kinds(),
        first in any::<prop::sample::Index>(),
        steps in any::<prop::sample::Index>(),
        of in prop::collection::vec(any::<prop::sample::Index>(), 1..7),
        rules in prop::sample::select(RULES.to_vec()),
    ) {
        let first = first.index(kinds.len());
        let early = kinds[first];
        prop_assume!(early.answer > 2);
        // They come half a step before a boundary, with at least one more step to do.
        let steps = 1 + steps.index(early.answer as usize - 2);
        let prompt = early.speed.token * f64::from(early.prompt);
        let boundary = prompt + early.speed.step * steps as f64;
        let at = boundary - 0.5 * early.speed.step;
        let of: Vec<usize> = of.iter().map(|i| i.index(kinds.len())).collect();
        let mut arrivals = vec![Arrival { at: Seconds(0.0), asked: early.asked(first) }];
        arrivals.extend(of.iter().map(|&k| Arrival { at: Seconds(at), asked: kinds[k].asked(k) }));
        let (policy, cost) = exact(&kinds, rules);
        let found = total(&run(policy, cost, &arrivals), &kinds);
        let mut left = vec![(early.takes() - boundary, 0.0, early.takes())];
        left.extend(of.iter().map(|&k| (kinds[k].takes(), at, kinds[k].takes())));
        let least = best(&left, boundary);
        prop_assert!((found - least).abs() < 1e-9 * least, "{found} where {least} can be had");
    }
}
