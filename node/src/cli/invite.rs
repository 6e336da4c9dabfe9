//! `tsnode invite`: makes, lists and takes back invites to the swarm that this machine's peer is in.

use super::{asking, is_set, json as json_flag, knobs, output, verb, whole};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    data_plane::listening,
    plain,
    store::{
        HTTP_FILE, INVITE_FILE,
        invites::{self, InvitesError, span, unix_now},
    },
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tsnode_protocol::{Invite, InviteId, limits};

/// The longest an invite may last (days).
const LONGEST: u64 = 3650;

pub(super) fn command() -> Command {
    let expires = Arg::new("expires")
        .long("expires")
        .value_name("TIME")
        .value_parser(lasting)
        .help("How long it is good, as 30m, 12h or 7d [default: 7d]");
    let uses = Arg::new("uses")
        .long("uses")
        .value_name("N")
        .value_parser(whole(1..=invites::USES))
        .help("How many may come with it [default: any number]; only this peer lets them in then");
    let host =
        Arg::new("host").long("host").value_name("NAME").action(ArgAction::Append).value_parser(host).help(
            "Name under which this peer is found as well, as home.example.org, or with another port behind a colon",
        );
    let id = Arg::new("id").value_name("ID").required(true).value_parser(named);
    let one = |verb: Command| verb.args(knobs(&["data-dir"])).arg(json_flag());
    asking(
        "invite",
        "Make an invite: what to give to someone who should join this swarm",
        "tsnode invite --expires 12h --uses 1",
    )
    .arg(expires)
    .arg(uses)
    .arg(host)
    .subcommand(one(verb("list", "Invites made here, and who came with them", "tsnode invite list")))
    .subcommand(
        one(verb("revoke", "Let nobody in with an invite from now on", "tsnode invite revoke i-0123456789abcdef"))
            .arg(id.help("Its name, as tsnode invite list shows it")),
    )
}

/// A host's name, and the port where a router has another one for this peer.
fn host(text: &str) -> Result<(String, Option<u16>), String> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port.parse::<u16>().ok().filter(|port| *port > 0))),
        None => (text, None),
    };
    let wrong = || "write a host's name, as home.example.org or home.example.org:7447".to_owned();
    let port = port.map(|port| port.ok_or_else(wrong)).transpose()?;
    let is_name = !name.is_empty() && name.len() <= 253 && name.parse::<std::net::IpAddr>().is_err();
    let is_label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_name && name.split('.').all(is_label) { Ok((name.to_owned(), port)) } else { Err(wrong()) }
}

/// Where this peer is under a name: as at its own addresses, each of whose kinds is told once.
fn named_addresses(invite: &Invite, (name, port): &(String, Option<u16>)) -> Vec<String> {
    let mut found = Vec::new();
    for address in &invite.addresses {
        let parts: Vec<&str> = address.split('/').collect();
        let [_, "ip4" | "ip6", _, kind, own, rest @ ..] = &parts[..] else { continue };
        if rest.contains(&"p2p-circuit") {
            continue;
        }
        let port = port.map_or((*own).to_owned(), |port| port.to_string());
        let named = format!("/dns/{name}/{kind}/{port}/{}", rest.join("/"));
        if !found.contains(&named) {
            found.push(named);
        }
    }
    found
}

fn named(text: &str) -> Result<InviteId, String> {
    text.trim().parse().map_err(|_| "an invite's name is i- and 16 digits; tsnode invite list shows all".into())
}

fn lasting(text: &str) -> Result<Duration, String> {
    let wrong = || format!("write a time of up to {LONGEST} days, as 30m, 12h or 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let lasts = count.checked_mul(seconds).filter(|s| (1..=LONGEST * 86_400).contains(s));
    lasts.map(Duration::from_secs).ok_or_else(wrong)
}

pub(super) fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let folder = settings.data_dir();
    match matches.subcommand() {
        Some(("list", matches)) => list(&folder, is_set(matches, "json")),
        Some((_, matches)) => {
            let Some(id) = matches.get_one::<InviteId>("id") else { return Ok(()) };
            invites::revoke(&folder, *id).map_err(exit)?;
            if is_set(matches, "json") {
                return output::print_json(&json!({ "revoked": id }));
            }
            say!("nobody is let in with {id} any more; who came with it stays");
            Ok(())
        }
        None => make(&folder, matches),
    }
}

