//! Several services on one machine: a batch holds prompts or answers of one service, and an order says whose turn it is
//! (SeaLLM §4.2 and Algorithm 2). Orders: [`super::doubling`], [`super::round_robin`], [`super::feedback`].
//!
//! The first request in the order brings its service's batch with it, filled up in the same order; who has waited too long
//! is first whatever the order says. It is looked at anew before each iteration. An answer that others overtake keeps its
//! KV: memory for all of a request is set aside when its prompt starts, so that what has started can always end. A prompt
//! that lacks memory is not overtaken by other prompts, and so waits for the ends of those that have started and no longer.

use super::{
    batching::{Batch, Batching, Limits, Part, RequestNo, Seen, ServiceNo, Task},
    pages::Pages,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::Seconds;

/// A place in an order: the smallest is first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rank(pub f64);

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

/// Which request comes first.
pub trait Order: std::fmt::Debug + Send {
    /// What it keeps of a request.
    type Standing: Copy + std::fmt::Debug + Send;

    /// How a request stands that comes with so many prompt tokens to compute.
    fn enters(&self, service: ServiceNo, prompt: u32) -> Self::Standing;

    /// Its place; of equals, the earlier request comes first.
    fn rank(&self, service: ServiceNo, standing: &Self::Standing) -> Rank;

    /// It has been executed for so long.
    fn executed(&self, service: ServiceNo, standing: &mut Self::Standing, time: Seconds);

    /// A service's place, which goes before its requests'.
    fn turn(&self, service: ServiceNo) -> u64 {
        let _ = service;
        0
    }

    /// A batch of this service runs next.
    fn serves(&mut self, service: ServiceNo) {
        let _ = service;
    }

    /// Busy time of the machine after which a request of this service has waited too long.
    fn patience(&self, service: ServiceNo) -> Seconds {
        let _ = service;
        Seconds(f64::INFINITY)
    }
}

/// When a prompt starts whose service's answers have the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prompts {
    /// At once where the batch has a place, so that its answer joins theirs.
    #[default]
    Join,
    /// When it is first itself, as Algorithm 2 is printed: its answer comes when theirs have ended.
    Wait,
}

/// A request on this machine.
#[derive(Clone, Copy, Debug)]
struct Job<S> {
    service: ServiceNo,
    standing: S,
    rank: Rank,
    /// The machine's busy time when it came.
    came: Seconds,
    /// What of it is computed now or next.
    part: Part,
    prompt: u32,
    answer: u32,
    left: u32,
    context: u64,
    /// KV it will have had when it ends, and KV set aside (tokens).
    whole: u64,
    held: u64,
    pages: u64,
    started: bool,
}

/// A service's requests.
#[derive(Debug, Default)]
struct Lanes {
    prompts: BTreeSet<(Rank, RequestNo)>,
    answers: BTreeSet<(Rank, RequestNo)>,
    /// All that have something to compute, what runs included.
    present: BTreeSet<RequestNo>,
}

impl Lanes {
    fn of(&mut self, part: Part) -> &mut BTreeSet<(Rank, RequestNo)> {
        match part {
            Part::Prompt => &mut self.prompts,
            Part::Answer => &mut self.answers,
        }
    }
}

/// Who is first of those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Starved,
    Ranked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    urgency: Urgency,
    turn: u64,
    rank: Rank,
    request: RequestNo,
    service: ServiceNo,
}

/// The policy and its machine's state.
#[derive(Debug)]
pub struct Sharing<O: Order> {
    order: O,
    limits: Limits,
    prompts: Prompts,
    pages: Pages,
    jobs: BTreeMap<RequestNo, Job<O::Standing>>,
    lanes: BTreeMap<ServiceNo, Lanes>,
    /// Requests that hold memory of their own accord, not for KV that is yet to come.
    started: usize,
    pending_tokens: u64,
    /// Busy time, and what of it the last batch took.
    clock: Seconds,
    elapsed: Seconds,
    batch: Batch,
    running: Vec<RequestNo>,
    starting: Vec<(RequestNo, Part)>,
}

impl<O: Order> Sharing<O> {
    /// An idle machine.
    #[must_use]
    pub fn ordered(order: O, limits: Limits, pages: Pages) -> Self {
        Self {
            order,
            limits: Limits { tasks: limits.tasks.max(1), ..limits },
            prompts: Prompts::default(),
            pages,
            jobs: BTreeMap::new(),
            lanes: BTreeMap::new(),
            started: 0,
            pending_tokens: 0,
            clock: Seconds(0.0),
            elapsed: Seconds(0.0),
            batch: Batch::default(),
            running: Vec::new(),
            starting: Vec::new(),
        }
    }

    /// The same with another rule for prompts.
    #[must_use]
    pub fn with(self, prompts: Prompts) -> Self {
        Self { prompts, ..self }
    }

