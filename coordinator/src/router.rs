//! Prompt flow 2: picks the group that prefills and the group that decodes, together.
//!
//! The plan's shares (X_i · Y_ij of ThunderServe §3.3) say how traffic should fall; live queues correct them: of the
//! routes that are up, the one with the least work waiting per share is taken (join the shortest queue).

use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{GroupId, Load, ModelId, Plan, Route};

/// A pair of groups; the same one twice where it does both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pick {
    /// Prefills.
    pub prefill: GroupId,
    /// Decodes.
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

/// Picks a route for a request of `model`, not trying decode groups in `tried` again. `draw` breaks ties.
///
/// # Errors
/// When no group of the model is up.
pub fn pick(
    plan: Option<&Plan>,
    up: &BTreeMap<GroupId, Load>,
    model: ModelId,
    tried: &BTreeSet<GroupId>,
    draw: u64,
) -> Result<Pick, NoRoute> {
    let plan = plan.ok_or(NoRoute::NoPlan)?;
    let groups: Vec<GroupId> = plan.groups.iter().filter(|g| g.model == model).map(|g| g.id).collect();
    if groups.is_empty() {
        return Err(NoRoute::NoGroup);
    }
    let usable = |id: &GroupId| up.contains_key(id) && !tried.contains(id);
    let mut routes: Vec<&Route> = plan
        .routes
        .iter()
        .filter(|r| groups.contains(&r.prefill) && r.share > 0.0 && usable(&r.decode) && up.contains_key(&r.prefill))
        .collect();
    if routes.is_empty() {
        // A group holds all layers whatever its phase: any that is up can do both.
        let alone = groups.into_iter().filter(usable).min_by_key(|id| waiting(up, *id)).ok_or(NoRoute::NoneUp)?;
        return Ok(Pick { prefill: alone, decode: alone });
    }
    let score = |r: &Route| f64::from(1 + waiting(up, r.prefill).max(waiting(up, r.decode))) / r.share;
    routes.sort_by(|a, b| score(a).total_cmp(&score(b)));
    let best = score(routes[0]);
    let equals: Vec<&&Route> = routes.iter().filter(|r| score(r) <= best * (1.0 + 1e-9)).collect();
    let chosen = equals[(draw % equals.len() as u64) as usize];
    Ok(Pick { prefill: chosen.prefill, decode: chosen.decode })
}

/// Sequences at a group, and a hundred pending prompt tokens counted as one.
fn waiting(up: &BTreeMap<GroupId, Load>, id: GroupId) -> u32 {
    up.get(&id).map_or(0, |l| l.running + l.waiting + l.pending_tokens / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{Epoch, Group, LayerRange, PeerId, Phase, Stage, Term};

    const MODEL: ModelId = ModelId([1; 16]);

    fn group(n: u8, phase: Phase) -> Group {
        let stage = Stage { peer: PeerId([n; 32]), device: 0, layers: LayerRange { start: 0, end: 4 } };
        Group::new(MODEL, phase, vec![stage])
    }

    fn plan(shares: [f64; 2]) -> Plan {
        let groups = vec![group(1, Phase::Prefill), group(2, Phase::Decode), group(3, Phase::Decode)];
        let route = |i: usize, share| Route { prefill: groups[0].id, decode: groups[i].id, share };
        let routes = vec![route(1, shares[0]), route(2, shares[1])];
        Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, reason: String::new() }
    }

    fn up(plan: &Plan, running: [u32; 3]) -> BTreeMap<GroupId, Load> {
        plan.groups.iter().zip(running).map(|(g, running)| (g.id, Load { running, ..Load::default() })).collect()
    }

    #[test]
    fn the_shorter_queue_per_share_wins() {
        let plan = plan([0.5, 0.5]);
        let picked = |running| pick(Some(&plan), &up(&plan, running), MODEL, &BTreeSet::new(), 0).unwrap().decode;
        assert_eq!(picked([0, 3, 1]), plan.groups[2].id);
        assert_eq!(picked([0, 1, 3]), plan.groups[1].id);
    }

    #[test]
    fn equals_are_drawn_among() {
        let plan = plan([0.5, 0.5]);
        let up = up(&plan, [0, 0, 0]);
        let drawn = |n| pick(Some(&plan), &up, MODEL, &BTreeSet::new(), n).unwrap().decode;
        assert_ne!(drawn(0), drawn(1));
    }

    #[test]
    fn a_decode_group_alone_does_both() {
        let plan = plan([0.5, 0.5]);
        let mut up = up(&plan, [0, 0, 0]);
        up.remove(&plan.groups[0].id);
        let alone = pick(Some(&plan), &up, MODEL, &BTreeSet::new(), 0).unwrap();
        assert_eq!(alone.prefill, alone.decode);
        up.clear();
        assert_eq!(pick(Some(&plan), &up, MODEL, &BTreeSet::new(), 0), Err(NoRoute::NoneUp));
        assert_eq!(pick(Some(&plan), &up, ModelId([2; 16]), &BTreeSet::new(), 0), Err(NoRoute::NoGroup));
        assert_eq!(pick(None, &up, MODEL, &BTreeSet::new(), 0), Err(NoRoute::NoPlan));
    }

    #[test]
    fn what_was_tried_is_not_tried_again() {
        let plan = plan([0.9, 0.1]);
        let up = up(&plan, [0, 0, 0]);
        let tried = [plan.groups[1].id].into();
        assert_eq!(pick(Some(&plan), &up, MODEL, &tried, 0).unwrap().decode, plan.groups[2].id);
    }
}
