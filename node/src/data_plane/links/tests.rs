//! Two ends of a link, honest and otherwise.

mod bounded;
mod crowd;
mod parallel;
mod relayed;

use super::*;
use crate::data_plane::carrier::Carriage;
use crate::data_plane::offences::{OffenceReceiver, OffenceReporter};
use futures::FutureExt;
use std::time::Instant;
use tokio::time::timeout;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::kv::KvHeader;
use tsnode_protocol::response_log::{Fingerprint, ResponseLogHead};
use tsnode_protocol::{BytesPerSecond, KvCodec, KvDtype, KvStream, LayerRange, ModelId, RequestId, Secret, SwarmId};
use tsnode_protocol::{codec::CodecError, limits, stream::DecodeOrder, stream::Opening};

struct LinkEnd {
    links: Links,
    incoming: Incoming,
    gone: GonePeers,
    offence_receiver: OffenceReceiver,
    address: SocketAddr,
    id: PeerId,
    _stop: tokio_util::sync::DropGuard,
}

fn end(secret: u8, shaping: Option<Shaping>) -> LinkEnd {
    end_with(secret, shaping, None)
}

fn end_with(secret: u8, shaping: Option<Shaping>, carriage: Option<Carriage>) -> LinkEnd {
    end_by(KvStreams::Spare(0), secret, shaping, carriage)
}

fn end_by(kv_streams: KvStreams, secret: u8, shaping: Option<Shaping>, carriage: Option<Carriage>) -> LinkEnd {
    end_at("127.0.0.1:0".parse().unwrap(), kv_streams, secret, shaping, carriage)
}

fn end_at(
    listen: SocketAddr,
    kv_streams: KvStreams,
    secret: u8,
    shaping: Option<Shaping>,
    carriage: Option<Carriage>,
) -> LinkEnd {
    let identity = Identity::from_seed(&crate::random_bytes());
    let id = identity.peer_id();
    let membership = Membership::new(SwarmId([1; 16]), Some(Secret([secret; 32])));
    let stop = CancellationToken::new();
    let (offence_reporter, offence_receiver) = OffenceReporter::channel();
    let config = LinksConfig {
        identity,
        membership,
        listen,
        shaping,
        datagram: None,
        offence_reporter,
        faults: None,
        heartbeats: None,
        carriage,
        kv_streams,
        doors: Doors::default(),
    };
    let (links, incoming, gone) = Links::bind(config, stop.clone()).unwrap();
    let address = links.local_addr().unwrap();
    LinkEnd { links, incoming, gone, offence_receiver, address, id, _stop: stop.drop_guard() }
}

fn file() -> Opening {
    Opening::File { model: ModelId([1; 16]), name: "a".into() }
}

async fn pair(a: &LinkEnd, b: &mut LinkEnd) -> (Stream, IncomingStream) {
    let (addresses, opening) = ([b.address], file());
    let open = a.links.open(b.id, &addresses, &opening);
    let (opened, arrived) = tokio::join!(open, timeout(PATIENCE, b.incoming.next()));
    (opened.unwrap(), arrived.unwrap().unwrap())
}

/// A port that nobody listens at, with one after it that is as free.
async fn free_port() -> SocketAddr {
    loop {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut next = listener.local_addr().unwrap();
        next.set_port(next.port().wrapping_add(1));
        if tokio::net::TcpListener::bind(next).await.is_ok() {
            return listener.local_addr().unwrap();
        }
    }
}

