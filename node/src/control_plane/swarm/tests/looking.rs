//! What somebody sees who calls to see what comes of it.

use super::*;
use crate::control_plane::swarm::exchange::{HELLO_BYTES, driving, first_stream, receive, send};
use libp2p::core::transport::{ListenerId, TransportEvent};

async fn seen(address: Multiaddr, swarm: SwarmId, secret: Option<Secret>) -> PeerSeen {
    let membership = secret.map(|secret| Membership::new(swarm, Some(secret)));
    let mut seen = look(&[address], swarm, membership.as_ref()).await;
    match seen.pop() {
        Some(LookOutcome::Peer(peer)) => peer,
        other => panic!("no peer: {other:?}"),
    }
}

#[tokio::test]
async fn a_member_says_what_it_sees_of_the_call_and_who_belongs_to_it() {
    let a = member(1).await;
    for transport in TRANSPORTS {
        let peer = seen(a.address(transport), SWARM, Some(SECRET)).await;
        let sight = peer.sight.unwrap();
        assert_eq!((peer.peer, peer.large, peer.proof), (Some(a.id), Some(true), Proof::Member));
        assert_eq!((sight.version, sight.is_same_swarm), (codec::VERSION, true));
        assert!(sight.seen.unwrap().ip().is_loopback() && sight.clock_ahead.abs() < 5_000, "{sight:?}");
        let wrong = seen(a.address(transport), SWARM, Some(Secret([9; 32]))).await;
        assert_eq!((wrong.sight.unwrap().is_same_swarm, wrong.proof), (true, Proof::Stranger));
        let other = seen(a.address(transport), SwarmId([7; 16]), Some(SECRET)).await;
        assert_eq!((other.sight.unwrap().is_same_swarm, other.proof), (false, Proof::Stranger));
    }
    let addresses: Vec<Multiaddr> = TRANSPORTS.map(|_| a.address("/quic-v1/")).into();
    let both = look(&addresses, SWARM, None).await;
    let from: Vec<Option<SocketAddr>> = both
        .iter()
        .map(|seen| if let LookOutcome::Peer(peer) = seen { peer.sight.unwrap().seen } else { None })
        .collect();
    assert!(from[0].is_some() && from[0] == from[1], "one socket calls all: {from:?}");
}

#[tokio::test]
async fn who_only_looked_was_not_refused() {
    let mut a = member(1).await;
    let peer = seen(a.address("/tcp/"), SWARM, None).await;
    assert_eq!((peer.sight.is_some(), peer.proof), (true, Proof::Unknown));
    // Somebody who leaves later is counted first.
    knock_and_leave(3, a.address("/tcp/")).await;
    let stranger = Identity::from_seed(&[3; 32]).peer_id();
    let refused = a.until(|event| matches!(event, SwarmEvent::Rejected { .. })).await;
    assert!(matches!(&refused, SwarmEvent::Rejected { peer, .. } if *peer == Some(stranger)), "{refused:?}");
}

/// A peer of another version, which knows no such question: it hangs up on what is no hello.
async fn of_another_version(theirs: u16) -> Multiaddr {
    let mut transport = authenticated::plain(&Identity::from_seed(&[8; 32]).libp2p_keypair()).unwrap();
    transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let address = loop {
        if let TransportEvent::NewAddress { listen_addr, .. } = transport.select_next_some().await {
            break listen_addr;
        }
    };
    crate::tasks::spawn("another version", async move {
        loop {
            let TransportEvent::Incoming { upgrade, .. } = transport.select_next_some().await else { continue };
            let Ok((_, mut muxer)) = upgrade.await else { continue };
            let Ok(mut stream) = first_stream(&mut muxer, ConnectionSide::Listener).await else { continue };
            let answering = async {
                if receive::<6>(&mut stream).await? == *b"tsnode" {
                    send(&mut stream, &[&b"tsnode"[..], &theirs.to_le_bytes(), &[3; 32]].concat()).await?;
                    receive::<HELLO_BYTES>(&mut stream).await?;
                }
                Ok::<(), io::Error>(())
            };
            // It ends as the caller wishes.
            let _ = driving(&mut muxer, answering).await;
        }
    });
    address
}

#[tokio::test]
async fn another_version_is_told_of_one_that_knows_no_such_question() {
    let theirs = codec::VERSION + 1;
    let address = of_another_version(theirs).await;
    for secret in [Some(SECRET), None] {
        let peer = seen(address.clone(), SWARM, secret).await;
        assert_eq!((peer.sight, peer.proof), (None, Proof::OtherVersion(theirs)));
    }
}

#[tokio::test]
async fn nobody_and_nothing_to_call_are_told_apart() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let addresses: Vec<Multiaddr> =
        [format!("/ip4/127.0.0.1/tcp/{closed}"), "/dns4/attic.example/tcp/7".into()].map(|a| a.parse().unwrap()).into();
    let seen = look(&addresses, SWARM, None).await;
    assert!(matches!(seen[..], [LookOutcome::Unanswered(_), LookOutcome::Unsupported]), "{seen:?}");
}
