//! A plan: groups, their phases and stages, and who sends to whom.

use crate::{Epoch, GroupId, LayerRange, ModelId, PeerId, PlanId, Term, codec, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

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
    /// Prompts.
    Prefill,
    /// All tokens but the first.
    Decode,
    /// Both.
    Mixed,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    /// Which layers.
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
    /// The plan.
    pub plan: PlanId,
}
