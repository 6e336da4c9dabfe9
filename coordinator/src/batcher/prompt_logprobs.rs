//! Log-probabilities of a prompt's tokens: what the last stage says step by step is passed on once it is all there.
//!
//! Who wants them computes every token of the prompt: pages that others filled have KV and no logits, so such a sequence
//! begins with nobody's. What it computed others may begin with.

use super::{Action, Batcher, Sequence};
use tsnode_protocol::{PromptLogprob, RequestId, limits};

/// What is known of a sequence's.
#[derive(Debug, Default)]
pub(super) struct PromptLogprobsSoFar {
    so_far: Vec<PromptLogprob>,
    /// All has been passed on.
    told: bool,
}

impl PromptLogprobsSoFar {
    /// The prompt is computed from its first token on.
    pub fn begin_anew(&mut self) {
        self.so_far = Vec::new();
    }
}

impl Sequence {
    /// Whether its prompt's are wanted, and nobody has been told yet.
    pub fn wants_prompt_logprobs(&self) -> bool {
        let wanted = self.generation.sampling.prompt_logprobs.is_some() && !self.awaits_kv() && !self.exports();
        wanted && !self.prompt_logprobs.told && self.prompt > 1
    }
}

impl Batcher {
    pub(super) fn prompt_logprobs(
        &mut self,
        request: RequestId,
        from: u32,
        logprobs: Vec<PromptLogprob>,
        out: &mut Vec<Action>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&request).filter(|s| s.wants_prompt_logprobs()) else { return };
        let known = &mut sequence.prompt_logprobs.so_far;
        // What was on its way when the sequence gave its pages back is said again.
        if from as usize != known.len() {
            return;
        }
        known.extend(logprobs);
        if known.len() as u32 + 1 < sequence.prompt {
            return;
        }
        sequence.prompt_logprobs.told = true;
        let mut from = 0;
        for part in std::mem::take(&mut sequence.prompt_logprobs.so_far).chunks(limits::PROMPT_LOGPROBS) {
            out.push(Action::PromptLogprobs { request, from, logprobs: part.to_vec() });
            from += part.len() as u32;
        }
    }
}
