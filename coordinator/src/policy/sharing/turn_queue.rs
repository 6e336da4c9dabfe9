//! When a device's next turn is given. Who has just computed asks again only when what it computed has gone through its batcher:
//! were the turn given on at once, it would never be among those that an order chooses from, and two busy models would alternate
//! under every order. So the device is kept for its last user for a moment, where the order would have it go before all others who
//! wait, and with it they are chosen from. Where it would not, or where nobody else waits, nothing is kept.
//!
//! Between its steps a model sets memory aside for those who come and gives back what others had: errands, which may be several
//! before its next step. It is waited for after each of them as after the step, also where others computed meanwhile: or each of
//! them would cost it a turn. Not for longer than a few moments in all, though: errands may also be those of requests whose KV comes
//! for seconds, which bring no step.
//!
//! **What that costs.** A moment that others wait is time of the device, so who was passed over for long enough is first as soon as
//! ever. One that leaves is not waited for, nor one after an errand that came before its first step, nor is anybody before errands.
//! One that lets the moment pass, as a ring does that goes over other hosts, is not waited for after its next step, then after two,
//! four, eight: a device with only such users idles for a ninth of a moment a step. Behind errands that is counted apart: what comes
//! late behind a step, over other hosts, has its errands and its next step ready at once, and each errand would cost it a turn.

use super::{
    arbiter::{Arbitration, DeviceWork},
    device_use::{DeviceUse, ServiceUse},
};
use crate::{policy::batching::ServiceNo, time::Time};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tsnode_protocol::Seconds;

/// For how long a device is kept. Between the end of a step and the asking for the next there are a batcher and the waking of three
/// tasks of the same process: of two busy models on one core of two 0.6 to 1.5 ms, as measured. One millisecond was too short for many
/// of them, and each that comes too late costs the moment and a turn. Steps that are worth ordering take many milliseconds.
pub const GRACE: Duration = Duration::from_millis(3);

/// For how many moments a device is kept, at most, for one step and whatever errands come before it.
const MOST_MOMENTS: u32 = 4;

/// Turns after which nobody waits for one that has let moments pass, at most.
const LONGEST_PAUSE: u8 = 8;

/// What follows for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is this one's turn, until it is over.
    Turn(ServiceNo),
    /// The device is kept until then for one that may ask in a moment, or until that asks or its requests leave.
    Kept(Time),
    /// Nobody asks for the device.
    Nobody,
}

/// What one has just had that may ask again in a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Behind {
    Step,
    Errand,
}

/// One that may ask for its next step in a moment.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    until: Time,
    behind: Behind,
    /// Others have waited for it.
    kept: bool,
}

/// What has become of one since its last step.
#[derive(Clone, Copy, Debug)]
struct SinceStep {
    /// For how long the device has been kept while others waited for it.
    kept: Duration,
    /// Whether it was waited for behind that step, and did not let the moment pass.
    waited: bool,
}

/// One that has let moments pass.
#[derive(Clone, Copy, Debug, Default)]
struct MissedTurns {
    /// So many turns it was not waited for, or is not.
    pause: u8,
    left: u8,
}

/// An arbiter, and whose turn it is.
#[derive(Debug)]
pub struct TurnQueue<R> {
    arbiter: Box<dyn Arbitration<R>>,
    grace: Duration,
    turn: Option<ServiceNo>,
    /// Who may be waited for.
    awaited: BTreeMap<ServiceNo, Awaited>,
    /// Since when others wait for one of these.
    kept_since: Option<Time>,
    /// Of those who asked, who asked for a step last.
    steps: BTreeSet<ServiceNo>,
    /// Who is between two steps, and may be waited for after errands, too.
    between: BTreeMap<ServiceNo, SinceStep>,
    missed: BTreeMap<(ServiceNo, Behind), MissedTurns>,
    used: DeviceUse,
}

