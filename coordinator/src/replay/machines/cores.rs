//! Machines that share a host's processors: while more threads compute than there are processors, all of them get less.

use super::{MachineNo, ReplayEvent, Seconds, Simulation, State};

/// Who computes on which processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedCores {
    /// Processors of each host.
    cores: Vec<f64>,
    /// Of each machine its host, and the threads that it computes with; none where it shares with nobody.
    machines: Vec<Option<(usize, f64)>>,
}

impl SharedCores {
    /// Hosts with so many processors, and machines on them.
    #[must_use]
    pub fn new(cores: Vec<f64>, machines: Vec<Option<(usize, f64)>>) -> Self {
        Self { cores, machines }
    }

    fn of(&self, machine: usize) -> Option<(usize, f64)> {
        self.machines.get(machine).copied().flatten()
    }

    /// What of its speed each of these has that run at once, all of one host.
    fn speed(&self, host: usize, running: impl Iterator<Item = usize>) -> f64 {
        let threads: f64 = running.filter_map(|m| self.of(m)).map(|(_, threads)| threads).sum();
        let cores = self.cores.get(host).copied().unwrap_or(f64::INFINITY);
        if threads > cores { cores / threads } else { 1.0 }
    }
}

impl Simulation {
    /// The same with machines that share processors. A pipeline of several machines is taken to have its own.
    #[must_use]
    pub fn on(mut self, cores: SharedCores) -> Self {
        self.cores = Some(cores);
        self
    }

    /// A machine has begun or ended a batch: whoever runs on the same processors goes on faster or more slowly.
    pub(super) fn shared_anew(&mut self, machine: usize, now: Seconds) {
        let Some((cores, (host, _))) = self.cores.as_ref().and_then(|c| Some((c, c.of(machine)?))) else { return };
        let on_host = |m: &usize| cores.of(*m).is_some_and(|(of, _)| of == host);
        let runs = |m: &usize| matches!(self.states[*m], State::Runs(_));
        let running: Vec<usize> = (0..self.states.len()).filter(on_host).filter(runs).collect();
        let speed = cores.speed(host, running.iter().copied());
        for m in running {
            let State::Runs(run) = &mut self.states[m] else { continue };
            if run.speed == speed {
                continue;
            }
            let end = now + (run.end - now) * (run.speed / speed);
            self.batches += 1;
            (run.speed, run.end, run.number) = (speed, end, self.batches);
            run.step = (end - run.started) / f64::from(run.iterations.max(1));
            self.agenda.at(end, ReplayEvent::Done(MachineNo(m as u32), run.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{
            batching::{Batch, Seen},
            chunked::Chunked,
            routing::{Asked, Routing, RoutingDecision},
        },
        replay::{
            iteration_cost::IterationCost,
            machines::{Alike, Arrival, Machine},
        },
    };
    use std::sync::Arc;
    use tsnode_protocol::SecondsPerToken;

    /// Every batch takes a second.
    #[derive(Debug)]
    struct OneSecond;

    impl IterationCost for OneSecond {
        fn iteration(&self, _: &Batch) -> Seconds {
            Seconds(1.0)
        }
    }

    /// Each request to the next machine.
    #[derive(Debug)]
    struct InTurn(u32);

    impl Routing for InTurn {
        fn route(&mut self, _: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
            self.0 += 1;
            Some(RoutingDecision::whole(MachineNo(self.0 - 1), MachineNo(self.0 - 1)))
        }
        fn prompt_done(&mut self, _: MachineNo, _: Asked) {}
        fn answer_done(&mut self, _: MachineNo, _: Asked) {}
    }

    fn ends(cores: Option<SharedCores>) -> Vec<f64> {
        let machine = || Machine { batching: Box::new(Chunked::new(512, 8, 10_000)), cost: Arc::new(OneSecond) };
        let links = Box::new(Alike { per_token: SecondsPerToken(0.0) });
        let simulation = Simulation::new((0..3).map(|_| machine()).collect(), Box::new(InTurn(0)), links);
        let simulation = match cores {
            Some(cores) => simulation.on(cores),
            None => simulation,
        };
        // The second asks for two tokens: its prompt, and a step after it.
        let arrivals: Vec<Arrival> =
            [(0.0, 1), (0.5, 2), (0.5, 1)].map(|(at, n)| Arrival { at: Seconds(at), asked: Asked::new(9, n) }).into();
        simulation.run(&arrivals, &|_| false).traces.iter().map(|t| (t.end.0 * 1e6).round() / 1e6).collect()
    }

    /// The first computes alone until 0.5 s, and has half of its batch left. Then two on one processor, and the third on
    /// another: the first ends at 1.5 s, the second's prompt has half a second left then, and nobody beside it.
    #[test]
    fn who_computes_beside_another_takes_longer() {
        assert_eq!(ends(None), [1.0, 2.5, 1.5]);
        let pinned = [(0, 1.0), (0, 1.0), (1, 1.0)].map(Some).to_vec();
        assert_eq!(ends(Some(SharedCores::new(vec![1.0; 2], pinned.clone()))), [1.5, 3.0, 1.5]);
        assert_eq!(ends(Some(SharedCores::new(vec![2.0; 2], pinned))), ends(None), "a processor for each");
        let apart = vec![Some((0, 1.0)), None, None];
        assert_eq!(ends(Some(SharedCores::new(vec![0.5], apart))), [2.0, 2.5, 1.5], "half a processor for the first");
    }

    /// Three on two processors: from 0.5 s on each has two thirds of its speed.
    #[test]
    fn any_processor_is_shared_by_all() {
        let any = vec![Some((0, 1.0)); 3];
        // The first has 0.5 left: 0.75 at two thirds; then two on two, each with half a second left.
        assert_eq!(ends(Some(SharedCores::new(vec![2.0], any))), [1.25, 2.75, 1.75]);
    }
}
