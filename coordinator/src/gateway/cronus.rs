//! Prompt flow 2: the gate's third choice, where members have set `cronus` (Cronus §4). A prefill group computes the first part of
//! a prompt ([`super::parting`] says how much); the decode group computes the rest in chunks beside its answers. Requests wait at
//! the gate while one waits at the prefill group, so that each is parted by what there is to do then.

use super::{
    Action, Gateway, Request,
    judging::Judging,
    parting::Parting,
    state::{Planned, State},
};
use crate::{
    Time,
    gate::SplitChoice,
    policy::{balancer::AT_ONCE, choice::Dispatch},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tsnode_protocol::{Group, GroupId, ModelId, Phase, RequestId, stream::Computed};

/// A request that waits at the gate is looked at so often, should nothing else happen.
const LOOK: Duration = Duration::from_millis(500);

/// Requests that wait at the gate, by model, first come first.
#[derive(Debug, Default)]
pub(super) struct HeldPrompts(BTreeMap<ModelId, VecDeque<RequestId>>);

impl HeldPrompts {
    /// It waits no longer.
    pub fn forget(&mut self, model: ModelId, request: RequestId) {
        if let Some(waiting) = self.0.get_mut(&model) {
            waiting.retain(|r| *r != request);
        }
        self.0.retain(|_, waiting| !waiting.is_empty());
    }
}

impl Gateway {
    /// Whether members have set that prompts for a model are parted.
    pub(super) fn parts_prompts(&self, model: ModelId) -> bool {
        self.router.dispatch(model) == Dispatch::Cronus
    }

    /// Whether a new request waits at the gate, and all that come after it: every prefill group has one first part that waits
    /// behind another, or others wait already.
    pub(super) fn holds(&mut self, now: Time, request: RequestId) -> bool {
        let Some(r) = self.requests.get(&request) else { return false };
        let model = r.ask.model;
        // Who says where its prompt is computed, or has a part of its answer, waits for nobody's.
        let is_free = r.ask.overrule.is_none() && self.config.split == SplitChoice::Auto && !r.goes_on();
        if !is_free || !self.parts_prompts(model) || !(self.held.0.contains_key(&model) || self.is_full(model)) {
            return false;
        }
        self.held.0.entry(model).or_default().push_back(request);
        if let Some(r) = self.requests.get_mut(&request) {
            r.deadline = now + LOOK;
        }
        true
    }

    /// A request that waits at the gate has waited for so long: it is looked at again later.
    pub(super) fn waits_on(&mut self, now: Time, request: RequestId) {
        if let Some(r) = self.requests.get_mut(&request) {
            r.deadline = now + LOOK;
        }
    }

    /// Lets those through for which a prefill group has become free.
    pub(super) fn let_through(&mut self, now: Time, out: &mut Vec<Action>) {
        for model in self.held.0.keys().copied().collect::<Vec<_>>() {
            while !self.parts_prompts(model) || !self.is_full(model) {
                let Some(next) = self.held.0.get_mut(&model).and_then(VecDeque::pop_front) else { break };
                self.route(now, next, out);
            }
        }
        self.held.0.retain(|_, waiting| !waiting.is_empty());
    }

    /// A decode group says what computing a prompt took it: of one that was parted it was the rest.
    pub(super) fn learn_rest(&mut self, request: RequestId, computed: Computed) {
        let Some(r) = self.requests.get(&request) else { return };
        let (Some(first), Some(at)) = (r.first_part(), r.state.placement()) else { return };
        let groups = self.view.group(at.pick.prefill).zip(self.view.group(at.pick.decode));
        let judging = Judging {
            config: &self.config,
            view: &self.view,
            observed: &self.observed,
            kept: &self.kept,
            unresponsive: &self.unresponsive,
            parts: None,
        };
        let pair = groups.and_then(|groups| judging.pair(r, groups, &self.view.up));
        let parting = Parting { view: &self.view, predictors: &self.predictors };
        let expected = pair.map(|pair| (pair.decode.id, parting.rest(r.ask.prompt.len() as u32, first, &pair)));
        if let Some((decode, expected)) = expected {
            self.predictors.computed_rest(decode, expected, computed);
        }
    }

    /// Whether every prefill group of a model that is up has its first parts.
    fn is_full(&self, model: ModelId) -> bool {
        let groups = self.view.plan.iter().flat_map(|plan| &plan.groups);
        let prefills = |g: &&Group| g.model == model && g.phase == Phase::Prefill && self.view.up.contains_key(&g.id);
        let ids: BTreeSet<GroupId> = groups.filter(prefills).map(|g| g.id).collect();
        let at = |id: &GroupId| self.requests.values().filter(|r| first_part_at(r) == Some(*id)).count();
        !ids.is_empty() && ids.iter().all(|id| at(id) >= AT_ONCE)
    }
}

/// The group that has a request's prompt, or a part of it, still to compute for another.
fn first_part_at(r: &Request) -> Option<GroupId> {
    match &r.state {
        State::AwaitingGrant { at, prompt: Planned::By { .. }, .. } | State::Prefilling { at, first: None, .. } => {
            Some(at.pick.prefill)
        }
        State::AwaitingGrant { .. }
        | State::Prefilling { .. }
        | State::Decoding { .. }
        | State::Routing
        | State::Recovering { .. } => None,
    }
}
