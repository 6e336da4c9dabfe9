//! A peer as another knows it.

mod announced;
mod dispute;
mod sequences;

pub(super) use sequences::MessageKind;

use super::detector::{ArrivalWindow, Health, Sign, Silence};
use crate::{
    Time,
    rate_limit::{RateLimit, TokenBucket},
};
use announced::Announced;
use dispute::Dispute;
use sequences::Sequences;
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, Heartbeat, Life};

/// How long messages of a peer that is gone may still come by way of others.
const ECHO: Time = Time::from_secs(3);

/// Between two changes of one peer that hold up planning.
const RESTLESS: Time = Time::from_secs(5);

/// Certificates of one peer that are looked at: it shows one a second at most, and one for each plan that it made. A gossip message holds
/// some two thousand endorsements, each a signature to check.
const CERTIFICATES: RateLimit = RateLimit { per_second: 2.0, burst: 16.0 };

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// To everybody, by gossip.
    ToAll,
    /// To this peer, and a few others.
    Straight,
}

/// Whether a peer is there, as another sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Not yet, or no longer.
    #[default]
    Absent,
    /// It was heard of late enough.
    Present,
    /// It is late: nothing new for it.
    Suspect,
}

/// A peer as another knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its last advert.
    pub advert: Option<Arc<Advert>>,
    /// Its last heartbeat.
    pub heartbeat: Heartbeat,
    /// When it was last heard.
    pub last_heard: Time,
    /// Whether it is there.
    pub presence: Presence,
    pub(super) first_heard: Time,
    pub(super) disconnected: bool,
    /// When its process was found gone, until it is heard again.
    pub(super) gone_at: Option<Time>,
    /// Which plan it follows, beside the one in force.
    pub(super) dispute: Dispute,
    /// When its coming, going or changing last held up planning.
    stirred: Option<Time>,
    /// Since when it is called and has not answered.
    pub(super) called: Option<Time>,
    /// When somebody last called it.
    pub(super) call_heard: Option<Time>,
    /// Since when it seems late to this peer.
    pub(super) late_since: Option<Time>,
    /// Since when it is for this peer to hear it all the time.
    pub(super) watched_since: Option<Time>,
    /// What this peer's next liveness digest says of it.
    pub(super) listed: Option<u64>,
    /// When another's digest last had it.
    pub(super) in_digest: Time,
    announced: Announced,
    arrivals: ArrivalWindow,
    certificates: TokenBucket,
    pub(super) sequences: Sequences,
}

impl Member {
    pub(super) fn new(now: Time, heartbeat: Duration) -> Self {
        Self {
            advert: None,
            heartbeat: Heartbeat::default(),
            last_heard: now,
            presence: Presence::Absent,
            first_heard: now,
            disconnected: false,
            gone_at: None,
            dispute: Dispute::default(),
            stirred: None,
            called: None,
            call_heard: None,
            late_since: None,
            watched_since: None,
            listed: None,
            in_digest: Time::ZERO,
            announced: Announced::default(),
            arrivals: ArrivalWindow::new(heartbeat),
            certificates: TokenBucket::new(CERTIFICATES, now),
            sequences: Sequences::new(now),
        }
    }

    /// Whether it is there, late or not.
    pub(super) fn is_there(&self) -> bool {
        self.presence != Presence::Absent
    }

    /// It is late; whether that is news.
    pub(super) fn doubt(&mut self) -> bool {
        let is_news = self.presence == Presence::Present;
        if is_news {
            self.presence = Presence::Suspect;
        }
        is_news
    }

    /// It is doubted no longer.
    fn trust(&mut self) {
        if self.presence == Presence::Suspect {
            self.presence = Presence::Present;
        }
    }

    /// It has answered nobody, or said goodbye.
    pub(super) fn give_up(&mut self) {
        (self.presence, self.called) = (Presence::Absent, None);
    }

    /// Notes a message's sequence; false if it is no news ([`Sequences::advance`]).
    pub(super) fn advance(&mut self, now: Time, kind: MessageKind, sequence: u64) -> bool {
        let Some(is_reborn) = self.sequences.advance(now, kind, sequence) else { return false };
        if is_reborn {
            self.gone_at = None;
            self.announced.reborn();
            self.arrivals.skip();
        }
        true
    }

    /// A heartbeat for all, that what it said straight here later has overtaken: false if it is none.
    pub(super) fn was_overtaken(&mut self, sequence: u64, heartbeat: &Heartbeat) -> bool {
        let (last, life) = (self.sequences.of(MessageKind::Heartbeat), self.sequences.life());
        let was = Life::of(sequence) == life && self.announced.sequence() < sequence && sequence < last;
        if was {
            self.announced.overtaken(sequence, heartbeat, &self.heartbeat);
        }
        was
    }

