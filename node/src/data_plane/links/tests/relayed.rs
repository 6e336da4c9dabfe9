//! Streams over a relay, and the straight way taken once there is one.

use super::*;
use crate::data_plane::carrier::{Ask, Carried, Porter};
use libp2p::core::muxing::SubstreamBox;
use tokio_util::compat::TokioAsyncReadCompatExt;
use tsnode_protocol::PathKind;

/// Two ends that no packet gets through between, and a control plane that carries streams from the first to the second, over
/// a relay.
fn apart(secrets: [u8; 2]) -> (LinkEnd, LinkEnd) {
    apart_with(secrets, None)
}

fn apart_with(secrets: [u8; 2], shaping: Option<Shaping>) -> (LinkEnd, LinkEnd) {
    let ((here, porter), (there, far)) = (crate::data_plane::carrier::channel(), crate::data_plane::carrier::channel());
    let (a, b) = (end_with(secrets[0], shaping, Some(here)), end_with(secrets[1], None, Some(there)));
    crate::tasks::spawn("test", carry(porter, far, a.id));
    (a, b)
}

async fn carry(mut porter: Porter, far: Porter, me: PeerId) {
    while let Some(Ask { peer, answer }) = porter.asks.recv().await {
        let (here, there) = tokio::io::duplex(16 * 1024);
        let carried = |peer, stream: tokio::io::DuplexStream| Carried {
            peer,
            path: RELAYED,
            stream: SubstreamBox::new(stream.compat()),
        };
        far.came.send(carried(me, there)).await.unwrap();
        answer.send(carried(peer, here)).unwrap();
    }
}

const RELAYED: PathKind = PathKind::Relayed { via: PeerId([9; 32]) };

async fn opened_around(a: &LinkEnd, b: &mut LinkEnd) -> (Stream, IncomingStream) {
    let opening = file();
    let open = a.links.open(b.id, &[], &opening);
    let (opened, arrived) = tokio::join!(open, timeout(PATIENCE, b.incoming.next()));
    (opened.unwrap(), arrived.unwrap().unwrap())
}

#[tokio::test]
async fn frames_ends_and_resets_are_the_same_over_a_relay() {
    let (a, mut b) = apart([1, 1]);
    let (mut here, mut there) = opened_around(&a, &mut b).await;
    assert_eq!((there.peer, &there.opening), (a.id, &file()));
    // Far more than all windows below hold.
    let sending = crate::tasks::spawn("test", async move {
        here.sender.send_bytes(&[7; 3_000_000], limits::TILE_BYTES).await.unwrap();
        here.sender.finish().unwrap();
        here
    });
    assert_eq!(there.stream.receiver.recv_bytes(limits::TILE_BYTES).await.unwrap().unwrap(), [7; 3_000_000]);
    assert!(there.stream.receiver.recv::<Opening>().await.unwrap().is_none(), "an end is an end");
    let here = sending.await.unwrap();
    let gone = here.sender.closed();
    drop(there);
    timeout(PATIENCE, gone).await.unwrap();

    let (here, mut there) = opened_around(&a, &mut b).await;
    drop(here);
    assert!(there.stream.receiver.recv::<Opening>().await.is_err(), "what is dropped does not end, it breaks");
    let probed = a.links.probe(b.id, &[]).await.unwrap();
    assert_eq!(probed.link.path, RELAYED);
    let moved = a.links.transfer(b.id, &[], 1 << 20).await.unwrap();
    assert_eq!((moved.path, moved.bytes), (RELAYED, 1 << 20));
}

#[tokio::test]
async fn another_secret_is_refused_over_a_relay_too() {
    let (a, mut b) = apart([1, 2]);
    assert!(a.links.open(b.id, &[], &file()).await.is_err());
    assert!(timeout(Duration::from_millis(100), b.incoming.next()).await.is_err(), "nothing may pass");
}

#[tokio::test]
async fn once_both_ends_have_met_new_streams_go_straight_and_old_ones_end_where_they_began() {
    let (a, mut b) = apart([1, 1]);
    // Where the far end is, only the far end knows.
    b.links.listens_at(&[b.address]);
    let (mut old, mut far) = opened_around(&a, &mut b).await;
    let mut turns = a.links.turns();
    let straight = async {
        while a.links.inner.known.path(b.id) != Some(PathKind::Direct) {
            turns.changed().await.unwrap();
        }
    };
    timeout(2 * PATIENCE, straight).await.expect("the straight way is taken");
    let direct = async { while a.links.transfer(b.id, &[], 1).await.unwrap().path != PathKind::Direct {} };
    timeout(PATIENCE, direct).await.unwrap();
    old.sender.send(&file()).await.unwrap();
    old.sender.finish().unwrap();
    assert_eq!(far.stream.receiver.recv::<Opening>().await.unwrap(), Some(file()));
    assert!(far.stream.receiver.recv::<Opening>().await.unwrap().is_none());
    // The far end takes the connection that it was called by.
    assert_eq!(b.links.transfer(a.id, &[], 1).await.unwrap().path, PathKind::Direct);
}

#[tokio::test]
async fn what_goes_over_a_relay_counts_against_the_owners_limit() {
    let upload = Some(BytesPerSecond(1e6));
    let (a, mut b) = apart_with([1, 1], Some(Shaping { upload, ..Shaping::default() }));
    let (_here, _there) = opened_around(&a, &mut b).await;
    let moved = a.links.transfer(b.id, &[], 1_000_000).await.unwrap();
    assert_eq!(moved.path, RELAYED);
    assert!((0.95..4.0).contains(&moved.took.0), "{moved:?}");
}

#[tokio::test]
async fn ends_that_call_each_other_keep_the_same_connection_and_close_the_other() {
    let (a, mut b) = apart([1, 1]);
    a.links.listens_at(&[a.address]);
    b.links.listens_at(&[b.address]);
    let (_here, _there) = opened_around(&a, &mut b).await;
    let straight = |end: &LinkEnd, far: PeerId| {
        let connections = end.links.inner.known.connections(far);
        connections.iter().filter(|connection| connection.way.path() == PathKind::Direct).count()
    };
    let goes_straight = |end: &LinkEnd, far: PeerId| {
        let way = end.links.inner.dials.lock().unwrap().get(&far).and_then(DialAttempt::way);
        way.is_some_and(|way| way.path() == PathKind::Direct)
    };
    let one_each = async {
        while (straight(&a, b.id), straight(&b, a.id)) != (1, 1) || !goes_straight(&a, b.id) || !goes_straight(&b, a.id)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(4 * PATIENCE, one_each).await.expect("one connection stays");
    for (one, other) in [(&a, &b), (&b, &a)] {
        assert_eq!(one.links.transfer(other.id, &[], 1).await.unwrap().path, PathKind::Direct);
    }
    assert_eq!((straight(&a, b.id), straight(&b, a.id)), (1, 1), "it is the one that both use");
}
