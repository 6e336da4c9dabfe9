//! What follows from what was observed. Pure: the same observations are the same findings.

mod nat;
mod ports;

use super::{
    finding::{Cause, Finding, Severity},
    observation::{Called, Observations, Packets, PathVia, PortKind},
};
use crate::control_plane::swarm::{PeerSeen, Proof};
use std::time::Duration;
use tsnode_protocol::codec;

/// Clocks that are closer than this do no harm: plans count in epochs of ten minutes, invites in hours.
const CLOCKS: Duration = Duration::from_secs(30);
/// Addresses that a line of evidence names.
const NAMED: usize = 6;

/// All that was looked at, the most fundamental first.
#[must_use]
pub fn conclude(seen: &Observations) -> Vec<Finding> {
    let mut found = identity(seen);
    let network = network(seen);
    let is_cut_off = network.iter().any(|finding| finding.state == Severity::Fail);
    found.extend(network);
    if is_cut_off {
        return found;
    }
    found.extend(clocks(seen));
    found.extend(invite(seen));
    let members = members(seen);
    let is_alone = members.iter().any(|finding| finding.state == Severity::Fail);
    found.extend(members);
    if is_alone {
        return found;
    }
    found.extend(seen.peers.iter().flat_map(|called| belonging(seen, called)));
    let ports = ports::conclude(seen);
    let nat = nat::conclude(seen);
    let inbound = nat::inbound(seen);
    let why: Vec<Cause> = [&ports, &nat, &inbound].into_iter().flatten().filter_map(|f| f.cause).collect();
    found.extend(ports.into_iter().chain(nat).chain(inbound));
    found.extend(paths(seen, &why));
    found
}

fn identity(seen: &Observations) -> Vec<Finding> {
    let twin = |at: &String| {
        Finding::of("identity", Severity::Fail, Cause::SharedIdentity, "two peers with one identity")
            .shown_by(format!("another process answers with this peer's key, {at}"))
            .mended_by(
                "stop one of the two. Where this data folder was copied, remove identity.key from the copy: it becomes a peer of \
                 its own",
            )
    };
    seen.twin.iter().map(twin).collect()
}

fn network(seen: &Observations) -> Vec<Finding> {
    let own = seen.own;
    let ports = || seen.peers.iter().flat_map(|called| &called.ports);
    let local = ports().next().is_some() && ports().all(|port| port.at.ip().is_loopback());
    let said = match (own.v4, own.v6) {
        (None, None) if local => return vec![],
        (None, None) => {
            return vec![
                Finding::of("network", Severity::Fail, Cause::NoNetwork, "this host has no address beyond itself")
                    .shown_by("it knows no way to any address of IPv4 or IPv6")
                    .mended_by("connect it to a network (ip address, ip route)"),
            ];
        }
        (Some(v4), None) => format!("IPv4 {v4}; no IPv6"),
        (None, Some(v6)) => format!("IPv6 {v6}; no IPv4"),
        (Some(v4), Some(v6)) => format!("IPv4 {v4}, IPv6 {v6}"),
    };
    let unrouted = ports().filter(|port| port.packets == Packets::NoRoute);
    let all_v6 = ports().next().is_some() && ports().all(|port| port.at.is_ipv6());
    if own.v6.is_none() && all_v6 && unrouted.count() > 0 {
        let found = Finding::of("network", Severity::Fail, Cause::NoIpv6, "no IPv6 here, and members are known by IPv6 alone")
            .shown_by(listed(ports().map(ToString::to_string)))
            .mended_by(
                "give this host IPv6, or have a member that has IPv4 too make the invite (tsnode invite): addresses of both kinds \
                 are in it",
            );
        return vec![found];
    }
    vec![Finding::fine("network", said)]
}

fn invite(seen: &Observations) -> Vec<Finding> {
    let over = |ago: &String| {
        Finding::of("invite", Severity::Fail, Cause::InviteExpired, format!("the invite expired {ago} ago"))
            .shown_by("so it says, by this host's clock")
            .mended_by("ask for a new one (tsnode invite, on a member's machine)")
    };
    seen.expired.iter().map(over).collect()
}

