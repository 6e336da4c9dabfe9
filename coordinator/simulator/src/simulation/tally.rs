//! How requests fared, in numbers.

use std::ops::AddAssign;

/// Of one scenario, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScenarioTally {
    /// Clients who came.
    pub asked: u64,
    /// Answers that were complete.
    pub complete: u64,
    /// Requests that nobody took.
    pub unserved: u64,
    /// Requests that ended with a stated error.
    pub failed: u64,
    /// Clients who went.
    pub cancelled: u64,
    /// Requests whose gateway died, and whose client did not come back.
    pub lost: u64,
    /// Requests whose client came back to another gateway with what it had.
    pub resumed: u64,
    /// Times that a gateway asked another group after the first.
    pub moved: u64,
    /// Of those, with tokens already given.
    pub went_on: u64,
}

impl AddAssign for ScenarioTally {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.complete += other.complete;
        self.unserved += other.unserved;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.lost += other.lost;
        self.resumed += other.resumed;
        self.moved += other.moved;
        self.went_on += other.went_on;
    }
}
