//! Prompts first, as many whole ones as fit; where none waits, a step of as many answers as fit, which then queue again at
//! the end (DistServe's simulator: its prefill, its decode and its colocated workers). A pipeline may have any number of
//! such batches on their way.

use std::collections::{BTreeMap, VecDeque};
use tsnode_coordinator::policy::batching::{Batch, Batching, Part, RequestNo, Seen, Task};

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    tokens: u32,
    left: u32,
    context: u64,
    memory: u64,
}

/// The policy and its machine's state. KV that stays between iterations is not limited.
#[derive(Debug)]
pub struct Greedy {
    /// Prompt tokens of one iteration; a prompt alone may have more.
    prompt_tokens: u64,
    /// Tokens of context that the answers of one iteration have before them; one answer alone may have more.
    context: u64,
    jobs: BTreeMap<RequestNo, Job>,
    prompts: VecDeque<RequestNo>,
    answers: VecDeque<RequestNo>,
    /// Requests of the batches on their way, the oldest first.
    running: VecDeque<RequestNo>,
    batches: VecDeque<Batch>,
    starting: Vec<(RequestNo, Part)>,
}

impl Greedy {
    /// An idle machine.
    #[must_use]
    pub fn new(prompt_tokens: u64, context: u64) -> Self {
        Self {
            prompt_tokens,
            context,
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            answers: VecDeque::new(),
            running: VecDeque::new(),
            batches: VecDeque::new(),
            starting: Vec::new(),
        }
    }

    fn take_prompts(&mut self, batch: &mut Batch) {
        while let Some(&request) = self.prompts.front() {
            let tokens = self.jobs.get(&request).map_or(0, |j| u64::from(j.tokens));
            if batch.prompts > 0 && batch.prompt_tokens + tokens > self.prompt_tokens {
                return;
            }
            self.prompts.pop_front();
            self.running.push_back(request);
            self.starting.push((request, Part::Prompt));
            batch.prompts += 1;
            batch.prompt_tokens += tokens;
            batch.prompt_squares += tokens * tokens;
        }
    }

    fn take_answers(&mut self, batch: &mut Batch) {
        while let Some(&request) = self.answers.front() {
            let Some(job) = self.jobs.get(&request) else { return };
            if batch.answers > 0 && batch.context + job.context > self.context {
                return;
            }
            if job.left == job.tokens {
                self.starting.push((request, Part::Answer));
            }
            self.answers.pop_front();
            self.running.push_back(request);
            batch.answers += 1;
            batch.context += job.context;
        }
    }
}

impl Batching for Greedy {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        (job.tokens, job.left, job.memory) = (task.tokens, task.tokens, job.memory + task.memory);
        match task.part {
            Part::Prompt => {
                job.context = u64::from(task.tokens) + 1;
                self.prompts.push_back(task.request);
            }
            Part::Answer => self.answers.push_back(task.request),
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
        usize::MAX
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        let mut batch = Batch { iterations: 1, ..Batch::default() };
        self.take_prompts(&mut batch);
        if batch.prompts == 0 {
            self.take_answers(&mut batch);
        }
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
        for request in self.running.drain(..batch.tasks()) {
            let Some(job) = self.jobs.get_mut(&request) else { continue };
            if batch.prompts > 0 {
                ended.push((request, Part::Prompt));
                continue;
            }
            job.left -= iterations.min(job.left);
            job.context += u64::from(iterations);
            if job.left == 0 {
                ended.push((request, Part::Answer));
            } else {
                self.answers.push_back(request);
            }
        }
    }

    fn seen(&self) -> Seen {
        let tokens = |r: &RequestNo| self.jobs.get(r).map_or(0, |j| j.tokens);
        let computed: u64 = self.batches.iter().map(|b| b.prompt_tokens).sum();
        Seen {
            waiting: (self.prompts.len() + self.answers.len()) as u32,
            running: self.running.len() as u32,
            pending_tokens: computed as u32 + self.prompts.iter().map(tokens).sum::<u32>(),
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
