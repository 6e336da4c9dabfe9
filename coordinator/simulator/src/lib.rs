//! What cannot be run is simulated, and what nodes do is compared with what others do: nothing here is on a running node's path.
//!
//! | question | where |
//! |---|---|
//! | **the control plane**, deterministically, under faults | [`simulation`] |
//! | **requests** on machines and links, event by event | [`tsnode_coordinator::replay`], which the planner uses too |
//! | which requests come | [`trace`]: read, or drawn from a workload; [`generator`]: from fitted distributions |
//! | what came of it | [`summary`], [`percentile`], [`kv_memory`] |
//! | measured times | [`measured_cost`], from a file: [`table`] |
//! | how a plan's machines batch; policies no node drives | [`orders`], [`policy`] |
//! | the clusters of Splitwise's evaluation | [`splitwise`] |
//! | GPUs as fast as measured; Cronus's evaluation | [`capacity`], [`cronus`] |
//! | **plans** of other systems; one that was written down | [`baselines`], [`fixed_plan`] |
//! | how good any plan can be | [`bound`] |
//! | a plan for people and programs | [`outcome`] |
//! | several models: devices divided, or shared | [`services`], [`placement`] |
//! | which machines to buy | [`provisioning`] |
//! | pictures | [`plot`] where there are axes, else [`diagram`] |

#![deny(missing_docs, clippy::allow_attributes_without_reason)]

pub mod baselines;
pub mod bound;
pub mod capacity;
pub mod cronus;
pub mod diagram;
pub mod fixed_plan;
pub mod generator;
pub mod kv_memory;
pub mod live_plan;
pub mod measured_cost;
pub mod orders;
pub mod outcome;
pub mod percentile;
pub mod placement;
pub mod plot;
pub mod policy;
pub mod provisioning;
pub mod services;
pub mod shared_gpu;
pub mod shared_peer;
pub mod simulation;
pub mod splitwise;
pub mod summary;
mod svg;
pub mod table;
pub mod trace;