#[tokio::test]
async fn whose_system_refuses_both_planes_is_gone_though_no_connection_was_there_yet() {
    let mut a = end(1, None);
    let (nobody, listens) = (free_port().await, tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    // Its control plane is there: it has no liveness connections, and has broken off for another reason.
    a.links.ask_system(PeerId([7; 32]), nobody, listens.local_addr().unwrap());
    a.links.ask_system(PeerId([8; 32]), nobody, nobody);
    assert_eq!(timeout(Duration::from_secs(10), a.gone.recv()).await.unwrap(), Some(PeerId([8; 32])));
    listens.accept().await.unwrap();
    assert!(timeout(Duration::from_millis(100), a.gone.recv()).await.is_err());
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

fn end_on(listen: &str) -> LinkEnd {
    end_at(listen.parse().unwrap(), KvStreams::Spare(0), 1, None, None)
}

#[tokio::test]
async fn all_addresses_are_those_of_ipv4_and_of_ipv6() {
    let listen = crate::data_plane::listening::available("[::]:0".parse().unwrap());
    let mut b = end_on(&listen.to_string());
    let port = b.address.port();
    // A host without IPv6 has one kind only.
    let own = [Some("127.0.0.1"), std::net::UdpSocket::bind("[::1]:0").is_ok().then_some("[::1]")];
    for own in own.into_iter().flatten() {
        let a = end_on(&format!("{own}:0"));
        b.address = format!("{own}:{port}").parse().unwrap();
        let (_here, _there) = pair(&a, &mut b).await;
        assert_eq!(a.links.seen_at().await, [a.address], "as it is written everywhere");
        // Both ends' lifelines are there as well.
        tokio::net::TcpStream::connect((b.address.ip(), port + 1)).await.unwrap();
    }
}

#[tokio::test]
async fn an_address_that_leads_nowhere_is_passed_over_soon() {
    let (a, mut b) = (end(1, None), end(1, None));
    // Bound, and never answered; and IPv6, which a socket of IPv4 cannot reach.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addresses = [silent.local_addr().unwrap(), "[2001:db8::1]:7448".parse().unwrap(), b.address];
    let started = Instant::now();
    let opening = file();
    let open = a.links.open(b.id, &addresses, &opening);
    let (opened, arrived) = tokio::join!(open, timeout(PATIENCE, b.incoming.next()));
    opened.unwrap();
    arrived.unwrap().unwrap();
    assert!(started.elapsed() < lifeline::HOPELESS, "after {:?}", started.elapsed());
}

#[tokio::test]
async fn a_port_of_lifelines_that_is_taken_is_known() {
    let a = end(1, None);
    assert_eq!(a.links.lacks_lifelines(), None);
    // The number after that of a data plane, taken by somebody else.
    let (port, _taken) = loop {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port() - 1;
        if std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            break (port, taken);
        }
    };
    let b = end_on(&format!("127.0.0.1:{port}"));
    assert_eq!(b.links.lacks_lifelines(), Some(SocketAddr::from(([127, 0, 0, 1], port + 1))));
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

/// A peer that has started again elsewhere is not waited for where it was, nor looked for behind relays for as long as those may
/// take.
#[tokio::test]
async fn a_dial_to_where_nobody_is_any_more_is_given_up() {
    let (carriage, _porter) = crate::data_plane::carrier::channel();
    let (alone, carried, b) = (end(1, None), end_with(1, None, Some(carriage)), end(1, None));
    let (id, address) = (b.id, b.address);
    drop(b);
    let lifelines = SocketAddr::new(address.ip(), address.port() + 1);
    let closed = async { while tokio::net::TcpStream::connect(lifelines).await.is_ok() {} };
    timeout(PATIENCE, closed).await.unwrap();
    let (opening, addresses) = (file(), [address]);
    let dials = [&alone, &carried].map(|a| timeout(Duration::from_secs(4), a.links.open(id, &addresses, &opening)));
    for dialled in futures::future::join_all(dials).await {
        let dialled = dialled.unwrap();
        assert!(matches!(dialled, Err(LinkError::NobodyThere { .. })), "{dialled:?}");
    }
}

#[tokio::test]
async fn nonsense_is_refused_and_the_next_stream_is_served() {
    let (a, mut b) = (end(1, None), end(1, None));
    let connection = a.links.connection(b.id, &[b.address]).await.unwrap();
    let (mut sender, _receiver) = connection.connection.open_bi().await.unwrap();
    sender.write_all(&[9; 64]).await.unwrap();
    let (_, there) = pair(&a, &mut b).await;
    assert_eq!(there.opening, file());
    assert_eq!(timeout(PATIENCE, b.offence_receiver.offences.recv()).await, Ok(Some((a.id, Offence::Garbage))));
}

/// Whoever opened the stream, and whether it is no message at all, longer than any, or one that says what none may say.
#[tokio::test]
async fn nonsense_within_a_stream_is_told_of() {
    let (mut a, mut b) = (end(1, None), end(1, None));
    let (mut here, mut there) = pair(&a, &mut b).await;
    here.sender.send_bytes(&[0xff; 40], limits::FRAME_BYTES).await.unwrap();
    assert!(matches!(there.stream.receiver.recv::<DecodeOrder>().await, Err(LinkError::Codec(_))));
    assert_eq!(timeout(PATIENCE, b.offence_receiver.offences.recv()).await, Ok(Some((a.id, Offence::Garbage))));
    there.stream.sender.claim(100, &[1; 100]).await.unwrap();
    assert!(matches!(here.receiver.recv_bytes(99).await, Err(LinkError::Codec(_))));
    assert_eq!(timeout(PATIENCE, a.offence_receiver.offences.recv()).await, Ok(Some((b.id, Offence::Garbage))));
    let never = CodecError::Invalid("as its check has it");
    assert!(matches!(there.stream.receiver.refuse(never), LinkError::Codec(_)));
    assert_eq!(timeout(PATIENCE, b.offence_receiver.offences.recv()).await, Ok(Some((a.id, Offence::Garbage))));
}

/// A stream that breaks off may do so anywhere.
#[tokio::test]
async fn half_a_message_is_no_offence() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (mut here, mut there) = pair(&a, &mut b).await;
    here.sender.claim(100, &[1; 50]).await.unwrap();
    here.sender.finish().unwrap();
    assert!(matches!(there.stream.receiver.recv::<DecodeOrder>().await, Err(LinkError::Lost(_))));
    assert!(b.offence_receiver.offences.try_recv().is_err());
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
        let blame = timeout(PATIENCE, b.offence_receiver.offences.recv()).await;
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
    b.offence_receiver.cut_off.send_replace(Arc::new([a.id].into()));
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
    let link = a.links.probe(b.id, &[b.address]).await.unwrap().link;
    assert!((0.009..0.05).contains(&link.latency.0), "{link:?}");
    assert!(link.bandwidth.0 < 7e6, "{link:?}");
}

#[tokio::test]
async fn a_limit_on_uploads_holds_from_when_it_is_set_until_it_is_taken_back() {
    let (a, mut b) = (end(1, None), end(1, None));
    let _streams = pair(&a, &mut b).await;
    let (limit, limits) = watch::channel(Some(BytesPerSecond(1e6)));
    let look = async {
        let moved = a.links.transfer(b.id, &[b.address], 500_000).await.unwrap();
        limit.send_replace(None);
        while a.links.inner.uplink.rate().is_some() {
            tokio::task::yield_now().await;
        }
        moved.took.0
    };
    let took = tokio::select! {
        took = timeout(PATIENCE, look) => took.unwrap(),
        () = a.links.clone().limit_uploads(limits) => panic!("whoever sets it is here"),
    };
    assert!((0.35..4.0).contains(&took), "{took} s");
}

/// A link of that rate, and that latency one way (milliseconds).
fn link(mbit: f64, latency: u64) -> Option<Shaping> {
    let bandwidth = Some(BytesPerSecond(mbit * 125e3));
    Some(Shaping { bandwidth, upload: None, latency: Duration::from_millis(latency) })
}

/// From the first probe on, for less than a hundredth of what the link carries in a minute. (`tsnode bench link` shows the
/// same of faster links, which want a core to themselves.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_tells_a_links_bandwidth_whatever_it_is() {
    for (mbit, latency) in [(10.0, 5), (100.0, 2), (100.0, 40)] {
        let (a, b) = (end(1, link(mbit, latency)), end(1, link(mbit, latency)));
        let probed = a.links.probe(b.id, &[b.address]).await.unwrap();
        let found = probed.link.bandwidth.0 / 125e3;
        assert!((found / mbit - 1.0).abs() < 0.15, "{found} Mbit/s of {mbit} and {latency} ms");
        assert!(probed.link.latency.0 * 1e3 >= latency as f64, "{probed:?}");
        assert!((probed.bytes as f64) < 0.01 * 60.0 * mbit * 125e3, "{probed:?}");
    }
}

