//! What is broken and when: a list that the seed and the options fix, whatever the swarm makes of it.
//!
//! Times are counted in answers, which is what a swarm under load has for a clock: a step begins so many answers after the one
//! before it was mended, and lasts for so many.

use super::{Chaos, Deed, Deeds, Until};
use crate::{PeerConfig, peer::names};
use serde::Serialize;
use std::fmt;

/// How often what is done, of [`Deeds::Drawn`]: half of it kills.
const WEIGHTS: [(Deed, u64); 6] =
    [(Deed::Kill, 6), (Deed::Stop, 2), (Deed::Cut, 1), (Deed::Part, 1), (Deed::Slow, 1), (Deed::Corrupt, 1)];
/// Answers that end before a step, and before its end: from, and so many more.
const BEFORE: (u64, u64) = (2, 4);
const WITHIN: (u64, u64) = (6, 5);
/// Longest time from the last of the answers before a step to the step (milliseconds).
const JITTER: u64 = 300;
/// Processes that are stopped or cut off are so, every other time, for long enough to be taken for dead (seconds).
const STOPPED: u64 = 5;
/// Where several are cut off, it is for long enough that each side gives the other up and plans by itself (seconds).
const PARTED: u64 = 12;
/// Steps listed for each minute, where a run is over after a time: more than there is time for.
const EACH_MINUTE: f64 = 40.0;

/// Pseudo-random numbers of a seed (SplitMix64).
#[derive(Debug)]
struct ScheduleRng(u64);

impl ScheduleRng {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.draw() % sides.max(1)
    }

    fn between(&mut self, (least, more): (u64, u64)) -> usize {
        (least + self.roll(more)) as usize
    }

    /// Whether what happens in this part of all cases happens.
    fn chance(&mut self, part: f64) -> bool {
        (self.roll(1 << 32) as f64) < part * (1_u64 << 32) as f64
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScheduledFault {
    /// Its number, from 1.
    pub nth: usize,
    /// Answers that end before it, since the step before it was mended.
    pub after_answers: usize,
    /// How long after that it is done (milliseconds).
    pub then_ms: u64,
    /// What.
    pub deed: Deed,
    /// To whom, by name: one peer, two at a time, or all of one side.
    pub peers: Vec<String>,
    /// For how long.
    pub lasts: Lasts,
}

/// How long a fault lasts: all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lasts {
    /// Answers that end meanwhile.
    pub answers: usize,
    /// How long at least (seconds).
    pub at_least_s: u64,
    /// Whether those who were killed stay dead until nobody sees them any more and all follow a plan without them. The others are back
    /// before all have missed them, which is another scenario.
    pub until_missed: bool,
}

impl fmt::Display for ScheduledFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nth, after_answers, then_ms, deed, peers, lasts } = self;
        let Lasts { answers, at_least_s, until_missed } = lasts;
        let deed = deed.name();
        write!(f, "{nth:>5}  {after_answers} answers and {then_ms:>3} ms later  {deed:<7}  {:<24}", peers.join(", "))?;
        write!(f, "  for {answers} answers")?;
        if *at_least_s > 0 {
            write!(f, " and {at_least_s} s")?;
        }
        if *until_missed { write!(f, ", and until all have missed it") } else { Ok(()) }
    }
}

/// The steps of a seed, one after the other, without end where there is anybody to break.
#[derive(Debug)]
pub struct Schedule {
    rng: ScheduleRng,
    deeds: Vec<(Deed, u64)>,
    pairs: f64,
    cast: Vec<Actor>,
    /// All peers, to know how many a side may have.
    peers: usize,
    /// Those of the cast who are to be hit before anybody is again.
    bag: Vec<usize>,
    nth: usize,
}

#[derive(Debug)]
struct Actor {
    name: String,
    is_gateway: bool,
}

impl Schedule {
    /// Of these peers. Nothing is done to the first gateway, or the first peer where there is none: that one is looked through.
    #[must_use]
    pub fn new(chaos: &Chaos, peers: &[PeerConfig]) -> Self {
        let is_gateway = |peer: &PeerConfig| *peer == PeerConfig::Gateway;
        let spared = peers.iter().position(is_gateway).unwrap_or(0);
        let all = names(peers).into_iter().zip(peers).enumerate().filter(|(index, _)| *index != spared);
        let cast = all.map(|(_, (name, peer))| Actor { name, is_gateway: is_gateway(peer) }).collect();
        let deeds = WEIGHTS.into_iter().filter(|(deed, _)| match &chaos.deeds {
            Deeds::Drawn => true,
            Deeds::Only(deeds) => deeds.contains(deed),
            Deeds::Calm => false,
        });
        let (rng, deeds) = (ScheduleRng(chaos.seed), deeds.collect());
        Self { rng, deeds, pairs: chaos.pairs, cast, peers: peers.len(), bag: Vec::new(), nth: 0 }
    }

