//! Pretends an address translation or a firewall in front of this peer, for testnets: nobody gets in unasked.

use super::carry::path;
use crate::faults::{Faults, Wall};
use libp2p::{
    Multiaddr,
    core::{Endpoint, transport::PortUse},
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

/// Refuses what the wall would not let through; lets everything through at a peer that is not to be broken.
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

    fn wall(&self) -> Wall {
        self.faults.as_ref().map_or(Wall::None, |faults| faults.borrow().wall)
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
        let walled = self.wall() != Wall::None && path(local) == Some(PathKind::Direct);
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
        to: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let udp = to.iter().any(|part| matches!(part, Protocol::Udp(_))) && path(to) == Some(PathKind::Direct);
        if udp && self.wall() == Wall::Udp { Err(ConnectionDenied::new(Walled)) } else { Ok(dummy::ConnectionHandler) }
    }

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(&mut self, _: libp2p::PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
