//! Crowds at the door that prove nothing, and those who come meanwhile.

use super::*;
use crate::store::invites;
use libp2p::identity::Keypair;
use std::net::Ipv4Addr;
use std::time::Instant;
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

/// Who comes beside a crowd is in by then.
const IN: Duration = Duration::from_secs(5);

/// An address of this host for each of them.
fn address(n: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(127, 1, (n >> 8) as u8, 1 + n as u8 % 250), 0))
}

fn udp_address(address: &Multiaddr) -> SocketAddr {
    let port = address.iter().find_map(|part| if let Protocol::Udp(port) = part { Some(port) } else { None });
    SocketAddr::from(([127, 0, 0, 1], port.unwrap()))
}

#[tokio::test]
async fn slow_connections_do_not_keep_a_newcomer_out() {
    for addresses in [1, 50] {
        let mut a = member(1).await;
        let to = tcp_address(&a.address("/tcp/"));
        let mut crowd = Vec::new();
        for n in 0..250 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(address(n % addresses)).unwrap();
            crowd.push(socket.connect(to).await.unwrap());
        }
        let mut b = member(2).await;
        timeout(IN, meet(&mut b, &mut a, "/tcp/")).await.expect("there is a place for it");
    }
}

/// The first packet of a call, as anybody can make it.
fn first_packet(to: SocketAddr) -> Vec<u8> {
    let tls = libp2p_tls::make_client_config(&Keypair::generate_ed25519(), None).unwrap();
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let config = quinn::ClientConfig::new(std::sync::Arc::new(tls));
    let mut endpoint = quinn_proto::Endpoint::new(Default::default(), None, true, None);
    let now = Instant::now();
    let (_, mut connection) = endpoint.connect(now, config, to, "l").unwrap();
    let mut packet = Vec::new();
    let sent = connection.poll_transmit(now, 1, &mut packet).unwrap();
    packet.truncate(sent.size);
    packet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_packets_of_calls_that_never_come_do_not_keep_a_newcomer_out() {
    let mut a = member(1).await;
    let to = udp_address(&a.address("/quic-v1/"));
    let flood = crate::tasks::spawn("test", async move {
        for n in 0.. {
            // Whoever forges a sender's address does not read what is sent there.
            let socket = tokio::net::UdpSocket::bind(address(n % 12_500)).await.unwrap();
            socket.send_to(&first_packet(to), to).await.unwrap();
            if n > 300 {
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
    sleep(Duration::from_secs(1)).await;
    let mut b = member(2).await;
    timeout(IN, meet(&mut b, &mut a, "/quic-v1/")).await.expect("there is a place for it");
    flood.abort();
}

#[tokio::test]
async fn who_comes_with_an_invite_tries_again_until_a_member_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let made = invites::make(folder.path(), invites::LASTS, None).unwrap();
    let ticket = made.ticket().unwrap();
    let listen = { TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let addresses = vec![format!("/ip4/127.0.0.1/tcp/{}", listen.port())];
    let invite = tsnode_protocol::Invite { swarm: SWARM, ticket: Some(ticket), addresses };
    let newcomer = Identity::from_seed(&[9; 32]);
    let redeemed = crate::tasks::spawn("test", async move { redeem(&newcomer, &invite, &ticket).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!redeemed.is_finished(), "it gave up");
    let invites = Invites::new(folder.path(), SWARM, Some(SECRET));
    let _a = start_with(SwarmConfig { listen, invites, ..config(1, SECRET) }).await;
    assert_eq!(timeout(PATIENCE, redeemed).await.unwrap().unwrap(), Ok(SECRET));
}

#[tokio::test]
async fn an_invite_that_is_refused_is_not_tried_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let ticket = invites::make(folder.path(), invites::LASTS, None).unwrap().ticket().unwrap();
    // One that knows nothing of it.
    let a = member(1).await;
    let addresses = vec![a.address("/tcp/").to_string()];
    let invite = tsnode_protocol::Invite { swarm: SWARM, ticket: Some(ticket), addresses };
    let newcomer = Identity::from_seed(&[9; 32]);
    let refused = timeout(IN, redeem(&newcomer, &invite, &ticket)).await;
    assert_eq!(refused.unwrap(), Err(RedeemError::Refused));
}
