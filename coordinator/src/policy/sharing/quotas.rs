//! Whose KV pages are whose on a device whose models have one pool of them (SeaLLM §4.4, merged blocks): pages are of one size, so
//! that any is any model's. Each model has a quota, and the quotas are all there is. A model takes what others leave unused, far
//! beyond its own; what is kept of sequences that ended is nobody's, and free.
//!
//! **Nobody waits for ever.** A quarter of each quota, its floor, is lent to nobody: up to there a model gets pages at once. Up to its
//! quota it gets them as soon as others have given back what they have beyond theirs: who was refused has a claim, and until that is
//! met no other gets a page beyond its own quota that the claim would lack. So a model's first request waits for no longer than the
//! sequences take that others ran when it asked, whose answers end or, refused more room, give way. Beyond its quota nothing is
//! promised, but who asked first is first. A claim that is not made again lapses ([`STANDS`]).

use crate::{policy::batching::ServiceNo, time::Time};
use std::time::Duration;

/// For how long a claim stands that is not made again. Whoever waits asks again after a tenth of a second, once a step that has the
/// device is over, and where its group has several hosts after a step of each: with a claim that lapsed meanwhile it would lose to a
/// busy model of short steps again and again.
pub const STANDS: Duration = Duration::from_secs(5);

/// One part in so many of a quota is its floor.
const FLOOR: u64 = 4;

/// Pages that were asked for and refused.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Of all claims, which one it was.
    nth: u64,
    wanted: u64,
    until: Time,
}

/// A model, and what it has.
#[derive(Clone, Copy, Debug)]
struct QuotaHolder {
    quota: u64,
    used: u64,
    claim: Option<Claim>,
}

impl QuotaHolder {
    fn standing(&self, now: Time) -> Option<Claim> {
        self.claim.filter(|claim| now < claim.until)
    }

    /// What of its floor it does not use.
    fn below_floor(&self) -> u64 {
        (self.quota / FLOOR).saturating_sub(self.used)
    }

    /// What is left for it by another that would go beyond its own quota, and whose claim is the `nth`.
    fn left_for(&self, now: Time, nth: u64) -> u64 {
        let claimed = match self.standing(now) {
            Some(claim) if claim.nth < nth => claim.wanted,
            Some(claim) => claim.wanted.min(self.quota.saturating_sub(self.used)),
            None => 0,
        };
        claimed.max(self.below_floor())
    }
}

/// The models of a device, and the pages that each uses.
#[derive(Clone, Debug)]
pub struct PageQuotas {
    members: Vec<QuotaHolder>,
    claims: u64,
}

impl PageQuotas {
    /// Models that use none yet, by their quotas. There are as many pages as these come to.
    #[must_use]
    pub fn new(quotas: impl IntoIterator<Item = u64>) -> Self {
        let member = |quota| QuotaHolder { quota, used: 0, claim: None };
        Self { members: quotas.into_iter().map(member).collect(), claims: 0 }
    }

    /// A model's quota: no sequence may need more.
    #[must_use]
    pub fn quota(&self, service: ServiceNo) -> u64 {
        self.member(service).map_or(0, |member| member.quota)
    }

    /// Pages that nobody uses.
    #[must_use]
    pub fn free(&self) -> u64 {
        let sum = |of: fn(&QuotaHolder) -> u64| self.members.iter().map(of).fold(0, u64::saturating_add);
        sum(|member| member.quota).saturating_sub(sum(|member| member.used))
    }

    /// Pages that a model may count on, of as many as its quota: what it does not use of that, which others give back, or what it may
    /// take beyond of those that are free now, where that is more. Another's burst takes nothing of it.
    #[must_use]
    pub fn available(&self, now: Time, service: ServiceNo) -> u64 {
        let Some(asking) = self.member(service) else { return 0 };
        let nth = asking.standing(now).map_or(self.claims, |claim| claim.nth);
        let left = self.others(service).map(|other| other.left_for(now, nth)).fold(0, u64::saturating_add);
        let beyond = self.free().saturating_sub(left);
        asking.quota.saturating_sub(asking.used).max(beyond).min(asking.quota)
    }

