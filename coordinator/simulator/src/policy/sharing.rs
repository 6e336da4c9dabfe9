//! Several services on one machine: a batch holds prompts or answers of one service, and an order says whose turn it is
//! (SeaLLM §4.2 and Algorithm 2). Orders: [`super::doubling`], [`super::round_robin`], [`super::feedback`]. Peers, whose models
//! form their batches for themselves, give turns to steps by the same orders ([`super::turns`]).
//!
//! The first request in the order brings its service's batch with it, filled up in the same order; who has been here too
//! long is first whatever the order says. It is looked at anew before each iteration. Memory for all of a request is set
//! aside when its prompt starts, so that what has started can always end. A prompt that lacks memory is not overtaken by
//! other prompts: it waits for the ends of those that have started and no longer, or takes theirs ([`order::MemoryRule`]).

mod jobs;
pub mod order;

use super::pages::Pages;
use crate::policy::sharing::{
    jobs::{Jobs, ServiceJob, ServiceQueues},
    order::{Lead, MemoryRule, Order, OrderRank, PromptStart, Rules},
};
use tsnode_coordinator::policy::batching::{
    Batch, BatchLimits, Batching, RequestNo, RequestPhase, Seen, ServiceNo, Task,
};
use tsnode_protocol::Seconds;

/// The policy and its machine's state.
#[derive(Debug)]
pub struct Sharing<O: Order> {
    order: O,
    rules: Rules,
    limits: BatchLimits,
    jobs: Jobs<O::Standing>,
    /// Busy time, and what of it the last batch took.
    clock: Seconds,
    elapsed: Seconds,
    batch: Batch,
    running: Vec<RequestNo>,
    starting: Vec<(RequestNo, RequestPhase)>,
}

/// Who is first of those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Starved,
    Ranked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServiceTurn {
    urgency: Urgency,
    turn: u64,
    rank: OrderRank,
    request: RequestNo,
    service: ServiceNo,
}

impl<O: Order> Sharing<O> {
    /// An idle machine.
    #[must_use]
    pub fn ordered(order: O, limits: BatchLimits, pages: Pages) -> Self {
        Self {
            order,
            rules: Rules::default(),
            limits: BatchLimits { tasks: limits.tasks.max(1), ..limits },
            jobs: Jobs::new(pages),
            clock: Seconds(0.0),
            elapsed: Seconds(0.0),
            batch: Batch::default(),
            running: Vec::new(),
            starting: Vec::new(),
        }
    }

    /// The same by other rules.
    #[must_use]
    pub fn by(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Its memory.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.jobs.pages
    }

    fn is_starved(&self, job: &ServiceJob<O::Standing>) -> bool {
        self.clock - job.came > self.order.patience(job.service)
    }

    /// The first of a service's prompts or answers.
    fn first(&self, service: ServiceNo, part: RequestPhase) -> Option<ServiceTurn> {
        let queues = self.jobs.queues.get(&service)?;
        let oldest = queues.present.first().and_then(|r| Some((*r, self.jobs.get(*r)?)));
        let starved = oldest.filter(|(_, job)| job.part == part && self.is_starved(job));
        if let Some((request, _)) = starved.filter(|(r, _)| part == RequestPhase::Prompt || self.jobs.fits(*r)) {
            return Some(ServiceTurn {
                urgency: Urgency::Starved,
                turn: 0,
                rank: OrderRank::default(),
                request,
                service,
            });
        }
        let (rank, request) = match part {
            RequestPhase::Prompt => queues.prompts.first().copied()?,
            RequestPhase::Answer => queues.answers.iter().find(|(_, r)| self.jobs.fits(*r)).copied()?,
        };
        let rank = if self.rules.lead == Lead::Together { self.together(queues, part) } else { rank };
        Some(ServiceTurn { urgency: Urgency::Ranked, turn: self.order.turn(service), rank, request, service })
    }

