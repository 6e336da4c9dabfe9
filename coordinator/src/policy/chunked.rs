//! Answers in every iteration, and beside them prompts in chunks, in the order they came, up to a number of tokens
//! (Sarathi-Serve, Agrawal et al. 2024; Cronus §3). What nodes do: their batcher cuts chunks by the same function.

use super::batching::{Batch, Batching, Part, RequestNo, Seen, Task};
use std::collections::{BTreeMap, VecDeque};

/// The next prompt's chunk: as much of it as there is room for.
pub fn chunk(room: &mut u32, left: u32) -> u32 {
    let chunk = left.min(*room);
    *room -= chunk;
    chunk
}

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    /// Prompt tokens computed, and in all.
    done: u32,
    prompt: u32,
    left: u32,
    context: u64,
    memory: u64,
    /// KV it will have had when it ends (tokens).
    whole: u64,
}

/// The policy and its machine's state. KV of the whole request counts while its answer runs.
#[derive(Debug)]
pub struct Chunked {
    /// Tokens of one iteration; at least one goes to a prompt that waits.
    tokens: u32,
    places: usize,
    capacity: u64,
    used: u64,
    jobs: BTreeMap<RequestNo, Job>,
    prompts: VecDeque<RequestNo>,
    answers: VecDeque<RequestNo>,
    running: Vec<RequestNo>,
    context: u64,
    /// Chunks of the present iteration.
    chunks: Vec<(RequestNo, u32)>,
    starting: Vec<(RequestNo, Part)>,
}

impl Chunked {
    /// An idle machine.
    #[must_use]
    pub fn new(tokens: u32, places: usize, capacity: u64) -> Self {
        Self {
            tokens: tokens.max(1),
            places: places.max(1),
            capacity,
            used: 0,
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            answers: VecDeque::new(),
            running: Vec::new(),
            context: 0,
            chunks: Vec::new(),
            starting: Vec::new(),
        }
    }

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

    fn cut(&mut self, batch: &mut Batch) {
        let mut room = self.tokens.saturating_sub(batch.answers).max(1);
        for &request in &self.prompts {
            let Some(job) = self.jobs.get(&request) else { continue };
            let tokens = chunk(&mut room, job.prompt - job.done);
            if tokens == 0 {
                return;
            }
            if job.done == 0 {
                self.starting.push((request, Part::Prompt));
            }
            let (before, after) = (u64::from(job.done), u64::from(job.done + tokens));
            batch.prompts += 1;
            batch.prompt_tokens += u64::from(tokens);
            // Attention of a chunk reaches back over all before it.
            batch.prompt_squares += after * after - before * before;
            self.chunks.push((request, tokens));
        }
    }
}

impl Batching for Chunked {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        (job.memory, job.whole) = (job.memory + task.memory, job.whole + task.memory);
        match task.part {
            Part::Prompt => {
                (job.prompt, job.context) = (task.tokens, u64::from(task.tokens) + 1);
                self.prompts.push_back(task.request);
            }
            Part::Answer => {
                job.left = task.tokens;
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
        (job.context, job.memory, job.whole) = (memory, job.memory + memory, job.whole + memory);
        true
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        self.jobs.remove(&request).map_or(0, |j| j.memory)
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        self.chunks.clear();
        self.admit();
        let mut batch =
            Batch { answers: self.running.len() as u32, context: self.context, iterations: 1, ..Batch::default() };
        self.cut(&mut batch);
        batch
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, Part)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, Part)>) {
        for (request, tokens) in self.chunks.drain(..) {
            let Some(job) = self.jobs.get_mut(&request) else { continue };
            job.done += tokens;
            if job.done == job.prompt {
                self.prompts.pop_front();
                ended.push((request, Part::Prompt));
            }
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
        let left = |r: &RequestNo| self.jobs.get(r).map_or(0, |j| j.prompt - j.done);
        Seen {
            waiting: (self.prompts.len() + self.answers.len()) as u32,
            running: self.running.len() as u32,
            pending_tokens: self.prompts.iter().map(left).sum(),
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        None
    }

    fn has_places(&self) -> bool {
        false
    }
}
