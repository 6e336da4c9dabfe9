//! Datagrams leave no faster than the owner allows, and as late and slow as a network that is pretended; a full queue drops
//! them.
//!
//! The queue stands where a router's would, below QUIC, so that congestion control, acknowledgements and loss are real. Every peer's
//! socket is behind it, since its owner may set a limit at any time; as long as nothing is limited, datagrams pass it by.

use super::uplink::{Uplink, within_a_day};
use super::{IDLE, KEEP_ALIVE};
use crate::data_plane::listening::canonical;
use crate::faults::{Faults, Wall};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{BytesPerSecond, limits};

/// Datagrams between QUIC and the queue; above it they are dropped.
const WAITING: usize = 4096;
/// A router's buffer: what the link carries in this time, and never less than this many bytes.
const BUFFER: Duration = Duration::from_millis(60);
const BUFFER_BYTES: f64 = 128.0 * 1024.0;
/// Datagrams that leave together, which costs a tenth of leaving one by one: as many as the link carries in this time, and
/// QUIC gives.
const TOGETHER: Duration = Duration::from_micros(250);
const MOST_TOGETHER: f64 = 10.0;
/// How long a wall that is pretended remembers who was called.
const REMEMBERED: Duration = Duration::from_secs(30);
/// What would arrive so soon arrives now: timers wake a millisecond later than asked, and a link of 1 Gbit/s has no such
/// latency. Rates are kept by when each link is free again.
const SOON: Duration = Duration::from_micros(500);
/// A full datagram, about.
const DATAGRAM: f64 = 1452.0;

/// The least that an owner may limit uploads to (Mbit/s). Signs of life wait in the same line as KV, and with what is on a connection
/// both ends of it know each other's silence: behind a full buffer two keep-alives, of which one may be lost, must come before a peer is
/// taken for dead. A call for who has not been heard is answered over the control plane, which is not held to the limit, and so are
/// digests: a heartbeat that waits so long costs some gossip.
const LEAST_UPLOAD_MBIT: f64 = 0.75;
const LEAST_UPLOAD: f64 = LEAST_UPLOAD_MBIT * 1e6 / 8.0;
const _: () = assert!(BUFFER_BYTES * 1e3 / LEAST_UPLOAD <= (IDLE.as_millis() - 2 * KEEP_ALIVE.as_millis()) as f64);
/// A heartbeat as it leaves, with what QUIC puts around it (bytes): 147 of its own.
const HEARTBEAT: f64 = 200.0;
/// Peers that a leader tells, once a second, of all members of its group.
const LISTENERS: f64 = 3.0;
const _: () = assert!(limits::STAGES as f64 * LISTENERS * HEARTBEAT <= LEAST_UPLOAD / 2.0);

/// A limit on uploads as settings and verbs take it (Mbit/s).
///
/// # Errors
/// Why it is none, and what to do instead.
pub fn check_upload(mbit: f64) -> Result<(), String> {
    const MOST: f64 = 1e9;
    if (LEAST_UPLOAD_MBIT..=MOST).contains(&mbit) {
        return Ok(());
    }
    if 0.0 < mbit && mbit < LEAST_UPLOAD_MBIT {
        return Err(format!(
            "write at least {LEAST_UPLOAD_MBIT} (Mbit/s): below it signs of life wait behind what else leaves for longer than other \
             peers wait for them, and they would take this one for dead; a machine that has no more to give lends by hours, or is paused"
        ));
    }
    Err(format!("write a rate in Mbit/s, from {LEAST_UPLOAD_MBIT} to {MOST}"))
}

/// Limits on what leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shaping {
    /// What leaves to all peers together, at the start.
    pub upload: Option<BytesPerSecond>,
    /// What the link to each peer carries.
    pub bandwidth: Option<BytesPerSecond>,
    /// How long a datagram is on its way.
    pub latency: Duration,
}

impl Shaping {
    /// These limits, and those of a fault.
    #[must_use]
    pub fn under(self, faults: &Faults) -> Self {
        let bandwidth = faults.mbit.map(|mbit| BytesPerSecond(mbit * 1e6 / 8.0)).or(self.bandwidth);
        Self { bandwidth, latency: self.latency + Duration::from_secs_f64(faults.ms / 1e3), ..self }
    }

    /// These limits, and those of a fault of the link to one peer as well.
    #[must_use]
    pub fn under_to(self, faults: &Faults, to: SocketAddr) -> Self {
        let all = self.under(faults);
        let Some(link) = faults.slow_to(to) else { return all };
        let alone = Faults { mbit: link.mbit, ms: link.ms, ..Faults::default() };
        all.under(&alone)
    }

