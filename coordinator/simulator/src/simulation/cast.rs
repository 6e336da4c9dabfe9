//! Which peers there are: what they lend, where they stand, and what they claim.

use tsnode_coordinator::{
    rng::Rng,
    sample::{advert, gateway},
};
use tsnode_protocol::{Advert, SwarmId};

/// The swarm of every scenario.
pub const SWARM: SwarmId = SwarmId([7; 16]);

/// A peer by chance: most lend a device, some only take requests, some cannot be reached from outside and never plan.
#[must_use]
pub fn drawn(n: usize, rng: &mut Rng) -> Advert {
    match rng.below(10) {
        // The first ones lend and may plan, so that there is always a swarm.
        0 if n > 1 => gateway(n),
        1 if n > 1 => Advert { reachable: false, ..advert(n) },
        _ => advert(n),
    }
}
