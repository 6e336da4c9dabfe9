//! A group's parallel configuration: its tensor-parallel degrees, stages, their order and their layers.
//!
//! ThunderServe App. B, Algorithm 2, over every choice of degrees per host: tensor parallelism stays inside one host and
//! one kind of device; a dynamic program orders the stages; layers are cut optimally within memory. Prefill takes the
//! configuration of least latency, decode that of most throughput.

pub use super::cluster::InstanceDevices;

use super::{
    cluster::InstanceId,
    cost::{Decode, LayerCost, Prefill, StageEnds},
    partition::{self, StageSlot},
    problem::{Problem, PromptChunking},
    room::{self, StageRoom},
    route::{self, PathObjective},
};
use tsnode_protocol::{Bytes, Phase, Seconds, Tokens};

/// Combinations of degrees looked at for one group.
const MOST_COMBINATIONS: usize = 256;
/// Sequences in a batch when the order of decode stages is chosen.
const TYPICAL_BATCH: f64 = 16.0;
/// Memory set aside for KV when layers are cut, in requests: what decode configurations are tried with.
const KV_RESERVES: [f64; 4] = [1.0, 4.0, 16.0, 48.0];

/// A stage of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParallelStage {
    /// The instance whose devices it is on.
    pub instance: InstanceId,
    /// Devices side by side.
    pub tp: u16,
    /// How many layers it has.
    pub layers: u32,
}

/// How a group's devices are used, and what that gives.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelConfig {
    /// In the order that activations pass.
    pub stages: Vec<ParallelStage>,
    /// One prompt through all stages, KV transfers included.
    pub latency: Prefill,
    /// How long one prompt keeps the slowest stage.
    pub busy: Prefill,
    /// One decode iteration of all sequences takes the longest of these: the way through all stages with the batch cut
    /// in as many parts as there are stages, and each stage busy with all parts.
    pub rounds: Vec<Decode>,
    /// Tokens of KV that fit.
    pub kv_tokens: Tokens,
    /// Most sequences at once: by memory, and by the time a token may take.
    pub batch: f64,
    /// Requests a second at full load, by phase.
    pub rate: f64,
}

impl ParallelConfig {
    /// Time of an iteration with `n` sequences of `context` tokens.
    #[must_use]
    pub fn iteration(&self, n: f64, context: Tokens) -> Seconds {
        self.rounds.iter().map(|r| r.time(n, context)).fold(Seconds(0.0), Seconds::max)
    }

    /// Sequences at which iterations, each giving every sequence a token, keep up with `tokens` tokens a second, when a
    /// part `taken` of the time goes elsewhere; infinite if none do.
    #[must_use]
    pub fn sequences(&self, tokens: f64, context: Tokens, taken: f64) -> f64 {
        let one = |r: &Decode| {
            let slope = tokens * (r.per_context * context + r.per_sequence).0 / (1.0 - taken);
            if slope >= 1.0 { f64::INFINITY } else { tokens * r.fixed.0 / (1.0 - taken) / (1.0 - slope) }
        };
        self.rounds.iter().map(one).fold(0.0, f64::max)
    }
}

/// The best configuration of these devices for a phase; `None` if they cannot hold the model.
#[must_use]
pub fn best(problem: &Problem, members: &[(InstanceId, u16)], phase: Phase) -> Option<ParallelConfig> {
    let memory: Bytes = members.iter().map(|&(i, n)| problem.usable(i, n)).sum();
    if members.is_empty() || memory < problem.least_memory() {
        return None;
    }
    let mut best: Option<(f64, ParallelConfig)> = None;
    let order = order(problem, members, phase);
    for degrees in combinations(problem, members) {
        for config in configurations(problem, members, &order, &degrees, phase) {
            let score = score(problem, &config, phase);
            if best.as_ref().is_none_or(|(s, _)| score > *s) {
                best = Some((score, config));
            }
        }
    }
    best.map(|(_, config)| config)
}

/// The same stages and layers serving another phase: what a flip without reloading weights gives.
#[must_use]
pub fn flipped(problem: &Problem, config: &ParallelConfig, phase: Phase) -> ParallelConfig {
    let cut: Vec<u32> = config.stages.iter().map(|s| s.layers).collect();
    configured(problem, &config.stages, &cut, phase)
}

