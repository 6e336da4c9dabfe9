//! Peers that cannot be reached are reached over a relay.

use super::*;
use crate::faults::Wall;
use tsnode_protocol::PathKind;

/// A peer behind a pretended address translation, with a place at `relay`; and where that is.
async fn walled(n: u8, relay: &mut Peer, faults: &watch::Sender<Faults>) -> (Peer, Multiaddr) {
    let mut peer = start_with(SwarmConfig { faults: Some(faults.subscribe()), ..config(n, SECRET) }).await;
    meet(&mut peer, relay, "/tcp/").await;
    let placed = |event: &SwarmEvent| matches!(event, SwarmEvent::Listening(all) if all.iter().any(|a| is_circuit(a)));
    peer.until(|event| *event == SwarmEvent::Reachable(false)).await;
    peer.until(placed).await;
    let circuit = peer.handle.addresses().into_iter().find(|a| is_circuit(a) && a.contains("/tcp/")).unwrap();
    (peer, circuit.parse().unwrap())
}

fn is_circuit(address: &str) -> bool {
    address.contains("p2p-circuit")
}

#[tokio::test]
async fn members_reach_an_unreachable_one_over_a_relay_and_strangers_do_not() {
    let faults = watch::Sender::new(Faults { wall: Wall::Nat, ..Faults::default() });
    let mut relay = member(1).await;
    let (mut hidden, circuit) = walled(2, &mut relay, &faults).await;
    let mut stranger = start_with(config(3, Secret([9; 32]))).await;
    stranger.handle.dial(circuit.clone()).unwrap();
    let reason = stranger.until_rejection(relay.id).await;
    assert!(reason.contains("does not know this swarm's secret"), "{reason}");

    let ((carrier, _), porter) = carrier::channel();
    let mut friend = start_with_porter(config(4, SECRET), porter).await;
    friend.handle.dial(circuit).unwrap();
    friend.until_connected(hidden.id).await;
    hidden.until_connected(friend.id).await;
    assert!(!hidden.handle.peers().contains(&stranger.id));
    let carried = carrier.open(hidden.id).await.unwrap();
    assert_eq!((carried.peer, carried.path), (hidden.id, PathKind::Relayed { via: relay.id }));
}

#[tokio::test]
async fn who_turns_out_to_be_unreachable_still_gets_streams_to_those_it_had_reached_over_a_relay() {
    let faults = watch::Sender::new(Faults { wall: Wall::Nat, ..Faults::default() });
    let mut relay = member(1).await;
    let (hidden, circuit) = walled(2, &mut relay, &faults).await;
    let ((carrier, _), porter) = carrier::channel();
    let faults = Some(faults.subscribe());
    let mut late = start_with_porter(SwarmConfig { faults, ..config(4, SECRET) }, porter).await;
    late.handle.dial(circuit).unwrap();
    late.until_connected(hidden.id).await;
    late.until(|event| *event == SwarmEvent::Reachable(false)).await;
    let carried = async {
        loop {
            if let Some(carried) = carrier.open(hidden.id).await {
                return carried;
            }
        }
    };
    let carried =
        tokio::time::timeout(PATIENCE, carried).await.expect("no connection that answers nothing is in the way");
    assert_eq!(carried.path, PathKind::Relayed { via: relay.id });
}
