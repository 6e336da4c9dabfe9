//! Which peers an unreachable one keeps a place with, so that others reach it through them.

use libp2p::{Multiaddr, core::transport::ListenerId, multiaddr::Protocol};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tsnode_protocol::PeerId;

/// Places wanted: one may die.
const WANTED: usize = 2;
/// How long a peer that gave none is not asked again.
const AGAIN: Duration = Duration::from_secs(30);
/// Peers remembered as relays.
const KNOWN: usize = 64;

/// Peers that relay, and places with some of them.
#[derive(Default)]
pub(super) struct Relays {
    /// Where each is reached, its id included.
    known: BTreeMap<PeerId, KnownRelay>,
    /// A few; their ids have no order.
    places: Vec<RelayReservation>,
}

/// A place, or the wish for one.
struct RelayReservation {
    id: ListenerId,
    relay: PeerId,
    /// Whether the relay has said yes.
    given: bool,
}

struct KnownRelay {
    address: Multiaddr,
    not_before: Option<Instant>,
}

impl Relays {
    /// `peer`, reached at `address`, says that it relays, or says no longer so.
    pub(super) fn learn(&mut self, peer: PeerId, address: Option<Multiaddr>) {
        match address {
            None => drop(self.known.remove(&peer)),
            Some(address) => {
                if let Some(known) = self.known.get_mut(&peer) {
                    known.address = address;
                } else if self.known.len() < KNOWN {
                    self.known.insert(peer, KnownRelay { address, not_before: None });
                }
            }
        }
    }

    /// `peer` is no longer connected.
    pub(super) fn gone(&mut self, peer: PeerId) {
        self.known.remove(&peer);
    }

    /// Whom to ask for places now, and where to listen for it: peers in the order of their ids, which are random.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(PeerId, Multiaddr)> {
        let room = WANTED.saturating_sub(self.places.len());
        let held: Vec<PeerId> = self.places.iter().map(|place| place.relay).collect();
        let free =
            |peer: &PeerId, known: &KnownRelay| !held.contains(peer) && known.not_before.is_none_or(|at| at <= now);
        let asked = self.known.iter_mut().filter(|(peer, known)| free(peer, known)).take(room);
        asked
            .map(|(peer, known)| {
                known.not_before = Some(now + AGAIN);
                (*peer, known.address.clone().with(Protocol::P2pCircuit))
            })
            .collect()
    }

    /// A place is asked for.
    pub(super) fn hold(&mut self, id: ListenerId, relay: PeerId) {
        self.places.push(RelayReservation { id, relay, given: false });
    }

    /// A relay has given the place that it was asked for.
    pub(super) fn given(&mut self, relay: PeerId) {
        self.places.iter_mut().filter(|place| place.relay == relay).for_each(|place| place.given = true);
    }

    /// A place is lost; says whose it was.
    pub(super) fn lose(&mut self, place: ListenerId) -> Option<PeerId> {
        let at = self.places.iter().position(|held| held.id == place)?;
        Some(self.places.remove(at).relay)
    }

    /// All places that are had, to be given up. One that is asked for yet is not among them: libp2p's client panics where the relay's
    /// yes comes after that.
    pub(super) fn places(&self) -> Vec<ListenerId> {
        self.places.iter().filter(|place| place.given).map(|place| place.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn asked(relays: &mut Relays, now: Instant) -> Vec<PeerId> {
        relays.due(now).into_iter().map(|(peer, _)| peer).collect()
    }

    #[test]
    fn two_places_are_kept_and_a_lost_one_is_sought_elsewhere() {
        let (mut relays, now) = (Relays::default(), Instant::now());
        let address: Multiaddr = "/ip4/192.0.2.1/tcp/7".parse().unwrap();
        (1..=3).for_each(|n| relays.learn(peer(n), Some(address.clone())));
        let places: Vec<(ListenerId, PeerId)> =
            asked(&mut relays, now).into_iter().map(|relay| (ListenerId::next(), relay)).collect();
        assert_eq!(places.iter().map(|(_, relay)| *relay).collect::<Vec<_>>(), [peer(1), peer(2)]);
        places.iter().for_each(|(place, relay)| relays.hold(*place, *relay));
        assert_eq!(asked(&mut relays, now), []);
        assert_eq!(relays.lose(places[0].0), Some(peer(1)));
        assert_eq!(asked(&mut relays, now), [peer(3)], "who has just failed is asked last");
        relays.gone(peer(3));
        assert_eq!(asked(&mut relays, now), []);
        assert_eq!(asked(&mut relays, now + AGAIN), [peer(1)]);
    }

    #[test]
    fn a_place_is_given_up_only_once_it_is_had() {
        let mut relays = Relays::default();
        let places = [1, 2].map(|n| (ListenerId::next(), peer(n)));
        places.iter().for_each(|(place, relay)| relays.hold(*place, *relay));
        assert_eq!(relays.places(), []);
        relays.given(peer(2));
        assert_eq!(relays.places(), [places[1].0]);
        relays.given(peer(1));
        assert_eq!(relays.places(), places.map(|(place, _)| place));
    }

    #[test]
    fn who_no_longer_relays_is_not_asked() {
        let (mut relays, now) = (Relays::default(), Instant::now());
        relays.learn(peer(1), Some("/ip4/192.0.2.1/tcp/7".parse().unwrap()));
        relays.learn(peer(1), None);
        assert_eq!(asked(&mut relays, now), []);
    }
}
