//! Two of these run at a time: they mostly wait, and what they find does not hang on how soon.

mod encoders;
mod failures;
mod invites;
mod leaving;
mod nat;
mod noise;
mod parted;
mod people;
mod prompt_logprobs;
mod stalled;
