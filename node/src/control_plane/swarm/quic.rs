//! QUIC for the control plane, in libp2p's words. Its own transport lets every first packet in, so that somebody who forges the
//! senders of packets takes one place for each; here a sender that is not known to read what is sent to its address has to show
//! that first, while many are at the door, and has no place until then.

mod listener;
mod muxer;

use super::connection::STREAMS;
use crate::data_plane::doors::Doors;
use futures::{
    FutureExt as _, StreamExt as _,
    channel::oneshot,
    future::{BoxFuture, Either, select},
    stream::SelectAll,
};
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{
        Endpoint,
        transport::{DialOpts, ListenerId, PortUse, TransportError, TransportEvent},
    },
    identity::Keypair,
    multiaddr::Protocol,
};
use listener::Listener;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::crypto::{CryptoError, HmacKey};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::time::{sleep, timeout};

pub(super) use muxer::Muxer;

/// A peer that is silent for so long is gone: the kernel of a killed process tells nobody, unlike with TCP.
const SILENCE: Duration = Duration::from_secs(4);
/// Keeps an idle connection well inside [`SILENCE`], a few lost packets included.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// What may be under way on a stream, and on a connection (bytes).
const STREAM_WINDOW: u32 = 10_000_000;
const WINDOW: u32 = 15_000_000;
/// Between two packets that open an address translation for somebody's first one: at least, and at most (ms).
const PUNCH: (u64, u64) = (10, 200);
/// Bytes of such a packet: nothing that a QUIC endpoint would answer.
const PUNCH_BYTES: usize = 64;
/// Calls that are waited for behind an address translation; above it, those that nobody waits for any more are forgotten.
const AWAITED: usize = 64;

/// Why a connection is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuicError {
    /// It cannot be begun.
    #[error(transparent)]
    Connect(#[from] quinn::ConnectError),
    /// It ended.
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    /// A socket does not work.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not there in time.
    #[error("no handshake within {} s", HANDSHAKE.as_secs())]
    TimedOut,
    /// Its certificate says nothing of who it is.
    #[error("its certificate is none of libp2p's")]
    Certificate,
    /// It cannot be waited for.
    #[error("nobody listens here for {0}")]
    NoListener(SocketAddr),
    /// It is waited for already.
    #[error("{0} is waited for already")]
    Awaited(SocketAddr),
}

/// A connection that both sides have proven their ids on.
pub(super) type QuicConnection = (PeerId, Muxer);
type Upgrade = BoxFuture<'static, Result<QuicConnection, QuicError>>;
type Event = TransportEvent<Upgrade, QuicError>;

/// The transport.
pub(super) struct Quic {
    config: Config,
    listeners: SelectAll<Listener>,
    /// Sockets to dial from where nothing listens: of IPv4, and of IPv6.
    dialers: BTreeMap<bool, quinn::Endpoint>,
    /// Calls that are waited for, since a way is being opened for them.
    awaited: BTreeMap<SocketAddr, oneshot::Sender<Upgrade>>,
    waker: Option<Waker>,
}

/// What all endpoints are made with.
struct Config {
    client: quinn::ClientConfig,
    server: quinn::ServerConfig,
    endpoint: quinn::EndpointConfig,
    doors: Doors,
}

