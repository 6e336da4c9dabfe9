//! Replays a plan request by request: events on a heap, the cost model's times, real queues.
//!
//! What closed forms ([`crate::scheduler::pair`]) take on average happens here one after another: Poisson arrivals,
//! prompts in order at each prefill group, KV in order on each link, decode batches formed anew before each iteration.
//! Events at one time happen in the order they were made.

use crate::scheduler::{
    Evaluator, Problem,
    cluster::InstanceId,
    dice::Dice,
    evaluate::{Evaluation, GroupNo},
    pair::Way,
    parallel::Config,
    workload::Request,
};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use tsnode_protocol::{Phase, Tokens};

/// How a replay is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Of arrivals, lengths and routes.
    pub seed: u64,
    /// Requests sent.
    pub requests: usize,
}

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Share that kept its deadlines; requests that no route takes keep none.
    pub attainment: f64,
    /// Whole times as multiples of the reference's, in order; infinite for requests not taken.
    pub scales: Vec<f64>,
    /// Tokens a second, all groups together.
    pub tokens_per_second: f64,
    /// Mean time to the first token of those taken (s).
    pub ttft: f64,
}

impl Report {
    /// The SLO scale that this share of requests keeps: the deadline ThunderServe §5.1 compares by.
    #[must_use]
    pub fn scale_at(&self, share: f64) -> f64 {
        let place = (self.scales.len() as f64 * share).ceil() as usize;
        self.scales.get(place.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
    }
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// A request comes.
    Arrive(usize),
    /// A group may do its next thing.
    Turn(usize),
    /// A request's KV is where it is decoded.
    Land(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Event {
    at: f64,
    number: u64,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    request: Request,
    kind: usize,
    arrived: f64,
    first: f64,
    ended: f64,
    decode: usize,
    left: u64,
}

/// A group at work.
#[derive(Debug)]
struct Group {
    phase: Phase,
    config: Config,
    prompts: VecDeque<usize>,
    waiting: VecDeque<usize>,
    running: Vec<usize>,
    /// Tokens that sequences have, and will have had.
    context: Tokens,
    reserved: Tokens,
    /// When what it does now ends.
    busy_until: f64,
    iterating: bool,
}

struct Run<'p> {
    problem: &'p Problem,
    heap: BinaryHeap<Reverse<Event>>,
    made: u64,
    sent: Vec<Sent>,
    groups: Vec<Group>,
    ways: BTreeMap<(usize, usize), Way>,
    links: BTreeMap<(InstanceId, InstanceId), f64>,
}

/// Replays requests of a problem's workload on a plan.
#[must_use]
pub fn replay(evaluator: &mut Evaluator<'_>, groups: &[GroupNo], plan: &Evaluation, how: Replay) -> Report {
    let problem = evaluator.problem();
    let mut ways = BTreeMap::new();
    for share in plan.shares.iter().filter(|s| s.prefill != s.decode) {
        ways.insert((share.prefill, share.decode), evaluator.way(groups[share.prefill], groups[share.decode]).clone());
    }
    let group = |g: &GroupNo| {
        let rated = &evaluator.shelved(*g).rated;
        Group {
            phase: rated.phase,
            config: rated.config.clone(),
            prompts: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            context: Tokens(0.0),
            reserved: Tokens(0.0),
            busy_until: 0.0,
            iterating: false,
        }
    };
    let mut run = Run {
        problem,
        heap: BinaryHeap::new(),
        made: 0,
        sent: Vec::with_capacity(how.requests),
        groups: groups.iter().map(group).collect(),
        ways,
        links: BTreeMap::new(),
    };
    let routes = run.send(plan, how);
    run.play(&routes);
    run.report()
}

impl Run<'_> {
    /// Draws the requests and where each goes; `None` for those turned away.
    fn send(&mut self, plan: &Evaluation, how: Replay) -> Vec<Option<(usize, usize)>> {
        let (mut dice, mut now) = (Dice::new(how.seed), 0.0);
        let mut routes = Vec::with_capacity(how.requests);
        for n in 0..how.requests {
            now += dice.exponential(1.0 / self.problem.rate);
            let kind = dice.below(self.problem.workload.requests.len());
            let request = self.problem.workload.requests[kind];
            let mut point = dice.unit();
            let route = plan.shares.iter().find(|s| {
                point -= s.share;
                point < 0.0
            });
            routes.push(route.map(|s| (s.prefill, s.decode)));
            let decode = route.map_or(usize::MAX, |s| s.decode);
            let left = request.steps().max(0.0) as u64;
            let none = f64::INFINITY;
            self.sent.push(Sent { request, kind, arrived: now, first: none, ended: none, decode, left });
            if route.is_some() {
                self.at(now, What::Arrive(n));
            }
        }
        routes
    }

    fn at(&mut self, at: f64, what: What) {
        self.made += 1;
        self.heap.push(Reverse(Event { at, number: self.made, what }));
    }

    fn play(&mut self, routes: &[Option<(usize, usize)>]) {
        while let Some(Reverse(event)) = self.heap.pop() {
            match event.what {
                What::Arrive(n) => {
                    if let Some((prefill, _)) = routes[n] {
                        self.groups[prefill].prompts.push_back(n);
                        self.turn(prefill, event.at);
                    }
                }
                What::Turn(group) => {
                    if std::mem::take(&mut self.groups[group].iterating) {
                        self.tokens(group, event.at);
                    }
                    self.turn(group, event.at);
                }
                What::Land(n) => {
                    let group = self.sent[n].decode;
                    self.groups[group].waiting.push_back(n);
                    self.turn(group, event.at);
                }
            }
        }
    }

    /// Starts what a group should do next, if it does nothing: prompts first, then an iteration.
    fn turn(&mut self, group: usize, now: f64) {
        if now < self.groups[group].busy_until || self.groups[group].iterating {
            return;
        }
        if let Some(n) = self.groups[group].prompts.pop_front() {
            return self.prefill(group, n, now);
        }
        let g = &mut self.groups[group];
        while let Some(&n) = g.waiting.front() {
            let request = self.sent[n].request;
            let reserved = g.reserved + request.prompt + request.answer;
            let fits = (g.running.len() as f64) < g.config.batch && reserved <= g.config.kv_tokens;
            if !g.running.is_empty() && !fits {
                break;
            }
            g.waiting.pop_front();
            g.running.push(n);
            g.context += request.prompt + Tokens(1.0);
            g.reserved = reserved;
        }
        if g.running.is_empty() {
            return;
        }
        let n = g.running.len() as f64;
        let end = now + g.config.iteration(n, g.context / n).0;
        (g.busy_until, g.iterating) = (end, true);
        self.at(end, What::Turn(group));
    }

    fn prefill(&mut self, group: usize, n: usize, now: f64) {
        let prompt = self.sent[n].request.prompt;
        let (decode, mixed) = (self.sent[n].decode, self.groups[group].phase == Phase::Mixed);
        let config = &self.groups[group].config;
        let (free, done) = (now + config.busy.time(prompt).0, now + config.latency.time(prompt).0);
        self.groups[group].busy_until = free;
        self.at(free, What::Turn(group));
        self.sent[n].first = done;
        if self.sent[n].left == 0 {
            self.sent[n].ended = done;
            return;
        }
        let landed = if mixed { done } else { self.carry(group, decode, prompt, now, done) };
        self.at(landed, What::Land(n));
    }

    /// KV follows its prompt layer by layer; on each link one prompt's after the other's.
    fn carry(&mut self, from: usize, to: usize, prompt: Tokens, start: f64, done: f64) -> f64 {
        let Some(way) = self.ways.get(&(from, to)) else { return done };
        let layers = f64::from(self.problem.model.shape.layers);
        let all = (way.per_token * prompt).0;
        let mut landed = done + way.latency.0 + all / layers;
        for &(a, b, per_token) in &way.links {
            let time = (per_token * prompt).0;
            let free = self.links.entry((a, b)).or_insert(0.0);
            let begin = free.max(start);
            *free = begin + time;
            landed = landed.max((begin + time).max(done + time / layers) + way.latency.0);
        }
        landed
    }

    /// The end of an iteration: every sequence has a token more.
    fn tokens(&mut self, group: usize, now: f64) {
        let (g, sent) = (&mut self.groups[group], &mut self.sent);
        g.context += Tokens(g.running.len() as f64);
        let (context, reserved) = (&mut g.context, &mut g.reserved);
        g.running.retain(|&n| {
            let s = &mut sent[n];
            s.left -= 1;
            if s.left == 0 {
                s.ended = now;
                *context -= s.request.prompt + s.request.answer;
                *reserved -= s.request.prompt + s.request.answer;
            }
            s.left > 0
        });
    }

    fn report(&self) -> Report {
        let (mut kept, mut tokens, mut ttft, mut taken, mut end) = (0usize, 0.0, 0.0, 0usize, 0.0f64);
        let mut scales = Vec::with_capacity(self.sent.len());
        for s in &self.sent {
            let (request, deadline) = (s.request, self.problem.deadlines[s.kind]);
            let (first, rest) = self.problem.reference.times(&request);
            let whole = s.ended - s.arrived;
            scales.push(whole / (first + rest * request.steps()).0);
            if !s.ended.is_finite() {
                continue;
            }
            let steps = request.steps();
            let in_time = s.first - s.arrived <= deadline.ttft.0
                && s.ended - s.first <= deadline.tpot.0 * steps
                && whole <= deadline.e2e.0;
            kept += usize::from(in_time);
            taken += 1;
            ttft += s.first - s.arrived;
            tokens += request.answer.0;
            end = end.max(s.ended);
        }
        scales.sort_by(f64::total_cmp);
        Report {
            attainment: kept as f64 / self.sent.len().max(1) as f64,
            scales,
            tokens_per_second: if end > 0.0 { tokens / end } else { 0.0 },
            ttft: ttft / taken.max(1) as f64,
        }
    }
}
