//! Plan flow 1: which calls of one peer have come.
//!
//! Of all other words the latest stands for those before it. A call names other peers than the next one, so that one that was
//! overtaken on its way is to be heard, and one that comes again is not.

/// Calls that are told apart: so many later ones may overtake one.
const CALLS: usize = 8;

/// The sequences of one peer's latest calls.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// Ascending; zeros where fewer have come.
    latest: [u64; CALLS],
}

impl Calls {
    /// Notes a call; false if it has come before, or too many later ones have.
    pub fn note(&mut self, sequence: u64) -> bool {
        let is_new = sequence > self.latest[0] && !self.latest.contains(&sequence);
        if is_new {
            self.latest[0] = sequence;
            self.latest.sort_unstable();
        }
        is_new
    }
}
