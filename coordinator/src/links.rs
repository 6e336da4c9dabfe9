//! What is known of a link, from rare small probes and from what real traffic shows.
//!
//! A probe is a few trains of packets: sent faster than the link carries them, they arrive as fast as it does, and the far
//! end sees how fast that is ([`carried`]). The first train is small whatever the link; each next one is as long as the
//! one before says it must be ([`next_train`]), so that a probe takes a slow link no longer than a fast one. Real
//! traffic says more, and for nothing, but not always as much: a sender that never filled the link has shown what it
//! carries at least ([`Evidence`]).

use crate::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tsnode_protocol::{BytesPerSecond, Link, PathKind, PeerId, Seconds};

/// How long a train should take on the link: threads and timers are late by a millisecond or two, a router's queue holds
/// a few times as much.
pub const TRAIN: Duration = Duration::from_millis(40);
/// One that took that part of it says enough.
const ENOUGH: f64 = 0.75;
/// The first train (bytes): 13 ms at 10 Mbit/s.
const FIRST_TRAIN: u64 = 16 * 1024;
/// One up to that long is over before a thread that was late has come (bytes).
const SHORT_TRAIN: u64 = 1 << 20;
/// What a link is taken to carry before anything is known: the first train then leaves at once.
pub const FIRST_GUESS: BytesPerSecond = BytesPerSecond(12.5e6);
/// How much longer a train may be than the one before: what a short one tells may be far too much.
const LONGER: u64 = 8;
/// What arrived within this time tells nothing: the thread that looks may be late by as much.
const AT_ONCE: Duration = Duration::from_millis(3);
/// Looks at a train that count, at most: each shows another so-many-th of its bytes.
const SHARES: u64 = 64;
/// The longest (bytes): 6.7 ms at 10 Gbit/s.
pub const LONGEST_TRAIN: u64 = 8 << 20;
/// Trains in one probe.
const TRAINS: usize = 5;
/// The part of a peer's upload that probes of all its links may take.
const PART: f64 = 0.005;
/// Weight of a new probe.
const PROBED: f64 = 0.7;
/// Weight of what a tenth of a second of traffic shows: as much as a probe in half a second.
const SEEN: f64 = 0.2;
/// Traffic that showed a link's bandwidth this recently leaves nothing to probe.
const FRESH: Duration = Duration::from_secs(60);

/// Between two devices of one peer, which nobody measures: KV goes over the host's loopback as it does over a network, and one core
/// packs, encrypts and unpacks it (`docs/research/kv-transfer.md`).
pub const WITHIN_PEER: (Seconds, BytesPerSecond) = (Seconds(1e-4), BytesPerSecond(1e9));
/// A link nobody has measured: a gigabit a millisecond away.
pub const UNMEASURED: (Seconds, BytesPerSecond) = (Seconds(1e-3), BytesPerSecond(125e6));

/// What was seen of a link's bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evidence {
    /// A train of packets was carried at this rate.
    Probed(BytesPerSecond),
    /// Traffic was carried at this rate while more of it waited in a queue or was lost: this is what the link carries.
    Full(BytesPerSecond),
    /// Traffic was carried at this rate and nothing told that more would not have been.
    AtLeast(BytesPerSecond),
    /// So was traffic of a sender that waited for its program at times: it may be far less than the link carries.
    Passing(BytesPerSecond),
}

impl Evidence {
    /// The same of traffic beside which other traffic went unseen.
    #[must_use]
    pub fn at_least(self) -> Self {
        match self {
            Self::Full(rate) | Self::AtLeast(rate) | Self::Passing(rate) => Self::Passing(rate),
            Self::Probed(_) => self,
        }
    }
}

/// What is known of the link to one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    latency: Option<Seconds>,
    bandwidth: Option<BytesPerSecond>,
    /// When the bandwidth was last shown.
    at: Time,
}

impl Estimate {
    /// Takes in a round trip while nothing else was under way.
    pub fn round_trip(&mut self, took: Seconds) {
        let new = took / 2.0;
        self.latency = Some(self.latency.map_or(new, |old| mixed(old.0, new.0, PROBED, Seconds)));
    }

