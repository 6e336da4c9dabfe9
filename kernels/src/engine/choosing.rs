//! Prompt flow 8: a step whose tokens are chosen where it was computed, so that no logits leave a GPU.

use super::{Engine, EngineError, Input, Output, RowToSample, Slice, StageKey, Tap};
use crate::cuda::RowChoice;
use tsnode_protocol::Sampled;

impl Engine {
    /// Computes a batch on a GPU and chooses tokens of some rows there, each row by itself: nobody has told the GPU which
    /// tokens came before. `None`, with nothing computed, where that is not done: on the processor, for no rows, and for ways of
    /// choosing that need all logits here (penalties, biases, probabilities that are reported).
    ///
    /// # Errors
    /// As [`Self::forward_tapped`].
    pub fn choose_on_gpu(
        &mut self,
        stage: StageKey,
        batch: &[Slice],
        input: Input<'_>,
        picks: &[RowToSample<'_>],
        tap: Option<&mut dyn Tap>,
    ) -> Result<Option<Vec<Sampled>>, EngineError> {
        if !self.is_on_gpu() || picks.is_empty() {
            return Ok(None);
        }
        let choices: Option<Vec<RowChoice>> =
            picks.iter().map(|pick| RowChoice::of(pick.sampling, pick.position)).collect();
        let Some(choices) = choices else { return Ok(None) };
        let rows: Vec<usize> = picks.iter().map(|pick| pick.row).collect();
        let output = Output::Logits { rows: &rows };
        self.check(stage, batch, input, output)?;
        let chosen = self.step_on_gpu(stage, batch, input, output, &choices, tap)?;
        Ok(Some(chosen.into_iter().map(Sampled::from).collect()))
    }
}