impl<R> TurnQueue<R> {
    /// Of an idle device.
    #[must_use]
    pub fn new(arbiter: Box<dyn Arbitration<R>>) -> Self {
        Self {
            arbiter,
            grace: GRACE,
            turn: None,
            awaited: BTreeMap::new(),
            kept_since: None,
            steps: BTreeSet::new(),
            between: BTreeMap::new(),
            missed: BTreeMap::new(),
            used: DeviceUse::default(),
        }
    }

    /// The same that keeps the device for so long.
    #[must_use]
    pub fn keeping(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// A request comes that has so many prompt tokens to compute.
    pub fn enters(&mut self, service: ServiceNo, request: R, prompt: u32) {
        self.arbiter.enters(service, request, prompt);
    }

    /// A request is gone. Who waits while nobody has the turn is to look again.
    pub fn leaves(&mut self, service: ServiceNo, request: R) {
        self.arbiter.leaves(service, request);
    }

    /// A service asks for its turn; it asks for one at a time.
    pub fn asks(&mut self, now: Time, service: ServiceNo, work: DeviceWork<R>) {
        self.used.asks(now, service, &work);
        self.end_keeping(now);
        let in_time = self.awaited.remove(&service).filter(|awaited| now <= awaited.until);
        if matches!(work, DeviceWork::Step(_)) {
            let since = self.between.remove(&service);
            if let Some(awaited) = in_time {
                self.missed.remove(&(service, awaited.behind));
                if since.is_some_and(|since| since.waited) {
                    self.missed.remove(&(service, Behind::Step));
                }
            }
            self.steps.insert(service);
        } else {
            self.steps.remove(&service);
        }
        self.arbiter.asks(service, work);
    }

    /// Whose turn it is; gives it where it is nobody's.
    pub fn next(&mut self, now: Time) -> Next {
        if let Some(service) = self.turn {
            return Next::Turn(service);
        }
        if self.arbiter.waiting() == 0 {
            return Next::Nobody;
        }
        if let Some(until) = self.kept_until(now) {
            return Next::Kept(until);
        }
        self.end_keeping(now);
        self.let_pass(now);
        self.turn = self.arbiter.next();
        if self.turn.is_some_and(|service| self.steps.contains(&service)) {
            self.awaited.clear();
        }
        self.turn.map_or(Next::Nobody, Next::Turn)
    }

    /// The turn is over after so long.
    pub fn over(&mut self, now: Time, took: Seconds) {
        let Some(service) = self.turn.take() else { return };
        self.arbiter.over(took);
        self.used.over(now, service, took);
        let behind = if self.steps.contains(&service) { Behind::Step } else { Behind::Errand };
        let is_waited_for = match behind {
            Behind::Step => {
                let waited = !self.is_in_pause(service, behind);
                self.between.insert(service, SinceStep { kept: Duration::ZERO, waited });
                waited
            }
            Behind::Errand => {
                let is_between = self.between.get(&service).is_some_and(|since| since.kept < self.grace * MOST_MOMENTS);
                is_between && !self.is_in_pause(service, behind)
            }
        };
        if is_waited_for {
            self.awaited.insert(service, Awaited { until: now + self.grace, behind, kept: false });
        }
    }

    /// Whether one that has let moments pass behind what it has just had again is not waited for this time.
    fn is_in_pause(&mut self, service: ServiceNo, behind: Behind) -> bool {
        match self.missed.get_mut(&(service, behind)) {
            Some(missed) if missed.left > 0 => {
                missed.left -= 1;
                true
            }
            _ => false,
        }
    }

    /// What a service has had of the device.
    #[must_use]
    pub fn used(&self, service: ServiceNo) -> ServiceUse {
        self.used.of(service)
    }

    /// Whether it is nobody's turn.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.turn.is_none()
    }

