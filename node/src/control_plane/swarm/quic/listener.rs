//! One socket that listens: where it is, and who calls there.

use super::{Event, address_of, shake_hands};
use crate::data_plane::doors::Doors;
use futures::{FutureExt as _, Stream, future::BoxFuture};
use if_watch::{IfEvent, tokio::IfWatcher};
use libp2p::core::transport::{ListenerId, TransportEvent};
use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    pin::Pin,
    task::{Context, Poll, Waker},
};

pub(super) struct Listener {
    id: ListenerId,
    at: SocketAddr,
    endpoint: quinn::Endpoint,
    /// The same one as the endpoint's.
    socket: UdpSocket,
    next: BoxFuture<'static, Option<quinn::Incoming>>,
    /// Says which addresses this host has, where the socket has all of them.
    watcher: Option<IfWatcher>,
    addresses: BTreeSet<IpAddr>,
    /// Waits to be told.
    news: Option<Event>,
    is_closed: bool,
    waker: Option<Waker>,
    doors: Doors,
}

impl Listener {
    pub(super) fn new(id: ListenerId, socket: UdpSocket, endpoint: quinn::Endpoint, doors: Doors) -> io::Result<Self> {
        let at = socket.local_addr()?;
        let watcher = at.ip().is_unspecified().then(IfWatcher::new).transpose()?;
        let is_one = watcher.is_none();
        Ok(Self {
            id,
            at,
            next: next(&endpoint),
            endpoint,
            socket,
            watcher,
            addresses: is_one.then_some(at.ip()).into_iter().collect(),
            news: is_one.then(|| TransportEvent::NewAddress { listener_id: id, listen_addr: address_of(at) }),
            is_closed: false,
            waker: None,
            doors,
        })
    }

    pub(super) fn id(&self) -> ListenerId {
        self.id
    }

    pub(super) fn endpoint(&self) -> &quinn::Endpoint {
        &self.endpoint
    }

    /// The socket, to send by beside the endpoint.
    pub(super) fn socket(&self) -> io::Result<UdpSocket> {
        self.socket.try_clone()
    }

    /// Whether packets from here get there, and answers back.
    pub(super) fn reaches(&self, to: SocketAddr) -> bool {
        let is_heard = !to.ip().is_loopback() || self.addresses.iter().any(IpAddr::is_loopback);
        !self.is_closed && self.at.is_ipv4() == to.is_ipv4() && is_heard
    }

    /// Ends it, and all its connections.
    pub(super) fn close(&mut self) {
        if self.is_closed {
            return;
        }
        self.endpoint.close(0_u32.into(), &[]);
        self.news = Some(TransportEvent::ListenerClosed { listener_id: self.id, reason: Ok(()) });
        self.is_closed = true;
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// What has changed in this host's addresses.
    fn poll_addresses(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let Some(watcher) = &mut self.watcher else { return Poll::Pending };
        let listener_id = self.id;
        loop {
            let (ip, is_new) = match std::task::ready!(watcher.poll_if_event(cx)) {
                Ok(IfEvent::Up(network)) => (network.addr(), true),
                Ok(IfEvent::Down(network)) => (network.addr(), false),
                Err(error) => {
                    return Poll::Ready(TransportEvent::ListenerError { listener_id, error: error.into() });
                }
            };
            if ip.is_ipv4() != self.at.is_ipv4() {
                continue;
            }
            let listen_addr = address_of(SocketAddr::new(ip, self.at.port()));
            return Poll::Ready(if is_new {
                self.addresses.insert(ip);
                TransportEvent::NewAddress { listener_id, listen_addr }
            } else {
                self.addresses.remove(&ip);
                TransportEvent::AddressExpired { listener_id, listen_addr }
            });
        }
    }

    /// One that has called, unless it has to show first that it is where it says.
    fn greet(&self, incoming: quinn::Incoming) -> Option<Event> {
        if self.doors.control_quic.is_pressed() && !incoming.remote_address_validated() {
            // Whoever reads the answer comes again with what it says; nothing is kept for it here.
            let _ = incoming.retry();
            return None;
        }
        let (local_addr, send_back_addr) = (address_of(self.at), address_of(incoming.remote_address()));
        let refused = |error: &quinn::ConnectionError| tracing::debug!(%error, "not a call");
        let upgrade = shake_hands(incoming.accept().inspect_err(refused).ok()?).boxed();
        Some(TransportEvent::Incoming { listener_id: self.id, upgrade, local_addr, send_back_addr })
    }
}

fn next(endpoint: &quinn::Endpoint) -> BoxFuture<'static, Option<quinn::Incoming>> {
    let endpoint = endpoint.clone();
    async move { endpoint.accept().await }.boxed()
}

impl Stream for Listener {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if let Some(news) = self.news.take() {
                return Poll::Ready(Some(news));
            }
            if self.is_closed {
                return Poll::Ready(None);
            }
            if let Poll::Ready(event) = self.poll_addresses(cx) {
                return Poll::Ready(Some(event));
            }
            match self.next.poll_unpin(cx) {
                Poll::Ready(Some(incoming)) => {
                    self.next = next(&self.endpoint);
                    if let Some(event) = self.greet(incoming) {
                        return Poll::Ready(Some(event));
                    }
                }
                Poll::Ready(None) => self.close(),
                Poll::Pending => {
                    self.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}
