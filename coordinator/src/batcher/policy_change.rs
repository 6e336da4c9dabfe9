//! Another policy for a group that serves: steps that are on their way end first, and then every sequence that computes comes to the new
//! policy with what is left of it. Nothing is computed twice, and no token depends on it.

use super::{Batcher, State, admission::QueuePlace};
use crate::policy::choice::Batches;

impl Batcher {
    /// Steps are formed so, once those on their way are done.
    pub(super) fn batch_by(&mut self, batches: Batches) {
        self.wanted = (batches != self.config.batches).then_some(batches);
    }

    /// Whether steps may set off: none does while another policy waits for the last one's steps.
    pub(super) fn has_its_policy(&mut self) -> bool {
        let Some(batches) = self.wanted else { return true };
        if self.steps.are_on_the_way() {
            return false;
        }
        self.wanted = None;
        self.config.batches = batches;
        self.steps.form_by(batches, self.config.max_running);
        // First come first, as they came to the last one.
        let mut all: Vec<QueuePlace> = self.sequences.iter().map(|(request, s)| s.place(*request)).collect();
        all.sort_unstable();
        for (_, request) in all {
            let Some(sequence) = self.sequences.get(&request) else { continue };
            match sequence.state {
                State::Prefilling { done, .. } => self.compute_from(request, done),
                State::Decoding { .. } => self.steps.answer(request, sequence.len(), sequence.left()),
                State::Waiting(_)
                | State::Admitting(_)
                | State::AwaitingKv { .. }
                | State::Paused { .. }
                | State::Sending { .. } => {}
            }
        }
        true
    }
}
