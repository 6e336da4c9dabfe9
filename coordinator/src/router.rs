//! Prompt flow 2: picks the group that prefills and the group that decodes, together.
//!
//! Which way a request goes is a policy's choice ([`crate::policy::choice::Dispatch`]), the very object that a
//! plan's replay drives; here its machines are the plan's groups that are up. The policy is made anew when those change.

use crate::{
    policy::{
        batching::Seen,
        choice::Dispatch,
        routing::{Asked, MachineNo, Overflow, Routing},
        shares::{self, PhasePair},
    },
    settings::SwarmSettings,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_protocol::{GroupId, Load, ModelId, Plan, Route, Seconds};

/// A pair of groups; the same one twice where it does both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pick {
    /// The group that prefills.
    pub prefill: GroupId,
    /// The group that decodes, and owns the request's pages.
    pub decode: GroupId,
}

/// Why there is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No plan has been adopted.
    #[error("no plan has been adopted yet")]
    NoPlan,
    /// The plan has no group for the model.
    #[error("the plan has no group for this model")]
    NoGroup,
    /// No group of the model is up.
    #[error("no group of this model is up")]
    NoneUp,
}

/// What there is to choose from at the moment.
#[derive(Clone, Copy, Debug)]
pub struct RouterView<'a> {
    /// The adopted plan.
    pub plan: Option<&'a Plan>,
    /// Groups that are up, and what they have to do.
    pub up: &'a BTreeMap<GroupId, Load>,
    /// Decode groups not to be tried again.
    pub tried: &'a BTreeSet<GroupId>,
    /// What shares are multiplied with of groups that are slower than they claim.
    pub weights: &'a BTreeMap<GroupId, f64>,
}

/// What a group has room for, beside what it says of its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSize {
    /// KV of its model (tokens), at the stage that has the least; 0 where that is not known.
    pub room: u64,
    /// The same at its leader, whose free pages are those that a load says.
    pub leads: u64,
    /// KV of requests that were sent there since the group last said how much it has (tokens).
    pub sent: u64,
    /// Prompt tokens of a batch where nothing is answered, at most; 0 where that is not known.
    pub step: u32,
}

/// What pools are routed by, beside loads.
#[derive(Clone, Debug, Default)]
pub struct PoolSizes {
    /// What each group has room for.
    pub groups: BTreeMap<GroupId, GroupSize>,
    /// Whether the next request stays on the plan's ways, whatever waits there: its KV is to be sent, or it was begun before.
    pub stays: bool,
}

/// Picks routes, by one policy for each model.
#[derive(Debug)]
pub struct Router {
    dispatch: Dispatch,
    settings: SwarmSettings,
    /// It says what was chosen where members have left that to measurement.
    plan: Option<Arc<Plan>>,
    models: BTreeMap<ModelId, ModelPolicy>,
    sizes: PoolSizes,
    /// Of the request that was routed last.
    overflow: Option<Overflow>,
}

/// A model's policy, over the ways that were up when it was made.
#[derive(Debug)]
struct ModelPolicy {
    dispatch: Dispatch,
    ways: Vec<PhasePair<GroupId>>,
    /// Groups in the policy's numbering.
    groups: Vec<GroupId>,
    routing: Box<dyn Routing>,
}

impl Router {
    /// A router that dispatches so where members have set nothing else.
    #[must_use]
    pub fn new(dispatch: Dispatch) -> Self {
        let (settings, models, sizes) = (SwarmSettings::default(), BTreeMap::new(), PoolSizes::default());
        Self { dispatch, settings, plan: None, models, sizes, overflow: None }
    }

    /// What pools are routed by from now on.
    pub fn look(&mut self, sizes: PoolSizes) {
        self.sizes = sizes;
    }

