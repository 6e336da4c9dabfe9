//! How many machines of which kind: the cheapest, the least power or the most requests a second (Splitwise §IV-D).
//!
//! | question | where |
//! |---|---|
//! | what may be bought, and what that costs | [`kinds`] |
//! | which requests come | [`demand`] |
//! | what must be kept, and whether it can still be | [`targets`] |
//! | does this mix keep it | [`trial`]: a simulation, ended as soon as the answer is certain |
//! | which mixes are worth a trial | [`walk`] |
//! | how that looks | [`crate::plot::mixes`] |
//!
//! A mix is tried on a short list of requests first; the long one confirms, or moves on from there.

pub mod demand;
pub mod kinds;
pub mod targets;
pub mod trial;
pub mod walk;

use self::{
    demand::Demand,
    kinds::{KindNo, MachineKind, Measure},
    targets::{MissedTarget, ProvisioningTargets},
    trial::Trial,
    walk::{Limit, Mix, MixSpace, MixWalk, PoolShape, TriedMix},
};
use serde::Serialize;
use tsnode_protocol::{Seconds, SecondsPerToken};

/// Which kinds of machines do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Design {
    /// One kind for prompts, one for answers; they may be the same (Splitwise-HH, -HA …).
    Split {
        /// Computes prompts.
        prompts: KindNo,
        /// Generates answers.
        answers: KindNo,
    },
    /// Every machine does both (Splitwise's baselines).
    Together(KindNo),
}

impl Design {
    /// All there are of so many kinds.
    #[must_use]
    pub fn all(kinds: usize) -> Vec<Self> {
        let each = || (0..kinds).map(KindNo);
        let split = each().flat_map(|prompts| each().map(move |answers| Self::Split { prompts, answers }));
        each().map(Self::Together).chain(split).collect()
    }

    /// The kinds for prompts and for answers.
    #[must_use]
    pub fn kinds(self) -> (KindNo, KindNo) {
        match self {
            Self::Split { prompts, answers } => (prompts, answers),
            Self::Together(kind) => (kind, kind),
        }
    }

    fn shape(self) -> PoolShape {
        match self {
            Self::Split { .. } => PoolShape::Two,
            Self::Together(_) => PoolShape::One,
        }
    }
}

/// The most of something that a mix may take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MixBudget {
    /// What.
    pub of: Measure,
    /// How much, in the measure's unit.
    pub most: f64,
}

/// What is sought.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Aim {
    /// The least of a measure that keeps the targets at a rate: iso-throughput.
    Least {
        /// What should be little.
        of: Measure,
        /// Requests a second.
        rate: f64,
    },
    /// The most requests a second that the budgets allow, in steps: iso-cost, iso-power.
    Most {
        /// Rates are multiples of this (requests a second).
        step: f64,
    },
}

/// Everything an answer depends on.
#[derive(Clone, Debug)]
pub struct Question {
    /// What may be bought.
    pub kinds: Vec<MachineKind>,
    /// Which combinations are looked at.
    pub designs: Vec<Design>,
    /// The requests.
    pub demand: Demand,
    /// What must be kept.
    pub targets: ProvisioningTargets,
    /// What is sought.
    pub aim: Aim,
    /// What no mix may exceed; an aim for the most wants at least one.
    pub budgets: Vec<MixBudget>,
    /// Most machines in a pool.
    pub machines: u32,
    /// The list that finds.
    pub short: Seconds,
    /// The list that decides.
    pub long: Seconds,
    /// KV from machine to machine.
    pub transfer: SecondsPerToken,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuestionError {
    /// A kind without a figure.
    #[error("the {measure} of {kind} is not known")]
    Unknown {
        /// Which figure.
        measure: Measure,
        /// Of which kind.
        kind: String,
    },
    /// A number that cannot be.
    #[error("{what} is {value}: it must be a positive number")]
    Number {
        /// Which.
        what: &'static str,
        /// What it says.
        value: f64,
    },
    /// The most of what has no end.
    #[error("the most requests a second without a budget has no end")]
    NoBudget,
}

/// A mix with what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Which kinds.
    pub design: Design,
    /// How many.
    pub mix: Mix,
    /// Requests a second that it was found to keep.
    pub rate: f64,
    /// $ an hour.
    pub cost: Option<f64>,
    /// W.
    pub power: Option<f64>,
}

/// What came of one design.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Which.
    pub design: Design,
    /// The best of it.
    pub best: Option<Choice>,
    /// What its machines break even with one request at a time: no number of them helps.
    pub broken: Option<MissedTarget>,
    /// Mixes simulated with the long list, in order.
    pub looks: Vec<TriedMix>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProvisioningAnswer {
    /// The best of all.
    pub best: Option<Choice>,
    /// Each design, in the question's order.
    pub designs: Vec<Tried>,
    /// Simulations begun.
    pub simulations: u32,
    /// Of those, ended early because what they should show was certain.
    pub cut: u32,
    /// Mixes that closed forms ruled out.
    pub ruled_out: u32,
    /// Whether the search came to its end; what is there otherwise is the best so far.
    pub finished: bool,
}

/// How far a search is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProvisioningProgress {
    /// Simulations begun.
    pub simulations: u32,
    /// The design looked at now.
    pub design: Design,
    /// The best so far of all designs that are done.
    pub best: Option<Choice>,
}

