//! Prompt flow 8: who of those that owe something is not there any more, though its connections are open.
//!
//! A peer that computes for long still answers: its transport acknowledges whatever comes, beside the work. One whose process is
//! stopped, or whose way is cut, acknowledges nothing. So who is silent while something is expected of it is asked for a sign of
//! life, and who gives none in good time is unresponsive: what it owes goes on elsewhere. Likewise who was stopped before there
//! was a connection to it: it does not answer the first packet of one, for as long as the transport goes on trying. Its system does
//! take calls for it, and that tells it sooner from one that is only far away. That is no offence, and no death either
//! ([`crate::control`] decides on those): who speaks again is sent work again.
//!
//! How long an answer may take follows from what was seen: several times what this peer's slowest answers took of late, or a floor
//! where that is less; the way there; and how late the listener itself is. A host with much else to do answers late now and then, and is given longer
//! from then on. Who was unresponsive and spoke after all was stopped for a moment, or is late: that is told by the second time.

use crate::{Time, control::detector::Health, paths::HEAD_START};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::PeerId;

/// How often to look.
pub const LOOK: Duration = Duration::from_millis(50);
/// How often to look while there is nothing to wait for: a peer that has a connection to each of a thousand is quiet when it is idle.
pub const REST: Duration = Duration::from_secs(1);
/// Who says nothing for so long is asked. Where tokens flow, nobody is.
const USUAL: Duration = Duration::from_millis(200);
/// Then again and again: a packet may be lost. And who is unresponsive, to hear when it is there again.
const AGAIN: Duration = Duration::from_millis(150);
const AGAIN_MUTE: Duration = Duration::from_millis(500);
/// The least time for an answer.
const LEAST: Duration = Duration::from_millis(450);
/// The most. Connections are given up then anyway.
const MOST: Duration = Duration::from_secs(4);
/// So many times as long as its slowest answer of late took is no silence; nor are so many round trips more than that, or than the
/// least.
const SLOWER: f64 = 2.5;
const ROUND_TRIPS: f64 = 4.0;
/// What an answer took counts half so long afterwards (s).
const FADES: f64 = 20.0;
/// Who was unresponsive is taken for slow if that was so twice within so long: once it may have been stopped.
const RETURNED: Duration = Duration::from_secs(20);
/// Who took longer was stopped, or cut off, which says nothing of how soon it answers when it is not.
const STOPPED: Duration = Duration::from_secs(3);
/// A look that comes so late was not held up by other work.
const SLEPT: Duration = Duration::from_secs(1);
/// The least time that making a connection may take: the straight way is tried alone at first, and the way around a NAT, where there
/// is none, takes some round trips more.
const CONNECTS: Duration = Duration::from_millis(HEAD_START.as_millis() as u64 + 1000);
/// The same where its host has taken a call for it: then there is a way, and nobody but its process is waited for.
const GREETS: Duration = Duration::from_millis(900);
/// Where so many are expected to speak and none does, it may be the listener who is cut off: then all have the most time.
const ALL: usize = 3;
/// Who is unresponsive stays so for so long after its last connection has gone: whoever decides on deaths has noticed by then.
const GONE: Duration = Duration::from_secs(6);

/// What the transport says of a peer of which something is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportSign {
    /// Packets that have come from it, over all connections that there are: fewer than before where one is no more.
    pub packets: u64,
    /// How long one takes to be acknowledged when nothing holds it up.
    pub round_trip: Duration,
    /// Whether there is a connection.
    pub connected: bool,
    /// Whether something is expected of it.
    pub owes: bool,
    /// For how long its host has held a call that its process has not answered, where there is one.
    pub unanswered: Option<Duration>,
}

/// What follows from one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeActions {
    /// Who is to be asked for a sign of life.
    pub ask: Vec<PeerId>,
    /// Who gives none, from now on.
    pub unresponsive: Vec<PeerId>,
    /// Who was unresponsive, and speaks.
    pub responsive: Vec<PeerId>,
}

/// One peer's silence.
#[derive(Clone, Copy, Debug)]
struct PeerSilence {
    packets: u64,
    heard: Time,
    /// Since when an answer is due, and when it was last asked for.
    asked: Option<(Time, Time)>,
    /// Since when a connection is missing on which it could answer.
    missing: Option<Time>,
    /// What its slowest answer took (s), and when that was.
    slow: (f64, Time),
    unresponsive: bool,
    /// When it last spoke after having been unresponsive.
    returned: Option<Time>,
}

