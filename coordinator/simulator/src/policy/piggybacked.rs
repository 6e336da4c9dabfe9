//! Prompts one after the other as they came, before answers; answers ride along where that takes less than a step of their
//! own would. Every step is counted once for all answers that run, so that a choice costs no more with many of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::batching::{Batch, Batching, RequestNo, RequestPhase, Seen, Task},
    replay::iteration_cost::IterationCost,
};

/// Whether answers run beside a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Piggybacking {
    /// Where that takes less than a step of their own.
    #[default]
    Cheaper,
    /// They wait.
    Never,
}

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct PiggybackedJob {
    /// Its task that waits or runs.
    task: Option<Task>,
    /// Tokens it has before the answer.
    context: u64,
    /// KV it holds (tokens).
    memory: u64,
}

/// The policy and its machine's state. KV counts from a task's start on.
#[derive(Debug)]
pub struct Piggybacked {
    /// How long the machine's iterations take.
    cost: Arc<dyn IterationCost>,
    beside: Piggybacking,
    /// Most answers at once.
    places: usize,
    /// KV that fits (tokens).
    capacity: u64,
    used: u64,
    jobs: BTreeMap<RequestNo, PiggybackedJob>,
    prompts: VecDeque<RequestNo>,
    waiting: VecDeque<RequestNo>,
    /// Answers that run, by the step that ends them.
    answers: BTreeSet<(u64, RequestNo)>,
    /// Steps of answers so far.
    steps: u64,
    context: u64,
    /// Prompt tokens still to compute.
    pending: u64,
    present: Option<RequestNo>,
    running: Batch,
    starting: Vec<(RequestNo, RequestPhase)>,
}

impl Piggybacked {
    /// An idle machine with room for so many tokens of KV.
    #[must_use]
    pub fn new(cost: Arc<dyn IterationCost>, beside: Piggybacking, places: usize, capacity: u64) -> Self {
        Self {
            cost,
            beside,
            places: places.max(1),
            capacity,
            used: 0,
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            waiting: VecDeque::new(),
            answers: BTreeSet::new(),
            steps: 0,
            context: 0,
            pending: 0,
            present: None,
            running: Batch::default(),
            starting: Vec::new(),
        }
    }

    /// Takes memory for a task's start; `None` if there is none.
    fn start(&mut self, request: RequestNo) -> Option<Task> {
        let job = self.jobs.get_mut(&request)?;
        let task = job.task.filter(|t| self.used + t.memory <= self.capacity)?;
        self.used += task.memory;
        job.memory += task.memory;
        self.starting.push((request, task.part));
        Some(task)
    }

    /// Gives places to answers that wait, in order.
    fn admit(&mut self) {
        while let Some(&request) = self.waiting.front().filter(|_| self.answers.len() < self.places) {
            let Some(task) = self.start(request) else { return };
            self.waiting.pop_front();
            self.context += self.jobs.get(&request).map_or(0, |j| j.context);
            self.answers.insert((self.steps + u64::from(task.tokens), request));
        }
    }

    /// The next prompt alone.
    fn prompt(&mut self) -> Option<Batch> {
        let request = *self.prompts.front()?;
        let task = self.start(request)?;
        self.prompts.pop_front();
        self.present = Some(request);
        Some(Batch::prompt(task.tokens))
    }

    /// All answers until one ends.
    fn step(&self) -> Batch {
        let iterations = self.answers.first().map_or(1, |(end, _)| (end - self.steps) as u32);
        Batch { iterations, ..Batch::answers(self.answers.len() as u32, self.context) }
    }
}

