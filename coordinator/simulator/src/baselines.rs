//! Other systems' plans under the same evaluator: what they would do with the same devices.

pub mod algorithm1;
pub mod exhaustive;
pub mod hexgen;

use tsnode_coordinator::scheduler::{
    cluster::InstanceId,
    evaluate::{Evaluation, Evaluator, GroupNo, RouteShare},
    moves::{DeviceGroup, Grouping, may_be_group},
    parallel::{self, InstanceDevices},
    problem::{Problem, Space},
    search::{self, Effort, Found},
};
use tsnode_protocol::Phase;

/// One replica per host, both phases on it, every device of the host side by side or in line: data parallel serving
/// as vLLM does it. Hosts that cannot hold the model stand idle.
#[must_use]
pub fn replica_per_host(problem: &Problem) -> Grouping {
    let whole = |id: InstanceId| vec![(id, problem.cluster.instance(id).count)];
    let hosts = problem.cluster.ids().map(whole).filter(|m| may_be_group(problem, m));
    Grouping::new(hosts.map(|members| DeviceGroup { members, phase: Phase::Mixed }).collect())
}

/// Uneven devices, asymmetric parallelism, no phases: what HexGen searches.
#[must_use]
pub fn without_phases(problem: &Problem, seed: u64, effort: Effort) -> Found {
    let alike = problem.within(Space { phases: false, mixed: true, ..problem.space });
    search::search(&alike, seed, effort, &|| false)
}

/// Phases on equal devices, one parallel configuration for all prefill groups and one for all decode groups, every
/// device used: what DistServe searches on one kind of device.
#[must_use]
pub fn uniform(problem: &Problem) -> Found {
    let mut evaluator = Evaluator::new(problem);
    let mut best = Found::default();
    let host = InstanceId(0);
    let devices = problem.cluster.instance(host).count;
    for prefill in 1..=devices {
        for decode in 1..=devices {
            for groups in 1..=devices / prefill {
                let left = devices - groups * prefill;
                if left == 0 || !left.is_multiple_of(decode) {
                    continue;
                }
                let part = |n: u16, phase| DeviceGroup { members: vec![(host, n)], phase };
                let parts = (0..groups).map(|_| part(prefill, Phase::Prefill));
                let parts = parts.chain((0..left / decode).map(|_| part(decode, Phase::Decode)));
                let grouping = Grouping::new(parts.collect());
                let Some(shelf) = search::shelved(&mut evaluator, &grouping) else { continue };
                let evaluation = evaluator.evaluate(&shelf);
                if best.grouping.parts.is_empty() || evaluation.value > best.evaluation.value {
                    (best.grouping, best.evaluation) = (grouping, evaluation);
                }
            }
        }
    }
    best.evaluations = evaluator.evaluations;
    best
}

/// The same groups, every prefill group sending to every decode group alike: no orchestration (ThunderServe Fig. 12).
#[must_use]
pub fn dispatched_at_random(evaluator: &mut Evaluator<'_>, groups: &[GroupNo], plan: &Evaluation) -> Evaluation {
    let phase = |k: &usize| evaluator.shelved(groups[*k]).rated.phase;
    let with = |wanted: &[Phase]| (0..groups.len()).filter(|k| wanted.contains(&phase(k))).collect::<Vec<_>>();
    let (first, decode) = (with(&[Phase::Prefill, Phase::Mixed]), with(&[Phase::Decode]));
    let mut shares = Vec::new();
    for &p in &first {
        let x = 1.0 / first.len() as f64;
        if phase(&p) == Phase::Mixed || decode.is_empty() {
            shares.push(RouteShare { prefill: p, decode: p, share: x, kept: 0.0 });
            continue;
        }
        let share = x / decode.len() as f64;
        shares.extend(decode.iter().map(|&d| RouteShare { prefill: p, decode: d, share, kept: 0.0 }));
    }
    Evaluation { shares, ..plan.clone() }
}

/// A replica of a paper's plan: so many devices of these hosts, in stages of `tp` side by side.
type Replica = (Phase, &'static [(&'static str, u16)], u16);

/// ThunderServe Table 3 and App. F on cloud32. Which host of two alike serves what is not said; those of one zone are
/// put together here.
const CODING: [Replica; 12] = [
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a5000-1", 4)], 4),
    (Phase::Prefill, &[("a6000-0", 2)], 2),
    (Phase::Prefill, &[("a6000-0", 2)], 2),
    (Phase::Prefill, &[("a5000-0", 2), ("3090ti-0", 2)], 2),
    (Phase::Decode, &[("3090ti-1", 4)], 2),
    (Phase::Decode, &[("a6000-1", 2)], 1),
    (Phase::Decode, &[("a6000-1", 2)], 1),
    (Phase::Decode, &[("a5000-0", 2), ("3090ti-0", 2)], 2),
];
const CONVERSATION: [Replica; 12] = [
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a40-0", 2)], 2),
    (Phase::Prefill, &[("a5000-0", 2), ("3090ti-0", 2)], 2),
    (Phase::Decode, &[("3090ti-1", 4)], 2),
    (Phase::Decode, &[("a40-0", 2)], 1),
    (Phase::Decode, &[("a5000-1", 4)], 2),
    (Phase::Decode, &[("a6000-0", 2)], 1),
    (Phase::Decode, &[("a6000-0", 2)], 1),
    (Phase::Decode, &[("a6000-1", 2)], 1),
    (Phase::Decode, &[("a6000-1", 2)], 1),
    (Phase::Decode, &[("a5000-0", 2), ("3090ti-0", 2)], 2),
];

/// The paper's own plan for `coding` or `conversation`, on a cluster with cloud32's hosts.
pub fn thunderserve(evaluator: &mut Evaluator<'_>, workload: &str) -> Option<Vec<GroupNo>> {
    let replicas = match workload {
        "coding" => &CODING,
        "conversation" => &CONVERSATION,
        _ => return None,
    };
    replicas.iter().map(|replica| shelve(evaluator, replica)).collect()
}

fn shelve(evaluator: &mut Evaluator<'_>, &(phase, hosts, tp): &Replica) -> Option<GroupNo> {
    let problem = evaluator.problem();
    let place = |name: &str| problem.cluster.ids().find(|i| problem.cluster.instance(*i).name == name);
    let members: Option<InstanceDevices> = hosts.iter().map(|&(name, n)| Some((place(name)?, n))).collect();
    let mut members = members?;
    members.sort_unstable();
    let configs = parallel::all(problem, &members, phase);
    let config = configs.into_iter().find(|c| c.stages.iter().all(|s| s.tp == tp))?;
    Some(evaluator.shelve(members, phase, config))
}
