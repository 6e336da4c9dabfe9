//! Plan flow 1: who is missed, and the liveness digest.
//!
//! Those who listen call whom they do not hear, and everybody calls a neighbour whose connection broke, and a listener that
//! falls silent. Who is called tells all that it is there; who does not is dead for all, soon after. So nobody is dead by
//! anybody's word alone, and whoever is called for nothing loses nothing but a message.
//!
//! What was lost on its way to somebody (a death, an arrival, a change) shows in the digest that the listeners say now and
//! then: who misses somebody on it, has somebody who is not, or has heard less of somebody, calls that peer.

use super::{Action, Control, Member, detector::Sign, voice::LISTENERS};
use crate::Time;
use std::time::Duration;
use tsnode_protocol::{
    Call, Gossip, LivenessDigest, PeerId, limits,
    liveness_digest::{Missed, PeerTag, Present},
};

/// How long a peer that is called may take to be heard: two ways through the swarm, and a pause of a busy host. Longer where
/// the network is uneven.
pub(super) const ANSWER: Duration = Duration::from_secs(2);
/// Between two calls of one peer, whoever calls.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// The same for what a digest shows.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Who does not listen for all waits a little for those who do, each so long as its id says, at most and at least.
const DEFER: (u64, u64) = (300, 900);
/// Between two digests, whoever says them.
const DIGEST_EVERY: Duration = Duration::from_secs(1);
/// The least of it for each peer on it: what is heard of digests does not grow with the swarm.
const DIGEST_SHARE: Duration = Duration::from_millis(20);
/// Listeners lost within this time of each other are several.
const BEREFT: Duration = Duration::from_secs(10);
/// How long somebody is there before a digest has to know.
const SETTLED: Duration = Duration::from_secs(3);

/// The time between two digests in a swarm of so many.
#[must_use]
pub fn digest_every(peers: usize) -> Duration {
    DIGEST_EVERY.max(DIGEST_SHARE * u32::try_from(peers).unwrap_or(u32::MAX))
}

impl Member {
    /// Whether it has been there for so long that a digest has to know it, and nothing is wrong with it.
    pub(super) fn has_settled(&self, now: Time) -> bool {
        self.is_there() && !self.disconnected && !self.is_gone() && now >= self.first_heard + SETTLED
    }

    /// Whether it is time to call it: it seems gone, and nobody has called it just now.
    pub(super) fn is_to_be_called(&mut self, sign: Sign, now: Time, defer: Duration) -> bool {
        if sign == Sign::Fine && !self.disconnected && !self.is_gone() {
            self.late_since = None;
            return false;
        }
        let at_once = self.disconnected || self.is_gone();
        let since = *self.late_since.get_or_insert(now);
        (at_once || now >= since + defer) && self.call_heard.is_none_or(|at| now >= at + CALL_AGAIN)
    }

    /// Whether it is time to have it say to all what it says to a few: where its word to all was lost on its first steps no
    /// digest shows that.
    pub(super) fn is_to_be_asked(&self, now: Time) -> bool {
        self.keeps_from_all(now) && self.call_heard.is_none_or(|at| now >= at + ASK_AGAIN)
    }
}

impl Control {
    /// How long this peer leaves calling to those who listen.
    pub(super) fn defer(&self) -> Duration {
        if self.listens() {
            return Duration::ZERO;
        }
        let spread = DEFER.1 - DEFER.0;
        Duration::from_millis(DEFER.0 + u64::from(self.config.me.0[0]) * spread / 256)
    }

    /// How much longer than usual who is called may take to be heard, by those who are heard all the time: two ways, each as
    /// uneven as the worst of the listeners'. No more than twice as long in all, since one of them may be late on purpose.
    pub(super) fn unevenness(&self) -> Duration {
        let others = self.voice.listeners.iter().filter(|l| **l != self.config.me);
        let heard = others.filter_map(|l| self.members.get(l)).filter(|m| m.watched_since.is_some());
        let worst = heard.map(|m| m.unevenness(&self.config.silence)).max().unwrap_or_default();
        ANSWER.min(2 * worst)
    }

    /// So many who listen were given up; where several are, more is wrong than that.
    pub(super) fn listeners_lost(&mut self, count: usize, defer: Duration) {
        let now = self.now;
        let before = self.voice.listener_lost.replace(now);
        if count > 1 || before.is_some_and(|at| now < at + BEREFT) {
            self.voice.collect_missing_at = Some(now + defer);
        }
    }

    /// Where all who listen are silent, or several were just lost, nobody may know of anybody: everybody else that was not
    /// heard just now.
    pub(super) fn collect_missing(&mut self, misses: bool) -> Vec<Missed> {
        let (now, me) = (self.now, self.config.me);
        let silent = |l: &PeerId| self.members.get(l).is_none_or(|m| !m.is_there() || m.late_since.is_some());
        let alone = misses && self.voice.listeners.iter().all(silent);
        let due = self.voice.collect_missing_at.take_if(|at| *at <= now).is_some();
        if self.listens() || !(alone || due) {
            return Vec::new();
        }
        let quiet = |m: &Member| {
            let was = |at: Option<Time>| at.is_some_and(|at| now < at + CALL_AGAIN);
            m.is_there() && now >= m.last_heard + ANSWER && !was(m.call_heard)
        };
        let missed = self.members.iter_mut().filter(|(peer, m)| **peer != me && quiet(m));
        let call = |(peer, member): (&PeerId, &mut Box<Member>)| {
            member.call_heard = Some(now);
            Missed { peer: PeerTag::of(*peer), last: member.last() }
        };
        missed.map(call).collect()
    }

