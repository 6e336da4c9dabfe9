//! Nobody waits for ever: with the policies that nodes have, one that came early ends however many come after it.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, Event, NewSequence, SequenceKind},
    policy::choice::Batches,
};
use tsnode_protocol::{
    KvCodec, RequestClass, RequestId, Sampled, Sampling, Token,
    ring::{Grow, Refusal, RingFrame},
    stream::{End, Generation},
};

/// Pages, of a token each.
const PAGES: u32 = 2_000;
/// What comes without end: as many as this wait at any time, each of so many tokens and so long an answer.
const CROWD: usize = 20;
const SHORT: (usize, u32) = (60, 40);
const STEP: Duration = Duration::from_millis(10);

fn request(n: u32) -> RequestId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&n.to_be_bytes());
    RequestId(id)
}

/// Prompts have nothing in common.
fn new(n: u32, (prompt, answer): (usize, u32)) -> NewSequence {
    NewSequence {
        request: request(n),
        prompt: vec![Token(n); prompt],
        answered: vec![],
        codec: KvCodec::Raw.into(),
        max_tokens: prompt as u32 + answer,
        generation: Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: answer,
            stop_tokens: vec![],
            class: Default::default(),
        },
        kind: SequenceKind::Local,
    }
}

/// A batcher as nodes set it, and a ring of one stage that has as many pages as it has.
struct Scenario {
    batcher: Batcher,
    pages: u32,
    held: BTreeMap<RequestId, u32>,
    on_the_way: VecDeque<RingFrame>,
    now: Duration,
    steps: usize,
    /// Requests so far.
    came: u32,
    /// In this order, and those that have given back pages without having ended.
    granted: Vec<RequestId>,
    pushed_out: Vec<RequestId>,
    tokens: BTreeMap<RequestId, u32>,
    ended: BTreeMap<RequestId, End>,
    refused: Vec<RequestId>,
}

impl Scenario {
    fn new(pages: u32) -> Self {
        Self::by(Batches::default(), pages)
    }

    /// Steps are formed by this policy.
    fn by(batches: Batches, pages: u32) -> Self {
        Self {
            batcher: Batcher::new(BatcherConfig { batches, ..BatcherConfig::default() }),
            pages,
            held: BTreeMap::new(),
            on_the_way: VecDeque::new(),
            now: Duration::ZERO,
            steps: 0,
            came: 0,
            granted: vec![],
            pushed_out: vec![],
            tokens: BTreeMap::new(),
            ended: BTreeMap::new(),
            refused: vec![],
        }
    }

    /// One more comes, and somebody waits for it.
    fn comes(&mut self, size: (usize, u32)) -> RequestId {
        self.comes_as(RequestClass::Interactive, size)
    }

    fn comes_as(&mut self, class: RequestClass, size: (usize, u32)) -> RequestId {
        self.came += 1;
        let mut new = new(self.came, size);
        new.generation.class = class;
        self.tell(Event::Submit(new));
        request(self.came)
    }

    fn tell(&mut self, event: Event) {
        for action in self.batcher.on_event(self.now, event) {
            match action {
                Action::Ring(frame) => self.on_the_way.push_back(frame),
                Action::Granted { request, .. } => self.granted.push(request),
                Action::Token { request, .. } => *self.tokens.entry(request).or_default() += 1,
                Action::End { request, end } => drop(self.ended.insert(request, end)),
                Action::Refused { request, .. } => self.refused.push(request),
                _ => {}
            }
        }
    }

