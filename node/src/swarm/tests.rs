//! A few peers on loopback, friends and strangers.

use super::*;
use std::time::Duration;
use tokio::time::timeout;
use tsnode_protocol::{Heartbeat, Secret};

const LONG: Duration = Duration::from_secs(20);

struct Peer {
    handle: SwarmHandle,
    events: mpsc::Receiver<SwarmEvent>,
    addresses: Vec<String>,
    id: PeerId,
    _stop: tokio_util::sync::DropGuard,
}

async fn peer(secret: u8, bootstrap: &[String]) -> Peer {
    let identity = Identity::generate();
    let id = identity.peer_id();
    let config = SwarmConfig {
        identity,
        swarm: SwarmId([1; 16]),
        membership: Membership::new(SwarmId([1; 16]), Some(Secret([secret; 32]))),
        listen: "127.0.0.1:0".parse().unwrap(),
        bootstrap: bootstrap.iter().map(|a| a.parse().unwrap()).collect(),
        mdns: false,
        agent: "test".into(),
    };
    let stop = CancellationToken::new();
    let (handle, mut events) = start(config, stop.clone()).await.unwrap();
    let addresses = loop {
        match timeout(LONG, events.recv()).await.unwrap().unwrap() {
            SwarmEvent::Listening(addresses) if addresses.len() >= 2 => break addresses,
            _ => {}
        }
    };
    Peer { handle, events, addresses, id, _stop: stop.drop_guard() }
}

/// Waits for an event that `wanted` makes something of.
async fn hear<T>(peer: &mut Peer, mut wanted: impl FnMut(SwarmEvent) -> Option<T>) -> T {
    let search = async {
        loop {
            let event = peer.events.recv().await.unwrap();
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    };
    timeout(LONG, search).await.unwrap()
}

fn only(peer: &Peer, kind: &str) -> Vec<String> {
    peer.addresses.iter().filter(|a| a.contains(kind)).cloned().collect()
}

#[tokio::test]
async fn gossip_passes_along_a_line_over_both_transports() {
    let mut a = peer(1, &[]).await;
    let mut b = peer(1, &only(&a, "/tcp/")).await;
    let mut c = peer(1, &only(&b, "/quic-v1")).await;
    let connected = |id| move |e| matches!(e, SwarmEvent::Connected(p) if p == id).then_some(());
    hear(&mut a, connected(b.id)).await;
    hear(&mut c, connected(b.id)).await;
    let from = a.id;
    let talk = async {
        loop {
            let _ = a.handle.publish(&Gossip::Heartbeat(Heartbeat::default()));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let heard = async {
        let mut both = [false, false];
        while both != [true, true] {
            tokio::select! {
                e = b.events.recv() => both[0] |= is_from(e.unwrap(), from),
                e = c.events.recv() => both[1] |= is_from(e.unwrap(), from),
            }
        }
    };
    tokio::select! {
        () = talk => unreachable!("talks forever"),
        heard = timeout(LONG, heard) => heard.unwrap(),
    }
}

fn is_from(event: SwarmEvent, peer: PeerId) -> bool {
    matches!(event, SwarmEvent::Gossip(m) if m.signer() == peer)
}

#[tokio::test]
async fn strangers_are_refused_on_both_transports() {
    for kind in ["/tcp/", "/quic-v1"] {
        let mut home = peer(1, &[]).await;
        let mut stranger = peer(2, &only(&home, kind)).await;
        let refused = |e| match e {
            SwarmEvent::Connected(_) => panic!("a stranger was let in"),
            SwarmEvent::Rejected { reason, .. } => Some(reason),
            _ => None,
        };
        assert!(hear(&mut stranger, refused).await.contains("not of this swarm"), "{kind}");
        hear(&mut home, refused).await;
    }
}

#[tokio::test]
async fn nonsense_is_refused_and_the_swarm_goes_on() {
    let mut a = peer(1, &[]).await;
    let mut b = peer(1, &a.addresses).await;
    let id = a.id;
    hear(&mut b, |e| matches!(e, SwarmEvent::Connected(p) if p == id).then_some(())).await;
    let talk = async {
        for n in 0u64.. {
            let mut nonsense = vec![0xEE; 2];
            nonsense.extend(n.to_le_bytes());
            nonsense.extend([9; 100]);
            b.handle.orders.send(Order::Publish(nonsense)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = talk => unreachable!("talks forever"),
        reason = hear(&mut a, |e| match e { SwarmEvent::Rejected { reason, .. } => Some(reason), _ => None }) => {
            assert!(reason.contains("version"), "{reason}");
        }
    }
    let from = a.id;
    let talk = async {
        loop {
            let _ = a.handle.publish(&Gossip::Heartbeat(Heartbeat::default()));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = talk => unreachable!("talks forever"),
        () = hear(&mut b, |e| is_from(e, from).then_some(())) => {}
    }
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = SwarmConfig {
        identity: Identity::generate(),
        swarm: SwarmId([1; 16]),
        membership: Membership::new(SwarmId([1; 16]), None),
        listen: taken.local_addr().unwrap(),
        bootstrap: vec![],
        mdns: false,
        agent: "test".into(),
    };
    let error = start(config, CancellationToken::new()).await.err().unwrap();
    assert!(matches!(error, SwarmError::Listen { in_use: true, .. }), "{error}");
}