    /// The steps of a run with these options, or more than it has time for.
    #[must_use]
    pub fn listed(chaos: &Chaos, peers: &[PeerConfig]) -> Vec<ScheduledFault> {
        let steps = match chaos.until {
            Until::Faults(faults) => faults,
            Until::Time(span) => (span.as_secs_f64() / 60.0 * EACH_MINUTE).ceil() as usize,
        };
        Self::new(chaos, peers).take(steps).collect()
    }

    fn deed(&mut self) -> Option<Deed> {
        let mut left = self.rng.roll(self.deeds.iter().map(|(_, weight)| weight).sum());
        for (deed, weight) in &self.deeds {
            if left < *weight {
                return Some(*deed);
            }
            left -= weight;
        }
        None
    }

    /// One of those who were not hit for longest, if there is one to do that to.
    fn victim(&mut self, deed: Deed, but: Option<usize>) -> Option<usize> {
        // Gateways serve clients and compute nothing.
        let fits = |n: usize| Some(n) != but && (!self.cast[n].is_gateway || matches!(deed, Deed::Kill | Deed::Stop));
        if !self.bag.iter().any(|n| fits(*n)) {
            self.bag = (0..self.cast.len()).collect();
        }
        let places: Vec<usize> = (0..self.bag.len()).filter(|place| fits(self.bag[*place])).collect();
        let place = *places.get(self.rng.roll(places.len() as u64) as usize)?;
        Some(self.bag.remove(place))
    }

    /// Who is hit together.
    fn victims(&mut self, deed: Deed) -> Option<Vec<usize>> {
        let first = self.victim(deed, None)?;
        let is_two = matches!(deed, Deed::Kill | Deed::Stop) && self.rng.chance(self.pairs);
        let second = if is_two { self.victim(deed, Some(first)) } else { None };
        let mut all: Vec<usize> = [first].into_iter().chain(second).collect();
        if deed == Deed::Part {
            self.side(&mut all);
        }
        Some(all)
    }

    /// Adds to one side of a partition until it has two peers at least, and fewer than half of all. A gateway may be on either: its
    /// clients wait, if need be, until the sides are one again.
    fn side(&mut self, side: &mut Vec<usize>) {
        let most = (self.peers / 2).saturating_sub(1);
        if most < 2 {
            return;
        }
        let wanted = 2 + self.rng.roll(most as u64 - 1) as usize;
        let mut others: Vec<usize> = (0..self.cast.len()).filter(|n| !side.contains(n)).collect();
        while side.len() < wanted && !others.is_empty() {
            side.push(others.swap_remove(self.rng.roll(others.len() as u64) as usize));
        }
    }

    fn lasts(&mut self, deed: Deed) -> Lasts {
        let answers = self.rng.between(WITHIN);
        let is_long = self.rng.chance(0.5);
        let at_least_s = match deed {
            Deed::Part => PARTED,
            Deed::Stop | Deed::Cut if is_long => STOPPED,
            _ => 0,
        };
        Lasts { answers, at_least_s, until_missed: deed == Deed::Kill && is_long }
    }
}

impl Iterator for Schedule {
    type Item = ScheduledFault;

