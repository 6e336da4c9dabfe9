//! Plan flow 4: makes a plan from a view of the swarm, by the simplest rule that is honest.
//!
//! A device that holds the whole model is a group of its own; devices that do not are joined into pipelines, layers in
//! proportion to memory. The fastest groups prefill, as many as the work of an average request asks for, the rest
//! decode. One group alone is mixed; so is everything where links carry KV slower than it could be computed.

use crate::{
    control::Members,
    cost::{self, PROMPT_TOKENS, Work},
    gate::{self, KvChoice},
    layout::Layout,
};
use std::collections::BTreeMap;
use tsnode_protocol::{BytesPerSecond, Group, LayerRange, ModelCard, ModelId, PeerId, Phase, Route, Seconds, Stage};

/// Part of a device's memory that weights may take; the rest is for KV pages and activations.
const WEIGHTS_AT_MOST: f64 = 0.8;

/// What a planner decides; the control machine adds epoch, term and parent.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The groups.
    pub groups: Vec<Group>,
    /// Who sends to whom.
    pub routes: Vec<Route>,
    /// Why.
    pub reason: String,
}

/// A device with a model.
#[derive(Clone, Copy, Debug)]
struct Place {
    peer: PeerId,
    device: u16,
    /// Memory for weights (bytes).
    memory: u64,
}

/// Of a plan's reason; names of models come from peers and may be long, in any script.
const REASON_CHARS: usize = 250;

/// Plans for every model some device has; a device serves the first of its peer's models.
#[must_use]
pub fn plan(members: &Members<'_>, layout: Option<&Layout>) -> Draft {
    let mut draft = Draft { groups: Vec::new(), routes: Vec::new(), reason: String::new() };
    for (card, places) in places(members) {
        let (groups, reason) = match layout {
            Some(layout) => (laid_out(card, places, layout, members), format!("as laid out: {layout}")),
            None => chosen(card, places, members),
        };
        draft.routes.extend(routes(&groups, members));
        draft.groups.extend(groups);
        if !draft.reason.is_empty() {
            draft.reason.push_str("; ");
        }
        draft.reason.push_str(&format!("{}: {reason}", card.name));
    }
    draft.reason = draft.reason.chars().take(REASON_CHARS).collect();
    draft
}

/// Devices by model, in the order of peer ids.
fn places<'m>(members: &Members<'m>) -> Vec<(&'m ModelCard, Vec<Place>)> {
    let mut by_model: BTreeMap<ModelId, (&ModelCard, Vec<Place>)> = BTreeMap::new();
    for (peer, advert) in members {
        let Some(card) = advert.models.first() else { continue };
        let entry = by_model.entry(card.id).or_insert((card, Vec::new()));
        for (device, d) in advert.devices.iter().enumerate() {
            let memory = (d.memory_bytes as f64 * WEIGHTS_AT_MOST) as u64;
            entry.1.push(Place { peer: *peer, device: device as u16, memory });
        }
    }
    by_model.into_values().collect()
}

fn chosen(card: &ModelCard, places: Vec<Place>, members: &Members<'_>) -> (Vec<Group>, String) {
    let all = card.shape.all_layers();
    let whole = card.shape.stage_bytes(all);
    let (large, small): (Vec<Place>, Vec<Place>) = places.into_iter().partition(|p| p.memory >= whole);
    let mut groups: Vec<Group> = large.iter().map(|p| Group::new(card.id, Phase::Mixed, vec![stage(p, all)])).collect();
    groups.extend(pipelines(card, small));
    let mut rated: Vec<(Group, Work)> =
        groups.into_iter().filter_map(|g| cost::work(&g, members).map(|w| (g, w))).collect();
    // Fastest first; equals by name, so that every peer that plans on this view plans the same.
    rated.sort_by(|a, b| a.1.prefill.total_cmp(&b.1.prefill).then(a.0.id.cmp(&b.0.id)));
    if rated.len() < 2 {
        return (rated.into_iter().map(|(g, _)| g).collect(), "one group, so it does both".into());
    }
    let n = prefill_count(&rated);
    let verdict = gate_between(card, &rated[0].0, &rated[rated.len() - 1].0, members);
    if let Some(verdict) = verdict.filter(|v| !pays(v)) {
        let groups = rated.into_iter().map(|(g, _)| g).collect();
        return (groups, format!("splitting does not pay ({verdict})"));
    }
    let phased = rated
        .into_iter()
        .enumerate()
        .map(|(i, (group, _))| Group { phase: if i < n { Phase::Prefill } else { Phase::Decode }, ..group });
    (phased.collect(), format!("the {n} fastest prefill, the rest decode"))
}

/// A prompt elsewhere costs its sending; a prompt here holds up what decodes here. Planned for a decode side with work.
fn pays(verdict: &gate::Verdict) -> bool {
    verdict.splits()
}

/// How many of the fastest groups prefill: as many as balance prompts against answers, one of each kind at least.
fn prefill_count(rated: &[(Group, Work)]) -> usize {
    let rate = |n: usize| {
        let prefill: f64 = rated[..n].iter().map(|(_, w)| 1.0 / w.prefill).sum();
        let decode: f64 = rated[n..].iter().map(|(_, w)| 1.0 / w.decode).sum();
        prefill.min(decode)
    };
    (1..rated.len()).max_by(|a, b| rate(*a).total_cmp(&rate(*b)).then(b.cmp(a))).unwrap_or(1)
}