    /// Carries a frame round; a step takes its time.
    fn turn(&mut self) -> bool {
        let Some(frame) = self.on_the_way.pop_front() else { return false };
        match frame {
            RingFrame::Admit(a) => {
                let refused = self.takes(a.request, a.room);
                self.tell(Event::Admitted { request: a.request, refused });
            }
            RingFrame::Grow(Grow { request, room, .. }) => {
                let refused = self.takes(request, room);
                self.tell(Event::Grown { request, refused });
            }
            RingFrame::Release(request) | RingFrame::Keep { request, .. } => {
                let had = self.held.remove(&request).is_some();
                if had && !self.ended.contains_key(&request) {
                    self.pushed_out.push(request);
                }
            }
            RingFrame::Step(step) => {
                (self.now, self.steps) = (self.now + STEP, self.steps + 1);
                // No token comes twice, so that nothing is guessed.
                let token = Sampled { token: Token(1_000_000 + self.steps as u32), logprob: None, top: vec![] };
                let chosen = step.entries.iter().filter(|e| e.sample).map(|e| (e.request, token.clone())).collect();
                self.tell(Event::Sampled { step: step.step, tokens: chosen, busy: None });
            }
            RingFrame::Forget(_) => {}
            other => panic!("not for the leader to say: {other:?}"),
        }
        if self.batcher.deadline().is_some_and(|at| at <= self.now) {
            self.tell(Event::Deadline);
        }
        true
    }

    /// What is kept makes room, so it counts for nothing.
    fn takes(&mut self, request: RequestId, room: u32) -> Option<Refusal> {
        let others: u32 = self.held.iter().filter(|(r, _)| **r != request).map(|(_, room)| room).sum();
        if others + room > self.pages {
            return Some(Refusal::Full("full".into()));
        }
        self.held.insert(request, room);
        None
    }

    /// Goes on until something is so, with more short requests whenever fewer than [`CROWD`] wait; at most so many steps.
    fn crowded_until(&mut self, is_so: impl Fn(&Self) -> bool, steps: usize) {
        let until = self.steps + steps;
        while !is_so(self) {
            assert!(self.steps < until, "after {steps} steps it is not so; {} have come", self.came);
            while (self.batcher.load().waiting as usize) < CROWD {
                self.comes(SHORT);
            }
            assert!(self.turn(), "nothing happens any more");
        }
    }

    fn place(&self, request: RequestId) -> usize {
        self.granted.iter().position(|r| *r == request).unwrap()
    }
}

/// Some outgrow the pages, and the youngest, a long one, gives its own back. Those that come from then on are short enough for
/// whatever is left: without a rule they would have every page before as many are free as it needs, for the others end one by one.
#[test]
fn one_that_gave_its_pages_back_ends_though_others_come_without_end() {
    // What the elders have at first, and the long one; to grow there are hardly any.
    let mut scenario = Scenario::new(12 * (60 + 256) + 1_200 + 256 + 50);
    let elders: Vec<RequestId> = (0..12).map(|n| scenario.comes((60, 300 + 5 * n))).collect();
    let youngest = scenario.comes((1_200, 400));
    while scenario.pushed_out.is_empty() {
        assert!(scenario.turn());
    }
    assert_eq!(scenario.pushed_out, [youngest]);
    assert!(elders.iter().all(|elder| !scenario.ended.contains_key(elder)));
    // Its answer has 400 tokens, each a step, and the elders' some more; what it had is computed once or twice more.
    let all = elders.into_iter().chain([youngest]);
    scenario.crowded_until(|s| all.clone().all(|request| s.ended.contains_key(&request)), 2_000);
    assert!(all.clone().all(|request| scenario.ended[&request] == End::Length));
    assert_eq!(scenario.tokens[&youngest], 400, "no token comes twice");
    assert!(scenario.pushed_out.iter().filter(|r| **r == youngest).count() <= 2, "it gives way twice at most");
    assert!(
        scenario.came > 20 && scenario.refused.is_empty(),
        "{} came, {:?} refused",
        scenario.came,
        scenario.refused
    );
}

/// A prompt that takes most of the pages, in the midst of short ones: at most those overtake it that were asked for together
/// with it, before anybody knew that it does not fit.
#[test]
fn a_long_prompt_is_not_overtaken_for_ever() {
    let mut scenario = Scenario::new(PAGES);
    scenario.crowded_until(|s| s.ended.len() > 50, 1_000);
    let long = scenario.comes((1_500, 100));
    let before = scenario.came as usize;
    scenario.crowded_until(|s| s.ended.contains_key(&long), 1_000);
    assert_eq!((&scenario.ended[&long], scenario.tokens[&long]), (&End::Length, 100));
    let overtook = scenario.place(long).saturating_sub(before - 1);
    assert!(overtook <= CROWD, "{overtook} that came later were first");
    assert!(scenario.refused.is_empty(), "{:?}", scenario.refused);
}

