//! What gets through to others' ports, and what stops the rest: sizes, UDP, firewalls.

use super::{listed, of_kind};
use crate::reachability::{
    finding::{Cause, Finding, Severity},
    observation::{Called, Observations, Packets, Port},
};

pub(super) fn conclude(seen: &Observations) -> Vec<Finding> {
    let mut found = mtu(seen);
    let is_small = found.iter().any(|finding| finding.state != Severity::Ok);
    let blocked = if is_small { None } else { udp_blocked(seen) };
    let is_blocked = blocked.is_some();
    found.extend(blocked);
    let walls = seen.peers.iter().flat_map(|called| walls(called, is_small || is_blocked));
    let mut walls: Vec<Finding> = walls.collect();
    // Of a peer with several addresses once.
    walls.sort_by(|a, b| a.said.cmp(&b.said));
    walls.dedup_by(|a, b| a.said == b.said);
    if walls.is_empty() && !is_small && !is_blocked && seen.peers.iter().any(|called| answers(called, true)) {
        found.push(Finding::fine("udp", "gets through, as TCP does"));
    }
    found.extend(walls);
    found
}

fn answers(called: &Called, is_udp: bool) -> bool {
    of_kind(called, is_udp).any(Port::answers)
}

/// Whether many bytes got through where few did.
fn mtu(seen: &Observations) -> Vec<Finding> {
    let large = |port: &Port| port.peer().and_then(|peer| peer.large);
    let ports = || seen.peers.iter().flat_map(|called| &called.ports);
    let lost: Vec<&Port> = ports().filter(|port| large(port) == Some(false)).collect();
    if lost.is_empty() {
        let passed = ports().any(|port| large(port) == Some(true));
        return passed.then(|| Finding::fine("mtu", "large packets get through")).into_iter().collect();
    }
    let names = listed(lost.iter().map(|port| port.at.to_string()));
    vec![
        Finding::of("mtu", Severity::Fail, Cause::MtuBlackHole, "large packets are lost without a word")
            .shown_by(format!("{names} answers small messages, and none that takes several packets"))
            .mended_by(
                "find the largest that passes (ping -M do -s 1400, then less), and set the interface to it (ip link set dev eth0 \
                 mtu 1280), or let ICMP \"fragmentation needed\" through on the way; a VPN or PPPoE is the usual cause",
            ),
    ]
}

/// TCP gets through to somebody, and UDP to nobody.
fn udp_blocked(seen: &Observations) -> Option<Finding> {
    let by_tcp: Vec<&Called> = seen.peers.iter().filter(|called| answers(called, false)).collect();
    let tried = |called: &&&Called| of_kind(called, true).next().is_some();
    let silent =
        |called: &&Called| of_kind(called, true).all(|port| port.packets == Packets::Silent && !port.answers());
    let tried: Vec<&Called> = by_tcp.iter().filter(tried).copied().collect();
    let none = !seen.peers.iter().any(|called| answers(called, true));
    if tried.is_empty() || !none || !tried.iter().all(silent) {
        return None;
    }
    let ports = tried.iter().flat_map(|called| of_kind(called, true)).map(ToString::to_string);
    let place = if tried.len() > 1 { "by this host's network" } else { "on the way, here or there" };
    Some(
        Finding::of("udp", Severity::Fail, Cause::UdpBlocked, format!("UDP is blocked {place}"))
            .shown_by(format!("TCP gets through; {}", listed(ports)))
            .mended_by(
                "let UDP out to the ports of --listen and the one after it, and its answers in; until then all goes over TCP, \
                 slower, and links are relayed",
            ),
    )
}

/// Ports of a peer that are closed where others of it are open, or all of one that is known to be alive.
fn walls(called: &Called, is_udp_known: bool) -> Vec<Finding> {
    let (tcp, udp) = (answers(called, false), answers(called, true));
    if !tcp && !udp {
        return closed(called).into_iter().collect();
    }
    let stopped = |port: &&Port| {
        let is_stopped = matches!(port.packets, Packets::Refused | Packets::Silent) && !port.answers();
        // What is so of all UDP has been said.
        is_stopped && !(port.kind.is_udp() && is_udp_known)
    };
    called.ports.iter().filter(stopped).map(|port| wall(called, port)).collect()
}

fn wall(called: &Called, port: &Port) -> Finding {
    let (kind, number) = (if port.kind.is_udp() { "UDP" } else { "TCP" }, port.at.port());
    let (how, next) = match port.packets {
        Packets::Refused => ("refuses", "a firewall there rejects it, or nothing listens"),
        _ => ("drops", "a firewall there, or on the way, drops it"),
    };
    let open = listed(called.ports.iter().filter(|port| port.answers()).map(ToString::to_string));
    Finding::of(
        "firewall",
        Severity::Fail,
        Cause::PeerFirewall,
        format!("a firewall at {} {how} {kind} port {number}", called.name),
    )
    .shown_by(format!("{port}; {open}"))
    .mended_by(format!("{next}: allow {kind} to port {number} of {}", port.at.ip()))
}

/// Nothing answers. Of one that the swarm hears of it is known that it runs.
fn closed(called: &Called) -> Option<Finding> {
    let ports = listed(called.ports.iter().map(ToString::to_string));
    if !called.is_alive {
        let said = format!("{} does not answer", called.name);
        let found = Finding::of("members", Severity::Note, Cause::NobodyReached, said).shown_by(ports);
        return Some(found.mended_by("it may be off, or elsewhere by now"));
    }
    let refused = called.ports.iter().any(|port| port.packets == Packets::Refused);
    let how = if refused { "refuses" } else { "drops" };
    let numbers = listed(
        called
            .ports
            .iter()
            .map(|port| port.at.port())
            .collect::<std::collections::BTreeSet<_>>()
            .iter()
            .map(ToString::to_string),
    );
    Some(
        Finding::of(
            "firewall",
            Severity::Fail,
            Cause::PeerFirewall,
            format!("a firewall at {} {how} all that comes in", called.name),
        )
        .shown_by(format!("the swarm hears of it, by calls that it makes itself; {ports}"))
        .mended_by(format!("allow TCP and UDP to ports {numbers} there")),
    )
}
