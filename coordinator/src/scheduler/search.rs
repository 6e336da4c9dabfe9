//! The upper level: tabu search over groups and phases (ThunderServe §3.2, Algorithm 1, and what we changed in it).
//!
//! Against the paper's ([`tsnode_simulator::baselines::algorithm1`]): it starts from the best of several constructed groupings; devices may be
//! left idle and groups may be mixed; a grouping is evaluated once however often it is met; a walk that has not gained
//! for a while goes back to its best; hosts that are alike are one ([`super::symmetry`]). Several walks with their own seeds
//! share the evaluations. Between rounds they tell each other what they have found, so that groups of one's best can be
//! crossed with another's; they can run side by side, and what is found does not depend on how many do.

use super::{
    evaluate::{Evaluation, Evaluator, GroupNo},
    moves::{DeviceGroup, Grouping, GroupingChange, anew, crossed, is_small, may_be_group, neighbour, phases},
    problem::Problem,
    start,
    symmetry::Symmetry,
};
use crate::{fast_map::FastMap, rng::Rng};
use std::collections::VecDeque;
use std::sync::Arc;
use tsnode_protocol::Phase;

/// Rounds, between which walks look at each other.
const ROUNDS: usize = 8;
/// Last rounds in which all walks go on from the best; before, each from a good one of its own.
const TOGETHER: usize = 2;
/// One in so many neighbours has groups of another good grouping.
const CROSSED: usize = 7;
/// Steps without a gain after which a walk has seen what there is.
const STUCK: usize = 400;
/// Steps without a gain after which a walk goes back to its best.
const PATIENCE: usize = 3;
/// Constructed groupings whose phases are tried out.
const STARTS: usize = 2;
/// Steps taken blindly, at most, when a walk starts from its best again.
const KICK: usize = 3;
/// On a small cluster, one in so many such starts is anywhere instead.
const ANYWHERE: usize = 4;
/// Neighbours guessed at for each that is evaluated.
const SCREENED: usize = 8;
/// Tries for a neighbour that is allowed.
const TRIES: usize = 12;
/// Runners-up kept.
const RUNNERS_UP: usize = 4;

/// How hard to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// N_step, over all walks.
    pub steps: usize,
    /// N_neigh: neighbours that are looked at in a step.
    pub neighbours: usize,
    /// N_mem: groupings that the tabu list remembers.
    pub memory: usize,
    /// Walks side by side, each with its own seed.
    pub walks: usize,
    /// Threads they run on.
    pub threads: usize,
}

impl Default for Effort {
    /// The paper's 100 steps of 10 neighbours, 5 remembered (§3.2).
    fn default() -> Self {
        Self { steps: 100, neighbours: 10, memory: 5, walks: 2, threads: 1 }
    }
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The best grouping.
    pub grouping: Grouping,
    /// What it is worth.
    pub evaluation: Evaluation,
    /// The next best, each with another set of groups, best first.
    pub runners_up: Vec<(Grouping, f64)>,
    /// How many groupings were evaluated.
    pub evaluations: usize,
}

/// Searches. `stop` is asked before every step and ends the search with the best so far: a search with a time budget
/// passes a clock in it. Equal seeds and efforts give equal plans as long as `stop` does not.
pub fn search(problem: &Problem, seed: u64, effort: Effort, stop: &(dyn Fn() -> bool + Sync)) -> Found {
    let mut walks: Vec<Walk<'_>> = (0..effort.walks.max(1)).map(|n| Walk::new(problem, seed, n, effort)).collect();
    for round in 1..=ROUNDS {
        side_by_side(&mut walks, effort.threads, &|walk| walk.round(round, stop));
        if round < ROUNDS {
            exchange(&mut walks, round);
        }
    }
    together(walks.into_iter().map(Walk::finish).collect())
}

/// Tells every walk what all have found: values, so that nothing is evaluated twice; good groupings to cross with; and
/// where to go on from.
fn exchange(walks: &mut [Walk<'_>], round: usize) {
    let common = walks.first_mut().map(|w| std::mem::take(&mut w.common)).unwrap_or_default();
    walks.iter_mut().for_each(|w| w.common = Arc::default());
    // Nobody else has it now, so it is not copied.
    let mut common = Arc::unwrap_or_clone(common);
    common.extend(walks.iter_mut().flat_map(|w| w.seen.drain()));
    let common = Arc::new(common);
    let mut good: Vec<(f64, Grouping)> =
        walks.iter().flat_map(|w| w.good.iter().cloned().chain([w.home.clone()])).collect();
    good.retain(|g| !g.1.parts.is_empty());
    good.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    good.dedup();
    for (n, walk) in walks.iter_mut().enumerate() {
        walk.common = common.clone();
        walk.good.clone_from(&good);
        if let Some(from) = good.get(if round + TOGETHER < ROUNDS { n % good.len().max(1) } else { 0 }) {
            walk.adopt(from);
        }
    }
}

/// Does something to each, on so many threads; which thread takes which makes no difference.
pub(super) fn side_by_side<T: Send>(all: &mut [T], threads: usize, work: &(dyn Fn(&mut T) + Sync)) {
    let each = all.len().div_ceil(threads.clamp(1, all.len().max(1)));
    if each >= all.len() {
        return all.iter_mut().for_each(work);
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "which thread does what changes no result, and all have ended after it"
    )]
    std::thread::scope(|scope| {
        for part in all.chunks_mut(each) {
            scope.spawn(move || part.iter_mut().for_each(work));
        }
    });
}

