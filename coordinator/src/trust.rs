//! Who is cut off, and why: what peers do that no honest peer does adds up, and fades.
//!
//! An offence is worth a part of what is tolerated; a peer whose offences reach the whole within some minutes is cut off
//! for a time that doubles with every relapse. Nobody is believed about a third party: every peer judges by what it saw
//! itself, so that no byzantine peer can have an honest peer cut off. What others saw of a claim of speed can make it slower to.

use crate::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tsnode_protocol::PeerId;

/// An offence counts half after so long.
const FADES: Duration = Duration::from_secs(600);
/// A first cut-off lasts this long, and none longer than the second.
const CUT: Duration = Duration::from_secs(600);
const CUT_AT_MOST: Duration = Duration::from_secs(24 * 3600);
/// Peers remembered; the least blamed is forgotten first.
const PEERS: usize = 4096;
/// What needs a second peer is remembered so long: of a prefill peer, who found its KV wrong; of a group that would not say again what
/// it answered, with whose KV.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Prefill peers that are remembered so of one peer.
const EVASIONS: usize = 128;
/// Different decode peers that must have found a prefill peer's KV wrong within [`REMEMBERED`]: one alone could be the byzantine one.
const ACCUSERS: usize = 2;

/// Something no honest peer does, or hardly ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offence {
    /// Bytes that are no message.
    Garbage,
    /// More streams of a kind than it may open, or more messages than there are to say.
    Flood,
    /// Messages that were heard before, passed on anew.
    Replay,
    /// Two plans for one term.
    SecondPlan,
    /// A certificate that proves nothing.
    FalseCertificate,
    /// Weights that do not fit their hash.
    WrongWeights,
    /// A token that two other groups do not get.
    WrongToken,
    /// The same, from a pipeline: any of its stages may be to blame.
    WrongPipeline {
        /// Peers in it.
        peers: u16,
    },
    /// Its advert claims far more speed than its own steps show.
    FalseSpeed {
        /// How many times further off its claim its quickest steps are than others' are off theirs.
        times: u32,
        /// Whether another gateway saw so, too, or none could have.
        is_seconded: bool,
    },
    /// KV from which a decode peer, honest by itself, gets wrong tokens.
    WrongKv {
        /// Who decoded.
        with: PeerId,
    },
    /// Two other groups do not get its token, and it does not say again what it gets by itself, though it goes on answering clients.
    Evasion {
        /// Who sent the KV that may have been wrong.
        prefill: PeerId,
        /// Peers in its group.
        peers: u16,
        /// Whether it may have had too little time.
        is_slow: bool,
    },
}

impl Offence {
    /// The part of what is tolerated. Rare accidents of honest peers stay far below the whole.
    fn weight(self) -> f64 {
        match self {
            Self::Garbage | Self::FalseCertificate | Self::WrongWeights => 0.34,
            // Every answer after the first eight says it again. What others have measured and do not see takes three times as many:
            // they may be the byzantine ones.
            Self::FalseSpeed { is_seconded: true, .. } => 0.13,
            Self::FalseSpeed { is_seconded: false, .. } => 0.04,
            Self::Flood => 0.05,
            Self::Replay => 0.005,
            Self::SecondPlan | Self::WrongToken => 0.51,
            Self::WrongPipeline { peers } => 0.51 / f64::from(peers.max(1)),
            // Counted by accusers, and by who sent the KV.
            Self::WrongKv { .. } | Self::Evasion { .. } => 0.0,
        }
    }
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage => f.write_str("sends bytes that are no message"),
            Self::Flood => f.write_str("says more, or opens more streams, than allowed"),
            Self::Replay => f.write_str("passes on old messages"),
            Self::SecondPlan => f.write_str("made two plans for one term"),
            Self::FalseCertificate => f.write_str("shows certificates that prove nothing"),
            Self::WrongWeights => f.write_str("sends weights that do not fit their hash"),
            Self::WrongToken => f.write_str("answers with tokens that other groups do not get"),
            Self::WrongPipeline { .. } => f.write_str("is in pipelines whose tokens other groups do not get"),
            Self::FalseSpeed { times, is_seconded } => {
                let but = if *is_seconded { "" } else { ", though no other gateway says that it saw so" };
                write!(
                    f,
                    "claims to be faster than it is: its own steps are {times} times further off than others' are{but}"
                )
            }
            Self::WrongKv { with } => write!(f, "sends KV that gives wrong tokens, last at …{}", with.short()),
            Self::Evasion { prefill, .. } => {
                let kv = prefill.short();
                write!(f, "does not say again what other groups do not get of its answers, last with KV of …{kv}")
            }
        }
    }
}

