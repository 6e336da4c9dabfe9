//! Whole requests to machines in turn, by weight; a machine whose queue is full is passed over, and where all are,
//! requests wait (Cronus §5.1's data parallelism).

use tsnode_coordinator::policy::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};

/// A machine's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineWeight {
    /// Requests in a round.
    pub turns: u32,
    /// Requests that may wait there.
    pub most_waiting: u32,
}

/// Weighted round robin, each machine's turns spread over the round.
#[derive(Clone, Debug)]
pub struct Weighted {
    weights: Vec<MachineWeight>,
    /// Turns that each machine is owed.
    owed: Vec<i64>,
}

impl Weighted {
    /// Over these machines, in order.
    #[must_use]
    pub fn new(weights: Vec<MachineWeight>) -> Self {
        Self { owed: vec![0; weights.len()], weights }
    }

    fn open(&self, seen: &dyn Fn(MachineNo) -> Seen) -> Vec<usize> {
        let takes = |m: &usize| seen(MachineNo(*m as u32)).waiting < self.weights[*m].most_waiting;
        (0..self.weights.len()).filter(takes).collect()
    }
}

impl Routing for Weighted {
    fn route(&mut self, _: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let open = self.open(seen);
        for &m in &open {
            self.owed[m] += i64::from(self.weights[m].turns);
        }
        // The first of equals.
        let next = open.iter().copied().rev().max_by_key(|m| self.owed[*m])?;
        self.owed[next] -= open.iter().map(|m| i64::from(self.weights[*m].turns)).sum::<i64>();
        let machine = MachineNo(next as u32);
        Some(RoutingDecision::whole(machine, machine))
    }

    fn holds(&self, _: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> bool {
        self.open(seen).is_empty()
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights() -> Weighted {
        Weighted::new(vec![MachineWeight { turns: 3, most_waiting: 3 }, MachineWeight { turns: 1, most_waiting: 1 }])
    }

    #[test]
    fn turns_are_by_weight() {
        let mut routing = weights();
        let mut next = || routing.route(Asked::new(1, 1), &|_| Seen::default()).map(|r| r.prompt.0).unwrap();
        let all: Vec<u32> = (0..8).map(|_| next()).collect();
        assert_eq!(all, [0, 0, 1, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn full_queues_are_passed_over_and_hold_requests() {
        let mut routing = weights();
        let seen = |waiting: [u32; 2]| move |m: MachineNo| Seen { waiting: waiting[m.0 as usize], ..Seen::default() };
        let asked = Asked::new(1, 1);
        assert_eq!(routing.route(asked, &seen([3, 0])).unwrap().prompt, MachineNo(1));
        assert_eq!(routing.route(asked, &seen([2, 1])).unwrap().prompt, MachineNo(0));
        assert!(routing.holds(asked, &seen([3, 1])) && !routing.holds(asked, &seen([3, 0])));
    }
}