fn make(folder: &Path, matches: &ArgMatches) -> Result<(), Exit> {
    let mut invite = current(folder)?;
    let as_json = is_set(matches, "json");
    let hosts = matches.get_many::<(String, Option<u16>)>("host").into_iter().flatten();
    let mut addresses: Vec<String> = hosts.flat_map(|host| named_addresses(&invite, host)).collect();
    addresses.append(&mut invite.addresses);
    // Names first: they are what was asked for, and what lasts.
    addresses.truncate(limits::ADDRESSES);
    invite.addresses = addresses;
    // An open swarm asks for nothing: where it is is all there is to say.
    if invite.ticket.is_some() {
        let lasts = matches.get_one::<Duration>("expires").copied().unwrap_or(invites::LASTS);
        let made = invites::make(folder, lasts, matches.get_one::<u32>("uses").copied()).map_err(exit)?;
        invite.ticket = made.ticket();
    } else if let Some(flag) = ["expires", "uses"].into_iter().find(|flag| matches.contains_id(flag)) {
        let next = "tsnode join --private starts a swarm that asks for invites";
        return Err(Exit::new(
            ExitKind::Usage,
            format!("--{flag}: this swarm is open, and lets everybody in at any time; {next}"),
        ));
    }
    if as_json {
        let (id, expires) = (invite.ticket.map(|t| t.id), invite.ticket.map(|t| t.expires));
        return output::print_json(&json!({ "invite": invite.to_string(), "id": id, "expires": expires }));
    }
    say!("{invite}");
    let running = folder.join(HTTP_FILE).exists();
    told(&invite, matches.get_one::<u32>("uses").copied(), running).iter().for_each(|line| note!("{line}"));
    Ok(())
}

/// What to do with an invite, beside it.
fn told(invite: &Invite, uses: Option<u32>, running: bool) -> Vec<String> {
    let mut lines =
        vec!["Who is to join runs, on a machine of theirs, and pastes it there:  tsnode join --invite -".to_owned()];
    match invite.ticket {
        Some(ticket) => {
            let left = span(ticket.expires.saturating_sub(unix_now()).saturating_add(59));
            let uses = uses.map_or(String::new(), |uses| format!(", for {uses} who come first"));
            lines
                .push(format!("It is good until {} ({left}){uses}, and lets in whoever has it.", date(ticket.expires)));
            lines.push(format!("To take it back:  tsnode invite revoke {}", ticket.id));
        }
        None => lines.push("It does not expire: this swarm is open, and lets in whoever finds it.".into()),
    }
    if !listening::is_found(&invite.addresses) {
        lines.push(
            "Only processes of this host can use it: the peer has no address that others could reach. Connect this host to a \
             network, or start the peer with --listen on an address of one."
                .into(),
        );
    }
    if !running {
        lines.push("No peer runs on this data folder now, and none is found by it until one does:  tsnode join".into());
    }
    lines
}

/// A point in time by this machine's clock and time zone, as people write it.
fn date(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    let local = at.map(|at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string());
    local.unwrap_or_else(|| "the end of time".into())
}

/// The swarm and where this machine's peer is, as that has written it down.
fn current(folder: &Path) -> Result<Invite, Exit> {
    // Secrets never cross HTTP: they are read where their owner alone can read.
    let path = folder.join(INVITE_FILE);
    let text = std::fs::read_to_string(&path).map_err(|e| {
        let next = "start a peer with: tsnode join, or name its folder with --data-dir";
        Exit::new(ExitKind::DataDir, format!("{}: {}; {next}", path.display(), plain::io_error(&e)))
    })?;
    let next = "the peer of this folder writes it anew when it starts: tsnode join";
    text.parse().map_err(|e| Exit::new(ExitKind::DataDir, format!("{}: {e}; {next}", path.display())))
}

