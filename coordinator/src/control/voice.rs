//! Plan flow 1: what a peer says of itself, how often, and to whom.
//!
//! Heartbeats go to the leader of one's group, and from there to those who listen: the first few by rank, of whom the first
//! is the coordinator. Who has no group tells them itself. To all goes what is news, what somebody misses, and every
//! heartbeat of the listeners: so what anybody says and hears does not grow with the swarm.

use super::{Action, Control, member::Presence};
use crate::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::{
    Gossip, Heartbeat, PeerId, Verified,
    heartbeat::{News, Ready},
    limits,
};

/// Those who listen. More than one, so that none of them can hide a death, and that a partition or a crash seldom takes all;
/// few, since all of them are heard by everybody.
pub(super) const LISTENERS: usize = 3;
/// After a word to all, before an answer to who misses one.
const BREATH: Duration = Duration::from_millis(300);
/// After a sleep, what comes so soon has waited.
const STALE: Duration = Duration::from_secs(1);
/// Calls that are so close are of one silence.
const EPISODE: Duration = Duration::from_millis(1500);
/// Who is missed twice in this time, though it speaks, is not heard where it should be.
const MISSED_AGAIN: Duration = Duration::from_secs(6);
/// How long it then tells all.
const LOUD: Duration = Duration::from_secs(10);
/// And how long it does without its leader, which may be why.
const DIRECT: Duration = Duration::from_secs(60);
/// Adverts are not said again for a call that comes so soon after one.
const ADVERT_FRESH: Duration = Duration::from_secs(5);
/// Where words wait so long in this peer's own queues, it is missed for that: telling all would make them longer.
const BUSY: Duration = Duration::from_secs(1);
/// Of the time, what one peer's word of its load takes up: fifty a second from all.
const LOAD_SHARE: Duration = Duration::from_millis(20);

/// How a peer speaks.
#[derive(Debug, Default)]
pub(super) struct Voice {
    /// Those who listen, by this peer's view.
    pub listeners: Vec<PeerId>,
    /// Since when this peer is one of them.
    pub listens_since: Option<Time>,
    /// When one of them was last given up.
    pub listener_lost: Option<Time>,
    /// When everybody is to be called, since several were.
    pub collect_missing_at: Option<Time>,
    /// What was last said to all, and when.
    said: Option<(Heartbeat, Time)>,
    /// When the last advert was said.
    pub advertised: Option<Time>,
    /// Somebody misses this peer: when it answers.
    answer_at: Option<Time>,
    /// When it was first missed, of late.
    called: Option<Time>,
    loud_until: Time,
    direct_until: Time,
    /// What is heard until then may be old.
    stale_until: Time,
    /// Heartbeats to pass on.
    heard: BTreeMap<PeerId, Verified<Gossip>>,
}

impl Voice {
    /// When it wants to speak beside its rhythm.
    pub fn deadline(&self) -> Option<Time> {
        self.answer_at
    }

    /// This peer was not run for a while: what waited for it meanwhile is no sign of life.
    pub fn slept(&mut self, now: Time) {
        self.heard.clear();
        self.stale_until = now + STALE;
    }

    /// Everybody is to hear of this peer now.
    pub fn answer(&mut self, now: Time) {
        let at = self.said.as_ref().map_or(now, |(_, said)| now.max(*said + BREATH));
        self.answer_at = Some(self.answer_at.map_or(at, |set| set.min(at)));
    }

    /// Somebody misses this peer: all hear it once, and for a while where that was not enough.
    fn missed(&mut self, now: Time) {
        match self.called {
            Some(at) if now < at + EPISODE => {}
            Some(at) if now < at + MISSED_AGAIN => {
                self.loud_until = now + LOUD;
                self.called = Some(now);
            }
            _ => self.called = Some(now),
        }
        self.direct_until = now + DIRECT;
        self.answer(now);
    }
}

