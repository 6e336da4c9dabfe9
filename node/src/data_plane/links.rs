//! Prompt flow 6: the data plane. QUIC connections between peers that have proven their ids and their swarm.
//!
//! Certificates are libp2p's, so the [`PeerId`] at the far end is the one the control plane knows, checked inside the
//! TLS handshake. The first stream of a connection proves the swarm's secret; nothing else is answered before that.

mod accept;
mod endpoint;
mod frames;
mod known;
mod lifeline;
mod liveness_probe;
mod meter;
mod parallel;
mod priority;
mod probe;
mod prove;
mod scavenger;
mod shaping;
mod stream_limits;
mod tls;
mod transfer;
mod traversal;
pub mod trial;
mod tuning;
mod tunnel;
mod uplink;

pub use frames::{FrameReceiver, FrameSender, Stream};
pub use known::MeasuredLink;
pub use lifeline::GonePeers;
pub(crate) use lifeline::beside;
pub use liveness_probe::{Attended, Unresponsive};
pub use parallel::Connections;
pub use probe::Probed;
pub use shaping::{Shaping, check_upload};
pub use transfer::Transfer;

use crate::{
    data_plane::{
        carrier::{Carriage, Carrier},
        doors::Doors,
        heartbeats::Inbox,
        offences::OffenceReporter,
    },
    faults::Faults,
    store::identity::Identity,
};
use accept::Servers;
use endpoint::{settings, socket, with_lifelines};
use futures::future::{BoxFuture, Shared};
use known::KnownLinks;
use lifeline::{Caller, LifelineHolder};
use liveness_probe::Attendance;
use parallel::ParallelConnections;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stream_limits::Rates;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use traversal::NatTraversal;
use tsnode_coordinator::kv_streams::KvStreams;
use tsnode_protocol::{BytesPerSecond, PeerId, codec::CodecError, proof::Membership, stream};
use tuning::{Transport, Tuning};
use uplink::Uplink;

/// Streams that others opened and nobody has looked at; above it they wait in QUIC's own windows.
const INCOMING: usize = 256;
/// Peers found gone and not yet looked at.
const GONE: usize = 256;
/// How long a connection, a proof or an opening may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// A connection without a word for that long is dead. Streams keep it awake.
const IDLE: Duration = Duration::from_secs(4);
const KEEP_ALIVE: Duration = Duration::from_millis(1300);
/// Streams a proven peer may have open at once.
const STREAMS: u32 = 1024;
/// Application error codes on the wire.
const CODE_REFUSED: u32 = 403;
const CODE_BYE: u32 = 0;

/// Why a link does not do what it should.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// The socket cannot be had.
    #[error("{address}: {error}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: String,
        /// Whether another program has it.
        in_use: bool,
    },
    /// No address is known.
    #[error("no address of {0} is known")]
    NoAddress(PeerId),
    /// No address answered as that peer.
    #[error("{peer} not reached: {error}")]
    Unreachable {
        /// Whom.
        peer: PeerId,
        /// What the last address gave.
        error: String,
    },
    /// The system at its address knows no such process.
    #[error("{peer} not reached: nobody listens at {address}")]
    NobodyThere {
        /// Whom.
        peer: PeerId,
        /// Where.
        address: SocketAddr,
    },
    /// The far end is cut off.
    #[error("{0} is cut off")]
    CutOff(PeerId),
    /// The far end is not of this swarm.
    #[error("{0} is not of this swarm")]
    NotAMember(String),
    /// Something took too long.
    #[error("no answer in time")]
    TimedOut,
    /// The stream or connection ended.
    #[error("connection lost: {0}")]
    Lost(String),
    /// What came is not what should.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Certificates cannot be made.
    #[error("certificate: {0}")]
    Certificate(String),
}

/// How the data plane is set up.
pub struct LinksConfig {
    /// This peer's key.
    pub identity: Identity,
    /// What both ends prove.
    pub membership: Membership,
    /// UDP address; port 0 takes any, and `[::]` is IPv4 as well.
    pub listen: SocketAddr,
    /// Limits on what leaves.
    pub shaping: Option<Shaping>,
    /// The largest datagrams tried, where it is not left to the addresses.
    pub datagram: Option<u16>,
    /// Who is kept out.
    pub offence_reporter: OffenceReporter,
    /// What is broken on purpose, where a testnet may.
    pub faults: Option<watch::Receiver<Faults>>,
    /// Where heartbeats go that come here; they are dropped otherwise.
    pub heartbeats: Option<Inbox>,
    /// Carries what does not get through by itself, where there is a control plane.
    pub carriage: Option<Carriage>,
    /// How many connections may carry a KV transfer.
    pub kv_streams: KvStreams,
    /// Places for those who have to prove themselves, and for lifelines.
    pub doors: Doors,
}

/// A stream that another peer opened.
#[derive(Debug)]
pub struct IncomingStream {
    /// Who, as TLS proved.
    pub peer: PeerId,
    /// What for.
    pub opening: stream::Opening,
    /// The rest of it.
    pub stream: Stream,
}

