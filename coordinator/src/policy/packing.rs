//! Answers on as few machines as hold them, and prompts where they slow requests least: there are no pools, and which
//! machines do what follows from what there is to do.
//!
//! An answer goes to the first machine that has room for all its KV, in one order for all, so that the last machines of it
//! stay free of answers; those worst at prompts come first in it. A prompt goes where the sum of slowdowns grows least:
//! its own, which is the time until it is done, and those of the answers beside it, which it holds up; each
//! as a multiple of what the same takes alone. Used are the times that iterations are predicted to take, lengths of prompts, and
//! of answers what a predictor says ([`Asked`]).

use super::{
    batching::{Batch, Seen},
    riding::{Beside, ridden},
    routing::{Asked, MachineNo, Route, Routing},
};
use crate::simulator::cost::IterationCost;
use std::collections::VecDeque;
use std::sync::Arc;
use tsnode_protocol::Seconds;

/// A step of answers may take so many times what one alone takes: half the requests of Splitwise's Table VI may.
const PACE: f64 = 1.25;
/// A prompt by which machines are told apart (tokens).
const TYPICAL: u32 = 1024;

/// What is known of a machine.
#[derive(Clone, Debug)]
pub struct Known {
    /// How long its iterations take.
    pub cost: Arc<dyn IterationCost>,
    /// KV that fits (tokens).
    pub capacity: u64,
}

/// Where answers go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// To the first machine with room.
    #[default]
    Packed,
    /// Where the least is promised, as in the paper.
    Spread,
}

/// Where prompts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prompts {
    /// Where they slow requests least.
    #[default]
    Gentle,
    /// Where they are done first.
    Soonest,
}

/// The rules, and what they are compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Of answers.
    pub answers: Answers,
    /// Of prompts.
    pub prompts: Prompts,
    /// Of answers beside prompts.
    pub beside: Beside,
}

/// A machine and what was sent there.
#[derive(Clone, Debug)]
struct Machine {
    known: Known,
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

impl Machine {
    fn has_room(&self, memory: u64) -> bool {
        self.promised + memory <= self.known.capacity
    }

    /// What a prompt takes here, and what it holds answers up.
    fn takes(&self, prompt: u32, beside: Beside) -> (Seconds, Seconds) {
        let (cost, batch) = (&*self.known.cost, Batch::prompt(prompt));
        let alone = cost.iteration(&batch);
        if self.answers == 0 {
            return (alone, Seconds(0.0));
        }
        let both = batch.with_answers(self.answers, self.context);
        let step = Batch::answers(self.answers, self.context);
        if beside == Beside::Cheaper && ridden(cost, &batch, &both, &step) {
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
            self.backlog = self.backlog - takes;
        }
    }

    /// How long until the prompts it has are done.
    fn wait(&self, now: Seconds) -> Seconds {
        if self.prompts.is_empty() { Seconds(0.0) } else { (self.done - now).max(Seconds(0.0)) + self.backlog }
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Packing {
    /// What requests take alone.
    alone: Arc<dyn IterationCost>,
    rules: Rules,
    /// Most answers of a machine.
    places: u32,
    machines: Vec<Machine>,
    /// The order in which machines are filled with answers.
    order: Vec<usize>,
    now: Seconds,
}

impl Packing {
    /// Over these machines, each with places for so many answers. `alone` says what a request takes that slowdowns are
    /// multiples of.
    #[must_use]
    pub fn new(alone: Arc<dyn IterationCost>, rules: Rules, places: usize, machines: Vec<Known>) -> Self {
        let weak = |k: &Known| {
            let (prompt, step) = (Batch::prompt(TYPICAL), Batch::answers(1, u64::from(TYPICAL)));
            k.cost.iteration(&prompt) / k.cost.iteration(&step)
        };
        let mut order: Vec<usize> = (0..machines.len()).rev().collect();
        order.sort_by(|a, b| weak(&machines[*b]).total_cmp(&weak(&machines[*a])));
        let zero = Seconds(0.0);
        let machine = |known| Machine {
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

    fn for_answer(&self, asked: Asked) -> Option<usize> {
        let memory = asked.prompt_memory() + asked.answer_memory();
        let most = self.alone.iteration(&Batch::answers(1, asked.prompt_memory())) * PACE;
        let fits = |m: &Machine| {
            let step = Batch::answers(m.answers + 1, m.context + asked.prompt_memory());
            m.has_room(memory) && m.answers < self.places && m.known.cost.iteration(&step) <= most
        };
        let first = || self.order.iter().copied().find(|m| fits(&self.machines[*m]));
        let least = || self.order.iter().copied().min_by_key(|m| self.machines[*m].promised);
        match self.rules.answers {
            Answers::Packed => first().or_else(least),
            Answers::Spread => least(),
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
                Prompts::Gentle => machine.fragile * stall.0,
                Prompts::Soonest => 0.0,
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

impl Routing for Packing {
    fn at(&mut self, now: Seconds) {
        self.now = now;
    }

    fn route(&mut self, asked: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<Route> {
        let ((prompt, takes), answer, fragile) =
            (self.for_prompt(asked)?, self.for_answer(asked)?, self.fragile(asked));
        self.machines[prompt].add(takes, self.now);
        let machine = &mut self.machines[answer];
        machine.promised += asked.prompt_memory() + asked.answer_memory();
        machine.context += asked.prompt_memory();
        machine.answers += 1;
        machine.fragile += fragile;
        Some(Route { prompt: MachineNo(prompt as u32), answer: MachineNo(answer as u32) })
    }

    fn prompt_done(&mut self, machine: MachineNo, _: Asked) {
        self.machines[machine.0 as usize].first_done(self.now);
    }

    fn answer_done(&mut self, machine: MachineNo, asked: Asked) {
        let fragile = self.fragile(asked);
        let machine = &mut self.machines[machine.0 as usize];
        machine.promised -= asked.prompt_memory() + asked.answer_memory();
        machine.context -= asked.prompt_memory();
        machine.answers -= 1;
        machine.fragile = if machine.answers == 0 { 0.0 } else { machine.fragile - fragile };
    }
}
