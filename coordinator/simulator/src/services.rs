//! Several models on one cluster: which devices serve which, each with its own requests and deadlines.
//!
//! A level above [`tsnode_coordinator::scheduler::search`]: a division deals the devices to services, and is worth what the best plans of its
//! parts are worth, weighed by their requests. Tabu steps give devices to another service or exchange them between two;
//! parts are planned briefly while divisions are compared, and the last divisions in full. KV of different services is
//! not counted as sharing links.

use std::collections::{HashMap, HashSet, VecDeque};
use tsnode_coordinator::{
    planner::reranking,
    replay::{Replay, ReplayReport},
    rng::Rng,
    scheduler::{
        cluster::InstanceId,
        moves::{add, take},
        parallel::InstanceDevices,
        problem::{ModelShortfall, Problem, ProblemError},
        regions::{self, Region},
        search::Effort,
    },
};
use tsnode_protocol::Bytes;

/// Steps of a search that only compares divisions.
const BRIEF: usize = 12;
/// Steps of the whole search for each step that deals devices.
const STEPS_A_DEAL: usize = 8;
/// Neighbours guessed at in a step, and those of them that are planned.
const GUESSED: usize = 12;
const PLANNED: usize = 3;
/// Divisions that are not dealt again at once.
const MEMORY: usize = 5;
/// Steps without a gain after which the walk goes back to its best.
const PATIENCE: usize = 4;
/// Divisions planned in full.
const FINALISTS: usize = 3;
/// Part of what a part's groups carry that a guess counts on.
const DRAFTED_LOAD: f64 = 0.8;
/// What a guess gives for capacity beyond the rate.
const ROOM: f64 = 0.02;

/// Devices of each service, in the order of services.
pub type Division = Vec<InstanceDevices>;

/// A service with its devices and its plan.
#[derive(Clone, Debug)]
pub struct ServedService {
    /// Its devices, in terms of the whole cluster.
    pub members: InstanceDevices,
    /// What there is to plan on them; instances are numbered anew.
    pub problem: Problem,
    /// Its plan, in one region or in several.
    pub regions: Vec<Region>,
    /// The replay of a plan in one region.
    pub report: Option<ReplayReport>,
}

impl ServedService {
    /// What its plan is worth.
    #[must_use]
    pub fn value(&self) -> f64 {
        value(&self.regions)
    }
}

/// What a search over divisions found.
#[derive(Clone, Debug)]
pub struct SharedCluster {
    /// The services, in the order given.
    pub services: Vec<ServedService>,
    /// Their values, weighed by their requests.
    pub value: f64,
    /// Divisions whose parts were planned.
    pub divisions: usize,
    /// The next best divisions, by brief plans, best first.
    pub runners_up: Vec<(Division, f64)>,
}