impl Quic {
    /// Proves to be `keypair`'s.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub(super) fn new(keypair: &Keypair, doors: Doors) -> Result<Self, String> {
        Ok(Self {
            config: Config::new(keypair, doors)?,
            listeners: SelectAll::new(),
            dialers: BTreeMap::new(),
            awaited: BTreeMap::new(),
            waker: None,
        })
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// The socket that somebody at this address knows already, if it can be reached from there.
    fn listening(&self, to: SocketAddr) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.reaches(to))
    }

    fn dialing(&mut self, to: SocketAddr, port_use: PortUse) -> Result<quinn::Endpoint, QuicError> {
        if port_use == PortUse::New {
            return self.config.dialer(to);
        }
        if let Some(listener) = self.listening(to) {
            return Ok(listener.endpoint().clone());
        }
        match self.dialers.entry(to.is_ipv4()) {
            Entry::Occupied(dialer) => Ok(dialer.get().clone()),
            Entry::Vacant(none) => Ok(none.insert(self.config.dialer(to)?).clone()),
        }
    }

    /// Opens a way for a call from `from`, and waits for it.
    fn await_call(&mut self, from: SocketAddr) -> Result<Upgrade, QuicError> {
        let socket = self.listening(from).ok_or(QuicError::NoListener(from))?.socket()?;
        if self.awaited.len() >= AWAITED {
            self.awaited.retain(|_, waits| !waits.is_canceled());
        }
        if self.awaited.get(&from).is_some_and(|waits| !waits.is_canceled()) {
            return Err(QuicError::Awaited(from));
        }
        let (calls, called) = oneshot::channel::<Upgrade>();
        self.awaited.insert(from, calls);
        let punching = punch(socket, from).boxed();
        Ok(async move {
            match timeout(HANDSHAKE, select(called, punching)).await.map_err(|_| QuicError::TimedOut)? {
                Either::Left((Ok(upgrade), _)) => upgrade.await,
                Either::Left((Err(_), _)) => Err(QuicError::TimedOut),
                Either::Right((error, _)) => Err(error.into()),
            }
        }
        .boxed())
    }
}

impl Config {
    fn new(keypair: &Keypair, doors: Doors) -> Result<Self, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let client = libp2p_tls::make_client_config(keypair, None).map_err(|e| text(&e))?;
        let server = libp2p_tls::make_server_config(keypair).map_err(|e| text(&e))?;
        let client = QuicClientConfig::try_from(client).map_err(|e| text(&e))?;
        let server = QuicServerConfig::try_from(server).map_err(|e| text(&e))?;
        let transport = Arc::new(transport());
        let mut client = quinn::ClientConfig::new(Arc::new(client));
        client.transport_config(transport.clone());
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
        server.transport_config(transport).migration(false);
        // Whom a peer was connected to that starts again hears at once that it knows nothing of that.
        let key = keypair.derive_secret(b"tsnode quic stateless reset").map(ResetKey);
        let mut endpoint =
            key.map_or_else(quinn::EndpointConfig::default, |key| quinn::EndpointConfig::new(Arc::new(key)));
        endpoint.supported_versions(vec![1]);
        Ok(Self { client, server, endpoint, doors })
    }

    fn dialer(&self, to: SocketAddr) -> Result<quinn::Endpoint, QuicError> {
        let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        Ok(self.open(UdpSocket::bind((any, 0))?, None)?)
    }

    fn open(&self, socket: UdpSocket, server: Option<quinn::ServerConfig>) -> io::Result<quinn::Endpoint> {
        quinn::Endpoint::new(self.endpoint.clone(), server, socket, Arc::new(quinn::TokioRuntime))
    }

    fn listen(&self, id: ListenerId, address: SocketAddr) -> io::Result<Listener> {
        use socket2::{Domain, Protocol, Socket, Type};
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        let socket = UdpSocket::from(socket);
        let endpoint = self.open(socket.try_clone()?, Some(self.server.clone()))?;
        Listener::new(id, socket, endpoint, self.doors.clone())
    }
}

fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_concurrent_uni_streams(0_u32.into())
        .max_concurrent_bidi_streams(STREAMS.into())
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(quinn::VarInt::from_u32(SILENCE.as_millis() as u32).into()))
        .allow_spin(false)
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(WINDOW.into());
    transport
}

/// Signs resets of connections that this process does not know.
struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        signature.copy_from_slice(blake3::keyed_hash(&self.0, data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Takes the same time wherever they differ.
        let is_own = blake3::keyed_hash(&self.0, data) == *signature;
        is_own.then_some(()).ok_or(CryptoError)
    }
}

