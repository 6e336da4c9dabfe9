//! A plan from elsewhere: read, checked against the cluster, and rated as ours are.
//!
//! What `tsnode plan --cluster … --json` prints can be given back; by hand a group is its phase and its stages, and
//! nothing else is needed:
//!
//! ```json
//! {"groups": [{"phase": "prefill", "stages": [{"host": "a40-0", "tp": 2, "layers": 60}]},
//!             {"phase": "decode", "stages": [{"host": "a6000-0", "tp": 4, "layers": 60}]}],
//!  "routes": [{"prefill": 0, "decode": 1, "share": 1.0}]}
//! ```
//!
//! `layers` is how many or which (`{"start": 0, "end": 60}`); a host with two kinds of devices wants `gpu` too. Without
//! routes requests are shared out as the scheduler would.

use serde::Deserialize;
use std::collections::BTreeMap;
use tsnode_coordinator::scheduler::{
    cluster::InstanceId,
    cost::StageEnds,
    evaluate::{Evaluation, Evaluator, GroupNo, RouteShare},
    parallel::{self, InstanceDevices, ParallelStage},
    problem::Problem,
};
use tsnode_protocol::{Phase, Tokens};

/// Shares may add up to this much more than one: they were rounded when printed.
const ROUNDED: f64 = 1e-6;

/// A plan as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Written {
    /// Its groups.
    pub groups: Vec<WrittenGroup>,
    /// Who sends to whom; nothing leaves that to the scheduler.
    #[serde(default)]
    pub routes: Vec<WrittenRoute>,
}

/// A group as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct WrittenGroup {
    /// What it does.
    pub phase: Phase,
    /// Its stages, in order.
    pub stages: Vec<WrittenStage>,
}

/// A stage as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct WrittenStage {
    /// The host.
    pub host: String,
    /// The kind of its devices; may be left out where the host has one kind.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Devices side by side.
    pub tp: u16,
    /// Layers here.
    pub layers: WrittenLayers,
}

/// Layers as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "layers are a number of them, or a start and an end")]
pub enum WrittenLayers {
    /// So many, after those of the stage before.
    Count(u32),
    /// These.
    Range {
        /// The first.
        start: u32,
        /// One past the last.
        end: u32,
    },
}

/// A route as written, groups counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct WrittenRoute {
    /// Place of the prefill group.
    pub prefill: usize,
    /// Place of the decode group.
    pub decode: usize,
    /// Share of all requests.
    pub share: f64,
}

/// Why a plan does not fit a cluster. Groups and stages are counted from 1, as they are printed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FixedPlanError {
    /// Nothing in it.
    #[error("the plan has no groups")]
    Empty,
    /// One group of it.
    #[error("group {group}: {what}")]
    Group {
        /// Which.
        group: usize,
        /// What is wrong.
        what: String,
    },
    /// One route of it.
    #[error("route {route}: {what}")]
    Route {
        /// Which.
        route: usize,
        /// What is wrong.
        what: String,
    },
}

/// A plan on an evaluator's shelf.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedPlan {
    /// Its groups.
    pub groups: Vec<GroupNo>,
    /// What it is worth.
    pub evaluation: Evaluation,
}

/// Puts a plan on the shelf and rates it.
///
/// # Errors
/// The first group or route that the cluster and the model do not allow.
pub fn given(evaluator: &mut Evaluator<'_>, written: &Written) -> Result<FixedPlan, FixedPlanError> {
    if written.groups.is_empty() {
        return Err(FixedPlanError::Empty);
    }
    let problem = evaluator.problem();
    let mut used: BTreeMap<InstanceId, u16> = BTreeMap::new();
    let mut groups = Vec::with_capacity(written.groups.len());
    for (place, group) in written.groups.iter().enumerate() {
        let wrong = |what: String| FixedPlanError::Group { group: place + 1, what };
        let stages = stages(problem, group).map_err(wrong)?;
        let members = members(&stages);
        for &(instance, n) in &members {
            let all = used.entry(instance).or_insert(0);
            *all = all.saturating_add(n);
            let there = problem.cluster.instance(instance).count;
            if *all > there {
                let name = device(problem, instance);
                return Err(wrong(format!("{name}: the groups up to this one take {all} of {there} devices")));
            }
        }
        let config = parallel::given(problem, &stages, group.phase);
        let config = config.ok_or_else(|| wrong(too_little(problem, &stages)))?;
        groups.push(evaluator.shelve(members, group.phase, config));
    }
    let evaluation = if written.routes.is_empty() {
        evaluator.evaluate(&groups)
    } else {
        let shares = shares(evaluator, &groups, &written.routes)?;
        evaluator.rated(&groups, shares)
    };
    Ok(FixedPlan { groups, evaluation })
}

