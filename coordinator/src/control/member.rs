//! A peer as another knows it.

use super::{
    calls::Calls,
    detector::{ArrivalWindow, Health, Sign, Silence},
};
use crate::Time;
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, Epoch, Gossip, Heartbeat, Life, PlanId, Term};

/// How long messages of a peer that is gone may still come by way of others.
const ECHO: Time = Time::from_secs(3);

/// How long a word to all may be on its way, when what was said later has come straight.
const UNTOLD: Duration = Duration::from_millis(1500);

/// How long a call may be on its way when what its caller said later has come. While it stands it is said anew each second. An
/// older one is an old one that somebody says again: news where it was missed, but not to whom it names, who would not answer.
const OVERTAKEN: Time = Time::from_secs(3);

/// Between two changes of one peer that hold up planning.
const RESTLESS: Time = Time::from_secs(5);

/// Kinds of messages, each with a sequence of its own: gossip may reorder between kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Advert,
    Heartbeat,
    Plan,
    Endorsement,
    Certificate,
    Call,
    LivenessDigest,
}

impl Kind {
    pub(super) fn of(gossip: &Gossip) -> Self {
        match gossip {
            Gossip::Advert(_) => Self::Advert,
            Gossip::Heartbeat(_) => Self::Heartbeat,
            Gossip::Plan(_) => Self::Plan,
            Gossip::Endorsement(_) => Self::Endorsement,
            Gossip::Certificate(_) => Self::Certificate,
            Gossip::Call(_) => Self::Call,
            Gossip::LivenessDigest(_) => Self::LivenessDigest,
        }
    }
}

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// To everybody.
    ToAll,
    /// To this peer, and a few others.
    Straight,
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
    /// It is late: nothing new for it.
    pub suspect: bool,
    pub(super) first_heard: Time,
    pub(super) alive: bool,
    pub(super) disconnected: bool,
    /// When its process was found gone, until it is heard again.
    pub(super) gone_at: Option<Time>,
    /// Since when its heartbeats name another plan.
    pub(super) behind_since: Option<Time>,
    /// The last plan it proposed, and when it was for.
    pub(super) proposed: Option<(Epoch, Term, PlanId)>,
    /// When its coming, going or changing last held up planning.
    pub(super) stirred: Option<Time>,
    /// Plans made to bring it back to the others: it gets ever fewer, since it may be lying.
    pub(super) disputes: u32,
    /// Since when it is called and has not answered.
    pub(super) called: Option<Time>,
    /// When somebody last called it.
    pub(super) call_heard: Option<Time>,
    /// Since when it seems late to this peer.
    pub(super) late_since: Option<Time>,
    /// Since when it is for this peer to hear it all the time.
    pub(super) watched_since: Option<Time>,
    /// What this peer's next roll says of it.
    pub(super) listed: Option<u64>,
    /// When another's roll last had it.
    pub(super) rolled: Time,
    /// The last heartbeat that it said to all.
    for_all: u64,
    /// What was in it.
    told: Option<Heartbeat>,
    /// Since when it says a few what it has not said to all, as far as this peer has heard.
    untold_since: Option<Time>,
    arrivals: ArrivalWindow,
    pub(super) life: Life,
    sequences: [u64; 7],
    calls: Calls,
    /// The highest sequence as it was at two times, with [`OVERTAKEN`] or more between them.
    marks: [(Time, u64); 2],
}

impl Member {
    pub(super) fn new(now: Time, heartbeat: Duration) -> Self {
        Self {
            advert: None,
            heartbeat: Heartbeat::default(),
            last_heard: now,
            suspect: false,
            first_heard: now,
            alive: false,
            disconnected: false,
            gone_at: None,
            behind_since: None,
            proposed: None,
            stirred: None,
            disputes: 0,
            called: None,
            call_heard: None,
            late_since: None,
            watched_since: None,
            listed: None,
            rolled: Time::ZERO,
            for_all: 0,
            told: None,
            untold_since: None,
            arrivals: ArrivalWindow::new(heartbeat),
            life: Life::default(),
            sequences: [0; 7],
            calls: Calls::default(),
            marks: [(now, 0); 2],
        }
    }

    /// Notes a message's sequence; false if it is of a former life, or not above the last one of its kind: what was said later
    /// stands for it, but where it is a call, which is refused if it has come before, or was overtaken long ago.
    pub(super) fn advance(&mut self, now: Time, kind: Kind, sequence: u64) -> bool {
        let life = Life::of(sequence);
        if life < self.life {
            return false;
        }
        let is_old = kind == Kind::Call && sequence < self.overtaken(now);
        let last = &mut self.sequences[kind as usize];
        let is_news = if kind == Kind::Call { !is_old && self.calls.note(sequence) } else { sequence > *last };
        if !is_news {
            return false;
        }
        *last = sequence.max(*last);
        if life > self.life {
            self.life = life;
            self.gone_at = None;
            (self.told, self.untold_since) = (None, None);
            self.arrivals.skip();
        }
        true
    }