fn kv() -> Opening {
    Opening::Kv(KvHeader {
        request: RequestId([1; 16]),
        model: ModelId([1; 16]),
        dtype: KvDtype::F16,
        codec: KvCodec::Raw,
        layers: LayerRange { start: 0, end: 1 },
        kv_stream: KvStream::WHOLE,
        tokens: 1,
    })
}

fn recall() -> Opening {
    Opening::Recall(ResponseLogHead { request: RequestId([1; 16]), asked: Fingerprint([0; 32]) })
}

async fn opened(a: &LinkEnd, b: &mut LinkEnd, opening: &Opening) -> (Stream, IncomingStream) {
    let stream = a.links.open(b.id, &[b.address], opening).await.unwrap();
    (stream, timeout(PATIENCE, b.incoming.next()).await.unwrap().unwrap())
}

/// Four seconds of KV wait to be acknowledged, which is all that may; a word need not wait until some are.
#[tokio::test]
async fn kv_that_fills_the_window_does_not_keep_a_word_from_passing() {
    let (a, mut b) = (end(1, link(16.0, 1)), end(1, link(16.0, 1)));
    let (mut words, mut heard) = opened(&a, &mut b, &recall()).await;
    let (mut here, _there) = opened(&a, &mut b, &kv()).await;
    let tile = bytes::Bytes::from(vec![0; limits::TILE_BYTES]);
    let fill = here.sender.send_payload(tile, limits::TILE_BYTES);
    tokio::pin!(fill);
    assert!(timeout(Duration::from_millis(300), &mut fill).await.is_err(), "the window holds half of it");
    assert!(futures::poll!(&mut fill).is_pending());
    assert!(words.sender.send(&kv()).now_or_never().is_some_and(|sent| sent.is_ok()), "it need not wait");
    let word = timeout(PATIENCE, heard.stream.receiver.recv::<Opening>()).await.unwrap();
    assert_eq!(word.unwrap(), Some(kv()));
}

