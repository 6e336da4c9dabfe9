//! Mixed batching with ageing and bounded preemption (Splitwise §IV-B): prompts first, answers beside them as far as
//! tokens suffice, and nobody passed over too often.
//!
//! Iterations are chosen in this order, at most one task of a request: waiting tasks passed over often enough, from the
//! front, those left out that memory is short for; prompts as they came, up to the first that does not fit; answers that
//! were put off; answers that run; what comes next of any other request, as they came, up to the first that does not fit.
//! An answer that follows its prompt on this machine waits from the beginning on, and
//! is passed over once the prompt is done; one that is put off waits again. The order of the waiting queue is (times
//! passed over, arrival), looked at when a task comes and not again, as the paper's simulator has it.

use std::collections::{BTreeMap, VecDeque};
use tsnode_coordinator::policy::batching::{Batch, BatchLimits, Batching, RequestNo, RequestPhase, Seen, Task};

/// Times a task is passed over before it goes first.
const PATIENCE: u32 = 4;

/// A part of a request on this machine.
#[derive(Clone, Copy, Debug)]
struct TaskSlot {
    task: Task,
    /// Selections there had been when it could first be chosen, and those since that chose it: by the others it was passed
    /// over. None where it cannot be chosen yet.
    since: Option<u64>,
    started: bool,
}

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct AgeingJob {
    prompt: Option<TaskSlot>,
    answer: Option<TaskSlot>,
    /// Tokens of the answer still to come.
    left: u32,
    /// Tokens it has before its next one.
    context: u64,
    /// KV it holds (tokens).
    memory: u64,
    /// The last selection it was in.
    chosen: u64,
}

impl AgeingJob {
    /// What of it is to be run now: the answer when the prompt is done.
    fn current(&self) -> Option<&TaskSlot> {
        self.prompt.as_ref().or(self.answer.as_ref())
    }

    fn current_mut(&mut self) -> Option<&mut TaskSlot> {
        self.prompt.as_mut().or(self.answer.as_mut())
    }

    /// Parts still to be done.
    fn parts(&self) -> u32 {
        u32::from(self.prompt.is_some()) + u32::from(self.answer.is_some())
    }

    fn prompt_tokens(&self) -> u32 {
        self.prompt.map_or(0, |s| s.task.tokens)
    }

    fn slot(&self, part: RequestPhase) -> Option<&TaskSlot> {
        match part {
            RequestPhase::Prompt => self.prompt.as_ref(),
            RequestPhase::Answer => self.answer.as_ref(),
        }
    }
}

/// The policy and its machine's state.
#[derive(Debug)]
pub struct Ageing {
    limits: BatchLimits,
    /// KV that fits (tokens).
    capacity: u64,
    used: u64,
    jobs: BTreeMap<RequestNo, AgeingJob>,
    waiting: VecDeque<(RequestNo, RequestPhase)>,
    prompts: VecDeque<RequestNo>,
    put_off: VecDeque<RequestNo>,
    batch: Vec<RequestNo>,
    running: Batch,
    /// What a selection has chosen so far, in order, and what it looks at last; kept for their memory.
    picked: Vec<RequestNo>,
    others: Vec<RequestNo>,
    starting: Vec<(RequestNo, RequestPhase)>,
    /// Selections begun, and those over.
    selections: u64,
    over: u64,
    /// Parts of requests here, and prompt tokens among them.
    parts: u32,
    prompt_tokens: u32,
}

impl Ageing {
    /// An idle machine with room for so many tokens of KV.
    #[must_use]
    pub fn new(limits: BatchLimits, capacity: u64) -> Self {
        Self {
            limits,
            capacity,
            used: 0,
            jobs: BTreeMap::new(),
            waiting: VecDeque::new(),
            prompts: VecDeque::new(),
            put_off: VecDeque::new(),
            batch: Vec::new(),
            running: Batch::default(),
            picked: Vec::new(),
            others: Vec::new(),
            starting: Vec::new(),
            selections: 0,
            over: 0,
            parts: 0,
            prompt_tokens: 0,
        }
    }

    fn key(&self, (request, part): (RequestNo, RequestPhase)) -> (u32, RequestNo) {
        let since = self.jobs.get(&request).and_then(|j| j.slot(part)).and_then(|s| s.since);
        (since.map_or(0, |s| self.over.saturating_sub(s) as u32), request)
    }

