//! Plan flow 4: makes a plan from a view of the swarm: the scheduler's, or the groups a person laid out.

use crate::{
    control::Members,
    gate::SplitChoice,
    layout::Layout,
    scheduler::live::{self, Scene},
};
use std::fmt;
use tsnode_protocol::{Group, LayerRange, ModelCard, PeerId, Plan, Route, Stage};

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

/// What a planner is told to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wish {
    /// Groups to form, if not the scheduler's choice.
    pub layout: Option<Layout>,
    /// Whether groups that do both may be.
    pub split: SplitChoice,
}

/// Makes plans from views, and values them. Whoever has one view has one answer: peers must come to the same values.
pub trait Planner: fmt::Debug + Send + Sync {
    /// A plan for everybody.
    fn plan(&self, members: &Members<'_>, wish: &Wish) -> Draft;
    /// What stands of a plan after a loss, with nothing to load; `None` if that does not serve every model.
    fn flip(&self, plan: &Plan, members: &Members<'_>, wish: &Wish) -> Option<Draft>;
    /// What a plan is worth.
    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &Wish) -> f64;
}

/// The scheduler of this crate: [`plan`], [`flip`] and [`value`].
#[derive(Clone, Copy, Debug)]
pub struct Scheduler;

impl Planner for Scheduler {
    fn plan(&self, members: &Members<'_>, wish: &Wish) -> Draft {
        plan(members, wish)
    }

    fn flip(&self, old: &Plan, members: &Members<'_>, wish: &Wish) -> Option<Draft> {
        flip(old, members, wish)
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &Wish) -> f64 {
        value(plan, members, wish)
    }
}

/// A device with a model.
#[derive(Clone, Copy, Debug)]
struct Place {
    peer: PeerId,
    device: u16,
}

/// Of a plan's reason; names of models come from peers and may be long, in any script.
const REASON_CHARS: usize = 250;

/// Plans for every model some device has; a device serves the first of its peer's models.
#[must_use]
pub fn plan(members: &Members<'_>, wish: &Wish) -> Draft {
    let parts = live::scenes(members, wish.split).into_iter().map(|scene| {
        let part = match &wish.layout {
            Some(layout) => as_laid_out(&scene, layout, members),
            None => scene.plan(),
        };
        (scene, part)
    });
    joined(parts.collect())
}

/// After a loss: what stands of a plan, phases and routes made anew, nothing to load. `None` if some model would be left
/// without a group, or a person laid the groups out.
#[must_use]
pub fn flip(plan: &Plan, members: &Members<'_>, wish: &Wish) -> Option<Draft> {
    if wish.layout.is_some() {
        return None;
    }
    let parts = live::scenes(members, wish.split).into_iter().map(|scene| {
        let part = scene.flipped(&plan.groups)?;
        Some((scene, part))
    });
    parts.collect::<Option<Vec<_>>>().map(joined).filter(|draft| !draft.groups.is_empty())
}

fn joined(parts: Vec<(Scene, live::Part)>) -> Draft {
    let mut draft = Draft { groups: Vec::new(), routes: Vec::new(), reason: String::new() };
    for (scene, part) in parts {
        draft.routes.extend(part.routes);
        draft.groups.extend(part.groups);
        if !draft.reason.is_empty() {
            draft.reason.push_str("; ");
        }
        draft.reason.push_str(&format!("{}: {}", scene.card.name, part.reason));
    }
    draft.reason = draft.reason.chars().take(REASON_CHARS).collect();
    draft
}

/// What a plan is worth on a view: what peers compare before they endorse it.
#[must_use]
pub fn value(plan: &Plan, members: &Members<'_>, wish: &Wish) -> f64 {
    live::value(plan, members, wish.split)
}

fn as_laid_out(scene: &Scene, layout: &Layout, members: &Members<'_>) -> live::Part {
    let places = scene.places().iter().map(|&(peer, device)| Place { peer, device });
    let groups = laid_out(&scene.card, places.collect(), layout, members);
    let routes = scene.routes(&groups);
    live::Part { groups, routes, reason: format!("as laid out: {layout}") }
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
