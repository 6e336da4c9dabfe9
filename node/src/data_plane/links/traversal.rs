//! The ways to a peer: straight, by its calling us, through a hole punched from both sides, and in a stream of the control
//! plane.
//!
//! The straight way is tried first. Where it is not there within a moment, a connection goes over the control plane
//! ([`super::tunnel`]), and from then on both ends try to meet: over that connection they tell each other where others see their
//! data planes come from, and dial each other at the same time, so that an address translation on either side takes the
//! other's packets for answers. Where only one end is behind one, its own call is enough. New streams take the
//! straight way as soon as it is there; old ones end on the way they began on.

use super::tuning::{self, Transport, Tuning};
use super::{DialAttempt, LinkError, Links, PATIENCE, STREAMS, Stream, priority::StreamKind, prove, tls, tunnel};
use crate::data_plane::carrier::Carried;
use futures::{
    FutureExt, StreamExt,
    stream::{FuturesUnordered, iter},
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::paths::{HEAD_START, retry_after};
use tsnode_protocol::PeerId;
use tsnode_protocol::stream::{ConnectionUse, MEETING_ADDRESSES, Meeting, Opening, SeenAt};

/// How long an address is tried alone before the next one is tried beside it.
const NEXT: Duration = Duration::from_millis(300);
/// How long both ends of a meeting try.
const MEETING: Duration = Duration::from_secs(4);
/// Between two calls to the same address in a meeting: the first may have been what opens the way for the second.
const CALL: Duration = Duration::from_millis(500);
/// How long the call that is to be kept may take after the other has got through.
const GRACE: Duration = Duration::from_millis(900);
/// How long the other of two connections stays at least: the far end may be about to use it.
const QUIET: Duration = Duration::from_secs(3);
/// Peers that are asked where this one is seen, and how long they may take.
const ASKED: usize = 3;
const ANSWER: Duration = Duration::from_secs(1);

/// What is needed for other ways than the straight one.
#[derive(Debug, Default)]
pub(super) struct NatTraversal {
    /// Straight connections that others opened. Held for map operations only.
    met: Mutex<BTreeMap<PeerId, Weak<Tuning>>>,
    /// Where this peer says that its data plane listens.
    own: Mutex<Vec<SocketAddr>>,
    /// Counts what has changed between here and others: ways that were closed may be open now.
    news: watch::Sender<u64>,
}

impl NatTraversal {
    /// `peer` has opened a straight connection.
    pub fn meet(&self, peer: PeerId, connection: &Arc<Tuning>) {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.retain(|_, connection| connection.strong_count() > 0);
        met.insert(peer, Arc::downgrade(connection));
    }

    /// The straight connection that `peer` has opened and not closed.
    pub fn met(&self, peer: PeerId) -> Option<Arc<Tuning>> {
        let connection = self.met.lock().unwrap_or_else(PoisonError::into_inner).get(&peer)?.upgrade()?;
        connection.connection.close_reason().is_none().then_some(connection)
    }

    /// Something between here and others has changed.
    fn is_news(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// What `peer` has opened is no way to it any more.
    pub fn forget(&self, peer: PeerId) {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
    }
}

impl Links {
    /// Says where this peer's data plane listens, as its advert does.
    pub fn listens_at(&self, addresses: &[SocketAddr]) {
        let mut own = self.inner.around.own.lock().unwrap_or_else(PoisonError::into_inner);
        if *own != addresses {
            *own = addresses.to_vec();
            self.inner.around.is_news();
        }
    }

    /// The attempt at a connection, by whatever way.
    pub(super) fn attempt(&self, peer: PeerId, addresses: Vec<SocketAddr>) -> DialAttempt {
        let (cancel, stop) = (CancellationToken::new(), self.inner.stop.clone());
        let (links, cancelled, to) = (self.clone(), cancel.clone(), addresses.clone());
        let dialled = async move {
            let gone = || LinkError::Unreachable { peer, error: "it is gone, or elsewhere now".into() };
            tokio::select! {
                dialled = links.dial(peer, to) => dialled,
                () = cancelled.cancelled() => Err(gone()),
                () = stop.cancelled() => Err(gone()),
            }
        };
        let dialled = dialled.boxed().shared();
        // Goes on when whoever asked for it has gone: else it would stand still, and whoever asks next be told that it took too long.
        crate::tasks::spawn("dial", dialled.clone());
        DialAttempt { dialled, cancel, addresses }
    }

    /// The straight way if it is there in time, else whichever is there first.
    async fn dial(self, peer: PeerId, addresses: Vec<SocketAddr>) -> Result<Arc<Tuning>, LinkError> {
        let mut straight = std::pin::pin!(self.straight(peer, addresses));
        let around = self.around(peer).boxed().shared();
        match timeout(HEAD_START, &mut straight).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => instead(error, around).await,
            Err(_) => tokio::select! {
                result = &mut straight => match result {
                    Ok(connection) => Ok(connection),
                    Err(error) => instead(error, around.clone()).await,
                },
                Some(connection) = around.clone() => Ok(connection),
            },
        }
    }

    /// Tries one address after the other, the next as soon as one has failed or takes long: of IPv4 and IPv6 one may lead nowhere
    /// without a word. The first that answers is kept.
    async fn straight(&self, peer: PeerId, addresses: Vec<SocketAddr>) -> Result<Arc<Tuning>, LinkError> {
        let tls = Arc::new(tls::client(&self.inner.identity, peer)?);
        let mut last = LinkError::NoAddress(peer);
        let (mut waiting, mut calls) = (addresses.into_iter(), FuturesUnordered::new());
        loop {
            calls.extend(waiting.next().map(|address| self.dial_or_give_up(tls.clone(), peer, address)));
            if calls.is_empty() {
                return Err(last);
            }
            let are_more = waiting.len() > 0;
            tokio::select! {
                Some((address, dialled)) = calls.next() => match dialled {
                    Ok(connection) => {
                        self.settle(peer, address, &connection);
                        return Ok(connection);
                    }
                    Err(error) => last = error,
                },
                () = sleep(NEXT), if are_more => {}
            }
        }
    }

    async fn dial_or_give_up(
        &self,
        tls: Arc<quinn::crypto::rustls::QuicClientConfig>,
        peer: PeerId,
        address: SocketAddr,
    ) -> (SocketAddr, Result<Arc<Tuning>, LinkError>) {
        let dialled = tokio::select! {
            dialled = timeout(PATIENCE, self.dial_one(tls, peer, address)) => dialled.unwrap_or(Err(LinkError::TimedOut)),
            () = self.inner.caller.hopeless(peer, address) => Err(LinkError::NobodyThere { peer, address }),
        };
        (address, dialled)
    }

    /// Beside a connection to the same address.
    pub(super) async fn dial_parallel(&self, peer: PeerId, address: SocketAddr) -> Result<Arc<Tuning>, LinkError> {
        let tls = Arc::new(tls::client(&self.inner.identity, peer)?);
        self.connected(peer, self.connecting(tls, address), Transport::Open(address), ConnectionUse::KvStream).await
    }

    async fn dial_one(
        &self,
        tls: Arc<quinn::crypto::rustls::QuicClientConfig>,
        peer: PeerId,
        address: SocketAddr,
    ) -> Result<Arc<Tuning>, LinkError> {
        self.connected(peer, self.connecting(tls, address), Transport::Open(address), ConnectionUse::Anything).await
    }

    fn connecting(
        &self,
        tls: Arc<quinn::crypto::rustls::QuicClientConfig>,
        address: SocketAddr,
    ) -> Result<quinn::Connecting, quinn::ConnectError> {
        let mut config = quinn::ClientConfig::new(tls);
        config.transport_config(Arc::new(tuning::transport(STREAMS, self.inner.datagrams.to(address))));
        self.inner.endpoint.connect_with(config, address, "tsnode")
    }

    async fn connected(
        &self,
        peer: PeerId,
        connecting: Result<quinn::Connecting, quinn::ConnectError>,
        way: Transport,
        used: ConnectionUse,
    ) -> Result<Arc<Tuning>, LinkError> {
        let unreachable = |error: String| LinkError::Unreachable { peer, error };
        let connecting = connecting.map_err(|e| unreachable(e.to_string()))?;
        let connection = Tuning::new(connecting.await.map_err(|e| unreachable(e.to_string()))?, way);
        if used == ConnectionUse::KvStream {
            connection.become_kv_stream();
        }
        prove::as_dialer(&connection, &self.inner.membership, self.inner.me, peer).await?;
        connection.proven(peer, &self.inner.offence_reporter, &self.inner.kv);
        tracing::debug!(%peer, ?way, ?used, "data connection opened");
        Ok(connection)
    }

    /// A straight connection is to be used, from both ends.
    fn settle(&self, peer: PeerId, address: SocketAddr, connection: &Arc<Tuning>) {
        self.inner.doors.meet(address.ip());
        self.inner.known.join(peer, connection);
        self.watch(peer, address, &connection.connection);
        self.serve_on(peer, connection);
    }

    /// Takes the streams that the far end opens on a connection that was dialled here.
    pub(super) fn serve_on(&self, peer: PeerId, connection: &Arc<Tuning>) {
        let Some(streams) = self.inner.streams.upgrade() else { return };
        let (links, connection) = (self.clone(), connection.clone());
        crate::tasks::spawn("NAT traversal", async move {
            tokio::select! {
                () = links.inner.stop.cancelled() => {}
                () = super::accept::serve(peer, &links, &connection, &streams) => {}
            }
        });
    }

    /// Another way than calling `peer`: a connection that it has opened, or one over the control plane.
    async fn around(&self, peer: PeerId) -> Option<Arc<Tuning>> {
        if let Some(connection) = self.inner.around.met(peer) {
            return Some(connection);
        }
        let carried = self.inner.carrier.as_ref()?.open(peer).await?;
        let path = carried.path;
        let dug = timeout(PATIENCE, self.dig(carried)).await.unwrap_or(Err(LinkError::TimedOut));
        let connection = dug.inspect_err(|error| tracing::debug!(%peer, ?path, %error, "no tunnel")).ok()?;
        self.inner.known.join(peer, &connection);
        crate::tasks::spawn("better path", self.clone().improve(peer, connection.clone()));
        Some(connection)
    }

    /// A connection in a stream of the control plane.
    async fn dig(&self, carried: Carried) -> Result<Arc<Tuning>, LinkError> {
        let Carried { peer, path, stream } = carried;
        let mut config = quinn::ClientConfig::new(Arc::new(tls::client(&self.inner.identity, peer)?));
        config.transport_config(Arc::new(tuning::carried(tuning::transport(STREAMS, tuning::LARGEST))));
        let endpoint = tunnel::endpoint(stream, super::settings(), None, self.inner.uplink.clone())
            .map_err(|e| LinkError::Lost(e.to_string()))?;
        self.connected(
            peer,
            endpoint.connect_with(config, tunnel::FAR, "tsnode"),
            Transport::Carried(path),
            ConnectionUse::Anything,
        )
        .await
    }

    /// Looks for a straight way while `connection` is in use, ever more rarely, and soon when something has changed.
    async fn improve(self, peer: PeerId, connection: Arc<Tuning>) {
        let mut news = self.inner.around.news.subscribe();
        let looking = async {
            let mut failures = 0;
            loop {
                let soon = async {
                    sleep(retry_after(failures.min(1))).await;
                    // The sender lives as long as these links.
                    let _ = news.changed().await;
                };
                let is_news = timeout(retry_after(failures), soon).await.is_ok();
                if failures > 0 && !self.uses(peer, &connection) {
                    return;
                }
                match self.meet(peer, &connection).await {
                    Ok(straight) => return self.prefer(peer, straight),
                    Err(error) => tracing::debug!(%peer, %error, failures, "no straight way yet"),
                }
                failures = if is_news { 1 } else { failures + 1 };
            }
        };
        tokio::select! {
            () = self.inner.stop.cancelled() => {}
            _ = connection.connection.closed() => {}
            () = looking => {}
        }
    }

    /// Arranges over `connection` that both ends call each other now, and does its part.
    async fn meet(&self, peer: PeerId, connection: &Arc<Tuning>) -> Result<Arc<Tuning>, LinkError> {
        let own = Meeting { addresses: self.seen_at().await };
        let told = !own.addresses.is_empty();
        let mut stream = Self::open_on(connection, &Opening::Meet(own)).await?;
        let answer = timeout(PATIENCE, stream.receiver.recv::<Meeting>()).await.map_err(|_| LinkError::TimedOut)?;
        let theirs = answer?.ok_or_else(|| LinkError::Lost("it does not want to meet".into()))?;
        theirs.check().map_err(|why| stream.receiver.refuse(why))?;
        stream.sender.finish()?;
        self.call(peer, [self.addresses_of(peer), theirs.addresses].concat(), told).await
    }

    /// The far end of a meeting.
    pub(super) async fn meet_back(&self, peer: PeerId, mut stream: Stream, theirs: Meeting) -> Result<(), LinkError> {
        let own = Meeting { addresses: self.seen_at().await };
        stream.sender.send(&own).await?;
        stream.sender.finish()?;
        let straight = self.call(peer, theirs.addresses, !own.addresses.is_empty()).await?;
        self.prefer(peer, straight);
        Ok(())
    }

    /// Calls `peer` at all of these again and again until it answers, or has called here. Where both calls get through, both ends
    /// keep that of the lower id; where only the other does, they keep that. `told` says whether the far end knows where to call.
    async fn call(&self, peer: PeerId, mut addresses: Vec<SocketAddr>, told: bool) -> Result<Arc<Tuning>, LinkError> {
        addresses.sort();
        addresses.dedup();
        let tls = Arc::new(tls::client(&self.inner.identity, peer)?);
        let first = self.inner.me < peer;
        let hopeful = if first { !addresses.is_empty() } else { told };
        let grace = if hopeful { GRACE } else { Duration::ZERO };
        let calling = async {
            let (mut calls, mut again) = (FuturesUnordered::new(), interval(CALL));
            let (mut own, mut since): (Option<Arc<Tuning>>, Option<Instant>) = (None, None);
            loop {
                tokio::select! {
                    _ = again.tick() => if own.is_none() {
                        for address in addresses.iter().copied() {
                            let call = self.dial_one(tls.clone(), peer, address);
                            calls.push(call.map(move |called| called.map(|connection| (address, connection))));
                        }
                    },
                    Some(Ok((address, connection))) = calls.next(), if own.is_none() => {
                        self.settle(peer, address, &connection);
                        own = Some(connection);
                    }
                }
                let theirs = self.inner.around.met(peer);
                let (kept, spare) = if first { (&own, &theirs) } else { (&theirs, &own) };
                let waited = spare.is_some() && since.get_or_insert_with(Instant::now).elapsed() >= grace;
                match (kept, spare) {
                    (Some(kept), spare) => {
                        spare.iter().for_each(|spare| self.retire(peer, spare.clone()));
                        return kept.clone();
                    }
                    (None, Some(spare)) if waited => return spare.clone(),
                    (None, _) => {}
                }
            }
        };
        // What got through last is still waited beside.
        timeout(MEETING + GRACE, calling).await.map_err(|_| LinkError::TimedOut)
    }

    /// Closes a connection beside another once nobody uses it: streams on it end by themselves, and no new ones take it.
    fn retire(&self, peer: PeerId, connection: Arc<Tuning>) {
        let links = self.clone();
        crate::tasks::spawn("path", async move {
            let unused = async {
                loop {
                    sleep(QUIET).await;
                    // Held here and by the task that waits for its streams; each stream holds it, too.
                    if !links.uses(peer, &connection) && Arc::strong_count(&connection) <= 2 {
                        return;
                    }
                }
            };
            tokio::select! {
                () = links.inner.stop.cancelled() => return,
                _ = connection.connection.closed() => return,
                () = unused => {}
            }
            tracing::debug!(%peer, "the other of two connections is closed");
            connection.connection.close(super::CODE_BYE.into(), b"one is enough");
        });
    }

    /// New streams take this way from now on, unless they take a straight one already.
    fn prefer(&self, peer: PeerId, connection: Arc<Tuning>) {
        let mut dials = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = dials.get(&peer).map(|dial| dial.addresses.clone()).unwrap_or_default();
        let straight =
            |dial: &DialAttempt| !dial.is_over() && dial.way().is_some_and(|way| matches!(way, Transport::Open(_)));
        if !dials.get(&peer).is_some_and(straight) {
            tracing::info!(%peer, "a straight way is found: new streams take it");
            self.inner.around.is_news();
            let dialled = std::future::ready(Ok(connection)).boxed().shared();
            // Looked at, so that it counts as being there.
            let _ = dialled.clone().now_or_never();
            dials.insert(peer, DialAttempt { dialled, cancel: CancellationToken::new(), addresses });
        }
    }

    /// Whether new streams take this way.
    fn uses(&self, peer: PeerId, connection: &Arc<Tuning>) -> bool {
        let dials = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner);
        let used = dials.get(&peer).and_then(|dial| dial.dialled.peek()?.as_ref().ok());
        used.is_some_and(|used| Arc::ptr_eq(used, connection))
    }

    fn addresses_of(&self, peer: PeerId) -> Vec<SocketAddr> {
        let dials = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner);
        dials.get(&peer).map(|dial| dial.addresses.clone()).unwrap_or_default()
    }

    /// Where this peer may be called: where others see it come from, and where it listens.
    pub(super) async fn seen_at(&self) -> Vec<SocketAddr> {
        let connections: Vec<Arc<Tuning>> = {
            let dials = self.inner.dials.lock().unwrap_or_else(PoisonError::into_inner);
            let straight = |dial: &DialAttempt| match dial.dialled.peek() {
                Some(Ok(connection)) if !dial.is_over() && matches!(connection.way, Transport::Open(_)) => {
                    Some(connection.clone())
                }
                _ => None,
            };
            dials.values().filter_map(straight).take(ASKED).collect()
        };
        let ask = |connection| async move { timeout(ANSWER, ask_where(&connection)).await.ok()?.ok()?.address };
        let mut seen: Vec<SocketAddr> =
            iter(connections).map(ask).buffer_unordered(ASKED).filter_map(std::future::ready).collect().await;
        seen.extend(self.inner.around.own.lock().unwrap_or_else(PoisonError::into_inner).iter().copied());
        let mut distinct: Vec<SocketAddr> = Vec::new();
        for address in seen {
            if !distinct.contains(&address) {
                distinct.push(address);
            }
        }
        distinct.truncate(MEETING_ADDRESSES);
        distinct
    }

    /// A stream over just this connection.
    pub(super) async fn open_on(connection: &Arc<Tuning>, opening: &Opening) -> Result<Stream, LinkError> {
        let opened = timeout(PATIENCE, connection.connection.open_bi()).await.map_err(|_| LinkError::TimedOut)?;
        let halves = opened.map_err(|e| LinkError::Lost(e.to_string()))?;
        let mut stream = Stream::new(halves, StreamKind::of(opening), connection);
        if matches!(opening, Opening::Kv(_)) {
            stream.sender.count(connection.meter.leaving.kv());
        }
        stream.sender.send(opening).await?;
        Ok(stream)
    }
}

/// Another way, where the straight one leads nowhere. A peer whose process is gone has none either, and what waits for it can go
/// on elsewhere; one that is somewhere else behind a relay has a connection of the control plane most likely, and needs no longer.
async fn instead(
    error: LinkError,
    around: impl Future<Output = Option<Arc<Tuning>>>,
) -> Result<Arc<Tuning>, LinkError> {
    let found = match error {
        LinkError::NobodyThere { .. } => timeout(HEAD_START, around).await.ok().flatten(),
        _ => around.await,
    };
    found.ok_or(error)
}

async fn ask_where(connection: &Arc<Tuning>) -> Result<SeenAt, LinkError> {
    let mut stream = Links::open_on(connection, &Opening::Where).await?;
    let seen = stream.receiver.recv().await?.ok_or_else(|| LinkError::Lost("it does not say".into()))?;
    stream.sender.finish()?;
    Ok(seen)
}