    /// What the slower of the two carries.
    fn slowest(&self) -> f64 {
        let rate = |rate: Option<BytesPerSecond>| rate.map_or(f64::INFINITY, |r| r.0);
        rate(self.upload).min(rate(self.bandwidth))
    }

    /// Datagrams that may leave together.
    fn together(&self) -> usize {
        (self.slowest() * TOGETHER.as_secs_f64() / DATAGRAM).clamp(1.0, MOST_TOGETHER) as usize
    }
}

/// One datagram, or a few of the same size (but the last) that leave together.
#[derive(Debug)]
struct Datagram {
    to: SocketAddr,
    ecn: Option<EcnCodepoint>,
    bytes: Vec<u8>,
    /// The size of one, where there are several.
    segment: Option<usize>,
}

/// A socket behind such links.
#[derive(Debug)]
pub(super) struct Shaped {
    socket: Arc<dyn AsyncUdpSocket>,
    queue: mpsc::Sender<Datagram>,
    shaping: Shaping,
    uplink: Arc<Uplink>,
    faults: Option<watch::Receiver<Faults>>,
    /// Who was called, and when last: a wall lets their answers in. Held for map operations only.
    called: Mutex<BTreeMap<SocketAddr, Instant>>,
}

impl Shaped {
    /// Whether nothing is limited, nor may be broken: datagrams go to the system as they are.
    fn is_passed_by(&self) -> bool {
        let Shaping { bandwidth, latency, .. } = self.shaping;
        self.faults.is_none() && bandwidth.is_none() && latency.is_zero() && self.uplink.rate().is_none()
    }

    fn wall(&self) -> Wall {
        self.faults.as_ref().map_or(Wall::None, |faults| faults.borrow().wall)
    }

    /// A packet leaves; says whether the wall lets it.
    fn calls(&self, to: SocketAddr) -> bool {
        let wall = self.wall();
        if wall == Wall::Nat {
            let (now, mut called) = (Instant::now(), self.called.lock().unwrap_or_else(PoisonError::into_inner));
            called.retain(|_, at| now < *at + REMEMBERED);
            called.insert(to, now);
        }
        wall != Wall::Udp
    }

    /// Whether the wall lets a packet in.
    fn lets_in(&self, from: SocketAddr) -> bool {
        let called = || {
            let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
            called.get(&from).is_some_and(|at| Instant::now() < *at + REMEMBERED)
        };
        match self.wall() {
            Wall::None => true,
            Wall::Nat => called(),
            Wall::Udp => false,
        }
    }

    /// Starts the task that delays what is sent, until `stop`.
    pub(super) fn start(
        socket: Arc<dyn AsyncUdpSocket>,
        shaping: Shaping,
        uplink: Arc<Uplink>,
        faults: Option<watch::Receiver<Faults>>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (queue, datagrams) = mpsc::channel(WAITING);
        let connection = ShapedPath {
            socket: socket.clone(),
            shaping,
            faults: faults.clone(),
            links: BTreeMap::new(),
            uplink: uplink.clone(),
            on_the_way: VecDeque::new(),
        };
        crate::tasks::spawn("shaping", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection.run(datagrams) => {}
            }
        });
        Arc::new(Self { socket, queue, shaping, uplink, faults, called: Mutex::default() })
    }
}

/// Makes QUIC wait for the system alone: like a network card in front of a router, the queue takes everything.
#[derive(Debug)]
struct ShapedPoller {
    shaped: Arc<Shaped>,
    system: Pin<Box<dyn UdpPoller>>,
}

