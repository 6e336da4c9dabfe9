//! Plan flow 4: models that are asked for where devices do not hold all of them at once. Each has memory by turns: the one that
//! has waited longest comes into the place of what nobody asks for, or of what has been there longest, once that has had its
//! turn.
//!
//! A turn begins when a model takes requests. It is as long as the replacement interval (SeaLLM Eq. 8), and no shorter than pays
//! for loading ([`super::reload`]). So of n models that are asked for all the time, and of which one is in memory, each waits for
//! n − 1 turns at most, and for as many times answers that are under way to end and weights to come. Which models go is a matter of right and not of values: of a busy model fewer
//! requests are in time, and it would never come.

use super::{Control, reload, swap::Swap};
use crate::{
    Time, cards,
    members::Members,
    planner::{PlanDraft, live},
    replacement_interval::{Bounds, ReplacementInterval},
    traffic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{Group, ModelCard, ModelId, Plan, Seconds};

/// How long the first turn is, and between which lengths turns stay where loading takes no longer: requests for a model that is
/// not there wait meanwhile.
const TURN: Bounds = Bounds { start: Seconds(60.0), least: Seconds(30.0), most: Seconds(120.0), beta: 0.1 };
/// How long a model waits before others are moved for it: planning may find a place without that.
const FIRST: Duration = Duration::from_secs(5);
/// How long a model may be on its way before its turn is taken to have begun: answers of those before it may be long.
const LATE: Duration = Duration::from_secs(300);
/// How long what stands where a model waits is left to it alone, if it needs more than may go yet. Who has waited longer may never come.
const CLAIM: Duration = Duration::from_secs(900);
/// How long a model for which no place was found lets others go first: there may never be one, and turns are longer for the sake of
/// who waits first. Half as long as gateways wait for a model.
const VAIN: Duration = Duration::from_secs(300);

/// Models that are asked for, as far as devices have memory for them at all: requests a second, and how long loading takes.
type ModelDemand = BTreeMap<ModelId, (f64, Seconds)>;

/// What there is to choose from where not all models are in memory at once.
#[derive(Clone, Debug, Default)]
pub(super) struct SwapDemand {
    asked: ModelDemand,
    /// Models that may give their place on some device: there it does not hold all, and they are not kept.
    may_go: BTreeSet<ModelId>,
}

/// What is asked for; `None` where all models are in memory at once, or nobody has any.
pub(super) fn demand(members: &Members<'_>) -> Option<SwapDemand> {
    if !live::is_scarce(members) {
        return None;
    }
    let devices = members.values().flat_map(|advert| &advert.devices);
    let served = devices.filter(|device| !device.holds_all()).flat_map(|device| &device.serves);
    let may_go = served.filter(|served| !served.is_kept).map(|served| served.model).collect();
    let (room, asked) = (live::weights_room(members.values().copied()), traffic::all_together(members));
    let of = |(model, card): (ModelId, &ModelCard)| {
        let bytes = card.shape.stage_bytes(card.shape.all_layers());
        let has_room = room.get(&model).is_some_and(|room| room.holds(&card.shape));
        has_room.then_some((model, (asked.get(&model)?.rate, reload::loading(bytes))))
    };
    let all_agreed = cards::all_agreed(members.values().copied());
    Some(SwapDemand { asked: all_agreed.into_iter().filter_map(of).collect(), may_go })
}

/// A model of the plan in force.
#[derive(Clone, Copy, Debug)]
struct PlannedModel {
    /// Since when it is planned.
    planned: Time,
    /// Since when it takes requests.
    up: Option<Time>,
    /// It was there when this peer first looked: since when is for others to say.
    is_older: bool,
}

impl PlannedModel {
    /// When its turn began, or will be taken to have begun.
    fn began(self) -> Time {
        self.up.unwrap_or_else(|| self.planned.saturating_add(LATE))
    }
}

/// Since when models are served, or wait for that.
#[derive(Clone, Debug)]
pub(super) struct Swapping {
    interval: ReplacementInterval,
    served: BTreeMap<ModelId, PlannedModel>,
    waits: BTreeMap<ModelId, Time>,
    /// Those of them that let others go first, and until when.
    vain: BTreeMap<ModelId, Time>,
    demand: SwapDemand,
    /// What was asked for when the present turn began.
    expected: ModelDemand,
    /// What planning was told last.
    told: Option<Swap>,
    /// Whether there was a choice when this peer looked last.
    has_looked: bool,
}

impl Default for Swapping {
    fn default() -> Self {
        let (served, waits, vain) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (demand, expected) = (SwapDemand::default(), ModelDemand::new());
        let interval = ReplacementInterval::new(TURN);
        Self { interval, served, waits, vain, demand, expected, told: None, has_looked: false }
    }
}

impl Swapping {
    /// What is asked for now, and what the plan in force serves: whether a group of each takes requests.
    fn look(&mut self, now: Time, demand: Option<SwapDemand>, served: &BTreeMap<ModelId, bool>) {
        let is_older = demand.is_some() && !self.has_looked;
        self.has_looked = demand.is_some();
        self.demand = demand.unwrap_or_default();
        let asked = &self.demand.asked;
        let is_here = |model: &ModelId| served.contains_key(model);
        let came = self.waits.keys().any(is_here);
        let went = self.served.keys().any(|model| !is_here(model) && asked.contains_key(model));
        if came && went {
            self.turned();
        }
        self.served.retain(|model, _| is_here(model));
        for (model, is_up) in served {
            let served = self.served.entry(*model).or_insert(PlannedModel { planned: now, up: None, is_older });
            served.up = served.up.or_else(|| is_up.then_some(now));
        }
        let asked = &self.demand.asked;
        self.waits.retain(|model, _| !is_here(model) && asked.contains_key(model));
        for model in asked.keys().filter(|model| !is_here(model)) {
            self.waits.entry(*model).or_insert(now);
        }
        self.vain.retain(|model, until| now < *until && self.waits.contains_key(model));
    }

    /// No place was found for a model, and there is nothing that it could wait for.
    pub(super) fn was_in_vain(&mut self, now: Time, model: ModelId) {
        self.vain.insert(model, now + VAIN);
    }

    /// A turn is over: how long the next one is. Peers know what is asked for; what was attained only gateways do.
    fn turned(&mut self) {
        let off = |(model, &(expected, _)): (&ModelId, &(f64, Seconds))| {
            let real = self.demand.asked.get(model).map_or(0.0, |(rate, _)| *rate);
            (real - expected).abs() / expected.max(f64::MIN_POSITIVE)
        };
        if !self.expected.is_empty() {
            let off = self.expected.iter().map(off).fold(0.0, f64::max);
            self.interval.over(off);
        }
        self.expected.clone_from(&self.demand.asked);
    }

    /// The least time for which a model stays for which another waits, whatever intervals are: it has to pay for the loading of
    /// both.
    fn least(&self, stays: ModelId, waits: ModelId) -> Duration {
        let loading = |model: ModelId| self.demand.asked.get(&model).map_or(Seconds(0.0), |(_, loading)| *loading);
        let least = TURN.least.max(reload::least_turn(loading(stays).max(loading(waits))));
        Duration::try_from_secs_f64(least.0).unwrap_or(Duration::MAX)
    }

    /// How long it stays.
    fn turn(&self, stays: ModelId, waits: ModelId) -> Duration {
        let interval = Duration::try_from_secs_f64(self.interval.length().0).unwrap_or(Duration::MAX);
        self.least(stays, waits).max(interval)
    }

    /// Who may come now, and for whom.
    fn due(&self, now: Time) -> Option<Swap> {
        let has_waited = |since: Time| now >= since + FIRST;
        let waits = self.waits.iter().filter(|(_, since)| has_waited(**since));
        let mut waits: Vec<(bool, Time, ModelId)> =
            waits.map(|(model, since)| (self.vain.contains_key(model), *since, *model)).collect();
        waits.sort_unstable();
        let first = waits.first()?.2;
        let SwapDemand { asked, may_go } = &self.demand;
        let movable = || self.served.iter().filter(move |(model, _)| may_go.contains(*model));
        let idle: BTreeSet<ModelId> =
            movable().map(|(model, _)| *model).filter(|model| !asked.contains_key(model)).collect();
        let is_over = |(began, model): &(Time, ModelId)| {
            asked.contains_key(model) && now >= began.saturating_add(self.turn(*model, first))
        };
        let began = movable().map(|(model, served)| (served.began(), *model));
        let mut over: Vec<(Time, ModelId)> = began.filter(is_over).collect();
        over.sort_unstable();
        let may_claim = |(is_vain, since, _): &&(bool, Time, ModelId)| !is_vain && now < *since + CLAIM;
        let claims = waits.iter().filter(may_claim).map(|(.., model)| *model).collect();
        let waits = waits.into_iter().map(|(.., model)| model).collect();
        let over: Vec<ModelId> = over.into_iter().map(|(_, model)| model).collect();
        (!idle.is_empty() || !over.is_empty()).then_some(Swap { waits, claims, idle, over })
    }

    /// Whether a plan does no more than give a model that waits its turn, by this peer's own view, which may be a little late.
    fn allows(&self, now: Time, before: &BTreeSet<ModelId>, after: &BTreeSet<ModelId>, late: Duration) -> bool {
        let came: Vec<ModelId> = after.difference(before).copied().filter(|m| self.waits.contains_key(m)).collect();
        let may_go = |model: &ModelId| {
            let served = self.served.get(model);
            let began = served.map_or(now, |served| served.began());
            let is_over = |comes: &ModelId| now + late >= began.saturating_add(self.least(*model, *comes));
            let is_older = served.is_some_and(|served| served.is_older);
            let is_asked = self.demand.asked.contains_key(model);
            self.demand.may_go.contains(model) && (!is_asked || is_older || came.iter().any(is_over))
        };
        !came.is_empty() && before.difference(after).all(may_go)
    }
}

impl Control {
    /// Notes who is asked for and who is served, and has plans made where somebody's turn has come.
    pub(super) fn look_at_swaps(&mut self) {
        let demand = self.derive().demand.clone();
        if demand.is_none() && self.swapping.told.is_none() && self.swapping.served.is_empty() {
            return;
        }
        let mut served = BTreeMap::new();
        if let Some(plan) = self.plan().filter(|_| demand.is_some()) {
            let up = self.said_ready();
            for group in &plan.groups {
                *served.entry(group.model).or_insert(false) |= up.contains_key(&group.id);
            }
        }
        let now = self.now;
        self.swapping.look(now, demand, &served);
        let due = self.swapping.due(now).filter(|_| self.config.wish.layout.is_none());
        if due != self.swapping.told {
            self.swapping.told = due;
            self.view_changed();
        }
    }

    /// Whose turn it is.
    pub(super) fn swap(&self) -> Option<Swap> {
        self.swapping.told.clone()
    }

    /// Whether a plan that is worth less than the present one is to be had all the same: it gives a model its turn, and those that
    /// both serve lose nothing.
    pub(super) fn is_turn(&self, plan: &Plan, present: &Plan, members: &Members<'_>) -> bool {
        let value = |plan: &Plan| self.config.planner.value(plan, members, &self.config.wish);
        self.swapping.allows(self.now, &models(present), &models(plan), self.config.patience / 2)
            && is_as_good(plan, present, self.config.margin, value)
    }

    /// Whether all that a draft does not serve any more may go by what is known now.
    pub(super) fn may_go_now(&self, draft: &PlanDraft) -> bool {
        let Some(Swap { idle, over, .. }) = &self.swapping.told else { return false };
        let stays = |model: &ModelId| draft.groups.iter().any(|group| group.model == *model);
        self.swapping.served.keys().all(|model| stays(model) || idle.contains(model) || over.contains(model))
    }
}

/// Whether models that both plans serve are worth as much in the first, but for such a part.
pub(super) fn is_as_good(plan: &Plan, present: &Plan, margin: f64, value: impl Fn(&Plan) -> f64) -> bool {
    let (before, after) = (models(present), models(plan));
    let both = |plan: &Plan| {
        let is_in_both = |group: &&Group| before.contains(&group.model) && after.contains(&group.model);
        let groups = plan.groups.iter().filter(is_in_both).cloned().collect();
        value(&Plan { groups, ..plan.clone() })
    };
    both(plan) >= both(present) * (1.0 - margin)
}

fn models(plan: &Plan) -> BTreeSet<ModelId> {
    plan.groups.iter().map(|group| group.model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Advert, Epoch, LayerRange, PeerId, Phase, Stage, Term};

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    fn set(models: &[u8]) -> BTreeSet<ModelId> {
        models.iter().map(|n| ModelId([*n; 16])).collect()
    }

    fn up(models: &[u8]) -> BTreeMap<ModelId, bool> {
        set(models).into_iter().map(|model| (model, true)).collect()
    }

    /// Each once a second, and a second to load.
    fn asks(models: &[u8]) -> SwapDemand {
        let asked = set(models).into_iter().map(|model| (model, (1.0, Seconds(1.0)))).collect();
        SwapDemand { asked, may_go: set(&[1, 2, 3, 4]) }
    }

    #[test]
    fn each_of_three_that_are_asked_for_all_the_time_has_its_turn() {
        let (mut swapping, mut served, mut turns) = (Swapping::default(), up(&[1]), vec![(0, ModelId([1; 16]))]);
        for now in 0..3600 {
            swapping.look(at(now), Some(asks(&[1, 2, 3])), &served);
            if let Some(swap) = swapping.due(at(now)) {
                assert_eq!(swap.over, served.into_keys().collect::<Vec<_>>());
                turns.push((now, swap.waits[0]));
                served = [(swap.waits[0], true)].into();
            }
        }
        assert!(turns.len() > 25, "{}", turns.len());
        for (n, (began, model)) in turns.iter().enumerate() {
            assert_eq!(*model, ModelId([n as u8 % 3 + 1; 16]), "in turn");
            let lasted = turns.get(n + 1).map_or(60, |(end, _)| end - began);
            assert!(
                (60..=122).contains(&lasted),
                "turns get longer where all is as expected, up to two minutes: {lasted}"
            );
        }
    }

    #[test]
    fn what_nobody_asks_for_goes_at_once_and_what_somebody_does_after_its_turn() {
        let mut swapping = Swapping::default();
        let due = |swapping: &Swapping, now: u64| {
            let among = set(&[1, 2, 3, 4]);
            swapping.due(at(now)).map(|swap| (swap.waits.clone(), swap.yields(&among)))
        };
        let two = vec![ModelId([2; 16])];
        swapping.look(at(0), Some(asks(&[2])), &up(&[1]));
        assert_eq!([due(&swapping, 4), due(&swapping, 5)], [None, Some((two.clone(), vec![set(&[1])]))]);
        swapping.look(at(6), Some(asks(&[1, 2])), &up(&[1]));
        assert_eq!([due(&swapping, 59), due(&swapping, 60)], [None, Some((two.clone(), vec![set(&[1])]))]);
        // Of several those that are asked for are the last to go.
        swapping.look(at(61), Some(asks(&[1, 2, 3])), &up(&[1, 3, 4]));
        assert_eq!(due(&swapping, 65), Some((two.clone(), vec![set(&[4]), set(&[1, 4])])));
        let all = vec![set(&[4]), set(&[1, 4]), set(&[1, 3, 4])];
        assert_eq!(due(&swapping, 125), Some((two, all)));
        swapping.look(at(126), Some(SwapDemand { may_go: set(&[3]), ..asks(&[1, 2, 3]) }), &up(&[1, 3, 4]));
        assert_eq!(due(&swapping, 126).map(|(_, yields)| yields), Some(vec![set(&[3])]), "others are kept");
        let claims = |now: u64| swapping.due(at(now)).map(|swap| swap.claims.len());
        assert_eq!([claims(899), claims(900)], [Some(1), Some(0)], "it may never come");
        swapping.look(at(130), None, &up(&[]));
        assert_eq!(due(&swapping, 500), None, "all are in memory");
    }

    #[test]
    fn who_has_no_place_lets_others_go_first_for_a_while() {
        let mut swapping = Swapping::default();
        swapping.look(at(0), Some(asks(&[2, 3])), &up(&[1]));
        let waits = |swapping: &Swapping, now: u64| {
            let swap = swapping.due(at(now)).unwrap();
            (swap.waits.iter().map(|model| model.0[0]).collect::<Vec<_>>(), swap.claims.len())
        };
        assert_eq!(waits(&swapping, 5), (vec![2, 3], 2));
        swapping.was_in_vain(at(5), ModelId([2; 16]));
        assert_eq!(waits(&swapping, 5), (vec![3, 2], 1));
        swapping.look(at(304), Some(asks(&[2, 3])), &up(&[1]));
        assert_eq!(waits(&swapping, 304), (vec![3, 2], 1));
        swapping.look(at(305), Some(asks(&[2, 3])), &up(&[1]));
        assert_eq!(waits(&swapping, 305), (vec![2, 3], 2));
    }

    #[test]
    fn a_turn_begins_when_a_model_takes_requests() {
        let mut swapping = Swapping::default();
        let mut due = |now: u64, is_up: bool| {
            swapping.look(at(now), Some(asks(&[1, 2])), &[(ModelId([1; 16]), is_up)].into());
            swapping.due(at(now)).is_some()
        };
        assert!(!due(0, false) && !due(100, true) && !due(159, false) && due(160, true), "a minute");
        let mut late = Swapping::default();
        late.look(at(0), Some(asks(&[1, 2])), &[(ModelId([1; 16]), false)].into());
        assert!(late.due(at(359)).is_none() && late.due(at(360)).is_some(), "it may never come");
    }

    #[test]
    fn turns_follow_what_is_asked_for_and_pay_for_loading() {
        let [one, two] = [1, 2].map(|n| ModelId([n; 16]));
        let mut swapping = Swapping::default();
        let mut turn = |rate: f64, served: &[u8], loading: f64| {
            let asked = [one, two].map(|model| (model, (rate, Seconds(loading))));
            swapping.look(at(0), Some(SwapDemand { asked: asked.into(), ..SwapDemand::default() }), &up(served));
            swapping.turn(one, two).as_secs_f64()
        };
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        close(turn(1.0, &[1], 1.0), 60.0);
        close(turn(1.0, &[2], 1.0), 60.0);
        close(turn(1.0, &[1], 1.0), 66.0);
        close(turn(2.0, &[2], 1.0), 59.4);
        close(turn(2.0, &[2], 8.0), 80.0);
        close(turn(2.0, &[2], 50.0), 300.0);
        close(turn(2.0, &[2], 200.0), 400.0);
    }

    #[test]
    fn models_that_somebody_made_up_are_looked_at_once() {
        assert!(cards::made_up::is_seen_once(demand));
    }

    #[test]
    fn a_model_may_go_where_not_all_are_in_memory_and_it_is_not_kept() {
        let may_go = |advert: &Advert| demand(&[(PeerId([0; 32]), advert)].into()).map(|demand| demand.may_go);
        let mut advert = sample::lends_several(0, sample::cards(2));
        assert_eq!(may_go(&advert), None, "there is memory for both");
        let device = &mut advert.devices[0];
        let part = device.memory_bytes / 4 * 3;
        device.serves.iter_mut().for_each(|served| served.memory_bytes = part);
        assert_eq!(may_go(&advert), Some(set(&[1, 2])));
        advert.devices[0].serves[0].is_kept = true;
        assert_eq!(may_go(&advert), Some(set(&[2])));
    }

    #[test]
    fn a_plan_is_allowed_that_gives_a_model_its_turn_and_no_other_that_takes_what_is_asked_for() {
        let mut new = Swapping::default();
        let mut swapping = new.clone();
        swapping.look(at(0), Some(asks(&[1, 2])), &up(&[]));
        swapping.look(at(0), Some(asks(&[1, 2])), &up(&[1, 4]));
        let allows =
            |now: u64, after: &[u8]| swapping.allows(at(now), &set(&[1, 4]), &set(after), Duration::from_secs(1));
        assert!(!allows(28, &[2, 4]) && allows(29, &[2, 4]), "half a minute, and views differ");
        assert!(allows(1, &[1, 2]), "nobody asks for what goes");
        assert!(!allows(29, &[3, 4]) && !allows(29, &[4]), "who comes waits for nothing, or nobody comes");
        // Who has just come knows of no turn when it began.
        new.look(at(1), Some(asks(&[1, 2])), &up(&[1, 4]));
        assert!(new.allows(at(2), &set(&[1, 4]), &set(&[2, 4]), Duration::ZERO));
        new.look(at(2), Some(SwapDemand { may_go: set(&[4]), ..asks(&[1, 2]) }), &up(&[1, 4]));
        assert!(!new.allows(at(99), &set(&[1, 4]), &set(&[2, 4]), Duration::ZERO), "it is kept");
    }

    fn group(model: u8, peers: &[u8]) -> Group {
        let layers = LayerRange { start: 0, end: 4 };
        let stages = peers.iter().map(|peer| Stage { peer: PeerId([*peer; 32]), device: 0, layers }).collect();
        Group::new(ModelId([model; 16]), Phase::Mixed, stages)
    }

    #[test]
    fn those_that_stay_lose_nothing_by_anothers_turn() {
        let plan = |groups: Vec<Group>| Plan {
            epoch: Epoch(0),
            term: Term(0),
            parent: None,
            groups,
            routes: Vec::new(),
            chosen: Vec::new(),
            reason: String::new(),
        };
        let value = |plan: &Plan| plan.groups.iter().map(|group| group.stages.len()).sum::<usize>() as f64;
        let before = plan(vec![group(1, &[1, 2]), group(3, &[3, 4])]);
        for (stays, is_good) in [(&[3, 4][..], true), (&[4][..], false)] {
            let after = plan(vec![group(2, &[1, 2, 3]), group(3, stays)]);
            assert_eq!(is_as_good(&after, &before, 0.1, value), is_good, "{stays:?}");
        }
    }
}
