//! Two ends of a link, honest and otherwise.

use super::*;
use crate::guard::{Bench, Guard};
use std::time::Instant;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{BytesPerSecond, ModelId, Secret, SwarmId, limits, stream::Opening};

struct End {
    links: Links,
    incoming: Incoming,
    gone: Gone,
    bench: Bench,
    address: SocketAddr,
    id: PeerId,
    _stop: tokio_util::sync::DropGuard,
}

fn end(secret: u8, shaping: Option<Shaping>) -> End {
    let identity = Identity::from_seed(&crate::random_bytes());
    let id = identity.peer_id();
    let membership = Membership::new(SwarmId([1; 16]), Some(Secret([secret; 32])));
    let listen = "127.0.0.1:0".parse().unwrap();
    let stop = CancellationToken::new();
    let (guard, bench) = Guard::channel();
    let config = LinksConfig { identity, membership, listen, shaping, guard, faults: None };
    let (links, incoming, gone) = Links::bind(config, stop.clone()).unwrap();
    let address = links.local_addr().unwrap();
    End { links, incoming, gone, bench, address, id, _stop: stop.drop_guard() }
}

fn file() -> Opening {
    Opening::File { model: ModelId([1; 16]), name: "a".into() }
}

async fn pair(a: &End, b: &mut End) -> (Stream, IncomingStream) {
    let (addresses, opening) = ([b.address], file());
    let open = a.links.open(b.id, &addresses, &opening);
    let (opened, arrived) = tokio::join!(open, timeout(PATIENCE, b.incoming.next()));
    (opened.unwrap(), arrived.unwrap().unwrap())
}

#[tokio::test]
async fn both_ends_know_each_other_and_frames_arrive() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (mut here, mut there) = pair(&a, &mut b).await;
    assert_eq!((there.peer, &there.opening), (a.id, &file()));
    here.sender.send(&file()).await.unwrap();
    here.sender.send_bytes(&[7; 300_000], limits::TILE_BYTES).await.unwrap();
    here.sender.finish().unwrap();
    assert_eq!(there.stream.receiver.recv::<Opening>().await.unwrap(), Some(file()));
    assert_eq!(there.stream.receiver.recv_bytes(limits::TILE_BYTES).await.unwrap().unwrap(), [7; 300_000]);
    assert!(there.stream.receiver.recv::<Opening>().await.unwrap().is_none());
}

#[tokio::test]
async fn another_secret_is_refused() {
    let (a, mut b) = (end(1, None), end(2, None));
    let opened = a.links.open(b.id, &[b.address], &file()).await;
    assert!(matches!(opened, Err(LinkError::NotAMember(_))), "{opened:?}");
    assert!(timeout(Duration::from_millis(100), b.incoming.next()).await.is_err(), "nothing may pass");
}

#[tokio::test]
async fn another_peer_at_that_address_is_refused() {
    let (a, b) = (end(1, None), end(1, None));
    let stranger = Identity::from_seed(&crate::random_bytes()).peer_id();
    let opened = a.links.open(stranger, &[b.address], &file()).await;
    assert!(matches!(opened, Err(LinkError::Unreachable { .. })), "{opened:?}");
}

#[tokio::test]
async fn a_frame_over_its_limit_is_refused_before_it_comes() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (mut here, mut there) = pair(&a, &mut b).await;
    here.sender.send_bytes(&[0; 100], 1000).await.unwrap();
    let refused = there.stream.receiver.recv_bytes(99).await;
    assert!(matches!(refused, Err(LinkError::Codec(CodecError::TooLarge { bytes: 100, limit: 99 }))), "{refused:?}");
}

#[tokio::test]
async fn who_stops_reading_is_noticed_and_who_vanishes_is_no_clean_end() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (here, there) = pair(&a, &mut b).await;
    let IncomingStream { stream: Stream { sender, mut receiver }, .. } = there;
    let closed = sender.closed();
    drop(here);
    timeout(PATIENCE, closed).await.unwrap();
    assert!(matches!(receiver.recv::<Opening>().await, Err(LinkError::Lost(_))));
}

/// Whoever ends takes its port along: those who had dialled it know at once, long before silence would tell them.
#[tokio::test]
async fn a_peer_that_ends_is_noticed_at_once() {
    let (mut a, mut b) = (end(1, None), end(1, None));
    let (here, _there) = pair(&a, &mut b).await;
    let Stream { sender: _sender, mut receiver } = here;
    // The lifeline has been had: its far end says whose it is at once, and a moment is more than it takes.
    assert!(timeout(Duration::from_millis(500), a.gone.recv()).await.is_err(), "it lives");
    let (id, ended) = (b.id, Instant::now());
    drop(b);
    assert_eq!(timeout(Duration::from_secs(3), a.gone.recv()).await.unwrap(), Some(id));
    assert!(ended.elapsed() < Duration::from_secs(3));
    assert!(matches!(receiver.recv::<Opening>().await, Err(LinkError::Lost(_))));
}

#[tokio::test]
async fn who_was_dialled_notices_the_end_of_who_dialled() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (_here, there) = pair(&a, &mut b).await;
    // The lifeline has been had, as above.
    assert!(timeout(Duration::from_millis(500), b.gone.recv()).await.is_err(), "it lives");
    let id = a.id;
    drop(a);
    assert_eq!(timeout(Duration::from_secs(3), b.gone.recv()).await.unwrap(), Some(id));
    drop(there);
}