impl UdpPoller for ShapedPoller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { shaped, system } = self.get_mut();
        if shaped.is_passed_by() { system.as_mut().poll_writable(cx) } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncUdpSocket for Shaped {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let system = self.socket.clone().create_io_poller();
        Box::pin(ShapedPoller { shaped: self, system })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.is_passed_by() {
            return self.socket.try_send(transmit);
        }
        let Transmit { destination: to, ecn, contents, segment_size: segment, .. } = *transmit;
        if !self.calls(to) {
            return Ok(());
        }
        let datagram = Datagram { to, ecn, bytes: contents.to_vec(), segment };
        // A full queue loses the datagram, as a network does.
        let _ = self.queue.try_send(datagram);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let came = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        for meta in meta.iter_mut().take(came).filter(|meta| !self.lets_in(meta.addr)) {
            // Nothing came.
            meta.len = 0;
        }
        Poll::Ready(Ok(came))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        if self.is_passed_by() {
            return self.socket.max_transmit_segments();
        }
        let shaped = self.faults.as_ref().map(|faults| self.shaping.under(&faults.borrow()));
        let shaped = Shaping { upload: self.uplink.rate(), ..shaped.unwrap_or(self.shaping) };
        shaped.together().min(self.socket.max_transmit_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

/// All links from here.
struct ShapedPath {
    socket: Arc<dyn AsyncUdpSocket>,
    shaping: Shaping,
    faults: Option<watch::Receiver<Faults>>,
    /// When each link has sent what it was given.
    links: BTreeMap<SocketAddr, Instant>,
    /// The same for this host.
    uplink: Arc<Uplink>,
    /// In the order of arrival; equal latencies keep it nearly sorted.
    on_the_way: VecDeque<(Instant, Datagram)>,
}

impl ShapedPath {
    async fn run(mut self, mut datagrams: mpsc::Receiver<Datagram>) {
        loop {
            let next = self.on_the_way.front().map(|(at, _)| *at);
            tokio::select! {
                datagram = datagrams.recv() => match datagram {
                    Some(datagram) => {
                        self.take(datagram);
                        self.deliver();
                    }
                    None => return,
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.deliver(),
            }
        }
    }

    fn take(&mut self, datagram: Datagram) {
        let (now, size) = (Instant::now(), datagram.bytes.len());
        let Some(shaping) = self.shaping_to(datagram.to) else { return };
        let shaping = Shaping { upload: self.uplink.rate(), ..shaping };
        let Shaping { bandwidth, latency, .. } = shaping;
        // Of links that are not limited there is nothing to remember: whoever says another address would have one.
        let link = bandwidth.and_then(|_| self.links.get(&datagram.to).copied()).unwrap_or(now);
        let start = self.uplink.turn(now.max(link));
        if start - now > BUFFER.max(within_a_day(BUFFER_BYTES / shaping.slowest())) {
            return;
        }
        let sent = bandwidth.map_or(start, |rate| start + within_a_day(size as f64 / rate.0));
        if bandwidth.is_some() {
            self.links.insert(datagram.to, sent);
        }
        let arrival = self.uplink.take(start, size).max(sent) + latency;
        let at = self.on_the_way.partition_point(|(other, _)| *other <= arrival);
        self.on_the_way.insert(at, (arrival, datagram));
    }

    /// What limits datagrams to there; none leave where the way is cut.
    fn shaping_to(&self, to: SocketAddr) -> Option<Shaping> {
        let Some(faults) = &self.faults else { return Some(self.shaping) };
        let faults = faults.borrow();
        let to = canonical(to);
        (!faults.cuts(to)).then(|| self.shaping.under_to(&faults, to))
    }

    fn deliver(&mut self) {
        let soon = Instant::now() + SOON;
        while self.on_the_way.front().is_some_and(|(at, _)| *at <= soon) {
            let Some((_, datagram)) = self.on_the_way.pop_front() else { return };
            // What the system does not take is lost, as on a network.
            let _ = self.socket.try_send(&Transmit {
                destination: datagram.to,
                ecn: datagram.ecn,
                contents: &datagram.bytes,
                segment_size: datagram.segment,
                src_ip: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::SlowLink;
    use tsnode_protocol::PeerId;

    #[test]
    fn faults_limit_links_and_add_latency() {
        let slow = Faults { mbit: Some(8.0), ..Faults::default() };
        let limited = Shaping::default().under(&slow);
        let expected = Shaping { bandwidth: Some(BytesPerSecond(1e6)), ..Shaping::default() };
        assert_eq!(limited, expected, "8 Mbit/s, and nothing later than it was");

        let to = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let link = SlowLink { addresses: vec![to(9)], mbit: Some(8.0), ms: 3.0 };
        let one = Faults { ms: 1.0, slow: BTreeMap::from([(PeerId([1; 32]), link)]), ..Faults::default() };
        let there = Shaping { latency: Duration::from_millis(4), ..expected };
        let elsewhere = Shaping { latency: Duration::from_millis(1), ..Shaping::default() };
        assert_eq!(Shaping::default().under_to(&one, to(9)), there);
        assert_eq!(Shaping::default().under_to(&one, to(8)), elsewhere, "one link is slow, and no other");

        let own = Shaping { latency: Duration::from_millis(20), ..expected };
        let late = Faults { ms: 5.0, ..Faults::default() };
        let later = own.under(&late);
        assert_eq!(later, Shaping { latency: Duration::from_millis(25), ..own }, "latencies add up, and rates stay");
    }
}
