//! Tells a peer that has died from one that is slow, at once: beside each data connection both ends hold an idle TCP
//! connection to the port number after the other's.
//!
//! When a process ends, however it ends, its system closes its TCP connections and refuses new ones; UDP just falls
//! silent. A broken lifeline is therefore tried again, and only a refusal by the far end's system counts: where nothing
//! answers (a cable, a power cut, a firewall) silence and QUIC's own idle timeout decide, as they do for peers whose TCP
//! port cannot be reached. Both ends say who they are, the dialer with a proof of its membership: those that do not are let go
//! ([`crate::data_plane::doors`]). Nothing else is said on a lifeline.

use super::Links;
use crate::data_plane::doors::{Doors, Place};
use crate::data_plane::offences::OffenceReporter;
use crate::faults::{Faults, Wall};
use crate::platform;
use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::places::{Origin, Regard};
use tsnode_protocol::PeerId;
use tsnode_protocol::proof::{Code, ConnectionSide, Ends, Membership, Nonce};

/// How long one may take to say whose it is: a round trip over the slowest links we serve.
const PROOF: Duration = Duration::from_secs(5);
/// One whose owner is known is silent for as long as it likes.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Dials that the system keeps until they are accepted.
const WAITING: i32 = 1024;
/// How long a lifeline may take to be had.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after one that broke and could be had again.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause after one that broke again while it was had: a system that ends a process closes one socket after the other.
const BREATH: Duration = Duration::from_millis(20);
/// After such a silence a connection is over whose far end has refused the first lifeline.
const SILENCE: Duration = Duration::from_secs(2);
const _: () =
    assert!(SILENCE.as_millis() > super::KEEP_ALIVE.as_millis() && SILENCE.as_millis() < super::IDLE.as_millis());
/// How long a dial goes on where lifelines are refused: a handshake over a slow link takes two round trips.
pub(super) const HOPELESS: Duration = Duration::from_millis(1500);
/// After so many of those the far end does not want it.
const TRIES: u32 = 3;

/// Holds others' lifelines.
pub(super) struct LifelineHolder {
    pub me: PeerId,
    pub membership: Membership,
    pub doors: Doors,
    pub offence_reporter: OffenceReporter,
    /// What is broken on purpose, where a testnet may.
    pub faults: Option<watch::Receiver<Faults>>,
}

impl LifelineHolder {
    /// Until `stop`.
    pub async fn hold(self, listener: TcpListener, stop: CancellationToken) {
        crate::tasks::spawn("liveness door", self.doors.unproven.clone().watch(stop.clone()));
        let holder = Arc::new(self);
        loop {
            holder.doors.unproven.room().await;
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((line, from)) = accepted else {
                // Out of files, most likely: the next may fare better.
                sleep(PAUSE).await;
                continue;
            };
            if holder.faults.as_ref().is_some_and(|faults| faults.borrow().wall != Wall::None) {
                continue;
            }
            let origin = from.ip().into();
            let Some(place) = holder.doors.unproven.enter(origin, holder.doors.regard(origin), PROOF) else { continue };
            let (holder, stop) = (holder.clone(), stop.clone());
            crate::tasks::spawn("liveness connection", async move {
                stop.run_until_cancelled(holder.keep(line, place)).await
            });
        }
    }

    /// One of them: it has a place among strangers' until it has said whose it is, and then one among members'.
    async fn keep(&self, mut line: TcpStream, place: Place<Origin>) {
        let Some(Ok(peer)) = place.gone().run_until_cancelled(self.whose(&mut line)).await else { return };
        drop(place);
        if self.offence_reporter.keeps_out(peer) {
            return;
        }
        // All are alike here, and who holds most gives way.
        let Some(place) = self.doors.lifelines.enter(peer, Regard::Known, FOR_EVER) else { return };
        // Resolves when the far end has gone, or says what nobody asked for.
        let _ = place.gone().run_until_cancelled(line.read(&mut [0])).await;
    }

    /// Says who is here, and asks who is there.
    async fn whose(&self, line: &mut TcpStream) -> Result<PeerId, Error> {
        let nonce = Nonce(crate::random_bytes());
        line.write_all(&[self.me.0, nonce.0].concat()).await?;
        let (mut peer, mut code) = (PeerId([0; 32]), Code([0; 32]));
        line.read_exact(&mut peer.0).await?;
        line.read_exact(&mut code.0).await?;
        let ends = Ends::of_lifeline(peer, self.me, nonce);
        let is_member = self.membership.accepts(ConnectionSide::Dialer, &ends, code);
        is_member.then_some(peer).ok_or_else(|| Error::from(ErrorKind::PermissionDenied))
    }
}

