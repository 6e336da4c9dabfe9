//! A plan as people and programs read it: groups, cuts, predicted times, routes, and what other plans lose.

use serde::Serialize;
use tsnode_coordinator::scheduler::{
    evaluate::{Evaluation, Evaluator, GroupNo},
    moves::{DeviceGroup, Grouping},
    parallel::InstanceDevices,
    problem::Problem,
    regions::Region,
    search::{Found, shelved},
};
use tsnode_protocol::{LayerRange, Phase};

/// A plan and its numbers.
#[derive(Clone, Debug, Serialize)]
pub struct PlanOutcome {
    /// The cluster's name.
    pub cluster: String,
    /// The model's name.
    pub model: String,
    /// The workload's name.
    pub workload: String,
    /// Requests a second.
    pub rate: f64,
    /// Targets.
    pub slo: String,
    /// Share of requests that keep them.
    pub attainment: f64,
    /// Share of requests that the plan carries at all.
    pub carried: f64,
    /// What plans are compared by.
    pub value: f64,
    /// No plan's attainment is above this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// The highest load planned for groups that prefill.
    pub prefill_load: f64,
    /// The highest load planned for groups that decode.
    pub decode_load: f64,
    /// The groups.
    pub groups: Vec<GroupLine>,
    /// Who sends to whom.
    pub routes: Vec<RouteLine>,
    /// Devices left out (`2×A5000 a5000-1`).
    pub idle: Vec<String>,
    /// Plans evaluated.
    pub evaluations: usize,
    /// The next best plans.
    pub runners_up: Vec<RunnerUp>,
}

/// A group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupLine {
    /// What it does.
    pub phase: Phase,
    /// Its devices (`4×A40 a40-0`).
    pub devices: Vec<String>,
    /// Its stages, in order.
    pub stages: Vec<StageLine>,
    /// Time for a prompt of average length, alone (s).
    pub prompt_s: f64,
    /// Time per token at the planned load (s).
    pub token_s: f64,
    /// Requests a second at full load.
    pub rate: f64,
    /// Most sequences at once.
    pub batch: u64,
    /// Tokens of KV that fit.
    pub kv_tokens: u64,
    /// Share of requests it prefills, X.
    pub prefills: f64,
    /// Share of requests it decodes.
    pub decodes: f64,
}

/// A stage.
#[derive(Clone, Debug, Serialize)]
pub struct StageLine {
    /// The host.
    pub host: String,
    /// The kind of its devices.
    pub gpu: String,
    /// Devices side by side.
    pub tp: u16,
    /// Layers here.
    pub layers: LayerRange,
}

/// A route.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RouteLine {
    /// Place of the prefill group.
    pub prefill: usize,
    /// Place of the decode group.
    pub decode: usize,
    /// Share of all requests, X_i·Y_ij.
    pub share: f64,
    /// Of the prefill group's requests, the share sent this way, Y_ij.
    pub of_prefill: f64,
    /// Share of these that keep their deadlines, D_ij.
    pub kept: f64,
    /// Time the KV of an average prompt takes, alone on its links (s).
    pub kv_s: f64,
}

/// A plan that was not chosen.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerUp {
    /// Its groups (`prefill 4×A40 a40-0`).
    pub groups: Vec<String>,
    /// Its value.
    pub value: f64,
    /// What it loses against the chosen one.
    pub loses: f64,
}

impl PlanOutcome {
    /// Regions' plans as one: their groups one after the other, each region's shares as its part of all requests.
    #[must_use]
    pub fn together(problem: &Problem, regions: &[Region]) -> Self {
        let mut all = Self::new(problem, &Found::default());
        for region in regions {
            let (one, share, before) = (Self::new(&region.problem, &region.found), region.share, all.groups.len());
            all.groups.extend(one.groups.into_iter().map(|g| GroupLine {
                prefills: g.prefills * share,
                decodes: g.decodes * share,
                ..g
            }));
            all.routes.extend(one.routes.into_iter().map(|r| RouteLine {
                prefill: r.prefill + before,
                decode: r.decode + before,
                share: r.share * share,
                ..r
            }));
            all.attainment += one.attainment * share;
            all.carried += one.carried * share;
            all.value += one.value * share;
            all.prefill_load = all.prefill_load.max(one.prefill_load);
            all.decode_load = all.decode_load.max(one.decode_load);
            all.evaluations += one.evaluations;
            all.idle.extend(one.idle);
        }
        all
    }

