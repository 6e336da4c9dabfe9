//! Requests that were asked at once, each computed by another peer on processors of its own: what they take longer than requests alone is
//! what peers of one computer lose to each other.

use crate::gateway::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_coordinator::replay::machines::{Contention, ContentionCurve, Oversubscription};
use tsnode_protocol::PeerId;
use tsnode_simulator::percentile::Sorted;

/// Who computed a part of a request, and how long that took (s).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ComputedPart {
    pub peer: PeerId,
    pub took: f64,
}

/// Where a request was computed, by the clock of its gateway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ComputedRequest {
    /// Its prompt's steps, all together.
    pub prompt: ComputedPart,
    /// A step of its answer, on average.
    pub answer: ComputedPart,
}

impl ComputedRequest {
    /// By a trace; nothing where several stages or groups shared a part of it, or not all of it was computed.
    pub fn of(trace: &Trace) -> Option<Self> {
        let is_whole = trace.cached_tokens == 0 && trace.first_part.is_none() && trace.moves.is_empty();
        let is_apart = trace.prefill_stages.len() <= 1 && trace.decode_stages.len() <= 1;
        let steps = trace.new_tokens.checked_sub(1).filter(|steps| *steps > 0 && is_whole && is_apart)?;
        let part = |peer, took: f64| (took > 0.0).then_some(ComputedPart { peer, took });
        let prompt = part(trace.prefill, trace.parts.prefill.0)?;
        Some(Self { prompt, answer: part(trace.decode, trace.parts.decode.0 / f64::from(steps))? })
    }
}

/// Requests that were asked so many at once, round after round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AskedTogether {
    pub at_once: usize,
    /// Tokens of each answer.
    pub answer: u32,
    pub rounds: Vec<Vec<ComputedRequest>>,
    /// All rounds together.
    pub took: Duration,
}

impl AskedTogether {
    /// The same, asked once more.
    pub fn again(&mut self, Self { rounds, took, .. }: Self) {
        self.rounds.extend(rounds);
        self.took += took;
    }

    /// Requests and tokens of answers, in a second.
    pub fn rates(&self) -> (f64, f64) {
        let requests = (self.rounds.len() * self.at_once) as f64 / self.took.as_secs_f64().max(1e-9);
        (requests, requests * f64::from(self.answer))
    }

    /// A part of each request, by rounds that lost no answer.
    fn whole_rounds(&self, part: fn(&ComputedRequest) -> ComputedPart) -> impl Iterator<Item = Vec<ComputedPart>> {
        let whole = self.rounds.iter().filter(|round| round.len() == self.at_once);
        whole.map(move |round| round.iter().map(part).collect())
    }
}

/// How many peers compute on processors that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ComputingPeers {
    pub all: usize,
    /// As many of them at most as have processors of their own at once.
    pub at_once: usize,
}

impl ComputingPeers {
    /// As many as there are, up to so many, where that is more than have processors of their own.
    pub fn crowd(self, most: usize) -> Option<usize> {
        let crowd = self.all.min(most);
        (crowd > 1 && crowd > self.at_once).then_some(crowd)
    }
}

/// Who computes where: peers by their hosts and threads, and processors of each host.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeersOnHosts<'p> {
    pub peers: &'p BTreeMap<PeerId, (usize, f64)>,
    pub cores: &'p [f64],
}

impl PeersOnHosts<'_> {
    /// How many peers at most have processors of their own while all of them compute.
    fn at_once(&self) -> usize {
        let mut peers: Vec<(usize, f64)> = self.peers.values().copied().collect();
        peers.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut left = self.cores.to_vec();
        let mut fit = 0;
        for (host, threads) in peers {
            if let Some(left) = left.get_mut(host).filter(|left| **left >= threads) {
                *left -= threads;
                fit += 1;
            }
        }
        fit
    }

    /// How many peers compute, and as many at most while all of them have processors of their own.
    pub fn computing(&self) -> ComputingPeers {
        ComputingPeers { all: self.peers.len(), at_once: self.at_once() }
    }

    /// Threads on each host by which these are computed at once; none where one peer has two of them.
    fn threads_of(&self, parts: &[ComputedPart]) -> Option<Vec<f64>> {
        let peers: BTreeSet<PeerId> = parts.iter().map(|part| part.peer).collect();
        let mut threads = vec![0.0_f64; self.cores.len()];
        for peer in &peers {
            let (host, own) = *self.peers.get(peer)?;
            *threads.get_mut(host)? += own;
        }
        (peers.len() == parts.len()).then_some(threads)
    }

    /// The same where no processor has two threads.
    fn side_by_side(&self, parts: &[ComputedPart]) -> Option<Vec<f64>> {
        let threads = self.threads_of(parts)?;
        threads.iter().zip(self.cores).all(|(all, cores)| all <= cores).then_some(threads)
    }

    /// Most threads of a peer.
    fn threads(&self) -> f64 {
        self.peers.values().map(|(_, threads)| *threads).fold(0.0, f64::max)
    }
}