    /// How many ask for theirs.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.arbiter.waiting()
    }

    /// Until when those who wait are to wait for one that would go before them.
    fn kept_until(&mut self, now: Time) -> Option<Time> {
        let mut kept: Option<Time> = None;
        for (service, awaited) in &mut self.awaited {
            if now < awaited.until && self.arbiter.would_be_first(*service) {
                awaited.kept = true;
                kept = Some(kept.map_or(awaited.until, |until| until.min(awaited.until)));
            }
        }
        if kept.is_some() {
            self.kept_since.get_or_insert(now);
        }
        kept
    }

    /// For how long others have waited is time of the device.
    fn end_keeping(&mut self, now: Time) {
        let Some(since) = self.kept_since.take() else { return };
        let kept = now.saturating_sub(since);
        self.arbiter.kept(Seconds(kept.as_secs_f64()));
        for (service, _) in self.awaited.iter().filter(|(_, awaited)| awaited.kept) {
            if let Some(since) = self.between.get_mut(service) {
                since.kept += kept;
            }
        }
    }

    /// Those who were waited for and have not asked in time are waited for less often. Who was late behind a step is still waited for
    /// behind the errands that it has before the next, and who was late behind an errand not before its next step.
    fn let_pass(&mut self, now: Time) {
        let (missed, used, between) = (&mut self.missed, &mut self.used, &mut self.between);
        self.awaited.retain(|service, awaited| {
            let is_over = now >= awaited.until;
            if is_over && awaited.kept {
                used.passes(*service);
                if awaited.behind == Behind::Errand {
                    between.remove(service);
                } else if let Some(since) = between.get_mut(service) {
                    since.waited = false;
                }
                let missed = missed.entry((*service, awaited.behind)).or_default();
                missed.pause = (missed.pause * 2).clamp(1, LONGEST_PAUSE);
                missed.left = missed.pause;
            }
            !is_over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::sharing::{
            TurnOrder,
            arbiter::{PATIENCE, StepShare},
        },
        rng::Rng,
    };

    const FIRST: ServiceNo = ServiceNo(0);
    const SECOND: ServiceNo = ServiceNo(1);
    const THIRD: ServiceNo = ServiceNo(2);

    /// For how long these devices are kept.
    const MOMENT: Duration = Duration::from_millis(1);

    fn at(us: u64) -> Time {
        Time::from_micros(us)
    }

    fn step(request: u32) -> DeviceWork<u32> {
        DeviceWork::Step(vec![StepShare { request, prompt_tokens: 0 }])
    }

    /// The first one's turn is over after a millisecond that took so long as the arbiter hears, and the second one waits. Each has
    /// a request, the first one's came first.
    fn after_a_turn(order: TurnOrder, took: Seconds) -> TurnQueue<u32> {
        let mut queue = TurnQueue::new(order.arbiter()).keeping(MOMENT);
        queue.enters(FIRST, 1, 0);
        queue.enters(SECOND, 2, 0);
        queue.asks(at(0), FIRST, step(1));
        assert_eq!(queue.next(at(0)), Next::Turn(FIRST));
        queue.asks(at(0), SECOND, step(2));
        queue.over(at(1_000), took);
        queue
    }

    const SHORT: Seconds = Seconds(0.001);

    #[test]
    fn who_would_go_first_again_is_waited_for() {
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        assert_eq!(queue.next(at(1_000)), Next::Kept(at(2_000)));
        queue.asks(at(1_200), FIRST, step(1));
        assert_eq!(queue.next(at(1_200)), Next::Turn(FIRST));
        queue.over(at(2_200), SHORT);
        assert_eq!(queue.next(at(3_199)), Next::Kept(at(3_200)));
        assert_eq!(queue.next(at(3_200)), Next::Turn(SECOND), "it does not ask");
    }

    #[test]
    fn who_lets_moments_pass_is_waited_for_less_often() {
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        let (mut now, mut turns, mut kept) = (1_000, 0, Vec::new());
        while turns < 30 {
            match queue.next(at(now)) {
                Next::Kept(until) => {
                    kept.push(turns);
                    now += 1_000;
                    assert_eq!(until, at(now));
                }
                Next::Turn(SECOND) => {
                    // The first one is too late, and the second one always asks at once.
                    queue.asks(at(now + 500), FIRST, step(1));
                    queue.over(at(now + 1_000), SHORT);
                    queue.asks(at(now + 1_000), SECOND, step(2));
                    now += 1_000;
                }
                Next::Turn(_) => {
                    queue.over(at(now + 1_000), SHORT);
                    now += 1_000;
                    turns += 1;
                }
                Next::Nobody => unreachable!("the second one always asks"),
            }
        }
        assert_eq!(kept, [0, 2, 5, 10, 19, 28], "pauses of 1, 2, 4, 8, 8 turns");
        assert_eq!([FIRST, SECOND].map(|service| queue.used(service).passed), [6, 0]);
    }

    #[test]
    fn nobody_waits_for_one_whose_turn_it_would_not_be() {
        let next = |order, took| after_a_turn(order, took).next(at(1_000));
        assert_eq!(next(TurnOrder::RoundRobin, SHORT), Next::Turn(SECOND), "the order has it go last");
        assert_eq!(
            next(TurnOrder::FirstCome, PATIENCE),
            Next::Turn(SECOND),
            "the other one was passed over for too long"
        );

        let mut left = after_a_turn(TurnOrder::FirstCome, SHORT);
        assert_eq!(left.next(at(1_000)), Next::Kept(at(2_000)));
        left.leaves(FIRST, 1);
        assert_eq!(left.next(at(1_100)), Next::Turn(SECOND), "it has no requests any more");

        let mut errand = after_a_turn(TurnOrder::FirstCome, SHORT);
        assert_eq!(errand.next(at(1_000)), Next::Kept(at(2_000)));
        errand.asks(at(1_100), THIRD, DeviceWork::Errand);
        assert_eq!(errand.next(at(1_100)), Next::Turn(THIRD), "errands go before steps");
    }

    /// Memory that is set aside and given back between two steps costs nobody a turn.
    #[test]
    fn who_has_errands_between_its_steps_is_waited_for() {
        let short = Seconds(1e-5);
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        assert_eq!(queue.next(at(1_000)), Next::Kept(at(2_000)));
        for us in [1_100, 1_300] {
            queue.asks(at(us), FIRST, DeviceWork::Errand);
            assert_eq!(queue.next(at(us)), Next::Turn(FIRST));
            queue.over(at(us + 10), short);
            assert_eq!(queue.next(at(us + 10)), Next::Kept(at(us + 1_010)));
        }
        queue.asks(at(1_500), FIRST, step(1));
        assert_eq!(queue.next(at(1_500)), Next::Turn(FIRST));
        assert_eq!((queue.used(FIRST).steps, queue.used(FIRST).errands), (1, 2), "the second is not over");

        // Also where the other one computed meanwhile, which asks again sooner.
        let mut queue = after_a_turn(TurnOrder::RoundRobin, SHORT);
        assert_eq!(queue.next(at(1_000)), Next::Turn(SECOND));
        queue.asks(at(1_100), FIRST, DeviceWork::Errand);
        queue.over(at(2_000), SHORT);
        assert_eq!(queue.next(at(2_000)), Next::Turn(FIRST));
        queue.over(at(2_010), short);
        queue.asks(at(2_100), SECOND, step(2));
        assert_eq!(queue.next(at(2_100)), Next::Kept(at(3_010)));
        queue.asks(at(2_200), FIRST, step(1));
        assert_eq!(queue.next(at(2_200)), Next::Turn(FIRST));
    }

    /// A row of errands before a first step, as where KV comes, leaves the others' steps their turns.
    #[test]
    fn nobody_is_waited_for_after_an_errand_alone() {
        let mut queue = TurnQueue::new(TurnOrder::FirstCome.arbiter());
        queue.enters(FIRST, 1, 0);
        queue.enters(SECOND, 2, 0);
        queue.asks(at(0), FIRST, DeviceWork::Errand);
        assert_eq!(queue.next(at(0)), Next::Turn(FIRST));
        queue.asks(at(0), SECOND, step(2));
        queue.over(at(1_000), SHORT);
        assert_eq!(queue.next(at(1_000)), Next::Turn(SECOND));
        queue.over(at(2_000), SHORT);

        // Nor is an errand one of the steps after which nobody waits for one that let a moment pass.
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        assert_eq!(queue.next(at(1_000)), Next::Kept(at(2_000)));
        assert_eq!(queue.next(at(2_000)), Next::Turn(SECOND));
        queue.asks(at(2_100), FIRST, DeviceWork::Errand);
        queue.over(at(3_000), SHORT);
        assert_eq!(queue.next(at(3_000)), Next::Turn(FIRST));
        queue.over(at(3_100), SHORT);
        queue.asks(at(3_200), FIRST, step(1));
        assert_eq!(queue.next(at(3_200)), Next::Turn(FIRST));
        queue.asks(at(3_300), SECOND, step(2));
        queue.over(at(4_200), SHORT);
        assert_eq!(queue.next(at(4_200)), Next::Turn(SECOND), "the first one is not waited for after its next step");
        queue.asks(at(4_300), FIRST, DeviceWork::Errand);
        queue.over(at(5_200), SHORT);
        assert_eq!(queue.next(at(5_200)), Next::Turn(FIRST));
        queue.over(at(5_300), SHORT);
        queue.asks(at(5_400), SECOND, step(2));
        assert_eq!(queue.next(at(5_400)), Next::Kept(at(6_300)), "though after an errand behind that");
    }

    /// What one has to do over other hosts comes late behind its steps, and then all at once.
    #[test]
    fn errands_of_one_that_is_late_behind_its_steps_cost_it_no_turns() {
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        let mut now = 1_000;
        for nth in 1..=20 {
            if let Next::Kept(until) = queue.next(at(now)) {
                now += 1_000;
                assert_eq!(until, at(now));
            }
            assert_eq!(queue.next(at(now)), Next::Turn(SECOND));
            queue.asks(at(now + 500), FIRST, DeviceWork::Errand);
            now += 1_000;
            queue.over(at(now), SHORT);
            queue.asks(at(now), SECOND, step(2));
            for work in [DeviceWork::Errand, DeviceWork::Errand, step(1)] {
                assert_eq!(queue.next(at(now)), Next::Turn(FIRST), "{nth}");
                queue.over(at(now + 10), Seconds(1e-5));
                assert!(matches!(queue.next(at(now + 10)), Next::Kept(_)), "{nth}");
                now += 110;
                queue.asks(at(now), FIRST, work);
            }
            assert_eq!(queue.next(at(now)), Next::Turn(FIRST));
            now += 1_000;
            queue.over(at(now), SHORT);
        }
        assert_eq!(
            (queue.used(FIRST).errands, queue.used(SECOND).steps),
            (60, 20),
            "one for each of the other's steps"
        );
    }

    #[test]
    fn who_lets_a_moment_pass_behind_an_errand_is_not_waited_for_behind_the_next() {
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        queue.asks(at(1_500), FIRST, DeviceWork::Errand);
        assert_eq!(queue.next(at(1_500)), Next::Turn(FIRST));
        queue.over(at(1_600), SHORT);
        assert_eq!(queue.next(at(1_600)), Next::Kept(at(2_600)));
        assert_eq!(queue.next(at(2_600)), Next::Turn(SECOND));
        queue.over(at(3_600), SHORT);
        queue.asks(at(3_600), SECOND, step(2));
        queue.asks(at(3_600), FIRST, step(1));
        assert_eq!(queue.next(at(3_600)), Next::Turn(FIRST));
        queue.over(at(4_600), SHORT);
        assert_eq!(queue.next(at(4_600)), Next::Kept(at(5_600)), "behind its step it is");
        queue.asks(at(4_700), FIRST, DeviceWork::Errand);
        assert_eq!(queue.next(at(4_700)), Next::Turn(FIRST));
        queue.over(at(4_800), SHORT);
        assert_eq!(queue.next(at(4_800)), Next::Turn(SECOND));
    }

    /// As of a model whose requests wait for KV that comes.
    #[test]
    fn errands_that_bring_no_step_keep_a_device_for_a_few_moments_at_most() {
        let mut queue = after_a_turn(TurnOrder::FirstCome, SHORT);
        let (mut now, mut errands) = (1_000, 0);
        while matches!(queue.next(at(now)), Next::Kept(_)) {
            now += 900;
            queue.asks(at(now), FIRST, DeviceWork::Errand);
            assert_eq!(queue.next(at(now)), Next::Turn(FIRST));
            queue.over(at(now), Seconds(0.0));
            errands += 1;
        }
        assert_eq!((errands, queue.next(at(now))), (5, Next::Turn(SECOND)), "after four moments and a half");
        // Its next step is waited for as ever.
        queue.asks(at(now), FIRST, step(1));
        queue.over(at(now + 1_000), SHORT);
        assert_eq!(queue.next(at(now + 1_000)), Next::Turn(FIRST));
        queue.asks(at(now + 1_000), SECOND, step(2));
        queue.over(at(now + 2_000), SHORT);
        assert_eq!(queue.next(at(now + 2_000)), Next::Kept(at(now + 3_000)));
    }

    #[test]
    fn a_device_that_one_uses_is_never_kept() {
        let mut queue = TurnQueue::new(TurnOrder::default().arbiter());
        queue.enters(FIRST, 1, 0);
        for ms in 0..10 {
            queue.asks(at(ms * 1_000), FIRST, step(1));
            assert_eq!(queue.next(at(ms * 1_000)), Next::Turn(FIRST));
            queue.over(at(ms * 1_000 + 500), SHORT);
            assert_eq!(queue.next(at(ms * 1_000 + 500)), Next::Nobody);
        }
    }

    /// Models that ask again sooner or later than a device is kept, under every order: each has its turn within the patience, a turn
    /// of each model and a moment, by the clock on the wall.
    #[test]
    fn moments_are_in_the_time_that_a_step_may_wait() {
        for (name, order) in TurnOrder::ALL {
            for seed in 0..50 {
                let waits = longest_wait(order, &mut Rng::new(seed));
                assert!(waits.0 <= waits.1, "{name}, seed {seed}: {} s of {}", waits.0, waits.1);
            }
        }
    }

    /// The longest that a step waited for its turn, and may have (s).
    fn longest_wait(order: TurnOrder, rng: &mut Rng) -> (f64, f64) {
        let models = 2 + rng.below(4) as u16;
        let (longest, later) = (0.02 * rng.unit(), 3.0 * GRACE.as_secs_f64() * rng.unit());
        let mut queue = TurnQueue::new(order.arbiter());
        // When who asks, since when who waits, and who computes from when until when.
        let mut asks: BTreeMap<ServiceNo, Time> = (0..models).map(|n| (ServiceNo(n), Time::ZERO)).collect();
        let (mut waits, mut turn, mut longest_wait) = (BTreeMap::new(), None::<(ServiceNo, Time, Time)>, 0.0_f64);
        asks.keys().for_each(|service| queue.enters(*service, u32::from(service.0), 100));
        let mut now = Time::ZERO;
        for _ in 0..2_000 {
            let due: Vec<ServiceNo> = asks.iter().filter(|(_, at)| **at <= now).map(|(service, _)| *service).collect();
            for service in due {
                asks.remove(&service);
                let errand = rng.below(8) == 0;
                queue.asks(now, service, if errand { DeviceWork::Errand } else { step(u32::from(service.0)) });
                waits.insert(service, now);
            }
            if let Some((service, since, until)) = turn
                && until <= now
            {
                queue.over(now, Seconds((now - since).as_secs_f64()));
                asks.insert(service, now + Time::from_secs_f64(later * rng.unit()));
                turn = None;
            }
            let mut wake = asks.values().copied().min().unwrap_or(Time::MAX);
            match (turn, queue.next(now)) {
                (None, Next::Turn(service)) => {
                    let since = waits.remove(&service).unwrap_or(now);
                    longest_wait = longest_wait.max((now - since).as_secs_f64());
                    turn = Some((service, now, now + Time::from_secs_f64(longest * rng.unit())));
                }
                (None, Next::Kept(until)) => wake = wake.min(until),
                _ => {}
            }
            now = turn.map_or(wake, |(_, _, until)| wake.min(until));
        }
        (longest_wait, PATIENCE.0 + f64::from(models) * longest + GRACE.as_secs_f64() + 1e-6)
    }
}
