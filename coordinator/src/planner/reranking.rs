//! The last candidates of a search, replayed request by request: closed forms choose who gets here, real queues choose
//! who wins (ThunderServe §3.3 estimates every pair by simulation; here only finalists are).

use crate::{
    replay::{Replay, ReplayReport, replay},
    scheduler::{
        evaluate::Evaluator,
        moves::Grouping,
        problem::Problem,
        search::{self, Effort, Found, shelved},
    },
};

/// A finalist must do this much better, divided by the root of the number of requests, to beat the one the closed forms
/// prefer: less is chance. All finalists get the same requests, which makes chance small.
const MARGIN: f64 = 0.3;

/// Plans a cluster that is planned whole: a search, then the replay of its best. What `tsnode plan --cluster` shows and
/// what the coordinator of a swarm does.
pub fn plan(
    problem: &Problem,
    seed: u64,
    effort: Effort,
    how: Replay,
    stop: &(dyn Fn() -> bool + Sync),
) -> (Found, ReplayReport) {
    decide(problem, search::search(problem, seed, effort, stop), how)
}

/// The finalist that does best when replayed, and its replay.
#[must_use]
pub fn decide(problem: &Problem, mut found: Found, how: Replay) -> (Found, ReplayReport) {
    let mut evaluator = Evaluator::new(problem);
    let mut run = |grouping: &Grouping| {
        let groups = shelved(&mut evaluator, grouping)?;
        let evaluation = evaluator.evaluate(&groups);
        let report = replay(&mut evaluator, &groups, &evaluation, how);
        Some((evaluation, report))
    };
    let Some((_, mut best)) = run(&found.grouping) else { return (found, ReplayReport::default()) };
    for place in 0..found.runners_up.len() {
        let Some((evaluation, report)) = run(&found.runners_up[place].0) else { continue };
        if report.attainment > best.attainment + MARGIN / (how.requests.max(1) as f64).sqrt() {
            let beaten = (std::mem::take(&mut found.grouping), found.evaluation.value);
            found.grouping = std::mem::replace(&mut found.runners_up[place], beaten).0;
            (found.evaluation, best) = (evaluation, report);
        }
    }
    (found, best)
}
