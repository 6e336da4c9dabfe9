//! A control connection that broke off: where no liveness connection tells yet whether the peer's process has ended, its system is asked.

use super::Driver;
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::net::{IpAddr, SocketAddr};
use tsnode_protocol::PeerId;

impl Driver {
    /// Of the peer's own addresses those at the host that its connection came from, or went to: another network has other hosts at them.
    pub(super) fn broke_off(&self, peer: PeerId, host: IpAddr) {
        let Some((_, member)) = self.control.members().find(|(id, _)| **id == peer) else { return };
        let Some(advert) = member.advert.as_ref() else { return };
        let data_plane = advert.data_addresses.iter().copied().find(|at| at.ip() == host);
        let control = advert.addresses.iter().filter_map(|text| tcp(text)).find(|at| at.ip() == host);
        if let Some((data_plane, control)) = data_plane.zip(control) {
            self.data_plane.ask_system(peer, data_plane, control);
        }
    }
}

/// Where a control plane listens for TCP, unless that is its relay's address.
fn tcp(address: &str) -> Option<SocketAddr> {
    let address: Multiaddr = address.parse().ok()?;
    if address.iter().any(|part| part == Protocol::P2pCircuit) {
        return None;
    }
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => IpAddr::V4(ip),
        Protocol::Ip6(ip) => IpAddr::V6(ip),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_peer_itself_listens_at_for_tcp_is_asked() {
        let at = |text: &str| tcp(text).map(|at| at.to_string());
        assert_eq!(
            at("/ip4/192.0.2.1/tcp/7446/p2p/12D3KooWBRUpVG7Dp32Mrq9snSbsEV3Xzj974AEETGWVRXLZ6zfh").unwrap(),
            "192.0.2.1:7446"
        );
        assert_eq!(at("/ip6/2001:db8::1/tcp/9").unwrap(), "[2001:db8::1]:9");
        let relayed = "/ip4/192.0.2.1/tcp/9/p2p/12D3KooWBRUpVG7Dp32Mrq9snSbsEV3Xzj974AEETGWVRXLZ6zfh/p2p-circuit";
        for other in ["/ip4/192.0.2.1/udp/9/quic-v1", "/dns4/a.example/tcp/9", relayed, "no address", ""] {
            assert_eq!(at(other), None, "{other}");
        }
    }
}
