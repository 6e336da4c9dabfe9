//! Draft tokens that the groups led here had checked since the start.

use std::sync::{Mutex, PoisonError};
use tsnode_coordinator::batcher::SpeculationTally;

/// Counted by all leaders, read by whoever shows it.
#[derive(Debug, Default)]
pub(super) struct SpeculationChecks(Mutex<SpeculationTally>);

impl SpeculationChecks {
    pub fn add(&self, more: SpeculationTally) {
        if more != SpeculationTally::default() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) += more;
        }
    }

    pub fn so_far(&self) -> SpeculationTally {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