/// The best of several searches; the first of equals.
fn together(all: Vec<Found>) -> Found {
    let evaluations = all.iter().map(|f| f.evaluations).sum();
    let mut best = Found::default();
    let mut others: Vec<(Grouping, f64)> = Vec::new();
    for found in all {
        others.push((found.grouping.clone(), found.evaluation.value));
        others.extend(found.runners_up.iter().cloned());
        if best.grouping.parts.is_empty() || found.evaluation.value > best.evaluation.value {
            best = found;
        }
    }
    others.retain(|o| o.0 != best.grouping && !o.0.parts.is_empty());
    others.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    others.dedup_by(|a, b| a.0 == b.0);
    others.truncate(RUNNERS_UP);
    Found { runners_up: others, evaluations, ..best }
}

struct Walk<'p> {
    evaluator: Evaluator<'p>,
    symmetry: Symmetry,
    rng: Rng,
    effort: Effort,
    number: usize,
    /// Values, by the grouping's key.
    seen: FastMap<u64, f64>,
    /// What all walks had found when they last met.
    common: Arc<FastMap<u64, f64>>,
    present: Grouping,
    /// Keys.
    tabu: VecDeque<u64>,
    best: (f64, Grouping),
    /// The best since it looked at the others, which it goes back to.
    home: (f64, Grouping),
    /// Of all walks, those of earlier rounds.
    good: Vec<(f64, Grouping)>,
    /// Best first.
    others: Vec<(Grouping, f64)>,
}

