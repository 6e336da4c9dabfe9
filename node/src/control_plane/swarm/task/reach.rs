//! Whether others reach this peer and where; over whom, when they do not; and streams for the data plane either way.
//!
//! A peer takes itself to be reachable until dialling back has failed twice in a row for those it asked (AutoNAT). Then
//! it keeps places with relays and says the circuits' addresses beside its own, which the peers of its own network can
//! use. Reachable peers relay for others.

use super::SwarmTask;
use crate::control_plane::swarm::{
    SwarmEvent, address_changes::ConnectionEnds, behaviour::Behaviour, carry, dialer::without_peer, relays::Relays,
    to_libp2p_id, to_own_id,
};
use crate::data_plane::{
    carrier::{Ask, Carried},
    listening::{self, AddressUse},
};
use libp2p::{
    Multiaddr, Swarm,
    autonat::{NatStatus, v1::Event as Reported, v1::InboundProbeEvent},
    core::{ConnectedPoint, transport::ListenerId},
    multiaddr::Protocol,
    relay,
    swarm::{
        ConnectionId,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::Instant,
};
use tsnode_protocol::{PathKind, PeerId};

/// Peers that are dialled for the data plane at once; above it whoever asks is told no.
const WANTED: usize = 64;
/// Own addresses that others have found to work.
const CONFIRMED: usize = 4;
/// Connections dialled beside others, that may turn out to be no more than an answer to a question.
const EXTRA: usize = 64;

/// What is known of this peer's place in the network.
pub(in crate::control_plane::swarm) struct Reach {
    reachable: bool,
    /// Where it listens, circuits included.
    listening: BTreeSet<Multiaddr>,
    /// Where others have reached it beside that: what an address translation makes of it.
    confirmed: BTreeSet<Multiaddr>,
    relays: Relays,
    /// Connections dialled to peers that were connected already, by where.
    extra: BTreeMap<(PeerId, Multiaddr), ConnectionId>,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            reachable: true,
            listening: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            relays: Relays::default(),
            extra: BTreeMap::new(),
        }
    }
}

impl Reach {
    pub(super) fn is_reachable(&self) -> bool {
        self.reachable
    }
}

/// Streams that wait for a connection.
pub(in crate::control_plane::swarm) struct WaitingStreams {
    dial: ConnectionId,
    asks: Vec<Ask>,
}

impl SwarmTask {
    /// One more place where this peer listens.
    pub(super) fn on_listening(&mut self, address: Multiaddr) {
        if listening::is_for(&address) == AddressUse::Nobody {
            return;
        }
        if self.reach.reachable && !is_circuit(&address) {
            // Whoever relays must be able to say where it is.
            self.net.add_external_address(address.clone());
        }
        if !is_circuit(&address) {
            self.dialer.has_moved(Instant::now());
        }
        self.reach.listening.insert(address);
        self.announce_addresses();
    }