/// Stages and layers as a plan gives them; `None` if they are not all of the model's, or do not fit.
#[must_use]
pub fn given(problem: &Problem, stages: &[ParallelStage], phase: Phase) -> Option<ParallelConfig> {
    let cut: Vec<u32> = stages.iter().map(|s| s.layers).collect();
    let whole = cut.iter().map(|l| u64::from(*l)).sum::<u64>() == u64::from(problem.model.shape.layers);
    let known = stages.iter().all(|s| problem.layer_cost(s.instance, s.tp).is_some() && s.layers > 0);
    let few = stages.len() <= problem.model.shape.most_stages() as usize;
    (whole && known && few).then(|| configured(problem, stages, &cut, phase)).filter(|c| c.kv_tokens > Tokens(0.0))
}

/// Every configuration of these devices.
#[must_use]
pub fn all(problem: &Problem, members: &[(InstanceId, u16)], phase: Phase) -> Vec<ParallelConfig> {
    let (combinations, order) = (combinations(problem, members), order(problem, members, phase));
    combinations.iter().flat_map(|degrees| configurations(problem, members, &order, degrees, phase)).collect()
}

/// Larger is better. A prompt's time and the time the next one waits for it; or requests a second.
fn score(problem: &Problem, config: &ParallelConfig, phase: Phase) -> f64 {
    match phase {
        Phase::Prefill => -(alone(problem, config) + mean(problem, &problem.prompts.packed(&config.busy))).0,
        Phase::Decode | Phase::Mixed => config.rate,
    }
}

/// Time for a prompt of the workload alone, on average.
fn alone(problem: &Problem, config: &ParallelConfig) -> Seconds {
    match problem.prompts {
        PromptChunking::Whole => mean(problem, &config.latency),
        chunks @ PromptChunking::Chunks { .. } => chunks.alone(config, Phase::Prefill, problem.workload.mean.prompt),
    }
}

/// Time for a prompt of the workload, on average.
#[must_use]
pub fn mean(problem: &Problem, cost: &Prefill) -> Seconds {
    let m = &problem.workload.mean;
    cost.mean(m.prompt, m.prompt_squared)
}