/// Why somebody is cut off, and until when.
#[derive(Clone, Debug, PartialEq)]
pub struct CutOff {
    /// The offence that made it full.
    pub reason: Offence,
    /// So many offences of all kinds.
    pub offences: u32,
    /// When it gets another chance.
    pub until: Time,
}

/// What is held against everybody.
#[derive(Debug, Default)]
pub struct Trust {
    records: BTreeMap<PeerId, OffenceRecord>,
}

#[derive(Debug)]
struct OffenceRecord {
    score: f64,
    at: Time,
    offences: u32,
    /// Who found its KV wrong, and when last; at most [`ACCUSERS`].
    accusers: BTreeMap<PeerId, Time>,
    /// With whose KV it evaded: when, and what part it had in that.
    evaded: BTreeMap<PeerId, (Time, f64)>,
    cut: Option<CutOff>,
    relapses: u32,
}

impl Trust {
    /// Counts an offence; the answer is there if it is the one too many.
    pub fn offends(&mut self, now: Time, peer: PeerId, offence: Offence) -> Option<CutOff> {
        self.make_room(now, peer);
        let record = self.records.entry(peer).or_insert_with(|| OffenceRecord {
            score: 0.0,
            at: now,
            offences: 0,
            accusers: BTreeMap::new(),
            evaded: BTreeMap::new(),
            cut: None,
            relapses: 0,
        });
        record.count(now, offence)
    }

    /// Whether somebody is cut off.
    #[must_use]
    pub fn is_cut_off(&self, peer: PeerId) -> bool {
        self.records.get(&peer).is_some_and(|r| r.cut.is_some())
    }

    /// Everybody who is cut off.
    pub fn cut_off(&self) -> impl Iterator<Item = (PeerId, &CutOff)> {
        self.records.iter().filter_map(|(peer, r)| Some((*peer, r.cut.as_ref()?)))
    }

    /// Pairs of prefill and decode peers of which one answered wrongly lately: the KV was found wrong, or nobody would say whether.
    pub fn barred(&self, now: Time) -> BTreeSet<(PeerId, PeerId)> {
        let wrong_kv = self.records.iter().flat_map(|(peer, r)| {
            let peer = *peer;
            r.accused_since(now, CUT).map(move |with| (peer, with))
        });
        let evaded = self.records.iter().flat_map(|(peer, r)| {
            let peer = *peer;
            r.evaded_since(now, CUT).map(move |(prefill, _)| (prefill, peer))
        });
        wrong_kv.chain(evaded).collect()
    }

    /// Those whose time is over: they start anew, but for their relapses.
    pub fn forgive(&mut self, now: Time) -> Vec<PeerId> {
        let over = |r: &OffenceRecord| r.cut.as_ref().is_some_and(|c| c.until <= now);
        let due = self.records.iter_mut().filter(|(_, r)| over(r));
        due.map(|(peer, record)| {
            (record.cut, record.score, record.offences) = (None, 0.0, 0);
            record.accusers.clear();
            record.evaded.clear();
            *peer
        })
        .collect()
    }

    fn make_room(&mut self, now: Time, peer: PeerId) {
        if self.records.len() < PEERS || self.records.contains_key(&peer) {
            return;
        }
        let blame = |r: &OffenceRecord| if r.cut.is_some() { f64::INFINITY } else { r.faded(now) };
        let least = self.records.iter().min_by(|a, b| blame(a.1).total_cmp(&blame(b.1))).map(|(peer, _)| *peer);
        least.map(|peer| self.records.remove(&peer));
    }
}

impl OffenceRecord {
    fn faded(&self, now: Time) -> f64 {
        let halves = now.saturating_sub(self.at).as_secs_f64() / FADES.as_secs_f64();
        self.score * (-halves).exp2()
    }

