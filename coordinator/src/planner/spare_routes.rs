//! Plan flow 4: ways beside those that a plan's shares take, where requests are pooled (`policy/pools.rs`). Shares pair groups no more
//! than they have to: of two groups for prompts and two for answers each may have one partner. Pools join the shortest queue of each
//! kind, whoever its partner is; and where one group for answers is full, those that have room are reached only if there is a way.

use crate::{members::Members, settings::SwarmSettings};
use std::collections::BTreeSet;
use tsnode_protocol::{Group, GroupId, ModelId, Phase, PolicyChoice, Route, RoutePolicy, limits};

/// Share of a way that is there for queues alone: so small that shares draw it never, and a way all the same.
const SPARE: f64 = 1e-12;
/// The most ways that a group for prompts has to groups for answers so: pools are joined by the shortest queue, and the shortest of
/// sixteen is hardly longer than that of hundreds.
const MOST: usize = 16;
/// And of all groups together, as far as each may have one: a plan goes in one message, beside which there has to be room for what
/// proves it ([`limits::GOSSIP_BYTES`]). These are 24 KiB of it.
const ALL: usize = 1024;

/// These routes of a plan that has chosen this, with such ways for models whose requests are pooled now, and for no others.
#[must_use]
pub(crate) fn routes(groups: &[Group], routes: &[Route], chosen: &[PolicyChoice], members: &Members<'_>) -> Vec<Route> {
    let settings = SwarmSettings::of(members.values().copied());
    let is_pooled = |model: &ModelId| settings.routed(*model, chosen) == Some(RoutePolicy::Pools);
    let models: BTreeSet<ModelId> = groups.iter().map(|g| g.model).filter(is_pooled).collect();
    let mut routes = planned(routes);
    for model in models {
        let more = beside(groups, &routes, model);
        routes.extend(more);
    }
    routes.truncate(limits::ROUTES);
    routes
}

/// Routes that shares take.
#[must_use]
pub(crate) fn planned(routes: &[Route]) -> Vec<Route> {
    routes.iter().filter(|route| !is_spare(route)).copied().collect()
}

/// Whether a route is there for queues alone.
#[must_use]
pub fn is_spare(route: &Route) -> bool {
    route.share.to_bits() == SPARE.to_bits()
}

/// Ways of a model's groups for prompts to its groups for answers that these routes do not have, in an order that follows from the
/// groups' names: links are measured anew all the time, and whether KV is sent over one is asked for each request.
#[must_use]
pub(crate) fn beside(groups: &[Group], routes: &[Route], model: ModelId) -> Vec<Route> {
    let of = |phase: Phase| -> BTreeSet<GroupId> {
        groups.iter().filter(|g| g.model == model && g.phase == phase).map(|g| g.id).collect()
    };
    let (prompts, answers) = (of(Phase::Prefill), of(Phase::Decode));
    let there: BTreeSet<(GroupId, GroupId)> = routes.iter().map(|r| (r.prefill, r.decode)).collect();
    // Other models' groups may be pooled as well.
    let most = (ALL / groups.iter().filter(|g| g.phase == Phase::Prefill).count().max(1)).clamp(1, MOST);
    // Each begins with another, so that where not all are taken each is reached by as many.
    let next = |n: usize| answers.iter().cycle().skip(n % answers.len().max(1)).take(answers.len().min(most));
    let mut more = Vec::new();
    for (n, prefill) in prompts.iter().enumerate() {
        let new = next(n).filter(|decode| !there.contains(&(*prefill, **decode)));
        more.extend(new.map(|decode| Route { prefill: *prefill, decode: *decode, share: SPARE }));
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{
        Advert, Epoch, LayerRange, PeerId, Plan, SettingKey, SettingValue, Stage, SwarmSetting, Term, codec,
    };

    fn group(n: u8, phase: Phase) -> Group {
        let stage = Stage { peer: PeerId([n; 32]), device: 0, layers: LayerRange { start: 0, end: 4 } };
        Group::new(sample::card().id, phase, vec![stage])
    }

    /// Two pairs, and one that does both.
    fn plan() -> (Vec<Group>, Vec<Route>) {
        let phases = [Phase::Prefill, Phase::Prefill, Phase::Decode, Phase::Decode, Phase::Mixed];
        let groups: Vec<Group> = (0..).zip(phases).map(|(n, phase)| group(n, phase)).collect();
        let route = |a: usize, b: usize, share| Route { prefill: groups[a].id, decode: groups[b].id, share };
        let routes = vec![route(0, 2, 0.4), route(1, 3, 0.4), route(4, 4, 0.2)];
        (groups, routes)
    }

    fn by(policy: RoutePolicy, all: &[Route]) -> Vec<Route> {
        let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(policy)));
        let setting = SwarmSetting { key, value, at: 1, by: PeerId([0; 32]) };
        let advert = Advert { settings: vec![setting], ..sample::advert(0) };
        routes(&plan().0, all, &[], &[(PeerId([0; 32]), &advert)].into())
    }

    #[test]
    fn pools_have_a_way_from_each_group_for_prompts_to_each_for_answers_and_others_have_none_more() {
        let (groups, planned) = plan();
        let pooled = by(RoutePolicy::Pools, &planned);
        assert_eq!(pooled[..3], planned[..], "what shares take is as it was");
        let id = |n: usize| groups[n].id;
        let new: BTreeSet<_> = pooled[3..].iter().map(|r| (r.prefill, r.decode)).collect();
        assert_eq!(new, BTreeSet::from([(id(0), id(3)), (id(1), id(2))]));
        assert!(pooled[3..].iter().all(is_spare));
        assert_eq!(by(RoutePolicy::Pools, &pooled), pooled, "it has them already");
        assert_eq!(by(RoutePolicy::Live, &pooled), planned, "they go with what they were for");
    }

    #[test]
    fn of_many_groups_each_has_some_ways_and_is_reached_by_as_many() {
        let phase = |n: u8| if n < 20 { Phase::Prefill } else { Phase::Decode };
        let groups: Vec<Group> = (0..40).map(|n| group(n, phase(n))).collect();
        let more = beside(&groups, &[], sample::card().id);
        let ways = |of: &dyn Fn(&Route) -> GroupId, id: GroupId| more.iter().filter(|r| of(r) == id).count();
        assert!(groups[..20].iter().all(|g| ways(&|r| r.prefill, g.id) == MOST));
        assert!(groups[20..].iter().all(|g| ways(&|r| r.decode, g.id) == MOST));
        assert_eq!(beside(&groups[..20], &[], sample::card().id), [], "nobody answers");
    }

    #[test]
    fn a_plan_of_a_thousand_groups_fits_into_half_a_message_with_them() {
        let on = |device: u16| {
            let stage = Stage { peer: PeerId([0; 32]), device, layers: LayerRange { start: 0, end: 4 } };
            let phase = if device < 500 { Phase::Prefill } else { Phase::Decode };
            Group::new(sample::card().id, phase, vec![stage])
        };
        let groups: Vec<Group> = (0..1000).map(on).collect();
        let routes = beside(&groups, &[], sample::card().id);
        assert_eq!(routes.len(), 500 * (ALL / 500), "each has some");
        let (epoch, term, reason) = (Epoch(1), Term(0), String::new());
        let plan = Plan { epoch, term, parent: None, groups, routes, chosen: vec![], reason };
        assert!(codec::encode(&plan).len() < limits::GOSSIP_BYTES / 2);
    }
}