/// Streams that others open.
pub struct Incoming {
    streams: mpsc::Receiver<IncomingStream>,
}

impl Incoming {
    /// The next one; `None` when the data plane has stopped.
    pub async fn next(&mut self) -> Option<IncomingStream> {
        self.streams.recv().await
    }
}

type Dialled = Shared<BoxFuture<'static, Result<Arc<Tuning>, LinkError>>>;

/// A connection, or the attempt at one.
#[derive(Clone)]
struct DialAttempt {
    dialled: Dialled,
    /// Ends an attempt.
    cancel: CancellationToken,
    /// Where the peer was last said to be.
    addresses: Vec<SocketAddr>,
}

impl DialAttempt {
    /// Whether it leads nowhere any more.
    fn is_over(&self) -> bool {
        match self.dialled.peek() {
            Some(Ok(connection)) => connection.connection.close_reason().is_some(),
            Some(Err(_)) => true,
            None => self.cancel.is_cancelled(),
        }
    }

    /// The way it goes, once that is known.
    fn way(&self) -> Option<Transport> {
        Some(self.dialled.peek()?.as_ref().ok()?.way)
    }
}

/// The data plane.
#[derive(Clone)]
pub struct Links {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: quinn::Endpoint,
    identity: Identity,
    me: PeerId,
    membership: Membership,
    /// One connection per peer, beside those of [`kv_streams`], or the attempt at one. Held for map operations only.
    dials: Mutex<BTreeMap<PeerId, DialAttempt>>,
    known: KnownLinks,
    datagrams: Datagrams,
    uplink: Arc<Uplink>,
    doors: Doors,
    has_lifelines: bool,
    /// Holds lifelines at others.
    caller: Caller,
    gone: mpsc::Sender<PeerId>,
    offence_reporter: OffenceReporter,
    rates: Rates,
    faults: Option<watch::Receiver<Faults>>,
    heartbeats: Option<Inbox>,
    /// Tiles and tokens sent while some are to be spoilt.
    spoilt: AtomicU64,
    carrier: Option<Carrier>,
    around: NatTraversal,
    kv_streams: KvStreams,
    /// KV that leaves by any connection.
    kv: scavenger::Streams,
    beside: ParallelConnections,
    attendance: Attendance,
    /// Takes streams that others open, as long as this peer takes any.
    streams: mpsc::WeakSender<IncomingStream>,
    stop: CancellationToken,
}

impl Links {
    /// Opens the socket and begins to answer, until `stop`. Says whose process was found gone.
    ///
    /// # Errors
    /// When the address is taken or certificates cannot be made.
    pub fn bind(config: LinksConfig, stop: CancellationToken) -> Result<(Self, Incoming, GonePeers), LinkError> {
        let datagrams = Datagrams { set: config.datagram, shaped: config.shaping.is_some() };
        let servers = Servers::new(&config.identity)?;
        let uplink = Arc::new(Uplink::new(config.shaping.and_then(|shaping| shaping.upload)));
        let (endpoint, lifelines) = with_lifelines(&config, &servers, &uplink, &stop)?;
        let me = config.identity.peer_id();
        let (gone, goners) = mpsc::channel(GONE);
        let has_lifelines = lifelines.is_some();
        if let Some(listener) = lifelines {
            let holder = LifelineHolder {
                me,
                membership: config.membership.clone(),
                doors: config.doors.clone(),
                offence_reporter: config.offence_reporter.clone(),
                faults: config.faults.clone(),
            };
            crate::tasks::spawn("liveness connections", holder.hold(listener, stop.clone()));
        }
        let (sender, streams) = mpsc::channel(INCOMING);
        let (carrier, came) = config.carriage.unzip();
        let inner = Inner {
            endpoint,
            identity: config.identity,
            me,
            caller: Caller::new(me, config.membership.clone(), config.doors.shares.calls),
            membership: config.membership,
            doors: config.doors,
            dials: Mutex::default(),
            known: KnownLinks::new(),
            datagrams,
            uplink,
            has_lifelines,
            gone,
            offence_reporter: config.offence_reporter,
            rates: Rates::new(),
            faults: config.faults,
            heartbeats: config.heartbeats,
            spoilt: AtomicU64::new(0),
            carrier,
            around: NatTraversal::default(),
            kv_streams: config.kv_streams,
            kv: scavenger::Streams::default(),
            beside: ParallelConnections::default(),
            attendance: Attendance::default(),
            streams: sender.downgrade(),
            stop: stop.clone(),
        };
        let links = Self { inner: Arc::new(inner) };
        if let Some(came) = came {
            crate::tasks::spawn(
                "carried connections",
                accept::run_carried(links.clone(), servers.carried.clone(), came, sender.clone(), stop.clone()),
            );
        }
        crate::tasks::spawn("connections", accept::run(links.clone(), servers, sender, stop.clone()));
        crate::tasks::spawn("known addresses", known::watch(links.clone(), stop.clone()));
        crate::tasks::spawn("liveness probes", liveness_probe::watch(links.clone(), stop));
        Ok((links, Incoming { streams }, goners))
    }

