//! Groupings, and the steps from one to another: flip, split, merge, move (ThunderServe §3.2, Fig. 4).
//!
//! Devices may also be left idle: a slow one that only adds a KV transfer is worth more outside.

use super::{cluster::InstanceId, parallel::InstanceDevices, problem::Problem, room};
use crate::rng::Rng;
use tsnode_protocol::Phase;

/// Devices up to which groups are often dealt anew.
const FEW: usize = 12;

/// Some devices and what they do together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceGroup {
    /// Which devices, by instance, in order.
    pub members: InstanceDevices,
    /// What they do.
    pub phase: Phase,
}

/// The upper level's unknown: groups and phases. Devices in no group are idle.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grouping {
    /// In order, so that equal groupings are equal.
    pub parts: Vec<DeviceGroup>,
}

impl Grouping {
    /// These groups, in order.
    #[must_use]
    pub fn new(mut parts: Vec<DeviceGroup>) -> Self {
        parts.sort();
        Self { parts }
    }

    /// Devices in no group.
    #[must_use]
    pub fn idle(&self, problem: &Problem) -> InstanceDevices {
        let mut left: Vec<u16> = problem.cluster.instances.iter().map(|i| i.count).collect();
        for (instance, n) in self.parts.iter().flat_map(|p| &p.members) {
            left[instance.0 as usize] -= n;
        }
        problem.cluster.ids().zip(left).filter(|(_, n)| *n > 0).collect()
    }
}

/// Whether devices may be a group at all: memory, number. Looked at before anything is evaluated.
#[must_use]
pub fn may_be_group(problem: &Problem, members: &[(InstanceId, u16)]) -> bool {
    let devices: u32 = members.iter().map(|m| u32::from(m.1)).sum();
    let once = problem.space.repeat_hosts || members.iter().all(|m| m.1 <= problem.space.tensor_parallel);
    devices > 0 && devices <= u32::from(problem.space.group_devices) && once && room::holds(problem, members)
}

/// Phases that a space allows, of a model whose KV can be sent.
#[must_use]
pub fn phases(problem: &Problem) -> &'static [Phase] {
    match (problem.has_phases(), problem.space.mixed) {
        (true, true) => &[Phase::Prefill, Phase::Decode, Phase::Mixed],
        (true, false) => &[Phase::Prefill, Phase::Decode],
        (false, _) => &[Phase::Mixed],
    }
}

/// A random neighbour of a grouping; `None` if the step tried leads nowhere.
pub fn neighbour(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    // Few devices are tight on memory, and there are few ways to deal them; many devices have better steps.
    let deal = if is_small(problem) { 6 } else { 1 };
    let next = match rng.below(30 + deal) {
        0..=5 => flip(problem, from, rng),
        6..=11 => split(problem, from, rng),
        12..=14 => merge(problem, from, rng),
        15..=26 => shift(problem, from, rng),
        27..=29 => swap(from, rng),
        _ => regroup(problem, from, rng),
    }?;
    let sound = next.parts.iter().all(|p| may_be_group(problem, &p.members)) && next != *from;
    (sound && !next.parts.is_empty()).then_some(next)
}

fn phase(problem: &Problem, rng: &mut Rng) -> Phase {
    let all = phases(problem);
    all[rng.below(all.len())]
}

/// Gives a group another phase.
fn flip(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let mut parts = from.parts.clone();
    let place = rng.below(parts.len());
    let part = parts.get_mut(place)?;
    part.phase = phase(problem, rng);
    Some(Grouping::new(parts))
}

/// Splits a group in two: by a ratio, or host from host.
fn split(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let mut parts = from.parts.clone();
    let part = (!parts.is_empty()).then(|| parts.swap_remove(rng.below(from.parts.len())))?;
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let by_host = part.members.len() > 1 && rng.below(2) == 0;
    let ratio = if rng.below(2) == 0 { 0.5 } else { rng.unit() };
    for &(instance, n) in &part.members {
        let first = if by_host { n * rng.below(2) as u16 } else { (f64::from(n) * ratio).floor() as u16 };
        add(&mut one, instance, first);
        add(&mut two, instance, n - first);
    }
    let keep = rng.below(2) == 0;
    let (a, b) = (if keep { part.phase } else { phase(problem, rng) }, phase(problem, rng));
    parts.push(DeviceGroup { members: one, phase: a });
    parts.push(DeviceGroup { members: two, phase: b });
    Some(Grouping::new(parts))
}

/// Merges two groups; one of their phases, or another.
fn merge(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let mut parts = from.parts.clone();
    if parts.len() < 2 {
        return None;
    }
    let a = parts.swap_remove(rng.below(parts.len()));
    let b = parts.swap_remove(rng.below(parts.len()));
    let mut members = a.members;
    b.members.iter().for_each(|&(i, n)| add(&mut members, i, n));
    let phase = if rng.below(2) == 0 { a.phase } else { phase(problem, rng) };
    parts.push(DeviceGroup { members, phase });
    Some(Grouping::new(parts))
}

