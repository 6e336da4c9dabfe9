//! Prompts first, one after the other as they came; then a step of all answers that have a place (continuous batching).

use super::batching::{Batch, Batching, Part, RequestNo, Seen, Task};
use std::collections::{BTreeMap, VecDeque};

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    prompt: Option<Task>,
    left: u32,
    context: u64,
    /// KV it will have had when it ends (tokens).
    whole: u64,
}

/// The policy and its machine's state. KV counts while an answer runs: prompts alone leave as soon as they are done.
#[derive(Debug)]
pub struct Turns {
    /// Most answers at once.
    places: usize,
    /// KV that fits (tokens); one answer alone runs even if it does not.
    capacity: u64,
    jobs: BTreeMap<RequestNo, Job>,
    prompts: VecDeque<RequestNo>,
    answers: VecDeque<RequestNo>,
    running: Vec<RequestNo>,
    context: u64,
    used: u64,
    batch: Batch,
    present: Option<RequestNo>,
    starting: Vec<(RequestNo, Part)>,
}

impl Turns {
    /// An idle machine.
    #[must_use]
    pub fn new(places: usize, capacity: u64) -> Self {
        Self {
            places: places.max(1),
            capacity,
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            answers: VecDeque::new(),
            running: Vec::new(),
            context: 0,
            used: 0,
            batch: Batch::default(),
            present: None,
            starting: Vec::new(),
        }
    }

    /// Gives places to answers that wait, in order.
    fn admit(&mut self) {
        while let Some(&request) = self.answers.front() {
            let Some(job) = self.jobs.get(&request) else { return };
            let full = self.running.len() >= self.places || self.used + job.whole > self.capacity;
            if full && !self.running.is_empty() {
                return;
            }
            self.used += job.whole;
            self.context += job.context;
            self.answers.pop_front();
            self.running.push(request);
            self.starting.push((request, Part::Answer));
        }
    }
}

impl Batching for Turns {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        match task.part {
            Part::Prompt => {
                (job.prompt, job.context) = (Some(task), u64::from(task.tokens) + 1);
                job.whole += task.memory;
                self.prompts.push_back(task.request);
            }
            Part::Answer => {
                job.left = task.tokens;
                job.whole += task.memory;
                self.answers.push_back(task.request);
            }
        }
        false
    }

    fn queues_ahead(&self) -> bool {
        false
    }

    fn has_room(&self, _: u64) -> bool {
        true
    }

    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool {
        let job = self.jobs.entry(request).or_default();
        (job.context, job.whole) = (memory, job.whole + memory);
        true
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        self.jobs.remove(&request).map_or(0, |j| j.whole)
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        self.batch = Batch::default();
        if let Some(request) = self.prompts.pop_front() {
            let tokens = self.jobs.get(&request).and_then(|j| j.prompt).map_or(0, |t| u64::from(t.tokens));
            self.present = Some(request);
            self.starting.push((request, Part::Prompt));
            self.batch = Batch { prompts: 1, prompt_tokens: tokens, prompt_squares: tokens * tokens, ..self.batch };
        } else {
            self.admit();
            (self.batch.answers, self.batch.context) = (self.running.len() as u32, self.context);
        }
        self.batch.iterations = 1;
        self.batch
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, Part)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, Part)>) {
        self.batch = Batch::default();
        if let Some(request) = self.present.take() {
            ended.push((request, Part::Prompt));
            if let Some(job) = self.jobs.get_mut(&request) {
                job.prompt = None;
            }
            return;
        }
        self.context += u64::from(iterations) * self.running.len() as u64;
        let (jobs, context, used) = (&mut self.jobs, &mut self.context, &mut self.used);
        self.running.retain(|&request| {
            let Some(job) = jobs.get_mut(&request) else { return false };
            job.left -= iterations.min(job.left);
            job.context += u64::from(iterations);
            if job.left == 0 {
                *context -= job.context;
                *used -= job.whole;
                ended.push((request, Part::Answer));
            }
            job.left > 0
        });
    }

    fn seen(&self) -> Seen {
        let tokens = |r: &RequestNo| self.jobs.get(r).and_then(|j| j.prompt).map_or(0, |t| t.tokens);
        Seen {
            waiting: (self.prompts.len() + self.answers.len()) as u32,
            running: (self.running.len() + usize::from(self.present.is_some())) as u32,
            pending_tokens: self.present.iter().chain(&self.prompts).map(tokens).sum(),
            ..Seen::default()
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        None
    }

    fn has_places(&self) -> bool {
        false
    }
}
