//! Groupings, and the steps from one to another: flip, split, merge, move (ThunderServe §3.2, Fig. 4).
//!
//! Devices may also be left idle: a slow one that only adds a KV transfer is worth more outside.

use super::{cluster::InstanceId, parallel::InstanceDevices, problem::Problem, room};
use crate::rng::{Rng, mixed};
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

impl DeviceGroup {
    /// A number that stands for it: others have it about once in 2⁶⁴.
    #[must_use]
    pub fn key(&self) -> u64 {
        let add =
            |key: u64, &(instance, n): &(InstanceId, u16)| mixed(key ^ (u64::from(instance.0) << 16 | u64::from(n)));
        self.members.iter().fold(mixed(self.phase as u64), add)
    }
}

impl Grouping {
    /// A number that stands for its groups, in whatever order: their keys' sum.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.parts.iter().fold(0, |key, part| key.wrapping_add(part.key()))
    }
}

/// What differs between a grouping and the next: most steps leave most groups as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupingChange {
    /// Places of groups that go, each once.
    pub gone: Vec<usize>,
    /// Groups that come.
    pub come: Vec<DeviceGroup>,
}

impl GroupingChange {
    /// From a grouping to another as a whole.
    #[must_use]
    pub fn to(from: &Grouping, other: Grouping) -> Self {
        Self { gone: (0..from.parts.len()).collect(), come: other.parts }
    }

    /// Groups that stay, by place.
    pub fn stay<'a>(&'a self, from: &'a Grouping) -> impl Iterator<Item = usize> + 'a {
        (0..from.parts.len()).filter(|place| !self.gone.contains(place))
    }

