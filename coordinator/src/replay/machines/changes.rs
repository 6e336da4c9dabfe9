//! Simulations whose machines change on the way: some close, others open when they have loaded their weights.

use super::{
    Arrival, Asked, BatchRun, Machine, MachineNo, Outcome, ReplayEvent, ReplayTrace, RequestNo, Routing, Seconds,
    Simulation, State,
};
use crate::policy::batching::Batch;
use std::collections::VecDeque;

/// A machine that is to open.
#[derive(Debug)]
pub struct OpeningMachine {
    /// What it is once it has opened.
    pub machine: Machine,
    /// What loading its weights takes; requests wait for it.
    pub loading: Seconds,
}

impl Simulation {
    /// Ready to be run in steps ([`Self::until`]) with these requests, in order of arrival.
    #[must_use]
    pub fn expecting(mut self, arrivals: &[Arrival]) -> Self {
        self.put_down(arrivals);
        self
    }

    /// Runs to this time; what happens just then has not happened yet.
    pub fn until(&mut self, at: Seconds) {
        while self.agenda.next_at().is_some_and(|next| next < at) {
            let Some((now, what)) = self.agenda.pop() else { break };
            (self.now, self.events) = (now, self.events + 1);
            if !self.happens(what) {
                break;
            }
        }
        self.now = self.now.max(at);
    }

    /// Runs to the end.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        while let Some((now, what)) = self.agenda.pop() {
            (self.now, self.events) = (now, self.events + 1);
            if !self.happens(what) {
                break;
            }
        }
        self.outcome()
    }

    /// What became of the requests so far.
    #[must_use]
    pub fn traces(&self) -> &[ReplayTrace] {
        &self.traces
    }

    /// Machines there have been: the next to open gets this number.
    #[must_use]
    pub fn machines(&self) -> usize {
        self.machines.len()
    }

    /// Closes machines and opens others, which are numbered on in order. Requests whose both parts were on a machine that
    /// closes go where the new routing sends them; tokens they have got stay theirs, and KV of them is computed again.
    pub fn change(&mut self, closing: &[MachineNo], opening: Vec<OpeningMachine>, routing: Box<dyn Routing>) {
        closing.iter().for_each(|m| self.interrupt(*m));
        self.routing = routing;
        for OpeningMachine { machine, loading } in opening {
            self.open(machine, loading);
        }
        for place in 0..self.traces.len() {
            let (request, trace) = (RequestNo(place as u32), self.traces[place]);
            let Some(route) = trace.route.filter(|r| closing.contains(&r.prompt) && !trace.end.is_finite()) else {
                continue;
            };
            let batching = &mut self.machines[route.prompt.0 as usize].batching;
            let generated = batching.generated(request);
            batching.release(request);
            let Asked { service, prompt, answer } = self.asked(request);
            if generated > 0 {
                let left =
                    Asked { service, prompt: prompt + generated, answer: answer.saturating_sub(generated).max(1) };
                self.resumed.insert(request, left);
            }
            self.traces[place].route = None;
            self.held.push_back(request);
        }
        self.route(self.now);
    }

    /// Ends what a machine runs; iterations that are over count.
    fn interrupt(&mut self, machine: MachineNo) {
        let m = machine.0 as usize;
        // What is on its way through a pipeline is lost as a whole.
        let State::Runs(run) = std::mem::replace(&mut self.states[m], State::Idle) else { return };
        self.shared_anew(m, self.now);
        // An answer that ends just now has not ended yet: its last token is computed again.
        let over = (((self.now - run.started) / run.step).floor() as u32).min(run.iterations.saturating_sub(1));
        self.busy[m] += self.now - run.started;
        if over == 0 || run.batch.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        self.machines[m].batching.took(run.step * f64::from(over));
        self.machines[m].batching.ran(over, &mut ended);
        debug_assert!(ended.is_empty(), "{ended:?}");
    }

    fn open(&mut self, machine: Machine, loading: Seconds) {
        let number = MachineNo(self.machines.len() as u32);
        self.machines.push(machine);
        self.busy.push(Seconds(0.0));
        self.batches += 1;
        let run = BatchRun {
            batch: Batch::default(),
            started: self.now,
            step: loading,
            delay: Seconds(0.0),
            iterations: 1,
            cut: true,
            number: self.batches,
            end: self.now + loading,
            speed: 1.0,
        };
        self.states.push(State::Runs(run));
        self.parked.push(VecDeque::new());
        if let Some(timeline) = &mut self.timeline {
            timeline.opens();
        }
        self.agenda.at(self.now + loading, ReplayEvent::Done(number, self.batches));
    }
}
