//! Traces of the latest requests that came to their end.

use std::collections::VecDeque;
use tsnode_coordinator::gateway::Trace;

/// Requests remembered.
pub const KEPT: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Traces {
    /// All that were noted in this run.
    noted: u64,
    /// Newest first.
    traces: VecDeque<Trace>,
}

impl Traces {
    /// Remembers one, and forgets the oldest above the limit.
    pub fn note(&mut self, trace: Trace) {
        self.traces.truncate(KEPT - 1);
        self.traces.push_front(trace);
        self.noted += 1;
    }

    /// Puts those of earlier runs behind, newest first, as many as there is room for.
    pub fn restore(&mut self, earlier: impl IntoIterator<Item = Trace>) {
        self.traces.extend(earlier.into_iter().take(KEPT - self.traces.len()));
    }

    pub fn newest(&self) -> Vec<Trace> {
        self.traces.iter().cloned().collect()
    }

    /// Those that were noted behind the first `seen` of this run, or all; newest first, and how many were noted in this run.
    pub fn since(&self, seen: Option<u64>) -> (Vec<Trace>, u64) {
        let fresh = |seen| usize::try_from(self.noted.saturating_sub(seen)).unwrap_or(KEPT);
        (self.traces.iter().take(seen.map_or(KEPT, fresh)).cloned().collect(), self.noted)
    }
}
