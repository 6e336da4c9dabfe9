//! A planner for scenarios that are not about plans: for each model groups of one to three peers in order of their ids, all of
//! them used, and of one for the model that is asked for most; in microseconds. What it has in common with the scheduler is what
//! the control plane relies on: one view, one plan.

use std::collections::{BTreeMap, BTreeSet};
use tsnode_coordinator::{
    members::Members,
    planner::{PlanDraft, PlanOptions, Planner},
};
use tsnode_protocol::{Advert, Group, LayerRange, ModelCard, ModelId, PeerId, Phase, Plan, Route, Stage};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Sketch;

impl Planner for Sketch {
    fn plan(&self, members: &Members<'_>, _: &PlanOptions, _: Option<&Plan>) -> PlanDraft {
        drafted(grouped(members, |_, _| true), "sketched")
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
        let standing = standing(plan, members);
        (!standing.is_empty()).then(|| drafted(standing, "what stands"))
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
        let mut groups = standing(plan, members);
        let used = used(&groups);
        groups.extend(grouped(members, |model, peer| !used.contains(&(model, peer))));
        (!groups.is_empty()).then(|| drafted(groups, "what stands, and newcomers"))
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, _: &PlanOptions) -> f64 {
        let there = used(&plan.groups).iter().filter(|(_, peer)| members.contains_key(peer)).count();
        let most = asked_most(members);
        let quick = plan.groups.iter().filter(|g| Some(g.model) == most && g.stages.len() == 1);
        (there + quick.count()) as f64
    }
}

/// The model that gateways say they are asked for most, if they say anything.
fn asked_most(members: &Members<'_>) -> Option<ModelId> {
    let mut rates: BTreeMap<ModelId, f64> = BTreeMap::new();
    for traffic in members.values().flat_map(|a| &a.traffic) {
        *rates.entry(traffic.model).or_default() += traffic.rate;
    }
    rates.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(model, _)| model)
}

/// Who has a part in a model's groups.
fn used(groups: &[Group]) -> BTreeSet<(ModelId, PeerId)> {
    groups.iter().flat_map(|g| g.stages.iter().map(|s| (g.model, s.peer))).collect()
}

/// Groups of each model, of one to three of those peers that lend it and may have a part, in their order.
fn grouped(members: &Members<'_>, may: impl Fn(ModelId, PeerId) -> bool) -> Vec<Group> {
    let all = members.values().filter(|a| !a.devices.is_empty()).flat_map(|a| &a.models);
    let cards: BTreeMap<ModelId, &ModelCard> = all.map(|card| (card.id, card)).collect();
    let (mut groups, most) = (Vec::new(), asked_most(members));
    for (model, card) in cards {
        let lends = |a: &Advert| a.devices.first().is_some_and(|d| d.served(model).is_some());
        let mut lenders = members.iter().filter(|(peer, a)| lends(a) && may(model, **peer)).map(|(peer, _)| *peer);
        while let Some(first) = lenders.next() {
            let more = if Some(model) == most { 0 } else { usize::from(first.0[0] % 3) };
            let peers: Vec<PeerId> = std::iter::once(first).chain(lenders.by_ref().take(more)).collect();
            groups.push(group(&peers, card));
        }
    }
    groups
}

fn standing(plan: &Plan, members: &Members<'_>) -> Vec<Group> {
    let here = |s: &Stage| members.get(&s.peer).and_then(|a| a.devices.get(usize::from(s.device)));
    let stands = |g: &&Group| g.stages.iter().all(|s| here(s).is_some_and(|d| d.served(g.model).is_some()));
    plan.groups.iter().filter(stands).cloned().collect()
}

fn group(peers: &[PeerId], card: &ModelCard) -> Group {
    let (layers, n) = (card.shape.layers, peers.len() as u32);
    let stage = |(k, peer): (u32, &PeerId)| {
        let layers = LayerRange { start: layers * k / n, end: layers * (k + 1) / n };
        Stage { peer: *peer, device: 0, layers }
    };
    Group::new(card.id, Phase::Mixed, (0..).zip(peers).map(stage).collect())
}

fn drafted(groups: Vec<Group>, reason: &str) -> PlanDraft {
    let share = |g: &Group| 1.0 / groups.iter().filter(|other| other.model == g.model).count().max(1) as f64;
    let routes = groups.iter().map(|g| Route { prefill: g.id, decode: g.id, share: share(g) }).collect();
    PlanDraft { groups, routes, chosen: vec![], reason: reason.into() }
}
