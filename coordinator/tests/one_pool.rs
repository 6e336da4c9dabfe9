//! Two models on one pool of pages: their groups' batchers and their device's quotas, as a node puts them together.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, Event, NewSequence, SequenceKind},
    policy::{batching::ServiceNo, sharing::quotas::PageQuotas},
    rng::Rng,
};
use tsnode_protocol::{
    KvCodec, RequestId, Sampled, Sampling, Token,
    ring::{Grow, Refusal, RingFrame},
    stream::{End, Generation},
};

/// Pages of each model, of a token each.
const QUOTA: u64 = 1_500;
const STEP: Duration = Duration::from_millis(10);
/// The longest that is asked.
const PROMPT: usize = 120;
const ANSWER: usize = 200;
/// What ran when a model's first asked is over after as many steps as the longest answer has tokens, each beside one of the other model:
/// 4 s, and pages are asked for again after a tenth of a second. Who comes meanwhile is first after that.
const BOUND: Duration = Duration::from_secs(9);

/// A model that much is asked of now and then, and one of which a little is all the time.
const BUSY: usize = 0;
const CALM: usize = 1;

struct Model {
    batcher: Batcher,
    on_the_way: VecDeque<RingFrame>,
    held: BTreeMap<RequestId, u64>,
    /// When those came that have no pages yet.
    waiting: BTreeMap<RequestId, Duration>,
    /// The longest that one waited for pages, and the most pages at once.
    longest: Duration,
    most: u64,
    came: u32,
    ended: u32,
    tokens: u32,
}

impl Model {
    fn new() -> Self {
        let patience = Duration::from_secs(3_600);
        let config =
            BatcherConfig { growth: 64, shares_pages: true, admission_patience: patience, ..BatcherConfig::default() };
        Self {
            batcher: Batcher::new(config),
            on_the_way: VecDeque::new(),
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            longest: Duration::ZERO,
            most: 0,
            came: 0,
            ended: 0,
            tokens: 0,
        }
    }

    fn used(&self) -> u64 {
        self.held.values().sum()
    }
}

struct OnePoolDevice {
    quotas: PageQuotas,
    models: [Model; 2],
    now: Duration,
}

impl OnePoolDevice {
    /// A request of a model comes; prompts have nothing in common.
    fn comes(&mut self, n: usize, prompt: usize, answer: u32) {
        let model = &mut self.models[n];
        model.came += 1;
        let mut name = [n as u8; 16];
        name[..4].copy_from_slice(&model.came.to_be_bytes());
        let request = RequestId(name);
        model.waiting.insert(request, self.now);
        let new = NewSequence {
            request,
            prompt: vec![Token(model.came); prompt],
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
        };
        self.tell(n, Event::Submit(new));
    }

    fn tell(&mut self, n: usize, event: Event) {
        for action in self.models[n].batcher.on_event(self.now, event) {
            let model = &mut self.models[n];
            match action {
                Action::Ring(frame) => model.on_the_way.push_back(frame),
                Action::Granted { request, .. } => {
                    let since = model.waiting.remove(&request).unwrap_or(self.now);
                    model.longest = model.longest.max(self.now - since);
                }
                Action::End { request, end } => {
                    assert_eq!(end, End::Length, "{request}");
                    model.ended += 1;
                }
                Action::Refused { request, reason } => panic!("{request} is refused: {reason}"),
                _ => {}
            }
        }
    }

    /// Carries a model's next frame round, if there is one; a step takes its time.
    fn turn(&mut self, n: usize) -> bool {
        let Some(frame) = self.models[n].on_the_way.pop_front() else { return false };
        match frame {
            RingFrame::Admit(a) => {
                let refused = self.takes(n, a.request, a.room);
                self.tell(n, Event::Admitted { request: a.request, refused });
            }
            RingFrame::Grow(Grow { request, room, .. }) => {
                let refused = self.takes(n, request, room);
                self.tell(n, Event::Grown { request, refused });
            }
            RingFrame::Release(request) | RingFrame::Keep { request, .. } => {
                let model = &mut self.models[n];
                model.held.remove(&request);
                self.quotas.uses(ServiceNo(n as u16), model.used());
            }
            RingFrame::Step(step) => {
                self.now += STEP;
                self.models[n].tokens += 1;
                // No token comes twice, so that nothing is guessed.
                let token = Token(1_000_000 + self.models[n].tokens);
                let sampled = Sampled { token, logprob: None, top: vec![] };
                let chosen = step.entries.iter().filter(|e| e.sample).map(|e| (e.request, sampled.clone())).collect();
                self.tell(n, Event::Sampled { step: step.step, tokens: chosen, busy: None });
            }
            RingFrame::Forget(_) => {}
            other => panic!("not for the leader to say: {other:?}"),
        }
        true
    }

