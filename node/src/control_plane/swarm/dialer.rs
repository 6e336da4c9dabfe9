//! Whom to connect to, and when to try again: addresses and times come in, attempts come out.
//!
//! A lonely peer tries its bootstrap addresses; a peer with few neighbours tries those it has heard of, in an order
//! of its own, so that a thousand peers do not all choose the same twelve. However many it has, it tries one of those it has
//! not heard of for a while now and then: a swarm that fell into parts may have closed up on either side.
//!
//! The first attempt of two is made over TCP alone where there is a TCP address: when a process dies its host's
//! kernel says so at once on TCP, while a QUIC connection is only missed after its idle limit.

use crate::data_plane::listening::{AddressUse, is_for};
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tsnode_protocol::{PeerId, limits};

/// The first wait after a failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest wait after a failure.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long a peer that was turned away is left alone: peers of other swarms on the same LAN are found again and again.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Peers remembered; more than a thousand-peer swarm ever needs.
const KNOWN_MAX: usize = 1024;

/// Between two attempts to reach somebody who is not heard of.
const PROBE_EVERY: Duration = Duration::from_secs(20);
/// Who has said nothing for so long, to anybody in reach, is on no side that we are on.
const UNHEARD: Duration = Duration::from_secs(20);

/// One attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// To a peer, at any of these addresses.
    Peer {
        /// Who must answer.
        peer: PeerId,
        /// Where to try, none with a `/p2p` part.
        addresses: Vec<Multiaddr>,
    },
    /// To whoever answers at this address.
    Address(Multiaddr),
}

impl Attempt {
    /// To the peer an address names, or to whoever answers there.
    pub(super) fn to(address: Multiaddr) -> Self {
        match peer_of(&address) {
            Some(peer) => Self::Peer { peer, addresses: vec![without_peer(address)] },
            None => Self::Address(address),
        }
    }
}

/// Remembers addresses and decides on attempts.
pub(super) struct Dialer {
    own: PeerId,
    /// Connections wanted.
    degree: usize,
    bootstrap: Vec<Attempt>,
    bootstrap_retry: Retry,
    known: BTreeMap<PeerId, DialledPeer>,
    banned: BTreeSet<PeerId>,
    probed: Option<Instant>,
}

#[derive(Default)]
struct DialledPeer {
    addresses: Vec<Multiaddr>,
    retry: Retry,
    /// When something that it said last came, from whomever.
    heard: Option<Instant>,
    /// Its place in this peer's order of choice.
    rank: [u8; 8],
}

/// Exponential backoff. Every attempt counts as failed until success resets it.
#[derive(Default)]
struct Retry {
    attempts: u32,
    not_before: Option<Instant>,
}

impl Retry {
    fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    fn count(&mut self, now: Instant) {
        let wait = RETRY_MIN.saturating_mul(1 << self.attempts.min(5)).min(RETRY_MAX);
        self.attempts = self.attempts.saturating_add(1);
        self.not_before = Some(now + wait);
    }
}

impl Dialer {
    /// For `own`, wanting `degree` connections, with addresses of members to begin from.
    pub(super) fn new(own: PeerId, degree: usize, bootstrap: &[Multiaddr]) -> Self {
        Self {
            own,
            degree,
            bootstrap: group_by_peer(bootstrap, own),
            bootstrap_retry: Retry::default(),
            known: BTreeMap::new(),
            banned: BTreeSet::new(),
            probed: None,
        }
    }

    /// Something came that `peer` has said.
    pub(super) fn heard(&mut self, peer: PeerId, now: Instant) {
        if let Some(known) = self.known.get_mut(&peer) {
            known.heard = Some(now);
        }
    }

    /// Now and then one attempt at a peer that is remembered and not heard of, the least tried first.
    pub(super) fn probe(&mut self, now: Instant, connected: &BTreeSet<PeerId>) -> Option<Attempt> {
        let last = *self.probed.get_or_insert(now);
        if now < last + PROBE_EVERY {
            return None;
        }
        self.probed = Some(now);
        let absent = |peer: &PeerId, known: &DialledPeer| {
            !connected.contains(peer)
                && !self.banned.contains(peer)
                && !known.addresses.is_empty()
                && known.retry.is_due(now)
                && known.heard.is_none_or(|at| now >= at + UNHEARD)
        };
        let candidates = self.known.iter_mut().filter(|(peer, known)| absent(peer, known));
        let (peer, known) = candidates.min_by_key(|(_, known)| (known.retry.attempts, known.rank))?;
        let addresses = preferred(&known.addresses, known.retry.attempts);
        known.retry.count(now);
        Some(Attempt::Peer { peer: *peer, addresses })
    }

