//! Whether devices can hold the model at all: its layers, each with the KV of a request at its longest, the embedding before
//! the first and the head behind the last.
//!
//! Exact for stages of one device, as swarms plan them, and independent of what a search happens to try: devices hold no less
//! with more memory or more KV memory, and of more devices some hold no less. Sums of memory alone do not tell: KV pages
//! are bounded apart, layers are not cut, and what a stage needs beside them depends on its place.

use super::{
    cluster::{InstanceDevices, InstanceId},
    cost::StageEnds,
    problem::Problem,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tsnode_protocol::Bytes;

/// Layers that a stage holds, by its place among the stages; not more than the model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StageRoom {
    first: u32,
    middle: u32,
    last: u32,
    only: u32,
}

impl StageRoom {
    /// On `tp` devices of an instance; `None` where the model cannot be cut so.
    #[must_use]
    pub fn of(problem: &Problem, instance: InstanceId, tp: u16) -> Option<Self> {
        let cost = problem.layer_cost(instance, tp)?;
        let (tokens, layers) = (problem.least_tokens(), problem.model.shape.layers);
        let at = |first, last| cost.most_layers(tokens, StageEnds { first, last }).min(layers);
        Some(Self { first: at(true, false), middle: at(false, false), last: at(false, true), only: at(true, true) })
    }
}

/// Which of these are best the first and the last stage; `None` if they cannot hold so many layers in any order, each at
/// least one.
#[must_use]
pub fn ends(rooms: &[StageRoom], layers: u32) -> Option<(usize, usize)> {
    if let [only] = rooms {
        return (only.only >= layers).then_some((0, 0));
    }
    if rooms.len() > layers as usize || rooms.iter().any(|r| r.middle == 0) {
        return None;
    }
    let middle: u64 = rooms.iter().map(|r| u64::from(r.middle)).sum();
    let held = |&(first, last): &(usize, usize)| {
        let (f, l) = (&rooms[first], &rooms[last]);
        middle - u64::from(f.middle) - u64::from(l.middle) + u64::from(f.first) + u64::from(l.last)
    };
    let pairs = (0..rooms.len()).flat_map(|f| (0..rooms.len()).map(move |l| (f, l)));
    let may_be = |&(f, l): &(usize, usize)| f != l && rooms[f].first > 0 && rooms[l].last > 0;
    pairs.filter(may_be).max_by_key(held).filter(|pair| held(pair) >= u64::from(layers))
}

/// Whether these devices hold the model together. Where devices may work side by side in a stage, whether their memory
/// suffices: which degrees there are is looked at when they are a group.
#[must_use]
pub fn holds(problem: &Problem, members: &[(InstanceId, u16)]) -> bool {
    let memory: Bytes = members.iter().map(|&(i, n)| problem.usable(i, n)).sum();
    if memory < problem.least_memory() {
        return false;
    }
    if problem.space.tensor_parallel > 1 {
        return true;
    }
    let devices: u32 = members.iter().map(|&(_, n)| u32::from(n)).sum();
    if devices > problem.model.shape.most_stages() {
        return false;
    }
    let each = members.iter().flat_map(|&(i, n)| std::iter::repeat_n(i, n.into()));
    let rooms: Option<Vec<StageRoom>> = each.map(|i| StageRoom::of(problem, i, 1)).collect();
    rooms.is_some_and(|rooms| ends(&rooms, problem.model.shape.layers).is_some())
}

/// Whether a device holds any layer at all; of a model that one stage has to hold, all.
#[must_use]
pub fn is_of_use(problem: &Problem, instance: InstanceId) -> bool {
    let shape = &problem.model.shape;
    let holds = |room: StageRoom| if shape.whole { room.only >= shape.layers } else { room.middle > 0 };
    problem.space.tensor_parallel > 1 || StageRoom::of(problem, instance, 1).is_some_and(holds)
}

/// The fewest devices that hold the model, one of each host, however they are connected as long as they are; `None` if there
/// are none, or if devices may work side by side.
#[must_use]
pub fn fewest(problem: &Problem) -> Option<InstanceDevices> {
    if problem.space.tensor_parallel > 1 {
        return None;
    }
    let islands = problem.islands().into_iter();
    islands.filter_map(|(island, _)| fewest_of(problem, &island)).min_by_key(Vec::len)
}

/// A device and what it holds.
struct DeviceRoom<'p> {
    id: InstanceId,
    host: &'p str,
    room: StageRoom,
}

