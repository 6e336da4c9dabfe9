//! Lightweight rescheduling (ThunderServe §3.4): after a loss or a shift of the workload, phases and routes change,
//! groups and their stages stay, so nothing is loaded anew. And whether a full plan would repay its loading.

use super::{
    evaluate::{Evaluation, Evaluator, GroupNo},
    moves::phases,
    parallel::{InstanceDevices, ParallelConfig, flipped},
    problem::Problem,
};
use tsnode_protocol::{Phase, Seconds};

/// A group that stands.
#[derive(Clone, Debug, PartialEq)]
pub struct StandingGroup {
    /// How many devices of which instances.
    pub members: InstanceDevices,
    /// How they are used.
    pub config: ParallelConfig,
    /// What it does.
    pub phase: Phase,
}

/// New phases for standing groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Flipped {
    /// What each does now, in the order given.
    pub phases: Vec<Phase>,
    /// What that is worth.
    pub evaluation: Evaluation,
    /// What the old phases are worth, with routes made anew.
    pub before: Evaluation,
    /// Assignments of phases evaluated.
    pub evaluations: usize,
}

/// Flips phases of standing groups: single flips and exchanges of two, as long as one gains.
#[must_use]
pub fn reschedule(problem: &Problem, standing: &[StandingGroup]) -> Flipped {
    reschedule_within(problem, standing, usize::MAX)
}

/// The same with the best of so many assignments of phases: whoever waits for it serves nobody meanwhile.
#[must_use]
pub fn reschedule_within(problem: &Problem, standing: &[StandingGroup], most: usize) -> Flipped {
    let mut evaluator = Evaluator::new(problem);
    let choices = phases(problem);
    let shelf: Vec<Vec<(Phase, GroupNo)>> = standing.iter().map(|s| shelve(&mut evaluator, s, choices)).collect();
    let present = |phases: &[Phase]| -> Vec<GroupNo> {
        let of = |(group, phase): (&Vec<(Phase, GroupNo)>, &Phase)| group.iter().find(|g| g.0 == *phase).map(|g| g.1);
        shelf.iter().zip(phases).filter_map(of).collect()
    };
    let mut best: Vec<Phase> = standing.iter().map(|s| s.phase).collect();
    let before = evaluator.evaluate(&present(&best));
    let mut value = before.value;
    'search: loop {
        let gained = value;
        for next in near(&best, choices) {
            if evaluator.evaluations >= most {
                break 'search;
            }
            let worth = evaluator.evaluate(&present(&next)).value;
            if worth > value {
                (value, best) = (worth, next);
                break;
            }
        }
        if value <= gained {
            break;
        }
    }
    let evaluations = evaluator.evaluations;
    let evaluation = evaluator.evaluate(&present(&best));
    Flipped { phases: best, evaluation, before, evaluations }
}

fn shelve(evaluator: &mut Evaluator<'_>, standing: &StandingGroup, choices: &[Phase]) -> Vec<(Phase, GroupNo)> {
    let problem = evaluator.problem();
    let all = choices.iter().chain((!choices.contains(&standing.phase)).then_some(&standing.phase));
    all.map(|phase| (*phase, flipped(problem, &standing.config, *phase)))
        .map(|(phase, config)| (phase, evaluator.shelve(standing.members.clone(), phase, config)))
        .collect()
}

/// Assignments one flip or one exchange away.
fn near(present: &[Phase], choices: &[Phase]) -> Vec<Vec<Phase>> {
    let mut all = Vec::new();
    for (i, was) in present.iter().enumerate() {
        for phase in choices.iter().filter(|p| *p != was) {
            let mut next = present.to_vec();
            next[i] = *phase;
            all.push(next);
        }
    }
    for i in 0..present.len() {
        for j in i + 1..present.len() {
            if present[i] != present[j] {
                let mut next = present.to_vec();
                next.swap(i, j);
                all.push(next);
            }
        }
    }
    all
}

/// Whether a full plan repays its loading: what it keeps more over the time until the next plan, against what is not
/// served while the devices that change load. `full` and `light` are what the plan is worth and what is to be had with
/// nothing loaded, in one measure that grows as requests do that are in time; `changing` is a part of the devices.
#[must_use]
pub fn repays(full: f64, light: f64, changing: f64, loading: Seconds, horizon: Seconds) -> bool {
    let gain = (full - light) * (horizon.0 - loading.0).max(0.0);
    gain > light * changing * loading.0
}
