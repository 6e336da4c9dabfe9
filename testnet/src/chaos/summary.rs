//! A report in figures: how often who was hit, and how long that lasted for whom.

use super::{ChaosReport, Deed, InjectedFault, ServedStream, Stood};
use crate::client::Resumption;
use serde::Serialize;
use std::collections::BTreeMap;

/// Times of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// In the median (seconds).
    pub median: f64,
    /// What nine of ten do not exceed (seconds).
    pub ninety: f64,
    /// What 99 of 100 do not exceed (seconds).
    pub ninety_nine: f64,
    /// The longest (seconds).
    pub most: f64,
    /// How many.
    pub of: usize,
}

impl Spread {
    fn of(times: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_by(f64::total_cmp);
        let of = |hundredths: usize| Some(*times.get((times.len() * hundredths).div_ceil(100).checked_sub(1)?)?);
        let (ninety, ninety_nine) = (of(90)?, of(99)?);
        Some(Self { median: times[times.len() / 2], ninety, ninety_nine, most: *times.last()?, of: times.len() })
    }
}

/// A report in figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChaosSummary<'r> {
    /// How often each role was hit. A peer may have several.
    pub hits: BTreeMap<&'r str, usize>,
    /// Longest pauses of streams that a fault hit, those aside that clients spent waiting for a gateway which was stopped or cut off.
    pub pauses: Option<Spread>,
    /// The same of all streams, hit or not.
    pub pauses_of_all: Option<Spread>,
    /// Longest pauses of streams whose gateway was stopped or cut off meanwhile: only their clients could have gone elsewhere.
    pub pauses_at_stopped_gateways: Option<Spread>,
    /// Those of streams that a fault hit, by what the peer did whose fault it was. A stream that waited longest before anything was done is with none of
    /// them.
    pub pauses_by_role: BTreeMap<&'r str, Spread>,
    /// What streams went on from, each time that they went on at another group.
    pub ways: Resumptions,
    /// How long dead peers were still seen by anybody.
    pub gone: Option<Spread>,
    /// How long plans had a part for a dead peer.
    pub replanned: Option<Spread>,
    /// How long it took after partitions until all saw each other and followed one plan.
    pub healed: Option<Spread>,
}

/// What streams went on from at other groups: so many times from each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resumptions {
    /// From KV of the prompt that a prefill group had kept.
    pub kept: usize,
    /// From what the decode group had itself.
    pub cached: usize,
    /// From nothing, or little.
    pub anew: usize,
    /// Unknown: the group was lost, too, before it said so, or the gateway was.
    pub unknown: usize,
}

impl Resumptions {
    fn of(ways: impl IntoIterator<Item = Option<Resumption>>) -> Self {
        let mut all = Self::default();
        for way in ways {
            *match way {
                Some(Resumption::Kept) => &mut all.kept,
                Some(Resumption::Cached) => &mut all.cached,
                Some(Resumption::Anew) => &mut all.anew,
                None => &mut all.unknown,
            } += 1;
        }
        all
    }
}

