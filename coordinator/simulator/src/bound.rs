//! Upper bounds on what any plan can keep, so that a plan comes with its gap.
//!
//! Two: [`apart`] values each group on its own, and packs whole ones, in milliseconds; [`joint`] values groups in pairs, with both
//! phases' times against one deadline and with the links between them, and lets groups be taken in part, in seconds.

mod apart;
mod columns;
mod groups;
mod joint;
mod simplex;

use tsnode_coordinator::scheduler::problem::Problem;

/// No plan keeps more than this share of requests, as is known at once; `None` where the cluster is too large or too varied to say.
#[must_use]
pub fn attainment(problem: &Problem) -> Option<f64> {
    apart::attainment(problem)
}

/// The least that is known to be no less than what any plan keeps, where one is known that keeps so much (zero, if none is):
/// what cannot be better is not looked at closer. Takes seconds for some thirty devices.
#[must_use]
pub fn attainment_beyond(problem: &Problem, known: f64) -> Option<f64> {
    let all = [apart::attainment(problem), joint::attainment(problem, known)];
    all.into_iter().flatten().reduce(f64::min)
}