    fn next(&mut self) -> Option<ScheduledFault> {
        let deed = self.deed()?;
        let peers = self.victims(deed)?.into_iter().map(|n| self.cast[n].name.clone()).collect();
        let (after_answers, then_ms) = (self.rng.between(BEFORE), self.rng.roll(JITTER));
        self.nth += 1;
        Some(ScheduledFault { nth: self.nth, after_answers, then_ms, deed, peers, lasts: self.lasts(deed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::PauseLimits;
    use std::collections::{BTreeMap, BTreeSet};

    fn chaos(seed: u64, deeds: Deeds, pairs: f64) -> Chaos {
        Chaos { seed, streams: 16, until: Until::Faults(1000), deeds, pairs, limits: PauseLimits::default() }
    }

    fn listed(chaos: &Chaos) -> Vec<ScheduledFault> {
        Schedule::listed(chaos, &PeerConfig::alike(8, 2, &[]))
    }

    #[test]
    fn a_seed_and_the_options_fix_the_list() {
        let drawn = listed(&chaos(7, Deeds::Drawn, 0.1));
        assert_eq!(drawn, listed(&chaos(7, Deeds::Drawn, 0.1)));
        assert_ne!(drawn, listed(&chaos(8, Deeds::Drawn, 0.1)));
        // A longer run begins as a shorter one.
        let short = Chaos { until: Until::Faults(20), ..chaos(7, Deeds::Drawn, 0.1) };
        assert_eq!(listed(&short), drawn[..20]);
        // How many read, and what is allowed, changes nothing.
        let limits = PauseLimits { p99: Some(1.5), worst: Some(5.0) };
        assert_eq!(listed(&Chaos { streams: 64, limits, ..chaos(7, Deeds::Drawn, 0.1) }), drawn);
        // The very list, so that a seed means the same tomorrow.
        let first: Vec<String> = drawn[..3].iter().map(ToString::to_string).collect();
        assert_eq!(first, FIRST_OF_SEED_7);
    }

    const FIRST_OF_SEED_7: [&str; 3] = [
        "    1  5 answers and 274 ms later  kill     peer6                     for 6 answers, and until all have missed it",
        "    2  5 answers and  16 ms later  stop     peer1                     for 6 answers",
        "    3  5 answers and 197 ms later  stop     peer7                     for 6 answers and 5 s",
    ];

    #[test]
    fn peers_take_turns_and_one_is_spared() {
        let steps = listed(&chaos(3, Deeds::Only(vec![Deed::Kill]), 0.0));
        for round in steps.chunks_exact(9) {
            let hit: BTreeSet<&str> = round.iter().flat_map(|s| &s.peers).map(String::as_str).collect();
            assert_eq!(hit.len(), 9, "everybody once before anybody twice: {hit:?}");
            assert!(!hit.contains("gateway0"));
        }
        let missed = steps.iter().filter(|s| s.lasts.until_missed).count();
        assert!((400..600).contains(&missed), "half of them stay dead: {missed}");
    }

    #[test]
    fn two_at_a_time_are_two_in_as_many_cases_as_asked() {
        let steps = listed(&chaos(5, Deeds::Only(vec![Deed::Kill, Deed::Stop]), 0.1));
        let pairs = steps.iter().filter(|s| s.peers.len() == 2).inspect(|s| assert_ne!(s.peers[0], s.peers[1]));
        let pairs = pairs.count();
        assert!((70..130).contains(&pairs), "{pairs} of 1000");
        assert!(steps.iter().all(|s| s.peers.len() <= 2));
        let stops = steps.iter().filter(|s| s.deed == Deed::Stop).count();
        assert!((180..320).contains(&stops), "kills and stops as three to one: {stops}");
    }

    #[test]
    fn every_deed_has_its_own() {
        let steps = listed(&chaos(1, Deeds::Drawn, 0.1));
        let mut deeds: BTreeMap<&str, usize> = BTreeMap::new();
        for step in &steps {
            *deeds.entry(step.deed.name()).or_default() += 1;
            let (gateways, hosts): (Vec<&String>, Vec<&String>) = step.peers.iter().partition(|p| p.starts_with('g'));
            match step.deed {
                Deed::Kill | Deed::Stop => {}
                Deed::Part => assert!((2..=4).contains(&step.peers.len()) && step.lasts.at_least_s == PARTED),
                _ => assert_eq!((gateways.len(), hosts.len()), (0, 1)),
            }
        }
        assert_eq!(deeds.len(), 6);
        assert_eq!(listed(&chaos(1, Deeds::Calm, 0.0)), []);
        let alone = Schedule::listed(&chaos(1, Deeds::Drawn, 0.5), &PeerConfig::alike(1, 0, &[]));
        assert_eq!(alone, [], "nobody is there to be broken");
        // Two peers and no gateway: the first is looked through, and there is no second to hit.
        let two = Schedule::listed(&chaos(1, Deeds::Drawn, 1.0), &PeerConfig::alike(2, 0, &[]));
        assert!(two.len() == 1000 && two.iter().all(|s| s.peers == ["peer1"]));
    }
}