    /// Of which pool the request that was routed last found no room.
    #[must_use]
    pub fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }

    /// Dispatches as members have set, and as the plan has chosen where they left that to it.
    pub fn follow(&mut self, settings: SwarmSettings, plan: Option<Arc<Plan>>) {
        (self.settings, self.plan) = (settings, plan);
    }

    /// How requests for a model are dispatched: as members have set, or else as this peer does.
    #[must_use]
    pub fn dispatch(&self, model: ModelId) -> Dispatch {
        let chosen = self.plan.as_ref().map_or(&[][..], |plan| &plan.chosen);
        self.settings.routed(model, chosen).map_or(self.dispatch, Dispatch::from)
    }

    /// Picks a route for a request of `model`. `seed` is where draws begin when the policy is made anew.
    ///
    /// # Errors
    /// When no group of the model is up.
    pub fn pick(&mut self, choice: RouterView<'_>, model: ModelId, asked: Asked, seed: u64) -> Result<Pick, NoRoute> {
        self.overflow = None;
        let plan = choice.plan.ok_or(NoRoute::NoPlan)?;
        let groups: Vec<GroupId> = plan.groups.iter().filter(|g| g.model == model).map(|g| g.id).collect();
        if groups.is_empty() {
            return Err(NoRoute::NoGroup);
        }
        let mut ways = ways(plan, &groups, choice);
        if ways.is_empty() {
            // A group holds all layers whatever its phase: any that is up can do both.
            let usable = |id: &GroupId| choice.up.contains_key(id) && !choice.tried.contains(id);
            let alone =
                groups.into_iter().filter(usable).min_by_key(|id| shares::work(seen(choice.up, &self.sizes, *id)));
            return alone.map(|id| Pick { prefill: id, decode: id }).ok_or(NoRoute::NoneUp);
        }
        let dispatch = self.dispatch(model);
        let pooled = dispatch == Dispatch::Pools;
        if pooled {
            // Queues alone say where requests go: what is on loan stays so where shares change.
            ways.iter_mut().for_each(|way| way.share = 1.0);
        }
        if !choice.tried.is_empty() || (pooled && self.sizes.stays) {
            // A second try has fewer ways; the others keep their policy. None is lent for it: it may have been tried.
            let dispatch = if pooled { Dispatch::Shortest } else { dispatch };
            return ModelPolicy::new(dispatch, ways, seed).pick(choice.up, &self.sizes, asked);
        }
        if self.models.get(&model).is_none_or(|p| p.ways != ways || p.dispatch != dispatch) {
            self.models.retain(|m, _| plan.groups.iter().any(|g| g.model == *m));
            self.models.insert(model, ModelPolicy::new(dispatch, ways, seed));
        }
        let policy = self.models.get_mut(&model).ok_or(NoRoute::NoGroup)?;
        let pick = policy.pick(choice.up, &self.sizes, asked);
        self.overflow = policy.routing.overflow();
        pick
    }

    /// It is so late; said before a route is asked for.
    pub fn at(&mut self, now: Seconds) {
        self.models.values_mut().for_each(|policy| policy.routing.at(now));
    }

    /// A request's first token is there: its prompt no longer waits where it was sent.
    pub fn prompt_done(&mut self, model: ModelId, group: GroupId, asked: Asked) {
        if let Some((routing, machine)) = self.told(model, group) {
            routing.prompt_done(machine, asked);
        }
    }

    /// A request has ended, one way or another.
    pub fn answer_done(&mut self, model: ModelId, group: GroupId, asked: Asked) {
        if let Some((routing, machine)) = self.told(model, group) {
            routing.answer_done(machine, asked);
        }
    }

    fn told(&mut self, model: ModelId, group: GroupId) -> Option<(&mut dyn Routing, MachineNo)> {
        let policy = self.models.get_mut(&model)?;
        let place = policy.groups.iter().position(|g| *g == group)?;
        Some((policy.routing.as_mut(), MachineNo(place as u32)))
    }
}