/// Looks for the best mix. `stop` hears often how far it is, and may end it with the best so far.
///
/// # Errors
/// What the question lacks.
pub fn provision(
    question: &Question,
    stop: &dyn Fn(ProvisioningProgress) -> bool,
) -> Result<ProvisioningAnswer, QuestionError> {
    check(question)?;
    let mut answer = ProvisioningAnswer { finished: true, ..ProvisioningAnswer::default() };
    for &design in &question.designs {
        let (before, best) = (answer.simulations, answer.best);
        let stop = |simulations| stop(ProvisioningProgress { simulations: before + simulations, design, best });
        let mut trial = Trial::new(question, design, &stop);
        let tried = one(question, &mut trial);
        answer.finished &= tried.1;
        answer.simulations += trial.simulations;
        answer.cut += trial.cut;
        answer.ruled_out += trial.ruled_out;
        answer.best = better(question, answer.best, tried.0.best);
        answer.designs.push(tried.0);
        if !answer.finished {
            break;
        }
    }
    Ok(answer)
}

/// The most steps of rate that a given mix keeps, in a list as long as the question's long one; `None` if that was
/// stopped.
#[must_use]
pub fn sustained(question: &Question, design: Design, mix: Mix, step: f64, stop: &dyn Fn(u32) -> bool) -> Option<u32> {
    let mut trial = Trial::new(question, design, stop);
    let space = MixSpace { shape: design.shape(), limits: Vec::new(), machines: u32::MAX };
    let mut look = |mix, rate| trial.keeps(mix, rate, question.long);
    let mut walk = MixWalk::new(&space, &mut look);
    walk.climb(mix, step, 0, 1)?;
    Some(walk.best.map_or(0, |b| b.steps))
}

fn check(question: &Question) -> Result<(), QuestionError> {
    let positive = |what, value: f64| match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(QuestionError::Number { what, value }),
    };
    positive("the short list's time", question.short.0)?;
    positive("the long list's time", question.long.0)?;
    let aimed = match question.aim {
        Aim::Least { of, rate } => positive("the rate", rate).map(|()| Some(of)),
        Aim::Most { step } => positive("the step between rates", step).map(|()| None),
    }?;
    if aimed.is_none() && question.budgets.is_empty() {
        return Err(QuestionError::NoBudget);
    }
    for budget in &question.budgets {
        positive("a budget", budget.most)?;
    }
    let measures = || question.budgets.iter().map(|b| b.of).chain(aimed);
    for design in &question.designs {
        let (a, b) = design.kinds();
        for kind in [a, b].map(|k| &question.kinds[k.0]) {
            if let Some(measure) = measures().find(|m| kind.weight(*m).is_none()) {
                return Err(QuestionError::Unknown { measure, kind: kind.name.clone() });
            }
        }
    }
    Ok(())
}

/// One design, and whether its search came to its end.
fn one(question: &Question, trial: &mut Trial<'_>) -> (Tried, bool) {
    let design = trial.design;
    let mut tried = Tried { design, best: None, broken: None, looks: Vec::new() };
    match trial.broken_alone() {
        None => return (tried, false),
        Some(Some(broken)) => return (Tried { broken: Some(broken), ..tried }, true),
        Some(None) => {}
    }
    let space = space(question, design);
    let (mut start, mut finished) = (trial.guess(question.aim), true);
    for span in [question.short, question.long] {
        if span == question.long || question.short < question.long {
            let mut look = |mix, rate| trial.keeps(mix, rate, span);
            let mut walk = MixWalk::new(&space, &mut look);
            finished = match question.aim {
                Aim::Least { of, rate } => walk.lightest(weights(question, design, of), rate, start.mix).is_some(),
                Aim::Most { step } => walk.most(step, start).is_some(),
            };
            let rate = |steps: u32| match question.aim {
                Aim::Least { rate, .. } => rate,
                Aim::Most { step } => step * f64::from(steps),
            };
            tried.best = walk.best.map(|found| choice(question, design, found.mix, rate(found.steps)));
            tried.looks = walk.looks;
            start = walk.best.unwrap_or(start);
            if !finished {
                break;
            }
        }
    }
    (tried, finished)
}

fn space(question: &Question, design: Design) -> MixSpace {
    let limit = |b: &MixBudget| Limit { weights: weights(question, design, b.of), most: b.most };
    MixSpace {
        shape: design.shape(),
        limits: question.budgets.iter().map(limit).collect(),
        machines: question.machines.max(1),
    }
}

/// What a machine for prompts and one for answers take of a measure.
fn weights(question: &Question, design: Design, of: Measure) -> [f64; 2] {
    let (prompts, answers) = design.kinds();
    [prompts, answers].map(|k| question.kinds[k.0].weight(of).unwrap_or(0.0))
}

fn choice(question: &Question, design: Design, mix: Mix, rate: f64) -> Choice {
    let sum = |of| {
        let (prompts, answers) = design.kinds();
        let weight = |kind: KindNo, n: u32| question.kinds[kind.0].weight(of).map(|w| w * f64::from(n));
        Some(weight(prompts, mix.prompts)? + weight(answers, mix.answers)?)
    };
    Choice { design, mix, rate, cost: sum(Measure::Cost), power: sum(Measure::Power) }
}

/// The better of two; the first of equals.
fn better(question: &Question, a: Option<Choice>, b: Option<Choice>) -> Option<Choice> {
    let (Some(first), Some(second)) = (a, b) else { return a.or(b) };
    let is_better = match question.aim {
        Aim::Least { of, .. } => second.takes(of) < first.takes(of),
        Aim::Most { .. } => second.rate > first.rate,
    };
    Some(if is_better { second } else { first })
}

impl Choice {
    /// What it takes of a measure; infinite if that is not known.
    #[must_use]
    pub fn takes(&self, of: Measure) -> f64 {
        match of {
            Measure::Cost => self.cost.unwrap_or(f64::INFINITY),
            Measure::Power => self.power.unwrap_or(f64::INFINITY),
            Measure::Machines => f64::from(self.mix.prompts + self.mix.answers),
        }
    }
}
