//! Tokens chosen on a GPU: which ways of choosing can be, and how a GPU is told of them.

use bytemuck::{Pod, Zeroable};
use tsnode_protocol::{Sampled, Sampling, Token};

/// How a row's token is chosen, as `device/choose.cu` reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(crate) struct RowChoice {
    seed: u64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    position: u32,
    unused: u32,
}
const _: () = assert!(size_of::<RowChoice>() == 32);

/// What was chosen for a row, as `device/choose.cu` writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(crate) struct ChosenToken {
    pub token: u32,
    /// The natural logarithm of its probability, before cuts and temperature: whoever checks the answer compares it.
    pub logprob: f32,
}

impl From<ChosenToken> for Sampled {
    fn from(ChosenToken { token, logprob }: ChosenToken) -> Self {
        Self { token: Token(token), logprob: Some(logprob), top: Vec::new() }
    }
}

impl RowChoice {
    /// For a row whose next token is at `position`; none where a choice needs all logits: for penalties, biases, and
    /// probabilities that are reported.
    pub fn of(sampling: &Sampling, position: u32) -> Option<Self> {
        let plain = !sampling.changes_logits() && sampling.logprobs.is_none();
        let Sampling { seed, temperature, top_p, min_p, top_k, .. } = *sampling;
        plain.then_some(Self { seed, temperature, top_p, min_p, top_k, position, unused: 0 })
    }
}