    /// The next grouping.
    #[must_use]
    pub fn applied(&self, from: &Grouping) -> Grouping {
        Grouping::new(self.stay(from).map(|place| &from.parts[place]).chain(&self.come).cloned().collect())
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

/// A random step away from a grouping; `None` if the one tried leads nowhere.
pub fn neighbour(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    // Few devices are tight on memory, and there are few ways to deal them; many devices have better steps.
    let deal = if is_small(problem) { 6 } else { 1 };
    let change = match rng.below(30 + deal) {
        0..=5 => flip(problem, from, rng),
        6..=11 => split(problem, from, rng),
        12..=14 => merge(problem, from, rng),
        15..=26 => shift(problem, from, rng),
        27..=29 => swap(from, rng),
        _ => Some(regroup(problem, from, rng)),
    }?;
    let is_left = change.gone.len() < from.parts.len() || !change.come.is_empty();
    (is_left && change.come.iter().all(|p| may_be_group(problem, &p.members))).then_some(change)
}

fn phase(problem: &Problem, rng: &mut Rng) -> Phase {
    let all = phases(problem);
    all[rng.below(all.len())]
}

/// Gives a group another phase.
fn flip(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    let place = rng.below(from.parts.len());
    let part = from.parts.get(place)?;
    let phase = phase(problem, rng);
    let flipped = || DeviceGroup { members: part.members.clone(), phase };
    (phase != part.phase).then(|| GroupingChange { gone: vec![place], come: vec![flipped()] })
}

/// Splits a group in two: by a ratio, or host from host.
fn split(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    let place = rng.below(from.parts.len());
    let part = from.parts.get(place)?;
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
    let come = vec![DeviceGroup { members: one, phase: a }, DeviceGroup { members: two, phase: b }];
    Some(GroupingChange { gone: vec![place], come })
}

/// Two groups at random; `None` if there are no two.
fn two(from: &Grouping, rng: &mut Rng) -> Option<(usize, usize)> {
    let n = from.parts.len();
    let (a, b) = (rng.below(n), rng.below(n.saturating_sub(1)));
    (n > 1).then_some((a, if b < a { b } else { b + 1 }))
}

/// Merges two groups; one of their phases, or another.
fn merge(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    let (a, b) = two(from, rng)?;
    let mut members = from.parts[a].members.clone();
    from.parts[b].members.iter().for_each(|&(i, n)| add(&mut members, i, n));
    let phase = if rng.below(2) == 0 { from.parts[a].phase } else { phase(problem, rng) };
    Some(GroupingChange { gone: vec![a, b], come: vec![DeviceGroup { members, phase }] })
}

/// Moves devices of one host from a group, or from the idle ones, to another group, to a new one, or to the idle ones.
fn shift(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    let (idle, groups) = (from.idle(problem), from.parts.len());
    let source = rng.below(groups + usize::from(!idle.is_empty()));
    let pool = from.parts.get(source).map_or(&idle, |p| &p.members);
    let (instance, n) = *pool.get(rng.below(pool.len()))?;
    let amount = 1 + rng.below(usize::from(n)) as u16;
    let target = rng.below(groups + 2);
    if target == source || (source == groups && target > groups) {
        return None;
    }
    let mut change = GroupingChange::default();
    if let Some(part) = from.parts.get(source) {
        let mut left = part.clone();
        take(&mut left.members, instance, amount);
        change.gone.push(source);
        change.come.extend((!left.members.is_empty()).then_some(left));
    }
    match from.parts.get(target) {
        Some(part) => {
            let mut more = part.clone();
            add(&mut more.members, instance, amount);
            change.gone.push(target);
            change.come.push(more);
        }
        None if target == groups => {
            change.come.push(DeviceGroup { members: vec![(instance, amount)], phase: phase(problem, rng) });
        }
        None => {}
    }
    Some(change)
}

/// Exchanges devices of two hosts between two groups.
fn swap(from: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    let (a, b) = two(from, rng)?;
    let (mut one, mut other) = (from.parts[a].clone(), from.parts[b].clone());
    let mut pick = |part: &DeviceGroup| {
        let (instance, n) = part.members[rng.below(part.members.len())];
        (instance, 1 + rng.below(usize::from(n)) as u16)
    };
    let (of_a, of_b) = (pick(&one), pick(&other));
    take(&mut one.members, of_a.0, of_a.1);
    add(&mut one.members, of_b.0, of_b.1);
    take(&mut other.members, of_b.0, of_b.1);
    add(&mut other.members, of_a.0, of_a.1);
    Some(GroupingChange { gone: vec![a, b], come: vec![one, other] })
}

/// Deals the devices of one or two groups and the idle ones anew, to one or two groups: where memory is tight, single
/// devices cannot move without leaving a group that holds nothing.
fn regroup(problem: &Problem, from: &Grouping, rng: &mut Rng) -> GroupingChange {
    let mut pool = if rng.below(2) == 0 { from.idle(problem) } else { InstanceDevices::new() };
    let mut change = GroupingChange::default();
    for _ in 0..1 + rng.below(2) {
        let place = rng.below(from.parts.len());
        if place < from.parts.len() && !change.gone.contains(&place) {
            from.parts[place].members.iter().for_each(|&(i, n)| add(&mut pool, i, n));
            change.gone.push(place);
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
            change.come.push(DeviceGroup { members, phase });
        }
    }
    change
}

/// Some groups of one grouping, and of another what the devices left over still make: two walks may each have found a
/// part of what is good, and no single step leads from one to the other.
pub fn crossed(problem: &Problem, one: &Grouping, other: &Grouping, rng: &mut Rng) -> Option<GroupingChange> {
    let gone: Vec<usize> = (0..one.parts.len()).filter(|_| rng.below(2) != 0).collect();
    let mut change = GroupingChange { gone, come: Vec::new() };
    let mut left: Vec<u16> = problem.cluster.instances.iter().map(|i| i.count).collect();
    let kept: Vec<usize> = change.stay(one).collect();
    kept.iter().flat_map(|&k| &one.parts[k].members).for_each(|(i, n)| left[i.0 as usize] -= n);
    for part in &other.parts {
        let members = part.members.iter().map(|&(i, n)| (i, n.min(left[i.0 as usize]))).filter(|m| m.1 > 0);
        let members: InstanceDevices = members.collect();
        if may_be_group(problem, &members) {
            members.iter().for_each(|(i, n)| left[i.0 as usize] -= n);
            change.come.push(DeviceGroup { members, phase: part.phase });
        }
    }
    (!kept.is_empty() || !change.come.is_empty()).then_some(change)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Slo, Space, Workload, cluster_file, figures::Column, public_models, slo::Reference, start};

    /// However far steps lead, groups may be groups, no device is in two of them, and keys are those of what is there.
    #[test]
    fn steps_lead_to_groupings() {
        let text = cluster_file::SHIPPED.iter().find(|(name, _)| *name == "cloud32").unwrap().1;
        let cluster = cluster_file::read(text, Column::Paper, None).unwrap();
        let model = public_models::by_name("LLaMA-30B").unwrap();
        let reference = Reference::a100(&model, Column::Paper).unwrap();
        let workload = Workload::named("coding").unwrap();
        let problem = Problem::new(cluster, model, workload, 3.0, Slo::e2e(5.0), reference, Space::default()).unwrap();
        let mut rng = Rng::new(3);
        let (first, other) = (start::clustered(&problem, &mut rng), anew(&problem, &mut rng));
        let (mut present, mut steps) = (first, 0);
        for n in 0..4_000 {
            let next = match n % 7 {
                0 => crossed(&problem, &present, &other, &mut rng),
                _ => neighbour(&problem, &present, &mut rng),
            };
            let Some(change) = next else { continue };
            let next = change.applied(&present);
            assert!(next.parts.iter().all(|p| may_be_group(&problem, &p.members)) && !next.parts.is_empty());
            let used = |g: &Grouping| g.parts.iter().flat_map(|p| &p.members).map(|m| usize::from(m.1)).sum::<usize>();
            let idle: usize = next.idle(&problem).iter().map(|m| usize::from(m.1)).sum();
            assert_eq!(used(&next) + idle, problem.cluster.devices(), "{present:?} {change:?}");
            let come = change.come.iter().map(DeviceGroup::key);
            let key = change.stay(&present).map(|k| present.parts[k].key()).chain(come).fold(0, u64::wrapping_add);
            assert_eq!(key, next.key());
            assert_eq!(key == present.key(), next == present);
            (present, steps) = (next, steps + 1);
        }
        assert!(steps > 1_000, "{steps} steps");
    }
}