    /// The rank of a batch: 1 / Σ 1/rank.
    fn together(&self, queues: &ServiceQueues, part: RequestPhase) -> OrderRank {
        let mut all = 0;
        let fits = |(_, request): &&(OrderRank, RequestNo)| {
            let prompt = self.jobs.get(*request).map_or(0, |j| u64::from(j.prompt));
            let tokens = if part == RequestPhase::Prompt { prompt } else { 1 };
            all += tokens;
            all == tokens || all <= u64::from(self.limits.tokens)
        };
        let ranks = queues.of(part).iter().take(self.limits.tasks).take_while(fits);
        OrderRank::together(ranks.map(|(rank, _)| *rank))
    }

    fn first_of_all(&self, part: RequestPhase) -> Option<ServiceTurn> {
        self.jobs.queues.keys().filter_map(|s| self.first(*s, part)).min()
    }

    /// What runs next: the first task of all, and how many may run with it.
    fn next(&mut self) -> Option<(ServiceTurn, RequestPhase, usize)> {
        let (prompt, answer) = (self.first_of_all(RequestPhase::Prompt), self.first_of_all(RequestPhase::Answer));
        let is_first = |p: &ServiceTurn| answer.is_none_or(|a| *p < a);
        if let Some(prompt) = prompt.filter(|p| is_first(p) && !self.jobs.fits(p.request)) {
            self.take_back(prompt);
        }
        let Some(prompt) = prompt.filter(|p| self.jobs.fits(p.request)) else {
            return self.first_of_all(RequestPhase::Answer).map(|a| (a, RequestPhase::Answer, self.limits.tasks));
        };
        let Some(answer) = answer.filter(|a| *a < prompt) else {
            return Some((prompt, RequestPhase::Prompt, self.limits.tasks));
        };
        let answers = self.jobs.queues.get(&answer.service).map_or(0, |l| l.answers.len());
        let places = self.limits.tasks.saturating_sub(answers);
        let joins = self.first(answer.service, RequestPhase::Prompt).filter(|p| self.jobs.fits(p.request));
        match joins.filter(|_| self.rules.prompts == PromptStart::Join && places > 0) {
            Some(joins) => Some((joins, RequestPhase::Prompt, places)),
            None => Some((answer, RequestPhase::Answer, self.limits.tasks)),
        }
    }

    /// Takes memory for the first prompt from answers that come after it; from no starved one.
    fn take_back(&mut self, prompt: ServiceTurn) {
        let Some(job) = self.jobs.get(prompt.request).filter(|_| self.rules.memory == MemoryRule::TakenBack) else {
            return;
        };
        let (lacks, rank) = (self.jobs.lacks(job), job.rank);
        let (clock, order) = (self.clock, &self.order);
        let after = |job: &ServiceJob<O::Standing>| {
            let is_starved = clock - job.came > order.patience(job.service);
            !is_starved && (prompt.urgency == Urgency::Starved || job.rank > rank)
        };
        self.jobs.take_back(lacks, &after);
    }

    /// The first, then others of its service in order.
    fn queue(&self, first: ServiceTurn, part: RequestPhase, most: usize) -> Vec<RequestNo> {
        let Some(queues) = self.jobs.queues.get(&first.service) else { return Vec::new() };
        let others = queues.of(part).iter().map(|(_, r)| *r).filter(|r| *r != first.request);
        std::iter::once(first.request).chain(others).take(most).collect()
    }

    fn take_prompts(&mut self, queue: &[RequestNo]) {
        for &request in queue {
            let Some(job) = self.jobs.get(request).copied() else { continue };
            let tokens = u64::from(job.prompt);
            let many = self.batch.prompt_tokens + tokens > u64::from(self.limits.tokens);
            if self.batch.prompts > 0 && (many || !self.jobs.fits(request)) {
                return;
            }
            self.batch.prompts += 1;
            self.batch.prompt_tokens += tokens;
            self.batch.prompt_squares += tokens * tokens;
            if let Some(queues) = self.jobs.queues.get_mut(&job.service) {
                queues.prompts.remove(&(job.rank, request));
            }
            self.starting.extend((!job.again).then_some((request, RequestPhase::Prompt)));
            self.jobs.start(request);
            self.running.push(request);
        }
    }

