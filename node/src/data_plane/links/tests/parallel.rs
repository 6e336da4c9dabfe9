//! Connections that share a KV transfer.

use super::*;

#[tokio::test]
async fn a_kv_transfer_takes_as_many_connections_as_it_may_and_keeps_them_for_the_next() {
    let three = KvStreams::Fixed(std::num::NonZeroU8::new(3).unwrap());
    let (a, mut b) = (end_by(three, 1, None, None), end(1, None));
    let connections = async |layers| a.links.connections(b.id, &[b.address], 1 << 20, layers).await.unwrap();
    assert_eq!(connections(2).await.kv_streams().count(), 2, "a parallel stream for each layer");
    let three = connections(32).await;
    assert_eq!(three.kv_streams().count(), 3);
    let mut arrived = Vec::new();
    for kv_stream in three.kv_streams() {
        let mut stream = three.open(kv_stream, &kv()).await.unwrap();
        stream.sender.send_bytes(&[kv_stream.index], 8).await.unwrap();
        let mut incoming = timeout(PATIENCE, b.incoming.next()).await.unwrap().unwrap();
        let mut said = Vec::new();
        assert!(incoming.stream.receiver.recv_payload(8, &mut said).await.unwrap());
        assert_eq!((incoming.peer, said), (a.id, vec![kv_stream.index]));
        arrived.push((stream, incoming));
    }
    let dialled = |connections: &Connections| {
        connections.0.iter().map(|connection| connection.connection.stable_id()).collect::<Vec<usize>>()
    };
    assert_eq!(dialled(&connections(32).await), dialled(&three), "the same ones again");
    assert_eq!(a.links.inner.known.connections(b.id).len(), 3);
    let way_back = b.links.inner.around.met(a.id).unwrap();
    assert!(
        !way_back.is_kv_stream()
            && b.links.inner.known.connections(a.id).iter().filter(|connection| connection.is_kv_stream()).count() == 2
    );

    a.links.forget(b.id);
    for connection in &three.0 {
        timeout(PATIENCE, connection.connection.closed()).await.unwrap();
    }
}

/// What one of two connections carries is a part of what the link does.
#[tokio::test]
async fn connections_that_share_a_kv_transfer_do_not_make_a_link_look_slower() {
    let two = KvStreams::Fixed(std::num::NonZeroU8::MIN.saturating_add(1));
    let shaping = link(40.0, 2);
    let (a, mut b) = (end_by(two, 1, shaping, None), end(1, shaping));
    a.links.probe(b.id, &[b.address]).await.unwrap();
    let connections = a.links.connections(b.id, &[b.address], 1 << 20, 32).await.unwrap();
    let (bytes, mut streams) = (2_000_000, Vec::new());
    for kv_stream in connections.kv_streams() {
        let stream = connections.open(kv_stream, &kv()).await.unwrap();
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
