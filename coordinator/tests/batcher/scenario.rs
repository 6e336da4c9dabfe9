//! A batcher, with a ring, a draft model and gateways that do what those do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, DraftRequest, Event, NewSequence, SequenceKind, Speculation},
    policy::choice::Batches,
};
use tsnode_protocol::{
    KvCodec, RequestId, Sampled, Sampling, Token,
    kv::KvPace,
    ring::{Admit, Grow, KvExport, PrefixId, Refusal, RingFrame, SharedWith},
    stream::Generation,
};

pub fn request(n: u8) -> RequestId {
    RequestId([n; 16])
}

pub fn new(n: u8, prompt: usize, max_new_tokens: u32, kind: SequenceKind) -> NewSequence {
    NewSequence {
        request: request(n),
        prompt: vec![Token(1); prompt],
        answered: vec![],
        codec: KvCodec::Raw.into(),
        max_tokens: prompt as u32 + max_new_tokens,
        generation: Generation {
            sampling: Sampling::greedy(),
            max_new_tokens,
            stop_tokens: vec![Token(9)],
            class: Default::default(),
        },
        kind,
    }
}

pub fn export() -> SequenceKind {
    SequenceKind::Export(KvExport { targets: vec![], codec: KvCodec::Int4, pace: KvPace::Layers })
}

/// Stages with pages of one token, as the batcher believes them to be. What is kept goes when its pages are wanted.
pub struct Ring {
    pub stages: u16,
    pub pages: u32,
    pub held: BTreeMap<RequestId, u32>,
    /// Tokens whose KV is there.
    pub present: BTreeMap<RequestId, Vec<Token>>,
    pub kept: BTreeMap<PrefixId, Vec<Token>>,
    pub on_the_way: VecDeque<RingFrame>,
    /// Tokens computed of prompts, and not taken from others.
    pub computed: u32,
    pub shared: u32,
    /// After how many tokens answers repeat themselves, more or less; 0 if they never do.
    pub period: u32,
    /// Draft tokens that were right.
    pub drafted: u32,
    /// Prompts whose KV goes through a codec, by length; and those that have gone, here or on their way here.
    pub packed: BTreeMap<RequestId, u32>,
    pub settled: BTreeSet<RequestId>,
    /// Those that were admitted for KV from elsewhere.
    pub expected: BTreeSet<RequestId>,
}

/// The token at a place, whoever asks.
pub fn answer(period: u32, place: u32) -> Token {
    Token(100 + if period == 0 { place } else { (place + place / 17) % period })
}

impl Ring {
    pub fn new(stages: u16, pages: u32) -> Self {
        Self {
            stages,
            pages,
            held: BTreeMap::new(),
            present: BTreeMap::new(),
            kept: BTreeMap::new(),
            on_the_way: VecDeque::new(),
            computed: 0,
            shared: 0,
            period: 0,
            drafted: 0,
            packed: BTreeMap::new(),
            settled: BTreeSet::new(),
            expected: BTreeSet::new(),
        }
    }

    pub fn free(&self) -> u32 {
        self.pages - self.held.values().sum::<u32>()
    }

    /// Whether so many more pages can be had; what is kept makes room, the oldest first.
    pub fn refuses(&mut self, wanted: u32, most: u32) -> Option<Refusal> {
        if most > self.pages {
            return Some(Refusal::Never("too large".into()));
        }
        if wanted > self.free() {
            return Some(Refusal::Full("full".into()));
        }
        let kept = |all: &BTreeMap<PrefixId, Vec<Token>>| all.values().map(|t| t.len() as u32).sum::<u32>();
        while wanted + kept(&self.kept) > self.free() {
            self.kept.pop_first();
        }
        None
    }

    pub fn admit(&mut self, a: Admit) -> Option<Refusal> {
        let begun = match a.shared.map(|s| (s.with, s.tokens as usize)) {
            None => Vec::new(),
            Some((SharedWith::Running(other), tokens)) => self.present[&other][..tokens].to_vec(),
            Some((SharedWith::Kept(prefix), tokens)) => match self.kept.get(&prefix) {
                Some(kept) => kept[..tokens].to_vec(),
                None => return Some(Refusal::PrefixGone),
            },
        };
        assert_eq!(begun, a.tokens[..begun.len()], "what is shared is the same");
        self.settled.remove(&a.request);
        self.expected.remove(&a.request);
        self.expected.extend(a.await_kv.map(|_| a.request));
        if self.packed.contains_key(&a.request) {
            assert!(begun.is_empty(), "pages that settle are nobody else's");
            self.settled.extend(a.await_kv.map(|_| a.request));
        }
        let refused = self.refuses(a.room, a.most);
        if refused.is_none() {
            assert!(self.held.insert(a.request, a.room).is_none(), "admitted twice");
            self.shared += begun.len() as u32;
            self.present.insert(a.request, begun);
        }
        refused
    }

