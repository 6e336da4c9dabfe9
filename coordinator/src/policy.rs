//! Policies of the four papers: which tasks a machine runs next ([`batching`]), and which machine gets a request
//! ([`routing`]). Pure: what happens comes in by method, what to do comes back.

pub mod ageing;
pub mod batching;
pub mod chunked;
pub mod greedy;
pub mod packing;
pub mod pools;
pub mod riding;
pub mod routing;
pub mod shares;
pub mod turns;