/// Plans services that share a cluster: each problem is a service's, on the whole of it. `dealt` ends the comparison of
/// divisions early, `stop` everything.
///
/// # Errors
/// No division holds every model.
pub fn search(
    services: &[Problem],
    seed: u64,
    effort: Effort,
    how: Replay,
    dealt: &(dyn Fn() -> bool + Sync),
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<SharedCluster, ProblemError> {
    let mut walk = DivisionWalk::new(services, seed, effort);
    let start = walk.start().ok_or_else(|| ProblemError::DoesNotFit(lack(services)))?;
    walk.go(start, dealt);
    let mut all: Vec<(Division, f64)> = std::mem::take(&mut walk.best);
    let divisions = walk.divisions;
    let finalists: Vec<Division> = all.iter().take(FINALISTS).map(|(d, _)| d.clone()).collect();
    let mut best: Option<(f64, Division, Vec<ServedService>)> = None;
    for division in finalists {
        if best.is_some() && stop() {
            break;
        }
        let Some(served) = in_full(services, &division, seed, effort, how, stop) else { continue };
        let value = weighed(services, served.iter().map(ServedService::value));
        if best.as_ref().is_none_or(|b| value > b.0) {
            best = Some((value, division, served));
        }
    }
    let (value, division, served) = best.ok_or_else(|| ProblemError::DoesNotFit(lack(services)))?;
    all.retain(|(d, _)| *d != division);
    Ok(SharedCluster { services: served, value, divisions, runners_up: all })
}

/// Every service's plan on its part; `None` if a part cannot hold its model.
fn in_full(
    services: &[Problem],
    division: &Division,
    seed: u64,
    effort: Effort,
    how: Replay,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Vec<ServedService>> {
    let plan = |(service, members): (&Problem, &InstanceDevices)| {
        let problem = service.part(members)?;
        let mut regions = regions::search(&problem, seed, effort, stop);
        let report = match &mut regions[..] {
            [only] => {
                let (found, report) = reranking::decide(&only.problem, std::mem::take(&mut only.found), how);
                only.found = found;
                Some(report)
            }
            _ => None,
        };
        Some(ServedService { members: members.clone(), problem, regions, report })
    };
    services.iter().zip(division).map(plan).collect()
}

fn value(regions: &[Region]) -> f64 {
    regions.iter().map(|r| r.share * r.found.evaluation.value).sum()
}

fn weighed(services: &[Problem], values: impl Iterator<Item = f64>) -> f64 {
    let total: f64 = services.iter().map(|s| s.rate).sum();
    services.iter().zip(values).map(|(s, v)| s.rate / total * v).sum()
}

struct DivisionWalk<'p> {
    services: &'p [Problem],
    rng: Rng,
    seed: u64,
    effort: Effort,
    planned: HashMap<(usize, InstanceDevices), f64>,
    guessed: HashMap<(usize, InstanceDevices), f64>,
    /// Best first.
    best: Vec<(Division, f64)>,
    seen: HashSet<Division>,
    divisions: usize,
}

impl<'p> DivisionWalk<'p> {
    fn new(services: &'p [Problem], seed: u64, effort: Effort) -> Self {
        let rng = Rng::new(seed);
        let (planned, guessed) = (HashMap::new(), HashMap::new());
        Self { services, rng, seed, effort, planned, guessed, best: Vec::new(), seen: HashSet::new(), divisions: 0 }
    }

    /// Devices dealt one host after another, the largest first, to the service that lacks most of what it needs; if a
    /// model finds no room that way, dealt by chance until each does.
    fn start(&mut self) -> Option<Division> {
        let cluster = &self.services.first()?.cluster;
        let memory = |i: &InstanceId| self.services[0].usable(*i, cluster.instance(*i).count);
        let mut order: Vec<InstanceId> = cluster.ids().collect();
        order.sort_by(|a, b| memory(b).0.total_cmp(&memory(a).0).then(a.cmp(b)));
        let whole: InstanceDevices = cluster.ids().map(|i| (i, cluster.instance(i).count)).collect();
        let need: Vec<f64> = (0..self.services.len()).map(|s| 1.0 / self.guess(s, &whole).max(1e-9)).collect();
        let mut division: Division = vec![InstanceDevices::new(); self.services.len()];
        for instance in order {
            let lacks = |s: &usize| self.lacking(*s, &division[*s], need[*s]);
            let most = (0..self.services.len()).max_by(|a, b| lacks(a).total_cmp(&lacks(b)))?;
            add(&mut division[most], instance, cluster.instance(instance).count);
        }
        for _ in 0..1000 {
            if self.holds(&division) {
                return Some(division);
            }
            division = self.neighbour(&division)?;
        }
        None
    }

    /// How far a service is from its part of the cluster; a service that cannot hold its model lacks more than any that
    /// can.
    fn lacking(&self, service: usize, members: &InstanceDevices, need: f64) -> f64 {
        let problem = &self.services[service];
        let memory: Bytes = members.iter().map(|&(i, n)| problem.usable(i, n)).sum();
        let whole = memory / problem.least_memory();
        if whole < 1.0 { 1e6 * (1.0 - whole) } else { need / whole }
    }

    fn holds(&self, division: &Division) -> bool {
        let fits = |(s, members): (&Problem, &InstanceDevices)| {
            members.iter().map(|&(i, n)| s.usable(i, n)).sum::<Bytes>() >= s.least_memory() && s.part(members).is_some()
        };
        self.services.iter().zip(division).all(fits)
    }

    fn go(&mut self, start: Division, stop: &(dyn Fn() -> bool + Sync)) {
        let (mut present, mut since) = (start, 0);
        let mut value = self.value(&present);
        let mut tabu: VecDeque<Division> = VecDeque::from([present.clone()]);
        for _ in 0..self.effort.steps / STEPS_A_DEAL {
            if self.services.len() < 2 || stop() {
                return;
            }
            let before = self.best.first().map_or(f64::NEG_INFINITY, |b| b.1);
            if let Some(next) = self.step(&present, value, &tabu, stop) {
                (present, value) = next;
                tabu.push_back(present.clone());
                if tabu.len() > MEMORY {
                    tabu.pop_front();
                }
            }
            let Some((best, worth)) = self.best.first() else { return };
            since = if *worth > before { 0 } else { since + 1 };
            if since > 0 && since % PATIENCE == 0 {
                (present, value) = (best.clone(), *worth);
            }
        }
    }

    /// The best of the neighbours that a guess finds most promising; the first that gains.
    fn step(
        &mut self,
        from: &Division,
        value: f64,
        tabu: &VecDeque<Division>,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Option<(Division, f64)> {
        let mut near: Vec<(f64, Division)> = Vec::new();
        for _ in 0..GUESSED {
            let Some(next) = self.neighbour(from) else { continue };
            if tabu.contains(&next) || near.iter().any(|n| n.1 == next) {
                continue;
            }
            let guesses: Vec<f64> = (0..next.len()).map(|s| self.guess(s, &next[s])).collect();
            if guesses.iter().all(|g| *g > 0.0) {
                let worth = |g: f64| (DRAFTED_LOAD * g).min(1.0) + ROOM * g.min(4.0);
                near.push((weighed(self.services, guesses.into_iter().map(worth)), next));
            }
        }
        near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut best: Option<(Division, f64)> = None;
        for (_, next) in near.into_iter().take(PLANNED) {
            let worth = self.value(&next);
            if best.as_ref().is_none_or(|b| worth > b.1) {
                best = Some((next, worth));
            }
            if worth > value || stop() {
                break;
            }
        }
        best
    }

    /// Gives one service's devices of a host to another, or exchanges some between two.
    fn neighbour(&mut self, from: &Division) -> Option<Division> {
        let mut next = from.clone();
        let (a, b) = (self.rng.below(next.len()), self.rng.below(next.len()));
        if a == b || next[a].is_empty() {
            return None;
        }
        let (given, n) = self.some(&next[a]);
        if self.rng.below(3) == 0 && !next[b].is_empty() {
            let (back, m) = self.some(&next[b]);
            take(&mut next[b], back, m);
            add(&mut next[a], back, m);
        }
        take(&mut next[a], given, n);
        add(&mut next[b], given, n);
        (next != *from).then_some(next)
    }

    /// Devices of one host: all, half, or any number.
    fn some(&mut self, members: &InstanceDevices) -> (InstanceId, u16) {
        let (instance, all) = members[self.rng.below(members.len())];
        let n = match self.rng.below(3) {
            0 => all,
            1 => all.div_ceil(2),
            _ => 1 + self.rng.below(usize::from(all)) as u16,
        };
        (instance, n)
    }

    /// What a service's devices carry, in terms of what is asked of it; nothing if they do not hold its model.
    fn guess(&mut self, service: usize, members: &InstanceDevices) -> f64 {
        if let Some(known) = self.guessed.get(&(service, members.clone())) {
            return *known;
        }
        let problem = &self.services[service];
        let guess = problem.part(members).map_or(0.0, |part| regions::capacity(&part) / problem.rate);
        self.guessed.insert((service, members.clone()), guess);
        guess
    }

    /// What a division is worth by brief plans.
    fn value(&mut self, division: &Division) -> f64 {
        let values: Vec<f64> = (0..division.len()).map(|s| self.worth(s, &division[s])).collect();
        let value = weighed(self.services, values.into_iter());
        self.divisions += usize::from(self.seen.insert(division.clone()));
        if !self.best.iter().any(|b| b.0 == *division) {
            let place = self.best.partition_point(|b| b.1 >= value);
            self.best.insert(place, (division.clone(), value));
            self.best.truncate(FINALISTS + 2);
        }
        value
    }

    fn worth(&mut self, service: usize, members: &InstanceDevices) -> f64 {
        let key = (service, members.clone());
        if let Some(known) = self.planned.get(&key) {
            return *known;
        }
        let effort = Effort { steps: BRIEF, ..self.effort };
        let part = self.services[service].part(members);
        // A brief plan is finished even when time is up: what it costs is little, and a division needs its value.
        let worth = part.map_or(0.0, |part| value(&regions::search(&part, self.seed, effort, &|| false)));
        self.planned.insert(key, worth);
        worth
    }
}

/// What all models need together against what the cluster has.
fn lack(services: &[Problem]) -> ModelShortfall {
    let names: Vec<&str> = services.iter().map(|s| s.model.name.as_str()).collect();
    let need = services.iter().map(Problem::least_memory).sum();
    let have = services
        .first()
        .map_or(Bytes(0.0), |s| s.cluster.ids().map(|i| s.usable(i, s.cluster.instance(i).count)).sum());
    ModelShortfall { model: names.join(" and "), need, have, more: Vec::new() }
}