/// Holds lifelines at others, as many as there are files for.
#[derive(Clone)]
pub(super) struct Caller {
    me: PeerId,
    membership: Membership,
    calls: Arc<Semaphore>,
    unanswered: Unanswered,
}

/// Calls that others' systems have taken for processes that have not answered them yet, and since when. Held for set operations only.
type Unanswered = Arc<Mutex<BTreeSet<(PeerId, Instant)>>>;

/// One of them, until it is answered, or nobody waits for that any more.
struct LifelineCall {
    peer: PeerId,
    taken: Instant,
    unanswered: Unanswered,
}

impl LifelineCall {
    fn taken(peer: PeerId, unanswered: &Unanswered) -> Self {
        let (taken, unanswered) = (Instant::now(), unanswered.clone());
        lock(&unanswered).insert((peer, taken));
        Self { peer, taken, unanswered }
    }
}

impl Drop for LifelineCall {
    fn drop(&mut self) {
        lock(&self.unanswered).remove(&(self.peer, self.taken));
    }
}

fn lock(unanswered: &Unanswered) -> MutexGuard<'_, BTreeSet<(PeerId, Instant)>> {
    unanswered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lifeline at another.
struct LifelineStream {
    stream: TcpStream,
    peer: PeerId,
    _call: OwnedSemaphorePermit,
}

impl Links {
    /// Watches the far end of a data connection for as long as that lives; closes it, and says so, should the far end's
    /// system refuse to know the process any more. Data planes dial from where they listen, so that either end knows where
    /// the other's lifelines are, unless there is an address translation between them.
    pub(super) fn watch(&self, peer: PeerId, address: SocketAddr, connection: &quinn::Connection) {
        let (links, connection) = (self.clone(), connection.clone());
        crate::tasks::spawn("liveness connection", async move {
            let closed = connection.clone();
            let refused = tokio::select! {
                _ = closed.closed() => false,
                refused = links.inner.caller.until_refused(peer, beside(address), falls_silent(&connection)) => refused,
            };
            if refused {
                tracing::debug!(%peer, %address, "its process is gone");
                connection.close(super::CODE_BYE.into(), b"gone");
                // The process is shutting down when nobody listens.
                let _ = links.inner.gone.send(peer).await;
            }
        });
    }

    /// A peer's control connection has broken off. Where no data connection has a liveness connection beside it yet, as soon after a
    /// start, its system is asked whether the process has ended: then it refuses both that and a control connection. One of them may be
    /// refused by a process that lives, as there are peers without liveness connections.
    pub fn ask_system(&self, peer: PeerId, data_plane: SocketAddr, control: SocketAddr) {
        let (links, stop) = (self.clone(), self.inner.stop.clone());
        let is_watched = move || !links.inner.known.connections(peer).is_empty();
        if is_watched() {
            return;
        }
        let links = self.clone();
        let ask = async move {
            // A system that ends a process closes one socket after the other.
            sleep(BREATH).await;
            let caller = &links.inner.caller;
            let (line, control) = tokio::join!(caller.dial_again(peer, beside(data_plane)), is_refused(control));
            let refused = line.err().is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused);
            if refused && control && !is_watched() {
                tracing::debug!(%peer, %data_plane, "its process is gone, by its system's word");
                // The process is shutting down when nobody listens.
                let _ = links.inner.gone.send(peer).await;
            }
        };
        crate::tasks::spawn("liveness call", async move { stop.run_until_cancelled(ask).await });
    }
}

