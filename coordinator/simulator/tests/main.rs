//! What is simulated, against brute force, others' figures and what must hold whatever comes; and the control plane in
//! simulated swarms.
//!
//! One program, since each has to be linked: a new file is a line here. What compares with others' files is ignored, and
//! nothing else is: `.ci/run` runs all of it where they are.

mod balancer;
mod better;
mod control;
mod distserve_reference;
mod live_plan;
mod placement;
mod profiler;
mod provisioning;
mod reload;
mod scheduler;
mod scheduler_reference;
mod shared;
mod sharing;
mod simulator;
mod simulator_reference;
mod targets;
mod traffic;
mod workload;