    /// Who found its KV wrong in a time until now.
    fn accused_since(&self, now: Time, span: Duration) -> impl Iterator<Item = PeerId> + '_ {
        self.accusers.iter().filter(move |(_, at)| now < **at + span).map(|(with, _)| *with)
    }

    /// With whose KV it evaded in a time until now, and what part it had in that.
    fn evaded_since(&self, now: Time, span: Duration) -> impl Iterator<Item = (PeerId, f64)> + '_ {
        let lately = self.evaded.iter().filter(move |(_, (at, _))| now < *at + span);
        lately.map(|(prefill, (_, part))| (*prefill, *part))
    }

    fn count(&mut self, now: Time, offence: Offence) -> Option<CutOff> {
        (self.score, self.at) = (self.faded(now) + offence.weight(), now);
        self.offences = self.offences.saturating_add(1);
        if let Offence::WrongKv { with } = offence {
            self.accusers.retain(|_, at| now < *at + REMEMBERED);
            // Who accuses it once more is one accuser all the same.
            if self.accusers.len() < ACCUSERS || self.accusers.contains_key(&with) {
                self.accusers.insert(with, now);
            }
        }
        if let Offence::Evasion { prefill, peers, is_slow } = offence {
            self.evaded.retain(|_, (at, _)| now < *at + REMEMBERED);
            // Peers of a pipeline have their parts in it. Of one that was slow nothing is known but that it is to have no such prompts.
            let part = if is_slow { 0.0 } else { 1.0 / f64::from(peers.max(1)) };
            let before = self.evaded.get(&prefill).map_or(0.0, |(_, part)| *part);
            if self.evaded.len() < EVASIONS {
                self.evaded.insert(prefill, (now, part.max(before)));
            }
        }
        // Of one prefill peer's KV it may have been that, each time.
        let evaded: f64 = self.evaded_since(now, REMEMBERED).map(|(_, part)| part).sum();
        // Thirds and halves add up to the whole but for their last bit.
        let accused = self.accused_since(now, REMEMBERED).count();
        let full = self.score > 1.0 - 1e-9 || accused >= ACCUSERS || evaded > ACCUSERS as f64 - 1e-9;
        if !full || self.cut.is_some() {
            return None;
        }
        let span = CUT.saturating_mul(1 << self.relapses.min(16)).min(CUT_AT_MOST);
        self.relapses = self.relapses.saturating_add(1);
        self.cut = Some(CutOff { reason: offence, offences: self.offences, until: now + span });
        self.cut.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Time {
        Duration::from_secs(n)
    }

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// Offences, a second apart, until one is too many.
    fn tolerated(offence: Offence) -> usize {
        let mut trust = Trust::default();
        (0..1000).position(|n| trust.offends(seconds(n), peer(1), offence).is_some()).unwrap_or(1000)
    }

    #[test]
    fn each_kind_has_its_bound() {
        let bounds = [Offence::Garbage, Offence::Flood, Offence::Replay, Offence::SecondPlan, Offence::WrongToken];
        assert_eq!(bounds.map(tolerated), [2, 20, 227, 1, 1]);
        assert_eq!(tolerated(Offence::FalseCertificate), 2);
        let claims = [true, false].map(|is_seconded| tolerated(Offence::FalseSpeed { times: 20, is_seconded }));
        assert_eq!(claims, [7, 25]);
    }

    #[test]
    fn accidents_far_apart_do_not_add_up() {
        let mut trust = Trust::default();
        for hour in 0..100 {
            assert_eq!(trust.offends(seconds(hour * 3600), peer(1), Offence::Garbage), None);
        }
    }

    #[test]
    fn one_peer_alone_cannot_have_another_cut_off() {
        let mut trust = Trust::default();
        for n in 0..100 {
            assert_eq!(trust.offends(seconds(n), peer(1), Offence::WrongKv { with: peer(2) }), None);
        }
        let barred = |trust: &Trust, at| trust.barred(seconds(at)).into_iter().collect::<Vec<_>>();
        assert_eq!(barred(&trust, 100), [(peer(1), peer(2))]);
        assert_eq!(barred(&trust, 1000), [], "it may have been an accident");
        let cut = trust.offends(seconds(100), peer(1), Offence::WrongKv { with: peer(3) }).unwrap();
        assert_eq!((cut.reason, cut.offences), (Offence::WrongKv { with: peer(3) }, 101));
    }

    #[test]
    fn an_accusation_fades_and_a_second_counts_beside_it_only_within_the_hour() {
        let mut trust = Trust::default();
        let accused = |trust: &mut Trust, at, with| {
            trust.offends(seconds(at), peer(1), Offence::WrongKv { with: peer(with) }).is_some()
        };
        let barred = |trust: &Trust, at| trust.barred(seconds(at)).into_iter().collect::<Vec<_>>();
        assert!(!accused(&mut trust, 0, 2));
        // What else it does makes no accusation younger.
        trust.offends(seconds(599), peer(1), Offence::Replay);
        assert_eq!((barred(&trust, 599), barred(&trust, 600)), (vec![(peer(1), peer(2))], vec![]));
        assert!(!accused(&mut trust, 3600, 3), "the first was an hour ago");
        assert!(!accused(&mut trust, 7200, 2), "and so was the second");
        assert_eq!(barred(&trust, 7200), [(peer(1), peer(2))]);
        // The same one once more is still one, and remembered from then on.
        assert!(!accused(&mut trust, 9000, 2));
        assert!(accused(&mut trust, 9000 + 3599, 3));
        // A second chance begins with none.
        assert_eq!(trust.forgive(seconds(20_000)), [peer(1)]);
        assert!(!accused(&mut trust, 20_000, 2));
    }

    #[test]
    fn who_evades_is_kept_from_those_prompts_and_is_cut_off_with_a_second_prefill_peer() {
        let mut trust = Trust::default();
        let evades = |trust: &mut Trust, at, with, peers| {
            let offence = Offence::Evasion { prefill: peer(with), peers, is_slow: false };
            trust.offends(seconds(at), peer(1), offence).is_some()
        };
        assert!((0..100).all(|at| !evades(&mut trust, at, 2, 1)), "that one may send wrong KV, and this one be busy");
        let barred = |trust: &Trust, at| trust.barred(seconds(at)).into_iter().collect::<Vec<_>>();
        assert_eq!(barred(&trust, 100), [(peer(2), peer(1))]);
        assert_eq!(barred(&trust, 1000), []);
        assert!(!evades(&mut trust, 4000, 3, 1), "the first was long ago");
        assert!(evades(&mut trust, 4100, 2, 1));

        // Of a pipeline any stage may have had no room.
        let mut trust = Trust::default();
        assert!((2..5).all(|with| !evades(&mut trust, 0, with, 2)));
        assert!(evades(&mut trust, 0, 5, 2));

        // Nor is anybody cut off for being slow.
        let mut trust = Trust::default();
        let slow = |with| Offence::Evasion { prefill: peer(with), peers: 1, is_slow: true };
        assert!((2..100).all(|with| trust.offends(seconds(0), peer(1), slow(with)).is_none()));
        assert_eq!(trust.barred(seconds(1)).len(), 98);
    }

    #[test]
    fn who_relapses_stays_away_for_longer() {
        let mut trust = Trust::default();
        let offend = |trust: &mut Trust, at| {
            trust.offends(seconds(at), peer(1), Offence::WrongToken);
            trust.offends(seconds(at), peer(1), Offence::WrongToken).unwrap().until
        };
        let first = offend(&mut trust, 0);
        assert_eq!((first, trust.is_cut_off(peer(1)), trust.is_cut_off(peer(2))), (seconds(600), true, false));
        assert_eq!((trust.forgive(seconds(599)), trust.forgive(first)), (vec![], vec![peer(1)]));
        assert!(!trust.is_cut_off(peer(1)));
        assert_eq!(offend(&mut trust, 1000), seconds(1000 + 1200));
    }

    #[test]
    fn a_crowd_of_strangers_does_not_push_out_who_is_cut_off() {
        let mut trust = Trust::default();
        trust.offends(seconds(0), peer(1), Offence::WrongToken);
        trust.offends(seconds(0), peer(1), Offence::WrongToken);
        for n in 0..2 * PEERS as u32 {
            let mut id = [9; 32];
            id[..4].copy_from_slice(&n.to_le_bytes());
            trust.offends(seconds(1), PeerId(id), Offence::Flood);
        }
        assert!(trust.is_cut_off(peer(1)) && trust.records.len() <= PEERS);
    }
}