/// A group's stages, on devices that there are and with all of the model's layers in order.
fn stages(problem: &Problem, group: &WrittenGroup) -> Result<Vec<ParallelStage>, String> {
    let mut stages: Vec<ParallelStage> = Vec::with_capacity(group.stages.len());
    let (mut next, all) = (0u32, problem.model.shape.layers);
    for (place, written) in group.stages.iter().enumerate() {
        let place = place + 1;
        let instance = instance(problem, written).map_err(|what| format!("stage {place}: {what}"))?;
        let (start, end) = match written.layers {
            WrittenLayers::Count(n) => (next, next.saturating_add(n)),
            WrittenLayers::Range { start, end } => (start, end),
        };
        if start != next || end <= start || end > all {
            return Err(format!(
                "stage {place} has layers {start}..{end}: after {next} of {all} layers that cannot be"
            ));
        }
        let there = problem.cluster.instance(instance).count;
        if written.tp == 0 || written.tp > there {
            return Err(format!("stage {place}: {} devices of {}, which has {there}", written.tp, written.host));
        }
        if problem.layer_cost(instance, written.tp).is_none() {
            return Err(format!("stage {place}: {} cannot be cut for {} devices", problem.model.name, written.tp));
        }
        let is_cut_off = |before: &ParallelStage| !problem.cluster.path(before.instance, instance).is_open();
        if stages.last().is_some_and(is_cut_off) {
            return Err(format!("stage {place}: nothing gets through to {} from the stage before", written.host));
        }
        stages.push(ParallelStage { instance, tp: written.tp, layers: end - start });
        next = end;
    }
    if next < all {
        return Err(format!("its stages have {next} of {} {all} layers", possessive(&problem.model.name)));
    }
    Ok(stages)
}

fn possessive(name: &str) -> String {
    format!("{name}'s")
}

fn instance(problem: &Problem, stage: &WrittenStage) -> Result<InstanceId, String> {
    let cluster = &problem.cluster;
    let on_host = |i: &InstanceId| cluster.instance(*i).name == stage.host;
    let of_kind = |i: &InstanceId| stage.gpu.as_ref().is_none_or(|gpu| cluster.figures(*i).name == *gpu);
    let found: Vec<InstanceId> = cluster.ids().filter(on_host).filter(of_kind).collect();
    match (&found[..], &stage.gpu) {
        ([one], _) => Ok(*one),
        ([], Some(gpu)) => Err(format!("no {gpu} on a host {:?} in {}", stage.host, cluster.name)),
        ([], None) => Err(format!("no host {:?} in {}", stage.host, cluster.name)),
        _ => Err(format!("{:?} has several kinds of devices: say which gpu", stage.host)),
    }
}

fn members(stages: &[ParallelStage]) -> InstanceDevices {
    let mut members: BTreeMap<InstanceId, u16> = BTreeMap::new();
    for stage in stages {
        let n = members.entry(stage.instance).or_insert(0);
        *n = n.saturating_add(stage.tp);
    }
    members.into_iter().collect()
}

fn device(problem: &Problem, instance: InstanceId) -> String {
    format!("{} of {}", problem.cluster.figures(instance).name, problem.cluster.instance(instance).name)
}

