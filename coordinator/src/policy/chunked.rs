//! Answers in every iteration, and beside them prompts in chunks, in the order they came, up to a number of tokens
//! (Sarathi-Serve, Agrawal et al. 2024; Cronus §3). What nodes do: their batcher drives it. On a pipeline each batch has
//! its share of the answers, and a prompt's next chunk follows the one before it: stages take batches in order, so that
//! each has the KV of what went before. Where nothing is answered no step has to be short: more of them are on their way,
//! and they are longer the more there is to compute, since each reads all weights. A prompt that has a pipeline to itself is cut so that
//! it is through soonest ([`caps::through_stages`]): in shorter steps than otherwise, or a short one would have one stage compute at a
//! time.
//!
//! A request has a place and memory from the first chunk of its prompt to its end, or from when its KV begins to come from
//! elsewhere; with it may come the prompt's rest (Cronus §4.2). One whose answer is generated elsewhere keeps its memory,
//! but not its place, until its KV has gone.
//!
//! Prompts may go first instead ([`Chunked::prompts_first`]), with answers beside them as far as tokens are left or not at all. Answers
//! are then passed over so many times at most: nobody starves (Splitwise §IV-B ages and bounds preemption for the same reason).

use super::{
    batch_slots::{AnswerPlaces, PlacedAnswer},
    batching::{Answered, Batch, BatchMember, Batching, RequestNo, RequestPhase, Seen, Stepwise, Task},
    caps,
};
use std::collections::{BTreeMap, VecDeque};

/// Batches on their way for each stage of a pipeline where nothing is answered, or one prompt is all there is: one computes and one
/// waits, so that no stage is idle when steps differ in length or while one is handed over. Answers would come in smaller batches.
pub const AHEAD: usize = 2;

/// What the tokens of an iteration are counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokensCounted {
    /// Prompts, and one for each answer.
    All,
    /// Prompts: iterations grow with the answers, and prompts lose nothing to them.
    Prompts,
}

/// What goes beside prompts that go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesidePrompts {
    /// Answers, as far as an iteration's tokens are left (Splitwise's mixed machines).
    Answers,
    /// Nothing: iterations of prompts are as long as those where nothing is answered.
    Nothing,
}

/// Prompts go first, and answers are passed over so many iterations in a row at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromptsFirst {
    beside: BesidePrompts,
    patience: u32,
}

/// A request on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct ChunkedJob {
    /// Prompt tokens computed elsewhere, computed or on their way, computed, and in all.
    before: u32,
    sent: u32,
    done: u32,
    prompt: u32,
    /// Tokens of the answer.
    answer: u32,
    context: u64,
    /// KV of what has come of it (tokens), and of that, what is set aside.
    memory: u64,
    held: u64,
    /// Its answer is generated here.
    answered: bool,
}

/// The policy and its machine's state.
#[derive(Debug)]
pub struct Chunked {
    /// Tokens of one iteration; at least one goes to a prompt that waits. And at most, where nothing is answered.
    tokens: u32,
    alone: u32,
    counted: TokensCounted,
    prompts_first: Option<PromptsFirst>,
    /// Iterations in a row that had answers left over for which there was a share.
    passed_over: u32,
    places: usize,
    capacity: u64,
    used: u64,
    /// Requests that have places while their KV comes.
    coming: usize,
    /// Requests that are answered here.
    answering: usize,
    /// Tokens of prompts that are not on their way.
    left: u64,
    /// Tokens of prompts that have come since there were none.
    burst: u64,
    jobs: BTreeMap<RequestNo, ChunkedJob>,
    /// Prompts without a place, prompts with one, and answers that lack memory for what is to come.
    prompts: VecDeque<RequestNo>,
    begun: VecDeque<RequestNo>,
    waiting: VecDeque<RequestNo>,
    answers: AnswerPlaces,
    /// Batches on their way and their chunks, the oldest first.
    batches: VecDeque<Batch>,
    chunks: VecDeque<(RequestNo, u32)>,
    starting: Vec<(RequestNo, RequestPhase)>,
}

impl Chunked {
    /// An idle machine with places for so many requests and room for so many tokens of KV; one alone runs even if it does
    /// not fit.
    #[must_use]
    pub fn new(tokens: u32, places: usize, capacity: u64) -> Self {
        Self {
            tokens: tokens.max(1),
            alone: tokens.max(1),
            counted: TokensCounted::All,
            prompts_first: None,
            passed_over: 0,
            places: places.max(1),
            capacity,
            used: 0,
            coming: 0,
            answering: 0,
            left: 0,
            burst: 0,
            jobs: BTreeMap::new(),
            prompts: VecDeque::new(),
            begun: VecDeque::new(),
            waiting: VecDeque::new(),
            // Who may run is decided here.
            answers: AnswerPlaces::new(usize::MAX, u64::MAX),
            batches: VecDeque::new(),
            chunks: VecDeque::new(),
            starting: Vec::new(),
        }
    }

