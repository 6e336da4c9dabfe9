//! The requests of a machine that services share: where they stand, in which order they wait, and what memory they hold.

use super::order::OrderRank;
use crate::policy::pages::Pages;
use std::collections::{BTreeMap, BTreeSet};
use tsnode_coordinator::policy::batching::{RequestNo, RequestPhase, ServiceNo, Task};
use tsnode_protocol::Seconds;

/// A request on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceJob<S> {
    pub service: ServiceNo,
    pub standing: S,
    pub rank: OrderRank,
    /// The machine's busy time when it came.
    pub came: Seconds,
    /// What of it is computed now or next.
    pub part: RequestPhase,
    pub prompt: u32,
    /// Tokens of the answer, and those still to come.
    pub answer: u32,
    pub left: u32,
    /// Tokens it has before its next one.
    pub context: u64,
    /// KV it will have had when it ends, and KV set aside (tokens).
    pub whole: u64,
    pub held: u64,
    pages: u64,
    /// Whether its KV is set aside as a whole.
    pub started: bool,
    /// What is computed is what it had before it lost its memory.
    pub again: bool,
}

impl<S> ServiceJob<S> {
    fn new(service: ServiceNo, standing: S, rank: OrderRank, came: Seconds, part: RequestPhase) -> Self {
        let (prompt, answer, left, context, whole, held, pages) = (0, 0, 0, 0, 0, 0, 0);
        let (started, again) = (false, false);
        Self { service, standing, rank, came, part, prompt, answer, left, context, whole, held, pages, started, again }
    }
}

/// A service's requests that are not held up elsewhere.
#[derive(Debug, Default)]
pub(super) struct ServiceQueues {
    /// Prompts that have not started.
    pub prompts: BTreeSet<(OrderRank, RequestNo)>,
    /// Answers whose turn it may be, those that run included.
    pub answers: BTreeSet<(OrderRank, RequestNo)>,
    /// All that have something to compute, what runs included.
    pub present: BTreeSet<RequestNo>,
}

