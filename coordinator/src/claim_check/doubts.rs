//! Claims that their leaders' own steps belie, and what this gateway's clock says of them: its heartbeats tell other gateways.

use super::{ClaimCheck, FALSE, SpeedRecord, further};
use crate::{Time, view::View};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::{GroupId, Phase, SeenSpeed, limits};

/// How often claims are looked at: steps are told of oftener.
const LOOK: Duration = Duration::from_secs(1);
/// Work that was done longer ago says nothing of how quick a group is now.
const RECENT: Duration = Duration::from_secs(600);

/// Of groups whose claims are in doubt.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    looked: Option<Time>,
    groups: BTreeMap<(GroupId, Phase), Doubt>,
}

#[derive(Debug)]
struct Doubt {
    since: Time,
    /// How often its claim is doubled, by the clock.
    doublings: u8,
}

impl Doubts {
    /// Since when a claim is in doubt, if it is.
    pub fn since(&self, key: (GroupId, Phase)) -> Option<Time> {
        self.groups.get(&key).map(|doubt| doubt.since)
    }
}

impl ClaimCheck {
    /// What this gateway tells others: how quick groups were for it whose leaders' own steps belie what they claim, be it quick or
    /// not. Where they are too many, of those that were slowest.
    #[must_use]
    pub fn seen_speeds(&self) -> Vec<SeenSpeed> {
        let groups = self.doubts.groups.iter();
        let seen = groups.map(|((group, phase), doubt)| (*group, *phase, doubt.doublings));
        let mut seen: Vec<SeenSpeed> =
            seen.map(|(group, phase, doublings)| SeenSpeed { group, phase, doublings }).collect();
        seen.sort_by_key(|seen| std::cmp::Reverse(seen.doublings));
        seen.truncate(limits::SEEN_SPEEDS);
        seen
    }

    /// Looks whose own steps belie their claims, of those of whose work this gateway's clock says something.
    pub(super) fn doubt(&mut self, now: Time, view: &View) {
        if self.doubts.looked.is_some_and(|at| now < at + LOOK) {
            return;
        }
        let words = |key: &(GroupId, Phase), record: &SpeedRecord| Some(record.words(view, view.group(key.0)?));
        // Nobody is held to more than a claim: whose steps keep to it is in no doubt, whatever others' are like.
        let is_off = |own: &BTreeMap<u32, f64>| own.values().any(|off| *off >= FALSE);
        // Which stage of several is slow cannot be told from outside.
        let is_seen =
            |record: &SpeedRecord| record.stages <= 1 && now < record.until + RECENT && record.clock().is_some();
        let seen = self.records.iter().filter(|(_, record)| is_seen(record));
        let suspects = seen.filter_map(|(key, record)| Some((*key, words(key, record).filter(is_off)?)));
        let suspects: BTreeMap<(GroupId, Phase), BTreeMap<u32, f64>> = suspects.collect();
        let mut groups = BTreeMap::new();
        if !suspects.is_empty() {
            let all = self.records.iter().filter_map(|(key, record)| Some((*key, words(key, record)?)));
            let all: BTreeMap<(GroupId, Phase), BTreeMap<u32, f64>> = all.collect();
            for (key, own) in suspects {
                let others: Vec<_> = self.others(key).filter_map(|(id, _)| all.get(&(id, key.1))).collect();
                if further(&own, &others).is_some_and(|times| times >= FALSE) {
                    groups.insert(key, self.doubted(now, key));
                }
            }
        }
        self.doubts = Doubts { looked: Some(now), groups };
    }