    /// Where the socket is.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.inner.endpoint.local_addr()
    }

    /// Where the lifelines of others would end, if that cannot be had.
    #[must_use]
    pub fn lacks_lifelines(&self) -> Option<SocketAddr> {
        let address = self.local_addr().ok().filter(|_| !self.inner.has_lifelines)?;
        Some(lifeline::beside(address))
    }

    /// Opens a stream to `peer`, over the connection there is or a new one to one of `addresses`.
    ///
    /// # Errors
    /// When no address answers as that peer of this swarm, in time.
    pub async fn open(
        &self,
        peer: PeerId,
        addresses: &[SocketAddr],
        opening: &stream::Opening,
    ) -> Result<Stream, LinkError> {
        let connection = self.connection(peer, addresses).await?;
        Self::open_on(&connection, opening).await
    }

    async fn connection(&self, peer: PeerId, addresses: &[SocketAddr]) -> Result<Arc<Tuning>, LinkError> {
        if self.inner.offence_reporter.keeps_out(peer) {
            return Err(LinkError::CutOff(peer));
        }
        let dial = {
            let mut dials = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner);
            if dials.get(&peer).is_some_and(DialAttempt::is_over) {
                dials.remove(&peer);
            }
            let dial = dials.entry(peer).or_insert_with(|| self.attempt(peer, addresses.to_vec()));
            if dial.addresses != addresses {
                dial.addresses = addresses.to_vec();
            }
            dial.clone()
        };
        dial.dialled.await
    }

    /// Whether the next KV tile is to have a bit flipped: evenly as many as wished.
    pub(crate) fn spoils_tile(&self) -> bool {
        self.spoils(|faults| faults.corrupt)
    }

    /// Whether the next KV tile is to hold something else than was computed.
    pub(crate) fn falsifies_tile(&self) -> bool {
        self.spoils(|faults| faults.false_kv)
    }

    /// Whether the next token given by a group led here is to be another than was chosen.
    pub(crate) fn spoils_token(&self) -> bool {
        self.spoils(|faults| faults.lie)
    }

    fn spoils(&self, part: fn(&Faults) -> f64) -> bool {
        let part = self.inner.faults.as_ref().map_or(0.0, |f| part(&f.borrow()));
        part > 0.0 && Faults::hits(part, self.inner.spoilt.fetch_add(1, Ordering::Relaxed))
    }

    /// Hangs up on a peer that is gone or has moved: what waits for it fails now, and the next dial looks where it is then.
    pub fn forget(&self, peer: PeerId) {
        let dial = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        if let Some(dial) = &dial {
            dial.cancel.cancel();
        }
        if let Some(Ok(connection)) = dial.as_ref().and_then(|dial| dial.dialled.peek()) {
            connection.connection.close(CODE_BYE.into(), b"gone");
        }
        self.inner.beside.forget(peer);
        self.inner.around.forget(peer);
        self.inner.known.forget(peer);
    }

    /// Lets go of connections that have ended, and of attempts that failed: the next dial is another one.
    fn forget_ended(&self) {
        let mut dials = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner);
        dials.retain(|_, dial| !dial.is_over());
    }

    /// What is known of links from here, by probes and by what traffic has shown.
    #[must_use]
    pub fn measured(&self) -> Vec<MeasuredLink> {
        self.inner.known.gather();
        self.inner.known.links()
    }

    /// Changes whenever a link from here takes another way, direct or over another peer, or has none any more.
    #[must_use]
    pub fn turns(&self) -> watch::Receiver<u64> {
        self.inner.known.turns()
    }

    /// Holds what leaves to the owner's limit, whenever that changes.
    pub async fn limit_uploads(self, mut rate: watch::Receiver<Option<BytesPerSecond>>) {
        loop {
            let now = *rate.borrow_and_update();
            self.inner.uplink.set(now);
            if rate.changed().await.is_err() {
                return;
            }
        }
    }

    /// Says goodbye to everyone.
    pub fn close(&self) {
        self.inner.endpoint.close(CODE_BYE.into(), b"leaving");
    }
}

/// How large datagrams may be.
#[derive(Clone, Copy, Debug)]
struct Datagrams {
    set: Option<u16>,
    shaped: bool,
}

impl Datagrams {
    /// On the way to there. A link that is pretended is one over Ethernet.
    fn to(self, address: SocketAddr) -> u16 {
        let usual = if self.shaped { tuning::ETHERNET } else { tuning::datagram(address) };
        self.set.unwrap_or(usual).min(tuning::LARGEST)
    }
}

/// Who is at the far end, as the TLS handshake proved.
fn peer_of(connection: &quinn::Connection) -> Option<PeerId> {
    let identity = connection.peer_identity()?;
    peer_of_certificates(identity.downcast_ref::<Vec<CertificateDer<'static>>>()?)
}

fn peer_of_certificates(certificates: &[CertificateDer<'_>]) -> Option<PeerId> {
    let parsed = libp2p_tls::certificate::parse(certificates.first()?).ok()?;
    PeerId::from_libp2p_bytes(&parsed.peer_id().to_bytes())
}

#[cfg(test)]
mod tests;
