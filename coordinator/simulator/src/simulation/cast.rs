//! Which peers there are: what they lend, where they stand, and what they claim.

use tsnode_coordinator::{
    rng::Rng,
    sample::{advert, cards, gateway, lends_several},
};
use tsnode_protocol::{Advert, SwarmId};

/// The swarm of every scenario.
pub const SWARM: SwarmId = SwarmId([7; 16]);
/// Most models of a swarm.
pub const MOST_MODELS: u8 = 8;

/// A peer by chance: most lend a device, some only take requests, some cannot be reached from outside and never plan. Where there
/// are several models each lends some of them, the first peers all.
#[must_use]
pub fn drawn(n: usize, models: u8, rng: &mut Rng) -> Advert {
    let lent = if models > 1 { some(n, models, rng) } else { advert(n) };
    match rng.below(10) {
        // The first ones lend and may plan, so that there is always a swarm.
        0 if n > 1 => gateway(n),
        1 if n > 1 => Advert { reachable: false, ..lent },
        _ => lent,
    }
}

fn some(n: usize, models: u8, rng: &mut Rng) -> Advert {
    let kinds = 1 << models.min(MOST_MODELS);
    let drawn = if n > 1 { 1 + rng.below(kinds - 1) } else { kinds - 1 };
    let lent = (0..).zip(cards(models.min(MOST_MODELS))).filter(|(k, _)| (drawn >> k) & 1 == 1).map(|(_, card)| card);
    lends_several(n, lent.collect())
}
