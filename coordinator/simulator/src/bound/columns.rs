//! The columns of the joint bound: a group for prompts and one for answers, at a load of the links between them; or one for both.

use super::{
    groups::{Candidate, Candidates},
    simplex::{ProgramColumn, taken},
};
use std::collections::{BTreeMap, HashMap};
use tsnode_coordinator::scheduler::{
    cluster::InstanceId,
    evaluate::Evaluator,
    pair::{self, LINK_LOAD, PairLoads, load},
    problem::Problem,
};

/// The row of requests: no more than there are.
const REQUESTS: usize = 0;
/// Hosts whose links the program has rows for: its inverse takes as many numbers as the rows of all pairs of hosts squared (20 MB).
const MOST_HOSTS: usize = 40;
/// Pairs of groups that are looked at where none is worth what it costs.
const MOST_PAIRS: usize = 4_000_000;

/// Loads that groups may have, in steps: from the first of each pair to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadBlock {
    pub prefill: (u8, u8),
    pub decode: (u8, u8),
}

/// Which column: places among the candidates; of a group for both, its place alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ColumnKey {
    Pair { prefill: usize, decode: usize, link: u8 },
    Mixed { group: usize },
}

pub(super) struct PairColumns<'p> {
    problem: &'p Problem,
    evaluator: Evaluator<'p>,
    candidates: Candidates,
    /// Rows of links between hosts.
    links: BTreeMap<(InstanceId, InstanceId), usize>,
}

/// What candidates are worth and take in a block.
pub(super) struct Valued {
    block: LoadBlock,
    most: (Vec<f64>, Vec<f64>),
    mixed: Vec<f64>,
    /// What a unit of requests takes of instances' devices, by candidate.
    takes: [Vec<Vec<(usize, f64)>>; 3],
    pairs: HashMap<(usize, usize, u8), f64>,
}

impl<'p> PairColumns<'p> {
    /// `None` where there are too many groups.
    pub fn new(problem: &'p Problem) -> Option<Self> {
        let mut evaluator = Evaluator::new(problem);
        let candidates = Candidates::new(problem, &mut evaluator)?;
        let hosts = || problem.cluster.ids();
        if hosts().count() > MOST_HOSTS || candidates.prefill.len() * candidates.decode.len() > MOST_PAIRS {
            return None;
        }
        let pairs = hosts().flat_map(|a| hosts().filter(move |b| a != *b).map(move |b| (a, b)));
        let links = pairs.zip(1 + hosts().count()..).collect();
        Some(Self { problem, evaluator, candidates, links })
    }

    /// How much there is of each row: all requests, each instance's devices, each link's time.
    pub fn rows(&self) -> Vec<f64> {
        let devices = self.problem.cluster.instances.iter().map(|i| f64::from(i.count));
        [1.0].into_iter().chain(devices).chain(self.links.iter().map(|_| 1.0)).collect()
    }

    /// Candidates as they are in a block: as good as at its lowest loads, and carrying as much as at its highest.
    pub fn valued(&self, block: LoadBlock) -> Valued {
        let loads = PairLoads { prefill: block.prefill.0, decode: block.decode.0, link: 0 };
        let rated = |c: &Candidate| &self.evaluator.shelved(c.group).rated;
        let mixed = |c: &Candidate| pair::mixed_value(self.problem, rated(c), loads.prefill);
        let takes = |all: &[Candidate], step: u8| {
            let each = |c: &Candidate| {
                let carries = load(step) * c.rate / self.problem.rate;
                c.members.iter().map(|(i, n)| (1 + i.0 as usize, f64::from(*n) / carries)).collect()
            };
            all.iter().map(each).collect::<Vec<Vec<(usize, f64)>>>()
        };
        let Candidates { prefill, decode, mixed: both, .. } = &self.candidates;
        let (high, decoding) = (block.prefill.1, block.decode.1);
        Valued {
            block,
            most: self.candidates.most(self.problem, &self.evaluator, loads),
            mixed: both.iter().map(mixed).collect(),
            takes: [takes(prefill, high), takes(decode, decoding), takes(both, high)],
            pairs: HashMap::new(),
        }
    }

    /// A column.
    pub fn column(&mut self, valued: &mut Valued, key: ColumnKey) -> ProgramColumn {
        match key {
            ColumnKey::Mixed { group } => {
                let takes = [(REQUESTS, 1.0)].into_iter().chain(valued.takes[2][group].iter().copied());
                ProgramColumn { worth: valued.mixed[group], takes: takes.collect() }
            }
            ColumnKey::Pair { prefill, decode, link } => {
                let worth = self.value(valued, prefill, decode, link);
                let devices = valued.takes[0][prefill].iter().chain(&valued.takes[1][decode]).copied();
                let mut takes: BTreeMap<usize, f64> = BTreeMap::from([(REQUESTS, 1.0)]);
                devices
                    .chain(self.sent(prefill, decode, link))
                    .for_each(|(row, n)| *takes.entry(row).or_default() += n);
                ProgramColumn { worth, takes: takes.into_iter().collect() }
            }
        }
    }

