//! Whose step is next on a device that holds several models. Each model forms its batches for itself, has at most one step that
//! waits here, and asks again when that is over; a turn ends with its step, and waits for nothing beyond the device.
//!
//! Steps go by an [`Order`] of their requests, and what is no step (memory set aside, KV packed or unpacked, weights loaded) goes
//! before them: it is short, or somebody waits for it. **Nobody waits for ever**: a step that was passed over for [`PATIENCE`] of
//! the device's busy time is first, the one that asked earliest before others. So among n models a step waits for no longer than
//! [`PATIENCE`] and n turns, whatever the order and whatever comes.

use super::order::{Lead, Order, OrderRank, Spent};
use crate::policy::batching::ServiceNo;
use std::{collections::BTreeMap, fmt::Debug};
use tsnode_protocol::Seconds;

/// Time of the device, busy or kept, after which a step has been passed over for long enough.
pub const PATIENCE: Seconds = Seconds(0.5);

/// What a model asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceWork<R> {
    /// A step of these requests.
    Step(Vec<StepShare<R>>),
    /// Work that is no step, such as packing KV or loading.
    Errand,
}

/// A request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShare<R> {
    /// The request that has this share.
    pub request: R,
    /// Tokens of its prompt; none of an answer.
    pub prompt_tokens: u32,
}

/// An arbiter of whatever order.
pub trait Arbitration<R>: Debug + Send {
    /// A request comes that has so many prompt tokens to compute.
    fn enters(&mut self, service: ServiceNo, request: R, prompt: u32);

    /// A request is gone.
    fn leaves(&mut self, service: ServiceNo, request: R);

    /// A service asks for its turn; it asks for one at a time.
    fn asks(&mut self, service: ServiceNo, work: DeviceWork<R>);

    /// Whose turn it is, where nobody has it and somebody asks.
    fn next(&mut self) -> Option<ServiceNo>;

    /// The turn is over after so long.
    fn over(&mut self, took: Seconds);

    /// The device was kept idle for so long while others waited: time of the device, as if it had been busy.
    fn kept(&mut self, time: Seconds);

    /// How many ask for theirs.
    fn waiting(&self) -> usize;

    /// Whether this one, which asks for nothing yet, would go before all who do if it asked for a step of all its requests.
    fn would_be_first(&self, service: ServiceNo) -> bool;
}

/// A request, as it stands.
#[derive(Clone, Copy, Debug)]
struct ArbitratedJob<S> {
    /// Of all requests, which one it was.
    nth: u64,
    /// How often it is here: it may go on in another group before the one that it leaves has let go of it.
    stays: u32,
    standing: S,
    spent: Spent,
}

/// Who waits.
#[derive(Clone, Debug)]
struct Waiting<R> {
    work: DeviceWork<R>,
    /// The device's time when it asked, and which one it was of all that asked.
    since: Seconds,
    nth: u64,
}

/// A place among those who wait: the least is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TurnPlace {
    /// Passed over for long enough.
    Starved(u64),
    Errand(u64),
    Ranked {
        turn: u64,
        rank: OrderRank,
        /// Of its requests, the earliest.
        request: u64,
        nth: u64,
    },
}

/// A device's arbiter.
#[derive(Debug)]
pub struct Arbiter<O: Order, R> {
    order: O,
    lead: Lead,
    patience: Seconds,
    /// Busy time so far, and time for which the device was kept.
    clock: Seconds,
    jobs: BTreeMap<(ServiceNo, R), ArbitratedJob<O::Standing>>,
    waiting: BTreeMap<ServiceNo, Waiting<R>>,
    running: Option<(ServiceNo, DeviceWork<R>)>,
    entered: u64,
    asked: u64,
}

impl<O: Order, R: Copy + Ord + Debug> Arbiter<O, R> {
    /// Of an idle device.
    #[must_use]
    pub fn new(order: O, lead: Lead) -> Self {
        Self {
            order,
            lead,
            patience: PATIENCE,
            clock: Seconds(0.0),
            jobs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: None,
            entered: 0,
            asked: 0,
        }
    }

    /// The same, where who was passed over for so long is first.
    #[must_use]
    pub fn patient(self, patience: Seconds) -> Self {
        Self { patience, ..self }
    }