    /// `peer` says, or others say, that it is found at `addresses`.
    pub(super) fn learn(&mut self, peer: PeerId, addresses: impl IntoIterator<Item = Multiaddr>) {
        if peer == self.own || self.banned.contains(&peer) {
            return;
        }
        let known = self.entry(peer);
        for address in addresses.into_iter().map(without_peer).filter(|a| is_for(a) != AddressUse::Nobody) {
            if !known.addresses.contains(&address) {
                // The oldest is the likeliest to be out of date.
                if known.addresses.len() == limits::ADDRESSES {
                    known.addresses.remove(0);
                }
                known.addresses.push(address);
            }
        }
    }

    /// Where `peer` may be found, as far as is known.
    pub(super) fn addresses(&self, peer: PeerId) -> Vec<Multiaddr> {
        self.known.get(&peer).map(|known| known.addresses.clone()).unwrap_or_default()
    }

    /// `peer` is connected: the next loss starts with short waits again.
    pub(super) fn connected(&mut self, peer: PeerId) {
        self.bootstrap_retry = Retry::default();
        if let Some(known) = self.known.get_mut(&peer) {
            known.retry = Retry::default();
        }
    }

    /// This host has one more address: what failed before may succeed now. Who has turned us away is left alone nevertheless.
    pub(super) fn has_moved(&mut self, now: Instant) {
        self.bootstrap_retry = Retry::default();
        let waits = |retry: &Retry| retry.not_before.is_none_or(|at| at <= now + RETRY_MAX);
        self.known.values_mut().filter(|known| waits(&known.retry)).for_each(|known| known.retry = Retry::default());
    }

    /// `peer` and we do not belong together: leave it alone for a while.
    pub(super) fn refused(&mut self, peer: PeerId, now: Instant) {
        if peer != self.own {
            self.entry(peer).retry.not_before = Some(now + REFUSED_FOR);
        }
    }

    /// Not until it is allowed again; where it was is kept for then.
    pub(super) fn ban(&mut self, peer: PeerId) {
        if self.banned.len() < KNOWN_MAX {
            self.banned.insert(peer);
        }
    }

    /// A banned peer may be dialled again, and at once.
    pub(super) fn allow(&mut self, peer: PeerId) {
        if self.banned.remove(&peer)
            && let Some(known) = self.known.get_mut(&peer)
        {
            known.retry = Retry::default();
        }
    }

    /// The attempts to make now, given who is connected.
    pub(super) fn due(&mut self, now: Instant, connected: &BTreeSet<PeerId>) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        if connected.is_empty() && !self.bootstrap.is_empty() && self.bootstrap_retry.is_due(now) {
            let round = self.bootstrap_retry.attempts;
            attempts.extend(self.bootstrap.iter().map(|attempt| narrowed(attempt, round)));
            self.bootstrap_retry.count(now);
        }
        attempts.extend(self.due_known(now, connected));
        attempts
    }

    fn due_known(&mut self, now: Instant, connected: &BTreeSet<PeerId>) -> Vec<Attempt> {
        let room = self.degree.saturating_sub(connected.len());
        if room == 0 {
            return Vec::new();
        }
        let ready = |peer: &PeerId, known: &DialledPeer| {
            !connected.contains(peer)
                && !self.banned.contains(peer)
                && !known.addresses.is_empty()
                && known.retry.is_due(now)
        };
        let mut candidates: Vec<_> = self.known.iter_mut().filter(|(peer, known)| ready(peer, known)).collect();
        candidates.sort_by_key(|(_, known)| known.rank);
        let attempt = |(peer, known): (&PeerId, &mut DialledPeer)| {
            let addresses = preferred(&known.addresses, known.retry.attempts);
            known.retry.count(now);
            Attempt::Peer { peer: *peer, addresses }
        };
        candidates.into_iter().take(room).map(attempt).collect()
    }

    /// The peer's entry; a new one takes the place of the entry that failed most when all places are taken.
    fn entry(&mut self, peer: PeerId) -> &mut DialledPeer {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&peer) {
            let worst = self.known.iter().max_by_key(|(_, known)| known.retry.attempts).map(|(peer, _)| *peer);
            worst.map(|worst| self.known.remove(&worst));
        }
        let rank = rank(self.own, peer);
        self.known.entry(peer).or_insert_with(|| DialledPeer { rank, ..DialledPeer::default() })
    }
}