    /// Its memory.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Pages that it needs beside those it has.
    fn lacks(&self, job: &Job<O::Standing>) -> u64 {
        self.pages.of(job.service, job.whole).saturating_sub(job.pages)
    }

    /// Whether all of it has memory; a request alone runs even if it does not fit.
    fn fits(&self, request: RequestNo) -> bool {
        let Some(job) = self.jobs.get(&request) else { return false };
        self.pages.has(self.lacks(job)) || self.started == usize::from(job.started)
    }

    /// The first of a service's prompts or answers.
    fn first(&self, service: ServiceNo, part: Part) -> Option<Turn> {
        let lanes = self.lanes.get(&service)?;
        let oldest = lanes.present.first().and_then(|r| Some((*r, self.jobs.get(r)?)));
        let is_starved = |job: &Job<O::Standing>| self.clock - job.came > self.order.patience(service);
        let starved = oldest.filter(|(_, job)| job.part == part && is_starved(job));
        if let Some((request, _)) = starved.filter(|(r, _)| part == Part::Prompt || self.fits(*r)) {
            return Some(Turn { urgency: Urgency::Starved, turn: 0, rank: Rank::default(), request, service });
        }
        let (rank, request) = match part {
            Part::Prompt => lanes.prompts.first().copied()?,
            Part::Answer => lanes.answers.iter().find(|(_, r)| self.fits(*r)).copied()?,
        };
        Some(Turn { urgency: Urgency::Ranked, turn: self.order.turn(service), rank, request, service })
    }

    /// What runs next: the first task of all, and how many may run with it.
    fn next(&self) -> Option<(Turn, Part, usize)> {
        let best = |part| self.lanes.keys().filter_map(|s| self.first(*s, part)).min();
        let (prompt, answer) = (best(Part::Prompt), best(Part::Answer));
        let Some(prompt) = prompt.filter(|p| self.fits(p.request)) else {
            return answer.map(|a| (a, Part::Answer, self.limits.tasks));
        };
        let Some(answer) = answer.filter(|a| *a < prompt) else {
            return Some((prompt, Part::Prompt, self.limits.tasks));
        };
        let answers = self.lanes.get(&answer.service).map_or(0, |l| l.answers.len());
        let places = self.limits.tasks.saturating_sub(answers);
        let joins = self.first(answer.service, Part::Prompt).filter(|p| self.fits(p.request));
        match joins.filter(|_| self.prompts == Prompts::Join && places > 0) {
            Some(joins) => Some((joins, Part::Prompt, places)),
            None => Some((answer, Part::Answer, self.limits.tasks)),
        }
    }

    /// The first, then others of its service in order.
    fn queue(&self, first: Turn, part: Part, most: usize) -> Vec<RequestNo> {
        let Some(lanes) = self.lanes.get(&first.service) else { return Vec::new() };
        let lane = if part == Part::Prompt { &lanes.prompts } else { &lanes.answers };
        let others = lane.iter().map(|(_, r)| *r).filter(|r| *r != first.request);
        std::iter::once(first.request).chain(others).take(most).collect()
    }

    fn take_prompts(&mut self, queue: &[RequestNo]) {
        for &request in queue {
            let Some(job) = self.jobs.get(&request) else { continue };
            let (tokens, place) = (u64::from(job.prompt), (job.rank, request));
            let many = self.batch.prompt_tokens + tokens > u64::from(self.limits.tokens);
            if self.batch.prompts > 0 && (many || !self.fits(request)) {
                return;
            }
            self.batch.prompts += 1;
            self.batch.prompt_tokens += tokens;
            self.batch.prompt_squares += tokens * tokens;
            if let Some(lanes) = self.lanes.get_mut(&self.batch.service) {
                lanes.prompts.remove(&place);
            }
            self.start(request);
            self.starting.push((request, Part::Prompt));
        }
    }

    fn take_answers(&mut self, queue: &[RequestNo]) {
        let mut least = u32::MAX;
        for &request in queue {
            let Some(job) = self.jobs.get(&request).filter(|_| self.fits(request)) else { continue };
            self.batch.answers += 1;
            self.batch.context += job.context;
            least = least.min(job.left);
            if job.left == job.answer {
                self.starting.push((request, Part::Answer));
            }
            self.start(request);
        }
        // Where nothing else waits, nothing is to be decided until an answer ends.
        let present: usize = self.lanes.values().map(|l| l.present.len()).sum();
        self.batch.iterations = if present == self.running.len() { least } else { 1 };
    }

    fn start(&mut self, request: RequestNo) {
        self.running.push(request);
        let Some(job) = self.jobs.get_mut(&request) else { return };
        let pages = self.pages.of(job.service, job.whole).saturating_sub(job.pages);
        self.pages.take(pages);
        (job.pages, job.held) = (job.pages + pages, job.whole);
        self.started += usize::from(!job.started);
        job.started = true;
    }
}