    fn place(&self, service: ServiceNo, waiting: &Waiting<R>) -> TurnPlace {
        let Waiting { work, since, nth } = waiting;
        if self.clock - *since >= self.patience {
            return TurnPlace::Starved(*nth);
        }
        let DeviceWork::Step(shares) = work else { return TurnPlace::Errand(*nth) };
        let job = |share: &StepShare<R>| self.jobs.get(&(service, share.request));
        // One that nobody told of is as one that has just come.
        let standing = |share: &StepShare<R>| match job(share) {
            Some(job) => job.standing,
            None => self.order.enters(service, share.prompt_tokens),
        };
        let ranks = shares.iter().map(|share| self.order.rank(service, &standing(share)));
        let rank = if shares.is_empty() { OrderRank(f64::INFINITY) } else { self.of_step(ranks) };
        let request = shares.iter().filter_map(job).map(|job| job.nth).min().unwrap_or(u64::MAX);
        TurnPlace::Ranked { turn: self.order.turn(service), rank, request, nth: *nth }
    }

    /// The rank of a step of requests that have these.
    fn of_step(&self, ranks: impl Iterator<Item = OrderRank>) -> OrderRank {
        match self.lead {
            Lead::First => ranks.min().unwrap_or_default(),
            Lead::Together => OrderRank::together(ranks),
        }
    }

    /// Who is first of all who wait.
    fn first(&self) -> Option<(TurnPlace, ServiceNo)> {
        self.waiting.iter().map(|(service, waiting)| (self.place(*service, waiting), *service)).min()
    }

    /// What each request of a step has been executed for: an answer all of it, prompts their tokens' parts.
    fn charge(&mut self, service: ServiceNo, shares: &[StepShare<R>], took: Seconds) {
        let tokens: f64 = shares.iter().map(|share| f64::from(share.prompt_tokens.max(1))).sum();
        for StepShare { request, prompt_tokens } in shares {
            let Some(job) = self.jobs.get_mut(&(service, *request)) else { continue };
            let time = match *prompt_tokens {
                0 => {
                    job.spent.answer += took;
                    took
                }
                prompt => {
                    let part = took * (f64::from(prompt) / tokens);
                    job.spent.prompt += part;
                    job.spent.prompt_tokens = job.spent.prompt_tokens.saturating_add(prompt);
                    part
                }
            };
            self.order.executed(service, &mut job.standing, time);
        }
    }
}

impl<O: Order, R: Copy + Ord + Debug + Send> Arbitration<R> for Arbiter<O, R> {
    fn enters(&mut self, service: ServiceNo, request: R, prompt: u32) {
        if let Some(job) = self.jobs.get_mut(&(service, request)) {
            job.stays += 1;
            return;
        }
        self.entered += 1;
        let standing = self.order.enters(service, prompt);
        let job = ArbitratedJob { nth: self.entered, stays: 1, standing, spent: Spent::default() };
        self.jobs.insert((service, request), job);
    }

    fn leaves(&mut self, service: ServiceNo, request: R) {
        let Some(job) = self.jobs.get_mut(&(service, request)) else { return };
        job.stays -= 1;
        if job.stays == 0 {
            let spent = job.spent;
            self.jobs.remove(&(service, request));
            self.order.ended(service, spent);
        }
    }

    fn asks(&mut self, service: ServiceNo, work: DeviceWork<R>) {
        self.asked += 1;
        self.waiting.insert(service, Waiting { work, since: self.clock, nth: self.asked });
    }

    fn next(&mut self) -> Option<ServiceNo> {
        if self.running.is_some() {
            return None;
        }
        let (_, service) = self.first()?;
        let waiting = self.waiting.remove(&service)?;
        if matches!(waiting.work, DeviceWork::Step(_)) {
            self.order.serves(service);
        }
        self.running = Some((service, waiting.work));
        Some(service)
    }

    fn over(&mut self, took: Seconds) {
        self.clock += took;
        if let Some((service, DeviceWork::Step(shares))) = self.running.take() {
            self.charge(service, &shares, took);
        }
    }