/// Which stage's memory does not suffice.
fn too_little(problem: &Problem, stages: &[ParallelStage]) -> String {
    for (place, stage) in stages.iter().enumerate() {
        let ends = StageEnds { first: place == 0, last: place + 1 == stages.len() };
        let Some(cost) = problem.layer_cost(stage.instance, stage.tp) else { continue };
        if cost.kv_tokens(stage.layers, ends) <= Tokens(0.0) {
            return format!(
                "stage {}: {} layers of {} do not fit {}×{}, which hold {}",
                place + 1,
                stage.layers,
                problem.model.name,
                stage.tp,
                device(problem, stage.instance),
                cost.most_layers(Tokens(1.0), ends)
            );
        }
    }
    "its memory does not suffice".to_owned()
}

fn shares(
    evaluator: &mut Evaluator<'_>,
    groups: &[GroupNo],
    routes: &[WrittenRoute],
) -> Result<Vec<RouteShare>, FixedPlanError> {
    let mut shares: Vec<RouteShare> = Vec::with_capacity(routes.len());
    let mut sum = 0.0;
    for (place, &WrittenRoute { prefill, decode, share }) in routes.iter().enumerate() {
        let wrong = |what: String| FixedPlanError::Route { route: place + 1, what };
        let group = |g: usize| groups.get(g).copied().ok_or_else(|| wrong(format!("there is no group {}", g + 1)));
        let (from, to) = (group(prefill)?, group(decode)?);
        let phase = |g: GroupNo| evaluator.shelved(g).rated.phase;
        let may_be = match (phase(from), phase(to)) {
            (Phase::Mixed, Phase::Mixed) => prefill == decode,
            (from, to) => from == Phase::Prefill && to == Phase::Decode,
        };
        if !may_be {
            let (from, to) = (phase(from), phase(to));
            return Err(wrong(format!("from group {} ({from}) to group {} ({to})", prefill + 1, decode + 1)));
        }
        if prefill != decode && !evaluator.way(from, to).is_open() {
            return Err(wrong(format!("nothing gets through from group {} to group {}", prefill + 1, decode + 1)));
        }
        sum += share;
        if !(share > 0.0 && sum <= 1.0 + ROUNDED) {
            return Err(wrong(format!("a share of {share}: shares are above 0 and together at most 1")));
        }
        if shares.iter().any(|s| (s.prefill, s.decode) == (prefill, decode)) {
            return Err(wrong(format!("a second one from group {} to group {}", prefill + 1, decode + 1)));
        }
        shares.push(RouteShare { prefill, decode, share, kept: 0.0 });
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines;
    use tsnode_coordinator::scheduler::{
        Slo, Space, Workload, cluster_file, figures::Column, public_models, slo::Reference,
    };

    fn problem() -> Problem {
        let text = cluster_file::SHIPPED.iter().find(|(n, _)| *n == "cloud32").unwrap().1;
        let cluster = cluster_file::read(text, Column::Vendor, None).unwrap();
        let model = public_models::by_name("LLaMA-30B").unwrap();
        let reference = Reference::a100(&model, Column::Vendor).unwrap();
        let workload = Workload::named("conversation").unwrap();
        Problem::new(cluster, model, workload, 3.0, Slo::e2e(5.0), reference, Space::default()).unwrap()
    }

    fn stage(host: &str, tp: u16, layers: u32) -> WrittenStage {
        WrittenStage { host: host.into(), gpu: None, tp, layers: WrittenLayers::Count(layers) }
    }

    /// Stages as host, devices and layers.
    type Stages<'a> = &'a [(&'a str, u16, u32)];

    fn group(phase: Phase, stages: Stages<'_>) -> WrittenGroup {
        WrittenGroup { phase, stages: stages.iter().map(|&(h, tp, l)| stage(h, tp, l)).collect() }
    }

    fn pair() -> Written {
        Written {
            groups: vec![
                group(Phase::Prefill, &[("a40-0", 2, 60)]),
                group(Phase::Decode, &[("a6000-0", 2, 30), ("a6000-0", 2, 30)]),
            ],
            routes: Vec::new(),
        }
    }

    /// The paper's plan, written down and read again, is the paper's plan; by its own shares it is worth no more than by
    /// the best ones.
    #[test]
    fn a_plan_written_down_is_the_plan_it_was() {
        let problem = problem();
        let mut evaluator = Evaluator::new(&problem);
        let groups = baselines::thunderserve(&mut evaluator, "conversation").unwrap();
        let best = evaluator.evaluate(&groups);
        let stage = |s: &ParallelStage| WrittenStage {
            host: problem.cluster.instance(s.instance).name.clone(),
            gpu: Some(problem.cluster.figures(s.instance).name.clone()),
            tp: s.tp,
            layers: WrittenLayers::Count(s.layers),
        };
        let rated = |g: &GroupNo| &evaluator.shelved(*g).rated;
        let written = |g: &GroupNo| WrittenGroup {
            phase: rated(g).phase,
            stages: rated(g).config.stages.iter().map(stage).collect(),
        };
        let mut plan = Written { groups: groups.iter().map(written).collect(), routes: Vec::new() };
        let free = given(&mut Evaluator::new(&problem), &plan).unwrap();
        assert_eq!(free.evaluation, best);
        let route = |s: &RouteShare| WrittenRoute { prefill: s.prefill, decode: s.decode, share: s.share };
        plan.routes = best.shares.iter().map(route).collect();
        let tied = given(&mut Evaluator::new(&problem), &plan).unwrap();
        // Loads are rounded up to steps, the best's ceilings are not always reached.
        assert!((tied.evaluation.attainment - best.attainment).abs() < 0.03, "{}", tied.evaluation.attainment);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let problem = problem();
        let error = |plan: &Written| given(&mut Evaluator::new(&problem), plan).unwrap_err().to_string();
        let with = |place: usize, group: WrittenGroup| {
            let mut plan = pair();
            plan.groups[place] = group;
            error(&plan)
        };
        assert_eq!(error(&Written { groups: vec![], routes: vec![] }), "the plan has no groups");
        let cases: [(Stages<'_>, &str); 7] = [
            (&[("b40-0", 2, 60)], "group 1: stage 1: no host \"b40-0\" in cloud32"),
            (&[("a40-0", 2, 40)], "group 1: its stages have 40 of LLaMA-30B's 60 layers"),
            (&[("a40-0", 2, 40), ("a40-0", 2, 40)], "group 1: stage 2 has layers 40..80"),
            (&[("a40-0", 9, 60)], "group 1: stage 1: 9 devices of a40-0, which has 8"),
            (&[("a40-0", 3, 60)], "group 1: stage 1: LLaMA-30B cannot be cut for 3 devices"),
            (&[("a40-0", 1, 60)], "group 1: stage 1: 60 layers of LLaMA-30B do not fit 1×A40 of a40-0, which hold 3"),
            (
                &[("a6000-0", 1, 30), ("a6000-0", 1, 30)],
                "group 2: A6000 of a6000-0: the groups up to this one take 6 of 4",
            ),
        ];
        for (stages, reason) in cases {
            let found = with(0, group(Phase::Prefill, stages));
            assert!(found.starts_with(reason), "{found}");
        }
        let routed = |routes: &[(usize, usize, f64)]| {
            let route = |&(prefill, decode, share): &(usize, usize, f64)| WrittenRoute { prefill, decode, share };
            error(&Written { routes: routes.iter().map(route).collect(), ..pair() })
        };
        assert_eq!(routed(&[(0, 2, 1.0)]), "route 1: there is no group 3");
        assert_eq!(routed(&[(1, 0, 1.0)]), "route 1: from group 2 (decode) to group 1 (prefill)");
        assert!(routed(&[(0, 1, 1.5)]).starts_with("route 1: a share of 1.5"));
        assert!(routed(&[(0, 1, f64::NAN)]).starts_with("route 1: a share of NaN"));
        assert_eq!(routed(&[(0, 1, 0.5), (0, 1, 0.5)]), "route 2: a second one from group 1 to group 2");
    }
}