impl ChaosReport {
    /// All of it in figures.
    #[must_use]
    pub fn summary(&self) -> ChaosSummary<'_> {
        ChaosSummary {
            hits: self.hits(),
            pauses: self.pauses(),
            pauses_of_all: Spread::of(self.streams.iter().filter_map(|s| self.gap(s)).map(|gap| gap.pause)),
            pauses_at_stopped_gateways: self.at_stopped_gateways(),
            pauses_by_role: self.pauses_by_role(),
            ways: Resumptions::of(self.streams.iter().flat_map(|s| &s.moves).map(|m| m.way)),
            gone: Spread::of(self.faults.iter().filter_map(|f| f.gone)),
            replanned: Spread::of(self.faults.iter().filter_map(|f| f.replanned)),
            healed: Spread::of(self.faults.iter().filter_map(|f| f.healed)),
        }
    }

    /// How often each role was hit.
    #[must_use]
    pub fn hits(&self) -> BTreeMap<&str, usize> {
        hits(&self.faults)
    }

    /// Longest pauses of streams that a fault hit, but for those at gateways that were stopped or cut off.
    #[must_use]
    pub fn pauses(&self) -> Option<Spread> {
        Spread::of(self.hit().filter_map(|s| self.gap(s)).map(|gap| gap.pause))
    }

    fn at_stopped_gateways(&self) -> Option<Spread> {
        let longest = |s: &ServedStream| {
            s.pauses.iter().filter(|p| self.is_at_stopped_gateway(p)).map(|p| p.pause).reduce(f64::max)
        };
        Spread::of(self.streams.iter().filter_map(longest))
    }

    /// A stream's longest pause but for those at gateways that were stopped or cut off; none if it had no other that is told.
    fn gap(&self, stream: &ServedStream) -> Option<Stood> {
        if stream.pauses.is_empty() {
            return Some(Stood { from: stream.paused, pause: stream.pause, at: vec![] });
        }
        let others = stream.pauses.iter().filter(|p| !self.is_at_stopped_gateway(p));
        others.max_by(|a, b| a.pause.total_cmp(&b.pause)).cloned()
    }

    /// The stream that stood still for longest, and for how long, those aside that waited for gateways which were stopped or cut off.
    #[must_use]
    pub fn slowest(&self) -> Option<(&ServedStream, Stood)> {
        let gaps = self.streams.iter().filter_map(|stream| Some((stream, self.gap(stream)?)));
        gaps.max_by(|(_, a), (_, b)| a.pause.total_cmp(&b.pause))
    }

    /// Whether a peer that the client asked was stopped or cut off for a part of the pause.
    fn is_at_stopped_gateway(&self, Stood { from, pause, at }: &Stood) -> bool {
        let is_meanwhile = |f: &InjectedFault| f.at <= from + pause && f.until >= *from;
        let is_stopped = |f: &&InjectedFault| matches!(f.deed, Deed::Stop | Deed::Cut | Deed::Part) && is_meanwhile(f);
        self.faults.iter().filter(is_stopped).any(|f| at.iter().any(|peer| f.hit(peer)))
    }

    /// The same, by what the peer did whose fault it was.
    fn pauses_by_role(&self) -> BTreeMap<&str, Spread> {
        let mut pauses: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for gap in self.hit().filter_map(|s| self.gap(s)) {
            if let Some(fault) = self.fault_of(&gap) {
                pauses.entry(fault.role.as_str()).or_default().push(gap.pause);
            }
        }
        pauses.into_iter().filter_map(|(role, pauses)| Some((role, Spread::of(pauses)?))).collect()
    }

    /// Streams that had to go on elsewhere.
    fn hit(&self) -> impl Iterator<Item = &ServedStream> {
        self.streams.iter().filter(|s| !s.moves.is_empty() || s.returns > 0)
    }

    /// What a stream paused for: the fault that lasted through most of the pause, or else the last one before its end, since
    /// a peer that is back changes plans, too.
    fn fault_of(&self, gap: &Stood) -> Option<&InjectedFault> {
        let end = gap.from + gap.pause;
        let shared = |f: &InjectedFault| f.until.min(end) - f.at.max(gap.from);
        let before = self.faults.iter().filter(|f| f.at <= end);
        before.max_by(|a, b| shared(a).max(0.0).total_cmp(&shared(b).max(0.0)).then(a.at.total_cmp(&b.at)))
    }
}

