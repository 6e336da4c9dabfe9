//! The scheduler, asked once for each view: its answers follow from what it is asked, and a thousand peers ask the same.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tsnode_coordinator::{
    members::Members,
    planner::{PlanDraft, PlanOptions, Planner},
};
use tsnode_protocol::{ChosenPolicy, Plan, PolicyChoice};

type MemoKey = [u8; 32];

/// A planner that remembers what it answered.
#[derive(Debug)]
pub(super) struct Memo<P> {
    planner: P,
    answers: Mutex<PlannerAnswers>,
}

#[derive(Debug, Default)]
struct PlannerAnswers {
    plans: BTreeMap<MemoKey, PlanDraft>,
    flips: BTreeMap<MemoKey, Option<PlanDraft>>,
    grown: BTreeMap<MemoKey, Option<PlanDraft>>,
    values: BTreeMap<MemoKey, f64>,
}

impl<P: Planner> Memo<P> {
    pub(super) fn new(planner: P) -> Self {
        Self { planner, answers: Mutex::default() }
    }

    fn answers(&self) -> MutexGuard<'_, PlannerAnswers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A view's name. The world keeps every advert it ever sent and peers share it, so that its place in memory stands for
/// what it says.
fn view(members: &Members<'_>, plan: Option<&Plan>) -> MemoKey {
    let mut hasher = blake3::Hasher::new();
    for (peer, advert) in members {
        hasher.update(&peer.0).update(&std::ptr::from_ref(*advert).addr().to_le_bytes());
    }
    if let Some(plan) = plan {
        hasher.update(&plan.id().0);
    }
    *hasher.finalize().as_bytes()
}

impl<P: Planner> Planner for Memo<P> {
    fn plan(&self, members: &Members<'_>, wish: &PlanOptions, standing: Option<&Plan>) -> PlanDraft {
        let mut answers = self.answers();
        // What stands counts for what a person has laid out alone, and where it says how steps are formed.
        let is_batched = |plan: &Plan| plan.chosen.iter().any(|c| matches!(c.policy, ChosenPolicy::Batch(_)));
        let key = view(members, standing.filter(|plan| wish.layout.is_some() || is_batched(plan)));
        answers.plans.entry(key).or_insert_with(|| self.planner.plan(members, wish, standing)).clone()
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        let mut answers = self.answers();
        answers.flips.entry(view(members, Some(plan))).or_insert_with(|| self.planner.flip(plan, members, wish)).clone()
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        let mut answers = self.answers();
        answers.grown.entry(view(members, Some(plan))).or_insert_with(|| self.planner.grow(plan, members, wish)).clone()
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> f64 {
        let mut answers = self.answers();
        *answers.values.entry(view(members, Some(plan))).or_insert_with(|| self.planner.value(plan, members, wish))
    }

    fn choose(
        &self,
        draft: &PlanDraft,
        members: &Members<'_>,
        wish: &PlanOptions,
        before: &[PolicyChoice],
    ) -> Vec<PolicyChoice> {
        self.planner.choose(draft, members, wish, before)
    }
}
