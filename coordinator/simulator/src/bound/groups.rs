//! Every group that a plan may have, in the configuration that plans use.

use tsnode_coordinator::scheduler::{
    cost::{Decode, Prefill},
    evaluate::{Evaluator, GroupNo},
    moves::{may_be_group, phases},
    pair::{self, KvPath, PairLoads, Rated},
    parallel::{InstanceDevices, ParallelConfig},
    problem::Problem,
};
use tsnode_protocol::{Phase, Seconds, SecondsPerToken, Tokens};

/// Sets of devices that are affordable.
const MOST_SETS: usize = 20_000;

/// A group that there may be.
pub(super) struct Candidate {
    pub group: GroupNo,
    pub members: InstanceDevices,
    /// Requests a second at full load.
    pub rate: f64,
}

/// All of them, by phase.
pub(super) struct Candidates {
    pub prefill: Vec<Candidate>,
    pub decode: Vec<Candidate>,
    pub mixed: Vec<Candidate>,
    /// As good as the best of each in everything.
    best_prefill: Rated,
    best_decode: Rated,
}

impl Candidates {
    /// `None` where they are too many.
    pub fn new(problem: &Problem, evaluator: &mut Evaluator<'_>) -> Option<Self> {
        let sets = sets(problem)?;
        let mut of = |phase: Phase| {
            if !phases(problem).contains(&phase) {
                return Vec::new();
            }
            let candidate = |members: &InstanceDevices| {
                let group = evaluator.group(members, phase)?;
                Some(Candidate { group, members: members.clone(), rate: evaluator.shelved(group).rated.rate() })
            };
            sets.iter().filter_map(candidate).filter(|c| c.rate > 0.0).collect::<Vec<_>>()
        };
        let (prefill, decode, mixed) = (of(Phase::Prefill), of(Phase::Decode), of(Phase::Mixed));
        let ideal = |all: &[Candidate], phase| Rated::new(problem, phase, ideal(all, evaluator));
        let (best_prefill, best_decode) = (ideal(&prefill, Phase::Prefill), ideal(&decode, Phase::Decode));
        Some(Self { prefill, decode, mixed, best_prefill, best_decode })
    }

    /// What each prefill group keeps at most at these loads, and each decode group: with the best partner, over no link. Whose
    /// partner computes prompts is not kept waiting by it: of the best group it is not known that it keeps nobody longer.
    pub fn most(&self, problem: &Problem, evaluator: &Evaluator<'_>, loads: PairLoads) -> (Vec<f64>, Vec<f64>) {
        let free = KvPath { latency: Seconds(0.0), per_token: SecondsPerToken(0.0), links: Vec::new() };
        let rated = |c: &Candidate| &evaluator.shelved(c.group).rated;
        let value = |a: &Rated, b: &Rated, loads| pair::value(problem, a, b, &free, loads);
        let prefill = self.prefill.iter().map(|c| value(rated(c), &self.best_decode, loads)).collect();
        let at_once = PairLoads { prefill: 0, ..loads };
        (prefill, self.decode.iter().map(|c| value(&self.best_prefill, rated(c), at_once)).collect())
    }
}

/// Every set of devices that may be a group.
fn sets(problem: &Problem) -> Option<Vec<InstanceDevices>> {
    let mut sets: Vec<(u16, InstanceDevices)> = vec![(0, InstanceDevices::new())];
    for id in problem.cluster.ids() {
        for place in 0..sets.len() {
            let (devices, members) = sets[place].clone();
            let most = problem.cluster.instance(id).count.min(problem.space.group_devices.saturating_sub(devices));
            sets.extend((1..=most).map(|n| (devices + n, [members.as_slice(), &[(id, n)]].concat())));
        }
        if sets.len() > MOST_SETS {
            return None;
        }
    }
    Some(sets.into_iter().map(|s| s.1).filter(|members| may_be_group(problem, members)).collect())
}

/// A configuration that is as good as the best of these in everything.
fn ideal(all: &[Candidate], evaluator: &Evaluator<'_>) -> ParallelConfig {
    let forever = Seconds(f64::MAX);
    let slow = Prefill { fixed: forever, per_token: SecondsPerToken(f64::MAX), ..Prefill::default() };
    let (mut latency, mut busy) = (slow, slow);
    let mut round = Decode { fixed: forever, per_context: SecondsPerToken(f64::MAX), per_sequence: forever };
    for candidate in all {
        let config = &evaluator.shelved(candidate.group).rated.config;
        (latency, busy) = (faster(&latency, &config.latency), faster(&busy, &config.busy));
        // An iteration takes the longest of these, so no less than any.
        if let Some(one) = config.rounds.last() {
            round.fixed = round.fixed.min(one.fixed);
            round.per_context = round.per_context.min(one.per_context);
            round.per_sequence = round.per_sequence.min(one.per_sequence);
        }
    }
    // So few requests that nobody waits for a place.
    let (kv_tokens, batch, rate) = (Tokens(1e15), 1e9, 1e-12);
    ParallelConfig { stages: Vec::new(), latency, busy, rounds: vec![round], kv_tokens, batch, rate }
}

fn faster(a: &Prefill, b: &Prefill) -> Prefill {
    // Squares are left out: what takes none is fastest.
    Prefill { fixed: a.fixed.min(b.fixed), per_token: a.per_token.min(b.per_token), ..Prefill::default() }
}
