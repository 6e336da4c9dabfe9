//! What decides: membership, election, planning, adoption, batching, routing, the life of a request.
//!
//! Everything here is pure. A machine is driven by `on_event(now, event) -> actions` and says by `deadline()` when to
//! wake it if nothing else happens; time and randomness come in as arguments, maps are ordered, so one seed replays a
//! swarm. A confused or lying peer is not an error but a counted rejection.

#![deny(missing_docs, clippy::allow_attributes_without_reason, clippy::iter_over_hash_type)]

pub mod batcher;
pub mod cards;
pub mod changeover;
pub mod claim_check;
pub mod control;
pub mod default_model;
pub mod encoding;
pub mod fallback;
mod fast_map;
pub mod gate;
pub mod gateway;
pub mod kv_streams;
pub mod layout;
pub mod left_out;
pub mod lending;
pub mod links;
pub mod liveness_probe;
pub mod members;
pub mod paths;
pub mod places;
pub mod planner;
pub mod policy;
pub mod profiler;
pub mod rate_limit;
pub mod replacement_interval;
pub mod replay;
pub mod replicas;
pub mod rng;
pub mod router;
pub mod sample;
pub mod scheduler;
pub mod service_monitor;
pub mod settings;
pub mod spot_check;
pub mod time;
pub mod traffic;
pub mod trust;
pub mod urgency;
pub mod view;
pub mod waiting;
pub mod wanted;
pub mod witnesses;

pub use time::Time;