    /// The same, with so many tokens for prompts alone.
    #[must_use]
    pub fn for_prompts(self) -> Self {
        Self { counted: TokensCounted::Prompts, ..self }
    }

    /// The same, with prompts before answers, which are passed over so many times in a row at most.
    #[must_use]
    pub fn prompts_first(self, beside: BesidePrompts, patience: u32) -> Self {
        Self { prompts_first: Some(PromptsFirst { beside, patience }), ..self }
    }

    /// The same, with up to so many tokens while nothing is answered here and much waits.
    #[must_use]
    pub fn alone(self, tokens: u32) -> Self {
        Self { alone: tokens.max(self.tokens), ..self }
    }

    /// On a pipeline of so many stages, as many batches are on their way.
    #[must_use]
    pub fn in_stages(self, stages: usize) -> Self {
        Self { answers: self.answers.in_stages(stages), ..self }
    }

    /// Whether a request may have a place. None gets one while an answer lacks memory, and one alone always does.
    fn fits(&self, memory: u64) -> bool {
        let taken = self.begun.len() + self.waiting.len() + self.answers.running() + self.coming;
        let room = taken < self.places && self.used + memory <= self.capacity;
        (room && self.waiting.is_empty()) || taken == 0
    }

    /// Sets aside what a request has not got yet.
    fn hold(&mut self, request: RequestNo) {
        let Some(job) = self.jobs.get_mut(&request) else { return };
        self.used += job.memory - job.held;
        job.held = job.memory;
    }

    fn admit(&mut self) {
        while let Some(&request) = self.waiting.front() {
            let Some(job) = self.jobs.get(&request).copied() else { return };
            if self.used + (job.memory - job.held) > self.capacity && self.answers.running() > 0 {
                return;
            }
            self.hold(request);
            self.waiting.pop_front();
            self.answers.queue(PlacedAnswer { request, left: job.answer, context: job.context, whole: 0 });
            self.answers.admit(&mut self.starting);
        }
    }

    /// All answers that have a place, and prompts beside them.
    fn answers_then_prompts(&mut self) -> Batch {
        let (answers, context) = self.answers.share();
        let mut batch = Batch { answers, context, iterations: 1, ..Batch::default() };
        let room = match self.counted {
            TokensCounted::All if self.answering == 0 => self.long(),
            TokensCounted::All => self.short(batch.answers),
            TokensCounted::Prompts => self.tokens,
        };
        self.cut(&mut batch, room);
        self.passed_over = 0;
        batch
    }

    /// Prompts, and what may go beside them; answers alone where there are no prompts.
    fn prompts_then_answers(&mut self, beside: BesidePrompts) -> Batch {
        let due = self.answers.next_share();
        let mut batch = Batch { iterations: 1, ..Batch::default() };
        let is_long = self.answering == 0 || beside == BesidePrompts::Nothing;
        self.cut(&mut batch, if is_long { self.long() } else { self.short(0) });
        let left = u64::from(self.tokens).saturating_sub(batch.prompt_tokens) as usize;
        let most = match beside {
            _ if batch.prompts == 0 => usize::MAX,
            BesidePrompts::Answers => left,
            BesidePrompts::Nothing => 0,
        };
        (batch.answers, batch.context) = self.answers.share_up_to(most);
        self.passed_over = if (batch.answers as usize) < due { self.passed_over + 1 } else { 0 };
        batch
    }

    /// Chunks of prompts that have places, and of others as far as there are places; so many tokens.
    fn cut(&mut self, batch: &mut Batch, mut room: u32) {
        for place in 0.. {
            if room == 0 || (place == self.begun.len() && !self.begin_one()) {
                return;
            }
            self.cut_one(self.begun[place], &mut room, batch);
        }
    }

    /// Prompt tokens of a step that answers wait for, with so many of them in it; fewer where none runs and a pipeline would be filled
    /// sooner.
    fn short(&self, answers: u32) -> u32 {
        let (room, stages) = (self.tokens.saturating_sub(answers).max(1), self.answers.stages());
        let fills = stages > 1 && self.answers.running() == 0;
        if fills { room.min(caps::through_stages(self.burst, self.tokens, stages)) } else { room }
    }

    /// Where nothing waits for a short step: all there is to compute, in a step long enough to be worth reading the weights and no
    /// longer than allowed; on a pipeline in steps that are through soonest.
    fn long(&self) -> u32 {
        let stages = self.answers.stages();
        if stages > 1 {
            return caps::through_stages(self.burst, self.tokens, stages).min(self.alone);
        }
        self.left.clamp(self.tokens.into(), self.alone.into()) as u32
    }

