//! Stories of a group's leader against a ring that does what rings do, in any order.
#![allow(clippy::unwrap_used)] // A story that cannot be told fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, Event, Kind, NewSequence},
    policy::{batching::Limits, choice::Batches},
};
use tsnode_protocol::{
    KvCodec, RequestId, Sampled, Sampling, Token,
    ring::{KvExport, RingFrame},
    stream::{End, Generation},
};

fn request(n: u8) -> RequestId {
    RequestId([n; 16])
}

fn new(n: u8, prompt: usize, max_new_tokens: u32, kind: Kind) -> NewSequence {
    NewSequence {
        request: request(n),
        prompt: vec![Token(1); prompt],
        max_tokens: prompt as u32 + max_new_tokens,
        generation: Generation { sampling: Sampling::greedy(), max_new_tokens, stop_tokens: vec![Token(9)] },
        kind,
    }
}

fn export() -> Kind {
    Kind::Export(KvExport { targets: vec![], codec: KvCodec::Int4 })
}

/// Stages with pages, as the batcher believes them to be.
struct Ring {
    stages: u16,
    pages: u32,
    held: BTreeMap<RequestId, u32>,
    present: BTreeMap<RequestId, u32>,
    on_the_way: VecDeque<RingFrame>,
}

impl Ring {
    fn new(stages: u16, pages: u32) -> Self {
        Self { stages, pages, held: BTreeMap::new(), present: BTreeMap::new(), on_the_way: VecDeque::new() }
    }

    fn free(&self) -> u32 {
        self.pages - self.held.values().sum::<u32>()
    }

    /// Carries the next frame round and says what the leader hears.
    fn turn(&mut self) -> Option<Event> {
        Some(match self.on_the_way.pop_front()? {
            RingFrame::Admit(a) => {
                let refused = (a.max_tokens > self.free()).then(|| "full".to_owned());
                if refused.is_none() {
                    assert!(self.held.insert(a.request, a.max_tokens).is_none(), "admitted twice");
                    self.present.insert(a.request, 0);
                }
                Event::Admitted { request: a.request, refused }
            }
            RingFrame::Step(step) => {
                let mut seen = BTreeSet::new();
                let mut tokens = Vec::new();
                for e in step.entries {
                    assert!(seen.insert(e.request), "twice in one step");
                    let Some(present) = self.present.get_mut(&e.request) else { panic!("step without pages") };
                    assert_eq!(*present, e.start, "positions have no gap");
                    *present += e.tokens.len() as u32;
                    assert!(*present <= self.held[&e.request], "beyond the reservation");
                    if e.sample {
                        let token = Token(100 + *present);
                        tokens.push((e.request, Sampled { token, logprob: None, top: vec![] }));
                    }
                }
                Event::Sampled { step: step.step, tokens }
            }
            RingFrame::Release(r) | RingFrame::ReleaseWhenSent(r) => {
                self.held.remove(&r);
                self.present.remove(&r);
                return self.turn();
            }
            other => panic!("not for the leader to say: {other:?}"),
        })
    }
}

/// A batcher, its ring, and what gateways heard.
struct Story {
    batcher: Batcher,
    ring: Ring,
    now: Duration,
    heard: Vec<Action>,
}

impl Story {
    fn new(stages: u16, pages: u32) -> Self {
        Self::with(Batches::Chunked(8), stages, pages)
    }

    fn with(batches: Batches, stages: u16, pages: u32) -> Self {
        let config = BatcherConfig { stages: stages.into(), batches, ..BatcherConfig::default() };
        Self { batcher: Batcher::new(config), ring: Ring::new(stages, pages), now: Duration::ZERO, heard: vec![] }
    }

    fn tell(&mut self, event: Event) -> &mut Self {
        for action in self.batcher.on_event(self.now, event) {
            match action {
                Action::Ring(frame) => self.ring.on_the_way.push_back(frame),
                other => self.heard.push(other),
            }
        }
        self
    }

    /// Until the ring is quiet.
    fn settle(&mut self) -> &mut Self {
        while let Some(event) = self.ring.turn() {
            self.tell(event);
        }
        self
    }

    fn kv_arrives(&mut self, n: u8) -> &mut Self {
        if let Some(tokens) = self.ring.present.get_mut(&request(n)) {
            *tokens = 3;
        }
        for position in 0..self.ring.stages {
            self.tell(Event::KvArrived { request: request(n), position, failed: None });
        }
        self
    }

    fn indices(&self, n: u8) -> Vec<u32> {
        let index = |a: &Action| match a {
            Action::Token { request: r, index, .. } if *r == request(n) => Some(*index),
            _ => None,
        };
        self.heard.iter().filter_map(index).collect()
    }

