//! Large clusters in regions: devices that are well connected are planned together, each region with its part of the
//! requests. A search's work grows with the square of its groups; with regions, work and memory grow with the cluster.

use super::{
    cluster::{Cluster, Instance, InstanceId},
    evaluate::Evaluator,
    parallel::InstanceDevices,
    problem::Problem,
    search::{self, Effort, Found, side_by_side},
    start,
};
use tsnode_protocol::{Bytes, Phase};

/// Most devices planned together.
pub const MOST: usize = 32;
/// Part of the steps that each of several regions gets.
const STEPS_EACH: usize = 4;

/// A region and its plan.
#[derive(Clone, Debug)]
pub struct Region {
    /// What there is to plan in it; instances are numbered anew.
    pub problem: Problem,
    /// Its part of all requests.
    pub share: f64,
    /// The best plan that was found for it.
    pub found: Found,
}

/// Plans a cluster of any size: whole if it is small, region by region otherwise.
pub fn search(problem: &Problem, seed: u64, effort: Effort, stop: &(dyn Fn() -> bool + Sync)) -> Vec<Region> {
    let parts = split(problem, MOST);
    if parts.len() < 2 {
        let found = search::search(problem, seed, effort, stop);
        return vec![Region { problem: problem.clone(), share: 1.0, found }];
    }
    let regions: Vec<(Problem, f64)> = parts
        .iter()
        .filter_map(|members| {
            let region = problem.part(members)?;
            let carries = capacity(&region);
            Some((region, carries))
        })
        .collect();
    let total: f64 = regions.iter().map(|r| r.1).sum();
    let region = |(region, carries): (Problem, f64)| {
        let share = carries / total;
        Region { problem: region.at_rate(problem.rate * share), share, found: Found::default() }
    };
    let mut regions: Vec<Region> = regions.into_iter().filter(|r| r.1 > 0.0).map(region).collect();
    // Of regions that are alike, as racks are, the first is planned.
    let firsts: Vec<usize> = (0..regions.len()).map(|n| first_alike(&regions, n)).collect();
    let mut planned: Vec<(usize, &mut Region)> =
        regions.iter_mut().enumerate().filter(|(n, _)| firsts[*n] == *n).collect();
    let together = effort.threads.max(1).min(planned.len());
    // Side by side, regions wait for each other less often than walks do.
    let effort =
        Effort { steps: (effort.steps / STEPS_EACH).max(1), threads: effort.threads / together.max(1), ..effort };
    side_by_side(&mut planned, together, &|(_, region)| {
        region.found = search::search(&region.problem, seed, effort, stop)
    });
    for (n, first) in firsts.into_iter().enumerate() {
        if first != n {
            regions[n].found = regions[first].found.clone();
        }
    }
    regions
}

/// The first region in which there is the same to plan as in this one, device by device.
fn first_alike(regions: &[Region], n: usize) -> usize {
    let region = &regions[n];
    let is_alike = |other: &Region| {
        let (a, b) = (&other.problem.cluster, &region.problem.cluster);
        let figures = |(x, y): (&Instance, &Instance)| (x.kind, x.count, x.inside) == (y.kind, y.count, y.inside);
        other.problem.rate == region.problem.rate
            && a.instances.len() == b.instances.len()
            && a.instances.iter().zip(&b.instances).all(figures)
            && a.ids().all(|from| a.ids().all(|to| a.path(from, to) == b.path(from, to)))
            && a.ids().all(|from| a.ids().all(|to| are_together(a, from, to) == are_together(b, from, to)))
    };
    (0..n).find(|&first| is_alike(&regions[first])).unwrap_or(n)
}

/// Whether these are devices of one host.
fn are_together(cluster: &Cluster, a: InstanceId, b: InstanceId) -> bool {
    cluster.instance(a).name == cluster.instance(b).name
}

/// Requests a second that mixed groups, just large enough, carry.
#[must_use]
pub fn capacity(problem: &Problem) -> f64 {
    let mut evaluator = Evaluator::new(problem);
    let groups = start::small(problem, 1.0);
    let rate =
        |m: &InstanceDevices| evaluator.group(m, Phase::Mixed).map_or(0.0, |g| evaluator.shelved(g).rated.rate());
    groups.iter().map(rate).sum()
}

/// Devices in regions of at most `most`, each able to hold the model: one after the other takes what is nearest to its
/// first host.
#[must_use]
pub fn split(problem: &Problem, most: usize) -> Vec<InstanceDevices> {
    let cluster = &problem.cluster;
    let mut left: Vec<(InstanceId, u16)> = cluster.ids().map(|i| (i, cluster.instance(i).count)).collect();
    if cluster.devices() <= most {
        return vec![left];
    }
    // A region too small for the model is no region.
    let least = (0..).map(|k| most << k).find(|n| largest(problem, *n) >= problem.least_memory()).unwrap_or(most);
    let mut regions: Vec<InstanceDevices> = Vec::new();
    while let Some(&(first, _)) = left.first() {
        let near = |i: InstanceId| cluster.path(first, i).bandwidth.0;
        let mut order: Vec<usize> = (0..left.len()).filter(|&k| near(left[k].0) > 0.0).collect();
        order.sort_by(|&a, &b| near(left[b].0).total_cmp(&near(left[a].0)).then(a.cmp(&b)));
        let (mut region, mut size) = (InstanceDevices::new(), 0);
        for k in order {
            let n = usize::from(left[k].1).min(least - size);
            if n > 0 {
                region.push((left[k].0, n as u16));
                left[k].1 -= n as u16;
                size += n;
            }
        }
        left.retain(|l| l.1 > 0);
        region.sort_unstable();
        let memory: Bytes = region.iter().map(|&(i, n)| problem.usable(i, n)).sum();
        if memory >= problem.least_memory() {
            regions.push(region);
        }
    }
    regions
}

/// Memory of the `n` largest devices.
fn largest(problem: &Problem, n: usize) -> Bytes {
    let mut sizes: Vec<(Bytes, usize)> =
        problem.cluster.ids().map(|i| (problem.usable(i, 1), usize::from(problem.cluster.instance(i).count))).collect();
    sizes.sort_by(|a, b| b.0.0.total_cmp(&a.0.0));
    let (mut left, mut sum) = (n, Bytes(0.0));
    for (each, count) in sizes {
        let take = count.min(left);
        sum += each * take as f64;
        left -= take;
    }
    sum
}