    /// Whether there is one prompt and nothing else: behind its steps nobody's answer has to wait but its own.
    fn is_lone(&self) -> bool {
        let prompts = self.begun.len() + self.prompts.len();
        prompts <= 1 && self.coming == 0 && self.waiting.is_empty() && self.answers.running() == 0
    }

    /// Gives the next prompt a place.
    fn begin_one(&mut self) -> bool {
        let next = self.prompts.front().and_then(|r| Some((*r, self.jobs.get(r)?.memory)));
        let Some((request, _)) = next.filter(|(_, memory)| self.fits(*memory)) else { return false };
        self.prompts.pop_front();
        self.hold(request);
        self.begun.push_back(request);
        true
    }

    fn cut_one(&mut self, request: RequestNo, room: &mut u32, batch: &mut Batch) {
        let Some(job) = self.jobs.get_mut(&request).filter(|j| j.sent < j.prompt) else { return };
        let tokens = (job.prompt - job.sent).min(*room);
        *room -= tokens;
        if job.sent == job.before {
            self.starting.push((request, RequestPhase::Prompt));
        }
        let (before, after) = (u64::from(job.sent), u64::from(job.sent + tokens));
        job.sent += tokens;
        self.left -= u64::from(tokens);
        batch.prompts += 1;
        batch.prompt_tokens += u64::from(tokens);
        // Attention of a chunk reaches back over all before it.
        batch.prompt_squares += after * after - before * before;
        self.chunks.push_back((request, tokens));
    }

    fn chunk_done(&mut self, (request, tokens): (RequestNo, u32), ended: &mut Vec<(RequestNo, RequestPhase)>) {
        let Some(job) = self.jobs.get_mut(&request) else { return };
        job.done += tokens;
        if job.done == job.prompt {
            // Most likely the first; a short one may be done before a long one that came earlier.
            if let Some(place) = self.begun.iter().position(|r| *r == request) {
                self.begun.remove(place);
            }
            ended.push((request, RequestPhase::Prompt));
        }
    }
}

