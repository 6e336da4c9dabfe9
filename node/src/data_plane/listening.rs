//! Where a peer listens, and where others find it: the sockets that `--listen` stands for, and which of its addresses are of use to whom.

use libp2p::{Multiaddr, multiaddr::Protocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use tsnode_protocol::limits;

/// Who can use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressUse {
    /// Others: of which of them a network decides.
    Others,
    /// Processes of this host.
    ThisHost,
    /// Nobody: it leads nowhere, or only by a network GPU that it cannot name.
    Nobody,
}

/// The address to listen on: that of IPv4 where all of both kinds are meant and this host has no IPv6.
#[must_use]
pub fn available(listen: SocketAddr) -> SocketAddr {
    available_where(listen, UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok())
}

fn available_where(listen: SocketAddr, has_ipv6: bool) -> SocketAddr {
    if listen.ip() == Ipv6Addr::UNSPECIFIED && !has_ipv6 {
        return SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), listen.port());
    }
    listen
}

/// The addresses that sockets of one kind each must listen on: `[::]` stands for IPv6 and IPv4.
#[must_use]
pub fn of_each_kind(listen: SocketAddr) -> Vec<SocketAddr> {
    let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), listen.port());
    if listen.ip() == Ipv6Addr::UNSPECIFIED { vec![listen, ipv4] } else { vec![listen] }
}

/// The address as it is written everywhere: sockets of both kinds say IPv4's as IPv6's.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Who can use this.
#[must_use]
pub fn is_for(address: &Multiaddr) -> AddressUse {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip_is_for(ip.into()),
        Some(Protocol::Ip6(ip)) => ip_is_for(ip.into()),
        Some(_) => AddressUse::Others,
        None => AddressUse::Nobody,
    }
}

fn ip_is_for(ip: IpAddr) -> AddressUse {
    // An address of one cable is no address without the GPU's name, which is another one at every host.
    let of_one_cable = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    if ip.is_unspecified() || ip.is_multicast() || of_one_cable {
        AddressUse::Nobody
    } else if ip.to_canonical().is_loopback() {
        AddressUse::ThisHost
    } else {
        AddressUse::Others
    }
}

/// Whether there is something here that others could use.
#[must_use]
pub fn is_found(addresses: &[String]) -> bool {
    addresses.iter().filter_map(|a| a.parse().ok()).any(|a: Multiaddr| is_for(&a) == AddressUse::Others)
}

/// Those that are given to others, at most [`limits::ADDRESSES`]: this host's own where there is nothing else. IPv4's and IPv6's take
/// turns, so that neither kind has none where there are too many.
#[must_use]
pub fn offered<'a>(addresses: impl IntoIterator<Item = &'a Multiaddr>) -> Vec<&'a Multiaddr> {
    let mut all: Vec<(AddressUse, &Multiaddr)> = addresses.into_iter().map(|a| (is_for(a), a)).collect();
    let best = all.iter().map(|(used, _)| *used).min();
    all.retain(|(used, _)| Some(*used) == best && *used != AddressUse::Nobody);
    let kind = |address: &Multiaddr| address.iter().next().map(|first| first.tag());
    let mut seen = std::collections::BTreeMap::new();
    let mut ordered: Vec<(usize, &Multiaddr)> = Vec::new();
    for (_, address) in all {
        let nth = seen.entry(kind(address)).or_insert(0_usize);
        ordered.push((*nth, address));
        *nth += 1;
    }
    ordered.sort_by_key(|(nth, _)| *nth);
    ordered.into_iter().map(|(_, address)| address).take(limits::ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn offered_of(texts: &[&str]) -> Vec<String> {
        offered(&all(texts)).into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_addresses_are_those_of_both_kinds_and_of_one_where_the_host_has_one() {
        let [both, ipv4, one] = ["[::]:7447", "0.0.0.0:7447", "[2001:db8::1]:7447"].map(|a| a.parse().unwrap());
        assert_eq!(of_each_kind(both), [both, ipv4]);
        assert_eq!(of_each_kind(ipv4), [ipv4]);
        assert_eq!(of_each_kind(one), [one]);
        assert_eq!([true, false].map(|has| available_where(both, has)), [both, ipv4]);
        assert_eq!([ipv4, one].map(|a| available_where(a, false)), [ipv4, one], "what is named is not changed");
    }

    #[test]
    fn what_others_can_use_is_offered_and_this_hosts_own_only_where_there_is_nothing_else() {
        let own = ["/ip4/127.0.0.1/tcp/7", "/ip6/::1/udp/7/quic-v1"];
        let others = ["/ip4/192.0.2.1/tcp/7", "/ip6/2001:db8::1/tcp/7"];
        assert_eq!(offered_of(&[&own[..], &["/ip6/fe80::1/tcp/7"], &others].concat()), others);
        assert_eq!(offered_of(&[&own[..], &others[1..]].concat()), others[1..]);
        assert_eq!(offered_of(&[&own[..], &["/ip6/fe80::1/tcp/7"]].concat()), own);
        assert_eq!(offered_of(&["/ip6/fe80::1/tcp/7", "/ip4/0.0.0.0/tcp/7"]), [""; 0]);
        assert!(is_found(&others.map(String::from)) && !is_found(&own.map(String::from)) && !is_found(&[]));
    }

    #[test]
    fn many_of_one_kind_leave_room_for_the_other() {
        let ipv4: Vec<String> = (0..2 * limits::ADDRESSES).map(|n| format!("/ip4/192.0.2.{n}/tcp/7")).collect();
        let both: Vec<&str> = ipv4.iter().map(String::as_str).chain(["/ip6/2001:db8::1/tcp/7"]).collect();
        let offered = offered_of(&both);
        assert_eq!(offered.len(), limits::ADDRESSES);
        assert_eq!(offered[1], "/ip6/2001:db8::1/tcp/7");
    }
}
