//! Answers in every iteration, and beside them prompts in chunks, in the order they came, up to a number of tokens
//! (Sarathi-Serve, Agrawal et al. 2024; Cronus §3). What nodes do: their batcher cuts chunks by the same function. On a
//! pipeline each batch has its share of the answers, and chunks of prompts that no other batch is at.

use super::{
    batching::{Batch, Batching, Member, Part, RequestNo, Seen, Stepwise, Task},
    places::{Answer, Places},
};
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
    /// A batch on its way has a chunk of it.
    under_way: bool,
    context: u64,
    memory: u64,
}

/// The policy and its machine's state. KV of the whole request counts while its answer runs.
#[derive(Debug)]
pub struct Chunked {
    /// Tokens of one iteration; at least one goes to a prompt that waits.
    tokens: u32,
    jobs: BTreeMap<RequestNo, Job>,
    prompts: VecDeque<RequestNo>,
    answers: Places,
    /// Batches on their way and their chunks, the oldest first.
    batches: VecDeque<Batch>,
    chunks: VecDeque<(RequestNo, u32)>,
    starting: Vec<(RequestNo, Part)>,
}

impl Chunked {
    /// An idle machine with places for so many answers and room for so many tokens of KV; one answer alone runs even if
    /// it does not fit.
    #[must_use]
    pub fn new(tokens: u32, places: usize, capacity: u64) -> Self {
        Self {
            tokens: tokens.max(1),
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            answers: Places::new(places, capacity),
            batches: VecDeque::new(),
            chunks: VecDeque::new(),
            starting: Vec::new(),
        }
    }

    /// On a pipeline of so many stages, as many batches are on their way.
    #[must_use]
    pub fn in_stages(self, stages: usize) -> Self {
        Self { answers: self.answers.in_stages(stages), ..self }
    }

    fn cut(&mut self, batch: &mut Batch) {
        let mut room = self.tokens.saturating_sub(batch.answers).max(1);
        for request in &self.prompts {
            let Some(job) = self.jobs.get_mut(request).filter(|j| !j.under_way) else { continue };
            let tokens = chunk(&mut room, job.prompt - job.done);
            if tokens == 0 {
                return;
            }
            job.under_way = true;
            if job.done == 0 {
                self.starting.push((*request, Part::Prompt));
            }
            let (before, after) = (u64::from(job.done), u64::from(job.done + tokens));
            batch.prompts += 1;
            batch.prompt_tokens += u64::from(tokens);
            // Attention of a chunk reaches back over all before it.
            batch.prompt_squares += after * after - before * before;
            self.chunks.push_back((*request, tokens));
        }
    }

    fn chunk_done(&mut self, (request, tokens): (RequestNo, u32), ended: &mut Vec<(RequestNo, Part)>) {
        let Some(job) = self.jobs.get_mut(&request) else { return };
        job.done += tokens;
        job.under_way = false;
        if job.done == job.prompt {
            // Most likely the first; a short one may be done before a long one that came earlier.
            if let Some(place) = self.prompts.iter().position(|r| *r == request) {
                self.prompts.remove(place);
            }
            ended.push((request, Part::Prompt));
        }
    }
}

impl Batching for Chunked {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        job.memory += task.memory;
        match task.part {
            Part::Prompt => {
                (job.prompt, job.context) = (task.tokens, u64::from(task.tokens) + 1);
                self.prompts.push_back(task.request);
            }
            Part::Answer => {
                let (context, whole) = (job.context, job.memory);
                self.answers.queue(Answer { request: task.request, left: task.tokens, context, whole });
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
        (job.context, job.memory) = (memory, job.memory + memory);
        true
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        self.jobs.remove(&request).map_or(0, |j| j.memory)
    }

    fn at_once(&self) -> usize {
        self.answers.stages()
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        self.answers.admit(&mut self.starting);
        let (answers, context) = self.answers.share();
        let mut batch = Batch { answers, context, iterations: 1, ..Batch::default() };
        self.cut(&mut batch);
        if !batch.is_empty() {
            self.batches.push_back(batch);
        }
        batch
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, Part)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, Part)>) {
        let Some(batch) = self.batches.pop_front() else { return };
        for _ in 0..batch.prompts {
            let Some(chunk) = self.chunks.pop_front() else { break };
            self.chunk_done(chunk, ended);
        }
        self.answers.ran(batch.answers, iterations, ended);
    }

    fn seen(&self) -> Seen {
        let left = |r: &RequestNo| self.jobs.get(r).map_or(0, |j| j.prompt - j.done);
        Seen {
            waiting: (self.prompts.len() + self.answers.waiting()) as u32,
            running: self.answers.running() as u32,
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

impl Stepwise for Chunked {
    fn members(&self, each: &mut dyn FnMut(Member)) {
        let Some(batch) = self.batches.back() else { return };
        self.answers.members(batch.answers, each);
        let before = self.chunks.len().saturating_sub(batch.prompts as usize);
        let member = |&(request, tokens): &(RequestNo, u32)| Member { request, part: Part::Prompt, tokens };
        self.chunks.range(before..).map(member).for_each(each);
    }

    fn withdraw(&mut self, request: RequestNo) {
        self.jobs.remove(&request);
        self.prompts.retain(|r| *r != request);
        self.answers.withdraw(request);
    }
}
