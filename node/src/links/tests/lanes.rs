//! Connections that share a hand-over.

use super::*;

#[tokio::test]
async fn a_hand_over_takes_as_many_connections_as_it_may_and_keeps_them_for_the_next() {
    let three = Lanes::Fixed(std::num::NonZeroU8::new(3).unwrap());
    let (a, mut b) = (end_by(three, 1, None, None), end(1, None));
    let roads = async |layers| a.links.roads(b.id, &[b.address], 1 << 20, layers).await.unwrap();
    assert_eq!(roads(2).await.lanes().count(), 2, "a lane for each layer");
    let three = roads(32).await;
    assert_eq!(three.lanes().count(), 3);
    let mut arrived = Vec::new();
    for lane in three.lanes() {
        let mut stream = three.open(lane, &kv()).await.unwrap();
        stream.sender.send_bytes(&[lane.index], 8).await.unwrap();
        let mut incoming = timeout(PATIENCE, b.incoming.next()).await.unwrap().unwrap();
        let mut said = Vec::new();
        assert!(incoming.stream.receiver.recv_payload(8, &mut said).await.unwrap());
        assert_eq!((incoming.peer, said), (a.id, vec![lane.index]));
        arrived.push((stream, incoming));
    }
    let dialled = |roads: &Roads| roads.0.iter().map(|road| road.connection.stable_id()).collect::<Vec<usize>>();
    assert_eq!(dialled(&roads(32).await), dialled(&three), "the same ones again");
    assert_eq!(a.links.inner.known.roads(b.id).len(), 3);
    let way_back = b.links.inner.around.met(a.id).unwrap();
    assert!(!way_back.is_lane() && b.links.inner.known.roads(a.id).iter().filter(|road| road.is_lane()).count() == 2);

    a.links.forget(b.id);
    for road in &three.0 {
        timeout(PATIENCE, road.connection.closed()).await.unwrap();
    }
}

/// What one of two connections carries is a part of what the link does.
#[tokio::test]
async fn connections_that_share_a_hand_over_do_not_make_a_link_look_slower() {
    let two = Lanes::Fixed(std::num::NonZeroU8::MIN.saturating_add(1));
    let shaping = link(40.0, 2);
    let (a, mut b) = (end_by(two, 1, shaping, None), end(1, shaping));
    a.links.probe(b.id, &[b.address]).await.unwrap();
    let roads = a.links.roads(b.id, &[b.address], 1 << 20, 32).await.unwrap();
    let (bytes, mut streams) = (2_000_000, Vec::new());
    for lane in roads.lanes() {
        let stream = roads.open(lane, &kv()).await.unwrap();
        streams.push((stream, timeout(PATIENCE, b.incoming.next()).await.unwrap().unwrap()));
    }
    let carried = streams.iter_mut().map(|(here, there)| async {
        let send = here.sender.send_payload(bytes::Bytes::from(vec![0; bytes]), limits::TILE_BYTES);
        let (sent, received) = tokio::join!(send, there.stream.receiver.recv_bytes(limits::TILE_BYTES));
        sent.is_ok() && received.unwrap().unwrap().len() == bytes
    });
    assert_eq!(futures::future::join_all(carried).await, [true; 2]);
    let found = a.links.measured()[0].link.bandwidth.0 / 125e3;
    assert!((found / 40.0 - 1.0).abs() < 0.15, "{found} Mbit/s of 40");
}
