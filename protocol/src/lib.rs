//! What peers say: every type that crosses a wire or a disk, with its version, signature, framing and limits.
//!
//! This crate does no I/O and knows of no runtime: bytes come in, checked values go out. A size that comes from
//! outside is bounded in [`limits`] before anything is allocated for it.

#![deny(missing_docs, clippy::allow_attributes_without_reason)]

pub mod advert;
pub mod checksum;
pub mod codec;
pub mod constraint;
pub mod encoder;
pub mod envelope;
mod generation;
pub mod gossip;
mod gpu;
pub mod heartbeat;
pub mod ids;
pub mod invite;
pub mod kv;
pub mod kv_stream;
pub mod ledger;
pub mod limits;
pub mod liveness_digest;
pub mod model;
pub mod origin;
pub mod partial;
pub mod philox;
pub mod plan;
pub mod prompt_codec;
pub mod proof;
mod reason;
pub mod response_log;
pub mod ring;
pub mod sampling;
pub mod setting;
pub mod stream;
pub mod tokens;
pub mod traffic;
pub mod units;
pub mod weights;

pub use advert::{Advert, Device, DeviceKind, LayerProfile, Link, Misfit, PathKind, Served};
pub use constraint::{Constraint, Grammar};
pub use encoder::{EncodeEvent, EncodeRefusal, EncodeRequest, Encoded, EncoderCard, EncoderInput, EncoderTask};
pub use envelope::{Signed, Verified};
pub use gossip::Gossip;
pub use gpu::{DriverVersion, DriverVersionError, Gpus};
pub use heartbeat::{GroupLoad, Heartbeat, Load, Quickest, SeenSpeed, StepSize, TimedStep};
pub use ids::{Epoch, GroupId, InviteId, Life, ModelId, PeerId, PlanId, RequestId, RingId, SwarmId, Term};
pub use invite::{Invite, Secret, Ticket, TicketKey, TicketNotice};
pub use kv::{KvCodec, KvDtype, Manifest, TileHeader};
pub use kv_stream::KvStream;
pub use liveness_digest::{Call, LivenessDigest, Missed};
pub use model::{Experts, LayerRange, ModelCard, ModelFile, ModelShape};
pub use origin::ModelOrigin;
pub use partial::PartialModel;
pub use plan::{ChosenPolicy, Endorsement, Group, Phase, Plan, PolicyChoice, Replayed, Route, Stage};
pub use prompt_codec::PromptCodec;
pub use sampling::{PromptLogprob, Sampled, Sampling, TokenLogprob};
pub use setting::{BatchPolicy, RequestClass, RoutePolicy, SettingKey, SettingValue, SwarmSetting, Targets};
pub use tokens::Token;
pub use traffic::Traffic;
pub use units::{
    Bytes, BytesPerSecond, BytesPerToken, Flops, FlopsPerSecond, Seconds, SecondsPerSquareToken, SecondsPerToken,
    Tokens,
};
