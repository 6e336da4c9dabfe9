//! Connections beside a peer's first, for hand-overs that one core would not keep up with.
//!
//! They are dialled where the first one goes, carry KV and nothing else, and are closed when none has gone over them for a
//! while. What one of them shows is a part of what the link carries.

use super::tuning::{Tuning, Way};
use super::{Dial, LinkError, Links, PATIENCE, Stream};
use futures::FutureExt;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Lane, PeerId, stream::Opening};

/// How long a hand-over waits for another connection before it does without.
const MOMENT: Duration = Duration::from_millis(100);
/// How long one that was not to be had is not asked for again.
const LATER: Duration = Duration::from_secs(30);
/// How long one is kept that nothing goes over.
const UNUSED: Duration = Duration::from_secs(60);

/// Connections, by peer and number.
#[derive(Default)]
pub(super) struct Beside(Mutex<BTreeMap<(PeerId, u8), Extra>>);

/// One of them, or the attempt at one.
struct Extra {
    dial: Dial,
    /// Where it goes.
    to: SocketAddr,
    since: Instant,
    used: Instant,
}

impl Extra {
    fn road(&self) -> Option<&Arc<Tuning>> {
        self.dial.dialled.peek()?.as_ref().ok()
    }

    /// Whether another is to be dialled in its place.
    fn is_done(&self, to: SocketAddr) -> bool {
        let failed = matches!(self.dial.dialled.peek(), Some(Err(_)));
        if failed { self.since.elapsed() >= LATER } else { self.dial.is_over() || self.to != to }
    }

    /// Whether nothing goes over it: it is held here and by the task that waits for streams, and each stream holds it, too.
    fn is_unused(&self) -> bool {
        self.used.elapsed() >= UNUSED && self.road().is_none_or(|road| Arc::strong_count(road) <= 2)
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        self.dial.cancel.cancel();
        if let Some(road) = self.road() {
            road.connection.close(super::CODE_BYE.into(), b"unused");
        }
    }
}

impl Beside {
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
        self.lock().retain(|_, extra| !extra.is_unused());
    }
}

/// Connections to one peer that share a hand-over; one at least.
pub struct Roads(pub(super) Vec<Arc<Tuning>>);

impl Roads {
    /// A lane for each of them.
    pub fn lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        Lane::beside(u8::try_from(self.0.len()).unwrap_or(1))
    }

    /// Opens a stream on the connection of a lane.
    ///
    /// # Errors
    /// When it is lost.
    pub async fn open(&self, lane: Lane, opening: &Opening) -> Result<Stream, LinkError> {
        let road = self.0.get(usize::from(lane.index)).ok_or_else(|| LinkError::Lost("no such lane".into()))?;
        Links::open_on(road, opening).await
    }
}

impl Links {
    /// The connections that are to share a hand-over of so many bytes and layers to `peer`.
    ///
    /// # Errors
    /// When no address answers as that peer of this swarm, in time.
    pub async fn roads(
        &self,
        peer: PeerId,
        addresses: &[SocketAddr],
        bytes: u64,
        layers: u32,
    ) -> Result<Roads, LinkError> {
        let first = self.road(peer, addresses).await?;
        let mut roads = vec![first.clone()];
        let Way::Open(to) = first.way else { return Ok(Roads(roads)) };
        let link = self.inner.known.link(peer);
        for number in 1..self.inner.lanes.of(link.as_ref(), bytes, layers) {
            let dialled = self.beside(peer, to, number);
            match timeout(MOMENT, dialled).await {
                Ok(Ok(road)) => roads.push(road),
                Ok(Err(error)) => {
                    tracing::debug!(%peer, number, %error, "no connection beside the first");
                    break;
                }
                // It is there for the next one.
                Err(_) => break,
            }
        }
        if roads.len() > 1 {
            roads.iter().for_each(|road| road.share());
        }
        Ok(Roads(roads))
    }

    fn beside(&self, peer: PeerId, to: SocketAddr, number: u8) -> super::Dialled {
        let now = Instant::now();
        let mut extras = self.inner.beside.lock();
        if extras.get(&(peer, number)).is_some_and(|extra| extra.is_done(to)) {
            extras.remove(&(peer, number));
        }
        let extra = extras.entry((peer, number)).or_insert_with(|| {
            let (links, cancel) = (self.clone(), CancellationToken::new());
            let cancelled = cancel.clone();
            let dialled = async move {
                tokio::select! {
                    dialled = timeout(PATIENCE, links.dial_beside(peer, to)) => dialled.unwrap_or(Err(LinkError::TimedOut)),
                    () = cancelled.cancelled() => Err(LinkError::Unreachable { peer, error: "it is gone, or elsewhere now".into() }),
                }
            };
            let dial = Dial { dialled: dialled.boxed().shared(), cancel, addresses: vec![to] };
            Extra { dial, to, since: now, used: now }
        });
        extra.used = now;
        extra.dial.dialled.clone()
    }

    async fn dial_beside(&self, peer: PeerId, to: SocketAddr) -> Result<Arc<Tuning>, LinkError> {
        let road = self.dial_at(peer, to).await?;
        road.share();
        self.inner.known.join(peer, &road);
        self.serve_on(peer, &road);
        Ok(road)
    }
}