/// How much longer computing takes the more processors compute, by requests alone and at once of the same lengths. Each is held against
/// those alone of the same peer. What is done beside steps takes a part of the processors, too: `left` says what it leaves of each host's
/// at so many requests and tokens a second, as the simulator has it ([`SharedCores`]), and that is not counted once more.
///
/// [`SharedCores`]: tsnode_coordinator::replay::machines::SharedCores
pub(super) fn contention(
    alone: &[ComputedRequest],
    (together, crowd): (&[AskedTogether], Option<&AskedTogether>),
    places: PeersOnHosts<'_>,
    left: impl Fn(f64, f64) -> Vec<f64>,
) -> Contention {
    let beside = side_by_side(alone, together, places, &left);
    let Some(crowd) = crowd else { return beside };
    let (requests, tokens) = crowd.rates();
    let curve = |part: fn(&ComputedRequest) -> ComputedPart, beside: &ContentionCurve| {
        let lone = medians(alone.iter().map(part).map(|part| (part.peer, part.took)));
        let times = crowded(crowd, (part, beside), &lone, places, &left(requests, tokens));
        let points = medians(times.into_iter()).into_iter();
        ContentionCurve::measured(1.0, points.map(|(thousandths, times)| (f64::from(thousandths) / 1000.0, times)))
    };
    let prompts = curve(|request| request.prompt, &beside.prompts);
    let answers = curve(|request| request.answer, &beside.answers);
    Contention { oversubscribed: Oversubscription { prompts, answers }, ..beside }
}

/// What peers lose to each other that have processors of their own.
fn side_by_side(
    alone: &[ComputedRequest],
    together: &[AskedTogether],
    places: PeersOnHosts<'_>,
    left: &impl Fn(f64, f64) -> Vec<f64>,
) -> Contention {
    let curve = |part: fn(&ComputedRequest) -> ComputedPart| {
        let lone = medians(alone.iter().map(part).map(|part| (part.peer, part.took)));
        let times = together.iter().flat_map(|asked| {
            let (requests, tokens) = asked.rates();
            slower(asked, part, &lone, places, &left(requests, tokens))
        });
        let points = medians(times).into_iter().map(|(busy, times)| (f64::from(busy), times));
        ContentionCurve::measured(places.threads(), points)
    };
    let (prompts, answers) = (curve(|request| request.prompt), curve(|request| request.answer));
    // Where no two of a kind were computed side by side, as prompts are not by one group for them, the other kind says it.
    match (prompts.points().is_empty(), answers.points().is_empty()) {
        (true, false) => Contention { prompts: answers.clone(), answers, ..Contention::default() },
        (false, true) => Contention { answers: prompts.clone(), prompts, ..Contention::default() },
        _ => Contention { prompts, answers, ..Contention::default() },
    }
}

/// Of each part that was computed while its host had more threads than processors: thousandths of a thread for each of them, and so many
/// times as long as it took as its share of what was left says, and what processors that compute lose to each other.
fn crowded(
    asked: &AskedTogether,
    (part, beside): (fn(&ComputedRequest) -> ComputedPart, &ContentionCurve),
    lone: &BTreeMap<PeerId, f64>,
    places: PeersOnHosts<'_>,
    left: &[f64],
) -> Vec<(u32, f64)> {
    let mut times = Vec::new();
    for parts in asked.whole_rounds(part) {
        let Some(threads) = places.threads_of(&parts) else { continue };
        let busy: f64 = threads.iter().zip(places.cores).map(|(threads, cores)| threads.min(*cores)).sum();
        let of_share = |part: &ComputedPart| {
            let (host, _) = *places.peers.get(&part.peer)?;
            let (threads, cores, left) = (*threads.get(host)?, *places.cores.get(host)?, *left.get(host)?);
            let had = (left / threads).min(1.0) / beside.at(busy);
            (threads > cores).then_some(((threads / cores * 1000.0) as u32, part.took / lone.get(&part.peer)? * had))
        };
        times.extend(parts.iter().filter_map(of_share));
    }
    times
}

