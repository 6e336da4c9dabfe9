//! Requests that nobody waits for give way to those that somebody waits for. So that they starve never, each counts as if it had
//! come a while later than it did, and no more: after that it is first come first.

use super::{Batcher, Sequence, admission::QueuePlace, state::State};
use crate::Time;
use std::time::Duration;
use tsnode_protocol::{RequestClass, RequestId};

/// How much later than it came a batch request counts as come: well within the time for which it may wait for pages at all.
pub(super) const GIVES_WAY: Duration = Duration::from_secs(10);

impl Sequence {
    /// Its place among those that wait.
    pub fn place(&self, request: RequestId) -> QueuePlace {
        let later = if self.is_batch() { GIVES_WAY } else { Duration::ZERO };
        (self.submitted + later, request)
    }

    fn is_batch(&self) -> bool {
        self.generation.class == RequestClass::Batch
    }
}

impl Batcher {
    /// Whether the next one waits although there may be pages: what has begun is computed in the order it began, so a batch
    /// request's prompt begins only where no other prompt is left to compute. Whoever comes for an answer of its own then
    /// finds one of them before it at most.
    pub(super) fn holds_back(&self, now: Time) -> bool {
        let Some(next) = self.queue.first().and_then(|request| self.sequences.get(&request)) else { return false };
        let is_young = now < next.submitted + GIVES_WAY;
        let computes = |s: &Sequence| match &s.state {
            State::Prefilling { sent, .. } => *sent < s.len(),
            State::Admitting(_) => !s.awaits_kv(),
            _ => false,
        };
        next.is_batch() && !next.awaits_kv() && is_young && self.sequences.values().any(computes)
    }
}
