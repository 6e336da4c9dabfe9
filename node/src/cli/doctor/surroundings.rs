//! What `tsnode doctor` says of what is around a peer: the disk below its data folder, and whether others reach it.

use super::{DoctorFinding, State, finding};
use crate::{
    cli::ask::PeerClient,
    config::Settings,
    hardware::memory::Size,
    node::NodeConfig,
    plain, platform,
    reachability::{observation::OwnAddresses, probe},
    store::{invites, keys},
    view::SwarmView,
};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Response logs and what is remembered take no more on the disk, twice as much as is kept in memory (bytes).
const PLENTY: u64 = 128 << 20;
/// Below it a peer may not even start (bytes).
const LITTLE: u64 = 4 << 20;
/// How long this machine may take to reach itself.
const SELF: Duration = Duration::from_secs(1);

/// Room on the disk of the data folder, or of the folder it will be made in.
pub(super) fn disk(folder: &Path) -> DoctorFinding {
    let there = folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    match platform::may_write(there).and_then(|()| platform::free_bytes(there)) {
        Ok(Some(free)) => room(folder, free),
        Ok(None) => finding(
            "disk",
            State::Ok,
            format!("{} can be written to; this system does not say how much is free", there.display()),
        ),
        Err(error) => {
            let said = format!("{}: {}; name another folder with --data-dir", there.display(), plain::io_error(&error));
            finding("disk", State::Fail, said)
        }
    }
}

fn room(folder: &Path, free: u64) -> DoctorFinding {
    let (place, free_size) = (folder.display(), Size(free));
    let next = "free some space, or name a folder elsewhere with --data-dir";
    match free {
        LITTLE.. if free >= PLENTY => finding("disk", State::Ok, format!("{free_size} free for {place}")),
        LITTLE.. => {
            let said = format!("{free_size} free for {place}: response logs may need {}; {next}", Size(PLENTY));
            finding("disk", State::Note, said)
        }
        _ => finding("disk", State::Fail, format!("{free_size} free for {place}: too little to start; {next}")),
    }
}

/// Files of the data folder that are damaged, and those that were and are kept aside.
pub(super) fn files(folder: &Path) -> Vec<DoctorFinding> {
    let broken = [
        keys::read(folder).err().map(|error| error.to_string()),
        invites::read(folder).err().or(invites::used(folder).err()).map(|error| error.to_string()),
    ];
    let mut found: Vec<_> = broken.into_iter().flatten().map(|said| finding("data", State::Fail, said)).collect();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.contains(".broken"));
    let mut kept: Vec<String> = names.collect();
    kept.sort();
    if !kept.is_empty() {
        let (place, kept) = (folder.display(), kept.join(", "));
        found.push(finding(
            "data",
            State::Note,
            format!(
                "{place} has {kept}, which were damaged and kept aside: check the disk, and remove them when you like"
            ),
        ));
    }
    found
}

/// Whether others reach the peer. One that runs is asked what the others told it; else this machine calls itself, which finds a
/// port that does not answer and no router in between.
pub(super) async fn reach(settings: &Settings, config: &NodeConfig, running: bool) -> DoctorFinding {
    if running {
        let view = match PeerClient::own(settings) {
            Ok(peer) => peer.view().await,
            Err(error) => Err(error),
        };
        return match view {
            Ok(view) => told(&NetworkPlace::of(&view)),
            Err(error) => finding("reach", State::Note, format!("the peer that runs here does not say: {error}")),
        };
    }
    let next = "whether others get through a firewall or a router is told by: tsnode doctor, while tsnode join runs";
    if config.listen.ip().is_loopback() {
        let said = format!("--listen {} is reached from this machine alone", config.listen);
        return finding("reach", State::Note, said);
    }
    let OwnAddresses { v4, v6 } = probe::own(&[]);
    let own: Vec<IpAddr> = v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6)).collect();
    if own.is_empty() {
        let said = "this machine has no address beyond itself: no other machine reaches a peer here";
        return finding("reach", State::Note, said.into());
    }
    let called: Vec<String> = own.iter().map(|ip| call(config.listen, *ip)).collect();
    finding(
        "reach",
        State::Note,
        format!("no peer runs here that others could call; by itself, {}; {next}", called.join(", ")),
    )
}

/// A running peer's place in the network, as it knows it.
struct NetworkPlace<'v> {
    /// Nobody has found that it cannot be called.
    reachable: bool,
    /// Peers beside it.
    others: usize,
    /// Where it may be called, circuits of relays included.
    addresses: &'v [String],
}

