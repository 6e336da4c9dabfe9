//! Each cause from what shows it, and which of several is said first.

use super::*;
use crate::{
    control_plane::swarm::{FarEndSight, LookOutcome},
    reachability::observation::{OwnAddresses, PeerPath, Port, RunningPeer},
};
use tsnode_protocol::PeerId;

const HERE: [u8; 4] = [192, 168, 1, 2];

fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// A member at 192.0.2.n that answers everywhere, and sees this host come from 198.51.100.1, port 4000.
fn member(n: u8) -> Called {
    let at = |port| ([192, 0, 2, n], port).into();
    let sight = FarEndSight {
        version: codec::VERSION,
        is_same_swarm: true,
        seen: Some(([198, 51, 100, 1], 4000).into()),
        clock_ahead: 40,
    };
    let peer = PeerSeen { peer: Some(id(n)), sight: Some(sight), large: Some(true), proof: Proof::Member };
    let port = |number, kind, seen| Port { at: at(number), kind, packets: Packets::Answered, seen };
    let ports = vec![
        port(7446, PortKind::Tcp, Some(LookOutcome::Peer(peer.clone()))),
        port(7446, PortKind::Udp, Some(LookOutcome::Peer(peer))),
        port(7447, PortKind::Data, None),
    ];
    Called { id: Some(id(n)), name: format!("p{n}"), is_alive: false, ports }
}

fn observed(peers: Vec<Called>) -> Observations {
    Observations { own: OwnAddresses { v4: Some(HERE.into()), v6: None }, peers, ..Observations::default() }
}

impl Called {
    fn each(mut self, change: impl Fn(&mut Port)) -> Self {
        self.ports.iter_mut().for_each(change);
        self
    }

    fn each_peer(self, change: impl Fn(&mut PeerSeen)) -> Self {
        self.each(|port| {
            if let Some(LookOutcome::Peer(peer)) = &mut port.seen {
                change(peer);
            }
        })
    }

    fn each_sight(self, change: impl Fn(&mut FarEndSight)) -> Self {
        self.each_peer(|peer| peer.sight.iter_mut().for_each(&change))
    }

    /// Ports that fit answer so, and nobody is met there.
    fn stopped(self, packets: &Packets, fits: impl Fn(&Port) -> bool) -> Self {
        self.each(|port| {
            if fits(port) {
                port.packets = packets.clone();
                port.seen = port.seen.take().map(|_| LookOutcome::Unanswered("no answer in time".into()));
            }
        })
    }
}

fn udp(port: &Port) -> bool {
    port.kind.is_udp()
}