    fn ends(&self, n: u8) -> usize {
        let is_end = |a: &&Action| match a {
            Action::End { request: r, .. } | Action::Refused { request: r, .. } | Action::KvSent { request: r, .. } => {
                *r == request(n)
            }
            _ => false,
        };
        self.heard.iter().filter(is_end).count()
    }

    fn all_pages_are_free(&self) {
        assert_eq!(self.ring.free(), self.ring.pages, "pages were lost");
    }
}

#[test]
fn a_prompt_is_computed_in_chunks_and_answered() {
    let mut story = Story::new(1, 100);
    story.tell(Event::Submit(new(1, 20, 4, Kind::Local))).settle();
    assert_eq!(story.indices(1), [0, 1, 2, 3]);
    assert_eq!(story.heard.last(), Some(&Action::End { request: request(1), end: End::Length }));
    story.all_pages_are_free();
}

/// Stages take steps in order, so that a chunk may follow the one before it at once.
#[test]
fn a_lone_prompt_keeps_every_stage_busy() {
    let mut story = Story::new(3, 100);
    story.tell(Event::Submit(new(1, 20, 4, Kind::Local)));
    let admitted = story.ring.turn().unwrap();
    story.tell(admitted);
    let steps = story.ring.on_the_way.iter().filter(|f| matches!(f, RingFrame::Step(_))).count();
    assert_eq!(steps, 3, "chunks of 8, 8 and 4");
    story.settle();
    assert_eq!(story.indices(1), [0, 1, 2, 3]);
    story.all_pages_are_free();
}

/// Where nothing is answered no step has to be short, and two for each stage are on their way; an answer ends that.
#[test]
fn prompts_that_leave_take_more_and_longer_steps() {
    let tokens = |kind: Kind| {
        let mut story = Story::new(2, 200);
        story.tell(Event::Submit(new(1, 60, 4, kind)));
        let admitted = story.ring.turn().unwrap();
        story.tell(admitted);
        let of = |f: &RingFrame| match f {
            RingFrame::Step(step) => Some(step.entries.iter().map(|e| e.tokens.len()).sum()),
            _ => None,
        };
        story.ring.on_the_way.iter().filter_map(of).collect::<Vec<usize>>()
    };
    assert_eq!(tokens(export()), [15, 12, 9, 8], "a quarter of what is left, at least eight");
    assert_eq!(tokens(Kind::Local), [8, 8]);
}

#[test]
fn a_stop_token_ends_the_answer() {
    let mut story = Story::new(1, 200);
    let mut sequence = new(1, 3, 50, Kind::Local);
    sequence.generation.stop_tokens = vec![Token(105)];
    story.tell(Event::Submit(sequence)).settle();
    assert_eq!(story.indices(1), [0, 1, 2]);
    assert_eq!(story.heard.last(), Some(&Action::End { request: request(1), end: End::Stop }));
}

#[test]
fn decoding_waits_for_both_the_kv_and_the_first_token() {
    for begin_first in [true, false] {
        let mut story = Story::new(3, 100);
        story.tell(Event::Submit(new(1, 3, 3, Kind::AwaitKv))).settle();
        assert_eq!(story.heard, [Action::Granted { request: request(1) }]);
        let begin = Event::Begin { request: request(1), first: Token(50) };
        if begin_first {
            story.tell(begin).settle().kv_arrives(1);
        } else {
            story.kv_arrives(1).settle().tell(begin);
        }
        story.settle();
        assert_eq!(story.indices(1), [1, 2]);
        assert_eq!(story.ends(1), 1);
        story.all_pages_are_free();
    }
}

#[test]
fn kv_that_fails_is_computed_here_and_no_token_comes_twice() {
    let mut story = Story::new(2, 100);
    story.tell(Event::Submit(new(1, 3, 3, Kind::AwaitKv))).settle();
    story.tell(Event::Begin { request: request(1), first: Token(50) });
    story.tell(Event::KvArrived { request: request(1), position: 0, failed: Some("wrong".into()) }).settle();
    assert_eq!(story.indices(1), [1, 2], "the client has token 0 already");
    assert_eq!(story.ends(1), 1);
    story.all_pages_are_free();
}

#[test]
fn kv_that_never_comes_is_given_up_on() {
    let mut story = Story::new(1, 100);
    story.tell(Event::Submit(new(1, 3, 3, Kind::AwaitKv))).settle();
    story.now = story.batcher.deadline().unwrap();
    story.tell(Event::Deadline).settle();
    assert!(story.heard.iter().any(|a| matches!(a, Action::KvFailed { .. })));
    assert_eq!(story.indices(1), [0, 1, 2]);
    story.all_pages_are_free();
}

