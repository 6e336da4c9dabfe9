//! When KV has come from one machine to another.

use crate::policy::routing::RoutingDecision;
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// How KV gets from machine to machine.
pub trait KvLinks: std::fmt::Debug + Send {
    /// When KV of a prompt, or of its first part, that is computed from `start` to `done` has come to the other machine.
    fn land(&mut self, route: RoutingDecision, prompt: Tokens, start: Seconds, done: Seconds) -> Seconds;
}

/// Every pair alike, any number of transfers at once, each beginning when its prompt is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alike {
    /// For each token of a prompt.
    pub per_token: SecondsPerToken,
}

impl KvLinks for Alike {
    fn land(&mut self, _: RoutingDecision, prompt: Tokens, _: Seconds, done: Seconds) -> Seconds {
        done + self.per_token * prompt
    }
}
