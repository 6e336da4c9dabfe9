//! Policies that no node drives: those of the four papers that ours are compared with, and those for several models on the
//! same devices. They stand behind the same seams as the nodes' own ([`tsnode_coordinator::policy`]).

pub mod ageing;
pub mod balancer;
pub mod dispatch;
pub mod doubling;
pub mod feedback;
pub mod greedy;
pub mod least_loaded;
pub mod packing;
pub mod pages;
pub mod partial;
pub mod piggybacked;
pub mod pool;
pub mod pools;
pub mod repurposing;
pub mod round_robin;
pub mod sharing;
pub mod shortest_queue;
pub mod turns;
pub mod weighted;