impl Batching for Piggybacked {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        job.task = Some(task);
        match task.part {
            RequestPhase::Prompt => {
                job.context = u64::from(task.tokens) + 1;
                self.pending += u64::from(task.tokens);
                self.prompts.push_back(task.request);
            }
            RequestPhase::Answer => self.waiting.push_back(task.request),
        }
        self.has_places()
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
        self.admit();
        let step = self.step();
        self.running = match self.prompt() {
            Some(prompt) if step.is_empty() || self.beside == Piggybacking::Never => prompt,
            Some(prompt) => {
                let both = prompt.with_answers(step.answers, step.context);
                let rides = ridden(&*self.cost, &prompt, &both, &step);
                if rides { both } else { prompt }
            }
            None if step.is_empty() => Batch::default(),
            None => step,
        };
        self.running
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        ended.extend(self.present.take().map(|r| (r, RequestPhase::Prompt)));
        self.pending -= self.running.prompt_tokens;
        if self.running.answers > 0 {
            self.steps += u64::from(iterations);
            self.context += u64::from(iterations) * self.answers.len() as u64;
        }
        self.running = Batch::default();
        while let Some(&(_, request)) = self.answers.first().filter(|(end, _)| *end <= self.steps) {
            self.answers.pop_first();
            ended.push((request, RequestPhase::Answer));
            let Some(PiggybackedJob { task: Some(task), context, .. }) = self.jobs.get(&request) else { continue };
            self.context -= context + u64::from(task.tokens);
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            waiting: (self.prompts.len() + self.waiting.len()) as u32,
            running: (self.answers.len() + usize::from(self.present.is_some())) as u32,
            pending_tokens: self.pending as u32,
            ..Seen::default()
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        let first = self.prompts.front().or(self.waiting.front())?;
        self.jobs.get(first).and_then(|j| j.task).map(|t| t.memory)
    }

    /// Whatever comes may join answers that run, at the next step.
    fn has_places(&self) -> bool {
        self.running.prompts == 0
    }
}

/// Whether `both`, a prompt with answers beside it, takes less than the prompt and a step of the answers.
pub(super) fn ridden(cost: &dyn IterationCost, prompt: &Batch, both: &Batch, step: &Batch) -> bool {
    cost.iteration(both) < cost.iteration(prompt) + cost.iteration(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured_cost::{CostLine, Table};
    use tsnode_coordinator::policy::batching::{Answered, ServiceNo};

    fn task(request: u32, part: RequestPhase, tokens: u32) -> Task {
        let memory = u64::from(tokens) + u64::from(part == RequestPhase::Prompt);
        Task {
            request: RequestNo(request),
            part,
            service: ServiceNo::default(),
            tokens,
            before: 0,
            memory,
            answered: Answered::Here,
        }
    }

    /// 1 ms a prompt token, 50 ms a step; both together take a tenth longer than the prompt.
    fn machine(beside: Piggybacking, capacity: u64) -> Piggybacked {
        let line = |knots: [(f64, f64); 2]| CostLine::new(knots.to_vec()).unwrap();
        let table = Table { prompt: line([(0.0, 0.0), (1.0, 0.001)]), answer: line([(0.0, 0.05), (1.0, 0.05)]) };
        Piggybacked::new(Arc::new(table), beside, 8, capacity)
    }

    /// A machine with an answer of ten tokens under way.
    fn answering(beside: Piggybacking) -> Piggybacked {
        let mut machine = machine(beside, 10_000);
        assert!(machine.reserve(RequestNo(0), 101));
        machine.add(task(0, RequestPhase::Answer, 10));
        assert_eq!(machine.select(), Batch { answers: 1, context: 101, iterations: 10, ..Batch::default() });
        machine
    }

    #[test]
    fn answers_ride_with_short_prompts_and_wait_for_long_ones() {
        for (beside, prompt, rides) in
            [(Piggybacking::Cheaper, 300, true), (Piggybacking::Cheaper, 600, false), (Piggybacking::Never, 300, false)]
        {
            let mut machine = answering(beside);
            assert!(machine.add(task(1, RequestPhase::Prompt, prompt)), "what runs is cut");
            let mut ended = Vec::new();
            machine.ran(3, &mut ended);
            let batch = machine.select();
            assert_eq!((batch.prompts, batch.answers, batch.iterations), (1, u32::from(rides), 1), "{prompt}");
            machine.ran(1, &mut ended);
            assert_eq!(ended, [(RequestNo(1), RequestPhase::Prompt)]);
            // The answer has seven tokens left, or six.
            assert_eq!(machine.select().iterations, 7 - u32::from(rides));
        }
    }

    #[test]
    fn prompts_come_one_by_one_and_without_room_they_wait() {
        let mut machine = machine(Piggybacking::Cheaper, 500);
        for request in 0..3 {
            machine.add(task(request, RequestPhase::Prompt, 200));
        }
        let mut ended = Vec::new();
        for _ in 0..2 {
            assert_eq!(machine.select(), Batch::prompt(200));
            machine.ran(1, &mut ended);
        }
        assert!(machine.select().is_empty() && !machine.has_room(201));
        assert_eq!(machine.release(RequestNo(0)), 201);
        assert_eq!(machine.select(), Batch::prompt(200));
        assert_eq!(machine.seen(), Seen { waiting: 0, running: 1, pending_tokens: 200, ..Seen::default() });
    }
}
