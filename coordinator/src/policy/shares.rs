//! Routing by a plan's shares X and Y (ThunderServe §3.3), corrected by live queues.
//!
//! The shares say how traffic should fall, and that is how it is drawn; a route with more work waiting than its share of
//! what waits is drawn less often.

use super::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};
use std::collections::BTreeMap;

/// Sequences beyond a group's part that do not matter, and again as many at which it is drawn half as often.
const PATIENCE: f64 = 2.0;
/// Prompt tokens still to compute that count as one sequence.
const TOKENS: u32 = 100;
/// Part of the golden ratio: steps of it spread draws evenly, however many there are.
const STEP: f64 = 0.618_033_988_749_894_9;

/// A way that requests may go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhasePair<K> {
    /// The group that prefills.
    pub prefill: K,
    /// The group that decodes: the same where one does both.
    pub decode: K,
    /// Its share of requests.
    pub share: f64,
}

/// What waits somewhere, in sequences. Whoever has it may say any number.
#[must_use]
pub fn work(seen: Seen) -> u32 {
    seen.running.saturating_add(seen.waiting).saturating_add(seen.pending_tokens / TOKENS)
}

/// The way for a request: `point` from [0, 1) draws it. `None` if there are no ways.
pub fn choose<K: Ord + Copy>(ways: &[PhasePair<K>], waiting: &dyn Fn(K) -> u32, point: f64) -> Option<PhasePair<K>> {
    let prefill = PhaseQueues::new(ways, waiting, |w| w.prefill);
    let decode = PhaseQueues::new(ways, waiting, |w| w.decode);
    let weight = |w: &PhasePair<K>| w.share / (1.0 + prefill.excess(w.prefill).max(decode.excess(w.decode)) / PATIENCE);
    let mut point = point * ways.iter().map(weight).sum::<f64>();
    let found = ways.iter().find(|way| {
        point -= weight(way);
        point < 0.0
    });
    found.or(ways.last()).copied()
}

/// Groups of one phase: what waits at each, and its share of requests.
struct PhaseQueues<K> {
    groups: BTreeMap<K, (f64, f64)>,
    /// What waits per share where that is least.
    least: f64,
}

impl<K: Ord + Copy> PhaseQueues<K> {
    fn new(ways: &[PhasePair<K>], waiting: &dyn Fn(K) -> u32, group: impl Fn(&PhasePair<K>) -> K) -> Self {
        let mut groups: BTreeMap<K, (f64, f64)> = BTreeMap::new();
        for way in ways {
            let id = group(way);
            groups.entry(id).or_insert_with(|| (f64::from(waiting(id)), 0.0)).1 += way.share;
        }
        let least = groups.values().map(|(waiting, share)| waiting / share).fold(f64::INFINITY, f64::min);
        Self { groups, least }
    }

    /// Sequences that wait beyond a group's part, a few not counted: those come and go.
    fn excess(&self, id: K) -> f64 {
        self.groups.get(&id).map_or(0.0, |(waiting, share)| (waiting - share * self.least - PATIENCE).max(0.0))
    }
}

/// Draws by shares.
#[derive(Clone, Debug)]
pub struct Shares {
    ways: Vec<PhasePair<MachineNo>>,
    /// Share of requests that the plan takes at all.
    carried: f64,
    corrected: bool,
    point: f64,
}

impl Shares {
    /// By these shares; what they lack to one is turned away. `corrected` lets queues say.
    #[must_use]
    pub fn new(ways: Vec<PhasePair<MachineNo>>, corrected: bool) -> Self {
        let carried: f64 = ways.iter().map(|w| w.share).sum();
        // All but rounding.
        let carried = if carried > 1.0 - 1e-9 { 1.0 } else { carried };
        Self { ways, carried, corrected, point: 0.0 }
    }

    /// The first draw is a step from this point of [0, 1).
    #[must_use]
    pub fn starting_at(self, point: f64) -> Self {
        Self { point, ..self }
    }
}

impl Routing for Shares {
    fn route(&mut self, _: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        self.point = (self.point + STEP).fract();
        if self.point >= self.carried {
            return None;
        }
        let work = |m: MachineNo| if self.corrected { work(seen(m)) } else { 0 };
        let way = choose(&self.ways, &work, self.point / self.carried)?;
        Some(RoutingDecision::whole(way.prefill, way.decode))
    }

    fn prompt_done(&mut self, _: MachineNo, _: Asked) {}

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}
