//! What a plan is worth: the lower level, solved for given groups and phases, with everything remembered.
//!
//! A plan's value is the share of requests that keep their deadlines. It is stated for a ceiling on the load of each
//! phase: D_ij is taken at the ceilings, capacities are what groups carry at them, so no group is planned busier than
//! what its value assumes. Several ceilings are tried, first the lowest that carry the rate, with every group of a phase
//! loaded alike: where nothing is gained by sending more to one of two groups, neither stands idle. A plan that cannot
//! carry the rate may also turn requests away to keep the others in time.

mod ceiling;

use super::{
    cluster::InstanceId,
    pair::{self, KvPath, LINK_LOAD, PairLoads, Rated},
    parallel::{self, InstanceDevices},
    problem::Problem,
    transport::{Solver, TransportProblem},
};
use crate::fast_map::FastMap;
use ceiling::{Ceiling, lowest, step};
use tsnode_protocol::Phase;

/// What unused capacity adds to a value, so that of plans which keep every deadline the one with more room wins.
const HEADROOM: f64 = 1e-3;
/// What each further host of a group takes from a value: of plans as good, the one with fewer links that can break wins.
const SPREAD: f64 = 5e-4;
/// What a request is worth that is carried and late: better late than turned away.
const CARRIED: f64 = 1e-6;
/// More than rounding makes of a value.
const ROUNDING: f64 = 1e-9;
/// Load that a guess lets groups carry, and what it gives for capacity beyond the rate.
const DRAFTED_LOAD: f64 = 0.8;
const ROOM: f64 = 0.03;
/// Ceilings tried, as steps above the lowest that carry the rate, after that itself with every group loaded alike.
const CEILINGS: [i8; 5] = [0, 1, 3, -3, -6];

/// Ceilings tried with every group of a phase loaded alike; only the first, unless values are told apart by measurements.
const EVEN: [i8; 3] = [0, -3, -6];

/// A group on the evaluator's shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNo(pub u32);

/// A group with its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Shelved {
    /// How many devices of which instances.
    pub members: InstanceDevices,
    /// How they work.
    pub rated: Rated,
}

/// Who sends what share of requests to whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteShare {
    /// Place of the prefill group in the plan.
    pub prefill: usize,
    /// Place of the decode group in the plan; the same for a mixed group.
    pub decode: usize,
    /// Share of all requests, Z_ij = X_i·Y_ij.
    pub share: f64,
    /// Share of those that keep their deadlines, D_ij.
    pub kept: f64,
}

/// A plan's worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// What plans are compared by: attainment, a little for headroom, a little off for groups over several hosts.
    pub value: f64,
    /// Share of requests that keep their deadlines.
    pub attainment: f64,
    /// Orchestration (ThunderServe §3.3): who sends which share of requests to whom.
    pub shares: Vec<RouteShare>,
    /// Ceiling of the load of groups that prefill, and of those that decode.
    pub loads: (f64, f64),
}

impl Evaluation {
    /// Σ Z: the share of requests that are taken at all.
    #[must_use]
    pub fn carried(&self) -> f64 {
        self.shares.iter().fold(0.0, |sum, s| sum + s.share)
    }
}

/// Solves the lower level, and remembers configurations, ways and pair values.
#[derive(Debug)]
pub struct Evaluator<'p> {
    problem: &'p Problem,
    shelf: Vec<Shelved>,
    /// By members, then by phase: what was found to be no group counts as known, too.
    index: FastMap<InstanceDevices, [Option<Option<GroupNo>>; 3]>,
    ways: FastMap<(GroupNo, GroupNo), KvPath>,
    values: FastMap<(GroupNo, GroupNo, PairLoads), f64>,
    solver: Solver,
    /// For what is only to be known the most of.
    drafts: Solver,
    matrix: TransportMatrix,
    /// What pairs of the plan keep at the ceilings that were solved, in steps.
    lower: Vec<(u8, u8, Vec<f64>)>,
    /// Plans evaluated so far.
    pub evaluations: usize,
}

/// The transportation problem of one plan, kept for the next.
#[derive(Debug, Default)]
struct TransportMatrix {
    rows: Vec<usize>,
    columns: Vec<usize>,
    value: Vec<f64>,
    arc: Vec<f64>,
    row: Vec<f64>,
    column: Vec<f64>,
    /// Load of links between hosts if every group sends to every other in proportion.
    links: Vec<(InstanceId, InstanceId, f64)>,
    /// Most loaded link of each pair.
    busiest: Vec<f64>,
}

/// Requests a second that a plan's groups carry at full load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanRates {
    /// All prefill groups.
    pub prefill: f64,
    /// All decode groups.
    pub decode: f64,
    /// All mixed groups.
    pub mixed: f64,
}

