//! An upper bound on what any plan can keep, so that a plan comes with its gap.
//!
//! A Lagrangian relaxation. With Z the shares, Σ Z·D under Σ Z ≤ 1 is, for any price π ∈ [0, 1] of a request, at most
//! π + Σ Z·(D − π)⁺; and as every request passes one group that prefills and one that decodes, at most
//! π + min(Σ over prefill groups, Σ over decode groups), hence for any θ ∈ [0, 1] at most
//! π + Σ over groups of max(θ·P, (1−θ)·D, M). What a set of devices can be worth in each phase (P, D, M) is itself
//! bounded by relaxed groups, one for every choice of tensor-parallel degrees by kind: its devices add up without
//! waste, a prompt or a token is as fast as on its fastest kind, memory is pooled, only KV transfers between kinds cost, and
//! its partner is the fastest there could be. A prompt in chunks is at all stages at once, and no faster than all devices
//! together. Sets are counted by kind, so a dynamic program over counts of kinds packs them at best:
//! `V[x] = max over v ≤ x of V[x − v] + worth(v)`. The least over π and θ is the bound.

use tsnode_coordinator::scheduler::{
    cluster::KindId,
    cost::{Decode, Prefill, StageEnds},
    pair::{LOAD_STEP, MOST_LOAD},
    problem::{Problem, PromptChunking},
    slo::Deadline,
    workload::WorkloadRequest,
};
use tsnode_protocol::{Bytes, Seconds, SecondsPerToken, Tokens};

/// States of the dynamic program that are affordable: more kinds and devices have no bound.
const MOST_STATES: usize = 50_000;
/// Prices of a request tried.
const PRICES: [f64; 6] = [0.0, 0.4, 0.7, 0.85, 0.93, 0.97];
/// Steps of the search for θ at each price.
const THETA_STEPS: usize = 6;

/// One kind's devices.
struct DevicesOfKind {
    count: usize,
    memory: Bytes,
    /// The whole model without its head on so many devices side by side.
    degrees: Vec<(usize, Prefill, Decode)>,
}

/// Requests a second, and the share of them kept at the least load at which a group carries so many.
type Curve = Vec<(f64, f64)>;

/// A set of devices and what its relaxed groups can do, by phase.
struct Set {
    counts: Vec<usize>,
    prefill: Vec<Curve>,
    decode: Vec<Curve>,
    mixed: Vec<Curve>,
}

/// No plan keeps more than this share of requests; `None` where the cluster is too large or too varied to say.
#[must_use]
pub fn attainment(problem: &Problem) -> Option<f64> {
    let kinds = kinds(problem);
    let states: usize = kinds.iter().map(|k| k.count + 1).try_fold(1usize, |n, k| n.checked_mul(k))?;
    if states > MOST_STATES {
        return None;
    }
    let relaxed = Relaxed::new(problem, &kinds);
    let sets = relaxed.sets();
    let mut best = 1.0f64;
    for price in PRICES {
        best = best.min(price + relaxed.least_over_theta(&sets, price));
    }
    Some(best)
}

fn kinds(problem: &Problem) -> Vec<DevicesOfKind> {
    let mut kinds: Vec<(KindId, DevicesOfKind)> = Vec::new();
    // Without the head: which stage has it is the plan's choice, and a bound must not be wrong for any.
    let (layers, ends) = (problem.model.shape.layers, StageEnds { first: true, last: false });
    for id in problem.cluster.ids() {
        let instance = problem.cluster.instance(id);
        let place = kinds.iter().position(|(k, _)| *k == instance.kind).unwrap_or_else(|| {
            kinds.push((instance.kind, DevicesOfKind { count: 0, memory: problem.usable(id, 1), degrees: Vec::new() }));
            kinds.len() - 1
        });
        let kind = &mut kinds[place].1;
        kind.count += usize::from(instance.count);
        for d in problem.degrees(id, 0) {
            let Some(cost) = problem.layer_cost(id, d) else { continue };
            let (p, c) = (cost.stage_prefill(layers, ends), cost.stage_decode(layers, ends));
            match kind.degrees.iter_mut().find(|k| k.0 == usize::from(d)) {
                Some(known) => (known.1, known.2) = (least_prefill(&known.1, &p), least_decode(&known.2, &c)),
                None => kind.degrees.push((usize::from(d), p, c)),
            }
        }
    }
    kinds.into_iter().map(|(_, k)| k).collect()
}

/// Below both, term by term.
fn least_prefill(a: &Prefill, b: &Prefill) -> Prefill {
    Prefill {
        fixed: a.fixed.min(b.fixed),
        per_token: a.per_token.min(b.per_token),
        per_square: a.per_square.min(b.per_square),
    }
}