    /// What is kept makes room, so it counts for nothing.
    fn takes(&mut self, n: usize, request: RequestId, room: u32) -> Option<Refusal> {
        let (model, service) = (&mut self.models[n], ServiceNo(n as u16));
        let had = model.held.get(&request).copied().unwrap_or(0);
        let wanted = u64::from(room).saturating_sub(had);
        if !self.quotas.asks(self.now, service, wanted) {
            return Some(Refusal::Full("full".into()));
        }
        self.quotas.took(service, wanted);
        model.held.insert(request, had + wanted);
        model.most = model.most.max(model.used());
        let used: u64 = self.models.iter().map(Model::used).sum();
        assert!(used <= 2 * QUOTA && self.quotas.free() == 2 * QUOTA - used, "{used} pages are used");
        None
    }

    /// What is due by now happens; when the next is due.
    fn expire(&mut self) -> Option<Duration> {
        for n in [BUSY, CALM] {
            if self.models[n].batcher.deadline().is_some_and(|at| at <= self.now) {
                self.tell(n, Event::Deadline);
            }
        }
        self.models.iter().filter_map(|model| model.batcher.deadline()).min()
    }
}

/// Bursts of one model, in each of which more comes than the pool has room for, and the other one's once a second; by their times.
fn arrivals(rng: &mut Rng) -> VecDeque<(Duration, usize)> {
    const SPAN: f64 = 150.0;
    let mut all: Vec<(Duration, usize)> = (0..5 * 140).map(|n| (Duration::from_secs(30 * (n / 140)), BUSY)).collect();
    let mut at = rng.exponential(1.0);
    while at < SPAN {
        all.push((Duration::from_secs_f64(at), CALM));
        at += rng.exponential(1.0);
    }
    all.sort_unstable();
    all.into()
}

/// None is lost, none waits for what the other model has beyond its quota for longer than that is in use, and all pages are free at
/// the end.
#[test]
fn a_burst_on_one_model_takes_what_the_other_leaves_and_keeps_nobody_waiting() {
    for seed in 0..2 {
        let models = [Model::new(), Model::new()];
        let mut device = OnePoolDevice { quotas: PageQuotas::new([QUOTA, QUOTA]), models, now: Duration::ZERO };
        let mut rng = Rng::new(seed);
        let mut coming = arrivals(&mut rng);
        while !coming.is_empty() || device.models.iter().any(|model| model.ended < model.came) {
            while let Some((_, n)) = coming.front().copied().filter(|(at, _)| *at <= device.now) {
                coming.pop_front();
                device.comes(n, 1 + rng.below(PROMPT), 1 + rng.below(ANSWER) as u32);
            }
            let moved = [BUSY, CALM].map(|n| device.turn(n));
            let due = device.expire();
            if moved == [false, false] {
                let next = coming.front().map(|(at, _)| *at).into_iter().chain(due).min();
                let is_quiet = device.models.iter().all(|model| model.on_the_way.is_empty());
                device.now = next.filter(|_| is_quiet).unwrap_or(device.now).max(device.now);
                assert!(next.is_some() || !is_quiet, "nothing happens any more");
            }
        }
        // What the last gave back is still on its way.
        while [BUSY, CALM].map(|n| device.turn(n)) != [false, false] {}
        let [busy, calm] = &device.models;
        assert!(busy.most > 2_000, "seed {seed}: no more than {} pages were had of the other's", busy.most);
        assert!(calm.longest < BOUND, "seed {seed}: one waited for {:?}", calm.longest);
        assert_eq!((device.quotas.free(), busy.used(), calm.used()), (2 * QUOTA, 0, 0));
    }
}