    /// Takes in what was seen of the bandwidth.
    pub fn note(&mut self, now: Time, seen: Evidence) {
        let mut at = now;
        let (new, weight) = match (seen, self.bandwidth) {
            (Evidence::Probed(rate), _) => (rate, PROBED),
            (Evidence::Full(rate), _) => (rate, SEEN),
            // What is known to carry more has shown nothing new.
            (Evidence::AtLeast(rate), Some(known)) if rate.0 < known.0 => return,
            (Evidence::AtLeast(rate), _) => (rate, 1.0),
            (Evidence::Passing(rate), Some(known)) if rate.0 > known.0 => {
                // How much faster it is is still for a probe to find out.
                at = self.at;
                (rate, 1.0)
            }
            (Evidence::Passing(_), _) => return,
        };
        if !(new.0.is_finite() && new.0 > 0.0) {
            return;
        }
        self.bandwidth = Some(self.bandwidth.map_or(new, |old| mixed(old.0, new.0, weight, BytesPerSecond)));
        self.at = at;
    }

    /// Whether a probe would tell more than traffic has just told.
    #[must_use]
    pub fn wants_probe(&self, now: Time) -> bool {
        self.bandwidth.is_none() || now.saturating_sub(self.at) >= FRESH
    }

    /// Bandwidth β, if it is known.
    #[must_use]
    pub fn bandwidth(&self) -> Option<BytesPerSecond> {
        self.bandwidth
    }

    /// Since the bandwidth was last shown.
    #[must_use]
    pub fn age(&self, now: Time) -> Duration {
        now.saturating_sub(self.at)
    }

    /// As an advert states it, once both numbers are known.
    #[must_use]
    pub fn link(&self, to: PeerId, path: PathKind) -> Option<Link> {
        Some(Link { to, latency: self.latency?, bandwidth: self.bandwidth?, path })
    }
}

/// Halfway in proportion: half and double are equally far.
fn mixed<T>(old: f64, new: f64, weight: f64, unit: fn(f64) -> T) -> T {
    let (old, new) = (old.max(1e-9), new.max(1e-9));
    unit((old.ln() * (1.0 - weight) + new.ln() * weight).exp())
}

/// How fast a train arrived, from when how many bytes had: the median slope over halves of it, which neither a thread that
/// came late nor packets that came again move far. Looks count by what had come since the one before: a lost tail comes
/// again slowly, and must not outvote the train. `None` where too little arrived, or too quickly, to tell.
#[must_use]
pub fn carried(arrivals: &[(Duration, u64)]) -> Option<BytesPerSecond> {
    let (first, last) = (arrivals.first()?, arrivals.last()?);
    if last.0.saturating_sub(first.0) < AT_ONCE {
        return None;
    }
    let share = (last.1.saturating_sub(first.1) / SHARES).max(1);
    let mut steps = vec![first];
    for look in arrivals {
        if steps.last().is_none_or(|step| look.1.saturating_sub(step.1) >= share) {
            steps.push(look);
        }
    }
    let half = steps.len().div_ceil(2).max(1);
    let slope = |(a, b): (&&(Duration, u64), &&(Duration, u64))| {
        let took = b.0.saturating_sub(a.0).as_secs_f64();
        (took > 0.0).then(|| (b.1 - a.1) as f64 / took)
    };
    let mut slopes: Vec<f64> = steps.iter().zip(steps.get(half..)?).filter_map(slope).collect();
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().map(BytesPerSecond)
}

/// The trains of one probe.
#[derive(Clone, Copy, Debug)]
pub struct Probing {
    next: Option<u64>,
    /// Trains that may still be sent.
    left: usize,
    found: Option<BytesPerSecond>,
    /// Whether the next train is the last one again.
    again: bool,
}

impl Default for Probing {
    fn default() -> Self {
        Self { next: Some(FIRST_TRAIN), left: TRAINS, found: None, again: false }
    }
}

impl Probing {
    /// Bytes of the next train, if there is to be one.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// How fast the link is, as far as trains have told.
    #[must_use]
    pub fn found(&self) -> Option<BytesPerSecond> {
        self.found
    }

    /// The train that was next has been carried so fast. A thread that was late makes a link look slow, and what looks slow looks
    /// like enough: a short train that would be the last is sent twice, and the faster one counts.
    pub fn seen(&mut self, rate: Option<BytesPerSecond>) {
        let Some(sent) = self.next else { return };
        let faster = |a: BytesPerSecond, b: BytesPerSecond| if a.0 > b.0 { a } else { b };
        let before = self.found.filter(|_| self.again);
        // One that came too quickly to tell is faster than any.
        self.found = rate.map(|rate| before.map_or(rate, |before| faster(before, rate)));
        self.left = self.left.saturating_sub(1);
        let longer = next_train(sent, self.found);
        let surely = self.again || sent > SHORT_TRAIN;
        self.again = longer.is_none() && !surely;
        self.next = longer.or(self.again.then_some(sent)).filter(|_| self.left > 0);
    }
}