#[test]
fn a_prompt_for_another_group_ends_when_its_kv_is_sent() {
    let mut story = Story::new(2, 100);
    story.tell(Event::Submit(new(1, 20, 5, export()))).settle();
    assert!(matches!(story.heard[..], [Action::First { .. }]));
    story.tell(Event::KvSent { request: request(1), position: 1, bytes: 7, failed: None });
    assert_eq!(story.ends(1), 0);
    story.tell(Event::KvSent { request: request(1), position: 0, bytes: 5, failed: None }).settle();
    assert!(matches!(story.heard.last(), Some(Action::KvSent { bytes: 12, .. })));
    story.all_pages_are_free();
}

#[test]
fn those_without_pages_wait_for_those_with() {
    let mut story = Story::new(1, 30);
    for n in 1..=4 {
        story.tell(Event::Submit(new(n, 10, 10, Kind::Local)));
    }
    story.settle();
    for n in 1..=4 {
        assert_eq!(story.indices(n).len(), 10, "request {n}");
    }
    story.all_pages_are_free();
    story.tell(Event::Submit(new(5, 40, 1, Kind::Local))).settle();
    assert!(matches!(story.heard.last(), Some(Action::Refused { .. })), "it would never fit");
}

#[test]
fn a_broken_ring_ends_everything_once() {
    let mut story = Story::new(2, 100);
    story.tell(Event::Submit(new(1, 3, 3, Kind::Local)));
    story.tell(Event::Submit(new(2, 3, 3, Kind::AwaitKv)));
    story.tell(Event::RingBroken { reason: "gone".into() });
    assert_eq!((story.ends(1), story.ends(2)), (1, 1));
    assert_eq!(story.batcher.deadline(), None);
}

/// The policies nodes can be given.
const POLICIES: [Batches; 4] =
    [Batches::Chunked(8), Batches::Turns, Batches::Rings, Batches::Mixed(Limits { tasks: 4, tokens: 16 })];

/// Requests of every kind, cancelled, begun and fed at random moments: each ends once, indices have no gap, and every
/// page comes back; whatever the policy.
#[test]
fn every_request_ends_once_whatever_the_order() {
    for seed in 0..600u64 {
        let mut state = seed;
        let mut dice = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let stages = 1 + dice(3) as u16;
        let mut story = Story::with(POLICIES[(seed % 4) as usize], stages, 60);
        let kinds: Vec<u64> = (0..8).map(|_| dice(3)).collect();
        for (n, kind) in kinds.iter().enumerate() {
            let kind = [Kind::Local, Kind::AwaitKv, export()][*kind as usize].clone();
            story.tell(Event::Submit(new(n as u8, 1 + dice(12) as usize, 1 + dice(6) as u32, kind)));
        }
        let mut cancelled = BTreeSet::new();
        for _ in 0..400 {
            let n = dice(8) as u8;
            let r = request(n);
            match dice(12) {
                0 if dice(6) == 0 => {
                    if story.ends(n) == 0 {
                        cancelled.insert(n);
                    }
                    story.tell(Event::Cancel { request: r });
                }
                1 => drop(story.tell(Event::Begin { request: r, first: Token(50) })),
                2 if dice(4) == 0 => drop(story.tell(Event::PrefillHere { request: r, first: None })),
                3 if dice(4) == 0 => {
                    let failed = Some("broken".into());
                    story.tell(Event::KvArrived { request: r, position: 0, failed });
                }
                4 if kinds[n as usize] == 2 => {
                    for position in 0..stages {
                        story.tell(Event::KvSent { request: r, position, bytes: 1, failed: None });
                    }
                }
                _ => {
                    if let Some(event) = story.ring.turn() {
                        story.tell(event);
                    }
                }
            }
        }
        story.settle();
        for _ in 0..20 {
            let Some(at) = story.batcher.deadline() else { break };
            story.now = at;
            story.tell(Event::Deadline).settle();
        }
        for (n, kind) in kinds.iter().enumerate() {
            if *kind == 2 {
                for position in 0..stages {
                    story.tell(Event::KvSent { request: request(n as u8), position, bytes: 1, failed: None });
                }
            }
        }
        story.settle();
        for n in 0..8 {
            let ends = story.ends(n);
            assert!(ends <= 1, "seed {seed}: request {n} ended {ends} times");
            assert_eq!(ends == 0, cancelled.contains(&n), "seed {seed}: request {n}");
            let indices = story.indices(n);
            assert!(indices.windows(2).all(|w| w[1] == w[0] + 1), "seed {seed}: request {n} has gaps: {indices:?}");
        }
        story.all_pages_are_free();
    }
}