/// Moves devices of one host from a group, or from the idle ones, to another group, to a new one, or to the idle ones.
fn shift(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let mut parts = from.parts.clone();
    let idle = from.idle(problem);
    let source = rng.below(parts.len() + usize::from(!idle.is_empty()));
    let pool = parts.get(source).map_or(&idle, |p| &p.members);
    let (instance, n) = *pool.get(rng.below(pool.len()))?;
    let amount = 1 + rng.below(usize::from(n)) as u16;
    if let Some(part) = parts.get_mut(source) {
        take(&mut part.members, instance, amount);
    }
    let target = rng.below(parts.len() + 2);
    if target == source {
        return None;
    }
    match parts.get_mut(target) {
        Some(part) => add(&mut part.members, instance, amount),
        None if target == from.parts.len() => {
            let phase = phase(problem, rng);
            parts.push(DeviceGroup { members: vec![(instance, amount)], phase });
        }
        None => {}
    }
    parts.retain(|p| !p.members.is_empty());
    Some(Grouping::new(parts))
}

/// Exchanges devices of two hosts between two groups.
fn swap(from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let mut parts = from.parts.clone();
    if parts.len() < 2 {
        return None;
    }
    let (a, b) = (rng.below(parts.len()), rng.below(parts.len()));
    let pick = |part: &DeviceGroup, rng: &mut Rng| {
        let (instance, n) = part.members[rng.below(part.members.len())];
        (instance, 1 + rng.below(usize::from(n)) as u16)
    };
    if a == b {
        return None;
    }
    let (of_a, of_b) = (pick(&parts[a], rng), pick(&parts[b], rng));
    take(&mut parts[a].members, of_a.0, of_a.1);
    add(&mut parts[a].members, of_b.0, of_b.1);
    take(&mut parts[b].members, of_b.0, of_b.1);
    add(&mut parts[b].members, of_a.0, of_a.1);
    Some(Grouping::new(parts))
}

/// Deals the devices of one or two groups and the idle ones anew, to one or two groups: where memory is tight, single
/// devices cannot move without leaving a group that holds nothing.
fn regroup(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let mut parts = from.parts.clone();
    let mut pool = if rng.below(2) == 0 { from.idle(problem) } else { InstanceDevices::new() };
    for _ in 0..1 + rng.below(2) {
        if !parts.is_empty() {
            let part = parts.swap_remove(rng.below(parts.len()));
            part.members.iter().for_each(|&(i, n)| add(&mut pool, i, n));
        }
    }
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let leave = rng.below(3) == 0;
    for (instance, n) in pool {
        let first = rng.below(usize::from(n) + 1) as u16;
        let second = if leave { rng.below(usize::from(n - first) + 1) as u16 } else { n - first };
        add(&mut one, instance, first);
        add(&mut two, instance, second);
    }
    for members in [one, two] {
        let phase = phase(problem, rng);
        if may_be_group(problem, &members) {
            parts.push(DeviceGroup { members, phase });
        }
    }
    Some(Grouping::new(parts))
}

/// Some groups of one grouping, and of another what the devices left over still make: two walks may each have found a
/// part of what is good, and no single step leads from one to the other.
pub fn crossed(problem: &Problem, one: &Grouping, other: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    let kept = one.parts.iter().filter(|_| rng.below(2) == 0).cloned().collect();
    let mut next = Grouping { parts: kept };
    let mut left = next.idle(problem);
    for part in &other.parts {
        let has = |i: InstanceId| left.iter().find(|l| l.0 == i).map_or(0, |l| l.1);
        let members = part.members.iter().map(|&(i, n)| (i, n.min(has(i)))).filter(|m| m.1 > 0);
        let members: InstanceDevices = members.collect();
        if may_be_group(problem, &members) {
            members.iter().for_each(|&(i, n)| take(&mut left, i, n));
            next.parts.push(DeviceGroup { members, phase: part.phase });
        }
    }
    let next = Grouping::new(next.parts);
    (!next.parts.is_empty() && next != *one).then_some(next)
}

/// A grouping at random: devices in any order, a group closed some time after it holds the model.
pub fn anew(problem: &Problem, rng: &mut Rng) -> Grouping {
    let count = |i: InstanceId| usize::from(problem.cluster.instance(i).count);
    let mut devices: Vec<InstanceId> = problem.cluster.ids().flat_map(|i| std::iter::repeat_n(i, count(i))).collect();
    let (mut parts, mut open) = (Vec::new(), InstanceDevices::new());
    while !devices.is_empty() {
        add(&mut open, devices.swap_remove(rng.below(devices.len())), 1);
        if may_be_group(problem, &open) && rng.below(2) == 0 {
            parts.push(DeviceGroup { members: std::mem::take(&mut open), phase: phase(problem, rng) });
        }
    }
    if may_be_group(problem, &open) {
        parts.push(DeviceGroup { members: open, phase: phase(problem, rng) });
    }
    Grouping::new(parts)
}

/// Whether a cluster has so few devices that there are few ways to deal them, and memory is tight.
#[must_use]
pub fn is_small(problem: &Problem) -> bool {
    problem.cluster.devices() <= FEW
}

/// Adds devices, keeping the order.
pub fn add(members: &mut InstanceDevices, instance: InstanceId, n: u16) {
    if n == 0 {
        return;
    }
    match members.binary_search_by_key(&instance, |m| m.0) {
        Ok(place) => members[place].1 += n,
        Err(place) => members.insert(place, (instance, n)),
    }
}

/// Takes devices away; as many as there are.
pub fn take(members: &mut InstanceDevices, instance: InstanceId, n: u16) {
    if let Ok(place) = members.binary_search_by_key(&instance, |m| m.0) {
        members[place].1 = members[place].1.saturating_sub(n);
        if members[place].1 == 0 {
            members.remove(place);
        }
    }
}