    /// One fewer.
    pub(super) fn on_no_longer_listening<'a>(&mut self, gone: impl IntoIterator<Item = &'a Multiaddr>) {
        for address in gone {
            self.net.remove_external_address(address);
            self.reach.listening.remove(address);
        }
        self.announce_addresses();
    }

    /// This host has an address no more. What began there ends: nothing comes by it, and what is sent waits for minutes in vain. It
    /// is dialled anew from where this host is now.
    pub(super) fn on_address_lost(&mut self, address: &Multiaddr) {
        let Some(ip) = ip_of(address) else { return };
        if self.reach.listening.iter().any(|other| ip_of(other) == Some(ip)) {
            return;
        }
        for connection in self.moves.lost(ip) {
            tracing::debug!(%connection, %ip, "this host's address is gone: the connection leads nowhere any more");
            self.net.close_connection(connection);
        }
    }

    /// A peer says where it listens. Where a connection led to where it no longer does, all to it are closed, and it is met anew: it has
    /// closed its end and come from elsewhere, and who is met the first time only is told by gossipsub what is listened to here.
    pub(super) fn on_listens(&mut self, peer: PeerId, addresses: &[Multiaddr]) {
        // All of them, in whatever order they are told: identify's messages are bounded.
        let ips = addresses.iter().filter(|a| !is_circuit(a)).filter_map(ip_of).collect();
        if self.moves.listens(peer, ips) {
            tracing::debug!(%peer, "it has moved: it is met anew");
            self.disconnect(peer);
        }
    }

    /// Others have reached this peer there.
    pub(super) fn on_confirmed(&mut self, address: Multiaddr) {
        let address = without_peer(address);
        let news = !is_circuit(&address) && !self.reach.listening.contains(&address);
        if news && self.reach.confirmed.len() < CONFIRMED && self.reach.confirmed.insert(address) {
            self.announce_addresses();
        }
    }

    fn announce_addresses(&mut self) {
        let dialable = dialable(self.reach.listening.union(&self.reach.confirmed), self.own);
        self.addresses.send_replace(dialable.clone());
        self.outbox.push(SwarmEvent::Listening(dialable));
    }

    /// Somebody has, or has not, been able to dial back.
    pub(super) fn on_autonat(&mut self, event: Reported) {
        match event {
            Reported::InboundProbe(InboundProbeEvent::Response { peer, address, .. }) => {
                // The answer is given: the connection it took is one too many.
                let extra = to_own_id(&peer).and_then(|peer| self.reach.extra.remove(&(peer, address)));
                extra.map(|connection| self.net.close_connection(connection));
            }
            Reported::OutboundProbe(_) | Reported::StatusChanged { .. } => {
                let autonat = &self.net.behaviour().autonat;
                match autonat.nat_status() {
                    NatStatus::Public(_) => self.on_reachable(true),
                    NatStatus::Private if autonat.confidence() > 0 => self.on_reachable(false),
                    NatStatus::Private | NatStatus::Unknown => {}
                }
            }
            Reported::InboundProbe(_) => {}
        }
    }

    fn on_reachable(&mut self, reachable: bool) {
        if std::mem::replace(&mut self.reach.reachable, reachable) == reachable {
            return;
        }
        self.drop_relayed();
        let own: Vec<Multiaddr> = self.reach.listening.iter().filter(|a| !is_circuit(a)).cloned().collect();
        if reachable {
            tracing::info!("others reach this peer");
            own.into_iter().for_each(|address| self.net.add_external_address(address));
            self.give_places_up();
        } else {
            tracing::info!("others do not reach this peer: looking for relays");
            own.iter().for_each(|address| self.net.remove_external_address(address));
            self.seek_places();
        }
        // A circuit's address would do for libp2p.
        let status = if reachable { relay::Status::Enable } else { relay::Status::Disable };
        if let Some(relay) = self.net.behaviour_mut().relay.as_mut() {
            relay.set_status(Some(status));
        }
        self.outbox.push(SwarmEvent::Reachable(reachable));
    }

    /// Hangs up on all that is connected over relays. libp2p's relay tells every connection when its status changes, and those
    /// over relays, which take no such news, panic: they would stay in all books, and answer nothing any more.
    fn drop_relayed(&mut self) {
        if self.net.behaviour().relay.is_enabled() {
            for connection in self.net.behaviour().carry.relayed() {
                self.net.close_connection(connection);
            }
        }
    }

    /// A relay has given a place, which may no longer be needed.
    pub(super) fn on_place_given(&mut self, relay: &libp2p::PeerId) {
        tracing::debug!(%relay, "a place with this relay");
        to_own_id(relay).into_iter().for_each(|relay| self.reach.relays.given(relay));
        if self.reach.reachable {
            self.give_places_up();
        }
    }

    fn give_places_up(&mut self) {
        for place in self.reach.relays.places() {
            self.net.remove_listener(place);
        }
    }

    /// Asks for places with relays, where they are needed.
    pub(super) fn seek_places(&mut self) {
        if self.reach.reachable {
            return;
        }
        for (relay, circuit) in self.reach.relays.due(Instant::now()) {
            match self.net.listen_on(circuit) {
                Ok(place) => self.reach.relays.hold(place, relay),
                Err(error) => tracing::debug!(%relay, %error, "no place asked for"),
            }
        }
    }

    /// A connected peer says what it speaks, and where it listens.
    pub(super) fn on_protocols(&mut self, peer: PeerId, protocols: &[libp2p::StreamProtocol], addresses: &[Multiaddr]) {
        let relays = protocols.contains(&relay::HOP_PROTOCOL_NAME) && self.net.behaviour().carry.is_direct(peer);
        let is_tcp = |a: &&Multiaddr| a.iter().any(|part| matches!(part, Protocol::Tcp(_)));
        let own = || addresses.iter().filter(|a| !is_circuit(a));
        let address = own().find(is_tcp).or_else(|| own().next()).filter(|_| relays).cloned();
        let address = address.zip(to_libp2p_id(peer)).map(|(a, id)| without_peer(a).with(Protocol::P2p(id)));
        self.reach.relays.learn(peer, address);
        self.seek_places();
    }

    /// A listener has closed: a place with a relay, else one of this peer's own.
    pub(super) fn on_listener_closed(&mut self, listener: ListenerId, addresses: &[Multiaddr]) {
        let Some(relay) = self.reach.relays.lose(listener) else {
            return tracing::error!(?addresses, "no longer listening");
        };
        tracing::info!(%relay, "no place with this relay any more");
        self.on_no_longer_listening(addresses);
        self.seek_places();
    }

    /// A connection has opened.
    pub(super) fn on_connection(&mut self, peer: PeerId, id: ConnectionId, point: &ConnectedPoint, others: bool) {
        if let Some(ends) = ends(peer, point) {
            self.moves.opened(id, ends);
        }
        if let ConnectedPoint::Dialer { address, .. } = point
            && others
            && self.reach.extra.len() < EXTRA
        {
            self.reach.extra.insert((peer, address.clone()), id);
        }
        for ask in self.wanted.remove(&peer).into_iter().flat_map(|wanted| wanted.asks) {
            self.on_ask(ask);
        }
    }

    /// A connection has closed.
    pub(super) fn on_connection_closed(&mut self, peer: PeerId, id: ConnectionId, last: bool) {
        self.reach.extra.retain(|_, extra| *extra != id);
        self.moves.closed(id);
        if last {
            self.reach.relays.gone(peer);
        }
    }

    /// The data plane wants a stream.
    pub(super) fn on_ask(&mut self, ask: Ask) {
        if ask.answer.is_closed() {
            return;
        }
        let peer = ask.peer;
        let Err(ask) = self.net.behaviour_mut().carry.open(ask) else { return };
        if let Some(wanted) = self.wanted.get_mut(&peer) {
            wanted.asks.push(ask);
        } else if self.wanted.len() < WANTED
            && let Some(dial) = dial(&mut self.net, peer, self.dialer.addresses(peer))
        {
            self.wanted.insert(peer, WaitingStreams { dial, asks: vec![ask] });
        }
    }

    /// A dial has failed: what waited for it is told so.
    pub(super) fn on_dial_failed(&mut self, dial: ConnectionId) {
        self.wanted.retain(|_, wanted| wanted.dial != dial);
    }

    /// Another peer has opened a stream for the data plane.
    pub(super) fn on_carried(&mut self, carried: Carried) {
        if let Err(error) = self.came.try_send(carried) {
            tracing::debug!(%error, "a stream for the data plane is not taken");
        }
    }
}

