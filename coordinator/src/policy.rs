//! Policies of the four papers: which tasks a machine runs next ([`batching`]), and which machine gets a request
//! ([`routing`]). Pure: what happens comes in by method, what to do comes back.

pub mod balancer;
mod batch_slots;
pub mod batching;
pub mod caps;
pub mod choice;
pub mod chunked;
pub mod pools;
pub mod prefill_first;
pub mod routing;
pub mod shares;
pub mod sharing;
pub mod shortest;