/// A degree for each kind of device, every way, instance by instance: hosts of one kind are cut alike, as Algorithm 2
/// cuts all of a group alike.
fn combinations(problem: &Problem, members: &[(InstanceId, u16)]) -> Vec<Vec<u16>> {
    let kind = |place: usize| problem.cluster.instance(members[place].0).kind;
    let mut all: Vec<Vec<u16>> = vec![Vec::new()];
    for (place, &(instance, count)) in members.iter().enumerate() {
        let before = (0..place).find(|&b| kind(b) == kind(place));
        let of_kind = || (0..members.len()).filter(|&o| kind(o) == kind(place));
        let choices = |head: &[u16]| -> Vec<u16> {
            match before {
                Some(before) => vec![head[before]],
                None => {
                    let fits = |d: &u16| of_kind().all(|o| members[o].1.is_multiple_of(*d));
                    problem.degrees(instance, count).filter(fits).collect()
                }
            }
        };
        let many = all.len() > MOST_COMBINATIONS;
        let more = |head: &Vec<u16>| {
            let mut degrees = choices(head);
            // With very many kinds, each is cut as little as can be.
            degrees.truncate(if many { 1 } else { degrees.len() });
            degrees.into_iter().map(|d| [head.as_slice(), &[d]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(more).collect();
    }
    all
}

fn configurations(
    problem: &Problem,
    members: &[(InstanceId, u16)],
    order: &[usize],
    degrees: &[u16],
    phase: Phase,
) -> Vec<ParallelConfig> {
    let mut stages: Vec<ParallelStage> = Vec::new();
    for &place in order {
        let ((instance, count), tp) = (members[place], degrees[place]);
        stages.extend((0..count / tp).map(|_| ParallelStage { instance, tp, layers: 0 }));
    }
    let few = stages.len() <= problem.model.shape.most_stages() as usize;
    if !(few && (problem.space.repeat_hosts || visits_once(problem, &stages))) {
        return Vec::new();
    }
    let found = in_order(problem, &stages, phase);
    if !found.is_empty() {
        return found;
    }
    // The best path may begin or end where there is no room for what comes on top there.
    roomiest_ends(problem, stages).map_or_else(Vec::new, |stages| in_order(problem, &stages, phase))
}

/// Every cut of these stages in their order.
fn in_order(problem: &Problem, stages: &[ParallelStage], phase: Phase) -> Vec<ParallelConfig> {
    if stages.windows(2).any(|w| !problem.cluster.path(w[0].instance, w[1].instance).is_open()) {
        return Vec::new();
    }
    let reserves: &[f64] = if phase == Phase::Prefill { &KV_RESERVES[..1] } else { &KV_RESERVES };
    let cuts = cuts(problem, stages, phase, reserves);
    cuts.iter().map(|cut| configured(problem, stages, cut, phase)).collect()
}

/// The same stages with those first and last that leave most room; `None` if they do not hold the model so either.
fn roomiest_ends(problem: &Problem, mut stages: Vec<ParallelStage>) -> Option<Vec<ParallelStage>> {
    let rooms: Option<Vec<StageRoom>> = stages.iter().map(|s| StageRoom::of(problem, s.instance, s.tp)).collect();
    let (first, last) = room::ends(&rooms?, problem.model.shape.layers)?;
    if first == last {
        return Some(stages);
    }
    let (head, tail) = (stages[first], stages[last]);
    stages.remove(first.max(last));
    stages.remove(first.min(last));
    stages.insert(0, head);
    stages.push(tail);
    Some(stages)
}

/// Whether no host has two stages.
fn visits_once(problem: &Problem, stages: &[ParallelStage]) -> bool {
    let name = |s: &ParallelStage| problem.cluster.instance(s.instance).name.as_str();
    (1..stages.len()).all(|i| stages[..i].iter().all(|s| name(s) != name(&stages[i])))
}

/// Hosts in the order of the best path; devices of one host follow each other.
fn order(problem: &Problem, members: &[(InstanceId, u16)], phase: Phase) -> Vec<usize> {
    if members.len() < 2 {
        return (0..members.len()).collect();
    }
    let rows = if phase == Phase::Prefill { problem.workload.mean.prompt.0 } else { TYPICAL_BATCH };
    let bytes = problem.model.row() * rows;
    let cost = |a: usize, b: usize| problem.cluster.path(members[a].0, members[b].0).time(bytes).0;
    route::best(members.len(), PathObjective::Total, cost).0
}

/// What layers take on each stage, and what tells how many it holds.
fn slots<'p>(
    problem: &'p Problem,
    stages: &[ParallelStage],
    phase: Phase,
) -> Option<Vec<(StageSlot, &'p LayerCost, StageEnds)>> {
    let m = &problem.workload.mean;
    let slot = |(i, stage): (usize, &ParallelStage)| {
        let cost = problem.layer_cost(stage.instance, stage.tp)?;
        let ends = ends(i, stages.len());
        let (one, none) = match phase {
            Phase::Prefill => (mean(problem, &cost.prefill), mean(problem, &cost.stage_prefill(0, ends))),
            Phase::Decode | Phase::Mixed => {
                let at = |d: Decode| d.time(TYPICAL_BATCH, m.context);
                (at(cost.decode), at(cost.stage_decode(0, ends)))
            }
        };
        Some((StageSlot { per_layer: one.0, on_top: none.0, most: 0 }, cost, ends))
    };
    stages.iter().enumerate().map(slot).collect()
}

/// Layers of each stage, with room for so many requests' KV at their longest.
fn cuts(problem: &Problem, stages: &[ParallelStage], phase: Phase, reserves: &[f64]) -> Vec<Vec<u32>> {
    let Some(known) = slots(problem, stages, phase) else { return Vec::new() };
    let cut = |requests: &f64| {
        let tokens = problem.tokens_of(*requests);
        let slot = |(slot, cost, ends): &(StageSlot, &LayerCost, StageEnds)| StageSlot {
            most: cost.most_layers(tokens, *ends),
            ..*slot
        };
        partition::cut(problem.model.shape.layers, &known.iter().map(slot).collect::<Vec<_>>())
    };
    let mut cuts: Vec<Vec<u32>> = reserves.iter().filter_map(cut).collect();
    cuts.dedup();
    cuts
}

fn ends(place: usize, stages: usize) -> StageEnds {
    StageEnds { first: place == 0, last: place + 1 == stages }
}

fn configured(problem: &Problem, stages: &[ParallelStage], cut: &[u32], phase: Phase) -> ParallelConfig {
    let (m, p) = (&problem.workload.mean, stages.len() as f64);
    let (mut latency, mut busy, mut way) = (Prefill::default(), Prefill::default(), Decode::default());
    let (mut rounds, mut kv_tokens) = (Vec::new(), Tokens(f64::INFINITY));
    let mut placed = Vec::with_capacity(stages.len());
    for (i, (stage, &layers)) in stages.iter().zip(cut).enumerate() {
        let ends = ends(i, stages.len());
        let Some(cost) = problem.layer_cost(stage.instance, stage.tp) else { continue };
        let (prefill, decode) = (cost.stage_prefill(layers, ends), cost.stage_decode(layers, ends));
        latency = latency.then(&prefill);
        // As rates have it: in chunks another stage may take longest than of whole prompts.
        let takes = |cost: &Prefill| mean(problem, &problem.prompts.packed(cost));
        if takes(&prefill) > takes(&busy) {
            busy = prefill;
        }
        way = way.then(&decode);
        rounds.push(Decode { fixed: decode.fixed * p, ..decode });
        kv_tokens = kv_tokens.min(cost.kv_tokens(layers, ends));
        // To the next stage; tokens from the last back to the first.
        let next = &stages[(i + 1) % stages.len()];
        if stages.len() > 1 {
            let path = problem.cluster.path(stage.instance, next.instance);
            let mut kv_transfer = Decode { fixed: path.latency, ..Decode::default() };
            if !ends.last {
                kv_transfer.per_sequence = problem.model.row() / path.bandwidth;
                let per_token = kv_transfer.per_sequence.per_token();
                latency = latency.then(&Prefill { fixed: path.latency, per_token, ..Prefill::default() });
            }
            way = way.then(&kv_transfer);
        }
        placed.push(ParallelStage { layers, ..*stage });
    }
    if stages.len() > 1 {
        rounds.push(Decode { fixed: way.fixed, per_context: way.per_context / p, per_sequence: way.per_sequence / p });
    }
    let mut config = ParallelConfig { stages: placed, latency, busy, rounds, kv_tokens, batch: 1.0, rate: 0.0 };
    config.batch = batch(&config, kv_tokens / problem.reserved().0, m.context, problem.step_budget);
    if problem.prompts != PromptChunking::Whole {
        // Nodes have whole places.
        config.batch = config.batch.floor().max(1.0);
    }
    config.rate = rate(problem, &config, phase);
    config
}

/// The most sequences that fit and whose iterations keep the budget; if one alone does not, as many as fit: tokens come
/// late then anyway.
fn batch(config: &ParallelConfig, fit: f64, context: Tokens, budget: Seconds) -> f64 {
    let by_time = |r: &Decode| (budget - r.fixed) / (r.per_context * context + r.per_sequence);
    let in_time = config.rounds.iter().map(by_time).fold(fit, f64::min);
    if in_time >= 1.0 { in_time } else { fit.max(1.0) }
}

/// Requests a second with a full batch, or one prompt after another.
fn rate(problem: &Problem, config: &ParallelConfig, phase: Phase) -> f64 {
    let m = &problem.workload.mean;
    let decoding = config.iteration(config.batch, m.context) * m.steps;
    let prefilling = mean(problem, &problem.prompts.packed(&config.busy));
    let batch = config.batch;
    match phase {
        Phase::Prefill => 1.0 / prefilling.0,
        Phase::Decode => batch / decoding.0,
        // Every prompt holds up the whole batch.
        Phase::Mixed => batch / (decoding + prefilling * batch).0,
    }
}
