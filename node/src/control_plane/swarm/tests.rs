//! Scenarios of small swarms on loopback. Every wait ends with an event or fails at its deadline.

mod circuits;
mod crowd;
mod lies;
mod looking;

use super::*;
use crate::data_plane::carrier;
use futures::StreamExt as _;
use libp2p::{
    Swarm, Transport as _,
    core::{
        Endpoint,
        transport::{DialOpts, PortUse},
    },
    multiaddr::Protocol,
    ping,
    swarm::SwarmEvent as NetEvent,
};
use std::{
    io,
    net::{TcpListener, UdpSocket},
    time::{Duration, Instant},
};
use tsnode_protocol::{Advert, Heartbeat, Life, Secret, codec, proof::ConnectionSide};

const SWARM: SwarmId = SwarmId([1; 16]);
const SECRET: Secret = Secret([2; 32]);
/// Who dials into a network that is just going is told so after ten seconds, and tries again some seconds later.
const PATIENCE: Duration = Duration::from_secs(60);
const TRANSPORTS: [&str; 2] = ["/tcp/", "/quic-v1/"];

/// One peer of a scenario.
struct Peer {
    id: PeerId,
    handle: SwarmHandle,
    events: mpsc::Receiver<SwarmEvent>,
    stop: CancellationToken,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn no_invites() -> Invites {
    Invites::new(std::path::Path::new("/nowhere"), SWARM, None)
}

fn config(n: u8, secret: Secret) -> SwarmConfig {
    SwarmConfig {
        identity: Identity::from_seed(&[n; 32]),
        life: Life(1),
        swarm: SWARM,
        process: ProcessId::draw(),
        invites: no_invites(),
        membership: Membership::new(SWARM, Some(secret)),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        bootstrap: Vec::new(),
        mdns: false,
        degree: DEGREE,
        agent: "tsnode/test".into(),
        relay: true,
        faults: None,
        doors: Doors::default(),
    }
}

async fn start_with(config: SwarmConfig) -> Peer {
    start_with_porter(config, carrier::channel().1).await
}

async fn start_with_porter(config: SwarmConfig, porter: carrier::Porter) -> Peer {
    let id = config.identity.peer_id();
    let stop = CancellationToken::new();
    let (handle, events) = start(config, porter, stop.clone()).await.unwrap();
    let mut peer = Peer { id, handle, events, stop };
    peer.until(|event| matches!(event, SwarmEvent::Listening(all) if all.len() == 2)).await;
    peer
}

async fn member(n: u8) -> Peer {
    start_with(config(n, SECRET)).await
}

impl Peer {
    /// The first event that fits; those before it are let go.
    async fn until(&mut self, fits: impl Fn(&SwarmEvent) -> bool) -> SwarmEvent {
        let found = async {
            loop {
                let event = self.events.recv().await.expect("the network task has ended");
                if fits(&event) {
                    return event;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("what was waited for did not happen")
    }

    async fn until_connected(&mut self, other: PeerId) {
        self.until(|event| *event == SwarmEvent::Connected(other)).await;
    }

    async fn until_rejection(&mut self, other: PeerId) -> String {
        let fits = |event: &SwarmEvent| matches!(event, SwarmEvent::Rejected { peer, .. } if *peer == Some(other));
        match self.until(fits).await {
            SwarmEvent::Rejected { reason, .. } => reason,
            other => panic!("not a rejection: {other:?}"),
        }
    }

    async fn until_heard(&mut self, message: &Verified<Gossip>) {
        self.until(|event| matches!(event, SwarmEvent::Gossip(heard) if heard == message)).await;
    }

    fn address(&self, transport: &str) -> Multiaddr {
        let addresses = self.handle.addresses();
        addresses.iter().find(|address| address.contains(transport)).unwrap().parse().unwrap()
    }

    fn dial(&self, other: &Peer, transport: &str) {
        self.handle.dial(other.address(transport)).unwrap();
    }
}

fn tcp_address(address: &Multiaddr) -> SocketAddr {
    let port = address.iter().find_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None });
    SocketAddr::from(([127, 0, 0, 1], port.unwrap()))
}

async fn meet(one: &mut Peer, other: &mut Peer, transport: &str) {
    one.dial(other, transport);
    one.until_connected(other.id).await;
    other.until_connected(one.id).await;
}

fn heartbeat() -> Gossip {
    Gossip::Heartbeat(Heartbeat::default())
}

fn advert(addresses: Vec<String>) -> Gossip {
    let advert = Advert { addresses, ..tsnode_coordinator::sample::gateway(0) };
    Gossip::Advert(advert.into())
}

#[tokio::test]
async fn members_meet_and_hear_each_other_over_either_transport() {
    for transport in TRANSPORTS {
        let (mut a, mut b) = (member(1).await, member(2).await);
        b.dial(&a, transport);
        a.until_connected(b.id).await;
        let said = a.handle.publish(&heartbeat()).unwrap();
        b.until_heard(&said).await;
        assert_eq!((a.handle.peers(), b.handle.peers()), (vec![b.id], vec![a.id]));
    }
}

#[tokio::test]
async fn another_secret_is_turned_away_by_both_sides() {
    for transport in TRANSPORTS {
        let (mut a, mut b) = (member(1).await, start_with(config(2, Secret([9; 32]))).await);
        b.dial(&a, transport);
        let reason = b.until_rejection(a.id).await;
        assert!(reason.contains("does not know this swarm's secret"), "{reason}");
        a.until_rejection(b.id).await;
        assert_eq!((a.handle.peers(), b.handle.peers()), (vec![], vec![]));
    }
}

/// Connects as this peer, and hangs up before anything is proven.
async fn knock_and_leave(n: u8, address: Multiaddr) {
    let mut plain = authenticated::plain(&Identity::from_seed(&[n; 32]).libp2p_keypair()).unwrap();
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let (_, muxer) = plain.dial(dialer::without_peer(address), options).unwrap().await.unwrap();
    drop(muxer);
}

#[tokio::test]
async fn who_hangs_up_on_one_dial_and_comes_in_by_another_was_not_refused() {
    let mut a = member(1).await;
    for transport in TRANSPORTS {
        knock_and_leave(2, a.address(transport)).await;
        knock_and_leave(3, a.address(transport)).await;
    }
    let b = member(2).await;
    b.dial(&a, TRANSPORTS[0]);
    a.until_connected(b.id).await;
    // Also one that is in already.
    knock_and_leave(2, a.address(TRANSPORTS[0])).await;
    let stranger = Identity::from_seed(&[3; 32]).peer_id();
    let refused = a.until(|event| matches!(event, SwarmEvent::Rejected { .. })).await;
    assert!(matches!(&refused, SwarmEvent::Rejected { peer, .. } if *peer == Some(stranger)), "{refused:?}");
}

/// A libp2p program that knows nothing of tsnode: it pings whom it connects to.
fn outsider() -> Swarm<ping::Behaviour> {
    let keypair = Identity::from_seed(&[77; 32]).libp2p_keypair();
    let behaviour = ping::Behaviour::new(ping::Config::new().with_interval(Duration::from_millis(50)));
    let id = keypair.public().to_peer_id();
    Swarm::new(
        authenticated::plain(&keypair).unwrap(),
        behaviour,
        id,
        libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(PATIENCE),
    )
}

#[tokio::test]
async fn who_proves_nothing_is_answered_nothing() {
    for transport in TRANSPORTS {
        let mut a = member(1).await;
        let mut outsider = outsider();
        outsider.dial(a.address(transport)).unwrap();
        let ended = async {
            loop {
                match outsider.select_next_some().await {
                    NetEvent::Behaviour(ping::Event { result: Ok(_), .. }) => panic!("a ping was answered"),
                    NetEvent::ConnectionClosed { .. } => break,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the connection was left open");
        let reason = a.until_rejection(Identity::from_seed(&[77; 32]).peer_id()).await;
        assert!(reason.contains("does not speak tsnode"), "{reason}");
    }
}

#[tokio::test]
async fn gossip_passes_along_a_line() {
    let (mut a, mut b, mut c) = (member(1).await, member(2).await, member(3).await);
    a.handle.ban(c.id, Ban::Fault).unwrap();
    c.handle.ban(a.id, Ban::Fault).unwrap();
    meet(&mut a, &mut b, "/tcp/").await;
    meet(&mut b, &mut c, "/quic-v1/").await;
    let said = a.handle.publish(&heartbeat()).unwrap();
    c.until_heard(&said).await;
    assert_eq!((a.handle.peers(), c.handle.peers()), (vec![b.id], vec![b.id]));
}

#[tokio::test]
async fn peers_find_each_other_through_a_third() {
    let mut a = member(1).await;
    let newcomer = |n| SwarmConfig { bootstrap: vec![a.address("/tcp/")], ..config(n, SECRET) };
    let (mut b, mut c) = (start_with(newcomer(2)).await, start_with(newcomer(3)).await);
    a.until_connected(c.id).await;
    b.handle.publish(&advert(b.handle.addresses())).unwrap();
    c.until_connected(b.id).await;
    b.until_connected(c.id).await;
}

#[tokio::test]
async fn who_speaks_another_version_is_told_which_this_one_is_and_the_other_way_round() {
    let mut member = member(1).await;
    let keypair = Identity::from_seed(&[7; 32]).libp2p_keypair();
    let mut transport = authenticated::plain(&keypair).unwrap();
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dial = transport.dial(dialer::without_peer(member.address("/tcp/")), options).unwrap();
    let (_, mut muxer) = dial.await.unwrap();
    let (theirs, ours) = (codec::VERSION + 1, codec::VERSION);
    let mut stream = exchange::first_stream(&mut muxer, ConnectionSide::Dialer).await.unwrap();
    let knock = async {
        let hello = [&b"tsnode"[..], &theirs.to_le_bytes(), &[3; 32]].concat();
        exchange::send(&mut stream, &hello).await?;
        exchange::receive::<{ exchange::HELLO_BYTES }>(&mut stream).await
    };
    let answer = exchange::driving(&mut muxer, knock).await.unwrap().unwrap();
    assert_eq!(answer[..8], [&b"tsnode"[..], &ours.to_le_bytes()].concat()[..]);
    drop((stream, muxer));
    member.until(|event| *event == SwarmEvent::OtherVersion { theirs }).await;
    let reason = member.until_rejection(Identity::from_seed(&[7; 32]).peer_id()).await;
    assert!(reason.contains(&format!("speaks protocol version {theirs}, ours is {ours}")), "{reason}");
}

#[tokio::test]
async fn a_peer_that_leaves_is_missed_at_once_and_found_again() {
    let mut a = member(1).await;
    let address = a.address("/tcp/");
    let mut b = start_with(SwarmConfig { bootstrap: vec![address.clone()], ..config(2, SECRET) }).await;
    b.until_connected(a.id).await;
    let id = a.id;
    a.until_connected(b.id).await;
    a.stop.cancel();
    let left = Instant::now();
    b.until(|event| *event == SwarmEvent::Disconnected(id)).await;
    assert!(left.elapsed() < Duration::from_secs(2), "noticed after {:?}", left.elapsed());
    while a.events.recv().await.is_some() {}

    let listen = tcp_address(&address);
    let _again = start_with(SwarmConfig { listen, ..config(1, SECRET) }).await;
    b.until_connected(id).await;
}

#[tokio::test]
async fn a_network_that_panics_is_made_again_where_it_was() {
    let mut first = member(1).await;
    let listen = tcp_address(&first.address("/tcp/"));
    first.stop.cancel();
    while first.events.recv().await.is_some() {}
    let (mut a, mut b, banned) =
        (start_with(SwarmConfig { listen, ..config(1, SECRET) }).await, member(2).await, PeerId([3; 32]));
    meet(&mut a, &mut b, "/tcp/").await;
    a.handle.commands.send(handle::SwarmCommand::Ban(banned, Ban::Offence)).await.unwrap();
    a.handle.commands.send(handle::SwarmCommand::Panic).await.unwrap();
    let (id, other) = (a.id, b.id);
    a.until(|event| *event == SwarmEvent::Disconnected(other)).await;
    b.until(|event| *event == SwarmEvent::Disconnected(id)).await;
    a.until_connected(other).await;
    b.until_connected(id).await;
    assert_eq!(tcp_address(&a.address("/tcp/")), listen);
    // Connected is not subscribed: what is published before the other's topics are known is heard by nobody.
    let heard = async {
        loop {
            let said = a.handle.publish(&Gossip::Heartbeat(Heartbeat::default())).unwrap();
            if tokio::time::timeout(Duration::from_secs(1), b.until_heard(&said)).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("it is not heard again");
}

#[tokio::test]
async fn a_word_to_itself_comes_back_once_nothing_else_is_to_be_heard() {
    let (mut a, mut b) = (member(1).await, member(2).await);
    meet(&mut a, &mut b, "/tcp/").await;
    let said = tokio::time::Instant::now();
    a.handle.echo(said).unwrap();
    a.until(|event| *event == SwarmEvent::Echo(said)).await;
    b.handle.publish(&heartbeat()).unwrap();
    a.until(|event| matches!(event, SwarmEvent::Gossip(_))).await;
}

#[tokio::test]
async fn last_words_are_heard() {
    let (mut a, mut b) = (member(1).await, member(2).await);
    meet(&mut a, &mut b, "/tcp/").await;
    let said = a.handle.publish(&Gossip::Heartbeat(Heartbeat { leaving: true, ..Heartbeat::default() })).unwrap();
    a.stop.cancel();
    b.until_heard(&said).await;
    let id = a.id;
    b.until(|event| *event == SwarmEvent::Disconnected(id)).await;
}

#[tokio::test]
async fn the_banned_stay_away() {
    let (mut a, mut b) = (member(1).await, member(2).await);
    meet(&mut a, &mut b, "/tcp/").await;
    a.handle.ban(b.id, Ban::Offence).unwrap();
    let id = a.id;
    b.until(|event| *event == SwarmEvent::Disconnected(id)).await;
    a.until(|event| matches!(event, SwarmEvent::Disconnected(_))).await;
    assert_eq!(a.handle.peers(), []);
    // A network that is whole again is no pardon; when that comes they meet again.
    a.handle.ban(b.id, Ban::Fault).unwrap();
    a.handle.allow(b.id, Ban::Fault).unwrap();
    b.handle.dial(a.address("/tcp/")).unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(500), a.until(|e| matches!(e, SwarmEvent::Connected(_))))
            .await
            .is_err()
    );
    a.handle.allow(b.id, Ban::Offence).unwrap();
    meet(&mut a, &mut b, "/tcp/").await;
}

#[tokio::test]
async fn all_addresses_are_those_of_ipv4_and_of_ipv6() {
    let both: SocketAddr = "[::]:0".parse().unwrap();
    let listen = crate::data_plane::listening::available(both);
    let port = TcpListener::bind(listen).unwrap().local_addr().unwrap().port();
    let listen = SocketAddr::new(listen.ip(), port);
    let stop = CancellationToken::new();
    let (handle, events) =
        start(SwarmConfig { listen, ..config(1, SECRET) }, carrier::channel().1, stop.clone()).await.unwrap();
    let mut a = Peer { id: Identity::from_seed(&[1; 32]).peer_id(), handle, events, stop };
    // A host without IPv6 has one kind only.
    let own = [Some("127.0.0.1:0"), UdpSocket::bind("[::1]:0").is_ok().then_some("[::1]:0")];
    for (n, own) in (2..).zip(own.into_iter().flatten()) {
        let own: SocketAddr = own.parse().unwrap();
        let host = Multiaddr::from(own.ip());
        let ways = [host.clone().with(Protocol::Tcp(port)), host.with(Protocol::Udp(port)).with(Protocol::QuicV1)];
        for way in ways {
            let b = start_with(SwarmConfig { listen: own, ..config(n, SECRET) }).await;
            b.handle.dial(way).unwrap();
            a.until_connected(b.id).await;
            b.stop.cancel();
            a.until(|event| *event == SwarmEvent::Disconnected(b.id)).await;
        }
    }
}

#[tokio::test]
async fn another_process_with_this_identity_is_found_and_hears_of_it() {
    let process = ProcessId::draw();
    let mut a = start_with(SwarmConfig { process, ..config(1, SECRET) }).await;
    let there = [a.address("/tcp/")];
    let [own, other] = [1, 2].map(|n| Identity::from_seed(&[n; 32]));
    assert_eq!(find_twin(&own, process, &there).await, None, "that is itself");
    assert_eq!(find_twin(&other, ProcessId::draw(), &there).await, None, "that is somebody else");
    assert_eq!(find_twin(&own, ProcessId::draw(), &["/ip4/127.0.0.1/tcp/1".parse().unwrap()]).await, None);
    assert!(!std::iter::from_fn(|| a.events.try_recv().ok()).any(|event| event == SwarmEvent::Twin));
    assert_eq!(find_twin(&own, ProcessId::draw(), &there).await, Some(dialer::without_peer(there[0].clone())));
    a.until(|event| *event == SwarmEvent::Twin).await;
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let refusal = start(SwarmConfig { listen, ..config(1, SECRET) }, carrier::channel().1, CancellationToken::new())
        .await
        .err()
        .unwrap();
    assert!(matches!(refusal, SwarmError::InUse { protocol: "TCP", .. }));
    assert!(refusal.to_string().contains(&listen.to_string()), "{refusal}");

    let peer = member(2).await;
    let listen = tcp_address(&peer.address("/tcp/"));
    let refusal = start(SwarmConfig { listen, ..config(3, SECRET) }, carrier::channel().1, CancellationToken::new())
        .await
        .err()
        .unwrap();
    assert!(matches!(refusal, SwarmError::InUse { protocol: "TCP", .. }), "{refusal}");
}

#[tokio::test]
async fn a_socket_of_another_program_with_the_listening_ports_number_keeps_nobody_from_dialling() {
    let (mut a, mut b) = (member(1).await, member(2).await);
    let port = tcp_address(&b.address("/tcp/")).port();
    // As the kernel gives it to a connection from another of this host's addresses.
    let _other = std::net::TcpListener::bind(("127.1.2.3", port)).unwrap();
    meet(&mut b, &mut a, "/tcp/").await;
}
