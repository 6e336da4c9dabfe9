//! The most urgent prompt first, with others beside it where together is cheaper than one after the other; answers ride
//! along where that costs less than a step of their own.

use super::{
    batching::{Batch, Batching, Part, RequestNo, Seen, Task},
    targets::{Targets, answers, prompts, with_prompt},
};
use crate::simulator::cost::IterationCost;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tsnode_protocol::Seconds;

/// A time that can be put in order (ns).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Due(u64);

impl Due {
    fn new(at: Seconds) -> Self {
        Self((at.0.max(0.0) * 1e9) as u64)
    }
}

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    /// Its task that waits or runs.
    task: Option<Task>,
    /// Tokens it has before its next one.
    context: u64,
    /// KV it holds (tokens).
    memory: u64,
    /// When and at which of the machine's steps its answer began.
    began: (f64, u64),
}

/// The policy and its machine's state.
#[derive(Debug)]
pub struct Urgent {
    cost: Arc<dyn IterationCost>,
    targets: Targets,
    /// Most tasks at once.
    places: usize,
    /// KV that fits (tokens).
    capacity: u64,
    used: u64,
    now: Seconds,
    jobs: BTreeMap<RequestNo, Job>,
    prompts: BTreeSet<(Due, RequestNo)>,
    pending: u32,
    waiting: VecDeque<RequestNo>,
    /// Running answers by the step that ends them.
    answers: BTreeSet<(u64, RequestNo)>,
    /// Steps of answers so far.
    steps: u64,
    context: u64,
    /// Sums of when running answers began.
    since: (f64, u64),
    present: Vec<RequestNo>,
    running: Batch,
    starting: Vec<(RequestNo, Part)>,
}

impl Urgent {
    /// An idle machine with room for so many tokens of KV.
    #[must_use]
    pub fn new(cost: Arc<dyn IterationCost>, targets: Targets, places: usize, capacity: u64) -> Self {
        Self {
            cost,
            targets,
            places: places.max(1),
            capacity,
            used: 0,
            now: Seconds(0.0),
            jobs: BTreeMap::new(),
            prompts: BTreeSet::new(),
            pending: 0,
            waiting: VecDeque::new(),
            answers: BTreeSet::new(),
            steps: 0,
            context: 0,
            since: (0.0, 0),
            present: Vec::new(),
            running: Batch::default(),
            starting: Vec::new(),
        }
    }

    /// Gives places to answers that wait, in order.
    fn admit(&mut self) {
        while let Some(&request) = self.waiting.front() {
            let Some(job) = self.jobs.get_mut(&request) else { return };
            let Some(task) = job.task else { return };
            if self.answers.len() >= self.places || self.used + task.memory > self.capacity {
                return;
            }
            self.waiting.pop_front();
            self.used += task.memory;
            job.memory += task.memory;
            job.began = (self.now.0, self.steps);
            self.since = (self.since.0 + self.now.0, self.since.1 + self.steps);
            self.context += job.context;
            self.answers.insert((self.steps + u64::from(task.tokens), request));
            self.starting.push((request, Part::Answer));
        }
    }

    fn step(&self) -> Batch {
        let mut batch = answers(self.answers.len() as u32, self.context);
        batch.iterations = self.answers.first().map_or(1, |(end, _)| (end - self.steps) as u32);
        batch
    }

    /// Time that answers have before they fall behind their pace, on average.
    fn ahead(&self) -> Seconds {
        let n = self.answers.len() as f64;
        let steps = self.steps as f64 - self.since.1 as f64 / n;
        let passed = self.now.0 - self.since.0 / n;
        self.targets.pace(self.context / self.answers.len().max(1) as u64) * (steps + 1.0) - Seconds(passed)
    }

