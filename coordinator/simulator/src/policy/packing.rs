//! Answers on as few machines as hold them, and prompts where they slow requests least: there are no pools, and which
//! machines do what follows from what there is to do.
//!
//! An answer goes to the first machine that has room for all its KV, in one order for all, so that the last machines of it
//! stay free of answers; those worst at prompts come first in it. A prompt goes where the sum of slowdowns grows least:
//! its own, which is the time until it is done, and those of the answers beside it, which it holds up; each
//! as a multiple of what the same takes alone. Used are the times that iterations are predicted to take, lengths of prompts, and
//! of answers what a predictor says ([`Asked`]).

use super::piggybacked::{Piggybacking, ridden};
use std::collections::VecDeque;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, Seen},
        routing::{Asked, MachineNo, Routing, RoutingDecision},
    },
    replay::iteration_cost::IterationCost,
};
use tsnode_protocol::Seconds;

/// A step of answers may take so many times what one alone takes there: half the requests of Splitwise's Table VI may.
const PACE: f64 = 1.25;
/// A prompt by which machines are told apart (tokens).
const TYPICAL: u32 = 1024;

/// What is known of a machine.
#[derive(Clone, Debug)]
pub struct MachineSpeed {
    /// How long its iterations take.
    pub cost: Arc<dyn IterationCost>,
    /// KV that fits (tokens).
    pub capacity: u64,
}

/// Where answers go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerPacking {
    /// To the first machine with room.
    #[default]
    Packed,
    /// Where the least is promised, as in the paper.
    Spread,
}

/// Where prompts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptPacking {
    /// Where they slow requests least.
    #[default]
    Gentle,
    /// Where they are done first.
    Soonest,
}

/// How long an answer is taken to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// As long as asked: a predictor's word, or a trace's.
    #[default]
    Asked,
    /// So many tokens, whatever is asked.
    Typical(u32),
}

/// The rules, and what they are compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingRules {
    /// Of answers.
    pub answers: AnswerPacking,
    /// Of prompts.
    pub prompts: PromptPacking,
    /// Of answers beside prompts.
    pub beside: Piggybacking,
    /// Of lengths that are not known.
    pub length: Length,
}

/// A machine and what was sent there.
#[derive(Clone, Debug)]
struct PackedMachine {
    known: MachineSpeed,
    /// KV promised (tokens).
    promised: u64,
    answers: u32,
    context: u64,
    /// What a stall of a second adds to the slowdowns of its answers, all together.
    fragile: f64,
    /// Prompts in order, with the time that each takes.
    prompts: VecDeque<Seconds>,
    /// When the first of them is done, and what the others take.
    done: Seconds,
    backlog: Seconds,
}

impl PackedMachine {
    fn has_room(&self, memory: u64) -> bool {
        self.promised + memory <= self.known.capacity
    }

    /// What a prompt takes here, and what it holds answers up.
    fn takes(&self, prompt: u32, beside: Piggybacking) -> (Seconds, Seconds) {
        let (cost, batch) = (&*self.known.cost, Batch::prompt(prompt));
        let alone = cost.iteration(&batch);
        if self.answers == 0 {
            return (alone, Seconds(0.0));
        }
        let both = batch.with_answers(self.answers, self.context);
        let step = Batch::answers(self.answers, self.context);
        if beside == Piggybacking::Cheaper && ridden(cost, &batch, &both, &step) {
            let time = cost.iteration(&both);
            (time, (time - cost.iteration(&step)).max(Seconds(0.0)))
        } else {
            (alone, alone)
        }
    }

    fn add(&mut self, takes: Seconds, now: Seconds) {
        if self.prompts.is_empty() {
            (self.done, self.backlog) = (now + takes, Seconds(0.0));
        } else {
            self.backlog += takes;
        }
        self.prompts.push_back(takes);
    }

    fn first_done(&mut self, now: Seconds) {
        self.prompts.pop_front();
        if let Some(&takes) = self.prompts.front() {
            self.done = now + takes;
            self.backlog -= takes;
        }
    }