    /// Columns that are worth more than they take at these prices, by more than a little: of each group that prefills the best, and
    /// whether all were looked at.
    pub fn gaining(&mut self, valued: &mut Valued, prices: &[f64], little: f64, most: usize) -> (Vec<ColumnKey>, bool) {
        let price = |takes: &Vec<(usize, f64)>| takes.iter().map(|(row, n)| prices[*row] * n).sum::<f64>();
        let [prefill, decode, mixed] = &valued.takes;
        let request = prices[REQUESTS] + little;
        let both = mixed.iter().zip(&valued.mixed).enumerate().filter(|(_, (t, worth))| **worth > request + price(t));
        let mut found: Vec<ColumnKey> = both.map(|(group, _)| ColumnKey::Mixed { group }).collect();
        let ranked = |takes: &[Vec<(usize, f64)>], most: &[f64]| {
            let each = takes.iter().zip(most).enumerate().map(|(k, (t, most))| (price(t), *most, k));
            let mut all: Vec<(f64, f64, usize)> = each.filter(|c| c.1 > request + c.0).collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
            all
        };
        let (prefill, decode) = (ranked(prefill, &valued.most.0), ranked(decode, &valued.most.1));
        let mut looks = 0;
        for (paid, most_kept, i) in prefill {
            let mut best: Option<(f64, ColumnKey)> = None;
            for (also, most_with, j) in &decode {
                let left = most_kept - request - paid - also;
                if left <= 0.0 {
                    break;
                }
                if most_with - request - paid - also <= 0.0 {
                    continue;
                }
                looks += 1;
                let Some((gain, link)) = self.best_link(valued, prices, (i, *j), request + paid + also) else {
                    continue;
                };
                if best.is_none_or(|b| gain > b.0) {
                    best = Some((gain, ColumnKey::Pair { prefill: i, decode: *j, link }));
                }
            }
            found.extend(best.map(|b| b.1));
            if looks > most && !found.is_empty() {
                return (found, false);
            }
        }
        (found, true)
    }

    /// The load of its links at which a pair gains most beyond what it costs, if it does.
    fn best_link(
        &mut self,
        valued: &mut Valued,
        prices: &[f64],
        (i, j): (usize, usize),
        cost: f64,
    ) -> Option<(f64, u8)> {
        let highest = PairLoads::link_step(LINK_LOAD);
        let sent = |all: &mut Self, link| all.sent(i, j, link).iter().map(|(row, n)| prices[*row] * n).sum::<f64>();
        let least = sent(self, highest);
        if !least.is_finite() {
            return None;
        }
        if self.sent(i, j, highest).is_empty() {
            let gain = self.value(valued, i, j, 0) - cost;
            return (gain > 0.0).then_some((gain, 0));
        }
        // At no load it is worth more than at the lowest, and pays less than at the highest.
        if self.value(valued, i, j, 1) - cost - least <= 0.0 {
            return None;
        }
        let gains = (1..=highest).map(|link| (self.value(valued, i, j, link) - cost - sent(self, link), link));
        let gains: Vec<(f64, u8)> = gains.collect();
        gains.into_iter().filter(|g| g.0 > 0.0).max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// What a unit of requests takes of links: of each, the part of the time that it may be used at this load.
    fn sent(&mut self, prefill: usize, decode: usize, link: u8) -> Vec<(usize, f64)> {
        let tokens = self.problem.workload.mean.prompt * self.problem.rate;
        let (from, to) = (self.candidates.prefill[prefill].group, self.candidates.decode[decode].group);
        let part = load(link);
        let rows = &self.links;
        let each = |(a, b, seconds): &(InstanceId, InstanceId, tsnode_protocol::SecondsPerToken)| {
            (rows[&(*a, *b)], (*seconds * tokens).0 / part)
        };
        self.evaluator.way(from, to).links.iter().map(each).collect()
    }

    fn value(&mut self, valued: &mut Valued, prefill: usize, decode: usize, link: u8) -> f64 {
        if let Some(known) = valued.pairs.get(&(prefill, decode, link)) {
            return *known;
        }
        let loads = PairLoads { prefill: valued.block.prefill.0, decode: valued.block.decode.0, link };
        let (from, to) = (self.candidates.prefill[prefill].group, self.candidates.decode[decode].group);
        let way = self.evaluator.way(from, to).clone();
        let value = match way.is_open() {
            true => {
                let rated = |g| &self.evaluator.shelved(g).rated;
                pair::value(self.problem, rated(from), rated(to), &way, loads)
            }
            false => 0.0,
        };
        valued.pairs.insert((prefill, decode, link), value);
        value
    }
}

/// By how much a column is worth more than it takes.
pub(super) fn gain(column: &ProgramColumn, prices: &[f64]) -> f64 {
    column.worth - taken(column, prices)
}
