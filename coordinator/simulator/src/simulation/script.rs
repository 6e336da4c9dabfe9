//! A scenario from its seed to its verdict: peers start, faults, quiet, agreement, and some time in which it lasts.

use super::{
    Fault, ScenarioFigures, Violation, World, cast, chronicle::Note, demand_shifts::DemandShifts, invariants::ghost,
    requests::Planted, sketch::Sketch,
};
use crate::simulation::byzantine::Lie;
use std::time::Duration;
use tsnode_coordinator::{Time, planner::Scheduler};

/// How long agreement may take once all is quiet: silence at its longest, two terms of planning, a dispute.
pub const AGREE: Duration = Duration::from_secs(40);
/// How long it is then watched.
const WATCH: Duration = Duration::from_secs(6);
/// How often agreement is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// Of so many scenarios one has planners as slow as those of some hundred devices.
const SLOW_PLANNERS: u64 = 4;
const SLOW: Duration = Duration::from_secs(4);

/// Who plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannerKind {
    /// The scheduler, as in the node.
    Scheduler,
    /// [`Sketch`]: a scenario in a hundredth of the time.
    Sketch,
}

/// Which scenario to run.
#[derive(Clone, Debug)]
pub struct Script {
    /// Everything that is left to chance.
    pub seed: u64,
    /// Peers.
    pub peers: usize,
    /// How long there are faults.
    pub faulty: Duration,
    /// Of which kinds.
    pub faults: Vec<Fault>,
    /// Who plans.
    pub planning: PlannerKind,
    /// Clients that come in a second; with none there are no requests.
    pub clients: f64,
    /// Models of the swarm, of which each peer lends some; where there are several, what clients ask for turns over while there
    /// are faults.
    pub models: u8,
    /// What is broken on purpose.
    pub planted: Option<Planted>,
}

impl Script {
    /// All kinds of faults for half a minute, with sketched plans.
    #[must_use]
    pub fn new(seed: u64, peers: usize) -> Self {
        Self {
            seed,
            peers,
            faulty: Duration::from_secs(30),
            faults: Fault::ALL.map(|f| f.1).to_vec(),
            planning: PlannerKind::Sketch,
            clients: 0.0,
            models: 1,
            planted: None,
        }
    }
}

/// How a scenario went.
#[derive(Debug)]
pub struct ScenarioReport {
    /// What did not hold.
    pub broken: Option<Violation>,
    /// What was measured.
    pub figures: ScenarioFigures,
    /// What happened when.
    pub lines: Vec<(Time, String)>,
    /// How long the scenario was.
    pub lasted: Time,
}

/// Tells a scenario.
#[must_use]
pub fn simulate(script: &Script) -> ScenarioReport {
    let mut world = opening(script);
    disturb(&mut world, script);
    world.calm();
    world.quiet_since = Some(world.now);
    settle(&mut world);
    if world.checks.broken.is_none() {
        world.serve_everybody();
    }
    let byzantine = world.byzantine();
    world.checks.no_two_plans_of_a_term_share_peers(world.now, &byzantine);
    if let Some(broken) = world.checks.broken.clone() {
        world.chronicle.note(broken.at, Note::Broken(broken.to_string()));
    }
    ScenarioReport {
        lines: world.chronicle.lines().collect(),
        broken: world.checks.broken,
        figures: world.checks.figures,
        lasted: world.now,
    }
}

/// Peers come within a few seconds, a hundred a second at most; some of them may be byzantine, fewer than a third.
fn opening(script: &Script) -> World {
    let mut world = match script.planning {
        PlannerKind::Scheduler => World::planned_by(Scheduler, script.seed),
        PlannerKind::Sketch => World::planned_by(Sketch, script.seed),
    };
    if script.seed.is_multiple_of(SLOW_PLANNERS) {
        world.planning = SLOW;
    }
    world.clocks_err = script.faults.contains(&Fault::Clock);
    let span = (script.peers as u64 * 10).max(2000);
    for n in 0..script.peers {
        let advert = cast::drawn(n, script.models, &mut world.rng);
        let n = world.add(advert);
        let at = Time::from_millis(1 + world.rng.below(span as usize) as u64);
        world.start_at(at, n);
    }
    if script.faults.contains(&Fault::Lie) && script.peers > 3 && world.rng.below(2) == 0 {
        let most = (script.peers - 1) / 3;
        for _ in 0..1 + world.rng.below(most.min(5)) {
            let n = 2 + world.rng.below(script.peers - 2);
            let lie = Lie::ALL[world.rng.below(Lie::ALL.len())];
            world.make_byzantine(n, lie);
        }
    }
    if script.clients > 0.0 {
        world.let_clients_come(script.seed, script.clients, script.planted);
    }
    world
}

fn disturb(world: &mut World, script: &Script) {
    let end = world.now + script.faulty;
    let mut demand = DemandShifts::new(script.seed, script.models, world.now, script.faulty);
    let mean = (script.faulty.as_secs_f64() / 14.0).max(0.1);
    while world.now < end && world.checks.broken.is_none() {
        let gap = world.rng.exponential(mean).clamp(0.05, 5.0);
        world.wait(Duration::from_secs_f64(gap).min(end - world.now));
        world.strike(&script.faults);
        if let Some(demand) = &mut demand {
            world.follow_demand(demand);
        }
    }
}

fn settle(world: &mut World) {
    let quiet = world.now;
    let why = loop {
        if world.checks.broken.is_some() {
            return;
        }
        match world.agreement() {
            Ok(()) => break None,
            Err(why) if world.now >= quiet + AGREE => break Some(why),
            Err(_) => world.wait(LOOK),
        }
    };
    if let Some(why) = why {
        return world.checks.all_agree_soon_after_faults(world.now, why);
    }
    world.checks.figures.agreed_after = Some((world.now - quiet).as_secs_f64());
    let count = world.honest().count();
    world.note(Note::Agreed(count));
    world.wait(WATCH);
    // A better plan may just be on its way round, or a peer that was leaving has left.
    let end = world.now + ghost(world.peers.len());
    while let Err(why) = world.agreement() {
        if world.now >= end {
            return world.checks.agreement_lasts(world.now, why);
        }
        world.wait(LOOK);
    }
}
