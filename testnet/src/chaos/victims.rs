//! Whom chaos hits, what they do when it does, and how it is done.

use super::{CORRUPT, Deed, SLOW};
use crate::{Network, Sight, Testnet, TestnetError};

/// Peers that clients ask: gateways, or the first peer where there is none.
pub(super) fn fronts(net: &Testnet) -> Vec<usize> {
    let gateways: Vec<usize> =
        net.peers().iter().enumerate().filter(|(_, p)| p.gateway).map(|(index, _)| index).collect();
    if gateways.is_empty() { vec![0] } else { gateways }
}

pub(super) fn addresses(net: &Testnet, fronts: &[usize]) -> Vec<String> {
    fronts.iter().map(|index| net.peers()[*index].http.clone()).collect()
}

/// Where peers of these names are, of those that were launched.
pub(super) fn places(net: &Testnet, names: &[String]) -> Vec<usize> {
    let peers = net.peers();
    names.iter().filter_map(|name| peers.iter().position(|p| p.name == *name)).collect()
}

/// What a peer does, as somebody sees it: the plan's maker first, then parts in the plan; a gateway; or nothing for now.
pub(super) fn roles(net: &Testnet, sight: Option<&Sight>, index: usize) -> Vec<String> {
    let peer = net.peers()[index];
    let mut roles = Vec::new();
    if sight.is_some_and(|s| s.coordinator.as_deref() == Some(peer.id.as_str())) {
        roles.push("coordinator".to_owned());
    }
    for group in sight.iter().filter_map(|s| s.plan.as_ref()).flat_map(|p| &p.groups) {
        if let Some(place) = group.stages.iter().position(|stage| stage.peer == peer.id) {
            roles.push(format!("{} {}", group.phase, if place == 0 { "leader" } else { "member" }));
        }
    }
    if peer.gateway {
        roles.push("gateway".to_owned());
    }
    if roles.is_empty() {
        roles.push("spare".to_owned());
    }
    roles
}

/// Does it to all of `side`.
pub(super) async fn hit(net: &mut Testnet, side: &[usize], deed: Deed) -> Result<(), TestnetError> {
    match deed {
        Deed::Kill => {
            for victim in side {
                net.kill(*victim).await?;
            }
            Ok(())
        }
        Deed::Stop => side.iter().try_for_each(|victim| net.signal(*victim, "-STOP")),
        Deed::Cut | Deed::Part => {
            let peers = net.peers();
            let names: Vec<&str> = side.iter().map(|index| peers[*index].name.as_str()).collect();
            network(net).partition(&names).await
        }
        Deed::Slow | Deed::Corrupt => {
            let flaw = if deed == Deed::Slow { SLOW } else { CORRUPT };
            for victim in side {
                network(net).spoil(&net.peers()[*victim].name, flaw).await?;
            }
            Ok(())
        }
    }
}

/// Undoes it.
pub(super) async fn mend(net: &mut Testnet, side: &[usize], deed: Deed) -> Result<(), TestnetError> {
    match deed {
        Deed::Kill => {
            for victim in side {
                net.restart(*victim).await?;
            }
            Ok(())
        }
        Deed::Stop => side.iter().try_for_each(|victim| net.signal(*victim, "-CONT")),
        Deed::Cut | Deed::Part | Deed::Slow | Deed::Corrupt => network(net).heal().await,
    }
}

fn network(net: &Testnet) -> Network<'_> {
    Network::of(net.peers())
}
