//! Policies of the four papers: which tasks a machine runs next ([`batching`]), and which machine gets a request
//! ([`routing`]). Pure: what happens comes in by method, what to do comes back.

pub mod ageing;
pub mod balancer;
pub mod batching;
pub mod caps;
pub mod choice;
pub mod chunked;
pub mod doubling;
pub mod feedback;
pub mod greedy;
pub mod least_loaded;
pub mod packing;
pub mod pages;
pub mod partial;
mod places;
pub mod pool;
pub mod pools;
pub mod repurposing;
pub mod riding;
pub mod round_robin;
pub mod routing;
pub mod shares;
pub mod sharing;
pub mod turns;
pub mod weighted;