    pub(super) fn call(&mut self, peers: Vec<Missed>, out: &mut Vec<Action>) {
        for peers in peers.chunks(limits::PEERS) {
            out.push(Action::Publish(Gossip::Call(Call { peers: peers.to_vec() })));
        }
    }

    /// Somebody misses these peers. Who is not there, as far as this peer knows, is answered, and makes it doubt nobody: it may be
    /// long gone, and another say again what it said.
    pub(super) fn hear_call(&mut self, signer: PeerId, call: &Call, out: &mut Vec<Action>) {
        let (now, me, listens) = (self.now, self.config.me, self.listens());
        let (rules, health) = (&self.config.silence, &self.health);
        let is_there = self.members.get(&signer).is_some_and(|m| m.is_there());
        let mut for_me = false;
        for Missed { peer: tag, last } in &call.peers {
            if *tag == PeerTag::of(me) {
                for_me = signer != me;
                continue;
            }
            let known = self.members.range_mut(tag.range()).next().filter(|_| is_there);
            let Some((peer, member)) = known else { continue };
            member.call_heard = Some(now);
            // Who hears it all the time knows better.
            let answered = member.last() > *last && now < member.last_heard + ANSWER;
            if member.is_there() && !answered && member.called.is_none() {
                member.called = Some(now);
                let heard = listens && member.sign(now, health, rules) == Sign::Fine;
                if !heard && member.doubt() {
                    out.push(Action::PeerSuspect(*peer));
                }
            }
        }
        if for_me {
            self.called();
        }
    }

    /// Finds out who listens; says the digest if this peer does, and it is time.
    pub(super) fn send_digest(&mut self, out: &mut Vec<Action>) {
        let (now, me) = (self.now, self.config.me);
        self.elect_listeners();
        let Some(place) = self.voice.listeners.iter().position(|l| *l == me) else {
            self.next_digest = None;
            return;
        };
        let count = self.members().count();
        let many = self.voice.listeners.len() as u32;
        let gap = digest_every(count);
        // They take turns.
        let due = *self.next_digest.get_or_insert(now + gap * (place as u32 + 1));
        if now < due || count <= LISTENERS {
            return;
        }
        self.next_digest = Some(now + gap * many);
        let there = self.members.iter_mut().filter(|(_, m)| m.is_there()).take(limits::PEERS);
        // What is on its way to all still is nothing that anybody misses.
        let present = there.map(|(peer, m)| Present { peer: PeerTag::of(*peer), said: m.listed.replace(m.said()) });
        let digest = LivenessDigest { present: present.collect() };
        out.push(Action::Publish(Gossip::LivenessDigest(digest)));
    }

    fn elect_listeners(&mut self) {
        let (now, me) = (self.now, self.config.me);
        let listeners = self.derive().listeners.clone();
        if listeners != self.voice.listeners {
            self.voice.listeners = listeners;
            let since = self.voice.listens_since.unwrap_or(now);
            self.voice.listens_since = self.listens().then_some(since);
            // Others listen: they are to hear this peer soon.
            self.next_heartbeat = self.next_heartbeat.min(now + self.config.heartbeat / 4);
        }
        debug_assert!(self.voice.listens_since.is_some() == self.voice.listeners.contains(&me));
    }

    /// One who listens says who is there. It proves nothing; those who are in doubt are asked.
    pub(super) fn on_digest(&mut self, signer: PeerId, digest: &LivenessDigest, out: &mut Vec<Action>) {
        let (now, me) = (self.now, self.config.me);
        if signer == me || !self.voice.listeners.contains(&signer) {
            return;
        }
        let mut doubts = Vec::new();
        let mut knows_me = false;
        for Present { peer: tag, said } in &digest.present {
            if *tag == PeerTag::of(me) {
                knows_me = true;
                continue;
            }
            let member = self.members.range_mut(tag.range()).next().map(|(_, m)| m);
            let lacks = said.is_some_and(|said| member.as_ref().is_none_or(|m| !m.is_there() || m.said() < said));
            if let Some(member) = member {
                member.in_digest = now;
                if lacks && member.call_heard.is_none_or(|at| now >= at + ASK_AGAIN) {
                    member.call_heard = Some(now);
                    doubts.push(Missed { peer: *tag, last: member.last() });
                }
            } else if lacks {
                doubts.push(Missed { peer: *tag, last: 0 });
            }
        }
        for (peer, member) in
            self.members.iter_mut().filter(|(peer, m)| m.is_there() && **peer != me && **peer != signer)
        {
            let known =
                now < member.last_heard + SETTLED || now < member.first_heard + SETTLED || member.in_digest == now;
            if !known && member.call_heard.is_none_or(|at| now >= at + ASK_AGAIN) {
                member.call_heard = Some(now);
                doubts.push(Missed { peer: PeerTag::of(*peer), last: member.last() });
            }
        }
        if !doubts.is_empty() {
            self.call(doubts, out);
        }
        if !knows_me && !self.is_new(me) {
            self.called();
        }
    }

    fn is_new(&self, peer: PeerId) -> bool {
        self.members.get(&peer).is_none_or(|m| self.now < m.first_heard + SETTLED)
    }
}
