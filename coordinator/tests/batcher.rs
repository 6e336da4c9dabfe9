//! Stories of a group's leader against a ring that does what rings do, in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, Checked, Event, Kind, NewSequence, Speculation, Wanted},
    policy::choice::Batches,
};
use tsnode_protocol::{
    Constraint, Grammar, KvCodec, PromptCodec, RequestId, Sampled, Sampling, Token,
    kv::KvPace,
    ring::{Admit, Grow, KvExport, PrefixId, Refusal, RingFrame, SharedWith},
    stream::{End, Generation},
};

fn request(n: u8) -> RequestId {
    RequestId([n; 16])
}

fn new(n: u8, prompt: usize, max_new_tokens: u32, kind: Kind) -> NewSequence {
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

fn export() -> Kind {
    Kind::Export(KvExport { targets: vec![], codec: KvCodec::Int4, pace: KvPace::Layers })
}

/// Stages with pages of one token, as the batcher believes them to be. What is kept goes when its pages are wanted.
struct Ring {
    stages: u16,
    pages: u32,
    held: BTreeMap<RequestId, u32>,
    /// Tokens whose KV is there.
    present: BTreeMap<RequestId, Vec<Token>>,
    kept: BTreeMap<PrefixId, Vec<Token>>,
    on_the_way: VecDeque<RingFrame>,
    /// Tokens computed of prompts, and not taken from others.
    computed: u32,
    shared: u32,
    /// After how many tokens answers repeat themselves, more or less; 0 if they never do.
    period: u32,
    /// Draft tokens that were right.
    drafted: u32,
    /// Prompts whose KV goes through a codec, by length; and those that have gone, here or on their way here.
    packed: BTreeMap<RequestId, u32>,
    settled: BTreeSet<RequestId>,
    /// Those that were admitted for KV from elsewhere.
    expected: BTreeSet<RequestId>,
}

/// The token at a place, whoever asks.
fn answer(period: u32, place: u32) -> Token {
    Token(100 + if period == 0 { place } else { (place + place / 17) % period })
}

impl Ring {
    fn new(stages: u16, pages: u32) -> Self {
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

    fn free(&self) -> u32 {
        self.pages - self.held.values().sum::<u32>()
    }

    /// Whether so many more pages can be had; what is kept makes room, the oldest first.
    fn refuses(&mut self, wanted: u32, most: u32) -> Option<Refusal> {
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

    fn admit(&mut self, a: Admit) -> Option<Refusal> {
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
    fn turn(&mut self) -> Option<Event> {
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
            RingFrame::Settle { request, tokens, codec } => {
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
enum Knows {
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
struct Draft {
    knows: Knows,
    told: BTreeMap<RequestId, Vec<Token>>,
    answers: VecDeque<Event>,
    /// Steps it was asked for.
    asked: usize,
}

impl Draft {
    fn guess(&mut self, period: u32, step: u64, wanted: Vec<Wanted>) {
        let mut drafts = Vec::new();
        for Wanted { request, start, tokens, most, .. } in wanted {
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
struct Story {
    batcher: Batcher,
    ring: Ring,
    draft: Draft,
    now: Duration,
    heard: Vec<Action>,
}

impl Story {
    fn new(stages: u16, pages: u32) -> Self {
        Self::with(Batches::Chunked(8), stages, pages)
    }

    fn with(batches: Batches, stages: u16, pages: u32) -> Self {
        Self::of(BatcherConfig { stages: stages.into(), batches, ..BatcherConfig::default() }, pages)
    }

    fn of(config: BatcherConfig, pages: u32) -> Self {
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
    fn drafted(stages: u16, pages: u32, knows: Knows) -> Self {
        let (batches, drafts) = (Batches::Chunked(8), Speculation::Drafted);
        let config = BatcherConfig { stages: stages.into(), batches, speculation: drafts, ..BatcherConfig::default() };
        let mut story = Self::of(config, pages);
        story.draft.knows = knows;
        story
    }

    fn tell(&mut self, event: Event) -> &mut Self {
        for action in self.batcher.on_event(self.now, event) {
            match action {
                Action::Ring(frame) => self.ring.on_the_way.push_back(frame),
                Action::Propose { step, wanted } => self.draft.guess(self.ring.period, step, wanted),
                Action::NoDrafts { request } => {
                    assert!(self.draft.told.remove(&request).is_some(), "it was never told of that");
                }
                other => self.heard.push(other),
            }
        }
        self
    }

    /// What happens next: the draft model answers, or a frame comes round.
    fn next(&mut self) -> Option<Event> {
        self.draft.answers.pop_front().or_else(|| self.ring.turn())
    }

    /// Until the ring is quiet.
    fn settle(&mut self) -> &mut Self {
        while let Some(event) = self.next() {
            self.tell(event);
        }
        self
    }

    /// The same, where a step takes 10 ms and a draft model so long; steps that were done.
    fn take(&mut self, draft: Duration) -> u32 {
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
    fn until_asked(&mut self) -> &mut Self {
        while self.draft.answers.is_empty() {
            let Some(event) = self.ring.turn() else { panic!("it is never asked") };
            self.tell(event);
        }
        self
    }

    fn kv_arrives(&mut self, n: u8) -> &mut Self {
        self.kv_of(n, 3)
    }

    /// The KV of a prompt of so many tokens comes.
    fn kv_of(&mut self, n: u8, prompt: usize) -> &mut Self {
        let present = self.ring.present.get_mut(&request(n)).filter(|tokens| tokens.is_empty());
        if let Some(tokens) = present.filter(|_| self.ring.expected.contains(&request(n))) {
            *tokens = vec![Token(1); prompt];
        }
        for position in 0..self.ring.stages {
            self.tell(Event::KvArrived { request: request(n), position, arrived: Ok(vec![]) });
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

    fn tokens(&self, n: u8) -> Vec<Token> {
        let token = |a: &Action| match a {
            Action::Token { request: r, sampled, .. } if *r == request(n) => Some(sampled.token),
            _ => None,
        };
        self.heard.iter().filter_map(token).collect()
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
        assert!(self.draft.told.is_empty(), "the draft model still has {:?}", self.draft.told.keys());
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
        assert_eq!(story.heard, [Action::Granted { request: request(1), cached: 0 }]);
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
    story.tell(Event::KvArrived { request: request(1), position: 0, arrived: Err("wrong".into()) }).settle();
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

/// Prompts that begin with the same tokens: the first is computed, of the others only what differs, whether they come
/// while it computes, while it answers, or when it has ended.
#[test]
fn what_prompts_have_in_common_is_computed_once() {
    for together in [true, false] {
        let mut story = Story::new(2, 4000);
        for n in 1..=32 {
            let mut sequence = new(n, 500, 4, Kind::Local);
            sequence.prompt.extend([Token(n.into()); 10]);
            sequence.max_tokens += 10;
            story.tell(Event::Submit(sequence));
            if !together {
                story.settle();
            }
        }
        story.settle();
        assert_eq!((story.ring.computed, story.ring.shared), (510 + 31 * 10, 31 * 500), "together: {together}");
        let cached = |a: &Action| matches!(a, Action::Granted { cached: 500, .. });
        assert_eq!(story.heard.iter().filter(|a| cached(a)).count(), 31);
        assert!((1..=32).all(|n| story.indices(n) == [0, 1, 2, 3]));
        story.all_pages_are_free();
    }
}

/// A conversation goes on: what was answered is there, too.
#[test]
fn an_answer_is_part_of_the_next_prompt() {
    let mut story = Story::new(1, 200);
    story.tell(Event::Submit(new(1, 40, 10, Kind::Local))).settle();
    let mut next = new(2, 40, 10, Kind::Local);
    next.prompt.extend((0..9).map(|n| Token(140 + n)));
    next.prompt.push(Token(3));
    next.max_tokens += 10;
    story.tell(Event::Submit(next)).settle();
    assert_eq!(story.ring.shared, 49, "the last token of an answer is never computed");
}

/// What was kept is gone where its pages were wanted: the prompt is computed, and nothing else happens.
#[test]
fn what_is_no_longer_kept_is_computed_anew() {
    let mut story = Story::new(1, 60);
    story.tell(Event::Submit(new(1, 40, 4, Kind::Local))).settle();
    assert_eq!(story.ring.kept.len(), 1);
    story.ring.kept.clear();
    story.tell(Event::Submit(new(2, 40, 4, Kind::Local))).settle();
    assert_eq!((story.ring.computed, story.ring.shared), (80, 0));
    assert_eq!(story.indices(2), [0, 1, 2, 3]);
}

/// KV from elsewhere was packed on its way: nothing that is computed here begins with it.
#[test]
fn only_what_is_computed_here_is_shared() {
    let mut story = Story::new(1, 100);
    story.tell(Event::Submit(new(1, 20, 3, Kind::AwaitKv))).settle();
    story.ring.present.insert(request(1), vec![Token(1); 20]);
    story.tell(Event::KvArrived { request: request(1), position: 0, arrived: Ok(vec![]) });
    story.tell(Event::Begin { request: request(1), first: Token(50) }).settle();
    assert_eq!(story.ends(1), 1);
    story.tell(Event::Submit(new(2, 20, 3, Kind::Local))).settle();
    assert_eq!(story.ring.shared, 0);
}

/// Another group began the answer: this one goes on from the next token, whether the prompt's KV comes or is computed here.
#[test]
fn an_answer_begun_elsewhere_goes_on() {
    for (kind, codec) in
        [Kind::Local, Kind::AwaitKv].into_iter().flat_map(|k| [(k.clone(), KvCodec::Raw), (k, KvCodec::Int4)])
    {
        let mut story = Story::new(2, 100);
        let mut sequence = new(1, 20, 9, kind.clone());
        (sequence.codec, sequence.answered) = (codec.into(), (0..4).map(|i| Token(120 + i)).collect());
        if codec == KvCodec::Int4 {
            story.ring.packed.insert(request(1), 20);
        }
        story.tell(Event::Submit(sequence)).settle();
        if kind == Kind::AwaitKv {
            assert!(story.indices(1).is_empty());
            story.kv_of(1, 20).settle();
        }
        assert_eq!(story.indices(1), [4, 5, 6, 7, 8], "{kind:?}, {codec:?}");
        assert_eq!(story.tokens(1), (124..129).map(Token).collect::<Vec<_>>());
        assert_eq!(story.ring.computed, if kind == Kind::Local { 24 } else { 4 });
        assert_eq!(story.ring.settled.len(), usize::from(codec == KvCodec::Int4));
        assert_eq!(story.ends(1), 1);
        story.all_pages_are_free();
    }
}

/// The group that began it could not say that this was all.
#[test]
fn an_answer_that_is_complete_ends_at_once() {
    let mut story = Story::new(1, 100);
    let mut sequence = new(1, 20, 3, Kind::Local);
    sequence.answered = vec![Token(120), Token(121), Token(122)];
    story.tell(Event::Submit(sequence)).settle();
    assert_eq!(story.heard, [Action::End { request: request(1), end: End::Length }]);
    let mut sequence = new(2, 20, 30, Kind::AwaitKv);
    sequence.answered = vec![Token(120), Token(9)];
    story.tell(Event::Submit(sequence)).settle();
    assert_eq!(story.heard.last(), Some(&Action::End { request: request(2), end: End::Stop }));
}

/// Where packed KV does not come it is computed here, and then goes through the same codec; and again, should the sequence
/// have to give its pages back.
#[test]
fn kv_that_would_have_come_packed_is_packed_here() {
    let mut story = Story::new(2, 100);
    let mut sequence = new(1, 30, 5, Kind::AwaitKv);
    sequence.codec = KvCodec::Int4.into();
    story.ring.packed.insert(request(1), 30);
    story.tell(Event::Submit(sequence)).settle();
    story.tell(Event::PrefillHere { request: request(1), first: None }).settle();
    assert_eq!(story.indices(1), [0, 1, 2, 3, 4]);
    assert!(story.ring.settled.contains(&request(1)) && story.ring.kept.is_empty());
    story.all_pages_are_free();
}

/// The KV of a prompt's first part comes from elsewhere and the rest is computed behind it, or the first part is computed here as
/// well and goes through the same codec; either way the first token is chosen here.
#[test]
fn the_rest_of_a_prompt_is_computed_behind_its_first_part() {
    for (kind, codec, stages) in [
        (Kind::AwaitKv, KvCodec::Raw, 1),
        (Kind::AwaitKv, KvCodec::Int4, 2),
        (Kind::Local, KvCodec::Raw, 2),
        (Kind::Local, KvCodec::Int4, 1),
    ] {
        let mut story = Story::new(stages, 200);
        let mut sequence = new(1, 100, 5, kind.clone());
        sequence.codec = PromptCodec::of_first(codec, 64, 100);
        if codec == KvCodec::Int4 {
            story.ring.packed.insert(request(1), 64);
        }
        story.tell(Event::Submit(sequence)).settle();
        if kind == Kind::AwaitKv {
            assert!(story.indices(1).is_empty() && story.ring.computed == 0);
            assert_eq!(story.batcher.load().pending_tokens, 36, "what is to be computed here");
            story.kv_of(1, 64).settle();
        }
        assert_eq!(story.indices(1), [0, 1, 2, 3, 4], "{kind:?}, {codec:?}");
        assert_eq!(story.ring.computed, if kind == Kind::Local { 100 } else { 36 });
        assert_eq!(story.ring.settled.len(), usize::from(codec == KvCodec::Int4));
        assert!(story.heard.iter().any(|a| matches!(a, Action::Computed { .. })));
        assert_eq!(story.ends(1), 1);
        story.all_pages_are_free();
    }
}

/// A first part that fails, is late or comes to nothing is computed here.
#[test]
fn a_first_part_that_does_not_come_in_time_is_computed_here() {
    for codec in [KvCodec::Raw, KvCodec::Int4] {
        for late in [false, true] {
            let mut story = Story::new(2, 200);
            let mut sequence = new(1, 100, 5, Kind::AwaitKv);
            sequence.codec = PromptCodec::of_first(codec, 64, 100);
            if codec == KvCodec::Int4 {
                story.ring.packed.insert(request(1), 64);
            }
            story.tell(Event::Submit(sequence)).settle();
            if late {
                story.now = story.batcher.deadline().unwrap();
                story.tell(Event::Deadline).settle();
            } else {
                story.tell(Event::PrefillHere { request: request(1), first: None }).settle();
            }
            assert_eq!(story.indices(1), [0, 1, 2, 3, 4], "{codec:?}");
            assert_eq!(story.ring.computed, 100);
            // What comes after all is nobody's.
            story.tell(Event::KvArrived { request: request(1), position: 0, arrived: Ok(vec![]) }).settle();
            assert_eq!(story.ends(1), 1);
            story.all_pages_are_free();
        }
    }
}

fn growing(growth: u32) -> BatcherConfig {
    BatcherConfig { batches: Batches::Chunked(8), growth, ..BatcherConfig::default() }
}

/// Answers that do not fit together: the youngest give way, and every one ends with the tokens it would have had.
#[test]
fn answers_outgrow_the_pages_and_all_end() {
    let mut story = Story::of(growing(8), 100);
    for n in 1..=6 {
        story.tell(Event::Submit(new(n, 10, 60, Kind::Local)));
    }
    story.settle();
    for n in 1..=6 {
        assert_eq!(story.indices(n), (0..60).collect::<Vec<u32>>(), "request {n}");
        assert_eq!(story.tokens(n), (0..60).map(|i| Token(110 + i)).collect::<Vec<_>>(), "request {n}");
    }
    assert!(story.ring.computed > 60, "some were computed twice");
    story.all_pages_are_free();
}

/// Answers that repeat themselves take fewer steps, and have the same tokens.
#[test]
fn what_is_drafted_right_needs_no_step() {
    let mut story = Story::new(1, 1000);
    story.ring.period = 6;
    story.tell(Event::Submit(new(1, 10, 200, Kind::Local)));
    let mut steps = 0;
    while let Some(event) = story.ring.turn() {
        steps += u32::from(matches!(event, Event::Sampled { .. }));
        story.now += Duration::from_millis(1);
        story.tell(event);
    }
    assert_eq!(story.tokens(1), (0..200).map(|i| answer(6, 10 + i)).collect::<Vec<_>>());
    assert!(story.ring.drafted > 80 && steps < 120, "{} guessed right, {steps} steps", story.ring.drafted);
}

/// Whatever a draft model knows and takes, the tokens are the same; it is asked as long as that pays.
#[test]
fn a_draft_model_is_asked_where_it_helps() {
    let fast = Duration::from_millis(5);
    for (knows, takes, helps) in [
        (Knows::All, fast, true),
        (Knows::Some, fast, true),
        (Knows::Other, fast, false),
        (Knows::Nothing, fast, false),
        (Knows::All, Duration::from_millis(80), false),
    ] {
        let mut story = Story::drafted(1, 4000, knows);
        story.tell(Event::Submit(new(1, 10, 1000, Kind::Local)));
        let steps = story.take(takes);
        assert_eq!(story.tokens(1), (0..1000).map(|i| Token(110 + i)).collect::<Vec<_>>(), "{knows:?}");
        let (asked, checked) = (story.draft.asked, story.batcher.take_checked());
        let of_steps = asked as f64 / f64::from(steps);
        assert_eq!(of_steps > 0.8, helps, "{knows:?} in {takes:?}: asked for {asked} of {steps} steps");
        assert!(helps || asked < 80, "{knows:?} in {takes:?}: asked for {asked} of {steps} steps");
        let Checked { made, right } = checked.draft;
        match knows {
            Knows::All => assert!(made > 0 && made == right, "{checked:?}"),
            Knows::Some => assert!(right * 3 > made && right < made, "{checked:?}"),
            Knows::Other => assert!(made > 0 && right == 0, "{checked:?}"),
            Knows::Nothing => assert_eq!(made, 0),
        }
        assert_eq!(checked.lookup, Checked::default(), "nothing repeats itself");
        story.all_pages_are_free();
    }
}

/// Answers that repeat themselves need no draft model, those beside them do.
/// Which tokens a grammar allows after a guess is known once the guess is right.
#[test]
fn an_answer_with_a_grammar_is_never_guessed() {
    for period in [0, 3] {
        let mut story = Story::drafted(1, 1000, Knows::All);
        story.ring.period = period;
        let mut one = new(1, 10, 60, Kind::Local);
        let constraint = Constraint { grammar: Grammar::Regex("a+".into()), ends: vec![] };
        one.generation.sampling.constraint = Some(constraint.into());
        story.tell(Event::Submit(one)).settle();
        assert_eq!(story.tokens(1).len(), 60);
        assert_eq!((story.draft.asked, story.ring.drafted), (0, 0), "period {period}");
    }
}

#[test]
fn an_answer_of_which_no_token_can_be_chosen_ends_alone() {
    let mut story = Story::new(1, 1000);
    story.tell(Event::Submit(new(1, 10, 40, Kind::Local))).tell(Event::Submit(new(2, 10, 40, Kind::Local)));
    while story.tokens(1).len() < 3 {
        let event = story.next().unwrap();
        story.tell(event);
    }
    let reason = "nothing fits".to_owned();
    story.tell(Event::Failed { request: request(1), reason: reason.clone() });
    // It is gone: nobody is told twice.
    story.tell(Event::Failed { request: request(1), reason: reason.clone() }).settle();
    let failed = Action::End { request: request(1), end: End::Failed(reason) };
    assert!(story.heard.contains(&failed), "{:?}", story.heard);
    assert_eq!((story.ends(1), story.ends(2), story.tokens(2).len()), (1, 1, 40));
    story.all_pages_are_free();
}

#[test]
fn what_repeats_itself_is_not_asked_about() {
    let mut story = Story::drafted(1, 4000, Knows::All);
    story.ring.period = 6;
    story.tell(Event::Submit(new(1, 10, 400, Kind::Local)));
    story.take(Duration::from_millis(5));
    let checked = story.batcher.take_checked();
    assert!(checked.lookup.right > 10 * checked.draft.right && checked.lookup.right > 150, "{checked:?}");
    assert_eq!(story.tokens(1), (0..400).map(|i| answer(6, 10 + i)).collect::<Vec<_>>());
}

/// The step that waits for the draft model sets off with those that are left, and comes to nothing if nobody is.
#[test]
fn those_who_go_while_the_draft_model_drafts_are_in_no_step() {
    for leaving in [vec![1], vec![1, 2]] {
        let mut story = Story::drafted(1, 1000, Knows::All);
        for n in 1..=2 {
            story.tell(Event::Submit(new(n, 5, 100, Kind::Local)));
        }
        story.until_asked();
        while story.draft.told.len() < 2 {
            let event = story.next().unwrap();
            story.tell(event).until_asked();
        }
        for n in &leaving {
            story.tell(Event::Cancel { request: request(*n) });
        }
        story.tell(Event::Submit(new(3, 5, 20, Kind::Local)));
        // One of the same name is another: guesses for the first are not for it.
        story.tell(Event::Submit(new(1, 7, 20, Kind::AwaitKv)));
        story.settle().kv_of(1, 7).tell(Event::Begin { request: request(1), first: answer(0, 7) }).settle();
        assert_eq!(story.indices(3), (0..20).collect::<Vec<_>>());
        assert_eq!((story.ends(1), story.ends(3)), (1, 1));
        assert_eq!(story.ends(2), usize::from(leaving.len() == 1));
        story.all_pages_are_free();
    }
}

/// A ring breaks while the draft model guesses: what it says then is about nothing that exists.
#[test]
fn drafts_for_a_broken_ring_are_nobodys() {
    let mut story = Story::drafted(2, 1000, Knows::All);
    story.tell(Event::Submit(new(1, 5, 100, Kind::Local))).until_asked();
    let late = story.draft.answers.pop_front().unwrap();
    story.tell(Event::RingBroken { reason: "gone".into() });
    story.ring = Ring::new(2, 1000);
    story.draft.told.clear();
    story.heard.clear();
    story.tell(late.clone());
    assert!(story.ring.on_the_way.is_empty() && story.heard.is_empty());
    // A step of the next ring has the same number.
    story.tell(Event::Submit(new(1, 6, 50, Kind::Local))).until_asked().tell(late).settle();
    assert_eq!(story.tokens(1), (0..50).map(|i| Token(106 + i)).collect::<Vec<_>>());
    story.all_pages_are_free();
}

/// Another group on the device has the pages: they are asked for again until it gives them back.
#[test]
fn pages_that_another_group_holds_are_waited_for() {
    let mut story = Story::of(growing(8), 100);
    story.ring.held.insert(request(99), 95);
    story.tell(Event::Submit(new(1, 10, 20, Kind::Local))).settle();
    for _ in 0..5 {
        story.now = story.batcher.deadline().unwrap();
        story.tell(Event::Deadline).settle();
    }
    assert!(story.heard.is_empty() && story.now < Duration::from_secs(1), "{:?}", story.heard);
    story.ring.held.clear();
    story.now = story.batcher.deadline().unwrap();
    story.tell(Event::Deadline).settle();
    assert_eq!(story.indices(1).len(), 20);
}

/// What nodes do, and the other policy that a batcher can drive.
const POLICIES: [Batches; 2] = [Batches::Chunked(8), Batches::PrefillFirst];

/// Requests of every kind, cancelled, begun and fed at random moments: each ends once, indices have no gap, and every
/// page comes back; whatever the policy.
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
        let batches = POLICIES[(seed % 2) as usize];
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
        let mut story = Story::of(config, 80);
        story.draft.knows = [Knows::All, Knows::Some, Knows::Other, Knows::Nothing][rng(4) as usize];
        story.ring.period = rng(3) as u32 * 3;
        let (mut prompts, mut parts) = (Vec::new(), Vec::new());
        let kinds: Vec<u64> = (0..8).map(|_| rng(3)).collect();
        for (n, kind) in kinds.iter().enumerate() {
            let kind = [Kind::Local, Kind::AwaitKv, export()][*kind as usize].clone();
            // Some begin alike, some with others' whole prompts.
            prompts.push(1 + rng(40) as usize);
            let mut sequence = new(n as u8, prompts[n], 1 + rng(30) as u32, kind);
            // Some were begun elsewhere, some have their KV packed.
            let known = if kinds[n] == 2 { 0 } else { rng(8).saturating_sub(4) as u32 };
            let place = |i| answer(story.ring.period, prompts[n] as u32 + i);
            sequence.answered = (0..known.min(sequence.generation.max_new_tokens)).map(place).collect();
            if kinds[n] != 2 && rng(2) == 0 {
                sequence.codec = KvCodec::Int4.into();
                story.ring.packed.insert(request(n as u8), prompts[n] as u32);
            }
            // Of some prompts only a first part comes, or is packed.
            let part = 1 + rng(prompts[n] as u64) as u32;
            if kinds[n] != 2 && rng(3) == 0 {
                sequence.codec = PromptCodec::of_first(sequence.codec.codec, part, prompts[n] as u32);
                story.ring.packed.entry(request(n as u8)).and_modify(|packed| *packed = part);
            }
            parts.push(sequence.codec.tokens(prompts[n] as u32) as usize);
            story.tell(Event::Submit(sequence));
        }
        let mut cancelled = BTreeSet::new();
        for _ in 0..400 {
            let n = rng(8) as u8;
            let r = request(n);
            match rng(12) {
                0 if rng(6) == 0 => {
                    if story.ends(n) == 0 {
                        cancelled.insert(n);
                    }
                    story.tell(Event::Cancel { request: r });
                }
                1 => drop(story.tell(Event::Begin { request: r, first: Token(50) })),
                2 if rng(4) == 0 => drop(story.tell(Event::PrefillHere { request: r, first: None })),
                3 if rng(4) == 0 => {
                    let arrived = Err("broken".into());
                    story.tell(Event::KvArrived { request: r, position: 0, arrived });
                }
                3 if rng(4) == 0 && kinds[n as usize] == 1 => {
                    story.kv_of(n, parts[usize::from(n)]);
                }
                4 if kinds[n as usize] == 2 => {
                    for position in 0..stages {
                        story.tell(Event::KvSent { request: r, position, bytes: 1, failed: None });
                    }
                }
                5 => {
                    if let Some(event) = story.draft.answers.pop_front() {
                        story.tell(event);
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
        // Where the KV has come and the first token has not, the gateway says it at last.
        for n in (0..8).filter(|n| kinds[usize::from(*n)] == 1) {
            story.tell(Event::Begin { request: request(n), first: Token(50) });
        }
        for _ in 0..20 {
            for n in (0..8).filter(|n| kinds[usize::from(*n)] == 2) {
                for position in 0..stages {
                    story.tell(Event::KvSent { request: request(n), position, bytes: 1, failed: None });
                }
            }
            story.settle();
            let Some(at) = story.batcher.deadline() else { break };
            story.now = at;
            story.tell(Event::Deadline).settle();
        }
        for n in 0..8 {
            let ends = story.ends(n);
            assert!(ends <= 1, "seed {seed}: request {n} ended {ends} times");
            assert_eq!(ends == 0, cancelled.contains(&n), "seed {seed}: request {n}");
            let indices = story.indices(n);
            let right =
                |(i, token): (&u32, Token)| token == answer(story.ring.period, prompts[usize::from(n)] as u32 + i);
            assert!(indices.iter().zip(story.tokens(n)).all(right), "seed {seed}: request {n} has other tokens");
            assert!(indices.windows(2).all(|w| w[1] == w[0] + 1), "seed {seed}: request {n} has gaps: {indices:?}");
        }
        story.all_pages_are_free();
    }
}
