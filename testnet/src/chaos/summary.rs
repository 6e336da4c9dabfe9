//! A report in figures: how often who was hit, and how long that lasted for whom.

use super::{Fault, Report, Served};
use crate::client::Way;
use serde::Serialize;
use std::collections::BTreeMap;

/// Times of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// In the median (seconds).
    pub median: f64,
    /// What nine of ten do not exceed (seconds).
    pub ninety: f64,
    /// The longest (seconds).
    pub most: f64,
    /// How many.
    pub of: usize,
}

impl Spread {
    fn of(times: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_by(f64::total_cmp);
        let ninety = *times.get((times.len() * 9).div_ceil(10).checked_sub(1)?)?;
        Some(Self { median: times[times.len() / 2], ninety, most: *times.last()?, of: times.len() })
    }
}

/// A report in figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary<'r> {
    /// How often each role was hit.
    pub hits: BTreeMap<&'r str, usize>,
    /// Longest pauses of streams that a fault hit.
    pub pauses: Option<Spread>,
    /// The same, by what the peer did whose fault it was. A stream that waited longest before anything was done is with none of
    /// them.
    pub pauses_by_role: BTreeMap<&'r str, Spread>,
    /// What streams went on from, each time that they went on at another group.
    pub ways: Ways,
    /// How long dead peers were still seen by anybody.
    pub gone: Option<Spread>,
    /// How long plans had a part for a dead peer.
    pub replanned: Option<Spread>,
    /// How long it took after partitions until all saw each other and followed one plan.
    pub healed: Option<Spread>,
}

/// What streams went on from at other groups: so many times from each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ways {
    /// From KV of the prompt that a prefill group had kept.
    pub kept: usize,
    /// From what the decode group had itself.
    pub cached: usize,
    /// From nothing, or little.
    pub anew: usize,
    /// Unknown: the group was lost, too, before it said so, or the gateway was.
    pub unknown: usize,
}

impl Ways {
    fn of(ways: impl IntoIterator<Item = Option<Way>>) -> Self {
        let mut all = Self::default();
        for way in ways {
            *match way {
                Some(Way::Kept) => &mut all.kept,
                Some(Way::Cached) => &mut all.cached,
                Some(Way::Anew) => &mut all.anew,
                None => &mut all.unknown,
            } += 1;
        }
        all
    }
}

impl Report {
    /// All of it in figures.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        Summary {
            hits: self.hits(),
            pauses: self.pauses(),
            pauses_by_role: self.pauses_by_role(),
            ways: Ways::of(self.streams.iter().flat_map(|s| &s.moves).map(|m| m.way)),
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

    /// Longest pauses of streams that a fault hit.
    #[must_use]
    pub fn pauses(&self) -> Option<Spread> {
        Spread::of(self.hit().map(|s| s.pause))
    }

    /// The same, by what the peer did whose fault it was.
    fn pauses_by_role(&self) -> BTreeMap<&str, Spread> {
        let mut pauses: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (role, pause) in self.hit().filter_map(|s| Some((self.fault_of(s)?.role.as_str(), s.pause))) {
            pauses.entry(role).or_default().push(pause);
        }
        pauses.into_iter().filter_map(|(role, pauses)| Some((role, Spread::of(pauses)?))).collect()
    }

    /// Streams that had to go on elsewhere.
    fn hit(&self) -> impl Iterator<Item = &Served> {
        self.streams.iter().filter(|s| !s.moves.is_empty() || s.returns > 0)
    }

    /// What a stream paused for: the fault that lasted through most of the pause, or else the last one before its end, since
    /// a peer that is back changes plans, too.
    fn fault_of(&self, stream: &Served) -> Option<&Fault> {
        let end = stream.paused + stream.pause;
        let shared = |f: &Fault| f.until.min(end) - f.at.max(stream.paused);
        let before = self.faults.iter().filter(|f| f.at <= end);
        before.max_by(|a, b| shared(a).max(0.0).total_cmp(&shared(b).max(0.0)).then(a.at.total_cmp(&b.at)))
    }
}

/// How often these hit each role.
pub(super) fn hits(faults: &[Fault]) -> BTreeMap<&str, usize> {
    let mut hits = BTreeMap::new();
    faults.iter().for_each(|f| *hits.entry(f.role.as_str()).or_default() += 1);
    hits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{chaos::Deed, client::Moved};
    use serde_json::json;

    fn fault(role: &str, at: f64, until: f64) -> Fault {
        Fault {
            deed: Deed::Kill,
            peer: "peer0".into(),
            with: vec![],
            role: role.into(),
            at,
            until,
            gone: None,
            replanned: None,
            healed: None,
        }
    }

    fn stream(paused: f64, pause: f64) -> Served {
        Served {
            from: 0.0,
            to: 99.0,
            pause,
            paused,
            request: String::new(),
            moves: vec![moved(Some(Way::Cached))],
            reason: String::new(),
            returns: 0,
        }
    }

    fn moved(way: Option<Way>) -> Moved {
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
        let moves = [told, vec![moved(Some(Way::Cached)), moved(Some(Way::Anew))]].concat();
        let ways = Ways::of(moves.iter().map(|m| m.way));
        assert_eq!(ways, Ways { kept: 1, cached: 1, anew: 2, unknown: 1 });
    }

    #[test]
    fn nine_of_ten_and_the_median_are_of_all() {
        let spread = Spread::of((1..=20).map(f64::from)).unwrap();
        assert_eq!(spread, Spread { median: 11.0, ninety: 18.0, most: 20.0, of: 20 });
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, ninety: 3.0, most: 3.0, of: 1 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_pause_is_told_with_the_role_of_whom_the_fault_hit() {
        let faults = vec![
            fault("gateway", 10.0, 12.0),
            fault("decode leader", 13.0, 15.0),
            fault("coordinator", 20.0, 21.0),
            fault("prefill leader", 30.0, 31.0),
        ];
        let unhurt = Served { moves: vec![], ..stream(13.0, 9.0) };
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
        let report = Report { seed: 1, seconds: 40.0, peers, faults, plans: vec![], streams, violations: vec![] };
        let summary = report.summary();
        let spread = |times: &[f64]| Spread::of(times.iter().copied()).unwrap();
        let by_role =
            [("coordinator", spread(&[0.25])), ("decode leader", spread(&[0.5, 3.0])), ("gateway", spread(&[2.6]))];
        assert_eq!(summary.pauses_by_role, by_role.into());
        assert_eq!(summary.pauses.map(|p| (p.of, p.most)), Some((5, 3.0)), "those of no fault are told with all");
        assert_eq!(summary.hits.len(), 4);
    }
}
