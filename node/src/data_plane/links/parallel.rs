//! Connections beside a peer's first, for KV transfers that one core would not keep up with.
//!
//! They are dialled where the first one goes, carry KV and nothing else, and are closed when none has gone over them for a
//! while. What one of them shows is a part of what the link carries.

use super::tuning::{Transport, Tuning};
use super::{DialAttempt, LinkError, Links, PATIENCE, Stream};
use futures::FutureExt;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{KvStream, PeerId, stream::Opening};

/// How long a KV transfer waits for other connections before it does without those that are not there.
const MOMENT: Duration = Duration::from_millis(100);
/// How long one that was not to be had is not asked for again.
const LATER: Duration = Duration::from_secs(30);
/// How long one is kept that nothing goes over.
const UNUSED: Duration = Duration::from_secs(60);

/// Connections, by peer and number.
#[derive(Default)]
pub(super) struct ParallelConnections(Mutex<BTreeMap<(PeerId, u8), Extra>>);

/// One of them, or the attempt at one.
struct Extra {
    dial: DialAttempt,
    /// Where it goes.
    to: SocketAddr,
    since: Instant,
    used: Instant,
}

impl Extra {
    fn connection(&self) -> Option<&Arc<Tuning>> {
        self.dial.dialled.peek()?.as_ref().ok()
    }

    /// Whether another may be dialled in its place, to there: what goes over it ends where it began.
    fn is_done(&self, to: SocketAddr) -> bool {
        let failed = matches!(self.dial.dialled.peek(), Some(Err(_)));
        if failed { self.since.elapsed() >= LATER } else { self.dial.is_over() || (self.to != to && self.is_idle()) }
    }

    /// Whether nothing goes over it: it is held here and by the task that waits for streams, and each stream holds it, too.
    fn is_idle(&self) -> bool {
        self.connection().is_none_or(|connection| Arc::strong_count(connection) <= 2)
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        self.dial.cancel.cancel();
        if let Some(connection) = self.connection() {
            connection.connection.close(super::CODE_BYE.into(), b"unused");
        }
    }
}

impl ParallelConnections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PeerId, u8), Extra>> {
        // Held for map operations only.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes those to a peer that is gone.
    pub fn forget(&self, peer: PeerId) {
        self.lock().retain(|(of, _), _| *of != peer);
    }

    /// Closes those that nothing has gone over for a while.
    pub fn sweep(&self) {
        self.lock().retain(|_, extra| extra.used.elapsed() < UNUSED || !extra.is_idle());
    }
}

/// Connections to one peer that share a KV transfer; one at least.
pub struct Connections(pub(super) Vec<Arc<Tuning>>);

impl Connections {
    /// A parallel stream for each of them.
    pub fn kv_streams(&self) -> impl Iterator<Item = KvStream> + use<> {
        KvStream::beside(u8::try_from(self.0.len()).unwrap_or(1))
    }

    /// Opens a stream on the connection of a parallel stream.
    ///
    /// # Errors
    /// When it is lost.
    pub async fn open(&self, kv_stream: KvStream, opening: &Opening) -> Result<Stream, LinkError> {
        let connection = self
            .0
            .get(usize::from(kv_stream.index))
            .ok_or_else(|| LinkError::Lost("no such parallel stream".into()))?;
        Links::open_on(connection, opening).await
    }
}

impl Links {
    /// The connections that are to share a KV transfer of so many bytes and layers to `peer`.
    ///
    /// # Errors
    /// When no address answers as that peer of this swarm, in time.
    pub async fn connections(
        &self,
        peer: PeerId,
        addresses: &[SocketAddr],
        bytes: u64,
        layers: u32,
    ) -> Result<Connections, LinkError> {
        let first = self.connection(peer, addresses).await?;
        let mut connections = vec![first.clone()];
        let Transport::Open(to) = first.way else { return Ok(Connections(connections)) };
        let link = self.inner.known.link(peer);
        let dials = (1..self.inner.kv_streams.of(link.as_ref(), bytes, layers)).map_while(|n| self.beside(peer, to, n));
        let (dials, until): (Vec<super::Dialled>, _) = (dials.collect(), Instant::now() + MOMENT);
        for dialled in dials {
            match timeout_at(until, dialled).await {
                Ok(Ok(connection)) => connections.push(connection),
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no connection beside the first"),
                // It is there for the next one.
                Err(_) => {}
            }
        }
        Ok(Connections(connections))
    }

    /// The attempt at another connection; none where the one there is goes elsewhere.
    fn beside(&self, peer: PeerId, to: SocketAddr, number: u8) -> Option<super::Dialled> {
        let now = Instant::now();
        let mut extras = self.inner.beside.lock();
        if extras.get(&(peer, number)).is_some_and(|extra| extra.is_done(to)) {
            extras.remove(&(peer, number));
        }
        let extra = extras.entry((peer, number)).or_insert_with(|| {
            let (links, cancel) = (self.clone(), CancellationToken::new());
            let dialled = links.clone().dial_beside(peer, to, cancel.clone()).boxed().shared();
            // Goes on when the KV transfer that asked for it does without.
            crate::tasks::spawn("parallel dial", dialled.clone());
            Extra { dial: DialAttempt { dialled, cancel, addresses: vec![to] }, to, since: now, used: now }
        });
        if extra.to != to {
            return None;
        }
        extra.used = now;
        Some(extra.dial.dialled.clone())
    }

    async fn dial_beside(
        self,
        peer: PeerId,
        to: SocketAddr,
        cancel: CancellationToken,
    ) -> Result<Arc<Tuning>, LinkError> {
        let gone = || LinkError::Unreachable { peer, error: "it is gone, or nobody needs it any more".into() };
        let connection = tokio::select! {
            biased;
            () = self.inner.stop.cancelled() => return Err(gone()),
            () = cancel.cancelled() => return Err(gone()),
            dialled = timeout(PATIENCE, self.dial_parallel(peer, to)) => dialled.unwrap_or(Err(LinkError::TimedOut))?,
        };
        self.inner.known.join(peer, &connection);
        self.serve_on(peer, &connection);
        Ok(connection)
    }
}