    /// Prompts in order of urgency, as long as together is cheaper.
    fn gather(&mut self) -> Batch {
        let mut batch = prompts([]);
        let places = self.places - self.answers.len().min(self.places - 1);
        let mut time = Seconds(0.0);
        let mut until = Due(u64::MAX);
        for &(due, request) in &self.prompts {
            let Some(Task { tokens, memory, .. }) = self.jobs.get(&request).and_then(|j| j.task) else { continue };
            if batch.tasks() >= places || self.used + memory > self.capacity {
                break;
            }
            let more = with_prompt(batch, tokens);
            let (together, apart) = (self.cost.iteration(&more), time + self.cost.iteration(&prompts([tokens])));
            if batch.prompts > 0 && (together >= apart || Due::new(self.now + together) > until.min(due)) {
                continue;
            }
            until = until.min(due);
            (batch, time) = (more, together);
            self.used += memory;
            self.present.push(request);
            self.starting.push((request, Part::Prompt));
        }
        for request in &self.present {
            let Some(job) = self.jobs.get_mut(request) else { continue };
            let Some(task) = job.task else { continue };
            job.memory += task.memory;
        }
        let (jobs, pending, targets) = (&self.jobs, &mut self.pending, &self.starting);
        let _ = targets;
        let present = &self.present;
        self.prompts.retain(|(_, r)| {
            let stays = !present.contains(r);
            if !stays {
                *pending -= jobs.get(r).and_then(|j| j.task).map_or(0, |t| t.tokens);
            }
            stays
        });
        batch
    }
}

impl Batching for Urgent {
    fn at(&mut self, now: Seconds) {
        self.now = now;
    }

    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        job.task = Some(task);
        match task.part {
            Part::Prompt => {
                job.context = u64::from(task.tokens) + 1;
                self.pending += task.tokens;
                self.prompts.insert((Due::new(self.now + self.targets.first(task.tokens)), task.request));
            }
            Part::Answer => self.waiting.push_back(task.request),
        }
        self.running.prompts == 0
    }

    fn queues_ahead(&self) -> bool {
        false
    }

    fn has_room(&self, memory: u64) -> bool {
        self.used + memory <= self.capacity
    }

    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool {
        if !self.has_room(memory) {
            return false;
        }
        self.used += memory;
        let job = self.jobs.entry(request).or_default();
        (job.context, job.memory) = (memory, job.memory + memory);
        true
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        let memory = self.jobs.remove(&request).map_or(0, |j| j.memory);
        self.used -= memory;
        memory
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        self.present.clear();
        self.admit();
        let alone = self.step();
        self.running = if self.prompts.is_empty() { Batch::default() } else { self.gather() };
        if self.running.prompts > 0 && alone.answers > 0 {
            let mixed = Batch { answers: alone.answers, context: alone.context, ..self.running };
            if self.cost.iteration(&mixed) - self.cost.iteration(&self.running) <= self.cost.iteration(&alone) {
                self.running = mixed;
            }
        } else if self.running.prompts == 0 && alone.answers > 0 {
            self.running = alone;
        }
        self.running
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, Part)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, Part)>) {
        ended.extend(self.present.drain(..).map(|r| (r, Part::Prompt)));
        if self.running.answers > 0 {
            self.steps += u64::from(iterations);
            self.context += u64::from(iterations) * self.answers.len() as u64;
        }
        self.running = Batch::default();
        while let Some(&(_, request)) = self.answers.first().filter(|(end, _)| *end <= self.steps) {
            self.answers.pop_first();
            ended.push((request, Part::Answer));
            let Some(Job { task: Some(task), context, began, .. }) = self.jobs.get(&request) else { continue };
            self.context -= context + u64::from(task.tokens);
            self.since = (self.since.0 - began.0, self.since.1 - began.1);
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            waiting: (self.prompts.len() + self.waiting.len()) as u32,
            running: (self.answers.len() + self.present.len()) as u32,
            pending_tokens: self.pending + self.running.prompt_tokens as u32,
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        let first = self.prompts.first().map(|(_, r)| r).or(self.waiting.front())?;
        self.jobs.get(first).and_then(|j| j.task).map(|t| t.memory)
    }

    fn has_places(&self) -> bool {
        self.running.prompts == 0
    }
}
