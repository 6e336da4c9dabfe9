//! Whom chaos hits, and how.

use super::{CORRUPT, Deed, SLOW};
use crate::{Network, Swarm, Testnet, TestnetError};
use std::collections::BTreeMap;

/// Pseudo-random numbers of a seed.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides.max(1)
    }
}

/// Peers that clients ask.
pub(super) fn fronts(net: &Testnet) -> Vec<usize> {
    let gateways: Vec<usize> =
        net.peers().iter().enumerate().filter(|(_, p)| p.gateway).map(|(index, _)| index).collect();
    if gateways.is_empty() { vec![0] } else { gateways }
}

pub(super) fn addresses(net: &Testnet, fronts: &[usize]) -> Vec<String> {
    fronts.iter().map(|index| net.peers()[*index].http.clone()).collect()
}

/// A peer, and what it does.
pub(super) struct Victim {
    pub index: usize,
    pub role: String,
}

/// Who is hit: a peer with a part in the plan, the plan's maker, or the last of several gateways; one of those whose role
/// was hit least so far.
pub(super) async fn choose(
    net: &Testnet,
    fronts: &[usize],
    hits: &BTreeMap<&str, usize>,
    dice: &mut Dice,
) -> Option<Victim> {
    let peers = net.peers();
    let sight = Swarm::of([peers[fronts[0]]].into_iter()).look().await.pop()??;
    let index = |id: &str| peers.iter().position(|p| p.id == id).filter(|index| *index != fronts[0]);
    let mut all = Vec::new();
    for group in sight.plan.iter().flat_map(|p| &p.groups) {
        for (place, stage) in group.stages.iter().enumerate() {
            let role = if place == 0 { format!("{} leader", group.phase) } else { format!("{} member", group.phase) };
            all.extend(index(&stage.peer).map(|index| Victim { index, role }));
        }
    }
    let of = |role: &str, index| Victim { index, role: role.to_owned() };
    all.extend(sight.coordinator.as_deref().and_then(index).map(|index| of("coordinator", index)));
    all.extend(fronts.last().filter(|_| fronts.len() > 1).map(|index| of("gateway", *index)));
    let so_far = |victim: &Victim| hits.get(victim.role.as_str()).copied().unwrap_or(0);
    let least = all.iter().map(so_far).min()?;
    all.retain(|victim| so_far(victim) == least);
    let chosen = dice.roll(all.len() as u64) as usize;
    Some(all.swap_remove(chosen))
}

/// Does it to the first of `side`, or parts all of them from all others.
pub(super) async fn hit(net: &mut Testnet, side: &[usize], deed: Deed) -> Result<(), TestnetError> {
    let victim = side[0];
    match deed {
        Deed::Kill => net.kill(victim).await,
        Deed::Stop => net.signal(victim, "-STOP"),
        Deed::Cut | Deed::Part => {
            let peers = net.peers();
            let names: Vec<&str> = side.iter().map(|index| peers[*index].name.as_str()).collect();
            network(net).partition(&names).await
        }
        Deed::Slow => network(net).spoil(&net.peers()[victim].name, SLOW).await,
        Deed::Corrupt => network(net).spoil(&net.peers()[victim].name, CORRUPT).await,
    }
}

pub(super) async fn mend(net: &mut Testnet, victim: usize, deed: Deed) -> Result<(), TestnetError> {
    match deed {
        Deed::Kill => net.restart(victim).await,
        Deed::Stop => net.signal(victim, "-CONT"),
        Deed::Cut | Deed::Part | Deed::Slow | Deed::Corrupt => network(net).heal().await,
    }
}

fn network(net: &Testnet) -> Network<'_> {
    Network::of(net.peers())
}
