//! A planner for scenarios that are not about plans: groups of one to three peers in order of their ids, all of them used,
//! in microseconds. What it has in common with the scheduler is what the control plane relies on: one view, one plan.

use std::collections::BTreeSet;
use tsnode_coordinator::{
    members::Members,
    planner::{Draft, Planner, Wish},
};
use tsnode_protocol::{Advert, Group, LayerRange, PeerId, Phase, Plan, Route, Stage};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Sketch;

impl Planner for Sketch {
    fn plan(&self, members: &Members<'_>, _: &Wish, _: Option<&Plan>) -> Draft {
        drafted(grouped(members.iter().filter(|(_, a)| lends(a))), "sketched")
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, _: &Wish) -> Option<Draft> {
        let standing = standing(plan, members);
        (!standing.is_empty()).then(|| drafted(standing, "what stands"))
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, _: &Wish) -> Option<Draft> {
        let mut groups = standing(plan, members);
        let used: BTreeSet<PeerId> = groups.iter().flat_map(|g| &g.stages).map(|s| s.peer).collect();
        groups.extend(grouped(members.iter().filter(|(peer, a)| lends(a) && !used.contains(peer))));
        (!groups.is_empty()).then(|| drafted(groups, "what stands, and newcomers"))
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, _: &Wish) -> f64 {
        let used: BTreeSet<PeerId> = plan.peers().into_iter().filter(|p| members.contains_key(p)).collect();
        used.len() as f64
    }
}

/// Groups of one to three of these peers, in their order.
fn grouped<'a>(mut lenders: impl Iterator<Item = (&'a PeerId, &'a &'a Advert)>) -> Vec<Group> {
    let mut groups = Vec::new();
    while let Some((first, advert)) = lenders.next() {
        let mut peers = vec![*first];
        let more = usize::from(first.0[0] % 3);
        peers.extend(lenders.by_ref().take(more).map(|(peer, _)| *peer));
        groups.extend(group(&peers, advert));
    }
    groups
}

fn standing(plan: &Plan, members: &Members<'_>) -> Vec<Group> {
    let here = |s: &Stage| members.get(&s.peer).is_some_and(|a| usize::from(s.device) < a.devices.len());
    plan.groups.iter().filter(|g| g.stages.iter().all(here)).cloned().collect()
}

fn lends(advert: &Advert) -> bool {
    !advert.devices.is_empty() && !advert.models.is_empty()
}

fn group(peers: &[PeerId], advert: &Advert) -> Option<Group> {
    let card = advert.models.first()?;
    let (layers, n) = (card.shape.layers, peers.len() as u32);
    let stage = |(k, peer): (u32, &PeerId)| {
        let layers = LayerRange { start: layers * k / n, end: layers * (k + 1) / n };
        Stage { peer: *peer, device: 0, layers }
    };
    Some(Group::new(card.id, Phase::Mixed, (0..).zip(peers).map(stage).collect()))
}

fn drafted(groups: Vec<Group>, reason: &str) -> Draft {
    let share = 1.0 / groups.len().max(1) as f64;
    let routes = groups.iter().map(|g| Route { prefill: g.id, decode: g.id, share }).collect();
    Draft { groups, routes, reason: reason.into() }
}