/// Whether there is anybody.
fn members(seen: &Observations) -> Vec<Finding> {
    let others = seen.running.as_ref().map_or(0, |running| running.others);
    let mut found = unusable(seen);
    if seen.peers.is_empty() {
        if others == 0 && found.is_empty() {
            found.push(
                Finding::of("members", Severity::Note, Cause::NoAddress, "no address of a member is known")
                    .shown_by("there is no invite, and no member was met here before")
                    .mended_by(
                        "join with an invite: tsnode join --invite -, or try one: tsnode doctor --invite-file FILE",
                    ),
            );
        }
        return found;
    }
    let (there, absent): (Vec<&Called>, Vec<&Called>) = seen.peers.iter().partition(|called| called.answers());
    if there.is_empty() && others == 0 {
        found.push(nobody(&absent));
        return found;
    }
    let said = format!("{} of {} called answer", there.len(), seen.peers.len());
    found.push(Finding::fine("members", said));
    found
}

fn unusable(seen: &Observations) -> Vec<Finding> {
    if seen.unusable.is_empty() {
        return vec![];
    }
    // Where others answer it is no more than odd.
    let state = if seen.peers.is_empty() { Severity::Fail } else { Severity::Note };
    vec![
        Finding::of("members", state, Cause::UnusableAddress, "an address cannot be called as it is written")
            .shown_by(listed(seen.unusable.iter().cloned()))
            .mended_by(
                "see that a name is written right and that this host's resolver knows it (getent hosts NAME), or ask for a new \
                 invite (tsnode invite, on a member's machine): it has the members' IP addresses of today",
            ),
    ]
}

fn nobody(absent: &[&Called]) -> Finding {
    let ports = || absent.iter().flat_map(|called| &called.ports);
    let next = if ports().all(|port| port.packets == Packets::Refused) {
        "their hosts are up and nobody listens: is tsnode join running there, at these ports?"
    } else if ports().any(|port| port.packets == Packets::NoRoute) {
        "some addresses lead nowhere from here: is this host in the right network? Ask for a new invite"
    } else {
        "are the members up, and their addresses still the same? Then a firewall lets no packets through, here or there; a new \
         invite has the addresses of today"
    };
    Finding::of("members", Severity::Fail, Cause::NobodyReached, "no known address of a member answers")
        .shown_by(listed(ports().map(ToString::to_string)))
        .mended_by(next)
}

fn clocks(seen: &Observations) -> Vec<Finding> {
    let told = |called: &Called| {
        let ahead = called.ports.iter().find_map(|port| port.sight())?.clock_ahead;
        Some((called.name.clone(), ahead))
    };
    let mut told: Vec<(String, i64)> = seen.peers.iter().filter_map(told).collect();
    told.sort_by_key(|(_, ahead)| *ahead);
    let Some((_, common)) = told.get(told.len().saturating_sub(1) / 2) else { return vec![] };
    let limit = i64::try_from(CLOCKS.as_millis()).unwrap_or(i64::MAX);
    let offsets = listed(told.iter().map(|(name, ahead)| format!("{name}'s is {}", offset(*ahead))));
    if common.abs() > limit {
        let (said, which) = if told.len() > 1 {
            ("this host's clock is wrong", "set this host's clock (timedatectl set-ntp true)")
        } else {
            ("this host's clock and the member's are apart", "set the wrong one (timedatectl set-ntp true)")
        };
        let found = Finding::of("clock", Severity::Fail, Cause::WrongClock, said).shown_by(offsets);
        return vec![found.mended_by(format!("{which}; plans of one clock do not count by the other"))];
    }
    let wrong: Vec<&(String, i64)> = told.iter().filter(|(_, ahead)| (ahead - common).abs() > limit).collect();
    if wrong.is_empty() {
        return vec![Finding::fine("clock", format!("as the members', within {} s", CLOCKS.as_secs()))];
    }
    let names = listed(wrong.iter().map(|(name, _)| name.clone()));
    let found = Finding::of("clock", Severity::Note, Cause::WrongClock, format!("the clock of {names} is wrong"));
    vec![found.shown_by(offsets).mended_by("it has to be set there")]
}

fn offset(ahead: i64) -> String {
    let seconds = ahead.unsigned_abs() / 1000;
    let span = if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds / 60) };
    let side = if ahead < 0 { "behind" } else { "ahead" };
    format!("{span} {side}")
}