/// Causes that are more than worth knowing.
fn failing(seen: &Observations) -> Vec<Cause> {
    let found = conclude(seen);
    for finding in found.iter().filter(|finding| finding.state != Severity::Ok) {
        assert!(!finding.evidence.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
    }
    found.iter().filter(|finding| finding.state == Severity::Fail).filter_map(|finding| finding.cause).collect()
}

fn all(seen: &Observations) -> Vec<Cause> {
    conclude(seen).iter().filter_map(|finding| finding.cause).collect()
}

fn running(is_reachable: bool, way: PathVia) -> RunningPeer {
    let path = PeerPath { name: "far".into(), is_reachable: false, way };
    RunningPeer { is_reachable, others: 2, port: 7446, met_strangers: false, paths: vec![path] }
}

#[test]
fn nothing_is_wrong_where_all_answer() {
    let seen = observed(vec![member(1), member(2)]);
    assert_eq!(failing(&seen), []);
    assert_eq!(all(&seen), [Cause::ConeNat]);
    let open = observed(vec![member(1).each_sight(|sight| sight.seen = Some((HERE, 4000).into()))]);
    assert_eq!(all(&open), [], "no address translation is no cause");
}

#[test]
fn the_kind_of_translation_is_told_by_two() {
    let other = |n, port| member(n).each_sight(move |sight| sight.seen = Some(([198, 51, 100, 1], port).into()));
    assert_eq!(all(&observed(vec![other(1, 4000)])), [Cause::UnknownNat]);
    assert_eq!(all(&observed(vec![other(1, 4000), other(2, 4000)])), [Cause::ConeNat]);
    assert_eq!(all(&observed(vec![other(1, 4000), other(2, 4001)])), [Cause::SymmetricNat]);
    let via = PathVia::Relayed { via: "gateway".into() };
    let seen = Observations { running: Some(running(false, via)), ..observed(vec![other(1, 4000), other(2, 4001)]) };
    let found = conclude(&seen);
    let relayed = found.iter().find(|finding| finding.cause == Some(Cause::Relayed)).unwrap();
    assert!(relayed.evidence.contains("symmetric") && relayed.said.contains("over gateway"), "{relayed:?}");
    assert_eq!(all(&seen), [Cause::SymmetricNat, Cause::NotForwarded, Cause::Relayed]);
}

#[test]
fn udp_is_told_from_a_firewall() {
    let silent = |n| member(n).stopped(&Packets::Silent, udp);
    assert_eq!(failing(&observed(vec![silent(1)])), [Cause::UdpBlocked]);
    assert_eq!(failing(&observed(vec![silent(1), silent(2)])), [Cause::UdpBlocked]);
    assert_eq!(failing(&observed(vec![silent(1), member(2)])), [Cause::PeerFirewall; 2], "only there");
    let refused = member(1).stopped(&Packets::Refused, |port| port.kind == PortKind::Udp);
    let found = conclude(&observed(vec![refused]));
    let wall = found.iter().find(|finding| finding.cause == Some(Cause::PeerFirewall)).unwrap();
    assert!(wall.said.contains("refuses UDP port 7446"), "{wall:?}");
    let dropped = member(1).stopped(&Packets::Silent, |port| port.kind == PortKind::Data);
    assert_eq!(failing(&observed(vec![dropped])), [Cause::PeerFirewall]);
    let tcp = member(1).stopped(&Packets::Silent, |port| port.kind == PortKind::Tcp);
    assert_eq!(failing(&observed(vec![tcp])), [Cause::PeerFirewall]);
}

#[test]
fn a_peer_that_lives_and_lets_nothing_in_has_a_firewall() {
    let mut walled = member(2).stopped(&Packets::Silent, |_| true);
    assert_eq!(failing(&observed(vec![member(1), walled.clone()])), [], "it may be off");
    walled.is_alive = true;
    assert_eq!(failing(&observed(vec![member(1), walled])), [Cause::PeerFirewall]);
}

#[test]
fn who_is_not_called_back_has_a_firewall_unless_it_is_translated() {
    let own = |sight: &mut FarEndSight| sight.seen = Some((HERE, 4000).into());
    let walled =
        Observations { running: Some(running(false, PathVia::Direct)), ..observed(vec![member(1).each_sight(own)]) };
    assert_eq!(failing(&walled), [Cause::OwnFirewall]);
    let translated = Observations { running: walled.running.clone(), ..observed(vec![member(1), member(2)]) };
    assert_eq!(all(&translated), [Cause::ConeNat, Cause::NotForwarded]);
    let open = Observations { running: Some(running(true, PathVia::Direct)), ..walled };
    assert_eq!(failing(&open), []);
}

#[test]
fn large_packets_that_are_lost_are_no_blocked_udp() {
    let hole = member(1).each_peer(|peer| peer.large = Some(false)).stopped(&Packets::Silent, udp);
    assert_eq!(failing(&observed(vec![hole])), [Cause::MtuBlackHole]);
}

#[test]
fn a_clock_is_wrong_by_most_others() {
    let clock = |n, ahead| member(n).each_sight(move |sight| sight.clock_ahead = ahead);
    assert_eq!(failing(&observed(vec![clock(1, -7_200_000)])), [Cause::WrongClock]);
    let found = conclude(&observed(vec![clock(1, 7_200_000), clock(2, 7_200_500), clock(3, 0)]));
    let wrong = found.iter().find(|finding| finding.cause == Some(Cause::WrongClock)).unwrap();
    assert!(wrong.said.starts_with("this host's") && wrong.evidence.contains("120 min ahead"), "{wrong:?}");
    let found = conclude(&observed(vec![clock(1, 100), clock(2, 0), clock(3, -90_000)]));
    let wrong = found.iter().find(|finding| finding.cause == Some(Cause::WrongClock)).unwrap();
    assert!(wrong.state == Severity::Note && wrong.said.contains("p3"), "{wrong:?}");
}

#[test]
fn who_does_not_belong_here_is_told_why() {
    let proof = |proof| member(1).each_peer(move |peer| peer.proof = proof);
    assert_eq!(failing(&observed(vec![proof(Proof::Stranger)])), [Cause::WrongSecret]);
    assert_eq!(failing(&observed(vec![proof(Proof::Unknown)])), []);
    let other = proof(Proof::Stranger).each_sight(|sight| sight.is_same_swarm = false);
    assert_eq!(failing(&observed(vec![other])), [Cause::OtherSwarm]);
    let version =
        |theirs| member(1).each_peer(move |peer| (peer.sight, peer.proof) = (None, Proof::OtherVersion(theirs)));
    let newer = conclude(&observed(vec![version(codec::VERSION + 1)]));
    let newer = newer.iter().find(|finding| finding.cause == Some(Cause::OtherVersion)).unwrap();
    assert!(newer.remedy.contains("this host's"), "{newer:?}");
    assert_eq!(failing(&observed(vec![version(codec::VERSION - 1)])), [Cause::OtherVersion]);
    let elsewhere = member(1).each_peer(|peer| peer.peer = Some(id(9)));
    assert_eq!(failing(&observed(vec![elsewhere])), [Cause::OtherPeer]);
    // A peer that runs and knows its secret alone says that it was turned away.
    let alone = RunningPeer { met_strangers: true, ..RunningPeer::default() };
    let seen = Observations { running: Some(alone), ..observed(vec![proof(Proof::Unknown)]) };
    assert_eq!(failing(&seen), [Cause::WrongSecret]);
}

#[test]
fn what_is_fundamental_is_said_first_and_what_follows_is_not() {
    let off = |packets: &Packets| member(1).stopped(packets, |_| true);
    assert_eq!(failing(&observed(vec![off(&Packets::Silent)])), [Cause::NobodyReached]);
    let nowhere = Observations { own: OwnAddresses::default(), ..observed(vec![off(&Packets::NoRoute)]) };
    assert_eq!(failing(&nowhere), [Cause::NoNetwork]);
    let v6 = off(&Packets::NoRoute).each(|port| port.at = "[2001:db8::1]:7446".parse().unwrap());
    assert_eq!(failing(&observed(vec![v6])), [Cause::NoIpv6]);
    let twin = Observations { twin: Some("at /ip4/192.0.2.9".into()), ..nowhere };
    assert_eq!(failing(&twin), [Cause::SharedIdentity, Cause::NoNetwork]);
    let clock = member(1).each_sight(|sight| sight.clock_ahead = 86_400_000);
    let late = Observations { expired: Some("1 day".into()), ..observed(vec![clock]) };
    assert_eq!(failing(&late), [Cause::WrongClock, Cause::InviteExpired], "the clock may be why");
}

#[test]
fn without_addresses_there_is_nothing_to_call() {
    assert_eq!(all(&observed(vec![])), [Cause::NoAddress]);
    let named = Observations { unusable: vec!["/dns4/attic.example/tcp/7446".into()], ..observed(vec![]) };
    assert_eq!(failing(&named), [Cause::UnusableAddress]);
    let one_of_two = Observations { unusable: named.unusable, ..observed(vec![member(1), member(2)]) };
    assert_eq!(all(&one_of_two), [Cause::UnusableAddress, Cause::ConeNat]);
}

#[test]
fn ways_to_peers_are_named() {
    let said = |way| {
        let seen = Observations { running: Some(running(false, way)), ..observed(vec![member(1), member(2)]) };
        conclude(&seen).into_iter().find(|finding| finding.what == "path").unwrap()
    };
    assert_eq!(said(PathVia::Direct).said, "far: direct");
    assert_eq!(said(PathVia::HolePunched).said, "far: hole-punched");
    let relayed = said(PathVia::Relayed { via: "gateway".into() });
    assert!(relayed.state == Severity::Note && relayed.remedy.contains("tsnode doctor there"), "{relayed:?}");
}