    /// What the clock says of a claim in doubt. What is told goes to all, who act by no more than whether it is anything: a doubling
    /// more or less than was told is not told.
    fn doubted(&self, now: Time, key: (GroupId, Phase)) -> Doubt {
        let own = || self.records.get(&key).and_then(SpeedRecord::clock);
        let times = self.clock(key).or_else(own).unwrap_or(1.0).max(1.0);
        let doublings = times.log2() as u8;
        let Some(told) = self.doubts.groups.get(&key) else { return Doubt { since: now, doublings } };
        let is_alike = (told.doublings > 0) == (doublings > 0) && told.doublings.abs_diff(doublings) <= 1;
        Doubt { since: told.since, doublings: if is_alike { told.doublings } else { doublings } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, peer, says, view};
    use super::*;
    use crate::{
        sample,
        trust::{Offence, Trust},
        witnesses::Witnesses,
    };
    use std::sync::Arc;
    use tsnode_protocol::{Advert, Heartbeat, PeerId, Traffic, traffic::LENGTHS};

    /// One gateway: its clock, and what it holds against whom.
    #[derive(Default)]
    struct DoubtingGateway {
        claims: ClaimCheck,
        trust: Trust,
        /// After how many works of the second group it has cut off its leader.
        found: Option<u64>,
    }

    /// What somebody says whatever it sees.
    type Liar = fn(GroupId) -> SeenSpeed;

    fn says_quick(group: GroupId) -> SeenSpeed {
        SeenSpeed { group, phase: Phase::Decode, doublings: 0 }
    }

    fn says_slow(group: GroupId) -> SeenSpeed {
        SeenSpeed { group, phase: Phase::Decode, doublings: 8 }
    }

    /// Gateways beside liars, over three groups of which the second claims so many times its speed. Its works take so long at each
    /// gateway (s), others' half a second. After how many of them each has cut it off; nobody else ever is.
    fn found(boast: f64, took: &[f64], liars: &[Liar]) -> Vec<Option<u64>> {
        let mut view = view(&[1.0, boast, 1.0]);
        says(&mut view, &[0.002; 3]);
        let groups = view.plan.clone().unwrap().groups.clone();
        let model = groups[0].model;
        let asked = Traffic { model, rate: 1.0, variation: 1.0, prompts: [1; LENGTHS], answers: [1; LENGTHS] };
        let advert = Advert { traffic: vec![asked], ..sample::gateway(0) };
        let mut gateways: Vec<DoubtingGateway> = took.iter().map(|_| DoubtingGateway::default()).collect();
        for round in 1..=60 {
            let at = Time::from_secs(2 * round);
            let honest = gateways.iter().map(|gateway| gateway.claims.seen_speeds());
            let said = honest.chain(liars.iter().map(|liar| vec![liar(groups[1].id)]));
            let said = said.map(|seen_speeds| Heartbeat { seen_speeds, ..Heartbeat::default() });
            let said: Vec<(PeerId, Heartbeat)> = (100..).map(peer).zip(said).collect();
            for (n, (gateway, took)) in gateways.iter_mut().zip(took).enumerate() {
                let others = said.iter().enumerate().filter(|(other, _)| *other != n);
                let others = others.map(|(_, (peer, heartbeat))| (*peer, &advert, heartbeat));
                view.witnesses = Arc::new(Witnesses::of(others));
                gateway.claims.hear(at, &view);
                for (group, took) in groups.iter().zip([0.5, *took, 0.5]) {
                    let blamed = gateway.claims.saw(&view, group, answer(at.as_secs_f64(), took));
                    let Some((who, offence)) = blamed else { continue };
                    assert!(who == peer(2) && matches!(offence, Offence::FalseSpeed { .. }), "{offence}");
                    if gateway.trust.offends(at, who, offence).is_some() {
                        gateway.found = Some(round);
                    }
                }
            }
        }
        gateways.into_iter().map(|gateway| gateway.found).collect()
    }

    #[test]
    fn gateways_that_see_the_same_find_a_liar_about_as_soon_as_one_alone_does() {
        assert_eq!(found(5.0, &[0.5], &[]), [Some(15)]);
        assert_eq!(found(5.0, &[0.5; 3], &[]), [Some(17); 3], "in two answers none has heard of the others yet");
    }

    #[test]
    fn who_is_slow_for_one_observer_alone_is_found_by_it_all_the_same_and_later() {
        // For the other it is as quick as it claims, beside others: of that one's own clock nothing comes.
        assert_eq!(found(5.0, &[0.5, 0.1], &[]), [Some(33), None]);
    }

    #[test]
    fn who_says_of_a_liar_that_it_is_quick_wins_it_a_few_answers_and_no_more() {
        assert_eq!(found(5.0, &[0.5], &[says_quick as Liar; 5]), [Some(33)]);
        assert_eq!(
            found(5.0, &[0.5, 0.5], &[says_quick as Liar; 5]),
            [Some(17); 2],
            "one honest witness outweighs all of them"
        );
    }

    #[test]
    fn who_says_of_an_honest_peer_that_it_is_slow_has_it_cut_off_by_nobody() {
        assert_eq!(found(1.0, &[0.5, 0.5], &[says_slow as Liar; 5]), [None; 2]);
        // Nor where a gateway's own clock says so as well: what the peer says of its steps is as others' are.
        assert_eq!(found(1.0, &[1.5, 0.5], &[says_slow as Liar; 5]), [None; 2]);
    }

    #[test]
    fn what_is_told_is_of_claims_in_doubt_and_not_of_long_ago() {
        let told = |boast: f64| {
            let (mut view, mut claims) = (view(&[1.0, boast, 1.0]), ClaimCheck::default());
            says(&mut view, &[0.002; 3]);
            let groups = view.plan.clone().unwrap().groups.clone();
            for round in 1..=10 {
                let at = Time::from_secs(10 * round);
                claims.hear(at, &view);
                for group in &groups {
                    claims.saw(&view, group, answer(at.as_secs_f64(), 0.5));
                }
            }
            let now = claims.seen_speeds();
            claims.hear(Time::from_secs(100) + RECENT, &view);
            (now, claims.seen_speeds())
        };
        assert_eq!(told(1.0), (vec![], vec![]));
        let (now, late) = told(5.0);
        assert_eq!(now.iter().map(|seen| (seen.phase, seen.doublings)).collect::<Vec<_>>(), [(Phase::Decode, 2)]);
        assert_eq!(late, []);
    }

    #[test]
    fn what_is_told_stays_while_others_would_act_by_it_in_the_same_way() {
        let (mut view, mut claims) = (view(&[1.0, 5.0, 1.0]), ClaimCheck::default());
        says(&mut view, &[0.002; 3]);
        let groups = view.plan.clone().unwrap().groups.clone();
        let mut at = Time::ZERO;
        let told = |took: f64| {
            for _ in 0..9 {
                at += Duration::from_secs(10);
                for (group, took) in groups.iter().zip([0.5, took, 0.5]) {
                    claims.saw(&view, group, answer(at.as_secs_f64(), took));
                }
                claims.hear(at, &view);
            }
            claims.seen_speeds().iter().map(|seen| seen.doublings).collect::<Vec<_>>()
        };
        // Beside others 5, 9, 20 times as long as is claimed, and as long.
        assert_eq!([0.5, 0.9, 2.0, 0.1].map(told), [[2], [2], [4], [0]]);
    }
}
