//! A swarm's devices as a cluster: what adverts say of them, of a model's layers on them, and of links.

use super::DevicePlace;
use crate::{
    links::{self, WITHIN_PEER},
    members::Members,
    scheduler::{
        cluster::{Cluster, ClusterLink, Instance, KindId},
        cost::{Decode, Prefill},
        figures::DeviceFigures,
    },
};
use tsnode_protocol::{Bytes, BytesPerSecond, LayerProfile, ModelId, PeerId, Seconds};

/// A link nobody has measured.
const UNMEASURED: ClusterLink = ClusterLink { latency: links::UNMEASURED.0, bandwidth: links::UNMEASURED.1 };
/// Between two devices of one host.
const INSIDE: ClusterLink = ClusterLink { latency: Seconds(50e-6), bandwidth: BytesPerSecond(10e9) };

/// What was measured of a model on these devices.
pub(super) fn profiles<'a>(
    places: &'a [DevicePlace],
    members: &'a Members<'_>,
    model: ModelId,
) -> impl Iterator<Item = &'a LayerProfile> {
    let device = |(peer, device): &DevicePlace| members.get(peer)?.devices.get(usize::from(*device));
    places.iter().filter_map(device).filter_map(move |d| d.profile(model))
}

/// A measured profile as the cost model has it.
fn measured(profile: LayerProfile) -> (Prefill, Decode) {
    let [fixed, token, square] = profile.prefill.map(Seconds);
    let prefill = Prefill { fixed, per_token: token.per_token(), per_square: square.per_token().per_token() };
    let [fixed, context, per_sequence] = profile.decode.map(Seconds);
    (prefill, Decode { fixed, per_context: context.per_token(), per_sequence })
}

pub(super) fn cluster(places: &[DevicePlace], members: &Members<'_>, model: ModelId) -> Option<Cluster> {
    let peers: Vec<PeerId> =
        places.iter().map(|p| p.0).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let (mut kinds, mut instances) = (Vec::new(), Vec::new());
    for (peer, device) in places {
        let d = members.get(peer)?.devices.get(usize::from(*device))?;
        let served = d.served(model)?;
        kinds.push(DeviceFigures {
            name: d.name.clone(),
            memory: Bytes(served.memory_bytes as f64),
            flops: d.flops,
            bandwidth: d.bandwidth,
            pool: (served.kv_bytes > 0).then_some(Bytes(served.kv_bytes as f64)),
            profile: served.profile.map(measured),
            price: None,
        });
        let kind = KindId(u16::try_from(kinds.len() - 1).ok()?);
        let site = peers.binary_search(peer).ok()? as u32;
        instances.push(Instance { name: peer.to_string(), kind, count: 1, site, inside: INSIDE });
    }
    let row = |from: &PeerId| {
        let mut row = vec![UNMEASURED; peers.len()];
        if let Ok(own) = peers.binary_search(from) {
            let (latency, bandwidth) = WITHIN_PEER;
            row[own] = ClusterLink { latency, bandwidth };
        }
        for link in members.get(from).map_or(&[][..], |a| &a.links) {
            if let Ok(place) = peers.binary_search(&link.to) {
                row[place] = ClusterLink { latency: link.latency, bandwidth: link.bandwidth };
            }
        }
        row
    };
    Cluster::new("swarm".into(), kinds, instances, peers.iter().map(row).collect()).ok()
}
