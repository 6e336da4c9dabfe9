//! Prompts first, one after the other as they came; then a step of all answers that have a place (continuous batching).
//! On a pipeline each batch is a prompt, or its share of the answers. There may be as many batches of answers as there are
//! stages, and any number of prompts: fewer would leave stages idle behind a long one.

use super::{
    batch_slots::{AnswerPlaces, PlacedAnswer},
    batching::{Batch, BatchMember, Batching, RequestNo, RequestPhase, Seen, Stepwise, Task},
};
use std::collections::{BTreeMap, VecDeque};

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    prompt: Option<Task>,
    context: u64,
    /// KV it will have had when it ends (tokens).
    whole: u64,
}

/// What a batch has.
#[derive(Clone, Copy, Debug)]
enum BatchTurn {
    Prompt(RequestNo),
    Answers(u32),
}

/// The policy and its machine's state. KV counts while an answer runs: prompts alone leave as soon as they are done.
#[derive(Debug)]
pub struct PrefillFirst {
    jobs: BTreeMap<RequestNo, Job>,
    prompts: VecDeque<RequestNo>,
    answers: AnswerPlaces,
    /// On their way, the oldest first.
    batches: VecDeque<BatchTurn>,
    starting: Vec<(RequestNo, RequestPhase)>,
}

impl PrefillFirst {
    /// An idle machine with places for so many answers and room for so many tokens of KV; one answer alone runs even if
    /// it does not fit.
    #[must_use]
    pub fn new(places: usize, capacity: u64) -> Self {
        Self {
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            answers: AnswerPlaces::new(places, capacity),
            batches: VecDeque::new(),
            starting: Vec::new(),
        }
    }

    /// On a pipeline of so many stages.
    #[must_use]
    pub fn in_stages(self, stages: usize) -> Self {
        Self { answers: self.answers.in_stages(stages), ..self }
    }

    fn prompt_tokens(&self, request: RequestNo) -> u32 {
        self.jobs.get(&request).and_then(|j| j.prompt).map_or(0, |t| t.tokens)
    }

    fn prompt_batch(&mut self, request: RequestNo) -> Batch {
        let tokens = u64::from(self.prompt_tokens(request));
        self.batches.push_back(BatchTurn::Prompt(request));
        self.starting.push((request, RequestPhase::Prompt));
        Batch { prompts: 1, prompt_tokens: tokens, prompt_squares: tokens * tokens, iterations: 1, ..Batch::default() }
    }

    fn answer_batch(&mut self) -> Batch {
        let mut batch = Batch { iterations: 1, ..Batch::default() };
        if self.batches.iter().filter(|b| matches!(b, BatchTurn::Answers(_))).count() >= self.answers.stages() {
            return batch;
        }
        self.answers.admit(&mut self.starting);
        (batch.answers, batch.context) = self.answers.share();
        if !batch.is_empty() {
            self.batches.push_back(BatchTurn::Answers(batch.answers));
        }
        batch
    }
}

impl Batching for PrefillFirst {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        job.whole += task.memory;
        match task.part {
            RequestPhase::Prompt => {
                (job.prompt, job.context) = (Some(task), u64::from(task.tokens) + 1);
                self.prompts.push_back(task.request);
            }
            RequestPhase::Answer => {
                let Job { context, whole, .. } = *job;
                self.answers.queue(PlacedAnswer { request: task.request, left: task.tokens, context, whole });
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

    fn at_once(&self) -> usize {
        if self.answers.stages() > 1 { usize::MAX } else { 1 }
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        match self.prompts.pop_front() {
            Some(request) => self.prompt_batch(request),
            None => self.answer_batch(),
        }
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        match self.batches.pop_front() {
            Some(BatchTurn::Prompt(request)) => {
                ended.push((request, RequestPhase::Prompt));
                if let Some(job) = self.jobs.get_mut(&request) {
                    job.prompt = None;
                }
            }
            Some(BatchTurn::Answers(answers)) => self.answers.ran(answers, iterations, ended),
            None => {}
        }
    }

    fn seen(&self) -> Seen {
        let prompt = |turn: &BatchTurn| match turn {
            BatchTurn::Prompt(request) => Some(*request),
            BatchTurn::Answers(_) => None,
        };
        let computed = || self.batches.iter().filter_map(prompt);
        Seen {
            waiting: (self.prompts.len() + self.answers.waiting()) as u32,
            running: (self.answers.running() + computed().count()) as u32,
            pending_tokens: computed().chain(self.prompts.iter().copied()).map(|r| self.prompt_tokens(r)).sum(),
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

impl Stepwise for PrefillFirst {
    fn members(&self, each: &mut dyn FnMut(BatchMember)) {
        match self.batches.back() {
            Some(BatchTurn::Prompt(request)) => {
                each(BatchMember {
                    request: *request,
                    part: RequestPhase::Prompt,
                    tokens: self.prompt_tokens(*request),
                });
            }
            Some(BatchTurn::Answers(answers)) => self.answers.members(*answers, each),
            None => {}
        }
    }

    fn withdraw(&mut self, request: RequestNo) {
        self.jobs.remove(&request);
        self.prompts.retain(|r| *r != request);
        self.answers.withdraw(request);
    }
}
