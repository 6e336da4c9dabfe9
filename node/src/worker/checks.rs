//! Draft tokens that the groups led here had checked since the start.

use std::sync::{Mutex, PoisonError};
use tsnode_coordinator::batcher::Tally;

/// Counted by all leaders, read by whoever shows it.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<Tally>);

impl Checks {
    pub fn add(&self, more: Tally) {
        if more != Tally::default() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) += more;
        }
    }

    pub fn so_far(&self) -> Tally {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
