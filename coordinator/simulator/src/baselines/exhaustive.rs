//! Every grouping there is: the oracle for small clusters.

use tsnode_coordinator::scheduler::{
    cluster::InstanceId,
    evaluate::Evaluator,
    moves::{DeviceGroup, Grouping, may_be_group, phases},
    parallel::InstanceDevices,
    problem::Problem,
    search::{Found, shelved},
};
use tsnode_protocol::Phase;

/// Evaluates all groupings of all or some devices into groups that can hold the model. Up to about eight devices this
/// is instant; the number grows faster than exponentially.
#[must_use]
pub fn search(problem: &Problem) -> Found {
    let mut all = All { evaluator: Evaluator::new(problem), best: Found::default(), chosen: Vec::new() };
    let left: Vec<u16> = problem.cluster.instances.iter().map(|i| i.count).collect();
    let shapes = shapes(problem);
    all.extend(&shapes, 0, left);
    all.best.evaluations = all.evaluator.evaluations;
    all.best
}

/// Every set of devices that may be a group, with every phase it can have.
fn shapes(problem: &Problem) -> Vec<(InstanceDevices, Phase)> {
    let mut sets: Vec<InstanceDevices> = vec![InstanceDevices::new()];
    for id in problem.cluster.ids() {
        let with = |n: u16| move |set: &InstanceDevices| -> InstanceDevices { [set.as_slice(), &[(id, n)]].concat() };
        let more: Vec<InstanceDevices> = (1..=problem.cluster.instance(id).count)
            .flat_map(|n| sets.iter().map(with(n)).collect::<Vec<_>>())
            .collect();
        sets.extend(more);
        let size = |m: &InstanceDevices| m.iter().map(|x: &(InstanceId, u16)| x.1).sum::<u16>();
        sets.retain(|m| size(m) <= problem.space.group_devices);
    }
    sets.retain(|m| may_be_group(problem, m));
    sets.iter().flat_map(|m| phases(problem).iter().map(move |p| (m.clone(), *p))).collect()
}

struct All<'p> {
    evaluator: Evaluator<'p>,
    best: Found,
    chosen: Vec<usize>,
}

impl All<'_> {
    /// All ways to add groups from `from` on, in order, to those chosen.
    fn extend(&mut self, shapes: &[(InstanceDevices, Phase)], from: usize, left: Vec<u16>) {
        if !self.chosen.is_empty() {
            self.weigh(shapes);
        }
        for (k, (members, _)) in shapes.iter().enumerate().skip(from) {
            if members.iter().all(|(i, n)| left[i.0 as usize] >= *n) {
                let mut left = left.clone();
                members.iter().for_each(|(i, n)| left[i.0 as usize] -= n);
                self.chosen.push(k);
                self.extend(shapes, k, left);
                self.chosen.pop();
            }
        }
    }

    fn weigh(&mut self, shapes: &[(InstanceDevices, Phase)]) {
        let part = |k: &usize| DeviceGroup { members: shapes[*k].0.clone(), phase: shapes[*k].1 };
        let grouping = Grouping::new(self.chosen.iter().map(part).collect());
        let Some(groups) = shelved(&mut self.evaluator, &grouping) else { return };
        let evaluation = self.evaluator.evaluate(&groups);
        if self.best.grouping.parts.is_empty() || evaluation.value > self.best.evaluation.value {
            (self.best.grouping, self.best.evaluation) = (grouping, evaluation);
        }
    }
}
