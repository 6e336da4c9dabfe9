//! To the machine with the fewest requests, of those that hold the request's model (SeaLLM §3, request dispatcher).

use tsnode_coordinator::policy::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};

/// A machine that holds a service's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceHolder {
    /// Which.
    pub machine: MachineNo,
    /// How much faster it is than others: requests there count as so many times fewer. 1 where all are alike, as the
    /// paper has them.
    pub speed: f64,
}

/// Machines of each service.
#[derive(Clone, Debug, Default)]
pub struct LeastLoaded {
    holders: Vec<Vec<ServiceHolder>>,
}

impl LeastLoaded {
    /// Where each service's model is; requests of a service that is nowhere are turned away.
    #[must_use]
    pub fn new(holders: Vec<Vec<ServiceHolder>>) -> Self {
        Self { holders }
    }
}

impl Routing for LeastLoaded {
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let holders = self.holders.get(usize::from(asked.service.0))?;
        let with_this = |h: &ServiceHolder| {
            let Seen { waiting, running, .. } = seen(h.machine);
            f64::from(waiting + running + 1) / h.speed
        };
        let mut least: Option<(f64, MachineNo)> = None;
        for holder in holders {
            let load = with_this(holder);
            if least.is_none_or(|(l, _)| load < l) {
                least = Some((load, holder.machine));
            }
        }
        least.map(|(_, machine)| RoutingDecision::whole(machine, machine))
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::policy::batching::ServiceNo;

    #[test]
    fn only_machines_that_hold_the_model_are_asked() {
        let holder = |machine, speed| ServiceHolder { machine: MachineNo(machine), speed };
        let mut routing = LeastLoaded::new(vec![
            vec![holder(0, 1.0), holder(1, 1.0)],
            vec![holder(1, 1.0), holder(2, 4.0)],
            Vec::new(),
        ]);
        let queues = [3, 1, 5, 0];
        let seen = |m: MachineNo| Seen { waiting: queues[m.0 as usize], ..Seen::default() };
        let mut to = |service| {
            let asked = Asked { service: ServiceNo(service), prompt: 1, answer: 1 };
            routing.route(asked, &seen).map(|r| r.prompt.0)
        };
        assert_eq!(to(0), Some(1));
        // Two requests at speed 1 against six at speed 4.
        assert_eq!(to(1), Some(2));
        assert_eq!((to(2), to(3)), (None, None));
    }
}
