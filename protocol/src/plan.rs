//! A plan: groups, their phases and stages, and who sends to whom.

use crate::{
    BatchPolicy, Epoch, GroupId, LayerRange, ModelId, PeerId, PlanId, RoutePolicy, Term, codec, codec::CodecError,
    limits,
};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What one coordinator wants the swarm to do.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Plan {
    /// Epoch it was made in.
    pub epoch: Epoch,
    /// Term it was made in.
    pub term: Term,
    /// The plan it follows.
    pub parent: Option<PlanId>,
    /// The model serving groups.
    pub groups: Vec<Group>,
    /// Who sends to whom; the shares of one model's routes sum to 1.
    pub routes: Vec<Route>,
    /// How requests are routed and steps formed for models of which members have set that this is chosen by measurement
    /// ([`RoutePolicy::Auto`], [`BatchPolicy::Auto`]); of others this says nothing.
    #[serde(default)]
    pub chosen: Vec<PolicyChoice>,
    /// Why this plan, in a sentence for people.
    pub reason: String,
}

/// The devices that together hold one model replica.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Group {
    /// Its name; see [`Group::new`].
    pub id: GroupId,
    /// The model it serves.
    pub model: ModelId,
    /// What it does.
    pub phase: Phase,
    /// Pipeline steps in layer order. The peer of the first one leads the group.
    pub stages: Vec<Stage>,
}

/// What a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Computes prompts, and sends their KV to another group.
    Prefill,
    /// Generates all tokens but the first.
    Decode,
    /// Computes prompts and answers.
    Mixed,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        })
    }
}

/// One pipeline step: a layer range on one device of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
pub struct Stage {
    /// Who runs it.
    pub peer: PeerId,
    /// Which of the peer's devices, by its place in the advert.
    pub device: u16,
    /// Layers that it holds and computes.
    pub layers: LayerRange,
}

/// A share of the traffic of one model: prefilled by one group and decoded by another (or by the same).
///
/// `share` is X_i · Y_ij of ThunderServe §3.3.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Route {
    /// Group that prefills.
    pub prefill: GroupId,
    /// Group that decodes.
    pub decode: GroupId,
    /// Part of the model's requests, 0 to 1.
    pub share: f64,
}

/// A policy that members may leave to measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChosenPolicy {
    /// How requests are routed.
    Route(RoutePolicy),
    /// How groups form their steps.
    Batch(BatchPolicy),
}

impl ChosenPolicy {
    /// Whether it says nothing but that another is to be chosen.
    fn is_auto(self) -> bool {
        matches!(self, Self::Route(RoutePolicy::Auto) | Self::Batch(BatchPolicy::Auto))
    }

    fn is_of_batches(self) -> bool {
        matches!(self, Self::Batch(_))
    }
}

impl fmt::Display for ChosenPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(policy) => fmt::Display::fmt(policy, f),
            Self::Batch(policy) => fmt::Display::fmt(policy, f),
        }
    }
}

/// How requests for a model are routed on a plan, or its steps formed, as whoever made the plan chose, and by what.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct PolicyChoice {
    /// The model whose requests it is for.
    pub model: ModelId,
    /// What was chosen: never that it is to be chosen.
    pub policy: ChosenPolicy,
    /// Requests that were replayed by each policy.
    pub requests: u32,
    /// How many of them came in a second.
    pub rate: f64,
    /// What became of them by each policy that was tried.
    pub tried: Vec<Replayed>,
}

/// What became of replayed requests by one policy.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Replayed {
    /// The policy by which they were replayed.
    pub policy: ChosenPolicy,
    /// Share of them that kept their deadlines.
    pub in_time: f64,
    /// Nine of ten took no more than so many times what the fastest group takes alone.
    pub slowness: f64,
}

/// The highest [`Replayed::slowness`] and [`PolicyChoice::rate`] that are stated.
pub const MOST_STATED: f64 = 1e6;

impl PolicyChoice {
    /// What became of requests by the policy that was chosen.
    #[must_use]
    pub fn of_chosen(&self) -> Option<&Replayed> {
        self.tried.iter().find(|tried| tried.policy == self.policy)
    }