    /// Into the waiting queue, by halves: what is there need not be in order any more.
    fn queue(&mut self, task: (RequestNo, RequestPhase)) {
        let key = self.key(task);
        let (mut low, mut high) = (0, self.waiting.len());
        while low < high {
            let middle = (low + high) / 2;
            if key < self.key(self.waiting[middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.waiting.insert(low, task);
    }

    /// What stands in a task's way.
    fn fits(&self, slot: &TaskSlot, next: &Batch) -> TaskFit {
        let TaskSlot { task, started, .. } = slot;
        let tokens = match task.part {
            RequestPhase::Prompt => u64::from(task.tokens),
            RequestPhase::Answer => 1,
        };
        let places = next.tasks() >= self.limits.tasks;
        let many = !next.is_empty() && next.tokens() + tokens > u64::from(self.limits.tokens);
        match (places || many, *started || self.has_room(task.memory)) {
            (true, _) => TaskFit::Full,
            (false, false) => TaskFit::NoMemory,
            (false, true) => TaskFit::Fits,
        }
    }

    /// Chooses what comes next of a request if it fits. Chosen already or with nothing to run it is in nobody's way.
    fn pick(&mut self, request: RequestNo, next: &mut Batch) -> TaskFit {
        let selection = self.selections;
        let Some(job) = self.jobs.get(&request).filter(|j| j.chosen != selection) else { return TaskFit::Fits };
        let Some(&slot) = job.current() else { return TaskFit::Fits };
        let fit = self.fits(&slot, next);
        if fit != TaskFit::Fits {
            return fit;
        }
        let Some(job) = self.jobs.get_mut(&request) else { return TaskFit::Fits };
        job.chosen = selection;
        match slot.task.part {
            RequestPhase::Prompt => {
                next.prompts += 1;
                next.prompt_tokens += u64::from(slot.task.tokens);
                next.prompt_squares += u64::from(slot.task.tokens).pow(2);
            }
            RequestPhase::Answer => {
                next.answers += 1;
                next.context += job.context;
                next.iterations = next.iterations.min(job.left);
            }
        }
        if !slot.started {
            job.memory += slot.task.memory;
            self.used += slot.task.memory;
        }
        self.picked.push(request);
        fit
    }

    /// Everything that is to run, by the order of the policy.
    fn pick_all(&mut self) -> Batch {
        let mut next = Batch { iterations: u32::MAX, ..Batch::default() };
        for place in 0..self.waiting.len() {
            let (request, part) = self.waiting[place];
            if self.key((request, part)).0 < PATIENCE || self.pick(request, &mut next) == TaskFit::Full {
                break;
            }
        }
        for place in 0..self.prompts.len() {
            if self.pick(self.prompts[place], &mut next) != TaskFit::Fits {
                break;
            }
        }
        for place in 0..self.put_off.len() {
            self.pick(self.put_off[place], &mut next);
        }
        for place in 0..self.batch.len() {
            self.pick(self.batch[place], &mut next);
        }
        let mut others = std::mem::take(&mut self.others);
        others.extend(self.jobs.iter().filter(|(_, j)| j.chosen != self.selections).map(|(request, _)| *request));
        for request in others.drain(..) {
            if self.pick(request, &mut next) != TaskFit::Fits {
                break;
            }
        }
        self.others = others;
        if next.prompts > 0 || next.is_empty() {
            next.iterations = 1;
        }
        next
    }

    fn is_chosen(&self, request: &RequestNo) -> bool {
        self.jobs.get(request).is_none_or(|j| j.chosen == self.selections)
    }

    /// What ran and was not chosen waits again.
    fn preempt(&mut self) {
        for place in 0..self.batch.len() {
            let request = self.batch[place];
            if !self.is_chosen(&request) {
                self.queue((request, RequestPhase::Answer));
                self.put_off.push_back(request);
            }
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.retain(|r| self.is_chosen(r));
        self.batch = batch;
    }

    /// What was chosen and did not run comes out of the queues, and after what runs already.
    fn begin(&mut self, request: RequestNo) {
        let Some(job) = self.jobs.get_mut(&request) else { return };
        let Some(slot) = job.current_mut() else { return };
        let (part, begins) = (slot.task.part, !slot.started);
        slot.started = true;
        // The selection that chooses it does not pass it over.
        slot.since = slot.since.map(|s| s + 1);
        if begins {
            self.starting.push((request, part));
        }
        // Whatever ran is in neither queue unless it was put off.
        if begins || self.put_off.contains(&request) {
            remove(&mut self.waiting, &(request, part));
            remove(&mut self.put_off, &request);
            self.batch.push(request);
        }
        if part == RequestPhase::Prompt {
            remove(&mut self.prompts, &request);
        }
    }

    /// Counts a request's parts anew after a change.
    fn recount(&mut self, before: AgeingJob, after: AgeingJob) {
        self.parts = self.parts + after.parts() - before.parts();
        self.prompt_tokens = self.prompt_tokens + after.prompt_tokens() - before.prompt_tokens();
    }
}

/// Takes one out of a queue, most likely the first.
fn remove<T: PartialEq>(queue: &mut VecDeque<T>, item: &T) {
    if let Some(place) = queue.iter().position(|i| i == item) {
        queue.remove(place);
    }
}

/// Whether a task may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskFit {
    Fits,
    /// No place, or too many tokens, in the iteration.
    Full,
    /// Too little memory for this one.
    NoMemory,
}

impl Batching for Ageing {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        let before = *job;
        let can_start = task.part == RequestPhase::Prompt || job.prompt.is_none();
        let slot = Some(TaskSlot { task, since: can_start.then_some(self.over), started: false });
        match task.part {
            RequestPhase::Prompt => {
                (job.prompt, job.context) = (slot, u64::from(task.tokens) + 1);
                self.prompts.push_back(task.request);
            }
            RequestPhase::Answer => (job.answer, job.left) = (slot, task.tokens),
        }
        let after = *job;
        self.recount(before, after);
        self.queue((task.request, task.part));
        let running = &self.running;
        let fits = |beside: u64, tokens: u64| beside + tokens <= u64::from(self.limits.tokens);
        let tokens = if task.part == RequestPhase::Prompt { u64::from(task.tokens) } else { 1 };
        let joins = running.tasks() < self.limits.tasks && fits(running.tokens(), tokens);
        running.prompts == 0 && (joins || (task.part == RequestPhase::Prompt && fits(0, tokens)))
    }

    fn queues_ahead(&self) -> bool {
        true
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
        let Some(job) = self.jobs.remove(&request) else { return 0 };
        self.recount(job, AgeingJob::default());
        self.used -= job.memory;
        job.memory
    }

    fn select(&mut self) -> Batch {
        self.selections += 1;
        self.starting.clear();
        self.picked.clear();
        self.running = self.pick_all();
        self.preempt();
        let mut picked = std::mem::take(&mut self.picked);
        picked.drain(..).for_each(|request| self.begin(request));
        self.picked = picked;
        self.over += 1;
        self.running
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        self.starting.iter().for_each(|&(request, part)| starting(request, part));
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        self.running = Batch::default();
        for &request in &self.batch {
            let Some(job) = self.jobs.get_mut(&request) else { continue };
            if let Some(prompt) = job.prompt.take() {
                self.parts -= 1;
                self.prompt_tokens -= prompt.task.tokens;
                if let Some(answer) = &mut job.answer {
                    answer.since = Some(self.over);
                }
                ended.push((request, RequestPhase::Prompt));
            } else if job.answer.is_some() {
                job.left -= iterations.min(job.left);
                job.context += u64::from(iterations);
                if job.left == 0 {
                    job.answer = None;
                    self.parts -= 1;
                    ended.push((request, RequestPhase::Answer));
                }
            }
        }
        let jobs = &self.jobs;
        // A prompt's answer has not begun: it is chosen like any other that waits.
        self.batch.retain(|r| jobs.get(r).and_then(AgeingJob::current).is_some_and(|s| s.started));
    }

    fn seen(&self) -> Seen {
        let waiting = self.waiting.len() as u32;
        Seen { waiting, running: self.parts - waiting, pending_tokens: self.prompt_tokens, ..Seen::default() }
    }

    fn first_waiting(&self) -> Option<u64> {
        let (request, part) = self.waiting.front()?;
        self.jobs.get(request)?.slot(*part).map(|s| s.task.memory)
    }

    fn has_places(&self) -> bool {
        self.running.prompts == 0
            && self.running.tasks() < self.limits.tasks
            && self.running.tokens() < u64::from(self.limits.tokens)
    }
}