fn rank(own: PeerId, other: PeerId) -> [u8; 8] {
    let hash = blake3::hash(&[own.0, other.0].concat());
    let mut rank = [0; 8];
    rank.copy_from_slice(&hash.as_bytes()[..8]);
    rank
}

fn group_by_peer(addresses: &[Multiaddr], own: PeerId) -> Vec<Attempt> {
    let mut by_peer: BTreeMap<PeerId, Vec<Multiaddr>> = BTreeMap::new();
    let mut anybody = Vec::new();
    for address in addresses {
        match peer_of(address) {
            Some(peer) if peer == own => {}
            Some(peer) => by_peer.entry(peer).or_default().push(without_peer(address.clone())),
            None => anybody.push(Attempt::Address(address.clone())),
        }
    }
    by_peer.into_iter().map(|(peer, addresses)| Attempt::Peer { peer, addresses }).chain(anybody).collect()
}

pub(super) fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => PeerId::from_libp2p_bytes(&peer.to_bytes()),
        _ => None,
    }
}

/// The address without whom it leads to.
pub(super) fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

fn narrowed(attempt: &Attempt, round: u32) -> Attempt {
    match attempt {
        Attempt::Peer { peer, addresses } => Attempt::Peer { peer: *peer, addresses: preferred(addresses, round) },
        Attempt::Address(address) => Attempt::Address(address.clone()),
    }
}