impl ModelPolicy {
    fn new(dispatch: Dispatch, ways: Vec<PhasePair<GroupId>>, seed: u64) -> Self {
        let groups: BTreeSet<GroupId> = ways.iter().flat_map(|w| [w.prefill, w.decode]).collect();
        let groups: Vec<GroupId> = groups.into_iter().collect();
        let number = |id: GroupId| MachineNo(groups.iter().position(|g| *g == id).unwrap_or(0) as u32);
        let whole: f64 = ways.iter().map(|w| w.share).sum();
        let numbered = |w: &PhasePair<GroupId>| PhasePair {
            prefill: number(w.prefill),
            decode: number(w.decode),
            // What is down or too much is shared by those that are up: nothing is turned away here.
            share: w.share / whole,
        };
        let routing = dispatch.routing(ways.iter().map(numbered).collect(), seed as f64 / u64::MAX as f64);
        Self { dispatch, ways, groups, routing }
    }

    fn pick(&mut self, up: &BTreeMap<GroupId, Load>, sizes: &PoolSizes, asked: Asked) -> Result<Pick, NoRoute> {
        let groups = &self.groups;
        let route =
            self.routing.route(asked, &|m| groups.get(m.0 as usize).map_or(Seen::default(), |id| seen(up, sizes, *id)));
        let group = |m: MachineNo| groups.get(m.0 as usize).copied().ok_or(NoRoute::NoneUp);
        let route = route.ok_or(NoRoute::NoneUp)?;
        Ok(Pick { prefill: group(route.prompt)?, decode: group(route.answer)? })
    }
}

/// Pairs of groups of a model that a request may go to now.
pub(crate) fn open(choice: RouterView<'_>, model: ModelId) -> Vec<Pick> {
    let Some(plan) = choice.plan else { return Vec::new() };
    let groups: Vec<GroupId> = plan.groups.iter().filter(|g| g.model == model).map(|g| g.id).collect();
    let ways = ways(plan, &groups, choice);
    ways.iter().map(|way| Pick { prefill: way.prefill, decode: way.decode }).collect()
}

/// The plan's routes whose groups are up.
fn ways(plan: &Plan, groups: &[GroupId], choice: RouterView<'_>) -> Vec<PhasePair<GroupId>> {
    let usable = |id: &GroupId| choice.up.contains_key(id) && !choice.tried.contains(id);
    let open = |r: &&Route| {
        groups.contains(&r.prefill) && r.share > 0.0 && usable(&r.decode) && choice.up.contains_key(&r.prefill)
    };
    let weight = |id: &GroupId| choice.weights.get(id).copied().unwrap_or(1.0);
    let share = |r: &Route| r.share * weight(&r.prefill).min(weight(&r.decode));
    let way = |r: &Route| PhasePair { prefill: r.prefill, decode: r.decode, share: share(r) };
    plan.routes.iter().filter(open).map(way).collect()
}

