//! Log-probabilities of a prompt's tokens, for clients that ask for them: said once, whoever computes the prompt.

use super::{Action, Gateway};
use crate::Time;
use tsnode_protocol::{PromptLogprob, RequestId};

/// What a group has not done that goes on without them.
pub(super) const MISSING: &str = "the prompt's log-probabilities did not come";

impl Gateway {
    /// A group says something of the prompt's tokens. One that computes the prompt again says it all again, and the same.
    pub(super) fn prompt_logprobs(
        &mut self,
        now: Time,
        request: RequestId,
        from: u32,
        mut logprobs: Vec<PromptLogprob>,
        out: &mut Vec<Action>,
    ) {
        let Some(r) = self.requests.get_mut(&request).filter(|r| r.wants_prompt_logprobs()) else { return };
        let (known, from) = (r.answer.prompt_logprobs, from as usize);
        if from < known {
            return;
        }
        if from > known || logprobs.len() >= r.ask.prompt.len() - known {
            let reason = format!("log-probabilities {from} and on came where {known} was next");
            return self.decode_lost(now, request, &reason, out);
        }
        let most = r.ask.generation.sampling.prompt_logprobs.map_or(0, usize::from);
        logprobs.iter_mut().for_each(|one| one.top.truncate(most));
        r.answer.prompt_logprobs += logprobs.len();
        out.push(Action::PromptLogprobs { request, logprobs });
    }

    /// Whether a request is to get them before it ends.
    pub(super) fn lacks_prompt_logprobs(&self, request: RequestId) -> bool {
        self.requests.get(&request).is_some_and(|r| r.wants_prompt_logprobs())
    }
}