/// TCP alone in even rounds, if there is any; everything in odd ones, circuits over relays too.
fn preferred(addresses: &[Multiaddr], round: u32) -> Vec<Multiaddr> {
    let is_tcp = |address: &&Multiaddr| {
        address.iter().any(|part| matches!(part, Protocol::Tcp(_)))
            && !address.iter().any(|p| p == Protocol::P2pCircuit)
    };
    let tcp: Vec<_> = addresses.iter().filter(is_tcp).cloned().collect();
    if round.is_multiple_of(2) && !tcp.is_empty() { tcp } else { addresses.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::identity::Identity;

    fn peer(n: u8) -> PeerId {
        Identity::from_seed(&[n; 32]).peer_id()
    }

    fn tcp(port: u16) -> Multiaddr {
        format!("/ip4/192.0.2.1/tcp/{port}").parse().unwrap()
    }

    fn quic(port: u16) -> Multiaddr {
        format!("/ip4/192.0.2.1/udp/{port}/quic-v1").parse().unwrap()
    }

    fn to(n: u8, addresses: &[Multiaddr]) -> Attempt {
        Attempt::Peer { peer: peer(n), addresses: addresses.to_vec() }
    }

    #[test]
    fn a_lonely_peer_tries_its_bootstrap_with_growing_waits() {
        let named: Multiaddr = format!("{}/p2p/{}", tcp(1), peer(1)).parse().unwrap();
        let mut dialer = Dialer::new(peer(0), 8, &[named, quic(2)]);
        let start = Instant::now();
        let mut tried = Vec::new();
        for second in 0..60 {
            if !dialer.due(start + Duration::from_secs(second), &BTreeSet::new()).is_empty() {
                tried.push(second);
            }
        }
        assert_eq!(tried, [0, 1, 3, 7, 15, 31]);
        dialer.connected(peer(1));
        assert_eq!(dialer.due(start, &[peer(1)].into()), []);
        assert_eq!(dialer.due(start, &BTreeSet::new()), [to(1, &[tcp(1)]), Attempt::Address(quic(2))]);
    }

    #[test]
    fn tcp_is_tried_first_and_then_everything() {
        let mut dialer = Dialer::new(peer(0), 8, &[]);
        dialer.learn(peer(1), [quic(1), tcp(1)]);
        let now = Instant::now();
        assert_eq!(dialer.due(now, &BTreeSet::new()), [to(1, &[tcp(1)])]);
        assert_eq!(dialer.due(now + RETRY_MIN, &BTreeSet::new()), [to(1, &[quic(1), tcp(1)])]);
    }

    #[test]
    fn no_more_than_the_degree_are_sought() {
        let mut dialer = Dialer::new(peer(0), 3, &[]);
        for n in 1..=9 {
            dialer.learn(peer(n), [tcp(n.into())]);
        }
        let now = Instant::now();
        assert_eq!(dialer.due(now, &[peer(8), peer(9)].into()).len(), 1);
        assert_eq!(dialer.due(now, &[peer(7), peer(8), peer(9)].into()), []);
    }

    #[test]
    fn however_many_neighbours_there_are_somebody_unheard_of_is_tried_now_and_then() {
        let mut dialer = Dialer::new(peer(0), 2, &[]);
        (1..=5).for_each(|n| dialer.learn(peer(n), [tcp(n.into())]));
        let (start, connected) = (Instant::now(), [peer(1), peer(2)].into());
        let mut tried = Vec::new();
        for second in 0..90 {
            let now = start + Duration::from_secs(second);
            // One that is heard of through others is on our side.
            dialer.heard(peer(3), now);
            assert_eq!(dialer.due(now, &connected), []);
            tried.extend(dialer.probe(now, &connected).map(|attempt| (second, attempt)));
        }
        let seconds: Vec<u64> = tried.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [20, 40, 60, 80]);
        let to_either = |n| tried.iter().filter(|(_, attempt)| *attempt == to(n, &[tcp(n.into())])).count();
        assert_eq!((to_either(3), to_either(4), to_either(5)), (0, 2, 2));
    }

    #[test]
    fn who_was_turned_away_is_left_alone_for_a_minute() {
        let mut dialer = Dialer::new(peer(0), 8, &[]);
        let now = Instant::now();
        dialer.refused(peer(1), now);
        dialer.learn(peer(1), [tcp(1)]);
        assert_eq!(dialer.due(now + REFUSED_FOR / 2, &BTreeSet::new()), []);
        assert_eq!(dialer.due(now + REFUSED_FOR, &BTreeSet::new()), [to(1, &[tcp(1)])]);
    }

    #[test]
    fn a_new_address_is_tried_at_once_but_not_on_who_turned_us_away() {
        let mut dialer = Dialer::new(peer(0), 8, &[]);
        let mut now = Instant::now();
        (1..=2).for_each(|n| dialer.learn(peer(n), [tcp(n.into())]));
        for _ in 0..6 {
            dialer.due(now, &BTreeSet::new());
            now += RETRY_MAX;
        }
        dialer.due(now, &BTreeSet::new());
        dialer.refused(peer(2), now);
        assert_eq!(dialer.due(now, &BTreeSet::new()), []);
        dialer.has_moved(now);
        assert_eq!(dialer.due(now, &BTreeSet::new()), [to(1, &[tcp(1)])]);
    }

    #[test]
    fn the_banned_and_oneself_are_never_sought() {
        let mut dialer = Dialer::new(peer(0), 8, &[]);
        dialer.learn(peer(1), [tcp(1)]);
        dialer.ban(peer(1));
        dialer.learn(peer(1), [tcp(1)]);
        dialer.learn(peer(0), [tcp(2)]);
        assert_eq!(dialer.due(Instant::now(), &BTreeSet::new()), []);
    }

    #[test]
    fn memory_is_bounded_in_peers_and_addresses() {
        let mut dialer = Dialer::new(peer(0), 8, &[]);
        for n in 0..2 * KNOWN_MAX {
            let mut id = [1; 32];
            id[..8].copy_from_slice(&(n as u64).to_le_bytes());
            dialer.learn(PeerId(id), (1..100).map(tcp));
        }
        assert_eq!(dialer.known.len(), KNOWN_MAX);
        assert!(dialer.known.values().all(|known| known.addresses.len() == limits::ADDRESSES));
        assert!(dialer.known.values().all(|known| known.addresses.last() == Some(&tcp(99))), "the newest are kept");
    }
}
