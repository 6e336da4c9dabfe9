//! What requests are promised, as multiples of what a reference machine takes for them alone (Splitwise Table VI), and what
//! a machine is predicted to take.

use super::batching::Batch;
use crate::simulator::cost::IterationCost;
use std::sync::Arc;
use tsnode_protocol::Seconds;

/// What is promised.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The reference machine.
    pub alone: Arc<dyn IterationCost>,
    /// The first token comes within so many times what the prompt takes there.
    pub first: f64,
    /// A token after it within so many times what it takes there.
    pub pace: f64,
    /// Experiment.
    pub weight: f64,
}

impl Targets {
    /// Time to the first token of a prompt of so many tokens.
    #[must_use]
    pub fn first(&self, prompt: u32) -> Seconds {
        self.alone.iteration(&prompts([prompt])) * self.first
    }

    /// Time between two tokens of an answer.
    #[must_use]
    pub fn pace(&self, context: u64) -> Seconds {
        self.alone.iteration(&answers(1, context)) * self.pace
    }
}

/// These prompts as a batch.
pub(super) fn prompts(tokens: impl IntoIterator<Item = u32>) -> Batch {
    tokens.into_iter().fold(Batch { iterations: 1, ..Batch::default() }, with_prompt)
}

/// A batch and one prompt more.
pub(super) fn with_prompt(batch: Batch, tokens: u32) -> Batch {
    let tokens = u64::from(tokens);
    Batch {
        prompts: batch.prompts + 1,
        prompt_tokens: batch.prompt_tokens + tokens,
        prompt_squares: batch.prompt_squares + tokens * tokens,
        ..batch
    }
}

/// So many answers with so much context all together, as a batch.
pub(super) fn answers(answers: u32, context: u64) -> Batch {
    Batch { answers, context, iterations: 1, ..Batch::default() }
}