/// Whether a system refuses a connection there.
async fn is_refused(address: SocketAddr) -> bool {
    let dialled = timeout(PATIENCE, TcpStream::connect(address)).await;
    matches!(dialled, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

impl Caller {
    /// For this member.
    pub fn new(me: PeerId, membership: Membership, calls: usize) -> Self {
        Self { me, membership, calls: Arc::new(Semaphore::new(calls)), unanswered: Unanswered::default() }
    }

    /// For how long a peer's system has held a call that its process has not answered, where there is one: stopped processes answer
    /// none, and busy ones soon.
    pub fn unanswered(&self, peer: PeerId) -> Option<Duration> {
        let calls = lock(&self.unanswered);
        calls.iter().find(|(called, _)| *called == peer).map(|(_, taken)| taken.elapsed())
    }

    /// Holds a lifeline until the far end refuses another (true), or there is none to be had (false). Where the first is refused
    /// the process has none, or has ended since the handshake: then it `falls_silent`.
    async fn until_refused(&self, peer: PeerId, address: SocketAddr, falls_silent: impl Future<Output = bool>) -> bool {
        let mut line = match self.dial_again(peer, address).await {
            Ok(line) => line,
            Err(error) => return error.kind() == ErrorKind::ConnectionRefused && falls_silent.await,
        };
        for _ in 0..TRIES {
            self.hold(line).await;
            match self.dial_again(peer, address).await {
                Ok(again) => line = again,
                Err(error) => return error.kind() == ErrorKind::ConnectionRefused,
            }
            sleep(PAUSE).await;
        }
        false
    }

    /// Says whose it is where that is asked, until it breaks.
    async fn hold(&self, mut line: LifelineStream) {
        let mut nonce = Nonce([0; 32]);
        if line.stream.read_exact(&mut nonce.0).await.is_err() {
            return;
        }
        let code = self.membership.code(ConnectionSide::Dialer, &Ends::of_lifeline(self.me, line.peer, nonce));
        if line.stream.write_all(&[self.me.0, code.0].concat()).await.is_ok() {
            let _ = line.stream.read(&mut [0]).await;
        }
    }

    /// A lifeline, or another where one has broken. One that breaks before it is had says nothing: the listener of a process that
    /// is being ended may be closed after the connections.
    async fn dial_again(&self, peer: PeerId, address: SocketAddr) -> Result<LifelineStream, Error> {
        for _ in 1..TRIES {
            match self.dial(peer, address).await {
                Err(error) if is_broken(error.kind()) => sleep(BREATH).await,
                said => return said,
            }
        }
        self.dial(peer, address).await
    }

    /// Resolves when a dial that has not succeeded by then will not: the far end's system refuses lifelines, as it does when a
    /// peer has started again elsewhere, or has ended the one it gave during the dial. A peer that has no lifelines is refused
    /// too, and must answer within [`HOPELESS`].
    pub async fn hopeless(&self, peer: PeerId, data_plane: SocketAddr) {
        let without_one = async {
            sleep(HOPELESS).await;
            true
        };
        if !self.until_refused(peer, beside(data_plane), without_one).await {
            std::future::pending().await
        }
    }

    /// A connection to a port that says it is `peer`'s.
    async fn dial(&self, peer: PeerId, address: SocketAddr) -> Result<LifelineStream, Error> {
        // As many as there are files for are held: others are done without.
        let call = self.calls.clone().try_acquire_owned().map_err(|_| Error::from(ErrorKind::QuotaExceeded))?;
        let greeted = async {
            let mut stream = TcpStream::connect(address).await?;
            let _unanswered = LifelineCall::taken(peer, &self.unanswered);
            let mut id = [0; 32];
            stream.read_exact(&mut id).await?;
            if id == peer.0 {
                Ok(LifelineStream { stream, peer, _call: call })
            } else {
                Err(Error::from(ErrorKind::InvalidData))
            }
        };
        timeout(PATIENCE, greeted).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
    }
}

/// Whether nothing more comes by a connection.
async fn falls_silent(connection: &quinn::Connection) -> bool {
    let heard = || connection.stats().udp_rx.datagrams;
    let before = heard();
    sleep(SILENCE).await;
    heard() == before
}

fn is_broken(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Where the lifelines of a data plane end: at the next number, since HTTP has the data plane's on TCP.
pub(crate) fn beside(data_plane: SocketAddr) -> SocketAddr {
    SocketAddr::new(data_plane.ip(), data_plane.port().checked_add(1).unwrap_or(data_plane.port() - 1))
}

/// The listener for lifelines of a data plane; without one others do without.
///
/// # Errors
/// When that address cannot be had.
pub(super) fn listen(data_plane: SocketAddr) -> Result<TcpListener, Error> {
    socket(beside(data_plane)).and_then(TcpListener::from_std)
}

fn socket(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    platform::reuse_address(&socket)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}

/// Peers whose process is gone.
pub type GonePeers = mpsc::Receiver<PeerId>;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::sync::DropGuard;
    use tsnode_protocol::SwarmId;

    fn swarm(n: u8) -> Membership {
        Membership::new(SwarmId([n; 16]), None)
    }

    fn caller() -> Caller {
        Caller::new(PeerId([9; 32]), swarm(1), 8)
    }

    /// Lifelines end at this address, with places for so many files.
    fn holder(files: u64) -> (PeerId, SocketAddr, Doors, DropGuard) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (me, doors, stop) = (PeerId([1; 32]), Doors::of(files), CancellationToken::new());
        let (offence_reporter, offence_receiver) = OffenceReporter::channel();
        let holder = LifelineHolder { me, membership: swarm(1), doors: doors.clone(), offence_reporter, faults: None };
        let held = holder.hold(TcpListener::from_std(listener).unwrap(), stop.clone());
        crate::tasks::spawn("test", async move {
            held.await;
            drop(offence_receiver);
        });
        (me, address, doors, stop.drop_guard())
    }

    #[tokio::test]
    async fn strangers_lifelines_go_and_members_stay() {
        let (peer, address, doors, _stop) = holder(256);
        let line = caller().dial(peer, address).await.unwrap();
        let mut member = crate::tasks::spawn("test", async move { caller().hold(line).await });
        while doors.lifelines.is_empty() {
            assert!(timeout(BREATH, &mut member).await.is_err(), "it is kept");
        }
        let mut idle = Vec::new();
        for _ in 0..4 * doors.shares.lifelines_unproven.places {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        // All of them are told who is here, and none stays.
        for mut line in idle {
            let mut said = Vec::new();
            timeout(2 * PROOF, line.read_to_end(&mut said)).await.unwrap().ok();
            assert!(said.is_empty() || said.starts_with(&peer.0));
        }
        assert!(!member.is_finished(), "whose it is was known");
        let again = caller().dial(peer, address).await.unwrap();
        let stranger = Caller { membership: swarm(2), ..caller() };
        timeout(PATIENCE, stranger.hold(again)).await.unwrap();
    }

    #[tokio::test]
    async fn no_more_lifelines_are_held_at_others_than_there_are_files_for() {
        let (peer, address, _, _stop) = holder(256);
        let (caller, mut lines) = (caller(), Vec::new());
        for _ in 0..8 {
            lines.push(caller.dial(peer, address).await.unwrap());
        }
        assert_eq!(caller.dial(peer, address).await.err().unwrap().kind(), ErrorKind::QuotaExceeded);
        lines.pop();
        caller.dial(peer, address).await.unwrap();
    }

    #[tokio::test]
    async fn a_call_that_a_system_takes_for_a_stopped_process_is_unanswered_until_that_goes_on() {
        let (peer, listener) = (PeerId([1; 32]), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (address, caller) = (listener.local_addr().unwrap(), caller());
        assert_eq!(caller.unanswered(peer), None);
        let goes_on = async {
            while caller.unanswered(peer).is_none() {
                sleep(Duration::from_millis(1)).await;
            }
            let (mut line, _) = listener.accept().await.unwrap();
            line.write_all(&peer.0).await.unwrap();
            line
        };
        let both = async { tokio::join!(caller.dial(peer, address), goes_on) };
        let (called, _line) = timeout(2 * PATIENCE, both).await.unwrap();
        assert!(called.is_ok() && caller.unanswered(peer).is_none());
    }

    #[tokio::test]
    async fn a_process_whose_listener_closes_after_its_connections_is_gone_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (peer, address) = (PeerId([1; 32]), listener.local_addr().unwrap());
        let dying = async move {
            let (mut line, _) = listener.accept().await.unwrap();
            line.write_all(&peer.0).await.unwrap();
            drop(line);
            // Let in once more, and dropped without a word.
            listener.accept().await.unwrap();
        };
        let caller = caller();
        let (refused, ()) = tokio::join!(caller.until_refused(peer, address, async { false }), dying);
        assert!(refused);
    }

    #[tokio::test]
    async fn a_dial_is_hopeless_once_the_process_has_ended_and_not_before() {
        let (peer, listener) = (PeerId([1; 32]), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let mut data_plane = listener.local_addr().unwrap();
        data_plane.set_port(data_plane.port() - 1);
        let caller = caller();
        let mut over = std::pin::pin!(caller.hopeless(peer, data_plane));
        let greeting = async {
            let (mut line, _) = listener.accept().await.unwrap();
            line.write_all(&peer.0).await.unwrap();
            line
        };
        let line = tokio::select! {
            line = greeting => line,
            () = &mut over => panic!("it lives"),
        };
        assert!(timeout(2 * HOPELESS, &mut over).await.is_err(), "it lives");
        drop((line, listener));
        timeout(HOPELESS, over).await.unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ended_before_its_first_lifeline_is_gone_once_it_says_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (peer, address) = (PeerId([1; 32]), listener.local_addr().unwrap());
        drop(listener);
        for is_silent in [true, false] {
            assert_eq!(caller().until_refused(peer, address, async { is_silent }).await, is_silent);
        }
    }
}