    /// How long until the prompts it has are done.
    fn wait(&self, now: Seconds) -> Seconds {
        if self.prompts.is_empty() { Seconds(0.0) } else { (self.done - now).max(Seconds(0.0)) + self.backlog }
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct PackingPolicy {
    /// What requests take alone.
    alone: Arc<dyn IterationCost>,
    rules: PackingRules,
    /// Most answers of a machine.
    places: u32,
    machines: Vec<PackedMachine>,
    /// The order in which machines are filled with answers.
    order: Vec<usize>,
    now: Seconds,
}

impl PackingPolicy {
    /// Over these machines, each with places for so many answers. `alone` says what a request takes that slowdowns are
    /// multiples of.
    #[must_use]
    pub fn new(alone: Arc<dyn IterationCost>, rules: PackingRules, places: usize, machines: Vec<MachineSpeed>) -> Self {
        let weak = |k: &MachineSpeed| {
            let (prompt, step) = (Batch::prompt(TYPICAL), Batch::answers(1, u64::from(TYPICAL)));
            k.cost.iteration(&prompt) / k.cost.iteration(&step)
        };
        let mut order: Vec<usize> = (0..machines.len()).rev().collect();
        order.sort_by(|a, b| weak(&machines[*b]).total_cmp(&weak(&machines[*a])));
        let zero = Seconds(0.0);
        let machine = |known| PackedMachine {
            known,
            promised: 0,
            answers: 0,
            context: 0,
            fragile: 0.0,
            prompts: VecDeque::new(),
            done: zero,
            backlog: zero,
        };
        let machines = machines.into_iter().map(machine).collect();
        Self { alone, rules, places: places as u32, machines, order, now: zero }
    }

    /// The request as far as it is known.
    fn known(&self, asked: Asked) -> Asked {
        match self.rules.length {
            Length::Asked => asked,
            Length::Typical(answer) => Asked { answer: answer.max(1), ..asked },
        }
    }

    fn for_answer(&self, asked: Asked) -> Option<usize> {
        let memory = asked.prompt_memory() + asked.answer_memory();
        let one = Batch::answers(1, asked.prompt_memory());
        let fits = |m: &PackedMachine| {
            let step = Batch::answers(m.answers + 1, m.context + asked.prompt_memory());
            let (cost, room) = (&m.known.cost, m.has_room(memory) && m.answers < self.places);
            room && cost.iteration(&step) <= cost.iteration(&one) * PACE
        };
        let first = || self.order.iter().copied().find(|m| fits(&self.machines[*m]));
        let least = || self.order.iter().copied().min_by_key(|m| self.machines[*m].promised);
        match self.rules.answers {
            AnswerPacking::Packed => first().or_else(least),
            AnswerPacking::Spread => least(),
        }
    }

    /// The machine, and what the prompt takes there.
    fn for_prompt(&self, asked: Asked) -> Option<(usize, Seconds)> {
        let alone = self.alone.iteration(&Batch::prompt(asked.prompt));
        let mut best: Option<(f64, usize, Seconds)> = None;
        for (place, machine) in self.machines.iter().enumerate() {
            let (takes, stall) = machine.takes(asked.prompt, self.rules.beside);
            let own = (machine.wait(self.now) + takes) / alone;
            let others = match self.rules.prompts {
                PromptPacking::Gentle => machine.fragile * stall.0,
                PromptPacking::Soonest => 0.0,
            };
            let room = machine.answers == 0 || machine.has_room(asked.prompt_memory());
            let slower = if room { own + others } else { f64::INFINITY };
            if best.is_none_or(|(least, ..)| slower < least) {
                best = Some((slower, place, takes));
            }
        }
        best.map(|(_, place, takes)| (place, takes))
    }

    /// What a stall of a second adds to a request's slowdown.
    fn fragile(&self, asked: Asked) -> f64 {
        let step = self.alone.iteration(&Batch::answers(1, asked.prompt_memory()));
        1.0 / (step.0 * f64::from(asked.answer))
    }
}

impl Routing for PackingPolicy {
    fn at(&mut self, now: Seconds) {
        self.now = now;
    }

    fn route(&mut self, asked: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let asked = self.known(asked);
        let ((prompt, takes), answer, fragile) =
            (self.for_prompt(asked)?, self.for_answer(asked)?, self.fragile(asked));
        self.machines[prompt].add(takes, self.now);
        let machine = &mut self.machines[answer];
        machine.promised += asked.prompt_memory() + asked.answer_memory();
        machine.context += asked.prompt_memory();
        machine.answers += 1;
        machine.fragile += fragile;
        Some(RoutingDecision::whole(MachineNo(prompt as u32), MachineNo(answer as u32)))
    }

    fn prompt_done(&mut self, machine: MachineNo, _: Asked) {
        self.machines[machine.0 as usize].first_done(self.now);
    }

    fn answer_done(&mut self, machine: MachineNo, asked: Asked) {
        let asked = self.known(asked);
        let fragile = self.fragile(asked);
        let machine = &mut self.machines[machine.0 as usize];
        machine.promised -= asked.prompt_memory() + asked.answer_memory();
        machine.context -= asked.prompt_memory();
        machine.answers -= 1;
        machine.fragile = if machine.answers == 0 { 0.0 } else { machine.fragile - fragile };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured_cost::{CostLine, Table};

    /// A second for a thousand prompt tokens, 50 ms for a step, 64 or fewer answers.
    fn packing(machines: usize, capacity: u64, rules: PackingRules) -> PackingPolicy {
        let line = |from: f64, to: f64| CostLine::new(vec![(0.0, from), (1000.0, to)]).unwrap();
        let cost: Arc<dyn IterationCost> = Arc::new(Table { prompt: line(0.0, 1.0), answer: line(0.05, 0.05) });
        let known = MachineSpeed { cost: cost.clone(), capacity };
        PackingPolicy::new(cost, rules, 64, vec![known; machines])
    }

    fn routes(packing: &mut PackingPolicy, asked: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut one = |&(prompt, answer): &(u32, u32)| {
            let route = packing.route(Asked::new(prompt, answer), &|_| Seen::default()).unwrap();
            (route.prompt.0, route.answer.0)
        };
        asked.iter().map(&mut one).collect()
    }

    #[test]
    fn answers_fill_one_machine_after_the_other_from_the_last() {
        let mut packing = packing(3, 1000, PackingRules::default());
        let answers = |all: Vec<(u32, u32)>| all.into_iter().map(|r| r.1).collect::<Vec<u32>>();
        assert_eq!(answers(routes(&mut packing, &[(300, 100); 6])), [2, 2, 1, 1, 0, 0]);
        // Room again where an answer ended; and where there is none, the least full.
        packing.answer_done(MachineNo(2), Asked::new(300, 100));
        assert_eq!(answers(routes(&mut packing, &[(300, 100), (100, 50), (400, 100)])), [2, 2, 1]);
    }

    #[test]
    fn prompts_keep_away_from_answers_until_waiting_is_worse() {
        let prompts = |prompts: PromptPacking| {
            let mut packing = packing(2, 100_000, PackingRules { prompts, ..PackingRules::default() });
            // Four short answers on machine 1, whose prompts are done.
            for (prompt, _) in routes(&mut packing, &[(100, 2); 4]) {
                packing.prompt_done(MachineNo(prompt), Asked::new(100, 2));
            }
            routes(&mut packing, &[(100, 10); 6]).into_iter().map(|r| r.0).collect::<Vec<u32>>()
        };
        // A prompt takes 0.1 s, and holds the four up for 0.065 s beside a step: of 0.1 s each has.
        let gentle = prompts(PromptPacking::Gentle);
        assert_eq!((&gentle[..3], gentle.contains(&1)), (&[0, 0, 0][..], true), "{gentle:?}");
        assert_eq!(prompts(PromptPacking::Soonest)[..4], [0, 1, 0, 1]);
    }

    #[test]
    fn what_waits_is_known_and_forgotten() {
        let mut packing = packing(1, 100_000, PackingRules::default());
        routes(&mut packing, &[(100, 1), (200, 1)]);
        let wait = |p: &PackingPolicy| p.machines[0].wait(p.now).0;
        assert!(wait(&packing) > 0.3 - 1e-9 && wait(&packing) < 0.4);
        packing.at(Seconds(0.1));
        packing.prompt_done(MachineNo(0), Asked::new(100, 1));
        packing.at(Seconds(0.4));
        packing.prompt_done(MachineNo(0), Asked::new(200, 1));
        assert_eq!(packing.machines[0].wait(packing.now), Seconds(0.0));
    }

    #[test]
    fn machines_worst_at_prompts_are_filled_with_answers_first() {
        let line = |x: f64| CostLine::new(vec![(0.0, 0.0), (1000.0, x)]).unwrap();
        let cost = |prompt: f64| -> Arc<dyn IterationCost> {
            Arc::new(Table { prompt: line(prompt), answer: CostLine::new(vec![(0.0, 0.05), (1.0, 0.05)]).unwrap() })
        };
        let known = |prompt| MachineSpeed { cost: cost(prompt), capacity: 1000 };
        let machines = vec![known(1.0), known(3.0), known(2.0)];
        let mut packing = PackingPolicy::new(cost(1.0), PackingRules::default(), 64, machines);
        let answers: Vec<u32> = routes(&mut packing, &[(900, 50); 3]).into_iter().map(|r| r.1).collect();
        assert_eq!(answers, [1, 2, 0]);
    }
}