    /// Carries the next frame round and says what the leader hears.
    pub fn turn(&mut self) -> Option<Event> {
        Some(match self.on_the_way.pop_front()? {
            RingFrame::Admit(a) => Event::Admitted { request: a.request, refused: self.admit(a) },
            RingFrame::Grow(Grow { request, room, .. }) => {
                let Some(held) = self.held.get(&request).copied() else {
                    return Some(Event::Grown { request, refused: Some(Refusal::Never("no such".into())) });
                };
                let refused = self.refuses(room.saturating_sub(held), room);
                if refused.is_none() {
                    self.held.insert(request, room);
                }
                Event::Grown { request, refused }
            }
            RingFrame::Step(step) => {
                let mut seen = BTreeSet::new();
                let mut tokens = Vec::new();
                for e in step.entries {
                    assert!(seen.insert(e.request), "twice in one step");
                    let Some(present) = self.present.get_mut(&e.request) else { panic!("step without pages") };
                    if !e.prompt {
                        // Draft tokens that were wrong.
                        present.truncate(e.start as usize);
                    }
                    assert_eq!(present.len() as u32, e.start, "positions have no gap");
                    present.extend(&e.tokens);
                    let beyond = self.packed.get(&e.request).is_some_and(|prompt| present.len() as u32 > *prompt);
                    assert!(!beyond || self.settled.contains(&e.request), "computed on KV that is not settled");
                    self.computed += if e.prompt { e.tokens.len() as u32 } else { 0 };
                    assert!(present.len() as u32 <= self.held[&e.request], "beyond the reservation");
                    let drafts = if e.prompt { &[][..] } else { &e.tokens[1..] };
                    let first = present.len() - drafts.len();
                    for n in 0..=drafts.len() {
                        let token = answer(self.period, (first + n) as u32);
                        if e.sample {
                            tokens.push((e.request, Sampled { token, logprob: None, top: vec![] }));
                        }
                        if drafts.get(n) != Some(&token) {
                            break;
                        }
                        self.drafted += 1;
                    }
                }
                Event::Sampled { step: step.step, tokens, busy: None }
            }
            RingFrame::Release(r) => {
                self.held.remove(&r);
                self.present.remove(&r);
                return self.turn();
            }
            RingFrame::Keep { request, prefix, tokens } => {
                let room = self.held.remove(&request);
                if let Some(mut present) = self.present.remove(&request) {
                    assert!(room.is_some() && tokens as usize <= present.len(), "more kept than there is");
                    present.truncate(tokens as usize);
                    self.kept.insert(prefix, present);
                }
                return self.turn();
            }
            RingFrame::FakeQuantise { request, tokens, codec } => {
                let present = self.present.get(&request).map(|p| p.len() as u32);
                assert!(present == Some(tokens) && codec == KvCodec::Int4 && self.settled.insert(request));
                return self.turn();
            }
            RingFrame::Forget(prefix) => {
                self.kept.remove(&prefix);
                return self.turn();
            }
            other => panic!("not for the leader to say: {other:?}"),
        })
    }
}

/// What a draft model makes of its answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Knows {
    /// What they will be.
    All,
    /// What they will be, for two tokens.
    Some,
    /// Something else.
    Other,
    /// Nothing: it fails, or has no room.
    Nothing,
}

/// A draft model, as the batcher believes it to be: asked and told things in order.
pub struct Draft {
    pub knows: Knows,
    pub told: BTreeMap<RequestId, Vec<Token>>,
    pub answers: VecDeque<Event>,
    /// Steps it was asked for.
    pub asked: usize,
}

impl Draft {
    pub fn propose(&mut self, period: u32, step: u64, wanted: Vec<DraftRequest>) {
        let mut drafts = Vec::new();
        for DraftRequest { request, start, tokens, most, .. } in wanted {
            let told = self.told.entry(request).or_default();
            assert_eq!(told.len(), start as usize, "what it was told has no gap, and is told once");
            told.extend(tokens);
            assert!((1..=4).contains(&most));
            let place = told.len() as u32;
            let tokens: Vec<Token> = (0..most + 1).map(|i| answer(period, place + i)).collect();
            drafts.extend(match self.knows {
                // One more than it may.
                Knows::All => Some((request, tokens)),
                Knows::Some => Some((request, [&tokens[..2.min(tokens.len())], &[Token(7)]].concat())),
                Knows::Other => Some((request, vec![Token(7); most as usize])),
                Knows::Nothing => None,
            });
        }
        self.asked += 1;
        self.answers.push_back(Event::Drafted { step, drafts });
    }
}