fn list(folder: &Path, as_json: bool) -> Result<(), Exit> {
    let (all, used, now) = (invites::read(folder).map_err(exit)?, invites::used(folder).map_err(exit)?, unix_now());
    let came = |id: &InviteId| used.get(id).map_or(0, |who| who.len());
    let state = |made: &invites::IssuedInvite| match made.uses {
        _ if made.revoked => "revoked",
        _ if made.expires <= now => "expired",
        Some(uses) if came(&made.id) >= uses as usize => "used up",
        _ => "good",
    };
    if as_json {
        let one = |m: &invites::IssuedInvite| json!({ "id": m.id, "state": state(m), "expires": m.expires, "uses": m.uses, "used": came(&m.id) });
        return output::print_json(&all.iter().map(one).collect::<Vec<_>>());
    }
    let mut rows = vec![["INVITE", "STATE", "LEFT", "USED"].map(String::from).to_vec()];
    rows.extend(all.iter().map(|made| {
        let used = made.uses.map_or("not counted".into(), |uses| format!("{} of {uses}", came(&made.id)));
        vec![made.id.to_string(), state(made).into(), span(made.expires.saturating_sub(now)), used]
    }));
    output::table(&rows)
}

fn exit(error: InvitesError) -> Exit {
    let kind = match error {
        InvitesError::Io { .. } | InvitesError::Broken { .. } => ExitKind::DataDir,
        InvitesError::TooMany | InvitesError::Unknown(_) => ExitKind::Usage,
    };
    Exit::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{Secret, SwarmId, Ticket};

    #[test]
    fn an_invite_says_what_to_do_with_it() {
        let ticket = Ticket { id: InviteId([4; 8]), secret: Secret([5; 32]), expires: unix_now() + 7 * 86_400 + 60 };
        let mut invite = Invite { swarm: SwarmId([3; 16]), ticket: Some(ticket), addresses: Vec::new() };
        let said = told(&invite, Some(2), true).join("\n");
        let year = date(ticket.expires)[..4].parse::<u16>().unwrap();
        assert!(year > 2025 && said.contains(&date(ticket.expires)) && said.contains("(7 days), for 2 who"), "{said}");
        assert!(said.contains("tsnode join --invite") && said.contains(&format!("revoke {}", ticket.id)), "{said}");
        assert!(!said.contains("No peer runs") && told(&invite, None, false).join("").contains("No peer runs"));
        invite.ticket = None;
        let said = told(&invite, None, true).join("\n");
        assert!(said.contains("does not expire") && !said.contains("revoke"), "{said}");
    }

    #[test]
    fn a_name_stands_in_the_place_of_addresses() {
        let addresses = [
            "/ip4/192.0.2.1/udp/7447/quic-v1/p2p/12D3KooW",
            "/ip6/2001:db8::1/udp/7447/quic-v1/p2p/12D3KooW",
            "/ip4/192.0.2.1/tcp/7447/p2p/12D3KooW",
            "/ip4/192.0.2.9/tcp/1/p2p/relay/p2p-circuit/p2p/12D3KooW",
        ];
        let invite = Invite { swarm: SwarmId([3; 16]), ticket: None, addresses: addresses.map(String::from).to_vec() };
        let at = |text: &str| named_addresses(&invite, &host(text).unwrap());
        let own =
            ["/dns/home.example.org/udp/7447/quic-v1/p2p/12D3KooW", "/dns/home.example.org/tcp/7447/p2p/12D3KooW"];
        assert_eq!(at("home.example.org"), own);
        assert_eq!(at("home.example.org:9")[1], "/dns/home.example.org/tcp/9/p2p/12D3KooW");
        for wrong in ["", "a b", "192.0.2.1", "a/tcp/7", "a..b", "a:0", "a:b", "::1"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(lasting("30m"), Ok(Duration::from_secs(1800)));
        assert_eq!(lasting("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for wrong in ["", "7", "d", "0h", "-1d", "99999d", "7é"] {
            assert!(lasting(wrong).is_err(), "{wrong}");
        }
    }
}