    fn take_answers(&mut self, queue: &[RequestNo]) {
        let mut least = u32::MAX;
        for &request in queue.iter().take(self.limits.tokens.max(1) as usize) {
            let Some(job) = self.jobs.get(request).filter(|_| self.jobs.fits(request)) else { continue };
            self.batch.answers += 1;
            self.batch.context += job.context;
            least = least.min(job.left);
            self.starting.extend((job.left == job.answer).then_some((request, RequestPhase::Answer)));
            self.jobs.start(request);
            self.running.push(request);
        }
        // Where nothing else waits, nothing is to be decided until an answer ends.
        self.batch.iterations = if self.jobs.present() == self.running.len() { least } else { 1 };
    }
}

impl<O: Order> Batching for Sharing<O> {
    fn add(&mut self, task: Task) -> bool {
        let prompt = if task.part == RequestPhase::Prompt { task.tokens } else { 0 };
        let standing = self.order.enters(task.service, prompt);
        self.jobs.add(task, standing, self.order.rank(task.service, &standing), self.clock);
        self.has_places()
    }

    fn queues_ahead(&self) -> bool {
        true
    }

    fn has_room(&self, memory: u64) -> bool {
        self.jobs.has_room(memory)
    }

    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool {
        self.jobs.reserve(request, memory, self.order.enters(ServiceNo(u16::MAX), 0))
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        self.jobs.release(request)
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        self.running.clear();
        self.batch = Batch { iterations: 1, ..Batch::default() };
        let Some((first, part, most)) = self.next() else { return self.batch };
        self.batch.service = first.service;
        self.order.serves(first.service);
        let queue = self.queue(first, part, most);
        match part {
            RequestPhase::Prompt => self.take_prompts(&queue),
            RequestPhase::Answer => self.take_answers(&queue),
        }
        self.batch
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn took(&mut self, time: Seconds) {
        self.elapsed += time;
        self.clock += time;
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        let (batch, elapsed) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.elapsed));
        for request in self.running.drain(..) {
            let Some(job) = self.jobs.get_mut(request) else { continue };
            let (before, part, again) = (job.rank, job.part, std::mem::take(&mut job.again));
            let (mut time, mut computed) = (elapsed, 0);
            if part == RequestPhase::Prompt {
                // Of prompts together each has its part of the time.
                time = elapsed * (f64::from(job.prompt) / batch.prompt_tokens.max(1) as f64);
                computed = u64::from(job.prompt);
            } else {
                job.left -= iterations.min(job.left);
                job.context += u64::from(iterations);
            }
            if !again {
                self.order.executed(job.service, &mut job.standing, time);
                job.rank = self.order.rank(job.service, &job.standing);
            }
            job.part = RequestPhase::Answer;
            let (rank, left) = (job.rank, job.left);
            ended.extend((left == 0 || (part == RequestPhase::Prompt && !again)).then_some((request, part)));
            self.jobs.pending_tokens -= computed;
            let Some(queues) = self.jobs.queues.get_mut(&batch.service) else { continue };
            queues.answers.remove(&(before, request));
            if left == 0 {
                queues.present.remove(&request);
            } else {
                queues.answers.insert((rank, request));
            }
        }
    }

    fn generated(&self, request: RequestNo) -> u32 {
        let job = self.jobs.get(request).filter(|j| j.part == RequestPhase::Answer || j.again);
        job.map_or(0, |j| j.answer - j.left + 1)
    }

    fn seen(&self) -> Seen {
        let (waiting, present) = (self.jobs.waiting(), self.jobs.present());
        let pending_tokens = u32::try_from(self.jobs.pending_tokens).unwrap_or(u32::MAX);
        Seen { waiting: waiting as u32, running: (present - waiting) as u32, pending_tokens, ..Seen::default() }
    }

    fn first_waiting(&self) -> Option<u64> {
        let first = self.first_of_all(RequestPhase::Prompt)?;
        self.jobs.get(first.request).map(|j| j.whole - j.held)
    }

    fn has_places(&self) -> bool {
        self.batch.answers > 0 && self.batch.iterations > 1
    }
}
