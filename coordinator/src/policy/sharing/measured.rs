//! Doubling budgets of what requests were measured to take: nobody has to say beforehand what a model is asked for.
//!
//! A request counts with what it was executed for, in the measure in which budgets fall. Those that were given up count as well:
//! so long the device was theirs.

use super::{
    budgets::{Budget, Budgets, ServiceProfile},
    order::{Order, OrderRank, Spent},
};
use crate::policy::batching::ServiceNo;
use std::collections::{BTreeMap, VecDeque};
use tsnode_protocol::{Seconds, SecondsPerToken};

/// Requests of a service that are remembered, the last ones.
const REMEMBERED: usize = 256;
/// What a request is taken to need while none of any service has ended.
const UNKNOWN: Seconds = Seconds(1.0);

/// The order, and what it has measured.
#[derive(Clone, Debug)]
pub struct MeasuredBudgets {
    budgets: Budgets,
    services: BTreeMap<ServiceNo, VecDeque<Spent>>,
}

impl Default for MeasuredBudgets {
    fn default() -> Self {
        let mut budgets = Budgets::new(Vec::new());
        budgets.learn_of_others(ServiceProfile::of(&[UNKNOWN]));
        Self { budgets, services: BTreeMap::new() }
    }
}

/// What a service's last requests say of the next.
fn profile(last: &VecDeque<Spent>) -> ServiceProfile {
    let times = |of: fn(&Spent) -> Seconds| last.iter().map(of).collect::<Vec<_>>();
    let tokens: f64 = last.iter().map(|spent| f64::from(spent.prompt_tokens)).sum();
    let prompts: Seconds = last.iter().map(|spent| spent.prompt).sum();
    let per_token = SecondsPerToken(prompts.0 / tokens.max(1.0));
    ServiceProfile::of(&times(Spent::whole)).by_prompt(per_token, &times(|spent| spent.answer))
}

impl Order for MeasuredBudgets {
    type Standing = Budget;

    fn enters(&self, service: ServiceNo, prompt: u32) -> Budget {
        self.budgets.enters(service, prompt)
    }

    fn rank(&self, service: ServiceNo, standing: &Budget) -> OrderRank {
        self.budgets.rank(service, standing)
    }

    fn executed(&self, service: ServiceNo, standing: &mut Budget, time: Seconds) {
        self.budgets.executed(service, standing, time);
    }

    fn ended(&mut self, service: ServiceNo, spent: Spent) {
        if spent.whole() <= Seconds(0.0) {
            return;
        }
        let last = self.services.entry(service).or_default();
        if last.len() >= REMEMBERED {
            last.pop_front();
        }
        last.push_back(spent);
        let learnt = profile(last);
        self.budgets.learn(service, learnt);
        // A service whose requests have not ended yet is as likely long as short.
        let all: Vec<Seconds> = self.services.values().flatten().map(Spent::whole).collect();
        self.budgets.learn_of_others(ServiceProfile::of(&all));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(prompt: f64, answer: f64) -> Spent {
        Spent { prompt_tokens: 100, prompt: Seconds(prompt), answer: Seconds(answer) }
    }

    #[test]
    fn budgets_follow_what_requests_are_measured_to_take() {
        let [short, long, new] = [0, 1, 2].map(ServiceNo);
        let mut order = MeasuredBudgets::default();
        let rank = |order: &MeasuredBudgets, service, prompt| order.rank(service, &order.enters(service, prompt)).0;
        assert_eq!([short, long].map(|s| rank(&order, s, 100)), [1.0; 2], "nothing is known of either");
        for _ in 0..2 * REMEMBERED {
            order.ended(long, spent(1.0, 7.0));
            order.ended(short, spent(0.25, 0.25));
        }
        assert!(order.services.values().all(|last| last.len() == REMEMBERED));
        // (prompt + answer) of those without deviation, times their mean.
        assert_eq!([short, long].map(|s| rank(&order, s, 100)), [0.5 * 0.5, 8.0 * 8.0]);
        assert_eq!(rank(&order, long, 200), 9.0 * 8.0, "a prompt of twice the length takes a second more");
        let between = rank(&order, new, 100);
        assert!(between > rank(&order, short, 100) && between < rank(&order, long, 100), "{between}");
        order.ended(new, Spent::default());
        assert_eq!(rank(&order, new, 100), between, "one that never ran says nothing");
        for _ in 0..REMEMBERED {
            order.ended(long, spent(0.1, 0.1));
        }
        assert!(rank(&order, long, 100) < rank(&order, short, 100), "the services have changed places");
    }
}