/// An attempt at where a peer was ends as soon as it is known to be elsewhere.
#[tokio::test]
async fn nobody_waits_for_a_peer_that_has_moved() {
    let a = end(1, None);
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (id, addresses) = (Identity::from_seed(&[5; 32]).peer_id(), [silent.local_addr().unwrap()]);
    let moved = async {
        loop {
            a.links.forget(id);
            tokio::task::yield_now().await;
        }
    };
    let opening = file();
    let opened = async {
        tokio::select! {
            opened = a.links.open(id, &addresses, &opening) => opened.err(),
            () = moved => None,
        }
    };
    let error = timeout(Duration::from_secs(1), opened).await.unwrap();
    assert!(matches!(error, Some(LinkError::Unreachable { .. })), "{error:?}");
}

/// A peer that has started again elsewhere is not waited for where it was.
#[tokio::test]
async fn a_dial_to_where_nobody_is_any_more_is_given_up() {
    let (a, b) = (end(1, None), end(1, None));
    let (id, address) = (b.id, b.address);
    drop(b);
    let lifelines = SocketAddr::new(address.ip(), address.port() + 1);
    let closed = async { while tokio::net::TcpStream::connect(lifelines).await.is_ok() {} };
    timeout(PATIENCE, closed).await.unwrap();
    let dialled = timeout(Duration::from_secs(4), a.links.open(id, &[address], &file())).await.unwrap();
    assert!(matches!(dialled, Err(LinkError::Unreachable { .. })), "{dialled:?}");
}

#[tokio::test]
async fn nonsense_is_refused_and_the_next_stream_is_served() {
    let (a, mut b) = (end(1, None), end(1, None));
    let connection = a.links.connection(b.id, &[b.address]).await.unwrap();
    let (mut sender, _receiver) = connection.open_bi().await.unwrap();
    sender.write_all(&[9; 64]).await.unwrap();
    let (_, there) = pair(&a, &mut b).await;
    assert_eq!(there.opening, file());
    assert_eq!(timeout(PATIENCE, b.bench.offences.recv()).await, Ok(Some((a.id, Offence::Garbage))));
}

#[tokio::test]
async fn a_flood_is_turned_away_and_told_of() {
    let (a, mut b) = (end(1, None), end(1, None));
    let addresses = [b.address];
    let flood = async {
        // Kept open: what is reset may never be read.
        let mut open = Vec::new();
        for _ in 0..300 {
            open.push(a.links.open(b.id, &addresses, &file()).await.unwrap());
        }
        std::future::pending::<()>().await;
    };
    let look = async {
        let blame = timeout(PATIENCE, b.bench.offences.recv()).await;
        assert_eq!(blame, Ok(Some((a.id, Offence::Flood))));
    };
    let drain = async { while b.incoming.next().await.is_some() {} };
    tokio::select! {
        () = look => {}
        () = flood => {}
        () = drain => {}
    }
}

#[tokio::test]
async fn who_is_cut_off_is_answered_nothing_and_asked_nothing() {
    let (a, mut b) = (end(1, None), end(1, None));
    pair(&a, &mut b).await;
    b.bench.cut_off.send_replace(Arc::new([a.id].into()));
    let asked = b.links.open(a.id, &[a.address], &file()).await;
    assert!(matches!(asked, Err(LinkError::CutOff(peer)) if peer == a.id), "{asked:?}");
    let mut stream = a.links.open(b.id, &[b.address], &file()).await.unwrap();
    assert!(timeout(PATIENCE, stream.receiver.recv::<Opening>()).await.unwrap().is_err());
    let connection = a.links.open(b.id, &[b.address], &file()).await;
    assert!(connection.is_err(), "nor on a new connection");
}

/// As a link that is pretended, and as an owner's limit on uploads.
#[tokio::test]
async fn a_shaped_link_takes_its_time() {
    let (rate, latency) = (Some(BytesPerSecond(6.25e6)), Duration::from_millis(10));
    takes_its_time(Shaping { bandwidth: rate, upload: None, latency }).await;
    takes_its_time(Shaping { bandwidth: None, upload: rate, latency }).await;
}

async fn takes_its_time(shaping: Shaping) {
    let (a, mut b) = (end(1, Some(shaping)), end(1, Some(shaping)));
    let (mut here, mut there) = pair(&a, &mut b).await;
    let started = Instant::now();
    let send = async {
        here.sender.send_bytes(&vec![0; 2_000_000], limits::TILE_BYTES).await.unwrap();
    };
    let receive = async { there.stream.receiver.recv_bytes(limits::TILE_BYTES).await.unwrap() };
    let ((), got) = tokio::join!(send, receive);
    let took = started.elapsed().as_secs_f64();
    assert_eq!(got.unwrap().len(), 2_000_000);
    // 0.32 s at full rate; slow start and the queue's losses take their part.
    assert!((0.3..2.0).contains(&took), "{took} s");
    let link = a.links.probe(b.id, &[b.address]).await.unwrap();
    assert!((0.009..0.05).contains(&link.latency.0), "{link:?}");
    assert!(link.bandwidth.0 < 7e6, "{link:?}");
}
