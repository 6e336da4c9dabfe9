//! Dials over TCP from the port that is listened at, and from any other where that cannot be had.
//!
//! From its listening port a peer is seen at an address where it can be found, and holes are punched. libp2p-tcp binds that port
//! on all of the host's addresses: one socket of another program that has the same number on any of them, as the kernel gives
//! out for connections, and every dial would fail for as long as that socket lasts.

use futures::{FutureExt as _, future::BoxFuture};
use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, PortUse, TransportError, TransportEvent},
};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

/// A transport whose dials take another port where the one to be reused is in use.
pub(super) struct PortReuse<T>(pub(super) T);

impl<T> Transport for PortReuse<T>
where
    T: Transport<Error = io::Error> + Unpin,
    T::Dial: Send + 'static,
    T::Output: Send + 'static,
{
    type Output = T::Output;
    type Error = io::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<T::Output>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.0.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        let dial = self.0.dial(address.clone(), options)?;
        if options.port_use == PortUse::New {
            return Ok(dial.boxed());
        }
        // A dial that nobody polls does nothing.
        let other = self.0.dial(address, DialOpts { port_use: PortUse::New, ..options })?;
        let dialled = async move {
            match dial.await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    tracing::debug!(%error, "the port that is listened at cannot be dialled from; another is taken");
                    other.await
                }
                dialled => dialled,
            }
        };
        Ok(dialled.boxed())
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.0).poll(cx)
    }
}