fn fewest_of(problem: &Problem, island: &[InstanceId]) -> Option<InstanceDevices> {
    let layers = problem.model.shape.layers;
    let device = |&id: &InstanceId| {
        let room = StageRoom::of(problem, id, 1).filter(|room| room.middle > 0)?;
        Some(DeviceRoom { id, host: &problem.cluster.instance(id).name, room })
    };
    let mut all: Vec<DeviceRoom<'_>> = island.iter().filter_map(device).collect();
    if let Some(one) = all.iter().find(|d| d.room.only >= layers) {
        return Some(vec![(one.id, 1)]);
    }
    if problem.model.shape.most_stages() < 2 {
        return None;
    }
    all.sort_by_key(|d| (Reverse(d.room.middle), d.id));
    let ends = ends_to_try(&all);
    let mut fewest: Option<Vec<&DeviceRoom<'_>>> = None;
    for &first in &ends {
        for &last in ends.iter().filter(|last| last.host != first.host) {
            let less_than = fewest.as_ref().map_or(layers as usize + 1, Vec::len);
            fewest = between(&all, first, last, layers).filter(|f| f.len() < less_than).or(fewest);
        }
    }
    let mut members: InstanceDevices = fewest?.into_iter().map(|d| (d.id, 1)).collect();
    members.sort_unstable();
    Some(members)
}

/// Of devices that differ in nothing that counts two, on two hosts: one of them may be the first and another the last.
fn ends_to_try<'a, 'p>(all: &'a [DeviceRoom<'p>]) -> Vec<&'a DeviceRoom<'p>> {
    let mut most: BTreeMap<&str, u32> = BTreeMap::new();
    all.iter().for_each(|d| _ = most.entry(d.host).or_insert(d.room.middle));
    let mut alike: BTreeMap<(StageRoom, Option<u32>), Vec<&DeviceRoom<'_>>> = BTreeMap::new();
    for device in all {
        // Its host's best device is then no other stage.
        let known = alike.entry((device.room, most.get(device.host).copied())).or_default();
        if known.len() < 2 && known.iter().all(|k| k.host != device.host) {
            known.push(device);
        }
    }
    alike.into_values().flatten().collect()
}

/// These two and, of all others, most layers first, as many as it takes; `None` if all do not suffice.
fn between<'a, 'p>(
    all: &'a [DeviceRoom<'p>],
    first: &'a DeviceRoom<'p>,
    last: &'a DeviceRoom<'p>,
    layers: u32,
) -> Option<Vec<&'a DeviceRoom<'p>>> {
    if first.room.first == 0 || last.room.last == 0 {
        return None;
    }
    let (mut stages, mut held) = (vec![first, last], u64::from(first.room.first) + u64::from(last.room.last));
    for device in all {
        if held >= u64::from(layers) {
            break;
        }
        if stages.iter().all(|s| s.host != device.host) {
            stages.push(device);
            held += u64::from(device.room.middle);
        }
    }
    (held >= u64::from(layers) && stages.len() <= layers as usize).then_some(stages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The most layers that these hold in any order, each at least one.
    fn brute(rooms: &[StageRoom]) -> u32 {
        let holds = |f: usize, l: usize| {
            let at = |i: usize| match (i == f, i == l) {
                (true, true) => rooms[i].only,
                (true, false) => rooms[i].first,
                (false, true) => rooms[i].last,
                (false, false) => rooms[i].middle,
            };
            let each: Vec<u32> = (0..rooms.len()).map(at).collect();
            if each.contains(&0) { 0 } else { each.iter().sum() }
        };
        let n = rooms.len();
        let pairs = (0..n).flat_map(|f| (0..n).map(move |l| (f, l))).filter(|(f, l)| (f == l) == (n == 1));
        pairs.map(|(f, l)| holds(f, l)).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn stages_are_in_the_order_that_holds_most(
            rooms in prop::collection::vec((0u32..6, 0u32..3, 0u32..3), 1..6), layers in 1u32..12,
        ) {
            let room = |&(middle, embed, head): &(u32, u32, u32)| StageRoom {
                first: middle.saturating_sub(embed),
                middle,
                last: middle.saturating_sub(head),
                only: middle.saturating_sub(embed + head),
            };
            let rooms: Vec<StageRoom> = rooms.iter().map(room).collect();
            let fits = rooms.len() <= layers as usize && brute(&rooms) >= layers;
            prop_assert_eq!(ends(&rooms, layers).is_some(), fits);
        }
    }
}