    /// Its heartbeat is news to this peer, and to all where it came so.
    pub(super) fn tells(&mut self, now: Time, heartbeat: Heartbeat, way: Audience) {
        self.announced.tells(now, &heartbeat, way);
        self.heartbeat = heartbeat;
    }

    /// Whether something that all should know did not come to all, or not here.
    pub(super) fn keeps_from_all(&self, now: Time) -> bool {
        self.announced.keeps_from_all(now)
    }

    /// The highest sequence it was heard with.
    pub(super) fn last(&self) -> u64 {
        self.sequences.highest()
    }

    /// How much of what all were to know of it this peer has heard: it only grows.
    pub(super) fn said(&self) -> u64 {
        self.sequences.of(MessageKind::Advert).wrapping_add(self.announced.sequence())
    }

    /// From now on it is to be heard all the time, or no longer.
    pub(super) fn watch(&mut self, watched: bool, now: Time) {
        if watched != self.watched_since.is_some() {
            self.watched_since = watched.then_some(now);
            self.late_since = None;
            // Its silence was a reason only as long as it was to be heard.
            if !watched && self.called.is_none() {
                self.trust();
            }
            self.arrivals.skip();
        }
    }

    /// A message of it has come. What it said before it went may still be on its way round for a moment.
    pub(super) fn heard(&mut self, now: Time, kind: MessageKind, way: Audience) {
        self.last_heard = now;
        self.sequences.heard(now);
        self.disconnected = false;
        self.trust();
        (self.called, self.late_since) = (None, None);
        self.gone_at = self.gone_at.filter(|at| now < *at + ECHO);
        if kind == MessageKind::Heartbeat {
            // Of others only what is news comes here, and its gaps say nothing about the next.
            if self.watched_since.is_some() {
                self.arrivals.beat(now);
            }
            if way == Audience::ToAll {
                self.announced.heard(self.sequences.of(kind));
            }
        }
    }

    /// The listener slept so long: what this peer said meanwhile is still to be heard.
    pub(super) fn excuse(&mut self, slept: Duration, now: Time) {
        self.last_heard = (self.last_heard + slept).min(now);
        self.called = self.called.map(|at| (at + slept).min(now));
        self.arrivals.skip();
    }

    /// How much longer it may be silent than a regular peer.
    pub(super) fn unevenness(&self, rules: &Silence) -> Duration {
        self.arrivals.unevenness(rules)
    }

    /// What its silence means.
    pub(super) fn sign(&self, now: Time, health: &Health, rules: &Silence) -> Sign {
        // Who has said goodbye is not waited for.
        let stays = !self.disconnected && !self.heartbeat.leaving;
        let since = self.last_heard.max(self.watched_since.unwrap_or_default());
        self.arrivals.sign(now.saturating_sub(since), stays, health, rules)
    }

    /// Whether its change may hold up planning: not if it changes all the time.
    pub(super) fn stirs(&mut self, now: Time) -> bool {
        let rested = self.stirred.is_none_or(|at| now >= at + RESTLESS);
        if rested {
            self.stirred = Some(now);
        }
        rested
    }

    /// Whether a certificate that it shows is looked at.
    pub(super) fn may_prove(&mut self, now: Time) -> bool {
        self.certificates.take(now).is_ok()
    }

    /// Whether its process is no more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone_at.is_some()
    }

    /// Whether it may coordinate.
    pub(super) fn is_eligible(&self) -> bool {
        !self.heartbeat.leaving && self.advert.as_ref().is_some_and(|a| a.reachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_late_is_doubted_once_and_trusted_again_when_it_is_heard() {
        let (now, second) = (Time::from_secs(1), Duration::from_secs(1));
        let mut member = Member::new(Time::ZERO, second);
        assert!(!member.doubt() && !member.is_there(), "who is not there is not late");
        member.presence = Presence::Present;
        assert!(member.doubt() && !member.doubt() && member.is_there());
        member.heard(now, MessageKind::Heartbeat, Audience::ToAll);
        assert_eq!(member.presence, Presence::Present);
        member.watch(true, now);
        member.doubt();
        member.watch(false, now);
        assert_eq!(member.presence, Presence::Present, "its silence was a reason only as long as it was to be heard");
        (member.called, _) = (Some(now), member.doubt());
        member.give_up();
        assert_eq!((member.presence, member.called), (Presence::Absent, None));
        member.heard(now, MessageKind::Heartbeat, Audience::ToAll);
        assert!(!member.is_there(), "a word alone brings nobody back");
    }
}