fn gate_between(card: &ModelCard, from: &Group, to: &Group, members: &Members<'_>) -> Option<gate::Verdict> {
    let (from, to) = (from.leader()?, to.leader()?);
    let link = members.get(&from)?.links.iter().find(|l| l.to == to);
    let side = |peer: PeerId, running| {
        let flops = members.get(&peer)?.devices.first()?.flops;
        Some(gate::Side { flops, pending_tokens: 0, running })
    };
    let case = gate::Case {
        shape: card.shape,
        tokens: PROMPT_TOKENS.min(card.shape.context),
        remote: side(from, 0)?,
        local: side(to, 1)?,
        latency: link.map_or(Seconds(1e-3), |l| l.latency),
        bandwidth: link.map_or(BytesPerSecond(125e6), |l| l.bandwidth),
        element_bytes: 2,
    };
    Some(gate::weigh(&case, KvChoice::Auto))
}

/// Joins devices, largest first, into pipelines that hold the model; those left over hold nothing.
fn pipelines(card: &ModelCard, mut places: Vec<Place>) -> Vec<Group> {
    places.sort_by(|a, b| b.memory.cmp(&a.memory).then(a.peer.cmp(&b.peer)).then(a.device.cmp(&b.device)));
    let mut groups = Vec::new();
    let mut open: Vec<Place> = Vec::new();
    for place in places {
        // Two devices of one host belong to two groups: a ring visits each peer once.
        if open.iter().any(|p| p.peer == place.peer) {
            continue;
        }
        open.push(place);
        if let Some(stages) = cut(card, &open) {
            groups.push(Group::new(card.id, Phase::Mixed, stages));
            open.clear();
        }
    }
    groups
}

/// Layers in proportion to memory, each device at least one, none more than it holds.
fn cut(card: &ModelCard, places: &[Place]) -> Option<Vec<Stage>> {
    let (layers, total) = (card.shape.layers, places.iter().map(|p| p.memory as f64).sum::<f64>());
    if places.len() > layers as usize {
        return None;
    }
    let mut stages = Vec::new();
    let (mut start, mut share) = (0, 0.0);
    for (i, place) in places.iter().enumerate() {
        share += place.memory as f64 / total;
        let left = (places.len() - 1 - i) as u32;
        let end = if left == 0 {
            layers
        } else {
            ((share * f64::from(layers)).round() as u32).clamp(start + 1, layers - left)
        };
        let range = LayerRange { start, end };
        if card.shape.stage_bytes(range) > place.memory {
            return None;
        }
        stages.push(stage(place, range));
        start = end;
    }
    Some(stages)
}

/// Groups as asked for, over peers in the order of their names, as far as peers and layers suffice.
fn laid_out(card: &ModelCard, mut places: Vec<Place>, layout: &Layout, members: &Members<'_>) -> Vec<Group> {
    places.sort_by_key(|p| (members.get(&p.peer).map(|a| a.name.clone()), p.peer, p.device));
    let mut rest = places.into_iter();
    let mut groups = Vec::new();
    for (phase, stages) in &layout.0 {
        let places: Vec<Place> = rest.by_ref().take(*stages).collect();
        if places.len() < *stages || *stages > card.shape.layers as usize {
            break;
        }
        groups.push(Group::new(card.id, *phase, even(card, &places)));
    }
    groups
}

/// Layers in equal parts; the first stages get what is left over.
fn even(card: &ModelCard, places: &[Place]) -> Vec<Stage> {
    let (layers, n) = (card.shape.layers, places.len() as u32);
    let mut start = 0;
    let mut stages = Vec::new();
    for (i, place) in places.iter().enumerate() {
        let end = start + layers / n + u32::from((i as u32) < layers % n);
        stages.push(stage(place, LayerRange { start, end }));
        start = end;
    }
    stages
}

fn stage(place: &Place, layers: LayerRange) -> Stage {
    Stage { peer: place.peer, device: place.device, layers }
}

/// Every prefill group sends to every decode group, in proportion to what both can do; mixed groups keep their own.
fn routes(groups: &[Group], members: &Members<'_>) -> Vec<Route> {
    let rate = |g: &Group, phase: Phase| {
        let work = cost::work(g, members);
        work.map_or(0.0, |w| match phase {
            Phase::Prefill => 1.0 / w.prefill,
            Phase::Decode => 1.0 / w.decode,
            Phase::Mixed => 1.0 / (w.prefill + w.decode),
        })
    };
    let of = |phase: Phase| groups.iter().filter(move |g| g.phase == phase);
    let sum = |phase| of(phase).map(|g| rate(g, phase)).sum::<f64>();
    let split = sum(Phase::Prefill).min(sum(Phase::Decode));
    let total = split + sum(Phase::Mixed);
    let mut routes = Vec::new();
    if total <= 0.0 {
        return routes;
    }
    for p in of(Phase::Prefill) {
        for d in of(Phase::Decode) {
            let x = rate(p, Phase::Prefill) / sum(Phase::Prefill);
            let y = rate(d, Phase::Decode) / sum(Phase::Decode);
            routes.push(Route { prefill: p.id, decode: d.id, share: (split / total * x * y).clamp(0.0, 1.0) });
        }
    }
    for m in of(Phase::Mixed) {
        let share = (rate(m, Phase::Mixed) / total).clamp(0.0, 1.0);
        routes.push(Route { prefill: m.id, decode: m.id, share });
    }
    routes
}
