//! GPU groups by parallel configuration (SeaLLM §4.1, group partition): all alike, powers of two side by side on one host,
//! powers of two in a row across hosts, and merged where models are too large for them.

pub use super::gpu_group::GpuGroup;

use super::{Services, hosting::Hosting};
use std::collections::BTreeMap;
use tsnode_coordinator::{
    policy::batching::ServiceNo,
    scheduler::{
        InstanceId,
        cluster::{Cluster, KindId},
    },
};
use tsnode_protocol::Bytes;

/// Most stages of a group before merging.
const MOST_STAGES: u16 = 4;

/// Partitions of a cluster into groups that have room for every service at once, each once: one for each parallel
/// configuration.
#[must_use]
pub fn partitions(hosting: &mut Hosting<'_>) -> Vec<Vec<GpuGroup>> {
    let cluster = hosting.services().cluster();
    let largest = cluster.ids().map(|i| cluster.instance(i).count).max().unwrap_or(0);
    let powers = |most: u16| (0..16).map(|p| 1u16 << p).take_while(move |n| *n <= most);
    let mut found: Vec<Vec<GpuGroup>> = Vec::new();
    for stages in powers(MOST_STAGES) {
        for tp in powers(largest) {
            let groups = cut(hosting.services().cluster(), tp, stages);
            let Some(mut groups) = merged(hosting, groups) else { continue };
            groups.sort();
            if !found.contains(&groups) {
                found.push(groups);
            }
        }
    }
    found
}

/// Devices in stages of `tp`, what is left of a host in smaller ones, and `stages` of a kind in a row.
fn cut(cluster: &Cluster, tp: u16, stages: u16) -> Vec<GpuGroup> {
    let mut rows: BTreeMap<(KindId, u32), Vec<InstanceId>> = BTreeMap::new();
    let mut groups = Vec::new();
    for id in cluster.ids() {
        let instance = cluster.instance(id);
        rows.entry((instance.kind, instance.site)).or_default().extend((0..instance.count / tp).map(|_| id));
        let mut left = instance.count % tp;
        while left > 0 {
            let part = 1 << left.ilog2();
            groups.push(GpuGroup { stages: vec![(id, part)] });
            left -= part;
        }
    }
    for row in rows.values() {
        // What does not fill a row stands alone.
        let whole = row.len() / usize::from(stages) * usize::from(stages);
        let (in_rows, alone) = row.split_at(whole);
        let group = |hosts: &[InstanceId]| GpuGroup { stages: hosts.iter().map(|id| (*id, tp)).collect() };
        groups.extend(in_rows.chunks(usize::from(stages)).map(group));
        groups.extend(alone.chunks(1).map(group));
    }
    groups
}

/// Two small groups made one, again and again, until every service has a place; `None` if none is left to be merged.
fn merged(hosting: &mut Hosting<'_>, mut groups: Vec<GpuGroup>) -> Option<Vec<GpuGroup>> {
    loop {
        let places: Vec<(GpuGroup, Vec<ServiceNo>)> = groups.iter().map(|g| (g.clone(), Vec::new())).collect();
        let all: Vec<ServiceNo> = hosting.services().ids().collect();
        if places_for_all(hosting, &places, &all) {
            return Some(groups);
        }
        let (a, b, both) = smallest_pair(hosting.services(), &groups)?;
        groups.swap_remove(a.max(b));
        groups.swap_remove(a.min(b));
        groups.push(both);
    }
}

/// The pair with the least memory, of those that can be merged: on one host if there is one.
fn smallest_pair(services: &Services, groups: &[GpuGroup]) -> Option<(usize, usize, GpuGroup)> {
    let cluster = services.cluster();
    let memory = |g: &GpuGroup| g.stages.iter().map(|&(i, n)| cluster.figures(i).memory.0 * f64::from(n)).sum::<f64>();
    let key = |both: &GpuGroup| (both.stages.len(), memory(both));
    let mut best: Option<(usize, usize, GpuGroup)> = None;
    for a in 0..groups.len() {
        for b in a + 1..groups.len() {
            let Some(both) = groups[a].with(&groups[b], cluster) else { continue };
            if best.as_ref().is_none_or(|(_, _, least)| key(&both) < key(least)) {
                best = Some((a, b, both));
            }
        }
    }
    best
}

/// Whether these services find places beside those that are there: the largest first, each where the least memory is
/// that holds it. A `no` may be wrong, a `yes` is not.
pub fn places_for_all(
    hosting: &mut Hosting<'_>,
    groups: &[(GpuGroup, Vec<ServiceNo>)],
    services: &[ServiceNo],
) -> bool {
    if services.is_empty() {
        return true;
    }
    let bytes = |s: &ServiceNo| hosting.services().problem(*s).model.bytes().0;
    let mut order = services.to_vec();
    order.sort_by(|a, b| bytes(b).total_cmp(&bytes(a)).then(a.cmp(b)));
    let mut groups = groups.to_vec();
    for service in order {
        let mut best: Option<(f64, usize)> = None;
        for (place, (group, there)) in groups.iter().enumerate() {
            if there.len() >= hosting.services().sharing || there.contains(&service) {
                continue;
            }
            let with = [&there[..], &[service]].concat();
            if let Some(left) = hosting.room(group, &with) {
                let Bytes(left) = left.bytes;
                if best.is_none_or(|(least, _)| left < least) {
                    best = Some((left, place));
                }
            }
        }
        let Some((_, place)) = best else { return false };
        groups[place].1.push(service);
    }
    true
}
