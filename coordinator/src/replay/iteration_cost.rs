//! How long an iteration takes: one question, answered here by the cost model.

use crate::{policy::batching::Batch, scheduler::parallel::ParallelConfig};
use std::fmt::Debug;
use tsnode_protocol::{Seconds, Tokens};

/// A machine's speed.
pub trait IterationCost: Debug + Send + Sync {
    /// Time of one iteration of a batch.
    fn iteration(&self, batch: &Batch) -> Seconds;

    /// How long after that its prompts come out, where the machine takes one batch at a time: one of several stages takes
    /// the next when its slowest stage is free.
    fn delay(&self, batch: &Batch) -> Seconds {
        let _ = batch;
        Seconds(0.0)
    }

    /// Stages that may each be at a batch of their own.
    fn stages(&self) -> usize {
        1
    }

    /// Time a batch keeps a stage.
    fn stage(&self, place: usize, batch: &Batch) -> Seconds {
        let _ = place;
        self.iteration(batch)
    }

    /// Time from a stage to the next, or from the last to whoever takes the tokens; the stage is free meanwhile.
    fn kv_transfer(&self, place: usize, batch: &Batch) -> Seconds {
        let _ = (place, batch);
        Seconds(0.0)
    }
}

impl IterationCost for ParallelConfig {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let prompts = f64::from(batch.prompts);
        let (tokens, squares) = (Tokens(batch.prompt_tokens as f64), batch.prompt_squares as f64);
        let mut time = self.busy.mean(tokens, squares) + self.busy.fixed * (prompts - 1.0).max(0.0);
        if batch.prompts == 0 {
            time = Seconds(0.0);
        }
        if batch.answers > 0 {
            let n = f64::from(batch.answers);
            time += ParallelConfig::iteration(self, n, Tokens(batch.context as f64 / n));
        }
        time
    }

    fn delay(&self, batch: &Batch) -> Seconds {
        if batch.prompts == 0 {
            return Seconds(0.0);
        }
        let (tokens, squares) = (Tokens(batch.prompt_tokens as f64), batch.prompt_squares as f64);
        (self.latency.mean(tokens, squares) - self.busy.mean(tokens, squares)).max(Seconds(0.0))
    }
}