impl Control {
    /// Says what is due to whom it is due.
    pub(super) fn beat(&mut self, out: &mut Vec<Action>) {
        if self.own.advert.is_none() {
            return;
        }
        let (now, due) = (self.now, self.next_heartbeat <= self.now);
        let answers = self.voice.answer_at.is_some_and(|at| at <= now);
        let to_all = answers || self.has_news() || (due && (self.is_loud() || self.load_is_news()));
        if !to_all && !due {
            return;
        }
        self.next_heartbeat = now + self.config.heartbeat;
        let heartbeat = self.heartbeat();
        let heard: Vec<Verified<Gossip>> = std::mem::take(&mut self.voice.heard).into_values().collect();
        if to_all {
            self.voice.answer_at = None;
            self.voice.said = Some((heartbeat.clone(), now));
            out.push(Action::Publish(Gossip::Heartbeat(heartbeat.clone())));
        }
        let to = self.homes();
        let own = (!to_all).then_some(heartbeat);
        if !to.is_empty() && (own.is_some() || !heard.is_empty()) {
            out.push(Action::Heartbeats { to, own, heard });
        }
    }

    fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            clock: self.clock_epoch(),
            epoch: self.followed().0,
            term: self.term(),
            plan: self.plan_id(),
            ready: self.own.ready.clone(),
            load: self.own.load,
            leaving: self.own.leaving,
            cut_off: self.own.cut_off.clone(),
            seen_speeds: self.own.seen_speeds.clone(),
        }
    }

    /// Whether something is so that others do not know, and act by.
    fn has_news(&self) -> bool {
        // Asked with every message that comes: what would be said is not made for it.
        let news = || News {
            clock: self.clock_epoch(),
            term: self.term(),
            plan: self.plan_id(),
            leaving: self.own.leaving,
            ready: Ready(&self.own.ready),
            cut_off: &self.own.cut_off,
            seen_speeds: &self.own.seen_speeds,
        };
        self.voice.said.as_ref().is_none_or(|(said, _)| news() != said.news())
    }

    /// Whether gateways should hear how much is to do here: the seldomer the larger the swarm.
    fn load_is_news(&self) -> bool {
        let spacing = LOAD_SHARE * u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let now = (&self.own.load, &self.own.ready[..]);
        let is_other = |said: &Heartbeat| !Heartbeat::has_as_much_to_do((&said.load, &said.ready), now);
        let changed = |(said, at): &(Heartbeat, Time)| self.now >= *at + spacing && is_other(said);
        self.voice.said.as_ref().is_some_and(changed)
    }

    /// Whether every heartbeat is for all: of those who listen, of who is about to go, of who is not heard otherwise.
    fn is_loud(&self) -> bool {
        let listeners = &self.voice.listeners;
        let knows_nobody = !listeners.iter().any(|l| *l != self.config.me);
        let is_missed = self.now < self.voice.loud_until && self.health.backlog() < BUSY;
        knows_nobody || self.listens() || self.own.leaving || is_missed
    }

    /// Whether this peer's advert may be said again so soon after the last: on a full computer it is most likely only late.
    pub(super) fn may_repeat_advert(&self, fresh: Duration) -> bool {
        let rest = fresh + 2 * self.health.backlog();
        self.voice.advertised.is_none_or(|at| self.now >= at + rest)
    }

    /// Whether this peer listens for all, by its own view.
    pub(super) fn listens(&self) -> bool {
        self.voice.listeners.contains(&self.config.me)
    }

    /// Who hears every heartbeat of this peer.
    fn homes(&self) -> Vec<PeerId> {
        if let Some(leader) = self.my_leader().filter(|_| self.now >= self.voice.direct_until) {
            return vec![leader];
        }
        self.voice.listeners.iter().copied().filter(|l| *l != self.config.me).collect()
    }

    /// The leader of this peer's group, where that is another and there.
    fn my_leader(&self) -> Option<PeerId> {
        let (groups, me) = (&self.plan()?.groups, self.config.me);
        if groups.iter().any(|g| g.leader() == Some(me)) {
            return None;
        }
        let group = groups.iter().find(|g| g.stages.iter().any(|s| s.peer == me))?;
        group
            .leader()
            .filter(|l| self.members.get(l).is_some_and(|m| m.presence == Presence::Present && !m.disconnected))
    }

    fn leads(&self, peer: PeerId) -> bool {
        let mine = |g: &&tsnode_protocol::Group| g.leader() == Some(self.config.me);
        self.plan().is_some_and(|p| p.groups.iter().filter(mine).any(|g| g.stages.iter().any(|s| s.peer == peer)))
    }

    /// Heartbeats that `from` said to this peer, or passed on.
    pub(super) fn hear_heartbeats(&mut self, from: PeerId, words: Vec<Verified<Gossip>>, out: &mut Vec<Action>) {
        for word in words.into_iter().take(limits::HEARTBEATS) {
            let (signer, is_own) = (word.signer(), from == self.config.me);
            let is_heartbeat = matches!(word.message(), Gossip::Heartbeat(_));
            // What came by another way already is no replay.
            let is_news = self.members.get(&signer).is_none_or(|m| m.sequences.is_news(word.sequence()));
            if !is_heartbeat || !is_news || (signer == self.config.me) != is_own {
                continue;
            }
            let is_fresh = self.now >= self.voice.stale_until;
            if signer == from
                && !is_own
                && is_fresh
                && self.leads(signer)
                && self.voice.heard.len() < limits::HEARTBEATS
            {
                self.voice.heard.insert(signer, word.clone());
            }
            self.on_gossip(word, super::member::Audience::Straight, out);
        }
    }

    /// Somebody misses this peer.
    pub(super) fn called(&mut self) {
        let now = self.now;
        self.voice.missed(now);
        if self.may_repeat_advert(ADVERT_FRESH) {
            self.advertise_within(Duration::from_millis(200));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ControlConfig;
    use tsnode_protocol::SwarmId;

    #[test]
    fn who_knows_its_own_queues_to_be_full_does_not_make_them_longer() {
        let config = ControlConfig::new(PeerId([1; 32]), SwarmId([1; 16]));
        let mut control = Control::new(config, Time::ZERO, Duration::ZERO);
        control.now = Time::from_secs(10);
        control.voice.listeners = vec![PeerId([2; 32])];
        control.voice.loud_until = Time::from_secs(20);
        control.voice.advertised = Some(Time::from_secs(4));
        let says = |control: &Control| (control.is_loud(), control.may_repeat_advert(ADVERT_FRESH));
        assert_eq!(says(&control), (true, true));
        (0..100).for_each(|_| control.health.came_through(Duration::from_millis(600)));
        assert_eq!(says(&control), (false, false));
    }

    #[test]
    fn who_is_missed_answers_at_once_but_does_not_repeat_what_was_just_said() {
        let now = Time::from_secs(10);
        let mut voice = Voice::default();
        assert_eq!(voice.deadline(), None);
        voice.missed(now);
        assert_eq!(voice.deadline(), Some(now));
        let mut voice = Voice { said: Some((Heartbeat::default(), now)), ..Voice::default() };
        voice.missed(now);
        assert_eq!(voice.deadline(), Some(now + BREATH));
        voice.missed(now + BREATH / 2);
        assert_eq!(voice.deadline(), Some(now + BREATH), "one answer is for both");
    }

    #[test]
    fn who_is_missed_again_though_it_speaks_tells_all_for_a_while() {
        let at = |ms| Time::from_secs(10) + Duration::from_millis(ms);
        let mut voice = Voice::default();
        voice.missed(at(0));
        voice.missed(at(500));
        assert_eq!(voice.loud_until, Time::ZERO, "calls so close are of one silence");
        assert_eq!(voice.direct_until, at(500) + DIRECT);
        voice.missed(at(3_000));
        assert_eq!(voice.loud_until, at(3_000) + LOUD);
        let loud = voice.loud_until;
        voice.missed(at(30_000));
        assert_eq!(voice.loud_until, loud, "that is another silence");
    }

    #[test]
    fn what_waited_while_this_peer_slept_is_not_passed_on() {
        let now = Time::from_secs(10);
        let mut voice = Voice::default();
        voice.slept(now);
        assert!(voice.heard.is_empty() && voice.stale_until == now + STALE);
    }
}
