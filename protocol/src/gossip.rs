//! What is gossiped: one enum, so that one signature, one sequence and one size limit cover all of it.

use crate::{Advert, Call, Endorsement, Heartbeat, LivenessDigest, Plan, Signed, codec::CodecError, limits};
use bincode::{Decode, Encode};
use std::sync::Arc;

/// A message of the control plane. What is large is shared: whoever keeps it keeps no copy of it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[expect(
    clippy::large_enum_variant,
    reason = "most of what is said is heartbeats: a box each would be an allocation each"
)]
pub enum Gossip {
    /// What the signer is; sent when it changes, and again when a new peer appears.
    Advert(Arc<Advert>),
    /// A sign of life.
    Heartbeat(Heartbeat),
    /// A proposal by the coordinator of an epoch and term.
    Plan(Arc<Plan>),
    /// The signer's endorsement of a plan.
    Endorsement(Endorsement),
    /// Proof that a plan was adopted: for peers that came late.
    Certificate(Arc<Certificate>),
    /// Peers that are to speak up.
    Call(Call),
    /// Who is there.
    LivenessDigest(LivenessDigest),
}

/// A plan with the endorsements that made it effective.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Certificate {
    /// The coordinator's signed `Gossip::Plan`.
    pub plan: Signed<Gossip>,
    /// Signed `Gossip::Endorsement`s of more than half of the peers the plan names.
    pub endorsements: Vec<Signed<Gossip>>,
}

impl Gossip {
    /// Refuses messages whose content is out of bounds.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        match self {
            Self::Advert(advert) => advert.check(),
            Self::Heartbeat(heartbeat) => heartbeat.check(),
            Self::Plan(plan) => plan.check(),
            Self::Endorsement(_) => Ok(()),
            Self::Certificate(c) if c.endorsements.len() > limits::GROUPS * limits::STAGES => {
                Err(CodecError::Invalid("too many endorsements"))
            }
            Self::Certificate(_) => Ok(()),
            Self::Call(call) => call.check(),
            Self::LivenessDigest(roll) => roll.check(),
        }
    }

    /// The kind's name, for logs and counters.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Advert(_) => "advert",
            Self::Heartbeat(_) => "heartbeat",
            Self::Plan(_) => "plan",
            Self::Endorsement(_) => "endorsement",
            Self::Certificate(_) => "certificate",
            Self::Call(_) => "call",
            Self::LivenessDigest(_) => "liveness digest",
        }
    }
}
