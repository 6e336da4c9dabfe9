//! A gateway, its clients and the groups that serve them.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

mod answers;
mod failover;
mod scenario;
mod silence;
