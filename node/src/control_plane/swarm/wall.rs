//! Pretends an address translation or a firewall in front of this peer, for testnets: nobody gets in unasked.

use super::{carry::path, connection::Connection};
use crate::faults::{Faults, Wall};
use libp2p::{
    Multiaddr, Transport as _,
    core::{
        ConnectedPoint, Endpoint,
        transport::{Boxed, PortUse},
    },
    multiaddr::Protocol,
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
        ToSwarm, dummy,
    },
};
use std::convert::Infallible;
use std::task::{Context, Poll};
use tokio::sync::watch;
use tsnode_protocol::PathKind;

/// Dials fail where the wall would not let their packets out. That is no refusal of the connection: behind such a wall a
/// dial over UDP comes to nothing, and the peer's other addresses are tried.
pub(super) fn behind(transport: Boxed<Connection>, faults: Option<watch::Receiver<Faults>>) -> Boxed<Connection> {
    let stops = move |point: &ConnectedPoint| match point {
        ConnectedPoint::Dialer { address, .. } => wall(faults.as_ref()) == Wall::Udp && is_udp(address),
        ConnectedPoint::Listener { .. } => false,
    };
    let walled = transport.and_then(move |connection, point| {
        let stopped = stops(&point);
        async move { if stopped { Err(Walled) } else { Ok(connection) } }
    });
    walled.boxed()
}

fn wall(faults: Option<&watch::Receiver<Faults>>) -> Wall {
    faults.map_or(Wall::None, |faults| faults.borrow().wall)
}

/// A relay's packets are not ours.
fn is_udp(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Udp(_))) && path(address) == Some(PathKind::Direct)
}

/// Refuses whom the wall would not let in; lets everybody in at a peer that is not to be broken.
pub(super) struct Behaviour {
    faults: Option<watch::Receiver<Faults>>,
}

/// The wall's answer.
#[derive(Debug, thiserror::Error)]
#[error("a wall is pretended there")]
struct Walled;

impl Behaviour {
    pub(super) fn new(faults: Option<watch::Receiver<Faults>>) -> Self {
        Self { faults }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        _: ConnectionId,
        local: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let walled = wall(self.faults.as_ref()) != Wall::None && path(local) == Some(PathKind::Direct);
        if walled { Err(ConnectionDenied::new(Walled)) } else { Ok(()) }
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: libp2p::PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: libp2p::PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(&mut self, _: libp2p::PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