    /// A model's sequences use so many pages now.
    pub fn uses(&mut self, service: ServiceNo, pages: u64) {
        if let Some(member) = self.members.get_mut(usize::from(service.0)) {
            member.used = pages;
        }
    }

    /// Whether a model may take so many pages more. Until it has taken them it has a claim to them.
    pub fn asks(&mut self, now: Time, service: ServiceNo, wanted: u64) -> bool {
        if wanted == 0 {
            return true;
        }
        let Some(nth) = self.claim(now, service, wanted) else { return false };
        let Some(asking) = self.member(service) else { return false };
        let after = asking.used.saturating_add(wanted);
        let others = self.others(service);
        let left: u64 = if after <= asking.quota / FLOOR {
            0
        } else if after <= asking.quota {
            others.map(QuotaHolder::below_floor).fold(0, u64::saturating_add)
        } else {
            others.map(|other| other.left_for(now, nth)).fold(0, u64::saturating_add)
        };
        wanted.saturating_add(left) <= self.free()
    }

    /// A model has taken so many pages. A claim to more than that stands.
    pub fn took(&mut self, service: ServiceNo, pages: u64) {
        if let Some(member) = self.members.get_mut(usize::from(service.0)) {
            member.used = member.used.saturating_add(pages);
            member.claim = member.claim.filter(|claim| claim.wanted > pages);
        }
    }

    fn member(&self, service: ServiceNo) -> Option<&QuotaHolder> {
        self.members.get(usize::from(service.0))
    }

    fn others(&self, service: ServiceNo) -> impl Iterator<Item = &QuotaHolder> {
        self.members.iter().enumerate().filter(move |(n, _)| *n != usize::from(service.0)).map(|(_, member)| member)
    }