impl Batching for Chunked {
    fn add(&mut self, task: Task) -> bool {
        let job = self.jobs.entry(task.request).or_default();
        if task.answered == Answered::Here && !job.answered {
            job.answered = true;
            self.answering += 1;
        }
        job.memory += task.memory;
        // What has memory before its prompt is known came from elsewhere.
        self.coming -= usize::from(job.held > 0 && job.prompt == 0);
        match task.part {
            RequestPhase::Prompt => {
                if self.begun.is_empty() && self.prompts.is_empty() {
                    self.burst = 0;
                }
                self.burst += u64::from(task.tokens);
                (job.before, job.prompt) = (task.before, task.before + task.tokens);
                (job.sent, job.done) = (task.before, task.before);
                self.left += u64::from(task.tokens);
                job.context = u64::from(job.prompt) + 1;
                if job.held > 0 { &mut self.begun } else { &mut self.prompts }.push_back(task.request);
            }
            RequestPhase::Answer => {
                job.answer = task.tokens;
                self.waiting.push_back(task.request);
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
        self.answering += usize::from(!job.answered);
        job.answered = true;
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
        self.answering -= usize::from(job.answered);
        self.left -= u64::from(job.prompt - job.sent);
        job.memory
    }

    fn at_once(&self) -> usize {
        let stages = self.answers.stages();
        if stages > 1 && (self.answering == 0 || self.is_lone()) { stages * AHEAD } else { stages }
    }

    fn select(&mut self) -> Batch {
        self.starting.clear();
        self.admit();
        let batch = match self.prompts_first {
            Some(PromptsFirst { beside, patience }) if self.passed_over < patience => self.prompts_then_answers(beside),
            _ => self.answers_then_prompts(),
        };
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
        for _ in 0..batch.prompts {
            let Some(chunk) = self.chunks.pop_front() else { break };
            self.chunk_done(chunk, ended);
        }
        self.answers.ran(batch.answers, iterations, ended);
    }

    fn seen(&self) -> Seen {
        let left = |r: &RequestNo| self.jobs.get(r).map_or(0, |j| j.prompt - j.done);
        Seen {
            waiting: (self.prompts.len() + self.waiting.len()) as u32,
            running: (self.answers.running() + self.begun.len()) as u32,
            pending_tokens: self.begun.iter().chain(&self.prompts).map(left).sum(),
            answers: self.answers.running() as u32,
            context: self.answers.context(),
            held: self.used,
            room: self.capacity,
            step: self.alone,
        }
    }

    fn first_waiting(&self) -> Option<u64> {
        self.prompts.front().and_then(|r| self.jobs.get(r)).map(|j| j.memory)
    }

    fn has_places(&self) -> bool {
        false
    }
}

impl Stepwise for Chunked {
    fn members(&self, each: &mut dyn FnMut(BatchMember)) {
        let Some(batch) = self.batches.back() else { return };
        self.answers.members(batch.answers, each);
        let before = self.chunks.len().saturating_sub(batch.prompts as usize);
        let member =
            |&(request, tokens): &(RequestNo, u32)| BatchMember { request, part: RequestPhase::Prompt, tokens };
        self.chunks.range(before..).map(member).for_each(each);
    }

    fn withdraw(&mut self, request: RequestNo) {
        let coming = self.jobs.get(&request).is_some_and(|j| j.held > 0 && j.prompt == 0 && j.answer == 0);
        self.coming -= usize::from(coming);
        self.release(request);
        self.prompts.retain(|r| *r != request);
        self.begun.retain(|r| *r != request);
        self.waiting.retain(|r| *r != request);
        self.answers.withdraw(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::batching::ServiceNo;

    fn task(request: u32, part: RequestPhase, tokens: u32, answered: Answered) -> Task {
        let (request, memory) = (RequestNo(request), u64::from(tokens));
        Task { request, part, service: ServiceNo::default(), tokens, before: 0, memory, answered }
    }

    /// Prompt tokens and answers of each step, in steps of ten tokens, where an answer runs and two prompts wait.
    fn steps(mut machine: Chunked, prompt: u32, steps: usize) -> Vec<(u64, u32)> {
        assert!(machine.reserve(RequestNo(0), 5));
        machine.add(task(0, RequestPhase::Answer, 100, Answered::Here));
        (1..3).for_each(|n| _ = machine.add(task(n, RequestPhase::Prompt, prompt, Answered::Elsewhere)));
        let mut next = || {
            let batch = machine.select();
            machine.ran(1, &mut Vec::new());
            (batch.prompt_tokens, batch.answers)
        };
        (0..steps).map(|_| next()).collect()
    }

    fn machine() -> Chunked {
        Chunked::new(10, 8, 10_000).alone(20)
    }

    /// Prompt tokens of the steps that set off at once, on two stages, where 128 tokens are worth reading the weights for.
    fn set_off(prompts: &[Answered], answers: bool) -> Vec<u64> {
        let mut machine = Chunked::new(128, 8, 10_000).alone(256).in_stages(2);
        if answers {
            assert!(machine.reserve(RequestNo(0), 5));
            machine.add(task(0, RequestPhase::Answer, 100, Answered::Here));
        }
        (1..).zip(prompts).for_each(|(n, answered)| _ = machine.add(task(n, RequestPhase::Prompt, 256, *answered)));
        let mut steps = Vec::new();
        while steps.len() < machine.at_once() {
            match machine.select().prompt_tokens {
                0 => break,
                tokens => steps.push(tokens),
            }
        }
        steps
    }

    #[test]
    fn a_prompt_that_has_a_pipeline_to_itself_fills_it_with_short_steps() {
        use Answered::{Elsewhere, Here};
        assert_eq!(set_off(&[Elsewhere], false), [64; 4]);
        assert_eq!(set_off(&[Here], false), [64; 4]);
        assert_eq!(set_off(&[Elsewhere; 2], false), [128; 4], "the more there is to compute, the longer");
        assert_eq!(set_off(&[Here; 2], false), [128; 2], "an answer of the first is not to wait for all of the second");
        assert_eq!(set_off(&[Here], true), [127, 128], "an answer runs");
    }

    #[test]
    fn answers_are_in_every_step_unless_prompts_go_first() {
        assert_eq!(steps(machine(), 40, 3), [(9, 1); 3]);
        let mixed = steps(machine().prompts_first(BesidePrompts::Answers, 4), 40, 10);
        assert_eq!(mixed[..4], [(10, 0); 4]);
        assert_eq!(mixed[4], (9, 1), "passed over four times");
        assert_eq!(mixed[5..], [(10, 0), (10, 0), (10, 0), (1, 1), (0, 1)], "beside what leaves tokens");
        let apart = steps(machine().prompts_first(BesidePrompts::Nothing, 16), 40, 5);
        assert_eq!(apart, [(20, 0), (20, 0), (20, 0), (20, 0), (0, 1)]);
    }

    #[test]
    fn answers_are_passed_over_so_many_times_at_most() {
        for (beside, patience) in [(BesidePrompts::Answers, 4), (BesidePrompts::Nothing, 16)] {
            let steps = steps(machine().prompts_first(beside, patience), 2000, 100);
            let longest = steps.split(|(_, answers)| *answers > 0).map(<[_]>::len).max();
            assert_eq!(longest, Some(patience as usize), "{beside:?}");
        }
    }
}
