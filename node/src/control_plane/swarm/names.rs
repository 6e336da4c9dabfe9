//! Names of hosts in peers' addresses: each is looked up, and the addresses that it has take its place.

use super::SwarmHandle;
use futures::future::join_all;
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::Duration,
};
use tokio::{
    net::lookup_host,
    time::{sleep, timeout},
};

/// Names of one list that are looked up: an invite has fewer.
const NAMES: usize = 16;
/// Addresses of a name that are tried.
const EACH: usize = 4;
/// How long a name may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two rounds of whoever finds nobody: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// A name that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The address that has it.
    pub address: Multiaddr,
    /// The name.
    pub name: String,
    /// Why there is no address in its place.
    pub why: String,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the name {:?} {}", self.address, self.name, self.why)
    }
}

/// Which of the addresses of a name are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressFamily {
    Any,
    V4,
    V6,
}

impl AddressFamily {
    fn has(self, ip: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// The name that an address begins with, if that is no number.
fn name_of(address: &Multiaddr) -> Option<(AddressFamily, String)> {
    match address.iter().next()? {
        Protocol::Dns(name) => Some((AddressFamily::Any, name.into_owned())),
        Protocol::Dns4(name) => Some((AddressFamily::V4, name.into_owned())),
        Protocol::Dns6(name) => Some((AddressFamily::V6, name.into_owned())),
        _ => None,
    }
}

/// Whether an address begins with a name.
#[must_use]
pub fn has_name(address: &Multiaddr) -> bool {
    name_of(address).is_some()
}

/// These addresses with numbers in the place of names, in their order, and those whose names lead nowhere.
pub async fn resolved(addresses: &[Multiaddr]) -> (Vec<Multiaddr>, Vec<Unresolved>) {
    let names: BTreeSet<String> = addresses.iter().filter_map(name_of).map(|(_, name)| name).take(NAMES).collect();
    if names.is_empty() {
        return (addresses.to_vec(), Vec::new());
    }
    let looking = names.into_iter().map(|name| async move {
        let found = look_up(&name).await;
        (name, found)
    });
    let found = join_all(looking).await;
    replaced(addresses, &found.into_iter().collect())
}

/// What the system knows of a name.
async fn look_up(name: &str) -> Result<Vec<IpAddr>, String> {
    match timeout(PATIENCE, lookup_host((name, 0))).await {
        Ok(Ok(found)) => Ok(found.map(|at| at.ip()).collect()),
        // The system's resolver has no kind of its own for it, and many words.
        Ok(Err(_)) => Err("is not known to this host's resolver: is it written right, and is there a network?".into()),
        Err(_) => Err(format!("was not found within {} s: this host's resolver does not answer", PATIENCE.as_secs())),
    }
}

type FoundAddresses = BTreeMap<String, Result<Vec<IpAddr>, String>>;

fn replaced(addresses: &[Multiaddr], found: &FoundAddresses) -> (Vec<Multiaddr>, Vec<Unresolved>) {
    let (mut all, mut lost) = (Vec::new(), Vec::new());
    for address in addresses {
        let Some((family, name)) = name_of(address) else {
            all.push(address.clone());
            continue;
        };
        let why = match found.get(&name) {
            Some(Ok(ips)) => {
                let before = all.len();
                all.extend(ips.iter().filter(|ip| family.has(**ip)).take(EACH).map(|ip| at(address, *ip)));
                if all.len() > before {
                    continue;
                }
                "has no address of the kind that is asked for".to_owned()
            }
            Some(Err(why)) => why.clone(),
            None => format!("is one of more than {NAMES}, and was not looked up"),
        };
        lost.push(Unresolved { address: address.clone(), name, why });
    }
    (all, lost)
}

/// The address with a number in the place of its name.
fn at(address: &Multiaddr, ip: IpAddr) -> Multiaddr {
    let first = match ip {
        IpAddr::V4(ip) => Protocol::Ip4(ip),
        IpAddr::V6(ip) => Protocol::Ip6(ip),
    };
    std::iter::once(first).chain(address.iter().skip(1)).collect()
}

/// Calls those behind names, as long as nobody is found otherwise: a name may lead elsewhere the next time.
pub async fn call(addresses: Vec<Multiaddr>, swarm: SwarmHandle) {
    if addresses.is_empty() {
        return;
    }
    let (mut pause, mut told) = (PAUSE.0, Vec::new());
    loop {
        if swarm.peers().is_empty() {
            let (numbers, lost) = resolved(&addresses).await;
            if lost != told {
                lost.iter().for_each(|lost| tracing::warn!("{lost}"));
                told = lost;
            }
            for address in numbers {
                if let Err(error) = swarm.dial(address) {
                    tracing::info!(%error, "a name's address was not called");
                }
            }
            pause = (pause * 2).min(PAUSE.1);
        } else {
            pause = PAUSE.0;
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn numbers_take_the_place_of_names_and_what_leads_nowhere_is_named() {
        let both = Ok(vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]);
        let found = FoundAddresses::from([
            ("attic.example".to_owned(), both),
            ("gone.example".to_owned(), Err("is away".into())),
        ]);
        let asked = [
            "/ip4/192.0.2.1/tcp/7",
            "/dns/attic.example/udp/8/quic-v1",
            "/dns6/attic.example/tcp/9",
            "/dns4/gone.example/tcp/9",
        ];
        let (all, lost) = replaced(&asked.map(address), &found);
        let expected = [
            "/ip4/192.0.2.1/tcp/7",
            "/ip4/192.0.2.7/udp/8/quic-v1",
            "/ip6/2001:db8::7/udp/8/quic-v1",
            "/ip6/2001:db8::7/tcp/9",
        ];
        assert_eq!(all, expected.map(address));
        assert_eq!(lost[0].to_string(), "/dns4/gone.example/tcp/9: the name \"gone.example\" is away");
        let only_v4 = FoundAddresses::from([("attic.example".to_owned(), Ok(vec!["192.0.2.7".parse().unwrap()]))]);
        let (all, lost) = replaced(&[address("/dns6/attic.example/tcp/9")], &only_v4);
        assert!(all.is_empty() && lost[0].why.contains("of the kind"), "{lost:?}");
    }

    #[test]
    fn a_name_with_many_addresses_is_a_few_calls() {
        let many = (1..=200).map(|n| IpAddr::from([192, 0, 2, n])).collect();
        let (all, _) = replaced(&[address("/dns/a/tcp/9")], &FoundAddresses::from([("a".to_owned(), Ok(many))]));
        assert_eq!(all.len(), EACH);
    }

    #[tokio::test]
    async fn this_host_knows_its_own_name() {
        let (all, lost) = resolved(&[address("/dns4/localhost/tcp/7"), address("/ip4/192.0.2.1/tcp/7")]).await;
        assert_eq!((all, lost), (["/ip4/127.0.0.1/tcp/7", "/ip4/192.0.2.1/tcp/7"].map(address).to_vec(), Vec::new()));
        let (all, lost) = resolved(&[address("/dns4/no-such-host.invalid/tcp/7")]).await;
        assert!(all.is_empty() && lost[0].name == "no-such-host.invalid", "{lost:?}");
    }
}
