//! Plan flow 4: the scheduler. Which devices form groups, which phase each serves, how it is cut, who sends to whom.
//!
//! ThunderServe §3 and App. B, with the forms its formulas need to be right ([`cost`], [`transport`]):
//!
//! | level | question | where |
//! |---|---|---|
//! | upper | groups and phases | [`search`] (tabu), [`start`], [`moves`], [`symmetry`] |
//! | upper | whether there is a plan at all | [`room`] |
//! | lower | a group's stages | [`parallel`], with [`route`] and [`partition`] |
//! | lower | who sends to whom | [`evaluate`]: [`pair`] values, then [`transport`] |
//! | after a loss | phases and routes only | [`rescheduling`] |
//! | large clusters | in parts | [`regions`] |
//! | the last candidates | replayed request by request | [`crate::planner::reranking`] |
//!
//! Everything is a pure function of a [`Problem`] and a seed. What it is compared with, and what divides a cluster among
//! several models, is in `coordinator/simulator`.

pub mod cluster;
pub mod cluster_file;
pub mod cost;
pub mod evaluate;
mod exponential;
pub mod figures;
pub mod moves;
pub mod pair;
pub mod parallel;
pub mod partition;
pub mod problem;
pub mod prompts;
pub mod public_models;
pub mod regions;
pub mod rescheduling;
pub mod room;
pub mod route;
pub mod search;
pub mod slo;
pub mod start;
pub mod symmetry;
pub mod timing;
pub mod transport;
pub mod workload;

pub use cluster::{Cluster, InstanceId};
pub use evaluate::{Evaluation, Evaluator};
pub use problem::{Problem, Space};
pub use slo::Slo;
pub use workload::Workload;