/// A second of KV waits for a link of 16 Mbit/s when a word is said: it does not wait behind that.
#[tokio::test]
async fn a_word_overtakes_kv_that_waits_for_the_link() {
    let (a, mut b) = (end(1, link(16.0, 1)), end(1, link(16.0, 1)));
    let (mut words, mut heard) = opened(&a, &mut b, &recall()).await;
    let (mut here, mut there) = opened(&a, &mut b, &kv()).await;
    here.sender.send_payload(bytes::Bytes::from(vec![0; 2_000_000]), limits::TILE_BYTES).await.unwrap();
    words.sender.send(&kv()).await.unwrap();
    let tile = async { there.stream.receiver.recv_bytes(limits::TILE_BYTES).await.unwrap() };
    tokio::pin!(tile);
    tokio::select! {
        biased;
        word = heard.stream.receiver.recv::<Opening>() => assert_eq!(word.unwrap(), Some(kv())),
        _ = &mut tile => panic!("the word came after the KV"),
    }
    assert_eq!(timeout(PATIENCE, tile).await.unwrap().unwrap().len(), 2_000_000);
}

/// What is said first on a stream of that kind decides at both ends.
#[tokio::test]
async fn a_more_urgent_stream_of_kv_overtakes_another() {
    let (a, mut b) = (end(1, link(16.0, 1)), end(1, link(16.0, 1)));
    let (mut first, mut first_there) = opened(&a, &mut b, &kv()).await;
    let (mut second, mut second_there) = opened(&a, &mut b, &kv()).await;
    second.sender.set_urgency(9);
    let tile = || bytes::Bytes::from(vec![0; 1_000_000]);
    first.sender.send_payload(tile(), limits::TILE_BYTES).await.unwrap();
    second.sender.send_payload(tile(), limits::TILE_BYTES).await.unwrap();
    tokio::select! {
        biased;
        urgent = second_there.stream.receiver.recv_bytes(limits::TILE_BYTES) => assert_eq!(urgent.unwrap().unwrap().len(), 1_000_000),
        _ = first_there.stream.receiver.recv_bytes(limits::TILE_BYTES) => panic!("the urgent one came later"),
    }
}

/// A length is a claim: memory follows what comes.
#[tokio::test]
async fn payloads_use_the_memory_they_are_given_and_take_no_more_than_comes() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (mut here, mut there) = pair(&a, &mut b).await;
    let (mut payload, mut places) = (Vec::new(), std::collections::BTreeSet::new());
    for k in 0..6u8 {
        here.sender.send_payload(bytes::Bytes::from(vec![k; 300_000]), limits::TILE_BYTES).await.unwrap();
        here.sender.send(&file()).await.unwrap();
        assert!(there.stream.receiver.recv_payload(limits::TILE_BYTES, &mut payload).await.unwrap());
        assert_eq!(payload, vec![k; 300_000]);
        assert_eq!(there.stream.receiver.recv::<Opening>().await.unwrap(), Some(file()));
        places.insert(payload.as_ptr() as usize);
    }
    assert!(places.len() <= 3, "two buffers take turns: {places:?}");
    // 16 MiB announced, a thousand bytes sent.
    let receive = there.stream.receiver.recv_payload(limits::TILE_BYTES, &mut payload);
    here.sender.claim(limits::TILE_BYTES, &[1; 1000]).await.unwrap();
    assert!(timeout(Duration::from_millis(200), receive).await.is_err());
    assert!(there.stream.receiver.memory() < 1 << 20, "{}", there.stream.receiver.memory());
    here.sender.finish().unwrap();
    let cut = timeout(PATIENCE, there.stream.receiver.recv_payload(limits::TILE_BYTES, &mut payload)).await.unwrap();
    assert!(matches!(cut, Err(LinkError::Lost(_))), "{cut:?}");
}

/// Traffic alone tells what the link carries, once it has filled it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_tells_a_links_bandwidth_without_a_probe() {
    let (a, mut b) = (end(1, link(40.0, 2)), end(1, link(40.0, 2)));
    let (mut here, mut there) = opened(&a, &mut b, &kv()).await;
    let send = here.sender.send_payload(bytes::Bytes::from(vec![0; 8_000_000]), limits::TILE_BYTES);
    let receive = there.stream.receiver.recv_bytes(limits::TILE_BYTES);
    let (sent, received) = tokio::join!(send, receive);
    assert!(sent.is_ok() && received.unwrap().unwrap().len() == 8_000_000);
    let before = Instant::now();
    let probed = a.links.probe(b.id, &[b.address]).await.unwrap();
    let found = probed.link.bandwidth.0 / 125e3;
    assert_eq!(probed.bytes, 0, "there was nothing to probe: {:?}", before.elapsed());
    assert!((found / 40.0 - 1.0).abs() < 0.15, "{found} Mbit/s of 40");
}