/// Those of whom something is expected.
#[derive(Debug, Default)]
pub struct LivenessProbe {
    peers: BTreeMap<PeerId, PeerSilence>,
    health: Health,
    /// When the next look is due.
    due: Option<Time>,
    /// Whether there is nothing to wait for.
    rests: bool,
}

impl LivenessProbe {
    /// Who is unresponsive.
    pub fn unresponsive(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().filter(|(_, peer)| peer.unresponsive).map(|(id, _)| *id)
    }

    /// Of whom something is known; what it is fades.
    pub fn known(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// Whether the next look may wait for [`REST`], or until something is expected of somebody: nothing is, nobody is to answer, and
    /// nobody is unresponsive.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Looks at those of whom something is expected, and at all others who are known. To be called every [`LOOK`], unless it
    /// [rests](Self::rests).
    pub fn look(&mut self, now: Time, seen: &BTreeMap<PeerId, TransportSign>) -> ProbeActions {
        let late = self.due.map_or(Duration::ZERO, |due| now.saturating_sub(due));
        // Who was stopped is not slow afterwards: only a listener with much else to do is.
        if late < SLEPT {
            self.health.woke(self.due.unwrap_or(now), now);
        }
        let mut out = ProbeActions::default();
        for (id, peer) in &mut self.peers {
            if peer.listens(now, late, seen.get(id)) && std::mem::take(&mut peer.unresponsive) {
                out.responsive.push(*id);
            }
        }
        for (id, seen) in seen.iter().filter(|(_, seen)| seen.owes || seen.connected) {
            self.peers.entry(*id).or_insert_with(|| PeerSilence::new(now, seen.packets));
        }
        let alone = self.hears_nobody(seen);
        let grace = self.health.grace();
        for (id, peer) in &mut self.peers {
            let Some(seen) = seen.get(id) else { continue };
            if seen.connected && (seen.owes || peer.unresponsive) && peer.is_to_be_asked(now) {
                out.ask.push(*id);
            }
            if seen.owes && !peer.unresponsive && peer.is_silent(now, seen, grace, alone) {
                peer.unresponsive = true;
                out.unresponsive.push(*id);
            }
        }
        self.peers.retain(|id, peer| match seen.get(id) {
            Some(seen) if seen.connected || (seen.owes && !peer.unresponsive) => true,
            _ => peer.unresponsive && now < peer.heard + MOST + GONE,
        });
        self.rests = !seen.values().any(|seen| seen.owes) && !self.peers.values().any(PeerSilence::is_waited_for);
        self.due = Some(now + if self.rests { REST } else { LOOK });
        out
    }

    /// Whether nobody at all answers, of enough to tell.
    fn hears_nobody(&self, seen: &BTreeMap<PeerId, TransportSign>) -> bool {
        let owe = seen.iter().filter(|(_, seen)| seen.owes);
        let owe: Vec<&PeerSilence> = owe.filter_map(|(id, _)| self.peers.get(id)).collect();
        owe.len() >= ALL && owe.iter().all(|peer| peer.asked.is_some() || peer.missing.is_some())
    }
}

impl PeerSilence {
    fn new(now: Time, packets: u64) -> Self {
        // Whether it is there at all is asked at once.
        let heard = now.saturating_sub(USUAL);
        Self { packets, heard, asked: None, missing: None, slow: (0.0, now), unresponsive: false, returned: None }
    }

    /// Whether something is to come from it, or it is to be there again.
    fn is_waited_for(&self) -> bool {
        self.unresponsive || self.asked.is_some() || self.missing.is_some()
    }

    /// Takes in whether it has said something; the listener was `late`, and what came meanwhile may not be read yet.
    fn listens(&mut self, now: Time, late: Duration, seen: Option<&TransportSign>) -> bool {
        let Some(seen) = seen.filter(|seen| seen.connected) else {
            let owes = seen.is_some_and(|seen| seen.owes);
            self.missing = owes.then(|| self.missing.map_or(now, |since| since + late));
            return false;
        };
        // How long a connection took to be made says nothing of how soon its far end answers.
        self.missing = None;
        let more = seen.packets > std::mem::replace(&mut self.packets, seen.packets);
        if !more {
            self.heard += late;
            self.asked = self.asked.map(|(since, last)| (since + late, last + late));
            return false;
        }
        self.heard = now;
        // It was asked after one look, and heard by another.
        let took = self.asked.take().map(|(since, _)| now.saturating_sub(since + LOOK));
        let was_stopped = self.unresponsive && !self.returns_again(now);
        if let Some(took) = took.filter(|took| *took < STOPPED && !was_stopped) {
            self.slow = (took.as_secs_f64().max(self.slow(now)), now);
        }
        true
    }