/// Of each part that was computed side by side with others: processors that computed, and so many times as long as alone it took.
fn slower(
    asked: &AskedTogether,
    part: fn(&ComputedRequest) -> ComputedPart,
    lone: &BTreeMap<PeerId, f64>,
    places: PeersOnHosts<'_>,
    left: &[f64],
) -> Vec<(u32, f64)> {
    let mut times = Vec::new();
    for parts in asked.whole_rounds(part) {
        let Some(threads) = places.side_by_side(&parts) else { continue };
        let busy = threads.iter().sum::<f64>() as u32;
        let of_alone = |part: &ComputedPart| {
            let (host, _) = *places.peers.get(&part.peer)?;
            let had = (left.get(host)? / threads[host]).min(1.0);
            Some((busy, part.took / lone.get(&part.peer)? * had))
        };
        times.extend(parts.iter().filter_map(of_alone));
    }
    times
}

/// The median of each.
fn medians<K: Ord>(values: impl Iterator<Item = (K, f64)>) -> BTreeMap<K, f64> {
    let mut all: BTreeMap<K, Vec<f64>> = BTreeMap::new();
    values.for_each(|(of, value)| all.entry(of).or_default().push(value));
    all.into_iter().map(|(of, values)| (of, Sorted::new(values.into_iter()).at(0.5))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::requests::tests::trace;
    use tsnode_coordinator::gateway::LatencyBreakdown;
    use tsnode_protocol::Seconds;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// A peer's request, its prompt so many times 100 ms and each token of its answer so many times 10.
    fn request(n: u8, prompt: f64, answer: f64) -> ComputedRequest {
        let part = |took| ComputedPart { peer: peer(n), took };
        ComputedRequest { prompt: part(prompt * 0.1), answer: part(answer * 0.01) }
    }

    /// The first peer and the second, which is half as fast, alone; and three rounds of both, another of the first twice, and one that lost
    /// an answer.
    fn asked() -> (Vec<ComputedRequest>, AskedTogether) {
        let alone = vec![request(1, 1.0, 1.0), request(2, 2.0, 2.0), request(1, 1.0, 1.0)];
        let round = |times: f64| vec![request(1, 1.5 * times, 1.25), request(2, 3.0 * times, 2.5)];
        let both_of_one = vec![request(1, 9.0, 9.0); 2];
        let rounds = vec![round(1.0), both_of_one, round(1.1), vec![request(2, 9.0, 9.0)], round(0.9)];
        (alone, AskedTogether { at_once: 2, answer: 50, rounds, took: Duration::from_secs(5) })
    }

    fn near(found: &[(f64, f64)], busy: f64, times: f64) -> bool {
        matches!(found, [(at, found)] if *at == busy && (found - times).abs() < 1e-9)
    }

    #[test]
    fn what_is_slower_at_once_is_so_beside_what_it_was_alone_at_the_same_peer() {
        let (alone, together) = asked();
        let peers = BTreeMap::from([(peer(1), (0, 1.0)), (peer(2), (0, 1.0))]);
        let places = PeersOnHosts { peers: &peers, cores: &[2.0] };
        assert_eq!(together.rates(), (2.0, 100.0));
        let found = contention(&alone, (std::slice::from_ref(&together), None), places, |requests, tokens| {
            assert_eq!((requests, tokens), (2.0, 100.0));
            vec![2.0]
        });
        let points = |found: &Contention| [found.prompts.points().to_vec(), found.answers.points().to_vec()];
        let [prompts, answers] = points(&found);
        assert!(near(&prompts, 2.0, 1.5) && near(&answers, 2.0, 1.25), "{found:?}");
        // A fifth of both processors went to what is beside steps; with that answers lost nothing to each other.
        let found = contention(&alone, (std::slice::from_ref(&together), None), places, |_, _| vec![1.6]);
        let [prompts, answers] = points(&found);
        assert!(near(&prompts, 2.0, 1.2) && near(&answers, 2.0, 1.0), "{found:?}");
        // The same of each processor that one peer has to itself, whatever is left of others.
        let apart = BTreeMap::from([(peer(1), (0, 1.0)), (peer(2), (1, 1.0))]);
        let places = PeersOnHosts { peers: &apart, cores: &[1.0; 3] };
        let found = contention(&alone, (std::slice::from_ref(&together), None), places, |_, _| vec![0.8, 0.8, 1.0]);
        let [prompts, answers] = points(&found);
        assert!(near(&prompts, 2.0, 1.2) && near(&answers, 2.0, 1.0), "{found:?}");
        // Two on one processor take turns, which is no contention; of a peer that nobody knows nothing is said.
        for (peers, cores) in [(peers.clone(), [1.0]), (BTreeMap::from([(peer(1), (0, 1.0))]), [2.0])] {
            let places = PeersOnHosts { peers: &peers, cores: &cores };
            let found = contention(&alone, (std::slice::from_ref(&together), None), places, |_, _| vec![2.0]);
            assert!(points(&found).iter().all(Vec::is_empty), "{cores:?}");
        }
    }

    /// Four at once on two processors took 2.2 times as long for prompts and 1.9 for answers, of which twice is their share.
    #[test]
    fn what_a_crowd_takes_beyond_its_share_is_told_by_threads_a_processor() {
        let alone: Vec<ComputedRequest> = (1..=4).map(|n| request(n, 1.0, 1.0)).collect();
        let round = (1..=4).map(|n| request(n, 2.2, 1.9)).collect();
        let both_of_one = vec![request(1, 9.0, 9.0); 4];
        let crowd =
            AskedTogether { at_once: 4, answer: 50, rounds: vec![round, both_of_one], took: Duration::from_secs(4) };
        let peers = (1..=4).map(|n| (peer(n), (0, 1.0))).collect();
        let places = PeersOnHosts { peers: &peers, cores: &[2.0] };
        let found = contention(&alone, (&[], Some(&crowd)), places, |_, _| vec![2.0]).oversubscribed;
        assert!(near(found.prompts.points(), 2.0, 1.1), "{found:?}");
        assert!(near(found.answers.points(), 2.0, 1.0), "never less than once: {found:?}");
        let found = contention(&alone, (&[], None), places, |_, _| vec![2.0]).oversubscribed;
        assert_eq!(found, Oversubscription::default(), "of no crowd nothing is said");
    }

    #[test]
    fn as_many_at_once_as_have_processors_of_their_own() {
        fn at_once(peers: &[(usize, f64)], cores: &[f64]) -> usize {
            let peers: BTreeMap<PeerId, (usize, f64)> = (1..).map(peer).zip(peers.iter().copied()).collect();
            PeersOnHosts { peers: &peers, cores }.at_once()
        }
        assert_eq!(at_once(&[(0, 1.0); 4], &[2.0]), 2);
        assert_eq!(at_once(&[(0, 2.0), (0, 1.0), (0, 1.0)], &[3.0]), 2, "those with fewer threads first");
        assert_eq!(at_once(&[(0, 1.0), (0, 1.0), (1, 1.0), (7, 1.0)], &[1.0, 1.0]), 2);
        assert_eq!(at_once(&[(0, 4.0)], &[2.0]), 0);
    }

    #[test]
    fn a_crowd_is_more_than_have_processors() {
        let crowd = |all, at_once| ComputingPeers { all, at_once }.crowd(16);
        assert_eq!([crowd(4, 2), crowd(2, 0), crowd(40, 2)], [Some(4), Some(2), Some(16)]);
        assert_eq!([crowd(0, 0), crowd(1, 0), crowd(4, 4), crowd(40, 16)], [None; 4]);
    }

    #[test]
    fn of_a_trace_counts_what_one_peer_computed_of_all_of_it() {
        let whole = Trace { cached_tokens: 0, ..trace(["a", "b", "c", "d"]) };
        assert_eq!(ComputedRequest::of(&whole), None, "two stages each");
        let parts = LatencyBreakdown { prefill: Seconds(0.25), decode: Seconds(2.0), ..LatencyBreakdown::default() };
        let alone = Trace { prefill_stages: vec![], decode_stages: vec![], parts, ..whole };
        let found = ComputedRequest::of(&alone).unwrap();
        assert_eq!((found.prompt.peer, found.prompt.took), (alone.prefill, 0.25));
        assert_eq!((found.answer.peer, found.answer.took), (alone.decode, 0.05), "{} tokens", alone.new_tokens);
        for other in [
            Trace { cached_tokens: 20, ..alone.clone() },
            Trace { first_part: Some(20), ..alone.clone() },
            Trace { new_tokens: 1, ..alone.clone() },
            Trace { parts: LatencyBreakdown::default(), ..alone },
        ] {
            assert_eq!(ComputedRequest::of(&other), None, "{other:?}");
        }
    }
}
