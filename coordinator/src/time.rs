//! Time as the machines see it.

/// Since the process began.
pub type Time = std::time::Duration;
