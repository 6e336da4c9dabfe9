//! Scenarios of the control plane: peers that run the shipped machine on a network that delays, loses, repeats, reorders,
//! cuts and heals, written by hand here and drawn from seeds in [`tsnode_simulator::simulation`].
#![expect(clippy::unwrap_used, reason = "a scenario that cannot run fails")]

mod byzantine;
mod load;
mod losses;
mod plans;
mod seeds;

use std::time::Duration;
use tsnode_coordinator::control::Control;
use tsnode_protocol::{Plan, Term};
use tsnode_simulator::simulation::World;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn control(world: &World, n: usize) -> &Control {
    world.peers[n].control().unwrap()
}

/// The number of the peer that plans, as the first one sees it.
fn coordinator(world: &World) -> usize {
    world.number(control(world, 0).coordinator().unwrap()).unwrap()
}

/// How long after a test's own wait all may still be coming to one mind: which turn whose plan gets is drawn.
const GRACE: Duration = Duration::from_secs(10);

/// All honest peers follow one plan that serves exactly the living, within a moment, and there was never more than one of a term.
fn all_is_well(world: &mut World) {
    let mut waited = Duration::ZERO;
    while world.agreement().is_err() && waited < GRACE {
        world.wait(seconds(1));
        waited += seconds(1);
    }
    assert_eq!(world.checks.broken, None);
    world.agreement().unwrap();
    assert!(world.checks.one_plan_a_term());
}

/// As the other peers' machines would have said it.
fn next_of(world: &World, reason: &str) -> Plan {
    let plan = world.common_plan().unwrap().clone();
    Plan { term: Term(plan.term.0 + 1), reason: reason.into(), ..plan }
}
