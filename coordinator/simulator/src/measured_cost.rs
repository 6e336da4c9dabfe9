//! How long an iteration takes, by measurements and by tables of others; by the cost model: [`tsnode_coordinator::replay::iteration_cost`].

use std::sync::Arc;
use tsnode_coordinator::{
    policy::{batching::Batch, routing::Asked},
    replay::iteration_cost::IterationCost,
    scheduler::cost::{Decode, Prefill},
};
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// How long a request takes on a machine that has nothing else to do.
#[must_use]
pub fn alone(cost: &dyn IterationCost, asked: Asked) -> Seconds {
    let tokens = u64::from(asked.prompt);
    let none = Batch { service: asked.service, iterations: 1, ..Batch::default() };
    let prompt = Batch { prompts: 1, prompt_tokens: tokens, prompt_squares: tokens * tokens, ..none };
    let step = |n: u32| cost.iteration(&Batch { answers: 1, context: tokens + u64::from(n), ..none });
    cost.iteration(&prompt) + cost.delay(&prompt) + (1..asked.answer).map(step).sum::<Seconds>()
}

/// A machine with several services, each with its model's speed.
#[derive(Clone, Debug)]
pub struct ServiceCosts(Vec<Arc<dyn IterationCost>>);

impl ServiceCosts {
    /// Services in order of their numbers; numbers past the last cost what the last does. `None` of none.
    #[must_use]
    pub fn new(services: Vec<Arc<dyn IterationCost>>) -> Option<Self> {
        (!services.is_empty()).then_some(Self(services))
    }

    fn of(&self, batch: &Batch) -> &dyn IterationCost {
        &*self.0[usize::from(batch.service.0).min(self.0.len() - 1)]
    }
}

impl IterationCost for ServiceCosts {
    fn iteration(&self, batch: &Batch) -> Seconds {
        self.of(batch).iteration(batch)
    }

    fn delay(&self, batch: &Batch) -> Seconds {
        self.of(batch).delay(batch)
    }
}

/// A straight line from knot to knot; the first and the last go on outside.
#[derive(Clone, Debug, PartialEq)]
pub struct CostLine(Vec<(f64, f64)>);

impl CostLine {
    /// Through these knots, in order of their place; `None` unless there are two.
    #[must_use]
    pub fn new(mut knots: Vec<(f64, f64)>) -> Option<Self> {
        knots.sort_by(|a, b| a.0.total_cmp(&b.0));
        knots.dedup_by(|a, b| a.0 == b.0);
        (knots.len() > 1).then_some(Self(knots))
    }

    /// The value at a place.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let next = self.0.partition_point(|k| k.0 < x).clamp(1, self.0.len() - 1);
        let ((x0, y0), (x1, y1)) = (self.0[next - 1], self.0[next]);
        y0 + (y1 - y0) / (x1 - x0) * (x - x0)
    }
}

/// Times by the number of tokens, as Splitwise's simulator has them: prompts, answers, and prompts with answers beside
/// them a tenth longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Of so many prompt tokens.
    pub prompt: CostLine,
    /// Of so many answers.
    pub answer: CostLine,
}

/// What answers beside prompts cost.
const MIXED: f64 = 1.1;

impl IterationCost for Table {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let tokens = batch.tokens() as f64;
        Seconds(match (batch.prompts, batch.answers) {
            (0, _) => self.answer.at(tokens),
            (_, 0) => self.prompt.at(tokens),
            _ => MIXED * self.prompt.at(tokens),
        })
    }
}

/// Times fitted to a machine's measurements, as DistServe's simulator has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedTimes {
    /// Prompts in one iteration.
    pub prefill: Prefill,
    /// Answers in one iteration, while they are fewer than `many`.
    pub few: Decode,
    /// Answers in one iteration otherwise.
    pub lots: Decode,
    /// From how many answers on.
    pub many: u32,
    /// Stages, alike: each computes its part of an iteration.
    pub stages: u16,
    /// What handing prompts to a stage's workers takes.
    pub handing_prompts: Seconds,
    /// What handing any iteration to the first stage takes.
    pub handing: Seconds,
    /// And for each token that a sequence in it has.
    pub handing_token: SecondsPerToken,
}

impl IterationCost for FittedTimes {
    fn iteration(&self, batch: &Batch) -> Seconds {
        (0..self.stages()).map(|place| self.stage(place, batch)).sum()
    }

    fn stages(&self) -> usize {
        usize::from(self.stages)
    }

    fn stage(&self, place: usize, batch: &Batch) -> Seconds {
        let parts = f64::from(self.stages);
        let (computed, tokens) = if batch.prompts > 0 {
            let tokens = Tokens(batch.prompt_tokens as f64);
            let computed = self.prefill.mean(tokens, batch.prompt_squares as f64);
            (computed / parts + self.handing_prompts, tokens)
        } else {
            let decode = if batch.answers < self.many { &self.few } else { &self.lots };
            let (n, context) = (f64::from(batch.answers), Tokens(batch.context as f64));
            (decode.time(n, context / n) / parts, context - Tokens(n))
        };
        if place == 0 { computed + self.handing + self.handing_token * tokens } else { computed }
    }
}
