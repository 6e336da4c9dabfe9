//! How byzantine peers lie: each runs the machine that everybody runs, and lies in one way on top of it.

use std::time::Duration;

/// Ways of lying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Tells half of the peers another plan than the rest.
    SecondPlan,
    /// Plans when others have the turn.
    OutOfTurn,
    /// Shows certificates that its own endorsement alone bears out.
    FalseCertificate,
    /// Plans for itself alone, which its own endorsement is a majority for, follows that and shows its certificate.
    Usurper,
    /// Plans with devices that do not exist.
    Infeasible,
    /// Says again what others said long ago.
    Replay,
    /// Jumps ahead in its sequences, and back: those that heard the jump take it for dead, others do not.
    Sequence,
    /// Claims terms and epochs of a far future.
    Future,
    /// Claims to follow a plan that nobody knows.
    Stray,
    /// Claims ever other devices, faster than any there are.
    Boast,
    /// Endorses everything, and more than once.
    Endorses,
    /// Never plans when it has the turn.
    Unresponsive,
    /// Says that it has cut off everybody.
    Slander,
    /// Listens and leads, and tells nobody what it hears: misses nobody, passes no heartbeat on, has everybody on its roll.
    Deaf,
    /// Calls everybody, all the time, and has nobody on its roll.
    Caller,
}

impl Lie {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::SecondPlan,
        Self::OutOfTurn,
        Self::FalseCertificate,
        Self::Usurper,
        Self::Infeasible,
        Self::Replay,
        Self::Sequence,
        Self::Future,
        Self::Stray,
        Self::Boast,
        Self::Endorses,
        Self::Unresponsive,
        Self::Slander,
        Self::Deaf,
        Self::Caller,
    ];
}

/// Between two lies of one peer.
pub(super) const EVERY: Duration = Duration::from_millis(1500);
