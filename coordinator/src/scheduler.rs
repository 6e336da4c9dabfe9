//! Plan flow 4: the scheduler. Which devices form groups, which phase each serves, how it is cut, who sends to whom.
//!
//! ThunderServe §3 and App. B, with the forms its formulas need to be right ([`cost`], [`transport`]):
//!
//! | level | question | where |
//! |---|---|---|
//! | upper | groups and phases | [`search`] (tabu), [`start`], [`moves`], [`twins`]; [`algorithm1`], [`exhaustive`] to compare |
//! | upper | whether there is a plan at all | [`room`] |
//! | lower | a group's stages | [`parallel`], with [`route`] and [`partition`] |
//! | lower | who sends to whom | [`evaluate`]: [`pair`] values, then [`transport`] |
//! | after a loss | phases and routes only | [`light`] |
//! | large clusters | in parts | [`regions`] |
//! | several models | whose devices are whose | [`services`] |
//! | the last candidates | replayed request by request | [`finals`] |
//! | how good is it | other systems' plans | [`baselines`]; one that was written down: [`given`] |
//!
//! Everything is a pure function of a [`Problem`] and a seed.

pub mod algorithm1;
pub mod baselines;
pub mod bound;
pub mod cluster;
pub mod cluster_file;
pub mod cost;
pub mod dice;
pub mod evaluate;
pub mod exhaustive;
pub mod figures;
pub mod finals;
pub mod given;
pub mod hexgen;
pub mod light;
pub mod live;
pub mod models;
pub mod moves;
pub mod outcome;
pub mod pair;
pub mod parallel;
pub mod partition;
pub mod picture;
pub mod problem;
pub mod prompts;
pub mod regions;
pub mod room;
pub mod route;
pub mod search;
pub mod services;
pub mod slo;
pub mod start;
pub mod transport;
pub mod twins;
pub mod workload;

pub use cluster::{Cluster, InstanceId};
pub use evaluate::{Evaluation, Evaluator};
pub use problem::{Problem, Space};
pub use slo::Slo;
pub use workload::Workload;
