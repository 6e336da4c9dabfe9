//! Gives streams of admitted connections to the data plane: straight ones before relayed ones.

use super::{to_libp2p_id, to_own_id};
use crate::data_plane::carrier::{Ask, Carried};
use libp2p::{
    Multiaddr, StreamProtocol,
    core::{Endpoint, muxing::SubstreamBox, transport::PortUse, upgrade::ReadyUpgrade},
    multiaddr::Protocol,
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
        NotifyHandler, Stream, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
        handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound},
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    task::{Context, Poll, Waker},
};
use tsnode_protocol::{PathKind, PeerId};

/// What these streams are called.
const PROTOCOL: StreamProtocol = StreamProtocol::new("/tsnode/link/1");
/// Streams of one connection on their way to whoever takes them; above it they are dropped.
const WAITING: usize = 8;

/// Knows all connections, and how each travels.
#[derive(Default)]
pub(super) struct Behaviour {
    connections: BTreeMap<PeerId, BTreeMap<ConnectionId, PathKind>>,
    /// As many as the data plane has asked for, and connections have opened.
    actions: VecDeque<ToSwarm<Carried, StreamOrder>>,
    waker: Option<Waker>,
}

/// A stream wanted of a connection.
#[derive(Debug)]
pub(super) struct StreamOrder {
    ask: Ask,
    path: PathKind,
}

impl Behaviour {
    /// Asks the best connection for a stream; gives the wish back where there is none.
    pub(super) fn open(&mut self, ask: Ask) -> Result<(), Ask> {
        let best = self.connections.get(&ask.peer).and_then(|all| all.iter().min_by_key(|(_, path)| **path));
        let (Some((id, path)), Some(peer_id)) = (best, to_libp2p_id(ask.peer)) else { return Err(ask) };
        let order = StreamOrder { ask, path: *path };
        self.act(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(*id), event: order });
        Ok(())
    }

    /// Whether a connection to `peer` goes straight there.
    pub(super) fn is_direct(&self, peer: PeerId) -> bool {
        self.connections.get(&peer).is_some_and(|all| all.values().any(|path| *path == PathKind::Direct))
    }

    /// All connections that go over a relay.
    pub(super) fn relayed(&self) -> Vec<ConnectionId> {
        let all = self.connections.values().flatten();
        all.filter(|(_, path)| **path != PathKind::Direct).map(|(id, _)| *id).collect()
    }

    fn act(&mut self, action: ToSwarm<Carried, StreamOrder>) {
        self.actions.push_back(action);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// How a connection with this address travels; none where its relay has an id that this swarm does not use.
pub(super) fn path(address: &Multiaddr) -> Option<PathKind> {
    let mut relay = None;
    for part in address {
        match part {
            Protocol::P2p(id) => relay = Some(id),
            Protocol::P2pCircuit => return Some(PathKind::Relayed { via: to_own_id(&relay?)? }),
            _ => {}
        }
    }
    Some(PathKind::Direct)
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Carried;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: libp2p::PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: libp2p::PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(opened) => {
                // Of a relayed connection that came, the relay stands in our own address.
                let address = if opened.endpoint.is_dialer() {
                    opened.endpoint.get_remote_address()
                } else {
                    match opened.endpoint {
                        libp2p::core::ConnectedPoint::Listener { local_addr, .. } => local_addr,
                        libp2p::core::ConnectedPoint::Dialer { address, .. } => address,
                    }
                };
                if let (Some(peer), Some(path)) = (to_own_id(&opened.peer_id), path(address)) {
                    self.connections.entry(peer).or_default().insert(opened.connection_id, path);
                }
            }
            FromSwarm::ConnectionClosed(closed) => {
                let Some(peer) = to_own_id(&closed.peer_id) else { return };
                if let Some(all) = self.connections.get_mut(&peer) {
                    all.remove(&closed.connection_id);
                    if all.is_empty() {
                        self.connections.remove(&peer);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: libp2p::PeerId,
        connection: ConnectionId,
        stream: THandlerOutEvent<Self>,
    ) {
        let Some(peer) = to_own_id(&peer) else { return };
        if let Some(path) = self.connections.get(&peer).and_then(|all| all.get(&connection)) {
            let carried = Carried { peer, path: *path, stream: SubstreamBox::new(stream) };
            self.act(ToSwarm::GenerateEvent(carried));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(action) = self.actions.pop_front() {
            return Poll::Ready(action);
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Opens streams on one connection, and takes those that the far end opens.
#[derive(Default)]
pub(super) struct Handler {
    orders: VecDeque<StreamOrder>,
    came: VecDeque<Stream>,
    waker: Option<Waker>,
}

impl Handler {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = StreamOrder;
    type ToBehaviour = Stream;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = StreamOrder;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), ())
    }

    fn on_behaviour_event(&mut self, order: StreamOrder) {
        self.orders.push_back(order);
        self.wake();
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol, (), StreamOrder>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol: stream, .. }) => {
                if self.came.len() < WAITING {
                    self.came.push_back(stream);
                }
                self.wake();
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: stream, info }) => {
                let StreamOrder { ask: Ask { peer, answer }, path } = info;
                // Whoever asked may have lost patience.
                let _ = answer.send(Carried { peer, path, stream: SubstreamBox::new(stream) });
            }
            // Dropping the order says no.
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                tracing::debug!(peer = %info.ask.peer, %error, "no stream for the data plane");
            }
            _ => {}
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, StreamOrder, Self::ToBehaviour>> {
        if let Some(stream) = self.came.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(stream));
        }
        if let Some(order) = self.orders.pop_front() {
            let protocol = SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), order);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::identity::Identity;

    #[test]
    fn a_circuit_names_its_relay_wherever_it_ends() {
        let relay = Identity::from_seed(&[1; 32]).peer_id();
        let far = Identity::from_seed(&[2; 32]).peer_id();
        let over = Some(PathKind::Relayed { via: relay });
        for (text, expected) in [
            ("/ip4/192.0.2.1/tcp/7".to_owned(), Some(PathKind::Direct)),
            (format!("/ip4/192.0.2.1/tcp/7/p2p/{far}"), Some(PathKind::Direct)),
            (format!("/ip4/192.0.2.1/tcp/7/p2p/{relay}/p2p-circuit"), over),
            (format!("/ip4/192.0.2.1/tcp/7/p2p/{relay}/p2p-circuit/p2p/{far}"), over),
            ("/p2p-circuit".to_owned(), None),
        ] {
            assert_eq!(path(&text.parse().unwrap()), expected, "{text}");
        }
    }
}
