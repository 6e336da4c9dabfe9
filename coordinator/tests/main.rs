//! Scenarios of what decides, from outside: each file says what must come of what happens.
//!
//! One program, since each has to be linked: a new file is a line here.

mod batcher;
mod changeover;
mod claim_check;
mod cronus;
mod gateway;
mod lenders;
mod live;
mod one_pool;
mod pools;
mod prompt_logprobs;
mod recovery;
mod several_models;
mod starvation;
mod unresponsive;