/// A batcher, its ring and its draft model, and what gateways heard.
pub struct Scenario {
    pub batcher: Batcher,
    pub ring: Ring,
    pub draft: Draft,
    pub now: Duration,
    pub heard: Vec<Action>,
}

impl Scenario {
    pub fn new(stages: u16, pages: u32) -> Self {
        Self::with(Batches::Chunked(8), stages, pages)
    }

    pub fn with(batches: Batches, stages: u16, pages: u32) -> Self {
        Self::of(BatcherConfig { stages: stages.into(), batches, ..BatcherConfig::default() }, pages)
    }

    pub fn of(config: BatcherConfig, pages: u32) -> Self {
        let stages = config.stages as u16;
        let draft = Draft { knows: Knows::All, told: BTreeMap::new(), answers: VecDeque::new(), asked: 0 };
        Self {
            batcher: Batcher::new(config),
            ring: Ring::new(stages, pages),
            draft,
            now: Duration::ZERO,
            heard: vec![],
        }
    }

    /// With a draft model.
    pub fn drafted(stages: u16, pages: u32, knows: Knows) -> Self {
        let (batches, drafts) = (Batches::Chunked(8), Speculation::Drafted);
        let config = BatcherConfig { stages: stages.into(), batches, speculation: drafts, ..BatcherConfig::default() };
        let mut scenario = Self::of(config, pages);
        scenario.draft.knows = knows;
        scenario
    }

    pub fn tell(&mut self, event: Event) -> &mut Self {
        for action in self.batcher.on_event(self.now, event) {
            match action {
                Action::Ring(frame) => self.ring.on_the_way.push_back(frame),
                Action::Propose { step, wanted } => self.draft.propose(self.ring.period, step, wanted),
                Action::NoDrafts { request } => {
                    assert!(self.draft.told.remove(&request).is_some(), "it was never told of that");
                }
                other => self.heard.push(other),
            }
        }
        self
    }

    /// What happens next: the draft model answers, or a frame comes round.
    pub fn next(&mut self) -> Option<Event> {
        self.draft.answers.pop_front().or_else(|| self.ring.turn())
    }

    /// Until the ring is quiet.
    pub fn settle(&mut self) -> &mut Self {
        while let Some(event) = self.next() {
            self.tell(event);
        }
        self
    }

    /// The same, where a step takes 10 ms and a draft model so long; steps that were done.
    pub fn take(&mut self, draft: Duration) -> u32 {
        let mut steps = 0;
        while let Some(event) = self.next() {
            self.now += match event {
                Event::Drafted { .. } => draft,
                Event::Sampled { .. } => Duration::from_millis(10),
                _ => Duration::ZERO,
            };
            steps += u32::from(matches!(event, Event::Sampled { .. }));
            self.tell(event);
        }
        steps
    }

    /// Until the draft model has been asked; it has not answered.
    pub fn until_asked(&mut self) -> &mut Self {
        while self.draft.answers.is_empty() {
            let Some(event) = self.ring.turn() else { panic!("it is never asked") };
            self.tell(event);
        }
        self
    }

    pub fn kv_arrives(&mut self, n: u8) -> &mut Self {
        self.kv_of(n, 3)
    }

    /// The KV of a prompt of so many tokens comes.
    pub fn kv_of(&mut self, n: u8, prompt: usize) -> &mut Self {
        let present = self.ring.present.get_mut(&request(n)).filter(|tokens| tokens.is_empty());
        if let Some(tokens) = present.filter(|_| self.ring.expected.contains(&request(n))) {
            *tokens = vec![Token(1); prompt];
        }
        for position in 0..self.ring.stages {
            self.tell(Event::KvArrived { request: request(n), position, arrived: Ok(vec![]) });
        }
        self
    }

    pub fn indices(&self, n: u8) -> Vec<u32> {
        let index = |a: &Action| match a {
            Action::Token { request: r, index, .. } if *r == request(n) => Some(*index),
            _ => None,
        };
        self.heard.iter().filter_map(index).collect()
    }

    pub fn tokens(&self, n: u8) -> Vec<Token> {
        let token = |a: &Action| match a {
            Action::Token { request: r, sampled, .. } if *r == request(n) => Some(sampled.token),
            _ => None,
        };
        self.heard.iter().filter_map(token).collect()
    }

    pub fn ends(&self, n: u8) -> usize {
        let is_end = |a: &&Action| match a {
            Action::End { request: r, .. } | Action::Refused { request: r, .. } | Action::KvSent { request: r, .. } => {
                *r == request(n)
            }
            _ => false,
        };
        self.heard.iter().filter(is_end).count()
    }

    pub fn all_pages_are_free(&self) {
        assert_eq!(self.ring.free(), self.ring.pages, "pages were lost");
        assert!(self.draft.told.is_empty(), "the draft model still has {:?}", self.draft.told.keys());
    }
}