/// Whether a peer that answers is one of this swarm.
fn belonging(seen: &Observations, called: &Called) -> Vec<Finding> {
    let Some(met) = called.met() else { return vec![] };
    let name = &called.name;
    let ours = codec::VERSION;
    let version = match (met.proof, met.sight) {
        (Proof::OtherVersion(theirs), _) => theirs,
        (_, Some(sight)) => sight.version,
        _ => ours,
    };
    if version != ours {
        let older = if version > ours { "this host's" } else { "that one" };
        return vec![
            Finding::of("version", Severity::Fail, Cause::OtherVersion, format!("{name} speaks another version"))
                .shown_by(format!("it speaks protocol version {version}, this one {ours}"))
                .mended_by(format!("update the older one, {older}")),
        ];
    }
    if let (Some(expected), Some(there)) = (called.id, met.peer)
        && expected != there
    {
        return vec![
            Finding::of(
                "members",
                Severity::Fail,
                Cause::OtherPeer,
                format!("another peer answers at {name}'s address"),
            )
            .shown_by(format!("{expected} is said to be there, {there} answers"))
            .mended_by("the address is another's by now, or the peer lost its key: ask for a new invite"),
        ];
    }
    if met.sight.is_some_and(|sight| !sight.is_same_swarm) {
        return vec![
            Finding::of("swarm", Severity::Fail, Cause::OtherSwarm, format!("{name} is in another swarm"))
                .shown_by("it answers, and does not know the swarm that is looked for")
                .mended_by(
                    "use an invite of its swarm (tsnode invite, there), with a data folder of its own: --data-dir",
                ),
        ];
    }
    secret(seen, met, name)
}

fn secret(seen: &Observations, met: &PeerSeen, name: &str) -> Vec<Finding> {
    let turned_away = seen.running.as_ref().is_some_and(|running| running.met_strangers && running.others == 0);
    match met.proof {
        Proof::Stranger => {}
        _ if turned_away && met.sight.is_some() => {}
        Proof::Member => return vec![Finding::fine("secret", format!("{name} and this host prove the same"))],
        _ => return vec![],
    }
    // Who does not know the question may be of another swarm as well.
    let (cause, said) = match met.sight {
        Some(_) => (Cause::WrongSecret, format!("the swarm's secret is not that of {name}")),
        None => (Cause::OtherSwarm, format!("{name} is in another swarm, or has another secret")),
    };
    vec![
        Finding::of("secret", Severity::Fail, cause, said)
            .shown_by(format!("{name} answers for this swarm, and the proofs of its secret differ"))
            .mended_by(
                "was the data folder restored from a copy? Start with an empty one (--data-dir) and a new invite (tsnode invite, \
                 on a member's machine)",
            ),
    ]
}

/// How every link goes, and why it goes over a relay where it does.
fn paths(seen: &Observations, why: &[Cause]) -> Vec<Finding> {
    let Some(running) = &seen.running else { return vec![] };
    let of = |path: &super::observation::PeerPath| match &path.way {
        PathVia::Direct => Finding::fine("path", format!("{}: direct", path.name)),
        PathVia::HolePunched => {
            let found = Finding::of("path", Severity::Ok, Cause::HolePunched, format!("{}: hole-punched", path.name));
            found.shown_by("neither can be called from outside, and both called at once")
        }
        PathVia::Relayed { via } => {
            let said = format!("{}: relayed over {via}", path.name);
            let (evidence, remedy) = relayed(running.is_reachable, path.is_reachable, why);
            Finding::of("path", Severity::Note, Cause::Relayed, said).shown_by(evidence).mended_by(remedy)
        }
    };
    running.paths.iter().map(of).collect()
}

fn relayed(here: bool, there: bool, why: &[Cause]) -> (&'static str, &'static str) {
    let has = |cause: Cause| why.contains(&cause);
    if has(Cause::UdpBlocked) {
        return ("UDP does not get through from here", "allow UDP; links go straight by themselves then");
    }
    if has(Cause::MtuBlackHole) {
        return ("large packets do not get through from here", "see mtu above");
    }
    match (here, there) {
        (false, false) if has(Cause::SymmetricNat) => (
            "neither can be called from outside, and the translation here is symmetric: no hole can be punched",
            "forward the ports at one of the two routers, or use IPv6",
        ),
        (false, false) => (
            "neither can be called from outside, and no hole could be punched: the translation or the firewall there lets none in",
            "run tsnode doctor there; forward the ports at one of the two routers, or use IPv6",
        ),
        _ => (
            "one of the two can be called from outside, and the other does not get through to its data plane's UDP port",
            "allow UDP to the port after that of --listen, there; it is tried again within minutes",
        ),
    }
}

/// A few of these.
fn listed(parts: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = parts.collect();
    let more = all.len().saturating_sub(NAMED);
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named}, and {more} more") } else { named }
}

/// Ports of a peer that are of a kind.
fn of_kind(called: &Called, is_udp: bool) -> impl Iterator<Item = &super::observation::Port> {
    called.ports.iter().filter(move |port| PortKind::is_udp(port.kind) == is_udp)
}

#[cfg(test)]
mod tests;
