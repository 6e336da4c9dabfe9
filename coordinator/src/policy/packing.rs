//! Answers are packed onto as few machines as hold them, prompts go where they are done in time and disturb least.

use super::{
    batching::{Batch, Seen},
    routing::{Asked, MachineNo, Route, Routing},
    targets::{Targets, answers, prompts},
};
use crate::simulator::cost::IterationCost;
use std::sync::Arc;
use tsnode_protocol::Seconds;

/// What is known of a machine.
#[derive(Clone, Debug)]
pub struct Known {
    /// How long its iterations take.
    pub cost: Arc<dyn IterationCost>,
    /// KV that fits (tokens).
    pub capacity: u64,
}

#[derive(Clone, Copy, Debug)]
struct Prompt {
    due: Seconds,
    asked: Asked,
    takes: Seconds,
}

#[derive(Clone, Debug)]
struct Machine {
    known: Known,
    promised: u64,
    answers: u32,
    context: u64,
    /// What a second's stall adds to the slowdowns of its answers, all together.
    fragile: f64,
    waiting: Vec<Prompt>,
    running: Option<(Prompt, Seconds)>,
}

impl Machine {
    fn finish(&self, prompt: &Prompt, now: Seconds) -> Seconds {
        let free = self.running.map_or(now, |(_, end)| end.max(now));
        self.waiting.iter().filter(|p| p.due <= prompt.due).fold(free, |at, p| at + p.takes) + prompt.takes
    }

    fn add(&mut self, prompt: Prompt, now: Seconds) {
        if self.running.is_none() {
            self.running = Some((prompt, now + prompt.takes));
        } else {
            self.waiting.push(prompt);
        }
    }

    fn done(&mut self, asked: Asked, now: Seconds) {
        if self.running.is_some_and(|(p, _)| p.asked == asked) {
            self.running = None;
        } else if let Some(place) = self.waiting.iter().position(|p| p.asked == asked) {
            self.waiting.remove(place);
        }
        if self.running.is_none() && !self.waiting.is_empty() {
            let mut first = 0;
            for place in 1..self.waiting.len() {
                if self.waiting[place].due < self.waiting[first].due {
                    first = place;
                }
            }
            let prompt = self.waiting.swap_remove(first);
            self.running = Some((prompt, now + prompt.takes));
        } else if let Some((p, end)) = &mut self.running {
            *end = now + p.takes;
        }
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Packing {
    targets: Targets,
    machines: Vec<Machine>,
    now: Seconds,
    places: u32,
}

impl Packing {
    /// Over these machines.
    #[must_use]
    pub fn new(targets: Targets, places: usize, machines: Vec<Known>) -> Self {
        let machine = |known| Machine { known, promised: 0, answers: 0, context: 0, fragile: 0.0, waiting: Vec::new(), running: None };
        Self { targets, machines: machines.into_iter().map(machine).collect(), now: Seconds(0.0), places: places as u32 }
    }

    fn for_answer(&self, asked: Asked) -> Option<MachineNo> {
        let need = asked.prompt_memory() + asked.answer_memory();
        let fits = |m: &Machine| m.promised + need <= m.known.capacity && m.answers < self.places;
        let place = self.machines.iter().rposition(fits);
        let least = || {
            let all = self.machines.iter().enumerate();
            let free = |m: &Machine| m.known.capacity as i64 - m.promised as i64;
            all.max_by_key(|(_, m)| free(m)).map(|(n, _)| n)
        };
        place.or_else(least).map(|m| MachineNo(m as u32))
    }

    fn for_prompt(&self, asked: Asked) -> Option<MachineNo> {
        let alone = self.targets.alone.iteration(&prompts([asked.prompt]));
        let due = self.now + self.targets.first(asked.prompt);
        let mut best: Option<((f64, f64), usize)> = None;
        for (place, machine) in self.machines.iter().enumerate() {
            let batch = prompts([asked.prompt]);
            let takes = machine.known.cost.iteration(&batch);
            let finish = machine.finish(&Prompt { due, asked, takes }, self.now);
            let late = ((finish - due) / alone).max(0.0);
            let stall = if machine.answers > 0 {
                let step = machine.known.cost.iteration(&answers(machine.answers, machine.context));
                let mixed = Batch { answers: machine.answers, context: machine.context, ..batch };
                takes.min(machine.known.cost.iteration(&mixed) - step)
            } else {
                Seconds(0.0)
            };
            let harm = self.targets.weight * machine.fragile * stall.0;
            let key = (late + harm, finish.0);
            if best.is_none_or(|(b, _)| key < b) {
                best = Some((key, place));
            }
        }
        best.map(|(_, m)| MachineNo(m as u32))
    }

    fn fragility(&self, asked: Asked) -> f64 {
        1.0 / (self.targets.alone.iteration(&answers(1, asked.prompt_memory())).0 * f64::from(asked.answer))
    }
}

impl Routing for Packing {
    fn at(&mut self, now: Seconds) {
        self.now = now;
    }

    fn route(&mut self, asked: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<Route> {
        let (prompt, answer) = (self.for_prompt(asked)?, self.for_answer(asked)?);
        let due = self.now + self.targets.first(asked.prompt);
        let m = &mut self.machines[prompt.0 as usize];
        let takes = m.known.cost.iteration(&prompts([asked.prompt]));
        m.add(Prompt { due, asked, takes }, self.now);
        let fragile = self.fragility(asked);
        let m = &mut self.machines[answer.0 as usize];
        m.fragile += fragile;
        m.promised += asked.prompt_memory() + asked.answer_memory();
        m.answers += 1;
        m.context += u64::from(asked.prompt);
        Some(Route { prompt, answer })
    }

    fn prompt_done(&mut self, machine: MachineNo, asked: Asked) {
        let now = self.now;
        self.machines[machine.0 as usize].done(asked, now);
    }

    fn answer_done(&mut self, machine: MachineNo, asked: Asked) {
        let fragile = self.fragility(asked);
        let m = &mut self.machines[machine.0 as usize];
        m.fragile -= fragile;
        m.promised -= asked.prompt_memory() + asked.answer_memory();
        m.answers -= 1;
        m.context -= u64::from(asked.prompt);
    }
}
