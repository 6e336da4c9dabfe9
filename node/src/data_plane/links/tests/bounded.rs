//! What is kept of peers that come again and again, or under ever other names, and of those that are not reached.

use super::*;
use tsnode_protocol::{PathKind, Seconds};

#[tokio::test]
async fn of_more_connections_than_any_peer_needs_the_oldest_goes() {
    let (a, b) = (end(1, None), end(1, None));
    let mut connections = Vec::new();
    for _ in 0..=known::CONNECTIONS {
        connections.push(a.links.dial_parallel(b.id, b.address).await.unwrap());
    }
    timeout(PATIENCE, connections[0].connection.closed()).await.unwrap();
    assert!(connections[1..].iter().all(|connection| connection.connection.close_reason().is_none()));
}

#[tokio::test]
async fn of_more_peers_than_a_swarm_has_those_that_are_connected_are_known() {
    let (a, b) = (end(1, None), end(1, None));
    let known = &b.links.inner.known;
    for n in 0..limits::PEERS as u32 {
        let mut id = [9; 32];
        id[..4].copy_from_slice(&n.to_le_bytes());
        known.round_trip(PeerId(id), PathKind::Direct, Seconds(0.01));
        known.probed(PeerId(id), PathKind::Direct, BytesPerSecond(1e6));
    }
    assert_eq!(known.links().len(), limits::LINKS);
    let _connection = a.links.dial_parallel(b.id, b.address).await.unwrap();
    assert!(known.links().is_empty());
    assert_eq!(known.connections(a.id).len(), 1);
}

#[tokio::test]
async fn a_peer_that_was_not_reached_is_not_remembered() {
    let (a, nobody) = (end(1, None), free_port().await);
    a.links.open(PeerId([7; 32]), &[nobody], &file()).await.unwrap_err();
    let forgotten = async {
        while !a.links.inner.dials.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.unwrap();
}

/// Whoever asks next would be told that it took too long, whenever that is.
#[tokio::test]
async fn an_attempt_goes_on_though_whoever_asked_for_it_has_gone() {
    let (a, b) = (end(1, None), end(1, None));
    assert!(a.links.open(b.id, &[b.address], &file()).now_or_never().is_none());
    let connected = async {
        while a.links.inner.dials.lock().unwrap().get(&b.id).and_then(DialAttempt::way).is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, connected).await.unwrap();
}