/// How long the train after one of `sent` bytes, carried at `rate`, must be; `None` where that one was long enough.
fn next_train(sent: u64, rate: Option<BytesPerSecond>) -> Option<u64> {
    let longest = LONGEST_TRAIN.min(sent.saturating_mul(LONGER));
    let Some(rate) = rate else {
        return (sent < LONGEST_TRAIN).then_some(longest);
    };
    let wanted = rate.0 * TRAIN.as_secs_f64();
    let enough = sent >= LONGEST_TRAIN || sent as f64 >= wanted * ENOUGH;
    (!enough).then(|| (wanted as u64).clamp(FIRST_TRAIN, longest.max(FIRST_TRAIN)))
}

/// What may be in flight at once so that a train of `bytes` leaves several times as fast as a link of that bandwidth and
/// round trip carries it.
#[must_use]
pub fn train_window(bytes: u64, bandwidth: BytesPerSecond, round_trip: Seconds) -> u64 {
    const FASTER: f64 = 4.0;
    bytes.max((bandwidth.0 * round_trip.0 * FASTER) as u64).saturating_mul(2)
}

/// How long to leave all links alone after a probe of `bytes` over one of that bandwidth.
#[must_use]
pub fn pause_after(bytes: u64, bandwidth: BytesPerSecond) -> Duration {
    Duration::try_from_secs_f64(bytes as f64 / bandwidth.0 / PART).unwrap_or(FRESH).min(FRESH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 125_000.0;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn train(rate: f64, steps: u64) -> Vec<(Duration, u64)> {
        (0..=steps).map(|k| (ms(k), (rate * 1e-3 * k as f64) as u64)).collect()
    }

    #[test]
    fn a_train_tells_the_rate_though_a_thread_was_late_and_a_packet_came_again() {
        let rate = 100.0 * MBIT;
        let mut arrivals = train(rate, 40);
        assert!((carried(&arrivals).unwrap().0 / rate - 1.0).abs() < 0.01);
        // Read 5 ms late in the middle; the last packets a round trip later.
        arrivals.retain(|(at, _)| !(ms(15)..ms(20)).contains(at));
        arrivals.last_mut().unwrap().0 += ms(60);
        assert!((carried(&arrivals).unwrap().0 / rate - 1.0).abs() < 0.1, "{:?}", carried(&arrivals));
        assert_eq!((carried(&[]), carried(&arrivals[..1])), (None, None));
        assert_eq!(carried(&[(ms(1), 5), (ms(2), 9)]), None, "at once is no rate");
    }

    #[test]
    fn a_tail_that_was_lost_and_comes_again_slowly_does_not_outvote_the_train() {
        let rate = 1000.0 * MBIT;
        let mut arrivals = train(rate, 60);
        let (at, bytes) = *arrivals.last().unwrap();
        // Two seconds for a seventh of it.
        arrivals.extend((1..2000).map(|k| (at + ms(k), bytes + k * 600)));
        assert!((carried(&arrivals).unwrap().0 / rate - 1.0).abs() < 0.05, "{:?}", carried(&arrivals));
    }

    #[test]
    fn trains_are_as_long_as_the_link_is_fast() {
        let next = |sent, mbit: f64| next_train(sent, Some(BytesPerSecond(mbit * MBIT)));
        assert_eq!(next(FIRST_TRAIN, 10.0), Some(50_000));
        assert_eq!((next(50_000, 10.0), next(FIRST_TRAIN, 1.0)), (None, None));
        assert_eq!(next(FIRST_TRAIN, 1000.0), Some(8 * FIRST_TRAIN), "what a short one told is believed by and by");
        assert_eq!(next(64 * FIRST_TRAIN, 1000.0), Some(5_000_000));
        assert_eq!(next(5_000_000, 1200.0), None);
        assert_eq!((next(64 * FIRST_TRAIN, 1e6), next(LONGEST_TRAIN, 1e6)), (Some(LONGEST_TRAIN), None));
        assert_eq!((next_train(FIRST_TRAIN, None), next_train(LONGEST_TRAIN, None)), (Some(8 * FIRST_TRAIN), None));
        assert!(
            FIRST_TRAIN * LONGER.pow(TRAINS as u32 - 2) >= LONGEST_TRAIN,
            "one is left to look at the longest twice"
        );
    }

    /// The trains of a probe of a link, where a thread is late by so much at the first ones.
    fn probed(mbit: f64, late: &[f64]) -> (Vec<u64>, f64) {
        let (mut probing, mut sent) = (Probing::default(), Vec::new());
        while let Some(bytes) = probing.next() {
            let took = bytes as f64 / (mbit * MBIT) + late.get(sent.len()).unwrap_or(&0.0);
            sent.push(bytes);
            probing.seen((took > 3e-3).then_some(BytesPerSecond(bytes as f64 / took)));
        }
        (sent, probing.found().map_or(0.0, |rate| rate.0 / MBIT))
    }

    #[test]
    fn a_thread_that_was_late_once_makes_no_link_slow() {
        for mbit in [10.0, 100.0, 640.0, 10_000.0] {
            let (punctual, _) = probed(mbit, &[]);
            for late in [[0.04, 0.0], [0.0, 0.04]] {
                let (sent, found) = probed(mbit, &late);
                assert!(found > 0.85 * mbit, "{mbit}: {found} by {sent:?}");
                assert!(sent.len() <= TRAINS && sent.len() <= punctual.len() + 1, "{sent:?}");
            }
        }
        assert_eq!(probed(1.0, &[]).0, [FIRST_TRAIN; 2]);
    }

    #[test]
    fn probes_take_less_than_a_hundredth_of_the_upload() {
        for mbit in [10.0, 100.0, 1000.0] {
            let rate = BytesPerSecond(mbit * MBIT);
            let bytes = FIRST_TRAIN + next_train(FIRST_TRAIN, Some(rate)).unwrap_or(0);
            let took = bytes as f64 / rate.0;
            assert!(took / (took + pause_after(bytes, rate).as_secs_f64()) < 0.01, "{mbit}");
        }
    }

    #[test]
    fn traffic_that_never_filled_the_link_only_raises_what_is_known() {
        let mut link = Estimate::default();
        link.note(ms(0), Evidence::AtLeast(BytesPerSecond(5.0)));
        assert_eq!(link.bandwidth(), Some(BytesPerSecond(5.0)));
        link.note(ms(1), Evidence::Probed(BytesPerSecond(100.0)));
        let probed = link.bandwidth().unwrap();
        link.note(ms(2), Evidence::AtLeast(BytesPerSecond(7.0)));
        assert_eq!((link.bandwidth(), link.age(ms(11))), (Some(probed), ms(10)));
        link.note(ms(3), Evidence::AtLeast(BytesPerSecond(1000.0)));
        assert!((link.bandwidth().unwrap().0 - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn traffic_that_waits_for_its_program_is_no_measurement() {
        let (mut link, passing) = (Estimate::default(), |rate| Evidence::Passing(BytesPerSecond(rate)));
        link.note(ms(0), passing(5.0));
        assert!(link.bandwidth().is_none() && link.wants_probe(ms(0)));
        link.note(ms(1), Evidence::Probed(BytesPerSecond(100.0)));
        link.note(ms(2), passing(50.0));
        assert_eq!(link.bandwidth().map(|b| b.0.round()), Some(100.0));
        link.note(ms(50_000), passing(200.0));
        assert_eq!(link.bandwidth().map(|b| b.0.round()), Some(200.0));
        assert!(link.wants_probe(ms(60_001)), "a probe may find that it is faster still");
    }

    #[test]
    fn a_link_that_becomes_slower_is_believed_within_seconds() {
        let mut link = Estimate::default();
        link.note(ms(0), Evidence::Probed(BytesPerSecond(1000.0)));
        for k in 1..=20 {
            link.note(ms(100 * k), Evidence::Full(BytesPerSecond(100.0)));
        }
        assert!((link.bandwidth().unwrap().0 / 100.0 - 1.0).abs() < 0.05, "{link:?}");
        assert!(!link.wants_probe(ms(3000)) && link.wants_probe(ms(100_000)));
        link.note(ms(4000), Evidence::Full(BytesPerSecond(f64::NAN)));
        assert!(link.bandwidth().unwrap().0.is_finite());
    }

    #[test]
    fn a_link_is_stated_once_latency_and_bandwidth_are_known() {
        let (mut link, to) = (Estimate::default(), PeerId([1; 32]));
        link.note(ms(0), Evidence::Probed(BytesPerSecond(10.0)));
        assert_eq!(link.link(to, PathKind::Direct), None);
        link.round_trip(Seconds(0.02));
        let stated = link.link(to, PathKind::Direct).unwrap();
        assert!((stated.latency.0 - 0.01).abs() < 1e-9 && (stated.bandwidth.0 - 10.0).abs() < 1e-9);
    }
}