impl Transport for Quic {
    type Output = QuicConnection;
    type Error = QuicError;
    type ListenerUpgrade = Upgrade;
    type Dial = Upgrade;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<QuicError>> {
        let (at, _) = socket_of(&address).ok_or(TransportError::MultiaddrNotSupported(address))?;
        let listener = self.config.listen(id, at).map_err(|error| TransportError::Other(error.into()))?;
        self.listeners.push(listener);
        // Calls go out by the socket that listens from now on.
        self.dialers.remove(&at.is_ipv4());
        self.wake();
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let listener = self.listeners.iter_mut().find(|listener| listener.id() == id);
        listener.map(Listener::close).is_some()
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Upgrade, TransportError<QuicError>> {
        let found = socket_of(&address).filter(|(to, _)| to.port() != 0 && !to.ip().is_unspecified());
        let (to, peer) = found.ok_or_else(|| TransportError::MultiaddrNotSupported(address.clone()))?;
        if let (Endpoint::Listener, PortUse::New) = (options.role, options.port_use) {
            let peer = peer.ok_or(TransportError::MultiaddrNotSupported(address))?;
            let called = self.await_call(to).map_err(TransportError::Other)?;
            return Ok(called.inspect(move |called| tell_if_another(peer, called)).boxed());
        }
        let endpoint = self.dialing(to, options.port_use).map_err(TransportError::Other)?;
        self.wake();
        let client = self.config.client.clone();
        // No name of a host is proven, but one has to be there.
        Ok(async move { shake_hands(endpoint.connect_with(client, to, "l")?).await }.boxed())
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Event> {
        self.waker = Some(cx.waker().clone());
        loop {
            let Some(event) = ready!(self.listeners.poll_next_unpin(cx)) else { return Poll::Pending };
            let TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr } = event else {
                return Poll::Ready(event);
            };
            let waits = socket_of(&send_back_addr).and_then(|(from, _)| self.awaited.remove(&from));
            let unheard = match waits {
                Some(waits) => waits.send(upgrade).err(),
                None => Some(upgrade),
            };
            if let Some(upgrade) = unheard {
                return Poll::Ready(TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr });
            }
        }
    }
}

fn tell_if_another(peer: PeerId, called: &Result<QuicConnection, QuicError>) {
    if let Ok((caller, _)) = called
        && *caller != peer
    {
        tracing::debug!(%peer, %caller, "another has called than was waited for");
    }
}

async fn shake_hands(connecting: quinn::Connecting) -> Result<QuicConnection, QuicError> {
    let connection = timeout(HANDSHAKE, connecting).await.map_err(|_| QuicError::TimedOut)??;
    let peer = peer_of(&connection).ok_or(QuicError::Certificate)?;
    Ok((peer, Muxer::new(connection)))
}

/// Who is at the far end, as the TLS handshake proved.
fn peer_of(connection: &quinn::Connection) -> Option<PeerId> {
    let identity = connection.peer_identity()?;
    let certificates = identity.downcast_ref::<Vec<rustls::pki_types::CertificateDer<'static>>>()?;
    Some(libp2p_tls::certificate::parse(certificates.first()?).ok()?.peer_id())
}

/// Sends packets to where a call is to come from, so that an address translation here takes it for their answer.
async fn punch(socket: UdpSocket, to: SocketAddr) -> io::Error {
    let sending = async {
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        loop {
            let noise: [u8; PUNCH_BYTES] = crate::random_bytes();
            socket.send_to(&noise, to).await?;
            let [within, ..] = crate::random_bytes::<1>();
            let pause = PUNCH.0 + (PUNCH.1 - PUNCH.0) * u64::from(within) / u64::from(u8::MAX);
            sleep(Duration::from_millis(pause)).await;
        }
    };
    let ended: Result<std::convert::Infallible, io::Error> = sending.await;
    match ended {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

/// Where an address of QUIC leads, and to whom if it says so.
fn socket_of(address: &Multiaddr) -> Option<(SocketAddr, Option<PeerId>)> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    let (Protocol::Udp(port), Protocol::QuicV1) = (parts.next()?, parts.next()?) else { return None };
    let to = SocketAddr::new(ip, port);
    match (parts.next(), parts.next()) {
        (None, _) => Some((to, None)),
        (Some(Protocol::P2p(peer)), None) => Some((to, Some(peer))),
        _ => None,
    }
}

fn address_of(socket: SocketAddr) -> Multiaddr {
    Multiaddr::from(socket.ip()).with(Protocol::Udp(socket.port())).with(Protocol::QuicV1)
}