    /// What a search found, spelled out.
    #[must_use]
    pub fn new(problem: &Problem, found: &Found) -> Self {
        let mut evaluator = Evaluator::new(problem);
        let groups = shelved(&mut evaluator, &found.grouping).unwrap_or_default();
        let runner_up = |(grouping, value): &(Grouping, f64)| RunnerUp {
            groups: grouping
                .parts
                .iter()
                .map(|p| format!("{} {}", p.phase, names(problem, &p.members).join(" + ")))
                .collect(),
            value: *value,
            loses: found.evaluation.value - value,
        };
        Self {
            evaluations: found.evaluations,
            runners_up: found.runners_up.iter().map(runner_up).collect(),
            ..Self::of(&mut evaluator, &groups, &found.evaluation)
        }
    }

    /// Groups on an evaluator's shelf, spelled out with what they are worth together.
    #[must_use]
    pub fn of(evaluator: &mut Evaluator<'_>, groups: &[GroupNo], evaluation: &Evaluation) -> Self {
        let problem = evaluator.problem();
        let line = |place: usize| group_line(problem, evaluator, groups[place], place, evaluation);
        let lines: Vec<GroupLine> = (0..groups.len()).map(line).collect();
        let routes = evaluation.shares.iter().map(|s| {
            let prefills = lines[s.prefill].prefills;
            let kv_s = if s.prefill == s.decode {
                0.0
            } else {
                let way = evaluator.way(groups[s.prefill], groups[s.decode]);
                (way.latency + way.per_token * problem.workload.mean.prompt).0
            };
            let of_prefill = if prefills > 0.0 { s.share / prefills } else { 0.0 };
            RouteLine { prefill: s.prefill, decode: s.decode, share: s.share, of_prefill, kept: s.kept, kv_s }
        });
        let routes = routes.collect();
        let part = |g: &GroupNo| DeviceGroup {
            members: evaluator.shelved(*g).members.clone(),
            phase: evaluator.shelved(*g).rated.phase,
        };
        let grouping = Grouping::new(groups.iter().map(part).collect());
        Self {
            cluster: problem.cluster.name.clone(),
            model: problem.model.name.clone(),
            workload: problem.workload.name.clone(),
            rate: problem.rate,
            slo: problem.slo.to_string(),
            attainment: evaluation.attainment,
            carried: evaluation.carried(),
            value: evaluation.value,
            bound: None,
            prefill_load: evaluation.loads.0,
            decode_load: evaluation.loads.1,
            groups: lines,
            routes,
            idle: if groups.is_empty() { Vec::new() } else { names(problem, &grouping.idle(problem)) },
            evaluations: 0,
            runners_up: Vec::new(),
        }
    }
}

fn group_line(
    problem: &Problem,
    evaluator: &Evaluator<'_>,
    group: GroupNo,
    place: usize,
    evaluation: &Evaluation,
) -> GroupLine {
    let shelved = evaluator.shelved(group);
    let (config, m) = (&shelved.rated.config, &problem.workload.mean);
    let mut start = 0;
    let stage = |s: &tsnode_coordinator::scheduler::parallel::ParallelStage| {
        let layers = LayerRange { start, end: start + s.layers };
        start += s.layers;
        let host = problem.cluster.instance(s.instance).name.clone();
        StageLine { host, gpu: problem.cluster.figures(s.instance).name.clone(), tp: s.tp, layers }
    };
    let sum = |is: &dyn Fn(&tsnode_coordinator::scheduler::evaluate::RouteShare) -> bool| {
        evaluation.shares.iter().filter(|s| is(s)).fold(0.0, |sum, s| sum + s.share)
    };
    let decodes = sum(&|s| s.decode == place);
    let n = config.sequences(decodes * problem.rate * m.steps, m.context, 0.0).min(config.batch);
    GroupLine {
        phase: shelved.rated.phase,
        devices: names(problem, &shelved.members),
        stages: config.stages.iter().map(stage).collect(),
        prompt_s: problem.prompts.alone(config, shelved.rated.phase, m.prompt).0,
        token_s: config.iteration(n.max(1.0), m.context).0,
        rate: config.rate,
        batch: config.batch as u64,
        kv_tokens: config.kv_tokens.0.max(0.0) as u64,
        prefills: sum(&|s| s.prefill == place),
        decodes,
    }
}

fn names(problem: &Problem, members: &InstanceDevices) -> Vec<String> {
    let name = |&(i, n): &(tsnode_coordinator::scheduler::InstanceId, u16)| {
        format!("{n}×{} {}", problem.cluster.figures(i).name, problem.cluster.instance(i).name)
    };
    members.iter().map(name).collect()
}
