//! Crowds at the data plane's port that prove nothing, and a member that comes meanwhile.

use super::*;
use std::net::Ipv4Addr;
use tokio::net::UdpSocket;

/// The first packet of a call to `peer`, as anybody can make it.
fn first_packet(peer: PeerId, to: SocketAddr) -> Vec<u8> {
    let tls = tls::client(&Identity::from_seed(&crate::random_bytes()), peer).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(tls));
    let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, true, None);
    let (_, mut connection) = endpoint.connect(Instant::now(), config, to, "tsnode").unwrap();
    let mut packet = Vec::new();
    let sent = connection.poll_transmit(Instant::now(), 1, &mut packet).unwrap();
    packet.truncate(sent.size);
    packet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_packets_of_calls_that_never_come_do_not_keep_a_member_out() {
    let (a, mut b) = (end(1, None), end(1, None));
    let (peer, to, doors) = (b.id, b.address, b.links.inner.doors.clone());
    let flood = crate::tasks::spawn("test", async move {
        for n in (0..u16::MAX).cycle() {
            let [high, low] = n.to_be_bytes();
            let from = SocketAddr::from((Ipv4Addr::new(127, 1, high, low.clamp(1, 250)), 0));
            let socket = UdpSocket::bind(from).await.unwrap();
            socket.send_to(&first_packet(peer, to), to).await.unwrap();
            if n > 300 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let pressed = async {
        while !doors.data.is_pressed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(4 * PATIENCE, pressed).await.expect("there is a crowd");
    timeout(PATIENCE, pair(&a, &mut b)).await.expect("there is a place for it");
    flood.abort();
}