/// How often these hit each role.
pub(super) fn hits(faults: &[InjectedFault]) -> BTreeMap<&str, usize> {
    let mut hits = BTreeMap::new();
    for role in faults.iter().flat_map(|f| &f.roles).flatten() {
        *hits.entry(role.as_str()).or_default() += 1;
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::PauseLimits;
    use crate::client::Moved;
    use serde_json::json;

    fn fault(role: &str, at: f64, until: f64) -> InjectedFault {
        InjectedFault {
            nth: 1,
            deed: Deed::Kill,
            peer: "peer0".into(),
            with: vec![],
            role: role.into(),
            roles: vec![vec![role.into()]],
            at,
            until,
            gone: None,
            replanned: None,
            healed: None,
        }
    }

    fn stream(paused: f64, pause: f64) -> ServedStream {
        ServedStream {
            from: 0.0,
            to: 99.0,
            tokens: 160,
            pause,
            paused,
            pauses: vec![Stood { from: paused, pause, at: vec!["gateway0".into()] }],
            request: String::new(),
            moves: vec![moved(Some(Resumption::Cached))],
            reason: String::new(),
            returns: 0,
        }
    }

    fn report(peers: Vec<String>, faults: Vec<InjectedFault>, streams: Vec<ServedStream>) -> ChaosReport {
        let (plans, wronged, cut_off, violations) = (vec![], vec![], vec![], vec![]);
        ChaosReport { seed: 1, seconds: 40.0, peers, faults, plans, streams, wronged, cut_off, violations }
    }

    fn moved(way: Option<Resumption>) -> Moved {
        Moved { reason: "lost".into(), way }
    }

    #[test]
    fn moves_are_counted_by_what_streams_went_on_from() {
        let told = json!([
            { "reason": "lost", "way": "kept", "at": 1.5 },
            { "reason": "lost", "way": "anew" },
            { "reason": "lost", "way": "a way of another version" },
        ]);
        let told: Vec<Moved> = told.as_array().unwrap().iter().filter_map(Moved::told).collect();
        let moves = [told, vec![moved(Some(Resumption::Cached)), moved(Some(Resumption::Anew))]].concat();
        let ways = Resumptions::of(moves.iter().map(|m| m.way));
        assert_eq!(ways, Resumptions { kept: 1, cached: 1, anew: 2, unknown: 1 });
    }

    #[test]
    fn nine_of_ten_and_the_median_are_of_all() {
        let spread = Spread::of((1..=20).map(f64::from)).unwrap();
        assert_eq!(spread, Spread { median: 11.0, ninety: 18.0, ninety_nine: 20.0, most: 20.0, of: 20 });
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, ninety: 3.0, ninety_nine: 3.0, most: 3.0, of: 1 }));
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of((1..=1000).map(f64::from)).map(|s| s.ninety_nine), Some(990.0));
    }

    #[test]
    fn a_pause_is_told_with_the_role_of_whom_the_fault_hit() {
        let faults = vec![
            fault("gateway", 10.0, 12.0),
            fault("decode leader", 13.0, 15.0),
            fault("coordinator", 20.0, 21.0),
            fault("prefill leader", 30.0, 31.0),
        ];
        let unhurt = ServedStream { moves: vec![], ..stream(13.0, 9.0) };
        let streams = vec![
            // Most of it under the first, the end of it under the second.
            stream(10.5, 2.6),
            stream(13.5, 0.5),
            stream(12.9, 3.0),
            // After the peer was back; before anything was done.
            stream(21.5, 0.25),
            stream(1.0, 0.125),
            unhurt,
        ];
        let peers = vec!["peer0".into()];
        let report = report(peers, faults, streams);
        let summary = report.summary();
        let spread = |times: &[f64]| Spread::of(times.iter().copied()).unwrap();
        let by_role =
            [("coordinator", spread(&[0.25])), ("decode leader", spread(&[0.5, 3.0])), ("gateway", spread(&[2.6]))];
        assert_eq!(summary.pauses_by_role, by_role.into());
        assert_eq!(summary.pauses.map(|p| (p.of, p.most)), Some((5, 3.0)), "those of no fault are told with all");
        assert_eq!(summary.hits.len(), 4);
    }

    #[test]
    fn waiting_for_a_gateway_that_was_stopped_is_told_apart() {
        let stopped = InjectedFault { deed: Deed::Stop, peer: "gateway1".into(), ..fault("gateway", 10.0, 16.0) };
        let killed = InjectedFault { peer: "gateway1".into(), ..fault("gateway", 20.0, 21.0) };
        let stood = |from, pause, at: &str| Stood { from, pause, at: vec!["gateway0".into(), at.into()] };
        let of = |pauses: Vec<Stood>| ServedStream { pauses, ..stream(0.0, 9.0) };
        let streams = vec![
            // Behind it, and a second before, elsewhere.
            of(vec![stood(3.0, 1.0, "gateway0"), stood(11.0, 6.0, "gateway1")]),
            // At the other meanwhile; at this one when it was killed.
            of(vec![stood(11.0, 2.0, "gateway0")]),
            of(vec![stood(20.5, 0.5, "gateway1")]),
            // Nothing but that.
            of(vec![stood(15.0, 9.0, "gateway1")]),
        ];
        let peers = vec!["gateway0".into(), "gateway1".into()];
        let report = report(peers, vec![stopped, killed], streams);
        let summary = report.summary();
        let spread = |times: &[f64]| Spread::of(times.iter().copied());
        assert_eq!(summary.pauses, spread(&[0.5, 1.0, 2.0]));
        assert_eq!(summary.pauses_at_stopped_gateways, spread(&[6.0, 9.0]));
        assert_eq!(report.slowest().map(|(_, stood)| stood), Some(stood(11.0, 2.0, "gateway0")));
        // What is allowed is held against all others.
        let over = |p99, worst| report.clone().within(PauseLimits { p99, worst }).violations.len();
        assert_eq!([over(None, None), over(Some(2.0), Some(2.0)), over(Some(1.9), Some(1.9))], [0, 0, 2]);
    }
}
