//! Plan flow 4: makes a plan from a view of the swarm: the scheduler's, or the groups a person laid out.

pub mod fetching;
mod light;
pub mod live;
pub mod reranking;
pub mod spare_routes;

pub use light::{flip, grow};

use crate::{cards, gate::SplitChoice, layout::GroupLayout, members::Members};
use live::SearchInput;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tsnode_protocol::{Group, LayerRange, ModelCard, ModelId, PeerId, Phase, Plan, PolicyChoice, Route, Stage};

/// What a planner decides; the control machine adds epoch, term and parent.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanDraft {
    /// Groups of all models.
    pub groups: Vec<Group>,
    /// Who sends to whom.
    pub routes: Vec<Route>,
    /// How requests are routed and steps formed for models of which that is chosen by measurement.
    pub chosen: Vec<PolicyChoice>,
    /// Why this plan, for people.
    pub reason: String,
}

/// What a planner is told to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanOptions {
    /// Groups to form, if not the scheduler's choice.
    pub layout: Option<GroupLayout>,
    /// Whether groups that do both may be.
    pub split: SplitChoice,
}

/// Makes plans from views, and values them. Whoever has one view has one answer: peers must come to the same values.
pub trait Planner: fmt::Debug + Send + Sync {
    /// A plan for everybody, made while `standing` is in force.
    fn plan(&self, members: &Members<'_>, wish: &PlanOptions, standing: Option<&Plan>) -> PlanDraft;
    /// What stands of a plan after a loss, with nothing to load; `None` if that does not serve every model.
    fn flip(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft>;
    /// The same with devices that have no part in the plan in groups of their own beside it.
    fn grow(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft>;
    /// What a plan is worth.
    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> f64;
    /// How requests are to be routed and steps formed on a draft, for models of which members have left that to measurement;
    /// `before` is what was chosen until now.
    fn choose(
        &self,
        draft: &PlanDraft,
        members: &Members<'_>,
        wish: &PlanOptions,
        before: &[PolicyChoice],
    ) -> Vec<PolicyChoice> {
        let _ = (draft, members, wish, before);
        Vec::new()
    }
}

/// The scheduler of this crate: [`plan`], [`flip`], [`grow`], [`value`] and [`live::choose`].
#[derive(Clone, Copy, Debug)]
pub struct Scheduler;

impl Planner for Scheduler {
    fn plan(&self, members: &Members<'_>, wish: &PlanOptions, standing: Option<&Plan>) -> PlanDraft {
        plan(members, wish, standing)
    }

    fn flip(&self, old: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        flip(old, members, wish)
    }

    fn grow(&self, old: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        grow(old, members, wish)
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> f64 {
        value(plan, members, wish)
    }

    fn choose(
        &self,
        draft: &PlanDraft,
        members: &Members<'_>,
        wish: &PlanOptions,
        before: &[PolicyChoice],
    ) -> Vec<PolicyChoice> {
        live::choose(&draft.groups, &draft.routes, members, wish.split, before)
    }
}

/// A device with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelPlace {
    peer: PeerId,
    device: u16,
}

/// Of a plan's reason; names of models come from peers and may be long, in any script.
const REASON_CHARS: usize = 250;

/// Plans for every model some device has; a device may have groups of several. Groups that a person laid out and that stand are
/// left alone.
#[must_use]
pub fn plan(members: &Members<'_>, wish: &PlanOptions, standing: Option<&Plan>) -> PlanDraft {
    let inputs = live::inputs_under(members, wish.split, standing.map_or(&[][..], |plan| &plan.chosen));
    let Some(layout) = &wish.layout else { return joined(live::planned(inputs, standing)) };
    let laid_out = |input: SearchInput| {
        let part = as_laid_out(&input, layout, members, standing);
        (input, part)
    };
    joined(at_once(inputs.into_iter().map(laid_out).collect(), &[], members))
}

/// Those parts whose models devices have memory for at once: beside these groups, and then the first ones first. Where a model's
/// new groups are too much, those of these that are its own stay.
fn at_once(
    parts: Vec<(SearchInput, live::ModelPlan)>,
    beside: &[Group],
    members: &Members<'_>,
) -> Vec<(SearchInput, live::ModelPlan)> {
    let places = |groups: &[Group]| -> BTreeSet<(PeerId, u16)> {
        groups.iter().flat_map(|g| &g.stages).map(|s| (s.peer, s.device)).collect()
    };
    let mut models: BTreeMap<(PeerId, u16), BTreeSet<ModelId>> = BTreeMap::new();
    for group in beside {
        places(std::slice::from_ref(group))
            .into_iter()
            .for_each(|at| _ = models.entry(at).or_default().insert(group.model));
    }
    let mut kept = Vec::with_capacity(parts.len());
    for (input, part) in parts {
        let model = input.card.id;
        let has_room = |at: &(PeerId, u16)| {
            let device = members.get(&at.0).and_then(|advert| advert.devices.get(usize::from(at.1)));
            let mut all = models.get(at).cloned().unwrap_or_default();
            all.insert(model);
            device.is_none_or(|device| device.holds(&all))
        };
        let fits = |part: &live::ModelPlan| places(&part.groups).iter().all(has_room);
        let standing = || input.flipped(beside).filter(fits);
        let Some(part) = Some(part).filter(fits).or_else(standing) else { continue };
        places(&part.groups).into_iter().for_each(|at| _ = models.entry(at).or_default().insert(model));
        kept.push((input, part));
    }
    kept
}

fn joined(parts: Vec<(SearchInput, live::ModelPlan)>) -> PlanDraft {
    let mut draft = PlanDraft { groups: Vec::new(), routes: Vec::new(), chosen: Vec::new(), reason: String::new() };
    for (input, part) in parts {
        draft.routes.extend(part.routes);
        draft.groups.extend(part.groups);
        if !draft.reason.is_empty() {
            draft.reason.push_str("; ");
        }
        draft.reason.push_str(&format!("{}: {}", input.card.name, part.reason));
    }
    draft.reason = draft.reason.chars().take(REASON_CHARS).collect();
    draft
}

/// What a plan is worth on a view: what peers compare before they endorse it. Who wants a layout wants its groups, whatever
/// they are good for.
#[must_use]
pub fn value(plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> f64 {
    match &wish.layout {
        Some(layout) => {
            let cards = cards::all_agreed(members.values().copied());
            let most = |model: ModelId| cards.get(&model).map_or(u32::MAX, |card| card.shape.most_stages());
            layout.found_in(&plan.groups, most) as f64
        }
        None => live::value(plan, members, wish.split),
    }
}

fn as_laid_out(
    input: &SearchInput,
    layout: &GroupLayout,
    members: &Members<'_>,
    standing: Option<&Plan>,
) -> live::ModelPlan {
    let card = &input.card;
    let mut places: Vec<ModelPlace> =
        input.places().iter().map(|&(peer, device)| ModelPlace { peer, device }).collect();
    // A stage of a model that is not cut can be nowhere else.
    places.retain(|place| !card.shape.whole || has_room_for_all(card, place, members));
    places.sort_by_key(|p| (members.get(&p.peer).map(|a| a.name.clone()), p.peer, p.device));
    let (devices, asked) = (places.len(), layout.within(card.shape.most_stages()));
    let repaired = standing.and_then(|plan| repaired(card, &places, &asked, plan));
    let groups = repaired.unwrap_or_else(|| laid_out(card, places, &asked));
    let routes = input.routes(&groups);
    let mut reason = match groups.len() {
        0 => format!("no group as laid out, {asked}, of {devices} devices that could have a stage"),
        n if n < asked.0.len() => format!("as laid out, as far as that goes: {asked}"),
        _ => format!("as laid out: {asked}"),
    };
    if asked != *layout {
        let why = if card.shape.whole { "one stage has to hold all of it" } else { "it has no more layers" };
        reason.push_str(&format!(" (not {layout}: {why})"));
    }
    live::ModelPlan { groups, routes, reason }
}

fn has_room_for_all(card: &ModelCard, place: &ModelPlace, members: &Members<'_>) -> bool {
    let device = members.get(&place.peer).and_then(|advert| advert.devices.get(usize::from(place.device)));
    let served = device.and_then(|device| device.served(card.id));
    served.is_some_and(|served| {
        card.shape.stage_bytes(card.shape.all_layers()) <= served.memory_bytes.saturating_sub(served.kv_bytes)
    })
}

/// A plan's groups where it had all that were asked for, the lost ones made anew of peers without a part: whoever has loaded
/// something keeps it. `None` where that is not enough.
fn repaired(card: &ModelCard, places: &[ModelPlace], layout: &GroupLayout, plan: &Plan) -> Option<Vec<Group>> {
    let mut old: Vec<&Group> = plan.groups.iter().filter(|g| g.model == card.id).collect();
    let mut as_asked = |(phase, stages): &(Phase, usize)| {
        let place = old.iter().position(|g| g.phase == *phase && g.stages.len() == *stages)?;
        Some(old.remove(place))
    };
    let had: Vec<&Group> = layout.0.iter().map(&mut as_asked).collect::<Option<_>>()?;
    let is_here = |s: &Stage| places.contains(&ModelPlace { peer: s.peer, device: s.device });
    let stands = |g: &&Group| g.stages.iter().all(is_here);
    let is_used = |p: &ModelPlace| {
        had.iter().filter(|g| stands(g)).flat_map(|g| &g.stages).any(|s| (s.peer, s.device) == (p.peer, p.device))
    };
    let mut free = places.iter().copied().filter(|p| !is_used(p));
    let kept_or_new = |group: &&Group| {
        if stands(group) {
            return Some((*group).clone());
        }
        let stages: Vec<ModelPlace> = free.by_ref().take(group.stages.len()).collect();
        (stages.len() == group.stages.len()).then(|| Group::new(card.id, group.phase, even(card, &stages)))
    };
    had.iter().map(kept_or_new).collect()
}

/// Groups as asked for, over these places in their order, as far as they suffice.
fn laid_out(card: &ModelCard, places: Vec<ModelPlace>, layout: &GroupLayout) -> Vec<Group> {
    let mut rest = places.into_iter();
    let mut groups = Vec::new();
    for (phase, stages) in &layout.0 {
        let places: Vec<ModelPlace> = rest.by_ref().take(*stages).collect();
        if places.len() < *stages {
            break;
        }
        groups.push(Group::new(card.id, *phase, even(card, &places)));
    }
    groups
}

/// Layers in equal parts; the first stages get what is left over.
fn even(card: &ModelCard, places: &[ModelPlace]) -> Vec<Stage> {
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

fn stage(place: &ModelPlace, layers: LayerRange) -> Stage {
    Stage { peer: place.peer, device: place.device, layers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Advert, Epoch, ModelShape, Term};

    fn adverts() -> BTreeMap<PeerId, Advert> {
        (0..6).map(|n| (PeerId([n; 32]), sample::advert(n.into()))).collect()
    }

    fn wish() -> PlanOptions {
        PlanOptions { layout: Some("prefill=1,decode=1,decode=2".parse().unwrap()), split: SplitChoice::Always }
    }

    /// Numbers of each group's peers, of those that are there.
    fn laid(there: &[u8], standing: Option<&Plan>) -> (Vec<Vec<u8>>, Plan) {
        let all = adverts();
        let members = all.iter().filter(|(peer, _)| there.contains(&peer.0[0])).map(|(peer, a)| (*peer, a)).collect();
        let PlanDraft { groups, routes, chosen, reason } = plan(&members, &wish(), standing);
        let numbers = groups.iter().map(|g| g.stages.iter().map(|s| s.peer.0[0]).collect()).collect();
        (numbers, Plan { epoch: Epoch(0), term: Term(0), parent: None, groups, routes, chosen, reason })
    }

    #[test]
    fn what_stands_of_a_layout_stays_whoever_goes_and_comes_back() {
        let (groups, whole) = laid(&[0, 1, 2, 3, 4, 5], None);
        assert_eq!(groups, [vec![0], vec![1], vec![2, 3]]);
        let (groups, without) = laid(&[0, 2, 3, 4, 5], Some(&whole));
        assert_eq!(groups, [vec![0], vec![4], vec![2, 3]]);
        let (groups, again) = laid(&[0, 1, 2, 3, 4, 5], Some(&without));
        assert_eq!((groups, &again.groups), (vec![vec![0], vec![4], vec![2, 3]], &without.groups));
        // A member that is left over of a lost group has its part in the next.
        assert_eq!(laid(&[0, 1, 3, 4, 5], Some(&again)).0, [vec![0], vec![4], vec![1, 3]]);
    }

    /// What is laid out of a model with this shape, and what that is worth.
    fn shaped(
        mut all: BTreeMap<PeerId, Advert>,
        layout: &str,
        change: impl Fn(&mut ModelShape),
    ) -> (Vec<Vec<u8>>, String, f64) {
        all.values_mut().flat_map(|advert| &mut advert.models).for_each(|card| change(&mut card.shape));
        let members = all.iter().map(|(peer, a)| (*peer, a)).collect();
        let wish = PlanOptions { layout: Some(layout.parse().unwrap()), ..wish() };
        let PlanDraft { groups, routes, chosen, reason } = plan(&members, &wish, None);
        let numbers = groups.iter().map(|g| g.stages.iter().map(|s| s.peer.0[0]).collect()).collect();
        let whole =
            Plan { epoch: Epoch(0), term: Term(0), parent: None, groups, routes, chosen, reason: String::new() };
        let worth = value(&whole, &members, &wish);
        (numbers, reason, worth)
    }

    #[test]
    fn a_model_that_one_stage_has_to_hold_is_laid_out_in_groups_of_one_stage_that_can() {
        let mut all = adverts();
        let small = &mut all.get_mut(&PeerId([0; 32])).unwrap().devices[0].serves[0];
        (small.memory_bytes, small.kv_bytes) = (7 << 20, 1 << 20);
        let (groups, reason, worth) = shaped(all, "prefill=2,decode=1,decode=3", |shape| shape.whole = true);
        assert_eq!((groups, worth), (vec![vec![1], vec![2], vec![3]], 3.0));
        let why =
            "as laid out: prefill=1,decode=1,decode=1 (not prefill=2,decode=1,decode=3: one stage has to hold all";
        assert!(reason.contains(why), "{reason}");
    }

    #[test]
    fn a_model_is_cut_into_no_more_stages_than_it_has_layers() {
        let (groups, reason, worth) = shaped(adverts(), "mixed=5,mixed=1", |shape| shape.layers = 2);
        assert_eq!((groups, worth), (vec![vec![0, 1], vec![2]], 2.0));
        assert!(reason.contains("mixed=2,mixed=1 (not mixed=5,mixed=1: it has no more layers)"), "{reason}");
    }

    #[test]
    fn a_layout_for_which_there_are_too_few_devices_says_so() {
        let (groups, reason, worth) = shaped(adverts(), "mixed=9", |shape| shape.layers = 16);
        assert_eq!((groups, worth), (vec![], 0.0));
        assert!(reason.contains("no group as laid out, mixed=9, of 6 devices"), "{reason}");
    }

    #[test]
    fn who_laid_groups_out_values_a_plan_by_those_it_has() {
        let all = adverts();
        let members = all.iter().map(|(peer, a)| (*peer, a)).collect();
        let worth = |plan: &Plan, wish: &PlanOptions| value(plan, &members, wish);
        let ((_, whole), (_, part)) = (laid(&[0, 1, 2, 3, 4, 5], None), laid(&[0, 1], None));
        assert_eq!((worth(&whole, &wish()), worth(&part, &wish())), (3.0, 2.0));
        // A group more than were asked for, or of another phase, is worth nothing.
        let other = PlanOptions { layout: Some("prefill=1,prefill=1,mixed=1".parse().unwrap()), ..wish() };
        assert_eq!(worth(&whole, &other), 1.0);
    }

    #[test]
    fn a_layout_that_cannot_be_whole_is_laid_out_by_name() {
        let (_, whole) = laid(&[0, 1, 2, 3], None);
        let (groups, part) = laid(&[1, 2, 3], Some(&whole));
        assert_eq!(groups, [vec![1], vec![2]]);
        assert_eq!(laid(&[0, 1, 2, 3], Some(&part)).0, [vec![0], vec![1], vec![2, 3]]);
    }
}