    /// What it said before this was overtaken long ago.
    fn overtaken(&self, now: Time) -> u64 {
        let is_long_ago = |mark: &&(Time, u64)| now >= mark.0 + OVERTAKEN;
        self.marks.iter().rev().find(is_long_ago).map_or(0, |mark| mark.1)
    }

    /// A heartbeat for all, that what it said straight here later has overtaken: false if it is none.
    pub(super) fn was_overtaken(&mut self, sequence: u64, heartbeat: &Heartbeat) -> bool {
        let last = self.sequences[Kind::Heartbeat as usize];
        let was = Life::of(sequence) == self.life && self.for_all < sequence && sequence < last;
        if was {
            self.for_all = sequence;
            self.told = Some(heartbeat.clone());
            self.untold_since = self.untold_since.filter(|_| self.heartbeat.is_news_after(heartbeat));
        }
        was
    }

    /// Its heartbeat is news to this peer, and to all where it came so.
    pub(super) fn tells(&mut self, now: Time, heartbeat: Heartbeat, way: Audience) {
        match way {
            Audience::ToAll => (self.told, self.untold_since) = (Some(heartbeat.clone()), None),
            // Who has said nothing to all yet, here, is new, or is to this peer: adverts will tell.
            Audience::Straight if !self.told.as_ref().is_some_and(|told| heartbeat.is_news_after(told)) => {
                self.untold_since = None;
            }
            Audience::Straight => _ = self.untold_since.get_or_insert(now),
        }
        self.heartbeat = heartbeat;
    }

    /// Whether something that all should know did not come to all, or not here.
    pub(super) fn keeps_from_all(&self, now: Time) -> bool {
        self.untold_since.is_some_and(|since| now >= since + UNTOLD)
    }

    /// Whether a heartbeat of that sequence is later than the last.
    pub(super) fn is_news(&self, sequence: u64) -> bool {
        Life::of(sequence) >= self.life && sequence > self.sequences[Kind::Heartbeat as usize]
    }

    /// The highest sequence it was heard with.
    pub(super) fn last(&self) -> u64 {
        self.sequences.into_iter().max().unwrap_or_default()
    }

    /// How much of what all were to know of it this peer has heard: it only grows.
    pub(super) fn said(&self) -> u64 {
        self.sequences[Kind::Advert as usize].wrapping_add(self.for_all)
    }

    /// From now on it is to be heard all the time, or no longer.
    pub(super) fn watch(&mut self, watched: bool, now: Time) {
        if watched != self.watched_since.is_some() {
            self.watched_since = watched.then_some(now);
            self.late_since = None;
            // Its silence was a reason only as long as it was to be heard.
            self.suspect &= watched || self.called.is_some();
            self.arrivals.skip();
        }
    }

    /// A message of it has come. What it said before it went may still be on its way round for a moment.
    pub(super) fn heard(&mut self, now: Time, kind: Kind, way: Audience) {
        self.last_heard = now;
        if now >= self.marks[1].0 + OVERTAKEN {
            self.marks = [self.marks[1], (now, self.last())];
        }
        self.disconnected = false;
        self.suspect = false;
        (self.called, self.late_since) = (None, None);
        self.gone_at = self.gone_at.filter(|at| now < *at + ECHO);
        if kind == Kind::Heartbeat {
            // Of others only what is news comes here, and its gaps say nothing about the next.
            if self.watched_since.is_some() {
                self.arrivals.beat(now);
            }
            if way == Audience::ToAll {
                self.for_all = self.sequences[kind as usize];
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
    fn a_call_that_was_overtaken_is_heard_once_and_other_words_are_not() {
        let mut member = Member::new(Time::ZERO, Duration::from_secs(1));
        let mut note = |kind, sequence| member.advance(Time::ZERO, kind, sequence);
        let heard = [9, 5, 9, 5, 6].map(|sequence| note(Kind::Call, sequence));
        assert_eq!(heard, [true, true, false, false, true]);
        assert_eq!([9, 5].map(|sequence| note(Kind::Heartbeat, sequence)), [true, false]);
        assert!((10..20).all(|sequence| note(Kind::Call, sequence)));
        assert!(!note(Kind::Call, 7), "too many have come since");
        assert_eq!(member.last(), 19);
    }
}
