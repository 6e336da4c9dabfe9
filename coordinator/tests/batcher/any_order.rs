//! Requests of every kind at random moments: each ends once, and all pages come back.

use super::scenario::*;
use std::collections::BTreeSet;
use tsnode_coordinator::{
    batcher::{BatcherConfig, Event, SequenceKind, Speculation},
    policy::choice::Batches,
};
use tsnode_protocol::{KvCodec, PromptCodec, Token};

/// What nodes can be told to do, and the other policy that a batcher can drive.
const POLICIES: [Batches; 4] =
    [Batches::Chunked(8), Batches::PrefillFirst, Batches::Mixed(8), Batches::PromptsFirst(8)];

/// Requests of every kind, cancelled, begun and fed at random moments: each ends once, indices have no gap, and every
/// page comes back; whatever the policy, also where that changes meanwhile.
#[test]
fn every_request_ends_once_whatever_the_order() {
    let seeds = std::env::var("TSNODE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(600u64);
    for seed in 0..seeds {
        let mut state = seed;
        let mut rng = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let stages = 1 + rng(3) as u16;
        let batches = POLICIES[(seed % 4) as usize];
        let growth = 1 + rng(12) as u32;
        let max_kept = rng(4) as usize;
        let drafts =
            [Speculation::Measured, Speculation::Drafted, Speculation::Drafted, Speculation::Never][rng(4) as usize];
        let config = BatcherConfig {
            stages: stages.into(),
            batches,
            growth,
            max_kept,
            speculation: drafts,
            ..BatcherConfig::default()
        };
        let mut scenario = Scenario::of(config, 80);
        scenario.draft.knows = [Knows::All, Knows::Some, Knows::Other, Knows::Nothing][rng(4) as usize];
        scenario.ring.period = rng(3) as u32 * 3;
        let (mut prompts, mut parts) = (Vec::new(), Vec::new());
        let kinds: Vec<u64> = (0..8).map(|_| rng(3)).collect();
        for (n, kind) in kinds.iter().enumerate() {
            let kind = [SequenceKind::Local, SequenceKind::AwaitKv, export()][*kind as usize].clone();
            // Some begin alike, some with others' whole prompts.
            prompts.push(1 + rng(40) as usize);
            let mut sequence = new(n as u8, prompts[n], 1 + rng(30) as u32, kind);
            // Some were begun elsewhere, some have their KV packed.
            let known = if kinds[n] == 2 { 0 } else { rng(8).saturating_sub(4) as u32 };
            let place = |i| answer(scenario.ring.period, prompts[n] as u32 + i);
            sequence.answered = (0..known.min(sequence.generation.max_new_tokens)).map(place).collect();
            if kinds[n] != 2 && rng(2) == 0 {
                sequence.codec = KvCodec::Int4.into();
                scenario.ring.packed.insert(request(n as u8), prompts[n] as u32);
            }
            // Of some prompts only a first part comes, or is packed.
            let part = 1 + rng(prompts[n] as u64) as u32;
            if kinds[n] != 2 && rng(3) == 0 {
                sequence.codec = PromptCodec::of_first(sequence.codec.codec, part, prompts[n] as u32);
                scenario.ring.packed.entry(request(n as u8)).and_modify(|packed| *packed = part);
            }
            parts.push(sequence.codec.tokens(prompts[n] as u32) as usize);
            scenario.tell(Event::Submit(sequence));
        }
        let mut cancelled = BTreeSet::new();
        for _ in 0..400 {
            let n = rng(8) as u8;
            let r = request(n);
            match rng(12) {
                0 if rng(6) == 0 => {
                    if scenario.ends(n) == 0 {
                        cancelled.insert(n);
                    }
                    scenario.tell(Event::Cancel { request: r });
                }
                1 => drop(scenario.tell(Event::Begin { request: r, first: Token(50) })),
                2 if rng(4) == 0 => drop(scenario.tell(Event::PrefillHere { request: r, first: None })),
                3 if rng(4) == 0 => {
                    let arrived = Err("broken".into());
                    scenario.tell(Event::KvArrived { request: r, position: 0, arrived });
                }
                3 if rng(4) == 0 && kinds[n as usize] == 1 => {
                    scenario.kv_of(n, parts[usize::from(n)]);
                }
                4 if kinds[n as usize] == 2 => {
                    for position in 0..stages {
                        scenario.tell(Event::KvSent { request: r, position, bytes: 1, failed: None });
                    }
                }
                5 => {
                    if let Some(event) = scenario.draft.answers.pop_front() {
                        scenario.tell(event);
                    }
                }
                6 if rng(6) == 0 => drop(scenario.tell(Event::BatchBy(POLICIES[rng(4) as usize]))),
                _ => {
                    if let Some(event) = scenario.ring.turn() {
                        scenario.tell(event);
                    }
                }
            }
        }
        scenario.settle();
        // Where the KV has come and the first token has not, the gateway says it at last.
        for n in (0..8).filter(|n| kinds[usize::from(*n)] == 1) {
            scenario.tell(Event::Begin { request: request(n), first: Token(50) });
        }
        for _ in 0..20 {
            for n in (0..8).filter(|n| kinds[usize::from(*n)] == 2) {
                for position in 0..stages {
                    scenario.tell(Event::KvSent { request: request(n), position, bytes: 1, failed: None });
                }
            }
            scenario.settle();
            let Some(at) = scenario.batcher.deadline() else { break };
            scenario.now = at;
            scenario.tell(Event::Deadline).settle();
        }
        for n in 0..8 {
            let ends = scenario.ends(n);
            assert!(ends <= 1, "seed {seed}: request {n} ended {ends} times");
            assert_eq!(ends == 0, cancelled.contains(&n), "seed {seed}: request {n}");
            let indices = scenario.indices(n);
            let right =
                |(i, token): (&u32, Token)| token == answer(scenario.ring.period, prompts[usize::from(n)] as u32 + i);
            assert!(indices.iter().zip(scenario.tokens(n)).all(right), "seed {seed}: request {n} has other tokens");
            assert!(indices.windows(2).all(|w| w[1] == w[0] + 1), "seed {seed}: request {n} has gaps: {indices:?}");
        }
        scenario.all_pages_are_free();
    }
}