fn least_decode(a: &Decode, b: &Decode) -> Decode {
    Decode {
        fixed: a.fixed.min(b.fixed),
        per_context: a.per_context.min(b.per_context),
        per_sequence: a.per_sequence.min(b.per_sequence),
    }
}

/// The best link between hosts of two kinds.
fn kv_transfer(problem: &Problem) -> (Seconds, SecondsPerToken) {
    let row = problem.model.row().per_token();
    let (mut latency, mut per_token) = (Seconds(f64::INFINITY), SecondsPerToken(f64::INFINITY));
    for a in problem.cluster.ids() {
        for b in problem.cluster.ids() {
            if problem.cluster.instance(a).kind != problem.cluster.instance(b).kind {
                let path = problem.cluster.path(a, b);
                latency = latency.min(path.latency);
                per_token = per_token.min(row / path.bandwidth);
            }
        }
    }
    if per_token.is_finite() { (latency, per_token) } else { Default::default() }
}

struct Relaxed<'p> {
    problem: &'p Problem,
    kinds: &'p [DevicesOfKind],
    /// Time of each request's prompt and of its later tokens on the fastest groups there could be.
    fastest: Vec<(Seconds, Seconds)>,
    /// The best link between two kinds: latency, and time for a token's activations.
    kv_transfer: (Seconds, SecondsPerToken),
}

/// A relaxed group: of each kind in it, how many stages side by side and what the model costs on one.
struct RelaxedGroup<'k> {
    parts: Vec<(f64, &'k Prefill, &'k Decode)>,
    prefill: Prefill,
    decode: Decode,
    /// KV transfers between kinds, at least so many.
    kv_transfers: f64,
    batch: f64,
}

impl RelaxedGroup<'_> {
    /// What all its devices together take for what each alone takes so long for: they add up without waste.
    fn side_by_side(&self, alone: impl Fn(&Prefill) -> Seconds) -> Seconds {
        Seconds(1.0 / self.parts.iter().map(|(n, p, _)| n / alone(p).0).sum::<f64>())
    }
}

impl<'p> Relaxed<'p> {
    fn new(problem: &'p Problem, kinds: &'p [DevicesOfKind]) -> Self {
        let all = || kinds.iter().flat_map(|k| &k.degrees);
        let prefill = all().map(|k| k.1).reduce(|a, b| least_prefill(&a, &b)).unwrap_or_default();
        let decode = all().map(|k| k.2).reduce(|a, b| least_decode(&a, &b)).unwrap_or_default();
        let (context, devices) = (problem.workload.mean.context, kinds.iter().map(|k| k.count).sum::<usize>());
        let together = match problem.prompts {
            PromptChunking::Whole => 1,
            PromptChunking::Chunks { .. } => devices.min(problem.space.group_devices.into()).max(1),
        };
        let time =
            |r: &WorkloadRequest| (prefill.time(r.prompt) / together as f64, decode.time(1.0, context) * r.steps());
        let fastest = problem.workload.requests.iter().map(time).collect();
        Self { problem, kinds, fastest, kv_transfer: kv_transfer(problem) }
    }