/// Begins to dial, over every way there is; none where there is no way.
fn dial(net: &mut Swarm<Behaviour>, peer: PeerId, addresses: Vec<Multiaddr>) -> Option<ConnectionId> {
    tracing::debug!(%peer, ?addresses, "dialling for the data plane");
    let opts = DialOpts::peer_id(to_libp2p_id(peer)?).addresses(addresses).condition(PeerCondition::Always).build();
    let id = opts.connection_id();
    let dialled = net.dial(opts).inspect_err(|error| tracing::debug!(%peer, %error, "not dialled"));
    dialled.ok().map(|()| id)
}

/// Where a straight connection begins and ends.
fn ends(peer: PeerId, point: &ConnectedPoint) -> Option<ConnectionEnds> {
    let (near, far) = match point {
        ConnectedPoint::Dialer { address, .. } => (None, address),
        ConnectedPoint::Listener { local_addr, send_back_addr } => (ip_of(local_addr), send_back_addr),
    };
    let far = ip_of(far).filter(|_| !is_circuit(point.get_remote_address()))?;
    let near = near.filter(|ip| !ip.is_unspecified()).or_else(|| source_towards(far));
    Some(ConnectionEnds { peer, near, far })
}

/// The address that this host's packets to there leave from: the system says so without sending any.
fn source_towards(far: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if far.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(IpAddr::from(ip).to_canonical()),
        _ => None,
    }
}

fn is_circuit(address: &Multiaddr) -> bool {
    carry::path(address) != Some(PathKind::Direct)
}

/// Addresses to give to others.
fn dialable<'a>(addresses: impl IntoIterator<Item = &'a Multiaddr>, own: PeerId) -> Vec<String> {
    let with_own = |address: &Multiaddr| format!("{}/p2p/{own}", without_peer(address.clone()));
    listening::offered(addresses).into_iter().map(with_own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_others_can_use_are_given_to_them() {
        let own = PeerId([0; 32]);
        let listening = ["/ip4/127.0.0.1/tcp/7", "/ip6/2001:db8::1/tcp/7"].map(|a| a.parse().unwrap());
        let expected = ["/ip6/2001:db8::1/tcp/7"].map(|a| format!("{a}/p2p/{own}"));
        assert_eq!(dialable(&BTreeSet::from(listening), own), expected);
    }
}