/// What a group has to do.
fn seen(up: &BTreeMap<GroupId, Load>, sizes: &PoolSizes, id: GroupId) -> Seen {
    let Some(load) = up.get(&id) else { return Seen::default() };
    let Load { waiting, running, pending_tokens, total_pages, .. } = *load;
    let GroupSize { room, leads, sent, step } = sizes.groups.get(&id).copied().unwrap_or_default();
    // Who says nothing of its pages may have any number.
    let room = if total_pages == 0 { 0 } else { room };
    let taken = u64::from(total_pages.saturating_sub(load.free_pages));
    let said = leads.saturating_mul(taken) / u64::from(total_pages.max(1));
    Seen { waiting, running, pending_tokens, held: said.saturating_add(sent), room, step, ..Seen::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{
        ChosenPolicy, Epoch, Group, LayerRange, PeerId, Phase, PolicyChoice, RoutePolicy, SettingKey, SettingValue,
        Stage, SwarmSetting, Term,
    };

    const MODEL: ModelId = ModelId([1; 16]);

    fn group(n: u8, phase: Phase) -> Group {
        let stage = Stage { peer: PeerId([n; 32]), device: 0, layers: LayerRange { start: 0, end: 4 } };
        Group::new(MODEL, phase, vec![stage])
    }

    fn plan(shares: [f64; 2]) -> Plan {
        let groups = vec![group(1, Phase::Prefill), group(2, Phase::Decode), group(3, Phase::Decode)];
        let route = |i: usize, share| Route { prefill: groups[0].id, decode: groups[i].id, share };
        let routes = vec![route(1, shares[0]), route(2, shares[1])];
        Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, chosen: vec![], reason: String::new() }
    }

    fn up(plan: &Plan, running: [u32; 3]) -> BTreeMap<GroupId, Load> {
        plan.groups.iter().zip(running).map(|(g, running)| (g.id, Load { running, ..Load::default() })).collect()
    }

    fn router() -> Router {
        Router::new(Dispatch::Live)
    }

    fn pick(router: &mut Router, plan: Option<&Plan>, up: &BTreeMap<GroupId, Load>) -> Result<Pick, NoRoute> {
        router.pick(
            RouterView { plan, up, tried: &BTreeSet::new(), weights: &BTreeMap::new() },
            MODEL,
            Asked::new(10, 10),
            0,
        )
    }

    /// How often of a thousand requests each decode group is picked.
    fn picked(plan: &Plan, running: [u32; 3]) -> [usize; 2] {
        let (up, mut router) = (up(plan, running), router());
        let mut counts = [0; 2];
        for _ in 0..1000 {
            let pick = pick(&mut router, Some(plan), &up).unwrap();
            counts[usize::from(pick.decode == plan.groups[2].id)] += 1;
        }
        counts
    }

    #[test]
    fn requests_fall_as_the_plan_says() {
        let [first, second] = picked(&plan([0.7, 0.3]), [0, 0, 0]);
        assert!(first.abs_diff(700) < 5 && second.abs_diff(300) < 5, "{first} to {second}");
        // Queues in proportion to shares are as they should be.
        let [first, second] = picked(&plan([0.7, 0.3]), [0, 7, 3]);
        assert!(first.abs_diff(700) < 5 && second.abs_diff(300) < 5, "{first} to {second}");
    }

    #[test]
    fn a_plan_that_carries_half_turns_nobody_away_here() {
        let [first, second] = picked(&plan([0.25, 0.25]), [0, 0, 0]);
        assert!(first.abs_diff(500) < 5 && first + second == 1000, "{first} to {second}");
    }

    #[test]
    fn a_longer_queue_is_drawn_less() {
        let [first, second] = picked(&plan([0.5, 0.5]), [0, 21, 1]);
        assert!(first < 100 && second > 900, "{first} to {second}");
    }

    #[test]
    fn a_decode_group_alone_does_both() {
        let plan = plan([0.5, 0.5]);
        let (mut up, mut router) = (up(&plan, [0, 0, 0]), router());
        up.remove(&plan.groups[0].id);
        let alone = pick(&mut router, Some(&plan), &up).unwrap();
        assert_eq!(alone.prefill, alone.decode);
        up.clear();
        assert_eq!(pick(&mut router, Some(&plan), &up), Err(NoRoute::NoneUp));
        assert_eq!(pick(&mut router, None, &up), Err(NoRoute::NoPlan));
        let none = BTreeSet::new();
        let other = router.pick(
            RouterView { plan: Some(&plan), up: &up, tried: &none, weights: &BTreeMap::new() },
            ModelId([2; 16]),
            Asked::new(1, 1),
            0,
        );
        assert_eq!(other, Err(NoRoute::NoGroup));
    }

    #[test]
    fn what_was_tried_is_not_tried_again() {
        let plan = plan([0.9, 0.1]);
        let (up, mut router) = (up(&plan, [0, 0, 0]), router());
        let tried = [plan.groups[1].id].into();
        let choice = RouterView { plan: Some(&plan), up: &up, tried: &tried, weights: &BTreeMap::new() };
        assert_eq!(router.pick(choice, MODEL, Asked::new(1, 1), 0).unwrap().decode, plan.groups[2].id);
    }

    /// Shares draw both; the shortest queue is the one that is not two requests behind.
    #[test]
    fn members_may_set_how_requests_are_routed_and_take_it_back() {
        let plan = plan([0.9, 0.1]);
        let (up, mut router) = (up(&plan, [0, 2, 0]), router());
        let mut chosen = |policy: Option<RoutePolicy>, at| {
            let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(policy));
            let mut settings = SwarmSettings::default();
            settings.take_in(&[SwarmSetting { key, value, at, by: PeerId([1; 32]) }]);
            router.follow(settings, None);
            (0..100).filter(|_| pick(&mut router, Some(&plan), &up).unwrap().decode == plan.groups[1].id).count()
        };
        assert!(chosen(None, 1) > 80);
        assert_eq!(chosen(Some(RoutePolicy::Shortest), 2), 0);
        assert!(chosen(Some(RoutePolicy::Shares), 3).abs_diff(90) < 5);
        assert!(chosen(None, 4) > 80);
    }

    #[test]
    fn where_that_is_left_to_measurement_the_plan_says_how_requests_are_routed() {
        let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(RoutePolicy::Auto)));
        let mut settings = SwarmSettings::default();
        settings.take_in(&[SwarmSetting { key, value, at: 1, by: PeerId([1; 32]) }]);
        let choice = |policy| {
            let policy = ChosenPolicy::Route(policy);
            PolicyChoice { model: MODEL, policy, requests: 300, rate: 1.0, tried: vec![] }
        };
        let planned = |policy| Plan { chosen: vec![choice(policy)], ..plan([0.9, 0.1]) };
        let mut router = router();
        let mut by = |settings: &SwarmSettings, plan: Plan| {
            router.follow(settings.clone(), Some(Arc::new(plan)));
            router.dispatch(MODEL)
        };
        assert_eq!(by(&settings, plan([0.9, 0.1])), Dispatch::Live, "nothing was chosen yet");
        assert_eq!(by(&settings, planned(RoutePolicy::Pools)), Dispatch::Pools);
        assert_eq!(by(&SwarmSettings::default(), planned(RoutePolicy::Pools)), Dispatch::Live, "nobody asked for it");
    }

    /// A burst that one gateway sends to a prefill and two decode groups: prompts overflow, in turn, until the queue is short again.
    #[test]
    fn pools_lend_a_decode_group_while_the_prefill_group_has_too_much() {
        let plan = plan([0.9, 0.1]);
        let [prefill, decode, other] = [0, 1, 2].map(|i: usize| plan.groups[i].id);
        let mut router = pooled(PoolSizes::default());
        let mut to = |pending: [u32; 3]| {
            let load = |pending_tokens| Load { pending_tokens, ..Load::default() };
            let up = plan.groups.iter().zip(pending).map(|(g, pending)| (g.id, load(pending))).collect();
            let picked = pick(&mut router, Some(&plan), &up).unwrap();
            (picked.prefill, picked.decode, router.overflow())
        };
        assert_eq!(to([0, 0, 0]), (prefill, decode, None));
        assert_eq!(to([8182, 0, 0]), (prefill, decode, None), "8,192 tokens with this one");
        assert_eq!(to([8183, 50, 0]), (other, other, Some(Overflow::Prompts)));
        assert_eq!(to([8183, 0, 60]), (other, other, Some(Overflow::Prompts)), "on loan already");
        assert_eq!(to([8000, 0, 60]), (prefill, decode, None));
        assert_eq!(to([8000, 9, 0]), (prefill, other, None), "it went back when its prompts were done");
    }

    /// Of 1,000 tokens of KV the groups have half free; ten requests have been sent there since they said so.
    #[test]
    fn pools_look_at_the_memory_that_is_free_and_at_what_was_sent_since() {
        let plan = plan([0.9, 0.1]);
        let load = Load { free_pages: 50, total_pages: 100, ..Load::default() };
        let up: BTreeMap<GroupId, Load> = plan.groups.iter().map(|g| (g.id, load)).collect();
        let size = |sent| GroupSize { room: 1000, leads: 1000, sent, step: 256 };
        let sent = |sent: [u64; 3]| plan.groups.iter().zip(sent).map(|(g, sent)| (g.id, size(sent))).collect();
        let to = |all: [u64; 3], stays| {
            let mut router = pooled(PoolSizes { groups: sent(all), stays });
            let picked = pick(&mut router, Some(&plan), &up).unwrap();
            (picked.prefill, picked.decode, router.overflow())
        };
        let [prefill, decode, other] = [0, 1, 2].map(|i: usize| plan.groups[i].id);
        assert_eq!(to([0; 3], false), (prefill, decode, None));
        assert_eq!(to([0, 490, 0], false), (prefill, other, None), "a prompt of ten and its first token have no room");
        assert_eq!(to([0, 490, 490], false), (prefill, prefill, Some(Overflow::Answers)));
        assert_eq!(to([0, 490, 490], true), (prefill, decode, None), "it stays on the plan's ways");
    }

    /// Of two pipelines for answers the second stage has a quarter of the tokens that the leader has, whose free pages are said.
    #[test]
    fn pools_hold_what_a_leader_says_against_the_stage_with_the_least_memory() {
        let plan = plan([0.9, 0.1]);
        let [prefill, decode] = [0, 1].map(|i: usize| plan.groups[i].id);
        let size = |leads| GroupSize { room: 1000, leads, sent: 0, step: 256 };
        let groups = plan.groups.iter().zip([1000, 4000, 4000]).map(|(g, leads)| (g.id, size(leads))).collect();
        let mut router = pooled(PoolSizes { groups, stays: false });
        let mut to = |free: [u32; 3]| {
            let load = |free_pages| Load { free_pages, total_pages: 100, ..Load::default() };
            let up = plan.groups.iter().zip(free).map(|(g, free)| (g.id, load(free))).collect();
            let picked = pick(&mut router, Some(&plan), &up).unwrap();
            (picked.prefill, picked.decode, router.overflow())
        };
        assert_eq!(to([100, 76, 70]), (prefill, decode, None), "960 tokens of 1,000, and eleven more");
        assert_eq!(to([100, 75, 70]), (prefill, prefill, Some(Overflow::Answers)), "all of 1,000");
    }

    fn pooled(sizes: PoolSizes) -> Router {
        let mut router = Router::new(Dispatch::Pools);
        router.look(sizes);
        router
    }

    #[test]
    fn a_second_try_lends_nothing() {
        let plan = plan([0.9, 0.1]);
        let up = plan.groups.iter().map(|g| (g.id, Load { pending_tokens: 9000, ..Load::default() })).collect();
        let (tried, mut router) = ([plan.groups[1].id].into(), pooled(PoolSizes::default()));
        let choice = RouterView { plan: Some(&plan), up: &up, tried: &tried, weights: &BTreeMap::new() };
        let picked = router.pick(choice, MODEL, Asked::new(10, 10), 0).unwrap();
        assert_eq!((picked.prefill, picked.decode), (plan.groups[0].id, plan.groups[2].id));
        assert_eq!(router.overflow(), None);
    }

    #[test]
    fn a_group_that_goes_down_and_comes_back_is_left_out_meanwhile() {
        let plan = plan([0.5, 0.5]);
        let (all, mut router) = (up(&plan, [0, 0, 0]), router());
        let mut fewer = all.clone();
        fewer.remove(&plan.groups[1].id);
        for _ in 0..20 {
            assert_eq!(pick(&mut router, Some(&plan), &fewer).unwrap().decode, plan.groups[2].id);
        }
        let back: BTreeSet<GroupId> = (0..20).map(|_| pick(&mut router, Some(&plan), &all).unwrap().decode).collect();
        assert_eq!(back.len(), 2);
    }
}