    /// Every set of devices that may be a group.
    fn sets(&self) -> Vec<Set> {
        let mut all: Vec<Vec<usize>> = vec![Vec::new()];
        let most = usize::from(self.problem.space.group_devices);
        for kind in self.kinds {
            let with = |head: &Vec<usize>| {
                let used: usize = head.iter().sum();
                (0..=kind.count.min(most - used)).map(|n| [head.as_slice(), &[n]].concat()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        all.retain(|c| self.memory(c) >= self.problem.least_memory());
        all.into_iter().map(|c| self.set(c)).collect()
    }

    fn memory(&self, counts: &[usize]) -> Bytes {
        counts.iter().zip(self.kinds).map(|(n, k)| k.memory * *n as f64).sum()
    }

    fn set(&self, counts: Vec<usize>) -> Set {
        let phases = self.problem.has_phases();
        let both = self.problem.space.mixed || !phases;
        let mut set = Set { counts, prefill: Vec::new(), decode: Vec::new(), mixed: Vec::new() };
        for group in self.groups(&set.counts) {
            let (prefill, decode) = (self.prefills(&group), self.decodes(&group));
            if both {
                set.mixed.push(self.both(&group, &prefill, &decode));
            }
            if phases {
                set.prefill.push(prefill);
                set.decode.push(decode);
            }
        }
        set
    }

    /// A relaxed group for every choice of degrees.
    fn groups(&self, counts: &[usize]) -> Vec<RelaxedGroup<'p>> {
        let mut all: Vec<Vec<(f64, &Prefill, &Decode)>> = vec![Vec::new()];
        for (n, kind) in counts.iter().zip(self.kinds).filter(|(n, _)| **n > 0) {
            let fits = kind.degrees.iter().filter(|(d, _, _)| n.is_multiple_of(*d));
            let parts: Vec<_> = fits.map(|(d, p, c)| ((n / d) as f64, p, c)).collect();
            all = all.iter().flat_map(|head| parts.iter().map(|p| [head.as_slice(), &[*p]].concat())).collect();
        }
        let model = &self.problem.model;
        let tokens = (self.memory(counts) - model.bytes()) / model.kv();
        let batch = (tokens / self.problem.reserved().0).max(1.0);
        let group = |parts: Vec<(f64, &'p Prefill, &'p Decode)>| RelaxedGroup {
            prefill: parts.iter().map(|p| *p.1).reduce(|a, b| least_prefill(&a, &b)).unwrap_or_default(),
            decode: parts.iter().map(|p| *p.2).reduce(|a, b| least_decode(&a, &b)).unwrap_or_default(),
            kv_transfers: (parts.len() - 1) as f64,
            batch,
            parts,
        };
        all.into_iter().map(group).collect()
    }

    fn prefills(&self, group: &RelaxedGroup<'_>) -> Curve {
        let requests = &self.problem.workload.requests;
        let chunking = self.problem.prompts;
        let busy = |r: &WorkloadRequest| group.side_by_side(|p| chunking.packed(p).time(r.prompt)).0;
        let n = requests.len() as f64;
        let mean = requests.iter().map(busy).sum::<f64>() / n;
        let share = |rho: f64| {
            // E[S²] is at least E[S]².
            let tau = mean / 2.0 / (1.0 - rho);
            let kept = |((r, d), fast): ((&WorkloadRequest, &Deadline), &(Seconds, Seconds))| {
                let prompt = self.alone(group, r.prompt);
                let slack = (d.ttft - prompt).min(d.e2e - prompt - fast.1).0;
                if slack < 0.0 { 0.0 } else { 1.0 - rho * (-slack / tau).exp() }
            };
            requests.iter().zip(&self.problem.deadlines).zip(&self.fastest).map(kept).sum::<f64>() / n
        };
        let point = |step: u8| (f64::from(step + 1) * LOAD_STEP / mean, share(f64::from(step) * LOAD_STEP));
        (0..MOST_LOAD).map(point).collect()
    }

    /// A prompt alone, at least. In chunks the stage that takes longest computes all of it, and the first of them passes every link.
    fn alone(&self, group: &RelaxedGroup<'_>, prompt: Tokens) -> Seconds {
        let (latency, per_token) = self.kv_transfer;
        match self.problem.prompts {
            PromptChunking::Whole => group.prefill.time(prompt) + (latency + per_token * prompt) * group.kv_transfers,
            PromptChunking::Chunks { .. } => group.side_by_side(|p| p.time(prompt)) + latency * group.kv_transfers,
        }
    }

    /// Seconds of an iteration of `n` sequences: stages share it without waste, and none is faster than the way through all.
    fn iteration(&self, group: &RelaxedGroup<'_>, n: f64) -> f64 {
        let context = self.problem.workload.mean.context;
        let together = 1.0 / group.parts.iter().map(|(c, _, d)| c / d.time(n, context).0).sum::<f64>();
        together.max((group.decode.time(1.0, context) + self.kv_transfer.0 * group.kv_transfers).0)
    }

    fn decodes(&self, group: &RelaxedGroup<'_>) -> Curve {
        let m = &self.problem.workload.mean;
        let most = group.batch / (m.steps * self.iteration(group, group.batch));
        let requests = &self.problem.workload.requests;
        let share = |rate: f64| {
            // The batch that keeps up with the rate, from below.
            let mut n = 0.0;
            for _ in 0..12 {
                n = (rate * m.steps * self.iteration(group, n)).min(group.batch);
            }
            // Of the three sizes a plan is valued at, the first is one at least and the last no less than the middle.
            let steps = [(1.0 / 6.0, self.iteration(group, 1.0)), (5.0 / 6.0, self.iteration(group, n.max(1.0)))];
            let kept = |((r, d), fast): ((&WorkloadRequest, &Deadline), &(Seconds, Seconds))| {
                let later = r.steps();
                let fits = |step: f64| later * step <= (d.tpot * later).min(d.e2e - fast.0).0 || later <= 0.0;
                steps.iter().filter(|s| fits(s.1)).map(|s| s.0).sum::<f64>()
            };
            let all = requests.iter().zip(&self.problem.deadlines).zip(&self.fastest).map(kept);
            all.sum::<f64>() / requests.len() as f64
        };
        let steps = f64::from(MOST_LOAD) + 1.0;
        (0..=MOST_LOAD).map(|s| (most * f64::from(s + 1) / steps, share(most * f64::from(s) / steps))).collect()
    }

    /// Doing both: each side's share at the rate, the rate as if batches were full.
    fn both(&self, group: &RelaxedGroup<'_>, prefills: &Curve, decodes: &Curve) -> Curve {
        let m = &self.problem.workload.mean;
        let prompt = LOAD_STEP / prefills[0].0;
        let most = group.batch / (m.steps * self.iteration(group, group.batch) + group.batch * prompt);
        let at = |curve: &Curve, rate: f64| curve.iter().find(|c| c.0 >= rate).map_or(0.0, |c| c.1);
        let steps = f64::from(MOST_LOAD) + 1.0;
        let point = |s: u8| {
            let (low, high) = (most * f64::from(s) / steps, most * f64::from(s + 1) / steps);
            (high, at(prefills, low).min(at(decodes, low)))
        };
        (0..=MOST_LOAD).map(point).collect()
    }

    /// The best packing's worth at a price, least over θ: it is convex in θ, so thirds close in on it.
    fn least_over_theta(&self, sets: &[Set], price: f64) -> f64 {
        let worth = |curves: &[Curve]| {
            let at = |&(rate, kept): &(f64, f64)| rate / self.problem.rate * (kept - price).max(0.0);
            curves.iter().flatten().map(at).fold(0.0, f64::max)
        };
        let worths: Vec<[f64; 3]> =
            sets.iter().map(|s| [worth(&s.prefill), worth(&s.decode), worth(&s.mixed)]).collect();
        let useful = useful(sets, &worths);
        let packed = |theta: f64| {
            let of = |w: &[f64; 3]| (theta * w[0]).max((1.0 - theta) * w[1]).max(w[2]);
            self.pack(useful.iter().map(|&i| (sets[i].counts.as_slice(), of(&worths[i]))))
        };
        let (mut low, mut high) = (0.0, 1.0);
        let mut best = f64::INFINITY;
        for _ in 0..THETA_STEPS {
            let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            let (at_a, at_b) = (packed(a), packed(b));
            best = best.min(at_a).min(at_b);
            if at_a < at_b { high = b } else { low = a }
        }
        best
    }

    /// `V[x] = max over v ≤ x of V[x − v] + worth(v)` over counts of kinds, set by set: a set may be taken again.
    fn pack<'s>(&self, sets: impl Iterator<Item = (&'s [usize], f64)>) -> f64 {
        let sizes: Vec<usize> = self.kinds.iter().map(|k| k.count + 1).collect();
        let strides: Vec<usize> = (0..sizes.len()).map(|i| sizes[i + 1..].iter().product()).collect();
        let Some((&row, outer)) = sizes.split_last() else { return 0.0 };
        let mut value = vec![0.0f64; sizes.iter().product()];
        for (set, worth) in sets.filter(|s| s.1 > 0.0) {
            let offset: usize = set.iter().zip(&strides).map(|(n, s)| n * s).sum();
            let mut at: Vec<usize> = set[..outer.len()].to_vec();
            // Over all rows of states that the set fits in.
            'rows: loop {
                let start: usize = at.iter().zip(&strides).map(|(n, s)| n * s).sum();
                for x in start + set[outer.len()]..start + row {
                    value[x] = value[x].max(value[x - offset] + worth);
                }
                for k in (0..=outer.len()).rev() {
                    let Some(k) = k.checked_sub(1) else { break 'rows };
                    at[k] += 1;
                    if at[k] < outer[k] {
                        break;
                    }
                    at[k] = set[k];
                }
            }
        }
        value.last().copied().unwrap_or(0.0)
    }
}

/// Sets that no other with no more devices outdoes in everything.
fn useful(sets: &[Set], worths: &[[f64; 3]]) -> Vec<usize> {
    let outdone = |i: usize| {
        (0..sets.len()).any(|o| {
            o != i
                && sets[o].counts.iter().zip(&sets[i].counts).all(|(a, b)| a <= b)
                && worths[o].iter().zip(&worths[i]).all(|(a, b)| a >= b)
                && (sets[o].counts != sets[i].counts)
        })
    };
    (0..sets.len()).filter(|&i| !outdone(i)).collect()
}