impl<'p> Evaluator<'p> {
    /// An evaluator with nothing remembered.
    #[must_use]
    pub fn new(problem: &'p Problem) -> Self {
        Self {
            problem,
            shelf: Vec::new(),
            index: FastMap::default(),
            ways: FastMap::default(),
            values: FastMap::default(),
            solver: Solver::default(),
            drafts: Solver::default(),
            matrix: TransportMatrix::default(),
            lower: Vec::new(),
            evaluations: 0,
        }
    }

    /// The problem that plans are evaluated for.
    #[must_use]
    pub fn problem(&self) -> &'p Problem {
        self.problem
    }

    /// The group of these devices in its best configuration; `None` if they cannot hold the model.
    pub fn group(&mut self, members: &InstanceDevices, phase: Phase) -> Option<GroupNo> {
        if let Some(known) = self.index.get(members).and_then(|known| known[phase as usize]) {
            return known;
        }
        let config = parallel::best(self.problem, members, phase);
        let group = config.map(|config| self.shelve(members.clone(), phase, config));
        self.index.entry(members.clone()).or_default()[phase as usize] = Some(group);
        group
    }

    /// A group in a given configuration, whatever the best one is.
    pub fn shelve(&mut self, members: InstanceDevices, phase: Phase, config: parallel::ParallelConfig) -> GroupNo {
        let rated = Rated::new(self.problem, phase, config);
        self.shelf.push(Shelved { members, rated });
        GroupNo((self.shelf.len() - 1) as u32)
    }

    /// What is known of a group.
    #[must_use]
    pub fn shelved(&self, group: GroupNo) -> &Shelved {
        &self.shelf[group.0 as usize]
    }

    /// How KV gets from one group to another.
    pub fn way(&mut self, from: GroupNo, to: GroupNo) -> &KvPath {
        let (problem, shelf) = (self.problem, &self.shelf);
        let config = |g: GroupNo| &shelf[g.0 as usize].rated.config;
        self.ways.entry((from, to)).or_insert_with(|| KvPath::new(problem, config(from), config(to)))
    }

    /// What the groups carry at full load.
    #[must_use]
    pub fn rates(&self, groups: &[GroupNo]) -> PlanRates {
        let mut rates = PlanRates::default();
        for group in groups {
            let rated = &self.shelved(*group).rated;
            match rated.phase {
                Phase::Prefill => rates.prefill += rated.rate(),
                Phase::Decode => rates.decode += rated.rate(),
                Phase::Mixed => rates.mixed += rated.rate(),
            }
        }
        rates
    }

    /// A guess at what a plan of these groups is worth, without pairs and links: for choosing what to evaluate.
    #[must_use]
    pub fn guess(&self, groups: &[GroupNo]) -> f64 {
        let (mut rates, mut good) = (PlanRates::default(), PlanRates::default());
        for group in groups {
            let rated = &self.shelved(*group).rated;
            let (rate, kept) = (rated.rate(), rated.rate() * rated.alone);
            match rated.phase {
                Phase::Prefill => (rates.prefill, good.prefill) = (rates.prefill + rate, good.prefill + kept),
                Phase::Decode => (rates.decode, good.decode) = (rates.decode + rate, good.decode + kept),
                Phase::Mixed => (rates.mixed, good.mixed) = (rates.mixed + rate, good.mixed + kept),
            }
        }
        let split = rates.prefill.min(rates.decode);
        let kept_split = if split > 0.0 { good.prefill / rates.prefill * good.decode / rates.decode } else { 0.0 };
        let capacity = split + rates.mixed;
        let quality = if capacity > 0.0 { (split * kept_split + good.mixed) / capacity } else { 0.0 };
        let carried = (DRAFTED_LOAD * capacity / self.problem.rate).min(1.0);
        // Room beyond the rate is worth something: less waiting.
        let room = (capacity / self.problem.rate).min(4.0);
        carried * quality + ROOM * room - SPREAD * self.spread(groups)
    }

    /// What a plan of these groups is worth.
    pub fn evaluate(&mut self, groups: &[GroupNo]) -> Evaluation {
        self.evaluations += 1;
        let rates = self.rates(groups);
        self.lay_out(groups, &rates);
        let low = lowest(self.problem.rate, &rates);
        let alike = |by: i8| Ceiling::steps(low, by).alike(self.problem.rate, &rates);
        // What measurements do not tell apart is no reason to leave a group idle.
        let noise = self.problem.noise;
        let even: &[i8] = if noise > 0.0 { &EVEN } else { &EVEN[..1] };
        let ease = |c: Ceiling| if noise > 0.0 { c.eased() } else { c };
        let even: Vec<Ceiling> = even.iter().map(|by| ease(alike(*by))).collect();
        let steps = CEILINGS.into_iter().map(|by| (Ceiling::steps(low, by), 0.0));
        let mut best: Option<(f64, Ceiling)> = None;
        let mut solved = None;
        let mut tried = Vec::with_capacity(EVEN.len() + CEILINGS.len());
        self.lower.clear();
        for (ceiling, bonus) in even.into_iter().map(|c| (c, noise)).chain(steps) {
            if tried.contains(&ceiling) {
                continue;
            }
            tried.push(ceiling);
            let beside = ceiling.headroom() + bonus;
            if best.is_some_and(|(v, _)| self.at_most(groups, ceiling) + beside + ROUNDING < v) {
                continue;
            }
            let attained = self.solve(groups, ceiling);
            solved = Some(ceiling);
            if best.is_none_or(|(v, _)| attained + beside > v) {
                best = Some((attained + beside, ceiling));
            }
            // Nothing is gained by more room once everything is kept.
            if attained > 0.9999 {
                break;
            }
        }
        let Some((_, ceiling)) = best else { return Evaluation::default() };
        if solved != Some(ceiling) {
            self.solve(groups, ceiling);
        }
        self.settled(ceiling, groups)
    }

    /// What a plan of these groups and shares is worth: each pair valued at the loads that the shares give its groups and
    /// its links, up to the highest that are planned.
    pub fn rated(&mut self, groups: &[GroupNo], mut shares: Vec<RouteShare>) -> Evaluation {
        let rate = self.problem.rate;
        let part = |g: usize, all: &[RouteShare], at: &dyn Fn(&RouteShare) -> usize| {
            let share: f64 = all.iter().filter(|s| at(s) == g).map(|s| s.share).sum();
            share * rate / self.shelved(groups[g]).rated.rate()
        };
        let load_of =
            |s: &RouteShare| (part(s.prefill, &shares, &|s| s.prefill), part(s.decode, &shares, &|s| s.decode));
        let loads: Vec<(f64, f64)> = shares.iter().map(load_of).collect();
        let links = self.loaded(groups, &shares);
        for (share, (prefill, decode)) in shares.iter_mut().zip(&loads) {
            let link = self.busiest(groups, share, &links);
            share.kept = match (prefill.max(*decode) >= 1.0, link >= 1.0) {
                // Its queues only grow.
                (true, _) | (_, true) => 0.0,
                _ => {
                    let loads =
                        PairLoads { prefill: step(*prefill), decode: step(*decode), link: PairLoads::link_step(link) };
                    self.pair_value(groups[share.prefill], groups[share.decode], loads)
                }
            };
        }
        let attainment = shares.iter().fold(0.0, |sum, s| sum + s.share * s.kept);
        let most = loads.iter().fold((0.0f64, 0.0f64), |m, l| (m.0.max(l.0), m.1.max(l.1)));
        let headroom = HEADROOM * (1.0 - 0.5 * (most.0 + most.1));
        let value = attainment + headroom - SPREAD * self.spread(groups);
        Evaluation { value, attainment, shares, loads: most }
    }

    /// Loads of links between hosts under these shares.
    fn loaded(&mut self, groups: &[GroupNo], shares: &[RouteShare]) -> Vec<(InstanceId, InstanceId, f64)> {
        // Of prompts, in a second.
        let tokens = self.problem.workload.mean.prompt * self.problem.rate;
        let mut links: Vec<(InstanceId, InstanceId, f64)> = Vec::new();
        for s in shares.iter().filter(|s| s.prefill != s.decode) {
            for &(a, b, seconds) in &self.way(groups[s.prefill], groups[s.decode]).links {
                match links.iter_mut().find(|l| l.0 == a && l.1 == b) {
                    Some(link) => link.2 += s.share * (seconds * tokens).0,
                    None => links.push((a, b, s.share * (seconds * tokens).0)),
                }
            }
        }
        links
    }

    /// Load of a route's most loaded link.
    fn busiest(&mut self, groups: &[GroupNo], s: &RouteShare, links: &[(InstanceId, InstanceId, f64)]) -> f64 {
        if s.prefill == s.decode {
            return 0.0;
        }
        let way = self.way(groups[s.prefill], groups[s.decode]);
        let load = |a, b| links.iter().filter(|l| l.0 == a && l.1 == b).fold(0.0, |m: f64, l| m.max(l.2));
        way.links.iter().map(|l| load(l.0, l.1)).fold(0.0, f64::max)
    }

    /// Rows, columns and links of a plan.
    fn lay_out(&mut self, groups: &[GroupNo], rates: &PlanRates) {
        let mut matrix = std::mem::take(&mut self.matrix);
        let phase = |k: &usize| self.shelf[groups[*k].0 as usize].rated.phase;
        let with = |wanted: Phase| (0..groups.len()).filter(move |k| phase(k) == wanted);
        matrix.rows.clear();
        matrix.rows.extend(with(Phase::Prefill).chain(with(Phase::Mixed)));
        matrix.columns.clear();
        matrix.columns.extend(with(Phase::Decode).chain(with(Phase::Mixed)));
        let split = rates.prefill.min(rates.decode);
        let part = if split > 0.0 { split / (split + rates.mixed) } else { 0.0 };
        self.load_links(groups, &mut matrix, rates, part);
        self.matrix = matrix;
    }

    /// Loads of links, arcs' capacities on them, as if everyone sent to everyone in proportion.
    fn load_links(&mut self, groups: &[GroupNo], matrix: &mut TransportMatrix, rates: &PlanRates, part: f64) {
        // Of prompts, in a second.
        let tokens = self.problem.workload.mean.prompt * self.problem.rate;
        let n = matrix.columns.len();
        matrix.links.clear();
        matrix.arc.clear();
        matrix.arc.resize(matrix.rows.len() * n, 0.0);
        matrix.busiest.clear();
        matrix.busiest.resize(matrix.rows.len() * n, 0.0);
        let (rows, columns) = (matrix.rows.clone(), matrix.columns.clone());
        let is_mixed = |k: usize, all: &[Shelved]| all[groups[k].0 as usize].rated.phase == Phase::Mixed;
        let flow = |p: usize, d: usize, all: &[Shelved]| {
            let rate = |k: usize| all[groups[k].0 as usize].rated.rate();
            part * (rate(p) / rates.prefill) * (rate(d) / rates.decode)
        };
        for (i, &p) in rows.iter().enumerate() {
            for (j, &d) in columns.iter().enumerate() {
                if is_mixed(p, &self.shelf) || is_mixed(d, &self.shelf) {
                    matrix.arc[i * n + j] = if p == d { 1.0 } else { 0.0 };
                    continue;
                }
                let flow = flow(p, d, &self.shelf);
                let way = self.way(groups[p], groups[d]);
                matrix.arc[i * n + j] = if way.is_open() { 1.0 } else { 0.0 };
                for &(a, b, seconds) in way.links.iter().filter(|l| l.2.is_finite()) {
                    let load = flow * (seconds * tokens).0;
                    match matrix.links.iter_mut().find(|l| l.0 == a && l.1 == b) {
                        Some(link) => link.2 += load,
                        None => matrix.links.push((a, b, load)),
                    }
                }
            }
        }
        for (i, &p) in rows.iter().enumerate() {
            for (j, &d) in columns.iter().enumerate() {
                let k = i * n + j;
                if matrix.arc[k] == 0.0 || is_mixed(p, &self.shelf) {
                    continue;
                }
                let flow = flow(p, d, &self.shelf);
                let way = self.way(groups[p], groups[d]);
                let load = |a, b| matrix.links.iter().find(|l| l.0 == a && l.1 == b).map_or(0.0, |l| l.2);
                let busiest = way.links.iter().map(|l| load(l.0, l.1)).fold(0.0, f64::max);
                matrix.busiest[k] = busiest;
                if busiest > 0.0 {
                    // Its part of what the link carries at most.
                    matrix.arc[k] = (flow * LINK_LOAD / busiest).min(1.0);
                }
            }
        }
    }

    /// Solves the orchestration at a ceiling; the flow stays in the solver.
    fn solve(&mut self, groups: &[GroupNo], ceiling: Ceiling) -> f64 {
        let mut matrix = std::mem::take(&mut self.matrix);
        self.limit(&mut matrix, groups, ceiling);
        matrix.value.clear();
        let n = matrix.columns.len();
        for i in 0..matrix.rows.len() {
            for j in 0..n {
                let open = matrix.arc[i * n + j] > 0.0;
                let loads = PairLoads {
                    prefill: ceiling.prefill,
                    decode: ceiling.decode,
                    link: PairLoads::link_step(matrix.busiest[i * n + j].min(LINK_LOAD)),
                };
                let (from, to) = (groups[matrix.rows[i]], groups[matrix.columns[j]]);
                matrix.value.push(if open { self.pair_value(from, to, loads) + CARRIED } else { 0.0 });
            }
        }
        if !self.lower.iter().any(|l| (l.0, l.1) == (ceiling.prefill, ceiling.decode)) {
            self.lower.push((ceiling.prefill, ceiling.decode, matrix.value.clone()));
        }
        let TransportMatrix { value, arc, row, column, .. } = &matrix;
        let attained = self.solver.solve(&TransportProblem { value, arc, row, column });
        self.matrix = matrix;
        attained
    }

    /// No less than what the orchestration gives at a ceiling, without valuing a pair: a pair keeps no more at higher loads
    /// than it does at those that were solved.
    fn at_most(&mut self, groups: &[GroupNo], ceiling: Ceiling) -> f64 {
        let mut matrix = std::mem::take(&mut self.matrix);
        self.limit(&mut matrix, groups, ceiling);
        matrix.value.clear();
        matrix.value.extend(matrix.arc.iter().map(|arc| if *arc > 0.0 { 1.0 + CARRIED } else { 0.0 }));
        for (_, _, values) in self.lower.iter().filter(|l| l.0 <= ceiling.prefill && l.1 <= ceiling.decode) {
            matrix.value.iter_mut().zip(values).for_each(|(most, lower)| *most = most.min(*lower));
        }
        let TransportMatrix { value, arc, row, column, .. } = &matrix;
        let most = self.drafts.solve(&TransportProblem { value, arc, row, column });
        self.matrix = matrix;
        most
    }

    /// What groups may carry at a ceiling.
    fn limit(&self, matrix: &mut TransportMatrix, groups: &[GroupNo], ceiling: Ceiling) {
        let capacity = |k: &usize, load: f64| load * self.shelved(groups[*k]).rated.rate() / self.problem.rate;
        let is_mixed = |k: &usize| self.shelved(groups[*k]).rated.phase == Phase::Mixed;
        matrix.row.clear();
        matrix.row.extend(matrix.rows.iter().map(|k| capacity(k, ceiling.prefill_load())));
        matrix.column.clear();
        matrix.column.extend(matrix.columns.iter().map(|k| {
            let load = if is_mixed(k) { ceiling.prefill_load() } else { ceiling.decode_load() };
            capacity(k, load)
        }));
    }

    /// D_ij, remembered.
    fn pair_value(&mut self, from: GroupNo, to: GroupNo, loads: PairLoads) -> f64 {
        let loads = if from == to { PairLoads { decode: 0, link: 0, ..loads } } else { loads };
        if let Some(known) = self.values.get(&(from, to, loads)) {
            return *known;
        }
        let value = if from == to {
            pair::mixed_value(self.problem, &self.shelved(from).rated, loads.prefill)
        } else {
            let (problem, shelf) = (self.problem, &self.shelf);
            let rated = |g: GroupNo| &shelf[g.0 as usize].rated;
            let way = self.ways.entry((from, to));
            let way = way.or_insert_with(|| KvPath::new(problem, &rated(from).config, &rated(to).config));
            pair::value(problem, rated(from), rated(to), way, loads)
        };
        self.values.insert((from, to, loads), value);
        value
    }

    /// Hosts beyond the first, over all groups.
    fn spread(&self, groups: &[GroupNo]) -> f64 {
        groups.iter().map(|g| self.shelved(*g).members.len() - 1).sum::<usize>() as f64
    }

    /// The evaluation of the flow just found, with links as loaded as that flow makes them.
    fn settled(&mut self, ceiling: Ceiling, groups: &[GroupNo]) -> Evaluation {
        let (rows, columns, flow) = (self.matrix.rows.clone(), self.matrix.columns.clone(), self.solver.flow.clone());
        let n = columns.len();
        let used: Vec<(usize, usize, f64)> =
            (0..flow.len()).filter(|k| flow[*k] > 0.0).map(|k| (rows[k / n], columns[k % n], flow[k])).collect();
        let share = |(prefill, decode, share)| RouteShare { prefill, decode, share, kept: 0.0 };
        let mut shares: Vec<RouteShare> = used.into_iter().map(share).collect();
        let links = self.loaded(groups, &shares);
        for s in &mut shares {
            let link = PairLoads::link_step(self.busiest(groups, s, &links));
            let loads = PairLoads { prefill: ceiling.prefill, decode: ceiling.decode, link };
            s.kept = self.pair_value(groups[s.prefill], groups[s.decode], loads);
        }
        let attainment = shares.iter().fold(0.0, |sum, s| sum + s.share * s.kept);
        Evaluation {
            value: attainment + ceiling.headroom() - SPREAD * self.spread(groups),
            attainment,
            shares,
            loads: (ceiling.prefill_load(), ceiling.decode_load()),
        }
    }
}

#[cfg(test)]
mod tests;
