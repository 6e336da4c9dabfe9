//! One mix at one rate: closed forms first, then a simulation that ends as soon as the verdict is certain.

use super::{
    Aim, Design, MixBudget, Question,
    kinds::{MachineKind, MachineRole},
    targets::{MissedTarget, TargetJudge},
    walk::{BestMix, Mix},
};
use crate::policy::{ageing::Ageing, pools::Pools, shortest_queue::ShortestQueue};
use std::cell::Cell;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::Batch,
        routing::{Asked, Routing},
    },
    replay::machines::{Alike, Arrival, Machine, Simulation},
};
use tsnode_protocol::Seconds;

/// Requests tried one at a time.
const ALONE: usize = 1000;
/// Between them: longer than any takes.
const GAP: Seconds = Seconds(1e5);
/// Part of the closed forms' work that is believed: batches of unequal prompts may be a little quicker than theirs.
const CERTAIN: f64 = 0.95;
/// Load that pools are first tried at.
const LOAD: f64 = 0.85;

/// A design's machines, and the requests they are tried with.
pub struct Trial<'a> {
    /// Which kinds.
    pub design: Design,
    /// Simulations begun.
    pub simulations: u32,
    /// Of those, ended early.
    pub cut: u32,
    /// Mixes ruled out without one.
    pub ruled_out: u32,
    question: &'a Question,
    stop: &'a dyn Fn(u32) -> bool,
    /// The last list, with its rate and time.
    list: Option<TrialRequests>,
}

/// Requests at a rate, and what is asked of them.
struct TrialRequests {
    rate: f64,
    span: Seconds,
    arrivals: Vec<Arrival>,
    judge: TargetJudge,
    /// Machines of either pool that all prompts keep busy, were the other pool not there.
    busy: [f64; 2],
}

impl<'a> Trial<'a> {
    /// Of a design; `stop` hears how many simulations there were, and may end one.
    #[must_use]
    pub fn new(question: &'a Question, design: Design, stop: &'a dyn Fn(u32) -> bool) -> Self {
        Self { design, simulations: 0, cut: 0, ruled_out: 0, question, stop, list: None }
    }

    /// Whether a mix keeps the targets at a rate, for so long; `None` if that was stopped.
    pub fn keeps(&mut self, mix: Mix, rate: f64, span: Seconds) -> Option<bool> {
        if (self.stop)(self.simulations) {
            return None;
        }
        let list = match self.list.take().filter(|l| l.rate == rate && l.span == span) {
            Some(list) => list,
            None => self.list(rate, span),
        };
        let parts = f64::from(mix.prompts) / list.busy[0] + f64::from(mix.answers) / list.busy[1];
        let kept = if parts < CERTAIN {
            self.ruled_out += 1;
            Some(false)
        } else {
            self.run(mix, &list.arrivals, &list.judge).map(|broken| broken.is_none())
        };
        self.list = Some(list);
        kept
    }

    /// What one machine of each pool breaks with a request at a time; `None` if that was stopped.
    pub fn broken_alone(&mut self) -> Option<Option<MissedTarget>> {
        let arrivals = self.question.demand.apart(ALONE, GAP);
        let judge = TargetJudge::new(&self.question.targets, &arrivals);
        let answers = u32::from(matches!(self.design, Design::Split { .. }));
        let simulation = self.simulation(Mix { prompts: 1, answers });
        let outcome = simulation.run(&arrivals, &|_| (self.stop)(self.simulations));
        self.simulations += 1;
        (outcome.arrived == arrivals.len()).then(|| judge.broken(&outcome.traces))
    }

    /// Where a search starts: pools at a usual load; as steps, none.
    #[must_use]
    pub fn guess(&self, aim: Aim) -> BestMix {
        let (prompt, answer) = self.work();
        let (rate, steps) = match aim {
            Aim::Least { rate, .. } => (rate, 0),
            Aim::Most { step } => {
                let rate =
                    self.question.budgets.iter().map(|b| self.rate_within(b, prompt, answer)).fold(1e6, f64::min);
                (rate, (rate / step) as u32)
            }
        };
        let machines = |work: f64| ((rate * work / LOAD).ceil() as u32).max(1);
        let mix = match self.design {
            Design::Split { .. } => Mix { prompts: machines(prompt), answers: machines(answer) },
            Design::Together(_) => Mix { prompts: machines(prompt + answer), answers: 0 },
        };
        BestMix { mix, steps: steps.max(1) }
    }

    /// Requests a second that a budget allows at a usual load, by a machine's time for a prompt and for an answer.
    fn rate_within(&self, budget: &MixBudget, prompt: f64, answer: f64) -> f64 {
        let (a, b) = self.kinds();
        let takes = |kind: &MachineKind, work: f64| kind.weight(budget.of).unwrap_or(0.0) * work;
        LOAD * budget.most / (takes(a, prompt) + takes(b, answer))
    }