impl<'v> NetworkPlace<'v> {
    fn of(view: &'v SwarmView) -> Self {
        let own = view.peers.iter().find(|peer| peer.id == view.me);
        Self {
            reachable: own.is_none_or(|own| own.advert.reachable),
            others: view.peers.len().saturating_sub(1),
            addresses: &view.addresses,
        }
    }
}

/// What others have told the peer that runs here.
fn told(NetworkPlace { reachable, others, addresses }: &NetworkPlace<'_>) -> DoctorFinding {
    let (relayed, direct): (Vec<&str>, Vec<&str>) =
        addresses.iter().map(String::as_str).partition(|address| address.contains("/p2p-circuit"));
    let at =
        direct.iter().map(|address| address.split("/p2p/").next().unwrap_or(address)).collect::<Vec<_>>().join(", ");
    let counted = |count: usize, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
    match (reachable, others) {
        (false, _) => {
            let relays = counted(relayed.len(), "relay");
            let said = format!(
                "not from outside: others called back and did not get through; they come over {relays}. Where the router \
                 forwards TCP and UDP of --listen and the two ports after it to this machine, they come straight"
            );
            finding("reach", State::Note, said)
        }
        (true, 0) => {
            finding("reach", State::Note, format!("not known: no other peer is there to call back; it listens at {at}"))
        }
        (true, others) => {
            let others = counted(*others, "other peer");
            finding("reach", State::Ok, format!("{others} in the swarm, and none that failed to call back at {at}"))
        }
    }
}

/// Whether the peers' port answers at one of this machine's addresses.
fn call(listen: SocketAddr, ip: IpAddr) -> String {
    let Ok(listener) = TcpListener::bind(listen) else { return format!("{ip}: its port is not free") };
    let port = listener.local_addr().map_or(listen.port(), |at| at.port());
    let at = SocketAddr::new(ip, port);
    match TcpStream::connect_timeout(&at, SELF) {
        Ok(_) => format!("this machine reaches {at}"),
        Err(error) => format!("this machine does not reach {at} ({})", plain::io_error(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_with_what_to_do() {
        let folder = Path::new("/data");
        assert!(room(folder, 1 << 30).state == State::Ok);
        for (free, state) in [(64 << 20, State::Note), (1 << 20, State::Fail), (0, State::Fail)] {
            let found = room(folder, free);
            assert!(found.state == state && found.detail.contains("--data-dir"), "{}", found.detail);
        }
        let here = disk(Path::new("/nowhere/at/all"));
        assert!(here.detail.contains("/nowhere/at/all"), "a folder that is to be made: {}", here.detail);
        let refused = disk(Path::new("/proc/self/nowhere"));
        assert!(refused.state == State::Fail && refused.detail.contains("--data-dir"), "{}", refused.detail);
    }

    #[test]
    fn damaged_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(files(folder.path()).is_empty() && files(Path::new("/nowhere/at/all")).is_empty());
        for name in ["keys.json", "invites-used.json", "state.log.broken", "state.log.broken-2"] {
            std::fs::write(folder.path().join(name), "noise").unwrap();
        }
        let found = files(folder.path());
        let said: Vec<(bool, &str)> = found.iter().map(|f| (f.state == State::Fail, f.detail.as_str())).collect();
        assert!(matches!(said[..], [(true, _), (true, _), (false, _)]), "{said:?}");
        assert!(said[0].1.contains("keys.json") && said[1].1.contains("invites-used.json"), "{said:?}");
        assert!(said[2].1.contains("state.log.broken, state.log.broken-2"), "{said:?}");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let addresses =
            ["/ip4/192.0.2.7/tcp/7447/p2p/12D3KooW".into(), "/ip4/192.0.2.9/tcp/1/p2p/x/p2p-circuit".into()];
        let view = |reachable, others| told(&NetworkPlace { reachable, others, addresses: &addresses });
        let alone = view(true, 0);
        assert!(alone.state == State::Note && alone.detail.starts_with("not known: no other peer"), "{}", alone.detail);
        let met = view(true, 2);
        assert!(
            met.state == State::Ok
                && met.detail.contains("2 other peers")
                && met.detail.contains("/ip4/192.0.2.7/tcp/7447")
        );
        assert!(!met.detail.contains("circuit") && !met.detail.contains("12D3KooW"), "{}", met.detail);
        let walled = view(false, 2);
        assert!(walled.state == State::Note && walled.detail.contains("over 1 relay."), "{}", walled.detail);
    }

    #[test]
    fn this_machine_calls_itself() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        assert!(call(any, any.ip()).starts_with("this machine reaches 127.0.0.1:"));
        let taken = TcpListener::bind(any).unwrap();
        assert!(call(taken.local_addr().unwrap(), any.ip()).contains("not free"));
    }
}
