//! Prompt flow 2: picks the group that prefills and the group that decodes, together.
//!
//! The plan's shares say how traffic should fall; [`shares`] draws by them and by live queues, here as in the simulator.

use crate::policy::{
    batching::Seen,
    shares::{self, Way},
};
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
    let routes: Vec<&Route> = plan
        .routes
        .iter()
        .filter(|r| groups.contains(&r.prefill) && r.share > 0.0 && usable(&r.decode) && up.contains_key(&r.prefill))
        .collect();
    if routes.is_empty() {
        // A group holds all layers whatever its phase: any that is up can do both.
        let alone = groups.into_iter().filter(usable).min_by_key(|id| waiting(up, *id)).ok_or(NoRoute::NoneUp)?;
        return Ok(Pick { prefill: alone, decode: alone });
    }
    let way = |r: &&Route| Way { prefill: r.prefill, decode: r.decode, share: r.share };
    let ways: Vec<Way<GroupId>> = routes.iter().map(way).collect();
    let chosen = shares::choose(&ways, &|id| waiting(up, id), draw as f64 / u64::MAX as f64);
    chosen.map(|way| Pick { prefill: way.prefill, decode: way.decode }).ok_or(NoRoute::NoneUp)
}

/// What waits at a group.
fn waiting(up: &BTreeMap<GroupId, Load>, id: GroupId) -> u32 {
    let seen =
        |l: &Load| Seen { waiting: l.waiting, running: l.running, pending_tokens: l.pending_tokens, ..Seen::default() };
    up.get(&id).map_or(0, |load| shares::work(seen(load)))
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

    /// How often of a thousand evenly spread draws each decode group is picked.
    fn picked(plan: &Plan, running: [u32; 3]) -> [usize; 2] {
        let up = up(plan, running);
        let mut counts = [0; 2];
        for n in 0..1000 {
            let pick = pick(Some(plan), &up, MODEL, &BTreeSet::new(), u64::MAX / 1000 * n).unwrap();
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
    fn a_longer_queue_is_drawn_less() {
        let [first, second] = picked(&plan([0.5, 0.5]), [0, 21, 1]);
        assert!(first < 100 && second > 900, "{first} to {second}");
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