    /// Makes a claim, or makes it again; which one it is. What asks for less than its model waits for already leaves that as it is.
    fn claim(&mut self, now: Time, service: ServiceNo, wanted: u64) -> Option<u64> {
        let member = self.members.get_mut(usize::from(service.0))?;
        let standing = member.standing(now);
        if let Some(larger) = standing.filter(|claim| claim.wanted > wanted) {
            return Some(larger.nth);
        }
        let nth = standing.map_or(self.claims, |claim| claim.nth);
        self.claims += u64::from(standing.is_none());
        member.claim = Some(Claim { nth, wanted, until: now.saturating_add(STANDS) });
        Some(nth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const A: ServiceNo = ServiceNo(0);
    const B: ServiceNo = ServiceNo(1);
    const C: ServiceNo = ServiceNo(2);
    /// As often as batchers ask again.
    const AGAIN: Duration = Duration::from_millis(100);

    fn service(n: usize) -> ServiceNo {
        ServiceNo(n as u16)
    }

    /// A device, as its engines see it.
    struct PooledDevice {
        quotas: PageQuotas,
        all: Vec<u64>,
        used: Vec<u64>,
        now: Time,
    }

    impl PooledDevice {
        fn new(quotas: &[u64]) -> Self {
            let used = vec![0; quotas.len()];
            Self { quotas: PageQuotas::new(quotas.iter().copied()), all: quotas.to_vec(), used, now: Time::ZERO }
        }

        fn takes(&mut self, who: ServiceNo, pages: u64) -> bool {
            let granted = self.quotas.asks(self.now, who, pages);
            if granted {
                self.quotas.took(who, pages);
                self.used[usize::from(who.0)] += pages;
            }
            granted
        }

        fn gives(&mut self, who: ServiceNo, pages: u64) {
            let used = &mut self.used[usize::from(who.0)];
            *used = used.saturating_sub(pages);
            self.quotas.uses(who, *used);
        }

        fn free(&self) -> u64 {
            self.all.iter().sum::<u64>() - self.used.iter().sum::<u64>()
        }
    }

    #[test]
    fn a_burst_takes_what_others_leave_and_gives_it_back_to_who_claims_it() {
        let mut device = PooledDevice::new(&[40, 40]);
        assert!(device.takes(A, 40) && device.takes(A, 30), "all but the other's floor");
        assert!(!device.takes(A, 1) && device.takes(A, 0), "nothing is had of nothing");
        assert!(device.takes(B, 10), "the floor is there at once");
        assert!(!device.takes(B, 5), "the rest is not");
        device.gives(A, 3);
        assert!(!device.takes(A, 1), "that is claimed");
        assert!(!device.takes(B, 5), "three are free");
        device.gives(A, 4);
        assert!(device.takes(A, 2), "seven are free, and five are claimed");
        assert!(device.takes(B, 5));
        assert_eq!((device.quotas.free(), device.free()), (0, 0));
    }

    #[test]
    fn a_claim_that_is_not_made_again_lapses_and_one_for_less_does_not_take_its_place() {
        let mut device = PooledDevice::new(&[40, 40]);
        assert!(device.takes(A, 70) && device.takes(B, 10));
        assert!(!device.takes(B, 20));
        device.gives(A, 10);
        assert!(device.takes(B, 4), "another of its sequences");
        assert!(!device.takes(A, 1), "twenty are claimed still");
        device.now += STANDS;
        assert!(device.takes(A, 1), "whoever claimed them is gone");
    }

    #[test]
    fn a_model_counts_on_its_quota_whatever_others_have_of_it_and_on_what_they_leave() {
        let mut device = PageQuotas::new([40, 40]);
        let now = Time::ZERO;
        let counts = |device: &PageQuotas| [A, B].map(|who| device.available(now, who));
        assert_eq!(counts(&device), [40, 40]);
        // All but the other's floor: an idle model's group is not full for it.
        device.uses(A, 70);
        assert_eq!(counts(&device), [0, 40]);
        device.uses(A, 50);
        assert_eq!(counts(&device), [20, 40], "thirty are free, of which ten are the other's floor");
        device.uses(B, 30);
        assert_eq!(counts(&device), [0, 10]);
        device.uses(A, 10);
        assert_eq!(counts(&device), [40, 40], "beyond its quota it may have what nobody uses");
        assert!(!device.asks(now, A, 50) && device.available(now, B) == 10, "but not what the other waits for");
        assert_eq!(device.available(now, ServiceNo(7)), 0);
    }

    #[test]
    fn beyond_quotas_who_asked_first_is_first() {
        let mut device = PooledDevice::new(&[8, 8, 8]);
        assert!(device.takes(A, 8) && device.takes(B, 14));
        assert!(!device.takes(A, 4), "the floor of the third is left");
        assert!(!device.takes(B, 1));
        device.gives(B, 3);
        assert!(!device.takes(B, 1), "the other one asked before");
        device.gives(B, 1);
        assert!(device.takes(A, 4));
        assert!(device.takes(C, 2) && !device.takes(C, 1), "its floor, and no more is there");
    }

    #[test]
    fn who_is_no_model_of_the_device_gets_nothing() {
        let mut device = PageQuotas::new([8]);
        assert!(!device.asks(Time::ZERO, B, 1));
        device.uses(B, 3);
        device.took(B, 1);
        assert_eq!((device.quota(A), device.quota(B), device.free()), (8, 0, 8));
    }

    proptest! {
        /// Whatever happened: floors are there at once, and who claims what is within its quota has it once others are back within
        /// theirs; until then none of them goes beyond.
        #[test]
        fn nobody_waits_for_its_own_but_for_what_others_have_beyond_theirs(
            quotas in prop::collection::vec(1u64..60, 2..5),
            before in prop::collection::vec((0usize..4, 1u64..40, any::<bool>()), 0..60),
            meanwhile in prop::collection::vec((0usize..4, 1u64..40, any::<bool>()), 0..60),
            (who, part) in (0usize..4, 0.0..1.0f64),
        ) {
            let mut device = PooledDevice::new(&quotas);
            let n = quotas.len();
            let act = |device: &mut PooledDevice, (who, pages, takes): (usize, u64, bool)| {
                let (who, pages) = (who % n, pages.min(quotas[who % n]));
                if takes {
                    let (floor, after) = (quotas[who] / FLOOR, device.used[who] + pages);
                    let granted = device.takes(service(who), pages);
                    assert!(granted || after > floor, "a floor is there at once");
                } else {
                    device.gives(service(who), pages);
                }
                device.now += AGAIN / 2;
            };
            before.into_iter().for_each(|a| act(&mut device, a));
            let who = who % n;
            prop_assume!(device.used[who] < quotas[who]);
            let wanted = 1 + ((quotas[who] - device.used[who] - 1) as f64 * part) as u64;
            let mut granted = device.quotas.asks(device.now, service(who), wanted);
            for step in meanwhile.into_iter().filter(|step| step.0 % n != who) {
                let used = device.used.clone();
                act(&mut device, step);
                if !granted {
                    let is_within = |i: usize| device.used[i] <= used[i].max(quotas[i]);
                    prop_assert!((0..n).all(is_within), "{used:?} became {:?} of {quotas:?}", device.used);
                }
                granted = device.quotas.asks(device.now, service(who), wanted);
            }
            for i in (0..n).filter(|i| *i != who) {
                let beyond = device.used[i].saturating_sub(quotas[i]);
                device.gives(service(i), beyond);
            }
            prop_assert!(device.takes(service(who), wanted));
            prop_assert_eq!(device.quotas.free(), device.free());
        }
    }

    /// A request of a model: pages, and for how many ticks it has them.
    #[derive(Clone, Copy)]
    struct QuotaRequest {
        pages: u64,
        ticks: u64,
    }

    /// What a model has to do.
    #[derive(Default)]
    struct Model {
        waiting: VecDeque<QuotaRequest>,
        /// When each ends, and its pages.
        running: Vec<(u64, u64)>,
        /// Since when its first waits for pages that are within its quota.
        since: Option<u64>,
        most: u64,
        done: usize,
    }

    /// The most that a request has, and for how long.
    const PAGES: u64 = 20;
    const TICKS: u64 = 50;

    fn tick(device: &mut PooledDevice, models: &mut [Model], at: u64) {
        device.now += AGAIN;
        for (n, model) in models.iter_mut().enumerate() {
            let running = std::mem::take(&mut model.running);
            let (ended, running) = running.into_iter().partition::<Vec<_>, _>(|(end, _)| *end <= at);
            device.gives(service(n), ended.iter().map(|(_, pages)| pages).sum());
            (model.running, model.done) = (running, model.done + ended.len());
        }
        for (n, model) in models.iter_mut().enumerate() {
            while let Some(QuotaRequest { pages, ticks }) = model.waiting.front().copied() {
                if device.used[n] + pages <= device.all[n] {
                    let since = *model.since.get_or_insert(at);
                    assert!(at - since <= TICKS + 1, "model {n} has waited for its own since {since}, it is {at}");
                }
                if !device.takes(service(n), pages) {
                    break;
                }
                model.since = None;
                model.waiting.pop_front();
                model.running.push((at + ticks, pages));
                model.most = model.most.max(device.used[n]);
            }
        }
    }

    /// Busy one after the other, each with more than there is room for: all end, none waits for its own longer than others' take, and
    /// both have what the other leaves.
    #[test]
    fn of_ten_thousand_requests_of_two_models_all_end_and_none_waits_for_ever() {
        const ALL: usize = 10_000;
        for seed in 0..5 {
            let (mut rng, mut device) = (Rng::new(seed), PooledDevice::new(&[60, 60]));
            let (mut models, mut came, mut at) = ([Model::default(), Model::default()], 0, 0u64);
            while models.iter().map(|model| model.done).sum::<usize>() < ALL {
                let busy = (at / 2000 % 2) as usize;
                for (n, model) in models.iter_mut().enumerate() {
                    let rate = if n == busy { 0.4 } else { 0.03 };
                    if came < ALL && rng.unit() < rate {
                        let drawn = |rng: &mut Rng, most: u64| 1 + rng.below(most as usize) as u64;
                        let (pages, ticks) = (drawn(&mut rng, PAGES), drawn(&mut rng, TICKS));
                        model.waiting.push_back(QuotaRequest { pages, ticks });
                        came += 1;
                    }
                }
                tick(&mut device, &mut models, at);
                at += 1;
                assert!(at < 1_000_000, "seed {seed}: {came} came, and do not end");
            }
            assert_eq!((device.free(), device.quotas.free()), (120, 120), "seed {seed}");
            assert!(models.iter().all(|model| model.most > 75), "seed {seed}: {:?}", models.each_ref().map(|m| m.most));
        }
    }
}