    /// How requests for a model are routed, where these say so.
    #[must_use]
    pub fn of_routes(all: &[Self], model: ModelId) -> Option<(&Self, RoutePolicy)> {
        all.iter().filter(|choice| choice.model == model).find_map(|choice| match choice.policy {
            ChosenPolicy::Route(policy) => Some((choice, policy)),
            ChosenPolicy::Batch(_) => None,
        })
    }

    /// How steps of a model are formed, where these say so.
    #[must_use]
    pub fn of_batches(all: &[Self], model: ModelId) -> Option<(&Self, BatchPolicy)> {
        all.iter().filter(|choice| choice.model == model).find_map(|choice| match choice.policy {
            ChosenPolicy::Batch(policy) => Some((choice, policy)),
            ChosenPolicy::Route(_) => None,
        })
    }

    /// Its place among a plan's: of a model routes first.
    fn place(&self) -> (ModelId, bool) {
        (self.model, self.policy.is_of_batches())
    }

    fn check(&self) -> Result<(), CodecError> {
        let is_policy =
            |policy: ChosenPolicy| !policy.is_auto() && policy.is_of_batches() == self.policy.is_of_batches();
        let is_stated = |x: f64| (0.0..=MOST_STATED).contains(&x);
        let is_replayed = |tried: &Replayed| {
            is_policy(tried.policy) && (0.0..=1.0).contains(&tried.in_time) && is_stated(tried.slowness)
        };
        if self.tried.len() > RoutePolicy::ALL.len()
            || !is_policy(self.policy)
            || !is_stated(self.rate)
            || !self.tried.iter().all(is_replayed)
        {
            return Err(CodecError::Invalid("choice of a policy out of range"));
        }
        Ok(())
    }
}

impl Group {
    /// A group whose id follows from model and stages, so that changing its phase does not rename it.
    #[must_use]
    pub fn new(model: ModelId, phase: Phase, stages: Vec<Stage>) -> Self {
        let hash = blake3::hash(&codec::encode(&(model, &stages)));
        let mut id = [0; 8];
        id.copy_from_slice(&hash.as_bytes()[..8]);
        Self { id: GroupId(id), model, phase, stages }
    }

    /// The peer that forms this group's batches.
    #[must_use]
    pub fn leader(&self) -> Option<PeerId> {
        self.stages.first().map(|s| s.peer)
    }

    fn check(&self) -> Result<(), CodecError> {
        if self.stages.is_empty() || self.stages.len() > limits::STAGES {
            return Err(CodecError::Invalid("group with no stages or too many"));
        }
        let mut next = 0;
        for stage in &self.stages {
            if stage.layers.start != next || stage.layers.is_empty() || stage.layers.end > limits::LAYERS {
                return Err(CodecError::Invalid("stages do not cover the layers in order"));
            }
            next = stage.layers.end;
        }
        if Self::new(self.model, self.phase, self.stages.clone()).id != self.id {
            return Err(CodecError::Invalid("group id does not follow from its stages"));
        }
        Ok(())
    }
}

impl Plan {
    /// The plan's name: a hash over everything in it.
    #[must_use]
    pub fn id(&self) -> PlanId {
        let hash = blake3::hash(&codec::encode(self));
        let mut id = [0; 16];
        id.copy_from_slice(&hash.as_bytes()[..16]);
        PlanId(id)
    }

