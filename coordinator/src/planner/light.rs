//! Plan flow 4: what can be had of a plan that stands with nothing of it loaded anew (ThunderServe §3.4).

use super::{PlanDraft, PlanOptions, at_once, joined};
use crate::{
    members::Members,
    planner::live::{self, SearchInput},
};
use std::collections::BTreeSet;
use tsnode_protocol::{Group, ModelId, Phase, Plan, Route};

/// After a loss: what stands of a plan, phases and routes made anew, nothing to load. `None` if some model would be left
/// without a group, or a person laid the groups out.
#[must_use]
pub fn flip(plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
    lightly(plan, members, wish, SearchInput::flipped)
}

/// The same, and beside it groups of those devices that have no part in the plan: who serves goes on serving, and only
/// newcomers load; a model that no group serves gets one where there is memory for it. `None` as for [`flip`].
#[must_use]
pub fn grow(plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
    lightly(plan, members, wish, SearchInput::grown)
}

fn lightly(
    plan: &Plan,
    members: &Members<'_>,
    wish: &PlanOptions,
    light: impl Fn(&SearchInput, &[Group]) -> Option<live::ModelPlan>,
) -> Option<PlanDraft> {
    if wish.layout.is_some() {
        return None;
    }
    let inputs = live::inputs_under(members, wish.split, &plan.chosen);
    let places: BTreeSet<_> =
        inputs.iter().flat_map(|s| s.places().iter().map(|(peer, device)| (s.card.id, *peer, *device))).collect();
    let stands = |g: &&Group| g.stages.iter().all(|s| places.contains(&(g.model, s.peer, s.device)));
    let standing: Vec<Group> = plan.groups.iter().filter(stands).cloned().collect();
    let models: BTreeSet<ModelId> = inputs.iter().map(|s| s.card.id).collect();
    let inputs = live::beside(inputs, &standing);
    let parts = inputs.into_iter().filter_map(|input| light(&input, &standing).map(|part| (input, part)));
    let mut draft = joined(at_once(parts.collect(), &standing, members));
    models.iter().for_each(|model| complete(&mut draft, *model, &standing));
    let is_served = |model: &ModelId| draft.groups.iter().any(|g| g.model == *model);
    // Where not all are in memory at once, one that nobody served may stay so.
    let scarce = live::is_scarce(members);
    let may_miss = |model: &ModelId| scarce && plan.groups.iter().all(|g| g.model != *model);
    (!draft.groups.is_empty() && models.iter().all(|model| is_served(model) || may_miss(model))).then_some(draft)
}

/// Groups of a model that no region has whole, or that would be of no use in theirs, go on by themselves: each does both, and
/// gets requests by its devices. Shares of the model's routes sum to 1 again.
fn complete(draft: &mut PlanDraft, model: ModelId, standing: &[Group]) {
    let has = |g: &&Group| draft.groups.iter().any(|kept| kept.id == g.id);
    let apart: Vec<Group> = standing
        .iter()
        .filter(|g| g.model == model && !has(g))
        .map(|g| Group { phase: Phase::Mixed, ..g.clone() })
        .collect();
    let stages = |groups: &[Group]| groups.iter().filter(|g| g.model == model).map(|g| g.stages.len()).sum::<usize>();
    let all = (stages(&draft.groups) + stages(&apart)).max(1) as f64;
    let of_model: BTreeSet<_> = draft.groups.iter().filter(|g| g.model == model).map(|g| g.id).collect();
    let routed: f64 = draft.routes.iter().filter(|r| of_model.contains(&r.prefill)).map(|r| r.share).sum();
    let rest = 1.0 - stages(&apart) as f64 / all;
    if routed > 0.0 && (!apart.is_empty() || (routed - 1.0).abs() > 1e-9) {
        let theirs = draft.routes.iter_mut().filter(|r| of_model.contains(&r.prefill));
        theirs.for_each(|r| r.share = (r.share * rest / routed).clamp(0.0, 1.0));
    }
    let alone = |g: &Group| Route { prefill: g.id, decode: g.id, share: g.stages.len() as f64 / all };
    draft.routes.extend(apart.iter().map(alone));
    draft.groups.extend(apart);
}
