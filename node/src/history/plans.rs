//! Plans that this peer has followed since it started, and since when.

use serde::Serialize;
use std::collections::VecDeque;
use tsnode_protocol::{Plan, PlanId};

/// Plans that are remembered.
const KEPT: usize = 32;

/// A plan, and when it was adopted here (seconds since 1970, by this host's clock).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdoptedPlan {
    /// When.
    pub at: u64,
    /// Its name.
    pub id: PlanId,
    /// What it says.
    pub plan: Plan,
}

/// All that were, newest first.
#[derive(Debug, Default)]
pub(super) struct Plans(VecDeque<AdoptedPlan>);

impl Plans {
    /// Whether another one than this is the last.
    pub fn is_news(&self, id: PlanId) -> bool {
        self.0.front().is_none_or(|last| last.id != id)
    }

    /// This one is followed now.
    pub fn follow(&mut self, at: u64, id: PlanId, plan: Plan) {
        if self.is_news(id) {
            self.0.truncate(KEPT - 1);
            self.0.push_front(AdoptedPlan { at, id, plan });
        }
    }

    pub fn list(&self) -> Vec<AdoptedPlan> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{Epoch, Term};

    #[test]
    fn the_last_plans_are_remembered_each_once() {
        let plan = |n: u64| Plan {
            epoch: Epoch(n),
            term: Term(0),
            parent: None,
            groups: vec![],
            routes: vec![],
            chosen: vec![],
            reason: "".into(),
        };
        let mut plans = Plans::default();
        for n in 0..100 {
            let plan = plan(n);
            let id = plan.id();
            plans.follow(n, id, plan.clone());
            plans.follow(n + 1, id, plan);
        }
        let all = plans.list();
        assert_eq!((all.len(), all[0].at, all[0].plan.epoch, all[31].at), (KEPT, 99, Epoch(99), 68));
    }
}
