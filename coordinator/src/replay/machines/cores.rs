//! Machines that share a computer's processors: while more threads compute than there are processors, all of them get less, and what
//! processors that compute lose to each other is added to that.

use super::{Contention, MachineNo, ReplayEvent, Seconds, Simulation, State};
use crate::policy::batching::Batch;

/// Who computes on which processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedCores {
    /// Processors of each host.
    cores: Vec<f64>,
    /// As many of them as there are for machines.
    left: Vec<f64>,
    /// Of each machine its host, and the threads that it computes with; none where it shares with nobody.
    machines: Vec<Option<(usize, f64)>>,
    contention: Contention,
}

impl SharedCores {
    /// Hosts with so many processors, and machines on them.
    #[must_use]
    pub fn new(cores: Vec<f64>, machines: Vec<Option<(usize, f64)>>) -> Self {
        Self { left: cores.clone(), cores, machines, contention: Contention::default() }
    }

    /// The same where what is done beside machines leaves so many processors of each host.
    #[must_use]
    pub fn leaving(self, left: Vec<f64>) -> Self {
        Self { left, ..self }
    }

    /// The same where hosts are parts of one computer, whose processors take longer the more of them compute.
    #[must_use]
    pub fn contended(self, contention: Contention) -> Self {
        Self { contention, ..self }
    }

    fn of(&self, machine: usize) -> Option<(usize, f64)> {
        self.machines.get(machine).copied().flatten()
    }

    /// Threads on each host of these machines that run at once.
    fn threads(&self, running: &[usize]) -> Vec<f64> {
        let mut threads = vec![0.0; self.cores.len()];
        for (host, more) in running.iter().filter_map(|m| self.of(*m)) {
            if let Some(threads) = threads.get_mut(host) {
                *threads += more;
            }
        }
        threads
    }

    /// Processors that compute with so many threads on each host. What is left of one for machines may be a part: it computes all the same.
    fn busy(&self, threads: &[f64]) -> f64 {
        threads.iter().zip(&self.cores).map(|(threads, cores)| threads.min(*cores)).sum()
    }

    /// What of its speed a machine of this host has that runs this batch, beside so many threads on each of them.
    fn speed(&self, host: usize, batch: &Batch, threads: &[f64]) -> f64 {
        let part = match (self.left.get(host), threads.get(host)) {
            (Some(left), Some(threads)) if threads > left => left / threads,
            _ => 1.0,
        };
        let each = match (threads.get(host), self.cores.get(host)) {
            (Some(threads), Some(cores)) if *cores > 0.0 => threads / cores,
            _ => 1.0,
        };
        part / self.contention.times(batch, self.busy(threads), each)
    }
}

impl Simulation {
    /// The same with machines that share processors. A pipeline of several machines is taken to have its own.
    #[must_use]
    pub fn on(mut self, cores: SharedCores) -> Self {
        self.cores = Some(cores);
        self
    }

    /// A machine has begun or ended a batch: whoever runs on the same processors, or beside them, goes on faster or more slowly.
    pub(super) fn shared_anew(&mut self, machine: usize, now: Seconds) {
        let Some(cores) = self.cores.as_ref().filter(|cores| cores.of(machine).is_some()) else { return };
        let shares = |m: &usize| cores.of(*m).is_some() && matches!(self.states[*m], State::Runs(_));
        let running: Vec<usize> = (0..self.states.len()).filter(shares).collect();
        let threads = cores.threads(&running);
        for m in running {
            let Some((host, _)) = cores.of(m) else { continue };
            let State::Runs(run) = &mut self.states[m] else { continue };
            let speed = cores.speed(host, &run.batch, &threads);
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
            batching::Seen,
            chunked::Chunked,
            routing::{Asked, Routing, RoutingDecision},
        },
        replay::{
            iteration_cost::IterationCost,
            machines::{Alike, Arrival, ContentionCurve, Machine},
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

    /// The second asks for two tokens: its prompt, and a step after it.
    fn ends(cores: Option<SharedCores>) -> Vec<f64> {
        ends_of(&[(0.0, 1), (0.5, 2), (0.5, 1)], cores)
    }

    /// Of requests that come at these times and ask for so many tokens.
    fn ends_of(requests: &[(f64, u32)], cores: Option<SharedCores>) -> Vec<f64> {
        let machine = || Machine { batching: Box::new(Chunked::new(512, 8, 10_000)), cost: Arc::new(OneSecond) };
        let links = Box::new(Alike { per_token: SecondsPerToken(0.0) });
        let simulation = Simulation::new((0..3).map(|_| machine()).collect(), Box::new(InTurn(0)), links);
        let simulation = match cores {
            Some(cores) => simulation.on(cores),
            None => simulation,
        };
        let arrival = |&(at, n): &(f64, u32)| Arrival { at: Seconds(at), asked: Asked::new(9, n) };
        let arrivals: Vec<Arrival> = requests.iter().map(arrival).collect();
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

    /// Prompts beside another take one and a half times as long, beside two others twice; answers' steps beside another one and a quarter.
    fn contention() -> Contention {
        let curve = |points: &[(f64, f64)]| ContentionCurve::measured(1.0, points.iter().copied());
        let (prompts, answers) = (curve(&[(2.0, 1.5), (3.0, 2.0)]), curve(&[(2.0, 1.25)]));
        Contention { prompts, answers, ..Contention::default() }
    }

    /// A processor for each. Until 0.5 s the first computes alone; then three do, at half their speed, and it ends after another second.
    /// The other two prompts have half a second left then, and are two: 0.75 s. The second's step has nobody beside it.
    #[test]
    fn who_computes_on_a_processor_of_its_own_takes_longer_beside_others_too() {
        let own = SharedCores::new(vec![4.0], vec![Some((0, 1.0)); 3]);
        assert_eq!(ends(Some(own.clone())), ends(None), "where nothing was measured");
        assert_eq!(ends(Some(own.clone().contended(contention()))), [1.5, 3.25, 2.25]);
        // Two answers side by side: a second and a half for their prompts, and one and a quarter for each of two steps.
        assert_eq!(ends_of(&[(0.0, 3), (0.0, 3)], Some(own.contended(contention()))), [4.0, 4.0]);
    }

    /// Two of three are on one processor. From 0.5 s on they have half of it, and two processors compute: a third of their speed, and two
    /// thirds for the one on the other. After another second and a half the first and the third end.
    #[test]
    fn turns_on_one_processor_are_beside_nobody() {
        let pinned = |machines: usize| {
            let hosts = [(0, 1.0), (0, 1.0), (1, 1.0)].map(Some);
            Some(SharedCores::new(vec![1.0; 2], hosts[..machines].to_vec()).contended(contention()))
        };
        assert_eq!(ends(pinned(3)), [2.0, 3.5, 2.0]);
        // The same two alone: one processor computes, however many threads it has.
        assert_eq!(ends_of(&[(0.0, 1), (0.0, 1)], pinned(2)), [2.0, 2.0]);
        // Of two processors what is done beside machines leaves one and a half: two compute, each with three quarters. So they do where
        // it leaves three quarters of one, each with three eighths.
        for (left, end) in [(1.5, 2.0), (0.75, 4.0)] {
            let two = SharedCores::new(vec![2.0], vec![Some((0, 1.0)); 2]).leaving(vec![left]).contended(contention());
            assert_eq!(ends_of(&[(0.0, 1), (0.0, 1)], Some(two)), [end; 2], "{left}");
        }
    }
}
