//! SeaLLM's doubling budget (§4.2): each request may be executed for what its service's requests mostly take, and is first
//! where what is left of that, times the service's mean, is least (Equation 7); who needs more gets twice as much.

use super::order::{Order, OrderRank};
use crate::policy::batching::ServiceNo;
use std::collections::BTreeMap;
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// How long a service's requests take on a machine that has nothing else to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceProfile {
    /// L̂: their mean.
    pub mean: Seconds,
    /// What the first budget is made of.
    pub expected: ExpectedTime,
    /// Busy time of the machine after which a request goes first; infinite if never.
    pub patience: Seconds,
}

/// What a request is expected to take, nearly at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpectedTime {
    /// The mean and this standard deviation ("Var" in the paper) of the service's requests: as printed.
    AsAll(Seconds),
    /// What its prompt takes, whose length is known, and the mean and standard deviation of the service's answers.
    ByPrompt {
        /// For each prompt token.
        prompt: SecondsPerToken,
        /// Mean of answers.
        answer: Seconds,
        /// Their standard deviation.
        deviation: Seconds,
    },
}

impl ServiceProfile {
    /// Of measured times; nobody is starved.
    #[must_use]
    pub fn of(times: &[Seconds]) -> Self {
        let (mean, deviation) = moments(times);
        Self { mean, expected: ExpectedTime::AsAll(deviation), patience: Seconds(f64::INFINITY) }
    }

    /// The same, with prompts that take so long for each token, and the times of answers.
    #[must_use]
    pub fn by_prompt(self, prompt: SecondsPerToken, answers: &[Seconds]) -> Self {
        let (answer, deviation) = moments(answers);
        Self { expected: ExpectedTime::ByPrompt { prompt, answer, deviation }, ..self }
    }

    /// The same, with requests that go first after some time.
    #[must_use]
    pub fn patient(self, patience: Seconds) -> Self {
        Self { patience, ..self }
    }

    fn budget(&self, tokens: u32) -> Seconds {
        let expected = match self.expected {
            ExpectedTime::AsAll(deviation) => self.mean + deviation,
            ExpectedTime::ByPrompt { prompt, answer, deviation } => {
                prompt * Tokens(f64::from(tokens)) + answer + deviation
            }
        };
        // Requests so far may have had no answers here: none is free.
        if expected > Seconds(0.0) { expected } else { self.mean }
    }
}

/// Their mean, and their standard deviation.
fn moments(times: &[Seconds]) -> (Seconds, Seconds) {
    let n = times.len().max(1) as f64;
    let mean = times.iter().map(|t| t.0).sum::<f64>() / n;
    let square = times.iter().map(|t| (t.0 - mean).powi(2)).sum::<f64>() / n;
    (Seconds(mean), Seconds(square.sqrt()))
}

/// What a request may still be executed for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    left: Seconds,
    /// What it was in all.
    whole: Seconds,
}

/// The order by budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Budgets {
    services: BTreeMap<ServiceNo, ServiceProfile>,
    /// Of a service that has none.
    other: ServiceProfile,
}

impl Budgets {
    /// Of services with these profiles; one that has none counts as one that takes no time.
    #[must_use]
    pub fn new(services: Vec<ServiceProfile>) -> Self {
        Self { services: (0..).map(ServiceNo).zip(services).collect(), other: ServiceProfile::of(&[]) }
    }

    /// A service's profile from now on.
    pub(super) fn learn(&mut self, service: ServiceNo, profile: ServiceProfile) {
        self.services.insert(service, profile);
    }

    /// That of services without one.
    pub(super) fn learn_of_others(&mut self, profile: ServiceProfile) {
        self.other = profile;
    }

    fn profile(&self, service: ServiceNo) -> &ServiceProfile {
        self.services.get(&service).unwrap_or(&self.other)
    }
}

impl Order for Budgets {
    type Standing = Budget;

    fn enters(&self, service: ServiceNo, prompt: u32) -> Budget {
        let whole = self.profile(service).budget(prompt);
        Budget { left: whole, whole }
    }

    fn rank(&self, service: ServiceNo, standing: &Budget) -> OrderRank {
        OrderRank(standing.left.0 * self.profile(service).mean.0)
    }

    fn executed(&self, _: ServiceNo, budget: &mut Budget, time: Seconds) {
        budget.left -= time;
        while budget.left <= Seconds(0.0) && budget.whole > Seconds(0.0) {
            // Several iterations may have run since the budget was used up: they count against the next one.
            budget.whole = budget.whole * 2.0;
            budget.left += budget.whole;
        }
    }

    fn patience(&self, service: ServiceNo) -> Seconds {
        self.profile(service).patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Budgets {
        let profile = |times: [f64; 2]| ServiceProfile::of(&times.map(Seconds)).patient(Seconds(9.0));
        Budgets::new(vec![profile([2.0, 4.0]), profile([0.5, 1.5]).by_prompt(SecondsPerToken(0.01), &[Seconds(0.25)])])
    }

    #[test]
    fn budgets_are_mean_and_deviation_and_double_when_used_up() {
        let (order, service) = (order(), ServiceNo(0));
        let mut budget = order.enters(service, 100);
        let mut rank = |time| {
            order.executed(service, &mut budget, Seconds(time));
            order.rank(service, &budget).0
        };
        assert_eq!(rank(0.0), 4.0 * 3.0);
        assert_eq!(rank(3.0), 1.0 * 3.0);
        assert_eq!(rank(1.0), 8.0 * 3.0, "twice the first budget");
        assert_eq!(rank(7.5), 0.5 * 3.0);
        assert_eq!(rank(1.0), 15.5 * 3.0, "four times, half a second of it gone");
        assert_eq!(rank(15.5 + 32.0 + 64.0), 128.0 * 3.0, "several budgets in one go");
    }

    #[test]
    fn a_prompt_whose_length_is_known_counts_with_it() {
        let order = order();
        let rank = |tokens| order.rank(ServiceNo(1), &order.enters(ServiceNo(1), tokens));
        assert_eq!([0, 100, 200].map(rank), [0.25, 1.25, 2.25].map(OrderRank));
    }

    #[test]
    fn a_service_without_a_profile_does_no_harm() {
        let (order, service) = (order(), ServiceNo(9));
        let mut budget = order.enters(service, 1);
        order.executed(service, &mut budget, Seconds(5.0));
        assert_eq!(order.rank(service, &budget), OrderRank(0.0));
    }

    #[test]
    fn profiles_are_measured() {
        let profile = ServiceProfile::of(&[1.0, 3.0].map(Seconds));
        assert_eq!((profile.mean, profile.expected), (Seconds(2.0), ExpectedTime::AsAll(Seconds(1.0))));
        assert_eq!(ServiceProfile::of(&[]).mean, Seconds(0.0));
    }
}
