//! ThunderServe's Algorithm 1 as printed, for comparison: random phases at the start, random neighbours of four kinds,
//! every device used, two phases, no memory beyond the tabu list.

use std::collections::VecDeque;
use tsnode_coordinator::{
    rng::Rng,
    scheduler::{
        evaluate::{Evaluation, Evaluator},
        moves::{DeviceGroup, Grouping, add, may_be_group, take},
        parallel::InstanceDevices,
        problem::Problem,
        search::{Effort, Found, shelved},
        start,
    },
};
use tsnode_protocol::Phase;

/// Tries for a neighbour before the neighbourhood counts as full.
const TRIES: usize = 200;

/// Runs Algorithm 1; each neighbour constructed is evaluated, seen before or not.
#[must_use]
pub fn search(problem: &Problem, seed: u64, effort: Effort) -> Found {
    let (mut evaluator, mut rng) = (Evaluator::new(problem), Rng::new(seed));
    let mut present = start::clustered(problem, &mut rng);
    let mut value = |grouping: &Grouping| match shelved(&mut evaluator, grouping) {
        Some(groups) if !groups.is_empty() => evaluator.evaluate(&groups).value,
        _ => f64::NEG_INFINITY,
    };
    let mut best = (value(&present), present.clone());
    let mut tabu: VecDeque<Grouping> = VecDeque::new();
    for _ in 0..effort.steps {
        let mut next: Option<(f64, Grouping)> = None;
        for _ in 0..effort.neighbours {
            let new = (0..TRIES).find_map(|_| neighbour(problem, &present, &mut rng).filter(|n| !tabu.contains(n)));
            let Some(new) = new else { continue };
            let worth = value(&new);
            if next.as_ref().is_none_or(|(v, _)| worth > *v) {
                next = Some((worth, new));
            }
        }
        let Some((worth, grouping)) = next else { continue };
        if worth > best.0 {
            best = (worth, grouping.clone());
        }
        tabu.push_back(grouping.clone());
        if tabu.len() > effort.memory {
            tabu.pop_front();
        }
        present = grouping;
    }
    let evaluations = evaluator.evaluations;
    let groups = shelved(&mut evaluator, &best.1).unwrap_or_default();
    let evaluation = if groups.is_empty() { Evaluation::default() } else { evaluator.evaluate(&groups) };
    Found { grouping: best.1, evaluation, runners_up: Vec::new(), evaluations }
}

fn neighbour(problem: &Problem, from: &Grouping, rng: &mut Rng) -> Option<Grouping> {
    if from.parts.is_empty() {
        return None;
    }
    let mut parts = from.parts.clone();
    let phase = |rng: &mut Rng| if rng.below(2) == 0 { Phase::Prefill } else { Phase::Decode };
    match rng.below(4) {
        0 => {
            let part = &mut parts[rng.below(from.parts.len())];
            part.phase = if part.phase == Phase::Prefill { Phase::Decode } else { Phase::Prefill };
        }
        1 => {
            let part = parts.swap_remove(rng.below(from.parts.len()));
            let ratio = rng.unit();
            let first = |n: u16| (f64::from(n) * ratio).floor() as u16;
            let (mut one, mut two) = (InstanceDevices::new(), InstanceDevices::new());
            for &(instance, n) in &part.members {
                add(&mut one, instance, first(n));
                add(&mut two, instance, n - first(n));
            }
            parts.push(DeviceGroup { members: one, phase: phase(rng) });
            parts.push(DeviceGroup { members: two, phase: phase(rng) });
        }
        2 if parts.len() > 1 => {
            let a = parts.swap_remove(rng.below(parts.len()));
            let b = parts.swap_remove(rng.below(parts.len()));
            let mut members = a.members;
            b.members.iter().for_each(|&(i, n)| add(&mut members, i, n));
            parts.push(DeviceGroup { members, phase: phase(rng) });
        }
        3 if parts.len() > 1 => {
            let (a, b) = (rng.below(parts.len()), rng.below(parts.len()));
            let (instance, n) = parts[a].members[rng.below(parts[a].members.len())];
            let amount = 1 + rng.below(usize::from(n)) as u16;
            if a == b {
                return None;
            }
            take(&mut parts[a].members, instance, amount);
            add(&mut parts[b].members, instance, amount);
        }
        _ => return None,
    }
    parts.iter().all(|p| may_be_group(problem, &p.members)).then(|| Grouping::new(parts))
}