/// Where all have pages, prompts are computed in the order in which they came: what comes later makes it no later.
#[test]
fn a_long_prompt_is_computed_at_the_pace_it_would_have_alone() {
    const PROMPT: usize = 20_000;
    let steps_until_first = |crowd: bool| {
        let mut scenario = Scenario::new(1_000_000);
        let long = scenario.comes((PROMPT, 1));
        while !scenario.tokens.contains_key(&long) {
            if crowd && scenario.batcher.load().running < 200 {
                scenario.comes(SHORT);
            }
            assert!(scenario.turn());
        }
        scenario.steps
    };
    let (alone, crowded) = (steps_until_first(false), steps_until_first(true));
    // Answers beside it take a token each of a step's 512; those before it in the same step are none.
    assert!(crowded <= 2 * alone, "{crowded} steps for its prompt, and {alone} alone");
}

/// A night's work of long prompts is there, and pages for all of it: whoever comes for an answer then has one of them to wait for.
#[test]
fn who_waits_for_an_answer_goes_before_a_heap_that_nobody_waits_for() {
    let steps_until_first = |class| {
        let mut scenario = Scenario::new(1_000_000);
        let heap: Vec<RequestId> = (0..20).map(|_| scenario.comes_as(class, (2_000, 20))).collect();
        (0..5).for_each(|_| assert!(scenario.turn()));
        let before = scenario.steps;
        let asked = scenario.comes(SHORT);
        while !scenario.tokens.contains_key(&asked) {
            assert!(scenario.turn());
        }
        let first = scenario.steps - before;
        while heap.iter().any(|request| !scenario.ended.contains_key(request)) {
            assert!(scenario.turn(), "the heap is left lying");
        }
        first
    };
    let (batch, alike) = (steps_until_first(RequestClass::Batch), steps_until_first(RequestClass::Interactive));
    assert!(3 * batch < alike, "{batch} steps before a heap of batch requests, {alike} where all are alike");
}

/// Without end there is somebody who came later and waits: a batch request's turn comes all the same, after ten seconds.
#[test]
fn a_batch_request_gives_way_for_a_bounded_time() {
    let mut scenario = Scenario::new(PAGES);
    scenario.crowded_until(|s| s.ended.len() > 50, 1_000);
    let (batch, since) = (scenario.comes_as(RequestClass::Batch, (200, 50)), scenario.now);
    scenario.crowded_until(|s| s.ended.contains_key(&batch), 1_500);
    let waited = scenario.now - since;
    assert!(waited > Duration::from_secs(10) && waited < Duration::from_secs(15), "{waited:?}");
    assert_eq!(scenario.tokens[&batch], 50);
}

/// Prompts come without end, and under two of these policies they go first: an answer is passed over four or sixteen steps in a row, and
/// then it has its token.
#[test]
fn an_answer_ends_though_prompts_that_go_first_come_without_end() {
    for (batches, each) in [(Batches::Chunked(512), 1), (Batches::Mixed(512), 5), (Batches::PromptsFirst(512), 17)] {
        let mut scenario = Scenario::by(batches, 10_000_000);
        let answer = scenario.comes((60, 40));
        while !scenario.tokens.contains_key(&answer) {
            assert!(scenario.turn());
        }
        let before = scenario.steps;
        while !scenario.ended.contains_key(&answer) {
            if scenario.batcher.load().pending_tokens < 20_000 {
                scenario.comes((20_000, 1));
            }
            assert!(scenario.turn());
        }
        let steps = scenario.steps - before;
        assert!(steps > 35 * each && steps <= 40 * each, "{batches:?}: {steps} steps for 39 tokens");
        assert_eq!(scenario.tokens[&answer], 40);
    }
}