impl<O: Order> Batching for Sharing<O> {
    fn add(&mut self, task: Task) -> bool {
        let (request, service) = (task.request, task.service);
        let prompt = if task.part == Part::Prompt { task.tokens } else { 0 };
        let standing = self.order.enters(service, prompt);
        let rank = self.order.rank(service, &standing);
        let new = Job {
            service,
            standing,
            rank,
            came: self.clock,
            part: task.part,
            prompt,
            answer: 0,
            left: 0,
            context: 0,
            whole: 0,
            held: 0,
            pages: 0,
            started: false,
        };
        let job = self.jobs.entry(request).or_insert(Job { prompt: 0, ..new });
        if job.prompt + job.answer == 0 {
            // KV may have been here before the task: what is known of it stays.
            *job = Job { context: job.context, whole: job.held, held: job.held, pages: job.pages, ..new };
        }
        let lanes = self.lanes.entry(job.service).or_default();
        job.whole += task.memory;
        match task.part {
            Part::Prompt => {
                job.context = u64::from(task.tokens) + 1;
                self.pending_tokens += u64::from(task.tokens);
                lanes.prompts.insert((job.rank, request));
            }
            Part::Answer => {
                (job.answer, job.left) = (task.tokens, task.tokens);
                if job.part == Part::Answer {
                    lanes.answers.insert((job.rank, request));
                }
            }
        }
        lanes.present.insert(request);
        self.has_places()
    }

    fn queues_ahead(&self) -> bool {
        true
    }

    fn has_room(&self, memory: u64) -> bool {
        let services = self.lanes.keys().map(|s| self.pages.of(*s, memory)).min();
        self.started == 0 || self.pages.has(services.unwrap_or(0))
    }

    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool {
        // Whose it is comes with its task: until then it counts as the largest service's.
        let service = ServiceNo(u16::MAX);
        let pages = self.pages.of(service, memory);
        if !self.pages.has(pages) {
            return false;
        }
        self.pages.take(pages);
        let standing = self.order.enters(service, 0);
        let job = Job {
            service,
            standing,
            rank: Rank::default(),
            came: self.clock,
            part: Part::Answer,
            prompt: 0,
            answer: 0,
            left: 0,
            context: memory,
            whole: 0,
            held: memory,
            pages,
            started: false,
        };
        self.jobs.insert(request, job);
        true
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        let Some(job) = self.jobs.remove(&request) else { return 0 };
        if let Some(lanes) = self.lanes.get_mut(&job.service) {
            lanes.present.remove(&request);
            lanes.of(job.part).remove(&(job.rank, request));
        }
        self.pages.give(job.pages);
        self.started -= usize::from(job.started);
        job.held
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
            Part::Prompt => self.take_prompts(&queue),
            Part::Answer => self.take_answers(&queue),
        }
        self.batch
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, Part)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn took(&mut self, time: Seconds) {
        self.elapsed += time;
        self.clock += time;
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, Part)>) {
        let (batch, elapsed) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.elapsed));
        let Some(lanes) = self.lanes.get_mut(&batch.service) else { return };
        for request in self.running.drain(..) {
            let Some(job) = self.jobs.get_mut(&request) else { continue };
            let mut time = elapsed;
            if job.part == Part::Prompt {
                // Of prompts together each has its part of the time.
                time = elapsed * (f64::from(job.prompt) / batch.prompt_tokens.max(1) as f64);
                self.pending_tokens -= u64::from(job.prompt);
            } else {
                lanes.answers.remove(&(job.rank, request));
                job.left -= iterations.min(job.left);
                job.context += u64::from(iterations);
            }
            ended.extend((job.part == Part::Prompt || job.left == 0).then_some((request, job.part)));
            job.part = Part::Answer;
            if job.left == 0 {
                lanes.present.remove(&request);
                continue;
            }
            self.order.executed(job.service, &mut job.standing, time);
            job.rank = self.order.rank(job.service, &job.standing);
            lanes.answers.insert((job.rank, request));
        }
    }

    fn generated(&self, request: RequestNo) -> u32 {
        let job = self.jobs.get(&request).filter(|j| j.part == Part::Answer);
        job.map_or(0, |j| j.answer - j.left + 1)
    }

    fn seen(&self) -> Seen {
        let waiting: usize = self.lanes.values().map(|l| l.prompts.len()).sum();
        let present: usize = self.lanes.values().map(|l| l.present.len()).sum();
        let pending_tokens = u32::try_from(self.pending_tokens).unwrap_or(u32::MAX);
        Seen { waiting: waiting as u32, running: (present - waiting) as u32, pending_tokens }
    }

    fn first_waiting(&self) -> Option<u64> {
        let first = self.lanes.keys().filter_map(|s| self.first(*s, Part::Prompt)).min()?;
        self.jobs.get(&first.request).map(|j| j.whole - j.held)
    }

    fn has_places(&self) -> bool {
        self.batch.answers > 0 && self.batch.iterations > 1
    }
}