    /// The group of that name.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|g| g.id == id)
    }

    /// Every peer the plan gives work to, once, in order.
    #[must_use]
    pub fn peers(&self) -> std::collections::BTreeSet<PeerId> {
        self.groups.iter().flat_map(|g| g.stages.iter().map(|s| s.peer)).collect()
    }

    /// Refuses plans that are out of bounds or contradict themselves.
    /// Whether devices exist and memory suffices needs a view of the swarm and is `coordinator`'s to check.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.groups.len() > limits::GROUPS || self.routes.len() > limits::ROUTES {
            return Err(CodecError::Invalid("plan too large"));
        }
        if self.chosen.len() > 2 * limits::MODELS || !self.chosen.is_sorted_by(|a, b| a.place() < b.place()) {
            return Err(CodecError::Invalid("choices of policies too many or out of order"));
        }
        self.chosen.iter().try_for_each(PolicyChoice::check)?;
        if self.reason.len() > 4 * limits::TEXT_BYTES {
            return Err(CodecError::Invalid("reason too long"));
        }
        self.groups.iter().try_for_each(Group::check)?;
        let ids: std::collections::BTreeSet<_> = self.groups.iter().map(|g| g.id).collect();
        if ids.len() != self.groups.len() {
            return Err(CodecError::Invalid("a group twice"));
        }
        let model = |id| self.group(id).map(|g| g.model);
        for route in &self.routes {
            if !(route.share.is_finite() && (0.0..=1.0).contains(&route.share)) {
                return Err(CodecError::Invalid("share out of range"));
            }
            match (model(route.prefill), model(route.decode)) {
                (Some(a), Some(b)) if a == b => {}
                _ => return Err(CodecError::Invalid("route between unknown groups or two models")),
            }
        }
        Ok(())
    }
}

/// A peer's word that it has checked a plan and will follow it; one per (epoch, term).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Endorsement {
    /// Epoch of the plan.
    pub epoch: Epoch,
    /// Term of the plan.
    pub term: Term,
    /// Hash of the plan that is endorsed.
    pub plan: PlanId,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choosing(chosen: Vec<PolicyChoice>) -> Plan {
        let (epoch, term, reason) = (Epoch(1), Term(0), String::new());
        Plan { epoch, term, parent: None, groups: vec![], routes: vec![], chosen, reason }
    }

    #[test]
    fn what_is_chosen_is_one_policy_of_a_kind_for_each_model_by_figures_that_can_be() {
        let (live, mixed) = (ChosenPolicy::Route(RoutePolicy::Live), ChosenPolicy::Batch(BatchPolicy::Mixed));
        let (model, other) = (ModelId([2; 16]), ModelId([3; 16]));
        let by = |policy| {
            let tried = vec![Replayed { policy, in_time: 0.5, slowness: 3.0 }];
            PolicyChoice { model, policy, requests: 300, rate: 0.5, tried }
        };
        let (good, batched) = (by(live), by(mixed));
        let both = vec![good.clone(), batched.clone()];
        assert_eq!(choosing(both.clone()).check(), Ok(()));
        assert_eq!(good.of_chosen().map(|replayed| replayed.in_time), Some(0.5));
        assert_eq!(PolicyChoice::of_routes(&both, model), Some((&good, RoutePolicy::Live)));
        assert_eq!(PolicyChoice::of_batches(&both, model), Some((&batched, BatchPolicy::Mixed)));
        assert_eq!(PolicyChoice::of_batches(&both, other), None);
        let with = |in_time: f64, slowness: f64| {
            let tried = vec![Replayed { policy: live, in_time, slowness }];
            vec![PolicyChoice { tried, ..good.clone() }]
        };
        let of = |model: u8| PolicyChoice { model: ModelId([model; 16]), ..good.clone() };
        let many = good.tried.repeat(RoutePolicy::ALL.len() + 1);
        for wrong in [
            with(1.5, 3.0),
            with(f64::NAN, 3.0),
            with(0.5, f64::INFINITY),
            vec![by(ChosenPolicy::Route(RoutePolicy::Auto))],
            vec![by(ChosenPolicy::Batch(BatchPolicy::Auto))],
            vec![PolicyChoice { policy: mixed, ..good.clone() }],
            vec![PolicyChoice { rate: -1.0, ..good.clone() }],
            vec![PolicyChoice { tried: many, ..good.clone() }],
            vec![batched.clone(), good.clone()],
            vec![of(2), of(2)],
            vec![of(2), of(1)],
            (0..=2 * limits::MODELS as u8).map(of).collect(),
        ] {
            assert!(choosing(wrong.clone()).check().is_err(), "{wrong:?}");
        }
    }
}
