//! Prompts first, as many whole ones as fit; where none waits, a step of as many answers as fit, which then queue again at
//! the end (DistServe's simulator: its prefill, its decode and its colocated workers). On a pipeline every stage does so with
//! what has come to it: prompts stay together in the batch that the first stage made of them and overtake answers that wait, and
//! answers of several batches that wait become one.

use std::collections::{BTreeMap, VecDeque};
use tsnode_coordinator::policy::batching::{Batch, Batching, RequestNo, RequestPhase, Seen, StageNo, Task};

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct GreedyJob {
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
    jobs: BTreeMap<RequestNo, GreedyJob>,
    prompts: VecDeque<RequestNo>,
    answers: VecDeque<RequestNo>,
    /// Requests of the batches on their way, the oldest first.
    running: VecDeque<RequestNo>,
    batches: VecDeque<Batch>,
    starting: Vec<(RequestNo, RequestPhase)>,
    /// What waits at stages after the first, and what each stage runs.
    later: BTreeMap<usize, StageQueue>,
    at: BTreeMap<usize, (Batch, Vec<RequestNo>)>,
}

/// What has come to a stage.
#[derive(Clone, Debug, Default)]
struct StageQueue {
    prompts: VecDeque<Vec<RequestNo>>,
    answers: VecDeque<RequestNo>,
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
            later: BTreeMap::new(),
            at: BTreeMap::new(),
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
            self.starting.push((request, RequestPhase::Prompt));
            batch.prompts += 1;
            batch.prompt_tokens += tokens;
            batch.prompt_squares += tokens * tokens;
        }
    }

    fn take_answers(&mut self, batch: &mut Batch) {
        let taken = answers(&mut self.answers, &self.jobs, self.context, batch);
        for request in taken {
            if self.jobs.get(&request).is_some_and(|job| job.left == job.tokens) {
                self.starting.push((request, RequestPhase::Answer));
            }
            self.running.push_back(request);
        }
    }

    /// What a stage after the first takes of what has come to it.
    fn take_at(&mut self, stage: usize) -> Option<(Batch, Vec<RequestNo>)> {
        let waiting = self.later.get_mut(&stage)?;
        let mut batch = Batch { iterations: 1, ..Batch::default() };
        let Some(prompts) = waiting.prompts.pop_front() else {
            let taken = answers(&mut waiting.answers, &self.jobs, self.context, &mut batch);
            return (!taken.is_empty()).then_some((batch, taken));
        };
        for tokens in prompts.iter().filter_map(|r| self.jobs.get(r)).map(|job| u64::from(job.tokens)) {
            batch.prompts += 1;
            batch.prompt_tokens += tokens;
            batch.prompt_squares += tokens * tokens;
        }
        Some((batch, prompts))
    }

    /// A batch has come out of the last stage, or of the only one.
    fn came_out(
        &mut self,
        batch: &Batch,
        requests: Vec<RequestNo>,
        iterations: u32,
        ended: &mut Vec<(RequestNo, RequestPhase)>,
    ) {
        for request in requests {
            let Some(job) = self.jobs.get_mut(&request) else { continue };
            if batch.prompts > 0 {
                ended.push((request, RequestPhase::Prompt));
                continue;
            }
            job.left -= iterations.min(job.left);
            job.context += u64::from(iterations);
            if job.left == 0 {
                ended.push((request, RequestPhase::Answer));
            } else {
                self.answers.push_back(request);
            }
        }
    }
}

impl Batching for Greedy {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        (job.tokens, job.left, job.memory) = (task.tokens, task.tokens, job.memory + task.memory);
        match task.part {
            RequestPhase::Prompt => {
                job.context = u64::from(task.tokens) + 1;
                self.prompts.push_back(task.request);
            }
            RequestPhase::Answer => self.answers.push_back(task.request),
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

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        let Some(batch) = self.batches.pop_front() else { return };
        let requests = self.running.drain(..batch.tasks()).collect();
        self.came_out(&batch, requests, iterations, ended);
    }

    fn stages_choose(&self) -> bool {
        true
    }

    fn select_at(&mut self, stage: StageNo) -> Batch {
        let taken = if stage.is_first() {
            self.select();
            self.batches.pop_back().map(|batch| (batch, self.running.drain(..).collect()))
        } else {
            self.take_at(stage.place)
        };
        let Some((batch, requests)) = taken else { return Batch::default() };
        self.at.insert(stage.place, (batch, requests));
        batch
    }

    fn ran_at(&mut self, stage: StageNo, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        let Some((batch, requests)) = self.at.remove(&stage.place) else { return };
        if stage.is_last() {
            return self.came_out(&batch, requests, 1, ended);
        }
        let next = self.later.entry(stage.place + 1).or_default();
        if batch.prompts > 0 { next.prompts.push_back(requests) } else { next.answers.extend(requests) }
    }

    fn seen(&self) -> Seen {
        let tokens = |r: &RequestNo| self.jobs.get(r).map_or(0, |j| j.tokens);
        let computed: u64 = self.batches.iter().map(|b| b.prompt_tokens).sum();
        let at_stages = self.at.values().map(|(_, requests)| requests.len());
        let between = self.later.values().map(|w| w.answers.len() + w.prompts.iter().map(Vec::len).sum::<usize>());
        Seen {
            waiting: (self.prompts.len() + self.answers.len()) as u32,
            running: (self.running.len() + at_stages.chain(between).sum::<usize>()) as u32,
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

/// Answers from the front of a queue, as many as fit.
fn answers(
    queue: &mut VecDeque<RequestNo>,
    jobs: &BTreeMap<RequestNo, GreedyJob>,
    most: u64,
    batch: &mut Batch,
) -> Vec<RequestNo> {
    let mut taken = Vec::new();
    while let Some((&request, job)) = queue.front().and_then(|r| Some((r, jobs.get(r)?))) {
        if batch.answers > 0 && batch.context + job.context > most {
            break;
        }
        queue.pop_front();
        taken.push(request);
        batch.answers += 1;
        batch.context += job.context;
    }
    taken
}
