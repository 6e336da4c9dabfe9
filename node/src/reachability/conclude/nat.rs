//! What others see of this host: whether its addresses are translated, how, and whether anybody can call it.

use super::listed;
use crate::reachability::{
    finding::{Cause, Finding, Severity},
    observation::{Observations, PortKind},
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

/// Calls over UDP by one socket: where to, and where they were seen to come from.
fn seen_by(seen: &Observations, kind: PortKind) -> Vec<(SocketAddr, SocketAddr)> {
    let ports = seen.peers.iter().flat_map(|called| &called.ports).filter(|port| port.kind == kind);
    let calls = ports.filter(|port| port.at.is_ipv4()).filter_map(|port| Some((port.at, port.sight()?.seen?)));
    calls.filter(|(to, from)| !to.ip().is_loopback() && !from.ip().is_loopback()).collect()
}

/// Where somebody sees this host come from, if it is not where it is.
fn translated(seen: &Observations) -> Option<IpAddr> {
    let calls = [PortKind::Udp, PortKind::Tcp].map(|kind| seen_by(seen, kind)).concat();
    calls.iter().map(|(_, from)| from.ip()).find(|ip| !seen.own.has(*ip))
}

/// The kind of translation.
pub(super) fn conclude(seen: &Observations) -> Vec<Finding> {
    let calls = seen_by(seen, PortKind::Udp);
    let Some(outside) = translated(seen) else {
        let known = !calls.is_empty() || !seen_by(seen, PortKind::Tcp).is_empty();
        return known.then(|| Finding::fine("nat", "none: others see this host's own address")).into_iter().collect();
    };
    let own = seen.own.v4.map_or_else(|| "this host".into(), |ip| ip.to_string());
    let sources: BTreeSet<SocketAddr> = calls.iter().map(|(_, from)| *from).collect();
    let destinations: BTreeSet<SocketAddr> = calls.iter().map(|(to, _)| *to).collect();
    let shown = listed(calls.iter().map(|(to, from)| format!("{to} sees {from}")));
    let found = if sources.len() > 1 {
        Finding::of("nat", Severity::Note, Cause::SymmetricNat, "symmetric: every destination sees another port")
            .shown_by(format!("one socket of {own}: {shown}"))
            .mended_by(
                "no holes can be punched to others behind one: such links are relayed. Forward TCP and UDP of --listen and the two \
                 ports after it at the router, or use IPv6",
            )
    } else if destinations.len() > 1 {
        Finding::of(
            "nat",
            Severity::Ok,
            Cause::ConeNat,
            "cone: all destinations see one port, and holes can be punched",
        )
        .shown_by(format!("one socket of {own}: {shown}"))
    } else {
        let said = format!("{own} is seen as {outside}; of which kind, two addresses of members tell");
        Finding::of("nat", Severity::Ok, Cause::UnknownNat, said).shown_by(shown)
    };
    vec![found]
}

/// Whether others can call this peer, as they have told it.
pub(super) fn inbound(seen: &Observations) -> Vec<Finding> {
    let Some(running) = seen.running.as_ref().filter(|running| running.others > 0) else { return vec![] };
    if running.is_reachable {
        return vec![Finding::fine("inbound", "nobody has said that this peer cannot be called")];
    }
    let port = running.port;
    let ports = match port {
        0 => "that of --listen and the two after it".to_owned(),
        port => format!("TCP {port}, UDP {port} and {}, TCP {}", port.saturating_add(1), port.saturating_add(2)),
    };
    let tried = "others called back at this peer's ports and did not get through";
    let found = match translated(seen) {
        Some(outside) => Finding::of(
            "inbound",
            Severity::Note,
            Cause::NotForwarded,
            "this peer cannot be called from outside: no port is forwarded",
        )
        .shown_by(format!("{tried}; it is behind {outside}"))
        .mended_by(format!(
            "forward these at the router to this host: {ports}; until then others come over relays or by holes"
        )),
        None => {
            Finding::of("inbound", Severity::Fail, Cause::OwnFirewall, "a firewall drops what comes in to this peer")
                .shown_by(format!("{tried}; no address translation is in between"))
                .mended_by(format!("allow these in, at this host (nft list ruleset) and in front of it: {ports}"))
        }
    };
    vec![found]
}
