//! Where the search starts: clusters of well-connected devices (ThunderServe §3.2), and groups just large enough.

use super::{
    cluster::InstanceId,
    evaluate::{Evaluator, GroupNo},
    moves::{DeviceGroup, Grouping, add, may_be_group, phases},
    parallel::InstanceDevices,
    problem::Problem,
    room,
};
use crate::rng::Rng;
use tsnode_protocol::Phase;

/// Clusters by hierarchical clustering on bandwidth: each host's devices, then, as long as one cannot hold the model, it
/// joins the cluster it is best connected with. Phases are random, as the paper has them.
#[must_use]
pub fn clustered(problem: &Problem, rng: &mut Rng) -> Grouping {
    let whole: Vec<InstanceDevices> =
        problem.cluster.ids().map(|i| vec![(i, problem.cluster.instance(i).count)]).collect();
    let all = phases(problem);
    let split: Vec<Phase> = all.iter().copied().filter(|p| *p != Phase::Mixed).collect();
    let choices = if split.is_empty() { all.to_vec() } else { split };
    let parts = joined(problem, whole).into_iter().flat_map(|members| sized(problem, members));
    Grouping::new(parts.map(|members| DeviceGroup { members, phase: choices[rng.below(choices.len())] }).collect())
}

/// Groups of the fewest devices of a host that hold `slack` times the model; what is left over joins what is near. Where
/// that makes no group, the fewest devices that can be one, if any can.
#[must_use]
pub fn small(problem: &Problem, slack: f64) -> Vec<InstanceDevices> {
    let (mut groups, mut rest): (Vec<InstanceDevices>, Vec<InstanceDevices>) = (Vec::new(), Vec::new());
    for id in problem.cluster.ids() {
        let count = problem.cluster.instance(id).count;
        let each = (problem.least_memory() * slack / problem.usable(id, 1)).ceil().clamp(1.0, 65535.0) as u16;
        let (full, holds) = (count / each, room::holds(problem, &[(id, each)]));
        if !holds && count > 0 {
            rest.push(vec![(id, count)]);
            continue;
        }
        groups.extend((0..full).map(|_| vec![(id, each)]));
        if !count.is_multiple_of(each) {
            rest.push(vec![(id, count % each)]);
        }
    }
    groups.extend(joined(problem, rest));
    groups.retain(|g| may_be_group(problem, g));
    if groups.is_empty() {
        groups.extend(room::fewest(problem));
    }
    groups
}

/// Joins sets of devices that cannot hold the model with those they are best connected with, until each that is left
/// can; the rest are dropped.
fn joined(problem: &Problem, mut sets: Vec<InstanceDevices>) -> Vec<InstanceDevices> {
    let holds = |m: &InstanceDevices| room::holds(problem, m);
    sets.retain(|set| set.iter().all(|(i, _)| room::is_of_use(problem, *i)));
    let most = largest(problem);
    let devices = |m: &InstanceDevices| m.iter().map(|m| u32::from(m.1)).sum::<u32>();
    while let Some(small) = sets.iter().position(|s| !holds(s)) {
        let set = sets.swap_remove(small);
        let near = |other: &InstanceDevices| bandwidth(problem, &set, other);
        // Small ones first among the equally near: two halves make a whole.
        let best = (0..sets.len())
            .filter(|&o| near(&sets[o]) > 0.0 && devices(&set) + devices(&sets[o]) <= most)
            .max_by(|&a, &b| near(&sets[a]).total_cmp(&near(&sets[b])).then(holds(&sets[b]).cmp(&holds(&sets[a]))));
        if let Some(best) = best {
            set.iter().for_each(|&(i, n)| add(&mut sets[best], i, n));
        }
    }
    sets
}

/// Devices of a set, at most: where each is a stage the model can be cut into so many. Others are cut by [`sized`].
fn largest(problem: &Problem) -> u32 {
    if problem.space.tensor_parallel > 1 {
        return u32::MAX;
    }
    u32::from(problem.space.group_devices).min(problem.model.shape.most_stages())
}

/// Cuts a set of devices that is larger than a group may be.
fn sized(problem: &Problem, members: InstanceDevices) -> Vec<InstanceDevices> {
    let together = u32::from(problem.space.group_devices);
    let most = if problem.model.shape.whole { largest(problem).min(together) } else { together };
    let (mut done, mut open, mut size) = (Vec::new(), InstanceDevices::new(), 0);
    for (instance, n) in members {
        for _ in 0..n {
            if size == most {
                done.push(std::mem::take(&mut open));
                size = 0;
            }
            add(&mut open, instance, 1);
            size += 1;
        }
    }
    done.push(open);
    done.retain(|m| may_be_group(problem, m));
    done
}

/// The mean over their links, as average linkage has it.
fn bandwidth(problem: &Problem, a: &InstanceDevices, b: &InstanceDevices) -> f64 {
    let links = a.iter().flat_map(|x| b.iter().map(move |y| (x.0, y.0)));
    let of = |(x, y): (InstanceId, InstanceId)| problem.cluster.path(x, y).bandwidth.0;
    links.map(of).sum::<f64>() / (a.len() * b.len()) as f64
}

/// Phases for groups: those whose devices compute better than they read prefill, as many as balance the two sides.
/// Returns the groupings around the balance, and all mixed where that is allowed.
pub fn with_phases(evaluator: &mut Evaluator<'_>, groups: &[InstanceDevices]) -> Vec<Grouping> {
    let problem = evaluator.problem();
    let mut found = Vec::new();
    let all = |phase: Phase| Grouping::new(groups.iter().map(|m| DeviceGroup { members: m.clone(), phase }).collect());
    if problem.space.mixed || !problem.has_phases() {
        found.push(all(Phase::Mixed));
    }
    if !problem.has_phases() || groups.len() < 2 {
        return found;
    }
    let mut rated: Vec<(f64, f64, &InstanceDevices)> = Vec::new();
    for members in groups {
        let rate = |g: Option<GroupNo>, e: &Evaluator<'_>| g.map_or(0.0, |g| e.shelved(g).rated.rate());
        let (p, d) = (evaluator.group(members, Phase::Prefill), evaluator.group(members, Phase::Decode));
        rated.push((rate(p, evaluator), rate(d, evaluator), members));
    }
    rated.sort_by(|a, b| (b.0 * a.1).total_cmp(&(a.0 * b.1)).then(a.2.cmp(b.2)));
    let balance = |n: usize| {
        let p: f64 = rated[..n].iter().map(|r| r.0).sum();
        let d: f64 = rated[n..].iter().map(|r| r.1).sum();
        p.min(d)
    };
    let best = (1..rated.len()).max_by(|a, b| balance(*a).total_cmp(&balance(*b))).unwrap_or(1);
    for n in best.saturating_sub(1)..=best + 1 {
        if n >= 1 && n < rated.len() {
            let part = |(k, r): (usize, &(f64, f64, &InstanceDevices))| DeviceGroup {
                members: r.2.clone(),
                phase: if k < n { Phase::Prefill } else { Phase::Decode },
            };
            found.push(Grouping::new(rated.iter().enumerate().map(part).collect()));
        }
    }
    found
}