    /// It speaks though it was unresponsive: whether that was so lately before.
    fn returns_again(&mut self, now: Time) -> bool {
        self.returned.replace(now).is_some_and(|before| now < before + RETURNED)
    }

    /// What its slowest answer of late took (s).
    fn slow(&self, now: Time) -> f64 {
        let (took, at) = self.slow;
        took * 0.5f64.powf(now.saturating_sub(at).as_secs_f64() / FADES)
    }

    fn is_to_be_asked(&mut self, now: Time) -> bool {
        let again = if self.unresponsive { AGAIN_MUTE } else { AGAIN };
        let (since, due) = match self.asked {
            None => (now, now >= self.heard + USUAL),
            Some((since, last)) => (since, now >= last + again),
        };
        if due {
            self.asked = Some((since, now));
        }
        due
    }

    fn is_silent(&self, now: Time, seen: &TransportSign, grace: Duration, alone: bool) -> bool {
        let slower = SLOWER * self.slow(now);
        let trips = ROUND_TRIPS * seen.round_trip.as_secs_f64();
        let (since, least) = match (self.missing, self.asked, seen.unanswered) {
            (Some(since), _, Some(held)) => (since.max(now.saturating_sub(held)), GREETS),
            (Some(since), _, None) => (since, CONNECTS),
            (None, Some((since, _)), _) => (since, LEAST),
            (None, None, _) => return false,
        };
        // The least has answers in it that are late now and then: what a slow peer is given is the longer of both, not their sum.
        let answer = least.as_secs_f64().max(slower) + trips;
        let patience = grace + Duration::try_from_secs_f64(answer).unwrap_or(MOST);
        now >= since + if alone { MOST } else { patience.min(MOST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// Peers of whom something is expected, each with what it answers to: a packet after so many milliseconds of silence, or none.
    struct Scenario {
        probe: LivenessProbe,
        now: Time,
        peers: BTreeMap<PeerId, TransportSign>,
        spoke: BTreeMap<PeerId, Time>,
    }

    impl Scenario {
        fn of(peers: u8) -> Self {
            let seen = TransportSign {
                packets: 0,
                round_trip: Duration::from_millis(1),
                connected: true,
                owes: true,
                unanswered: None,
            };
            let peers = (1..=peers).map(|n| (peer(n), seen)).collect();
            Self { probe: LivenessProbe::default(), now: Time::ZERO, peers, spoke: BTreeMap::new() }
        }

        /// Goes on for so long; who is named speaks as often (ms). Says who was unresponsive, and when.
        fn on(&mut self, ms: u64, responsive: &[(u8, u64)]) -> Vec<(PeerId, Time)> {
            let (end, mut unresponsive) = (self.now + Duration::from_millis(ms), Vec::new());
            while self.now < end {
                self.now += LOOK;
                for (n, every) in responsive {
                    let last = self.spoke.entry(peer(*n)).or_default();
                    if self.now >= *last + Duration::from_millis(*every) {
                        *last = self.now;
                        self.peers.get_mut(&peer(*n)).into_iter().for_each(|seen| seen.packets += 1);
                    }
                }
                let look = self.probe.look(self.now, &self.peers);
                unresponsive.extend(look.unresponsive.into_iter().map(|id| (id, self.now)));
            }
            unresponsive
        }
    }

    #[test]
    fn who_stops_in_the_middle_of_a_stream_is_unresponsive_within_a_second_and_until_it_speaks() {
        let mut scenario = Scenario::of(2);
        assert_eq!(scenario.on(5000, &[(1, 50), (2, 50)]), []);
        let unresponsive = scenario.on(5000, &[(2, 50)]);
        assert!(
            matches!(unresponsive[..], [(id, at)] if id == peer(1) && at <= Time::from_millis(5800)),
            "{unresponsive:?}"
        );
        assert_eq!(scenario.probe.unresponsive().collect::<Vec<_>>(), [peer(1)]);
        // QUIC gives up one of its connections: that is no sign of life.
        scenario.peers.get_mut(&peer(1)).into_iter().for_each(|seen| seen.packets -= 7);
        scenario.on(100, &[(2, 50)]);
        assert_eq!(scenario.probe.unresponsive().collect::<Vec<_>>(), [peer(1)]);
        scenario.on(900, &[(1, 50), (2, 50)]);
        assert_eq!(scenario.probe.unresponsive().count(), 0);
        // That it was stopped makes nobody slower to notice it the next time.
        let unresponsive = scenario.on(5000, &[(2, 50)]);
        assert!(matches!(unresponsive[..], [(_, at)] if at <= Time::from_millis(11_800)), "{unresponsive:?}");
    }

    #[test]
    fn who_computes_for_long_and_answers_is_waited_for() {
        let mut scenario = Scenario::of(1);
        // No token for half a minute: only answers, each as soon as it is asked.
        assert_eq!(scenario.on(30_000, &[(1, 250)]), []);
    }

    #[test]
    fn who_was_seen_to_answer_late_has_more_time() {
        let mut scenario = Scenario::of(1);
        assert_eq!(scenario.on(3000, &[(1, 600)]), [], "400 ms after it was asked");
        assert_eq!(scenario.on(3000, &[(1, 1000)]), [], "later and later");
        assert_eq!(scenario.on(30_000, &[(1, 1500)]), [], "a host with much else to do");
        assert_eq!(scenario.on(4500, &[]).len(), 1, "but not for ever");
    }

    #[test]
    fn who_is_late_now_and_then_is_left_soon_when_it_stops() {
        let mut scenario = Scenario::of(2);
        assert_eq!(scenario.on(3000, &[(1, 600), (2, 50)]), []);
        scenario.on(600, &[(1, 50), (2, 50)]);
        let (stopped, unresponsive) = (scenario.now, scenario.on(5000, &[(2, 50)]));
        let soon = stopped + Duration::from_millis(1250);
        assert!(matches!(unresponsive[..], [(_, at)] if at <= soon), "{unresponsive:?}");
    }

    #[test]
    fn who_is_stopped_for_a_moment_is_as_soon_noticed_when_it_is_stopped_again() {
        let mut scenario = Scenario::of(2);
        scenario.on(3000, &[(1, 50), (2, 50)]);
        assert_eq!(scenario.on(1300, &[(2, 50)]).len(), 1);
        assert_eq!(scenario.on(3000, &[(1, 50), (2, 50)]), []);
        let (again, stopped) = (scenario.now, scenario.on(5000, &[(2, 50)]));
        assert!(matches!(stopped[..], [(_, at)] if at <= again + Duration::from_millis(800)), "{stopped:?}");
    }

    #[test]
    fn who_is_late_again_and_again_has_more_time() {
        let mut scenario = Scenario::of(1);
        scenario.on(1000, &[(1, 50)]);
        assert!(scenario.on(6000, &[(1, 1500)]).len() <= 2, "it may have been stopped");
        assert_eq!(scenario.on(30_000, &[(1, 1500)]), [], "a host with much else to do");
    }

    #[test]
    fn a_listener_that_slept_blames_nobody() {
        let mut scenario = Scenario::of(1);
        scenario.on(1000, &[(1, 50)]);
        scenario.now += Duration::from_secs(10);
        assert_eq!(scenario.on(300, &[]), []);
        assert_eq!(scenario.on(5000, &[(1, 50)]), []);
        assert_eq!(scenario.on(1000, &[]).len(), 1, "and is no slower afterwards");
    }

    #[test]
    fn where_nobody_is_heard_at_all_the_listener_may_be_cut_off() {
        let mut scenario = Scenario::of(3);
        scenario.on(1000, &[(1, 50), (2, 50), (3, 50)]);
        assert_eq!(scenario.on(3500, &[]), []);
        assert_eq!(scenario.on(1000, &[]).len(), 3);
    }

    #[test]
    fn who_is_not_reached_at_all_is_unresponsive_until_a_connection_is_there() {
        let mut scenario = Scenario::of(2);
        let link = |scenario: &mut Scenario, connected| {
            scenario.peers.get_mut(&peer(1)).into_iter().for_each(|seen| seen.connected = connected);
        };
        link(&mut scenario, false);
        assert_eq!(scenario.on(1800, &[(2, 50)]), [], "the way around a NAT takes longer than the straight one");
        let unresponsive = scenario.on(4000, &[(2, 50)]);
        assert!(
            matches!(unresponsive[..], [(id, at)] if id == peer(1) && at <= Time::from_millis(2300)),
            "{unresponsive:?}"
        );
        assert_eq!(scenario.probe.unresponsive().collect::<Vec<_>>(), [peer(1)]);
        link(&mut scenario, true);
        assert_eq!(scenario.on(1000, &[(1, 50), (2, 50)]), []);
        assert_eq!(scenario.probe.unresponsive().count(), 0);
        // What the connection took does not make it a slow one.
        let stopped = scenario.now;
        let unresponsive = scenario.on(5000, &[(2, 50)]);
        let soon = stopped + Duration::from_millis(800);
        assert!(matches!(unresponsive[..], [(_, at)] if at <= soon), "{unresponsive:?}");
    }

    #[test]
    fn whose_host_takes_a_call_that_nobody_answers_is_left_within_a_second() {
        let mut scenario = Scenario::of(1);
        let seen = scenario.peers.get_mut(&peer(1)).unwrap();
        seen.connected = false;
        // The call began before anything was expected of it; that alone says nothing yet.
        for held in (0..3).map(|n| Duration::from_millis(700 + 250 * n)) {
            scenario.peers.get_mut(&peer(1)).unwrap().unanswered = Some(held);
            assert_eq!(scenario.on(250, &[]), []);
        }
        // Since the look at which it was missed: the second.
        scenario.peers.get_mut(&peer(1)).unwrap().unanswered = Some(Duration::from_millis(1450));
        assert_eq!(scenario.on(300, &[]).len(), 1);
        // One that is not even held is waited for as long as a connection takes.
        let mut scenario = Scenario::of(1);
        scenario.peers.get_mut(&peer(1)).unwrap().connected = false;
        assert_eq!(scenario.on(1800, &[]), []);
    }

    #[test]
    fn a_connection_over_a_far_relay_may_take_longer_to_be_made() {
        let mut scenario = Scenario::of(1);
        let far = Duration::from_millis(400);
        scenario.peers.values_mut().for_each(|seen| (seen.connected, seen.round_trip) = (false, far));
        assert_eq!(scenario.on(3500, &[]), []);
        assert_eq!(scenario.on(500, &[]).len(), 1);
    }

    #[test]
    fn a_connection_that_takes_long_is_waited_for_by_a_listener_that_slept() {
        let mut scenario = Scenario::of(1);
        scenario.peers.get_mut(&peer(1)).into_iter().for_each(|seen| seen.connected = false);
        scenario.on(1500, &[]);
        scenario.now += Duration::from_secs(10);
        assert_eq!(scenario.on(300, &[]), []);
    }

    #[test]
    fn where_nothing_is_expected_looks_are_rare_and_blame_nobody_afterwards() {
        let mut scenario = Scenario::of(2);
        let owe = |scenario: &mut Scenario, owes| scenario.peers.values_mut().for_each(|seen| seen.owes = owes);
        scenario.on(1000, &[(1, 50), (2, 50)]);
        assert!(!scenario.probe.rests());
        owe(&mut scenario, false);
        scenario.on(300, &[(1, 50), (2, 50)]);
        assert!(scenario.probe.rests());
        for _ in 0..10 {
            scenario.now += REST;
            assert_eq!(scenario.probe.look(scenario.now, &scenario.peers), ProbeActions::default());
        }
        // Something is expected long before the next look would have been.
        owe(&mut scenario, true);
        scenario.now += LOOK;
        let look = scenario.probe.look(scenario.now, &scenario.peers);
        assert_eq!(
            (look.ask, look.unresponsive),
            (vec![peer(1), peer(2)], vec![]),
            "whether they are there is asked at once"
        );
        assert!(!scenario.probe.rests());
        let (began, stopped) = (scenario.now, scenario.on(5000, &[(2, 50)]));
        let soon = began + Duration::from_millis(800);
        assert!(matches!(stopped[..], [(id, at)] if id == peer(1) && at <= soon), "{stopped:?}");
        assert!(!scenario.probe.rests(), "it is to be there again");
    }

    #[test]
    fn who_was_asked_last_is_looked_at_until_it_has_answered() {
        let mut scenario = Scenario::of(1);
        scenario.on(1000, &[(1, 50)]);
        scenario.on(300, &[]);
        scenario.peers.values_mut().for_each(|seen| seen.owes = false);
        scenario.on(100, &[]);
        assert!(!scenario.probe.rests(), "else what its answer took would be told by a rare look");
        scenario.on(100, &[(1, 50)]);
        assert!(scenario.probe.rests());
    }

    #[test]
    fn who_owes_nothing_is_not_asked() {
        let mut scenario = Scenario::of(1);
        scenario.on(1000, &[(1, 50)]);
        scenario.peers.get_mut(&peer(1)).into_iter().for_each(|seen| seen.owes = false);
        for _ in 0..40 {
            scenario.now += LOOK;
            assert_eq!(scenario.probe.look(scenario.now, &scenario.peers), ProbeActions::default());
        }
    }
}
