//! Places for connections that have to prove themselves yet, in front of everything that comes from outside: where all are taken it
//! is not the newcomer who goes ([`crate::data_plane::doors`]).

use super::connection::{Connection, SETUP_LIMIT};
use crate::data_plane::doors::{Door, Doors};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::{
    Multiaddr, Transport,
    core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent},
    multiaddr::Protocol,
};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tsnode_coordinator::places::Origin;

/// A transport whose incoming connections have places until they have proven themselves.
pub(super) struct Seated {
    inner: Boxed<Connection>,
    doors: Doors,
}

impl Seated {
    pub(super) fn new(inner: Boxed<Connection>, doors: Doors) -> Self {
        Self { inner, doors }
    }

    /// Goes on with a connection for as long as it has its place; none where there is no place.
    fn seat(&self, upgrade: Upgrade, from: &Multiaddr) -> Option<Upgrade> {
        let origin = address(from).map_or(Origin::Relayed, Origin::from);
        let place = self.door(from).enter(origin, self.doors.regard(origin), SETUP_LIMIT)?;
        let admitted = async move {
            let admitted = place.gone().run_until_cancelled(upgrade).await;
            admitted.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::ConnectionAborted, "its place is another's")))
        };
        Some(admitted.boxed())
    }

    /// A flood of packets whose senders nobody knows takes no place from those who have a connection of TCP.
    fn door(&self, from: &Multiaddr) -> &Door<Origin> {
        let is_udp = from.iter().any(|part| matches!(part, Protocol::Udp(_)));
        if is_udp { &self.doors.control_quic } else { &self.doors.control }
    }
}

type Upgrade = BoxFuture<'static, io::Result<Connection>>;

impl Transport for Seated {
    type Output = Connection;
    type Error = io::Error;
    type ListenerUpgrade = Upgrade;
    type Dial = <Boxed<Connection> as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        self.inner.dial(address, options)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Upgrade, io::Error>> {
        loop {
            ready!(self.doors.control.poll_room(cx));
            match ready!(Pin::new(&mut self.inner).poll(cx)) {
                TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr } => {
                    // Who has no place is hung up on.
                    if let Some(upgrade) = self.seat(upgrade, &send_back_addr) {
                        return Poll::Ready(TransportEvent::Incoming {
                            listener_id,
                            upgrade,
                            local_addr,
                            send_back_addr,
                        });
                    }
                }
                other => return Poll::Ready(other),
            }
        }
    }
}

/// The address at which somebody is reached, or comes from, unless that is another peer's.
pub(super) fn address(address: &Multiaddr) -> Option<IpAddr> {
    let relayed = address.iter().any(|part| part == Protocol::P2pCircuit);
    match address.iter().next().filter(|_| !relayed)? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}