    /// Machine time that a prompt takes, and its answer: of the memory it fills or of the places in a batch that it
    /// takes, whichever is more (s, means).
    fn work(&self) -> (f64, f64) {
        let (a, b) = self.roles();
        let lengths = self.question.demand.lengths();
        let n = lengths.len() as f64;
        let prompt = lengths.iter().map(|l| least(a, l.prompt)).sum::<f64>() / n;
        let answer = |l: &Asked| {
            let context = u64::from(l.prompt) + u64::from(l.answer);
            let one = Batch { answers: 1, context, iterations: 1, ..Batch::default() };
            let part = (context as f64 / b.room.max(1) as f64).max(1.0 / b.limits.tasks.max(1) as f64);
            part * b.speed.iteration(&one).0 * f64::from(l.answer)
        };
        (prompt, lengths.iter().map(answer).sum::<f64>() / n)
    }

    fn kinds(&self) -> (&'a MachineKind, &'a MachineKind) {
        let (a, b) = self.design.kinds();
        (&self.question.kinds[a.0], &self.question.kinds[b.0])
    }

    fn roles(&self) -> (&'a MachineRole, &'a MachineRole) {
        let (a, b) = self.kinds();
        match self.design {
            Design::Split { .. } => (&a.prompts, &b.answers),
            Design::Together(_) => (&a.both, &a.both),
        }
    }

    fn list(&self, rate: f64, span: Seconds) -> TrialRequests {
        let arrivals = self.question.demand.arrivals(rate, span);
        let judge = TargetJudge::new(&self.question.targets, &arrivals);
        let (a, b) = self.roles();
        let busy = [a, b].map(|role| busy(role, &arrivals, &judge));
        TrialRequests { rate, span, arrivals, judge, busy }
    }

    /// What these requests break; the outer `None` if that was stopped.
    fn run(&mut self, mix: Mix, arrivals: &[Arrival], judge: &TargetJudge) -> Option<Option<MissedTarget>> {
        let (lost, stopped) = (Cell::new(false), Cell::new(false));
        let outcome = self.simulation(mix).run_until(arrivals, &|so_far| {
            stopped.set((self.stop)(self.simulations));
            lost.set(judge.is_lost(so_far));
            stopped.get() || lost.get()
        });
        self.simulations += 1;
        self.cut += u32::from(lost.get());
        match (lost.get(), stopped.get()) {
            // Which one broke first is not asked of a simulation that was cut.
            (true, _) => Some(Some(MissedTarget { time: None, share: 0.0, got: 0.0, want: 0.0 })),
            (_, true) => None,
            _ => Some(judge.broken(&outcome.traces)),
        }
    }

    fn simulation(&self, mix: Mix) -> Simulation {
        let (a, b) = self.roles();
        let machine = |role: &MachineRole| Machine {
            batching: Box::new(Ageing::new(role.limits, role.room)),
            cost: Arc::clone(&role.speed),
        };
        let roles = || (0..mix.prompts).map(|_| a).chain((0..mix.answers).map(|_| b));
        let rooms: Vec<u64> = roles().map(|r| r.room).collect();
        let routing: Box<dyn Routing> = match self.design {
            Design::Split { .. } => Box::new(Pools::new(mix.prompts as usize, &rooms)),
            Design::Together(_) => Box::new(ShortestQueue::new(rooms.len())),
        };
        let links = Box::new(Alike { per_token: self.question.transfer });
        Simulation::new(roles().map(machine).collect(), routing, links)
    }
}

/// The least time that a prompt keeps a machine, alone or as a part of a batch of its like (s).
fn least(role: &MachineRole, prompt: u32) -> f64 {
    let alike = |n: u32| {
        let (tokens, n) = (u64::from(prompt), u64::from(n));
        let batch = Batch {
            prompts: n as u32,
            prompt_tokens: n * tokens,
            prompt_squares: n * tokens * tokens,
            iterations: 1,
            ..Batch::default()
        };
        role.speed.iteration(&batch).0 / n as f64
    };
    let most = (role.limits.tokens / prompt.max(1)).clamp(1, role.limits.tasks.max(1) as u32);
    (0..=most.ilog2()).map(|log| 1 << log).chain([most]).map(alike).fold(f64::INFINITY, f64::min)
}

/// Machines of a pool that must be busy all the time, from the first request until the last first token may come: each
/// prompt's least time over that time, without as many of the longest as may be late. The most of what that gives with
/// the longest left out.
fn busy(role: &MachineRole, arrivals: &[Arrival], judge: &TargetJudge) -> f64 {
    let (deadlines, may_miss) = judge.first_tokens();
    let last = arrivals.last().map_or(0.0, |a| a.at.0);
    let mut work: Vec<(f64, f64)> =
        arrivals.iter().zip(deadlines).map(|(a, deadline)| (deadline, least(role, a.asked.prompt))).collect();
    work.sort_by(|a, b| a.0.total_cmp(&b.0));
    let quarters = [4, 5, 6, 7, 8].map(|eighth| work.len() * eighth / 8);
    let machines = |n: usize| {
        let part = &work[..n];
        let longest = part.last().map_or(f64::INFINITY, |w| w.0);
        let mut times: Vec<f64> = part.iter().map(|w| w.1).collect();
        times.sort_by(f64::total_cmp);
        times.truncate(n.saturating_sub(may_miss));
        let bound = times.iter().sum::<f64>() / (last + longest);
        if bound.is_finite() { bound } else { 0.0 }
    };
    quarters.map(machines).into_iter().fold(f64::MIN_POSITIVE, f64::max)
}
