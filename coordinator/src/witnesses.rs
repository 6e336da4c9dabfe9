//! What other gateways saw of a group whose leader's own steps belie its claim of speed.
//!
//! Whoever cuts off judges by what it saw itself. What others say can only make it slower to do so, and never so slow that it does
//! not: who says that an honest peer is slow has it cut off by nobody, and who says that a liar is quick gives it a few answers.

use crate::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, GroupId, Heartbeat, ModelId, PeerId, Phase};

/// Where others are asked for a model, they have so long to say what they saw: what its leader says of its steps comes to all within
/// a second, and what they say to that within another.
const HEARD: Duration = Duration::from_secs(3);

/// Gateways beside this one, and what they say that they saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Witnesses {
    seen: SeenDoublings,
    /// Whose clients ask for a model: they may have measured who serves it. It is in adverts, and stays the same for as long as they do.
    asked: Arc<BTreeMap<ModelId, BTreeSet<PeerId>>>,
}

/// How often claims are doubled, by whom.
type SeenDoublings = BTreeMap<(GroupId, Phase), BTreeMap<PeerId, u8>>;

/// A claim that is in doubt here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubted {
    /// Of which group, in which phase.
    pub key: (GroupId, Phase),
    pub model: ModelId,
    /// Who claims it: no witness for itself.
    pub leader: PeerId,
    /// Since when its own steps are known to belie it, beside a clock that says something.
    pub since: Option<Time>,
}

impl Witnesses {
    /// By what these others say; none of them is this gateway, and none is cut off.
    #[must_use]
    pub fn of<'a>(others: impl IntoIterator<Item = (PeerId, &'a Advert, &'a Heartbeat)>) -> Self {
        let mut asked = BTreeMap::<ModelId, BTreeSet<PeerId>>::new();
        let seen = seen(others.into_iter().map(|(peer, advert, heartbeat)| {
            for traffic in &advert.traffic {
                asked.entry(traffic.model).or_default().insert(peer);
            }
            (peer, heartbeat)
        }));
        Self { seen, asked: Arc::new(asked) }
    }

    /// The same gateways while their adverts are the same, with what they say now. Heartbeats come several times a second, and most say
    /// nothing of anybody.
    #[must_use]
    pub fn saying<'a>(&self, others: impl IntoIterator<Item = (PeerId, &'a Heartbeat)>) -> Self {
        Self { seen: seen(others), asked: self.asked.clone() }
    }

    /// Whether another gateway saw it as well, or there is none that could have: then this one stands for itself.
    pub(crate) fn second(&self, now: Time, doubted: Doubted) -> bool {
        let is_other = |peer: &PeerId| *peer != doubted.leader;
        let seen = self.seen.get(&doubted.key).into_iter().flatten().filter(|(peer, _)| is_other(peer));
        let seen: Vec<u8> = seen.map(|(_, doublings)| *doublings).collect();
        if !seen.is_empty() {
            return seen.iter().any(|doublings| *doublings > 0);
        }
        let may_have = self.asked.get(&doubted.model).is_some_and(|peers| peers.iter().any(is_other));
        !may_have || doubted.since.is_some_and(|since| now >= since + HEARD)
    }
}

fn seen<'a>(others: impl IntoIterator<Item = (PeerId, &'a Heartbeat)>) -> SeenDoublings {
    let mut all = SeenDoublings::new();
    for (peer, heartbeat) in others {
        for seen in &heartbeat.seen_speeds {
            all.entry((seen.group, seen.phase)).or_default().insert(peer, seen.doublings);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{SeenSpeed, Traffic, traffic::LENGTHS};

    const MODEL: ModelId = ModelId([1; 16]);
    const KEY: (GroupId, Phase) = (GroupId([1; 8]), Phase::Decode);
    const LEADER: PeerId = PeerId([9; 32]);

    /// Gateways that say this of the group, or nothing.
    fn others(said: &[(PeerId, Option<u8>)]) -> Witnesses {
        let traffic = Traffic { model: MODEL, rate: 1.0, variation: 1.0, prompts: [1; LENGTHS], answers: [1; LENGTHS] };
        let advert = Advert { traffic: vec![traffic], ..sample::gateway(0) };
        let seen =
            |doublings: Option<u8>| doublings.map(|doublings| SeenSpeed { group: KEY.0, phase: KEY.1, doublings });
        let heartbeat =
            |doublings| Heartbeat { seen_speeds: seen(doublings).into_iter().collect(), ..Heartbeat::default() };
        let heartbeats: Vec<(PeerId, Heartbeat)> = said.iter().map(|(peer, said)| (*peer, heartbeat(*said))).collect();
        Witnesses::of(heartbeats.iter().map(|(peer, heartbeat)| (*peer, &advert, heartbeat)))
    }

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// Whether a gateway is seconded that has doubted the claim for so long (s).
    fn is_seconded(witnesses: &Witnesses, after: u64) -> bool {
        let doubted = Doubted { key: KEY, model: MODEL, leader: LEADER, since: Some(Time::from_secs(100)) };
        witnesses.second(Time::from_secs(100 + after), doubted)
    }

    #[test]
    fn who_is_the_only_gateway_stands_for_itself() {
        for nobody in [others(&[]), others(&[(LEADER, None)]), others(&[(LEADER, Some(0))])] {
            assert!(is_seconded(&nobody, 0), "a leader is no witness for itself: {nobody:?}");
        }
    }

    #[test]
    fn who_may_have_measured_it_has_a_while_to_say_so() {
        let silent = others(&[(peer(1), None), (peer(2), None)]);
        assert_eq!([0, 2, 3].map(|after| is_seconded(&silent, after)), [false, false, true]);
        let unknown = Doubted { key: KEY, model: MODEL, leader: LEADER, since: None };
        assert!(!silent.second(Time::from_secs(1000), unknown));
        let of_another = Doubted { model: ModelId([2; 16]), ..unknown };
        assert!(silent.second(Time::from_secs(1000), of_another));
    }

    #[test]
    fn what_is_in_adverts_is_not_gathered_again_for_what_heartbeats_say() {
        let silent = others(&[(peer(1), None), (peer(2), None)]);
        let seen_speeds = vec![SeenSpeed { group: KEY.0, phase: KEY.1, doublings: 1 }];
        let heartbeat = Heartbeat { seen_speeds, ..Heartbeat::default() };
        let saying = silent.saying([(peer(1), &heartbeat)]);
        assert_eq!(saying, others(&[(peer(1), Some(1)), (peer(2), None)]));
        assert!(Arc::ptr_eq(&saying.asked, &silent.asked));
        assert_eq!(saying.saying([]), silent, "what was said before is said no longer");
    }

    #[test]
    fn one_that_saw_it_too_is_enough_and_nobody_who_did_is_not() {
        assert!(is_seconded(&others(&[(peer(1), Some(0)), (peer(2), Some(1)), (peer(3), None)]), 0));
        assert!(!is_seconded(&others(&[(peer(1), Some(0)), (LEADER, Some(4)), (peer(3), None)]), 1000));
    }
}
