//! Answers in every iteration, and beside them prompts in chunks, in the order they came, up to a number of tokens
//! (Sarathi-Serve, Agrawal et al. 2024; Cronus §3). What nodes do: their batcher cuts chunks by the same function.
//!
//! A request has a place and memory from the first chunk of its prompt to its end, or from when its KV begins to come from
//! elsewhere; with it may come the prompt's rest (Cronus §4.2). One whose answer is generated elsewhere keeps its memory,
//! but not its place, until its KV has gone.

use super::batching::{Batch, Batching, Part, RequestNo, Seen, Task};
use std::collections::{BTreeMap, VecDeque};

/// The next prompt's chunk: as much of it as there is room for.
pub fn chunk(room: &mut u32, left: u32) -> u32 {
    let chunk = left.min(*room);
    *room -= chunk;
    chunk
}

/// What the tokens of an iteration are counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// Prompts, and one for each answer.
    All,
    /// Prompts: iterations grow with the answers, and prompts lose nothing to them.
    Prompts,
}

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    /// Prompt tokens computed elsewhere, computed, and in all.
    before: u32,
    done: u32,
    prompt: u32,
    left: u32,
    context: u64,
    /// KV of what has come of it (tokens), and of that, what is set aside.
    memory: u64,
    held: u64,
}

/// The policy and its machine's state.
#[derive(Debug)]
pub struct Chunked {
    /// Tokens of one iteration; at least one goes to a prompt that waits.
    tokens: u32,
    counted: Counted,
    places: usize,
    capacity: u64,
    used: u64,
    /// Requests that have places while their KV comes.
    coming: usize,
    jobs: BTreeMap<RequestNo, Job>,
    /// Prompts without a place, prompts with one, and answers that lack memory for what is to come.
    prompts: VecDeque<RequestNo>,
    begun: VecDeque<RequestNo>,
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
            counted: Counted::All,
            places: places.max(1),
            capacity,
            used: 0,
            coming: 0,
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            begun: VecDeque::new(),
            answers: VecDeque::new(),
            running: Vec::new(),
            context: 0,
            chunks: Vec::new(),
            starting: Vec::new(),
        }
    }

    /// The same, with so many tokens for prompts alone.
    #[must_use]
    pub fn for_prompts(mut self) -> Self {
        self.counted = Counted::Prompts;
        self
    }

    /// Whether a request may have a place. None gets one while an answer lacks memory, and one alone always does.
    fn fits(&self, memory: u64) -> bool {
        let taken = self.begun.len() + self.answers.len() + self.running.len() + self.coming;
        let room = taken < self.places && self.used + memory <= self.capacity;
        (room && self.answers.is_empty()) || taken == 0
    }

    /// Sets aside what a request has not got yet.
    fn hold(&mut self, request: RequestNo) {
        let Some(job) = self.jobs.get_mut(&request) else { return };
        self.used += job.memory - job.held;
        job.held = job.memory;
    }

    fn admit(&mut self) {
        while let Some(&request) = self.answers.front() {
            let Some(job) = self.jobs.get(&request).copied() else { return };
            if self.used + (job.memory - job.held) > self.capacity && !self.running.is_empty() {
                return;
            }
            self.hold(request);
            self.context += job.context;
            self.answers.pop_front();
            self.running.push(request);
            self.starting.push((request, Part::Answer));
        }
    }

    /// Chunks of prompts that have places, and of others as far as there are places.
    fn cut(&mut self, batch: &mut Batch) {
        let mut room = match self.counted {
            Counted::All => self.tokens.saturating_sub(batch.answers).max(1),
            Counted::Prompts => self.tokens,
        };
        for place in 0.. {
            if room == 0 {
                return;
            }
            if place == self.begun.len() {
                let next = self.prompts.front().and_then(|r| Some((*r, self.jobs.get(r)?.memory)));
                let Some((request, memory)) = next else { return };
                if !self.fits(memory) {
                    return;
                }
                self.prompts.pop_front();
                self.hold(request);
                self.begun.push_back(request);
            }
            self.cut_one(self.begun[place], &mut room, batch);
        }
    }

    fn cut_one(&mut self, request: RequestNo, room: &mut u32, batch: &mut Batch) {
        let Some(job) = self.jobs.get(&request) else { return };
        let tokens = chunk(room, job.prompt - job.done);
        if job.done == job.before {
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

impl Batching for Chunked {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        job.memory += task.memory;
        // What has memory before its prompt is known came from elsewhere.
        self.coming -= usize::from(job.held > 0 && job.prompt == 0);
        match task.part {
            Part::Prompt => {
                (job.before, job.done, job.prompt) = (task.before, task.before, task.before + task.tokens);
                job.context = u64::from(job.prompt) + 1;
                if job.held > 0 { &mut self.begun } else { &mut self.prompts }.push_back(task.request);
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
        if !self.fits(memory) {
            return false;
        }
        let job = self.jobs.entry(request).or_default();
        (job.context, job.memory) = (memory, job.memory + memory);
        self.coming += 1;
        self.hold(request);
        true
    }

    fn asks_for_kv(&self) -> bool {
        true
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        let Some(job) = self.jobs.remove(&request) else { return 0 };
        self.used -= job.held;
        job.memory
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
                let place = self.begun.iter().position(|r| *r == request);
                place.and_then(|p| self.begun.remove(p));
                ended.push((request, Part::Prompt));
            }
        }
        self.context += u64::from(iterations) * self.running.len() as u64;
        let (jobs, context) = (&mut self.jobs, &mut self.context);
        self.running.retain(|&request| {
            let Some(job) = jobs.get_mut(&request) else { return false };
            job.left -= iterations.min(job.left);
            job.context += u64::from(iterations);
            if job.left == 0 {
                *context -= job.context;
                ended.push((request, Part::Answer));
            }
            job.left > 0
        });
    }

    fn seen(&self) -> Seen {
        let left = |r: &RequestNo| self.jobs.get(r).map_or(0, |j| j.prompt - j.done);
        Seen {
            waiting: (self.prompts.len() + self.answers.len()) as u32,
            running: (self.running.len() + self.begun.len()) as u32,
            pending_tokens: self.begun.iter().chain(&self.prompts).map(left).sum(),
            answers: self.running.len() as u32,
            context: self.context,
            held: self.used,
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        self.prompts.front().and_then(|r| self.jobs.get(r)).map(|j| j.memory)
    }

    fn has_places(&self) -> bool {
        false
    }
}
