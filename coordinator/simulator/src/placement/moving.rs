//! What getting from one placement to another takes: groups that are alike change roles so that as much stays as can, the
//! others close and load the weights they lack.

use super::{Placement, Services, SharingGroup, groups::GpuGroup};
use std::collections::BTreeMap;
use tsnode_coordinator::{policy::batching::ServiceNo, scheduler::Cluster};
use tsnode_protocol::Bytes;

/// The same placement with services dealt anew among groups of the same devices in the same configuration, so that
/// groups keep the weights they have.
#[must_use]
pub fn aligned(services: &Services, before: &Placement, after: &Placement) -> Placement {
    let mut classes: BTreeMap<Vec<(u16, u16)>, Vec<usize>> = BTreeMap::new();
    for (place, sharing) in after.groups.iter().enumerate() {
        classes.entry(shape(services.cluster(), &sharing.group)).or_default().push(place);
    }
    let had = counterparts(before, after);
    let mut aligned = after.clone();
    for places in classes.values() {
        let kept = |slot: usize, set: usize| {
            let there = had[slot].map_or(&[][..], |b| &before.groups[b].services);
            kept(services, there, &after.groups[set].services)
        };
        let mut pairs: Vec<(f64, usize, usize)> = places
            .iter()
            .flat_map(|&slot| places.iter().map(move |&set| (slot, set)))
            .map(|(a, b)| (kept(a, b), a, b))
            .collect();
        // Most kept first; of equals, where the placement has them.
        pairs.sort_by(|x, y| {
            y.0.total_cmp(&x.0).then((x.1 != x.2).cmp(&(y.1 != y.2))).then((x.1, x.2).cmp(&(y.1, y.2)))
        });
        let (mut slots, mut sets) = (places.clone(), places.clone());
        for (_, slot, set) in pairs {
            if slots.contains(&slot) && sets.contains(&set) {
                slots.retain(|s| *s != slot);
                sets.retain(|s| *s != set);
                aligned.groups[slot].services.clone_from(&after.groups[set].services);
            }
        }
    }
    aligned
}

/// By group of a placement: its devices' group in the one before, if they are a group there, too.
#[must_use]
pub fn counterparts(before: &Placement, after: &Placement) -> Vec<Option<usize>> {
    let mut taken = vec![false; before.groups.len()];
    let mut find = |sharing: &SharingGroup| {
        let place = (0..taken.len()).find(|&p| !taken[p] && before.groups[p].group == sharing.group)?;
        taken[place] = true;
        Some(place)
    };
    after.groups.iter().map(&mut find).collect()
}

/// Weights a group must load to hold other services than before.
#[must_use]
pub fn to_load(services: &Services, before: &[ServiceNo], after: &[ServiceNo]) -> Bytes {
    let bytes = |s: &ServiceNo| services.problem(*s).model.bytes();
    after.iter().filter(|s| !before.contains(s)).map(bytes).sum()
}

/// Weights that stay, a little more where nothing has to change at all.
fn kept(services: &Services, before: &[ServiceNo], after: &[ServiceNo]) -> f64 {
    let stay = after.iter().filter(|s| before.contains(s)).map(|s| services.problem(*s).model.bytes().0).sum::<f64>();
    if before == after { stay * 1.5 + 1.0 } else { stay }
}

/// Kinds and degrees of its stages: groups of one shape hold and do the same.
fn shape(cluster: &Cluster, group: &GpuGroup) -> Vec<(u16, u16)> {
    group.stages.iter().map(|&(i, tp)| (cluster.instance(i).kind.0, tp)).collect()
}