impl ServiceQueues {
    pub fn of(&self, part: RequestPhase) -> &BTreeSet<(OrderRank, RequestNo)> {
        match part {
            RequestPhase::Prompt => &self.prompts,
            RequestPhase::Answer => &self.answers,
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Jobs<S> {
    all: BTreeMap<RequestNo, ServiceJob<S>>,
    pub queues: BTreeMap<ServiceNo, ServiceQueues>,
    pub pages: Pages,
    /// Requests whose KV is set aside as a whole.
    started: usize,
    pub pending_tokens: u64,
}

impl<S: Copy> Jobs<S> {
    pub fn new(pages: Pages) -> Self {
        Self { all: BTreeMap::new(), queues: BTreeMap::new(), pages, started: 0, pending_tokens: 0 }
    }

    pub fn get(&self, request: RequestNo) -> Option<&ServiceJob<S>> {
        self.all.get(&request)
    }

    pub fn get_mut(&mut self, request: RequestNo) -> Option<&mut ServiceJob<S>> {
        self.all.get_mut(&request)
    }

    /// A task, and how its request stands where it is new here.
    pub fn add(&mut self, task: Task, standing: S, rank: OrderRank, came: Seconds) {
        let request = task.request;
        let new = ServiceJob::new(task.service, standing, rank, came, task.part);
        let job = self.all.entry(request).or_insert(new);
        if job.prompt + job.answer == 0 {
            // Where KV came first, what is known of it stays.
            *job = ServiceJob { context: job.context, whole: job.held, held: job.held, pages: job.pages, ..new };
        }
        let queues = self.queues.entry(job.service).or_default();
        job.whole += task.memory;
        match task.part {
            RequestPhase::Prompt => {
                (job.prompt, job.context) = (task.tokens, u64::from(task.tokens) + 1);
                self.pending_tokens += u64::from(task.tokens);
                queues.prompts.insert((job.rank, request));
            }
            RequestPhase::Answer => {
                (job.answer, job.left) = (task.tokens, task.tokens);
                if job.part == RequestPhase::Answer {
                    queues.answers.insert((job.rank, request));
                }
            }
        }
        queues.present.insert(request);
    }

    /// Sets memory aside for KV that comes from elsewhere, whose service comes with its task: until then it counts as the
    /// largest one's. `false` if there is none.
    pub fn reserve(&mut self, request: RequestNo, memory: u64, standing: S) -> bool {
        let service = ServiceNo(u16::MAX);
        let pages = self.pages.of(service, memory);
        if !self.pages.has(pages) {
            return false;
        }
        self.pages.take(pages);
        let new = ServiceJob::new(service, standing, OrderRank::default(), Seconds(0.0), RequestPhase::Answer);
        self.all.insert(request, ServiceJob { context: memory, held: memory, pages, ..new });
        true
    }

    /// A request is gone; the tokens of KV that it held.
    pub fn release(&mut self, request: RequestNo) -> u64 {
        let Some(job) = self.all.remove(&request) else { return 0 };
        if let Some(queues) = self.queues.get_mut(&job.service) {
            queues.present.remove(&request);
            queues.prompts.remove(&(job.rank, request));
            queues.answers.remove(&(job.rank, request));
        }
        self.pages.give(job.pages);
        self.started -= usize::from(job.started);
        job.held
    }

    /// Pages it needs beside those it has.
    pub fn lacks(&self, job: &ServiceJob<S>) -> u64 {
        self.pages.of(job.service, job.whole).saturating_sub(job.pages)
    }

    /// Whether all of it has memory; a request alone runs even if it does not fit.
    pub fn fits(&self, request: RequestNo) -> bool {
        let Some(job) = self.all.get(&request) else { return false };
        self.pages.has(self.lacks(job)) || self.started == usize::from(job.started)
    }

    /// Whether a task of unknown service may fit.
    pub fn has_room(&self, memory: u64) -> bool {
        let least = self.queues.keys().map(|s| self.pages.of(*s, memory)).min();
        self.started == 0 || self.pages.has(least.unwrap_or(0))
    }

    /// Sets memory aside for the whole of it.
    pub fn start(&mut self, request: RequestNo) {
        let Some(job) = self.all.get_mut(&request) else { return };
        let pages = self.pages.of(job.service, job.whole).saturating_sub(job.pages);
        self.pages.take(pages);
        (job.pages, job.held) = (job.pages + pages, job.whole);
        self.started += usize::from(!job.started);
        job.started = true;
    }

    /// Takes memory from the last of the answers that are `after` until so much is free; from nobody if that is not enough.
    pub fn take_back(&mut self, pages: u64, after: &dyn Fn(&ServiceJob<S>) -> bool) {
        let answers = self.queues.values().flat_map(|l| &l.answers);
        let jobs = answers.filter_map(|(rank, request)| Some((*rank, *request, self.all.get(request)?)));
        let mut last: Vec<(OrderRank, RequestNo, u64)> =
            jobs.filter(|(_, _, job)| job.started && after(job)).map(|(rank, r, job)| (rank, r, job.pages)).collect();
        last.sort_unstable();
        let (mut free, mut losing) = (self.pages.free(), Vec::new());
        while free < pages {
            let Some((_, request, freed)) = last.pop() else { return };
            free += freed;
            losing.push(request);
        }
        losing.into_iter().for_each(|request| self.evict(request));
    }

    /// An answer loses its memory: all it had is a prompt again.
    fn evict(&mut self, request: RequestNo) {
        let Some(job) = self.all.get_mut(&request) else { return };
        if let Some(queues) = self.queues.get_mut(&job.service) {
            queues.answers.remove(&(job.rank, request));
            queues.prompts.insert((job.rank, request));
        }
        self.pages.give(job.pages);
        self.started -= 1;
        (job.part, job.prompt, job.again) =
            (RequestPhase::Prompt, u32::try_from(job.context).unwrap_or(u32::MAX), true);
        (job.pages, job.held, job.started) = (0, 0, false);
        self.pending_tokens += u64::from(job.prompt);
    }

    /// Requests that have something to compute here.
    pub fn present(&self) -> usize {
        self.queues.values().map(|l| l.present.len()).sum()
    }

    /// Prompts that have not started.
    pub fn waiting(&self) -> usize {
        self.queues.values().map(|l| l.prompts.len()).sum()
    }
}
