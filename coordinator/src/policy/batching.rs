//! What a machine runs next: the seam between batching policies and whoever drives them.

use tsnode_protocol::Seconds;

/// A request's number; smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNo(pub u32);

/// The model a request asks, where machines serve several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceNo(pub u16);

/// What of a request a machine computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestPhase {
    /// The prompt, which yields the first token.
    Prompt,
    /// The tokens after the first.
    Answer,
}

/// Where a request's answer is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answered {
    /// On this machine.
    Here,
    /// On another, or there is only the token that the prompt yields.
    Elsewhere,
}

/// A part of a request that has come to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The request it belongs to.
    pub request: RequestNo,
    /// Whether its prompt or its answer.
    pub part: RequestPhase,
    /// Of which model.
    pub service: ServiceNo,
    /// Tokens to compute, or to generate.
    pub tokens: u32,
    /// Of a prompt, tokens that another machine computed; their KV is here.
    pub before: u32,
    /// Tokens of KV it needs from its start on.
    pub memory: u64,
    /// Where the answer is generated, which an answer's task says of itself.
    pub answered: Answered,
}

/// What one iteration may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Tasks at once: prompts and answers together.
    pub tasks: usize,
    /// Tokens: a prompt's, and one for each answer. A first task may have more.
    pub tokens: u32,
}

/// What runs until the next decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The model that runs.
    pub service: ServiceNo,
    /// Prompts in it.
    pub prompts: u32,
    /// Tokens of those prompts, all together.
    pub prompt_tokens: u64,
    /// Their squared lengths, summed.
    pub prompt_squares: u64,
    /// Answers in it.
    pub answers: u32,
    /// Tokens that answers have before them, all together.
    pub context: u64,
    /// Iterations until an answer ends; one where there are prompts.
    pub iterations: u32,
}

impl Batch {
    /// One prompt of so many tokens.
    #[must_use]
    pub fn prompt(tokens: u32) -> Self {
        let tokens = u64::from(tokens);
        Self { prompts: 1, prompt_tokens: tokens, prompt_squares: tokens * tokens, iterations: 1, ..Self::default() }
    }

    /// A step of so many answers with so many tokens before them, all together.
    #[must_use]
    pub fn answers(answers: u32, context: u64) -> Self {
        Self { answers, context, iterations: 1, ..Self::default() }
    }

    /// These answers beside it.
    #[must_use]
    pub fn with_answers(self, answers: u32, context: u64) -> Self {
        Self { answers, context, ..self }
    }

    /// Nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prompts + self.answers == 0
    }

    /// Prompts and answers in it.
    #[must_use]
    pub fn tasks(&self) -> usize {
        (self.prompts + self.answers) as usize
    }

    /// Tokens computed in an iteration.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + u64::from(self.answers)
    }
}

/// A stage of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageNo {
    /// Its place, from 0.
    pub place: usize,
    /// How many there are.
    pub of: usize,
}

impl StageNo {
    /// Whether batches begin here.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.place == 0
    }

    /// Whether batches end here.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.place + 1 >= self.of
    }
}

/// A machine's queues and memory, and what it runs. It runs a batch for some iterations; whoever drives it says when
/// they are over, and may cut them short at the end of an iteration. A pipeline may have several batches on their way:
/// they end in the order in which they were chosen, each after one iteration.
pub trait Batching: std::fmt::Debug + Send {
    /// A task comes; whether what runs should be cut for it at the end of the present iteration.
    fn add(&mut self, task: Task) -> bool;

    /// Whether an answer joins the queue with its prompt, where one machine does both, or when the prompt is done.
    fn queues_ahead(&self) -> bool;

    /// Whether memory for a task's start is there.
    fn has_room(&self, memory: u64) -> bool;

    /// Sets memory aside for KV that comes from elsewhere; `false` if there is none.
    fn reserve(&mut self, request: RequestNo, memory: u64) -> bool;

    /// Whether KV from elsewhere that found no memory is asked for as soon as there is some; otherwise it is offered again
    /// after a while.
    fn asks_for_kv(&self) -> bool {
        false
    }

    /// A request's KV is no longer needed here; how many tokens of it there were.
    fn release(&mut self, request: RequestNo) -> u64;

    /// Batches it can have on their way at once, where a machine has stages for them.
    fn at_once(&self) -> usize {
        1
    }

    /// Whether the stages of a pipeline choose for themselves ([`Self::select_at`]) among what has come to each; otherwise all
    /// take what [`Self::select`] chose, in order.
    fn stages_choose(&self) -> bool {
        false
    }

    /// What a stage runs next; it runs nothing now.
    fn select_at(&mut self, stage: StageNo) -> Batch {
        if stage.is_first() { self.select() } else { Batch::default() }
    }

    /// A stage has run what it chose. Tasks that this ends, in the batch's order.
    fn ran_at(&mut self, stage: StageNo, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        let _ = stage;
        self.ran(1, ended);
    }

    /// Chooses what runs next; fewer than [`Self::at_once`] batches run now, and no task may be in two.
    fn select(&mut self) -> Batch;

    /// The tasks that start with the batch just chosen.
    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase));

    /// What has just run took so long; said before [`Self::ran`], to policies that count time.
    fn took(&mut self, time: Seconds) {
        let _ = time;
    }

    /// The oldest batch has run so many iterations. Tasks that this ends, in the batch's order.
    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>);

    /// Tokens of its answer that a request has got here; none where a policy does not say.
    fn generated(&self, request: RequestNo) -> u32 {
        let _ = request;
        0
    }

    /// How busy it is.
    fn seen(&self) -> Seen;

    /// Memory the first task that has not started needs.
    fn first_waiting(&self) -> Option<u64>;

    /// Whether more could run beside what runs.
    fn has_places(&self) -> bool;
}

/// What a batch computes of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchMember {
    /// The request it belongs to.
    pub request: RequestNo,
    /// Whether its prompt or its answer.
    pub part: RequestPhase,
    /// Tokens: of a prompt as many as are computed now, of an answer one.
    pub tokens: u32,
}

/// A policy for those who run batches for real, a step at a time, and whose requests may go at any moment.
pub trait Stepwise: Batching {
    /// What the batch just chosen computes.
    fn members(&self, each: &mut dyn FnMut(BatchMember));

    /// A request goes before its end. What of it is in a batch on its way still counts there, and ends with it.
    fn withdraw(&mut self, request: RequestNo);
}

/// What others see of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Tasks that have not started.
    pub waiting: u32,
    /// Tasks that have.
    pub running: u32,
    /// Prompt tokens still to compute.
    pub pending_tokens: u32,
    /// Where prompts come in chunks beside answers, the answers that run.
    pub answers: u32,
    /// Tokens that those have before them, all together.
    pub context: u64,
    /// KV that is set aside there (tokens).
    pub held: u64,
    /// KV that there is memory for (tokens); 0 where it does not say.
    pub room: u64,
    /// Prompt tokens of a batch where nothing is answered, at most; 0 where it does not say.
    pub step: u32,
}

impl Seen {
    /// Whether it has nothing to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        Self { room: 0, step: 0, ..*self } == Self::default()
    }
}