impl<'p> Walk<'p> {
    fn new(problem: &'p Problem, seed: u64, number: usize, effort: Effort) -> Self {
        let rng = Rng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(number as u64));
        Self {
            evaluator: Evaluator::new(problem),
            symmetry: Symmetry::of(&problem.cluster),
            rng,
            effort,
            number,
            seen: FastMap::default(),
            common: Arc::default(),
            present: Grouping::default(),
            tabu: VecDeque::new(),
            best: (f64::NEG_INFINITY, Grouping::default()),
            home: (f64::NEG_INFINITY, Grouping::default()),
            good: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Walks on until this round's part of the evaluations is used.
    fn round(&mut self, round: usize, stop: &(dyn Fn() -> bool + Sync)) {
        let walks = self.effort.walks.max(1);
        let steps = self.effort.steps / walks + usize::from(self.number < self.effort.steps % walks);
        let most = (steps * self.effort.neighbours * round / ROUNDS).max(1);
        if round == 1 {
            self.present = self.start(stop);
        }
        let mut since = 0;
        // Counting evaluations, not steps: what was seen before costs nothing, and its place is given to something new.
        while self.evaluator.evaluations < most && since < STUCK && !stop() {
            let before = self.home.0;
            let from = std::mem::take(&mut self.present);
            let Some(next) = self.step(&from) else {
                // Nothing new around here: somewhere else, a few times, then that is all there is.
                since += STUCK / 40;
                self.present = self.kicked();
                continue;
            };
            self.tabu.push_back(next.key());
            if self.tabu.len() > self.effort.memory {
                self.tabu.pop_front();
            }
            since = if self.home.0 > before { 0 } else { since + 1 };
            self.present = if since > 0 && since % PATIENCE == 0 { self.kicked() } else { next };
        }
    }

    /// Goes on from a good one that any walk has found.
    fn adopt(&mut self, good: &(f64, Grouping)) {
        self.remember(&good.1, good.0);
        self.home = good.clone();
        self.present = good.1.clone();
    }

    fn finish(mut self) -> Found {
        self.employ();
        let evaluations = self.evaluator.evaluations;
        let evaluation = match shelved(&mut self.evaluator, &self.best.1) {
            Some(groups) if !groups.is_empty() => self.evaluator.evaluate(&groups),
            _ => Evaluation::default(),
        };
        self.others.retain(|o| o.0 != self.best.1);
        Found { grouping: self.best.1, evaluation, runners_up: self.others, evaluations }
    }

    /// Gives devices that no request comes by something to do, where that costs nothing: idle ones a group of their own,
    /// groups without requests both phases.
    fn employ(&mut self) {
        let problem = self.evaluator.problem();
        let choices = phases(problem);
        for (instance, n) in self.best.1.idle(problem) {
            let members = vec![(instance, n)];
            if !may_be_group(problem, &members) {
                continue;
            }
            let with = |phase: &Phase| {
                let part = DeviceGroup { members: members.clone(), phase: *phase };
                Grouping::new(self.best.1.parts.iter().cloned().chain([part]).collect())
            };
            let all: Vec<Grouping> = choices.iter().rev().map(with).collect();
            all.into_iter().for_each(|grouping| self.prefer(grouping));
        }
        if !problem.space.mixed {
            return;
        }
        let Some(groups) = shelved(&mut self.evaluator, &self.best.1) else { return };
        let evaluation = self.evaluator.evaluate(&groups);
        let mut parts = self.best.1.parts.clone();
        for (place, part) in parts.iter_mut().enumerate() {
            if !evaluation.shares.iter().any(|s| s.prefill == place || s.decode == place) {
                part.phase = Phase::Mixed;
            }
        }
        self.prefer(Grouping::new(parts));
    }

    /// Takes a grouping that uses more, if it is worth as much; the first of equals that use as much stays.
    fn prefer(&mut self, grouping: Grouping) {
        let used = |g: &Grouping| g.parts.iter().flat_map(|p| &p.members).map(|m| u32::from(m.1)).sum::<u32>();
        let value = self.value(&grouping);
        let more = used(&grouping) > used(&self.best.1) || value > self.best.0;
        let same_use = used(&grouping) == used(&self.best.1) && grouping.parts.len() == self.best.1.parts.len();
        if grouping != self.best.1 && value.is_finite() && value >= self.best.0 - 1e-9 && (more || same_use) {
            self.best = (value.max(self.best.0), grouping);
        }
    }

    /// The best of several constructed groupings; later walks start from the paper's clusters.
    fn start(&mut self, stop: &(dyn Fn() -> bool + Sync)) -> Grouping {
        let problem = self.evaluator.problem();
        let mut starts = vec![start::clustered(problem, &mut self.rng)];
        if self.number.is_multiple_of(2) {
            for slack in [1.0, 1.15, 1.5, 2.0, 3.0] {
                let groups = start::small(problem, slack);
                starts.extend(start::with_phases(&mut self.evaluator, &groups));
            }
        }
        let mut valued: Vec<(f64, Grouping)> = Vec::new();
        for grouping in starts {
            if !valued.is_empty() && stop() {
                break;
            }
            let grouping = self.symmetry.one_for_all(grouping);
            let value = self.value(&grouping);
            valued.push((value, grouping));
        }
        valued.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        valued.dedup();
        valued.truncate(STARTS);
        // Phases alone first: they are few, and decide most.
        let descended: Vec<(f64, Grouping)> = valued.into_iter().map(|(v, g)| self.descend(v, g, stop)).collect();
        descended.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, g)| g).unwrap_or_default()
    }

    /// Flips phases, one group after another, as long as that gains.
    fn descend(&mut self, mut value: f64, mut grouping: Grouping, stop: &(dyn Fn() -> bool + Sync)) -> (f64, Grouping) {
        let problem = self.evaluator.problem();
        loop {
            let before = value;
            for place in 0..grouping.parts.len() {
                for phase in phases(problem) {
                    let mut parts = grouping.parts.clone();
                    parts[place].phase = *phase;
                    let next = self.symmetry.one_for_all(Grouping::new(parts));
                    let worth = self.value(&next);
                    if worth > value {
                        (value, grouping) = (worth, next);
                    }
                    if stop() {
                        return (value, grouping);
                    }
                }
            }
            if value <= before {
                return (value, grouping);
            }
        }
    }

    /// The grouping it goes back to, a few steps away in any direction; on a small cluster now and then any grouping.
    fn kicked(&mut self) -> Grouping {
        let problem = self.evaluator.problem();
        if is_small(problem) && self.rng.below(ANYWHERE) == 0 {
            let anew = anew(problem, &mut self.rng);
            if !anew.parts.is_empty() {
                return anew;
            }
        }
        let mut away = self.home.1.clone();
        for _ in 0..self.rng.below(KICK + 1) {
            if let Some(next) = neighbour(self.evaluator.problem(), &away, &mut self.rng) {
                away = self.symmetry.one_for_all(next.applied(&away));
            }
        }
        away
    }

    /// The best neighbour that is not tabu, of those that a guess finds most worth evaluating.
    fn step(&mut self, from: &Grouping) -> Option<Grouping> {
        let present = self.value(from);
        let mut best: Option<(f64, Grouping)> = None;
        for new in self.promising(from) {
            let value = self.value(&new);
            if best.as_ref().is_none_or(|(v, _)| value > *v) {
                best = Some((value, new));
            }
            if value > present {
                break;
            }
        }
        best.map(|(_, g)| g)
    }

    /// Neighbours that are not tabu, the most promising first.
    fn promising(&mut self, from: &Grouping) -> Vec<Grouping> {
        let keys: Vec<u64> = from.parts.iter().map(DeviceGroup::key).collect();
        // A grouping that cannot be is left by steps that take away what cannot.
        let groups: Vec<Option<GroupNo>> =
            from.parts.iter().map(|part| self.evaluator.group(&part.members, part.phase)).collect();
        let mut all: Vec<(f64, u64, GroupingChange)> = Vec::with_capacity(self.effort.neighbours * SCREENED);
        let mut numbers: Vec<GroupNo> = Vec::new();
        for _ in 0..self.effort.neighbours * SCREENED {
            let new = (0..TRIES).find_map(|_| {
                let change = self.next_to(from)?;
                let come = change.come.iter().map(DeviceGroup::key);
                let key = change.stay(from).map(|place| keys[place]).chain(come).fold(0, u64::wrapping_add);
                (!self.tabu.contains(&key) && self.known(key).is_none()).then_some((key, change))
            });
            let Some((key, change)) = new else { break };
            numbers.clear();
            let stay = change.stay(from).map(|place| groups[place]);
            let come = change.come.iter().map(|part| self.evaluator.group(&part.members, part.phase));
            let can = stay.chain(come).all(|group| group.map(|group| numbers.push(group)).is_some());
            if can {
                all.push((self.evaluator.guess(&numbers), key, change));
            }
        }
        // Changes that lead to one grouping may be guessed to differ in a last bit, as they add it up in other orders.
        all.sort_by_key(|next| next.1);
        all.dedup_by_key(|next| next.1);
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(self.effort.neighbours);
        all.into_iter().map(|(_, _, change)| change.applied(from)).collect()
    }

    /// A step away from a grouping, or groups of it beside another's.
    fn next_to(&mut self, from: &Grouping) -> Option<GroupingChange> {
        let problem = self.evaluator.problem();
        let next = if self.good.len() > 1 && self.rng.below(CROSSED) == 0 {
            let other = &self.good[self.rng.below(self.good.len())].1;
            crossed(problem, from, other, &mut self.rng)
        } else {
            neighbour(problem, from, &mut self.rng)
        }?;
        if self.symmetry.is_none() {
            return Some(next);
        }
        Some(GroupingChange::to(from, self.symmetry.one_for_all(next.applied(from))))
    }

    /// What this walk or, before they last met, any other has found the grouping of this key to be worth.
    fn known(&self, key: u64) -> Option<f64> {
        self.seen.get(&key).or_else(|| self.common.get(&key)).copied()
    }

    fn value(&mut self, grouping: &Grouping) -> f64 {
        let key = grouping.key();
        if let Some(value) = self.known(key) {
            self.stay(grouping, value);
            return value;
        }
        let groups = shelved(&mut self.evaluator, grouping).filter(|groups| !groups.is_empty());
        let evaluation = groups.map(|groups| self.evaluator.evaluate(&groups));
        // Groups that no request gets through are no plan, however little they are loaded.
        let value = evaluation.filter(|e| e.carried() > 0.0).map_or(f64::NEG_INFINITY, |e| e.value);
        self.seen.insert(key, value);
        self.remember(grouping, value);
        value
    }

    fn remember(&mut self, grouping: &Grouping, value: f64) {
        if value > self.best.0 {
            self.best = (value, grouping.clone());
        }
        self.stay(grouping, value);
        let place = self.others.partition_point(|o| o.1 >= value);
        // A grouping that is adopted again round after round must not push the others out.
        let known = self.others.iter().any(|o| o.0 == *grouping);
        if place <= RUNNERS_UP && value.is_finite() && !known {
            self.others.insert(place, (grouping.clone(), value));
            self.others.truncate(RUNNERS_UP + 1);
        }
    }

    /// Goes back here from now on, if it is the best since the others were looked at.
    fn stay(&mut self, grouping: &Grouping, value: f64) {
        if value > self.home.0 {
            self.home = (value, grouping.clone());
        }
    }
}

/// A grouping's groups on the shelf; `None` if one of them cannot be.
pub fn shelved(evaluator: &mut Evaluator<'_>, grouping: &Grouping) -> Option<Vec<GroupNo>> {
    grouping.parts.iter().map(|p| evaluator.group(&p.members, p.phase)).collect()
}