    fn kept(&mut self, time: Seconds) {
        self.clock += time;
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn would_be_first(&self, service: ServiceNo) -> bool {
        let own = || self.jobs.iter().filter(move |((of, _), _)| *of == service).map(|(_, job)| job);
        let Some(request) = own().map(|job| job.nth).min() else { return false };
        let rank = self.of_step(own().map(|job| self.order.rank(service, &job.standing)));
        let best = TurnPlace::Ranked { turn: self.order.turn(service), rank, request, nth: u64::MAX };
        self.first().is_some_and(|(place, _)| best < place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::sharing::{TurnOrder, measured::MeasuredBudgets},
        rng::Rng,
    };

    const SHORT: ServiceNo = ServiceNo(0);
    const LONG: ServiceNo = ServiceNo(1);

    fn answers(requests: &[u32]) -> DeviceWork<u32> {
        DeviceWork::Step(requests.iter().map(|&request| StepShare { request, prompt_tokens: 0 }).collect())
    }

    /// The same once requests have ended, so that it is known what each service's take: short ones an eighth of a second, long
    /// ones a hundred times as much.
    fn taught(mut arbiter: Box<dyn Arbitration<u32>>) -> Box<dyn Arbitration<u32>> {
        for (service, steps) in [(SHORT, 1), (LONG, 100)] {
            arbiter.enters(service, u32::MAX, 0);
            for _ in 0..steps {
                arbiter.asks(service, answers(&[u32::MAX]));
                assert_eq!(arbiter.next(), Some(service));
                arbiter.over(Seconds(0.125));
            }
            arbiter.leaves(service, u32::MAX);
        }
        arbiter
    }

    /// Who gets how many of so many turns where both always ask, and a request of each came, the long one's first.
    fn shared(order: TurnOrder, turns: usize, took: f64) -> [usize; 2] {
        let mut arbiter = taught(order.arbiter());
        let (mut had, mut short) = ([0, 0], 2);
        arbiter.enters(LONG, 1, 0);
        arbiter.enters(SHORT, short, 0);
        arbiter.asks(LONG, answers(&[1]));
        arbiter.asks(SHORT, answers(&[short]));
        for _ in 0..turns {
            let service = arbiter.next().unwrap();
            had[usize::from(service.0)] += 1;
            arbiter.over(Seconds(took));
            if service == LONG {
                arbiter.asks(LONG, answers(&[1]));
                continue;
            }
            // Its requests are over after a step, and there is always another.
            arbiter.leaves(SHORT, short);
            short += 1;
            arbiter.enters(SHORT, short, 0);
            arbiter.asks(SHORT, answers(&[short]));
        }
        had
    }

    #[test]
    fn each_order_shares_turns_as_it_should() {
        // The patience are eight steps: then the other one has a turn.
        let step = PATIENCE.0 / 8.0;
        assert_eq!(shared(TurnOrder::Doubling, 90, step), [80, 10], "short ones first");
        assert_eq!(shared(TurnOrder::FirstCome, 90, step), [10, 80], "the long one came first");
        assert_eq!(shared(TurnOrder::RoundRobin, 90, step), [45, 45]);
        // Steps that take longer than the patience go in turn, whatever the order.
        assert_eq!(shared(TurnOrder::Doubling, 20, 2.0 * PATIENCE.0), [10, 10]);
    }

    #[test]
    fn what_is_no_step_goes_before_steps_and_after_those_passed_over() {
        let mut arbiter = taught(TurnOrder::Doubling.arbiter());
        arbiter.enters(SHORT, 1, 0);
        arbiter.enters(LONG, 2, 0);
        arbiter.asks(LONG, answers(&[2]));
        arbiter.asks(SHORT, DeviceWork::Errand);
        assert_eq!((arbiter.next(), arbiter.next()), (Some(SHORT), None), "one has the turn");
        arbiter.over(PATIENCE);
        arbiter.asks(SHORT, DeviceWork::Errand);
        assert_eq!(arbiter.next(), Some(LONG), "it was passed over for long enough");
        arbiter.over(Seconds(0.1));
        assert_eq!(arbiter.next(), Some(SHORT));
        arbiter.over(Seconds(0.1));
        assert_eq!(arbiter.next(), None);
    }

    #[test]
    fn a_step_of_many_goes_before_one_of_a_single_request() {
        let mut arbiter = taught(TurnOrder::Doubling.arbiter());
        arbiter.enters(SHORT, 0, 0);
        (1..=10_001).for_each(|n| arbiter.enters(LONG, n, 0));
        for (many, first) in [(9_999, SHORT), (10_001, LONG)] {
            arbiter.asks(SHORT, answers(&[0]));
            arbiter.asks(LONG, answers(&(1..=many).collect::<Vec<_>>()));
            assert_eq!(arbiter.next(), Some(first), "each costs ten thousand times as much, and there are {many}");
            arbiter.over(Seconds(0.0));
        }
    }

    #[test]
    fn who_was_expected_to_be_over_and_is_not_lets_others_go_first() {
        let order = Arbiter::new(MeasuredBudgets::default(), Lead::Together);
        let mut arbiter = taught(Box::new(order.patient(Seconds(f64::INFINITY))));
        let new = ServiceNo(2);
        arbiter.enters(LONG, 1, 0);
        arbiter.asks(LONG, answers(&[1]));
        assert_eq!(arbiter.next(), Some(LONG));
        arbiter.over(Seconds(9.0));
        // Of 12.5 seconds 3.5 are left, times a mean of 12.5; of what nothing is known, what all mostly take, times their mean.
        arbiter.enters(new, 2, 0);
        arbiter.asks(new, answers(&[2]));
        arbiter.asks(LONG, answers(&[1]));
        assert_eq!(arbiter.next(), Some(LONG), "it is soon over");
        arbiter.over(Seconds(4.0));
        arbiter.asks(LONG, answers(&[1]));
        assert_eq!(arbiter.next(), Some(new), "its budget has doubled");
    }

    #[test]
    fn who_goes_on_in_another_group_is_the_request_it_was() {
        let mut arbiter = taught(TurnOrder::Doubling.arbiter());
        for request in [1, 2] {
            arbiter.enters(SHORT, request, 0);
        }
        // One of them comes to the next group before the last one has let go of it, and leaves that.
        arbiter.enters(SHORT, 1, 0);
        arbiter.leaves(SHORT, 1);
        arbiter.asks(SHORT, answers(&[1]));
        arbiter.next();
        arbiter.over(Seconds(0.1));
        arbiter.leaves(SHORT, 1);
        arbiter.leaves(SHORT, 1);
        // One that nobody has told of has its turn as if it were new.
        arbiter.enters(LONG, 3, 0);
        arbiter.asks(LONG, answers(&[3]));
        arbiter.asks(SHORT, answers(&[7]));
        assert_eq!(arbiter.next(), Some(SHORT));
    }

    /// Of several models that ask at any time for steps of any length and for errands, under every order: each has its turn within
    /// the patience and a turn for each model.
    #[test]
    fn a_step_waits_for_no_longer_than_the_patience_and_a_turn_of_each() {
        for (name, order) in TurnOrder::ALL {
            for seed in 0..200 {
                let mut rng = Rng::new(seed);
                let (models, longest) = (2 + rng.below(4) as u16, 2.0 * rng.unit());
                let mut arbiter = order.arbiter::<u32>();
                let (mut asked, mut clock, mut next) = (BTreeMap::<ServiceNo, f64>::new(), 0.0, 0);
                for _ in 0..400 {
                    for service in (0..models).map(ServiceNo) {
                        if asked.contains_key(&service) || rng.below(4) == 0 {
                            continue;
                        }
                        next += 1;
                        arbiter.enters(service, next, rng.below(500) as u32);
                        let prompt_tokens = rng.below(2) as u32 * 100;
                        let step = DeviceWork::Step(vec![StepShare { request: next, prompt_tokens }]);
                        arbiter.asks(service, if rng.below(3) == 0 { DeviceWork::Errand } else { step });
                        asked.insert(service, clock);
                    }
                    let Some(service) = arbiter.next() else { continue };
                    let waited = clock - asked.remove(&service).unwrap();
                    let bound = PATIENCE.0 + f64::from(models) * longest + 1e-9;
                    assert!(waited <= bound, "{name}, seed {seed}: {waited} s of {bound}");
                    let took = longest * rng.unit();
                    arbiter.over(Seconds(took));
                    clock += took;
                    if rng.below(2) == 0 {
                        arbiter.leaves(service, next);
                    }
                }
                assert!(asked.len() <= usize::from(models));
            }
        }
    }
}
