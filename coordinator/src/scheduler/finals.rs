//! The last candidates of a search, replayed request by request: closed forms choose who gets here, real queues choose
//! who wins (ThunderServe §3.3 estimates every pair by simulation; here only finalists are).

use super::{
    evaluate::Evaluator,
    moves::Grouping,
    problem::Problem,
    search::{Found, shelved},
};
use crate::simulator::{Replay, Report, replay};

/// A finalist must be this much better in the replay to beat the one the closed forms prefer: less is chance.
const MARGIN: f64 = 0.01;

/// The finalist that does best when replayed, and its replay.
#[must_use]
pub fn decide(problem: &Problem, mut found: Found, how: Replay) -> (Found, Report) {
    let mut evaluator = Evaluator::new(problem);
    let mut run = |grouping: &Grouping| {
        let groups = shelved(&mut evaluator, grouping)?;
        let evaluation = evaluator.evaluate(&groups);
        let report = replay(&mut evaluator, &groups, &evaluation, how);
        Some((evaluation, report))
    };
    let Some((_, mut best)) = run(&found.grouping) else { return (found, Report::default()) };
    for place in 0..found.runners_up.len() {
        let Some((evaluation, report)) = run(&found.runners_up[place].0) else { continue };
        if report.attainment > best.attainment + MARGIN {
            let beaten = (std::mem::take(&mut found.grouping), found.evaluation.value);
            found.grouping = std::mem::replace(&mut found.runners_up[place], beaten).0;
            (found.evaluation, best) = (evaluation, report);
        }
    }
    (found, best)
}
