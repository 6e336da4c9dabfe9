//! A peer as another knows it.

use super::ControlConfig;
use crate::Time;
use tsnode_protocol::{Advert, Gossip, Heartbeat};

/// How long messages of a peer that is gone may still come by way of others.
const ECHO: Time = Time::from_millis(500);

/// Kinds of messages, each with a sequence of its own: gossip may reorder between kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Advert,
    Heartbeat,
    Plan,
    Endorsement,
    Certificate,
}

impl Kind {
    pub(super) fn of(gossip: &Gossip) -> Self {
        match gossip {
            Gossip::Advert(_) => Self::Advert,
            Gossip::Heartbeat(_) => Self::Heartbeat,
            Gossip::Plan(_) => Self::Plan,
            Gossip::Endorsement(_) => Self::Endorsement,
            Gossip::Certificate(_) => Self::Certificate,
        }
    }
}

/// A peer as another knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its last advert.
    pub advert: Option<Advert>,
    /// Its last heartbeat.
    pub heartbeat: Heartbeat,
    /// When it was last heard.
    pub last_heard: Time,
    pub(super) first_heard: Time,
    pub(super) alive: bool,
    pub(super) disconnected: bool,
    /// When its process was found gone, until it is heard again.
    pub(super) gone_at: Option<Time>,
    /// Since when its heartbeats name another plan.
    pub(super) behind_since: Option<Time>,
    sequences: [u64; 5],
}

impl Member {
    pub(super) fn new(now: Time) -> Self {
        Self {
            advert: None,
            heartbeat: Heartbeat::default(),
            last_heard: now,
            first_heard: now,
            alive: false,
            disconnected: false,
            gone_at: None,
            behind_since: None,
            sequences: [0; 5],
        }
    }

    /// Notes a message's sequence; false if it is not above the last one of its kind.
    pub(super) fn advance(&mut self, kind: Kind, sequence: u64) -> bool {
        let last = &mut self.sequences[kind as usize];
        let grows = sequence > *last;
        *last = sequence.max(*last);
        grows
    }

    /// A message of it has come. What it said before it went may still be on its way round for a moment.
    pub(super) fn heard(&mut self, now: Time) {
        self.last_heard = now;
        self.disconnected = false;
        self.gone_at = self.gone_at.filter(|at| now < *at + ECHO);
    }

    /// Whether its process is no more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone_at.is_some()
    }

    /// Silence after which it is taken for dead.
    pub(super) fn patience(&self, config: &ControlConfig) -> Time {
        if self.disconnected { config.dead_after_disconnect } else { config.dead_after }
    }

    /// Whether it may coordinate.
    pub(super) fn is_eligible(&self) -> bool {
        !self.heartbeat.leaving && self.advert.as_ref().is_some_and(|a| a.reachable)
    }
}
