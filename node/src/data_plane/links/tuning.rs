//! How much may be on its way: windows, datagram sizes, and the first burst, by what is known of a link.

use super::meter::{Meter, Metered};
use super::scavenger::Streams;
use super::{IDLE, KEEP_ALIVE};
use crate::data_plane::offences::OffenceReporter;
use bytes::Bytes;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{BytesPerSecond, PathKind, PeerId};

/// Unread bytes of one stream: 1 Gbit/s over 130 ms.
const STREAM_WINDOW: u32 = 16 << 20;
/// Unread bytes of one connection whose far end has proven itself: what it may make us hold.
const RECEIVE_WINDOW: u32 = 64 << 20;
/// The same before it has: a proof is a few hundred bytes.
const UNPROVEN_WINDOW: u32 = 64 << 10;
/// Datagrams only ask for an acknowledgement ([`super::probe`]) and are not read: room for some, of which the last stay.
const NUDGES: usize = 1 << 10;
/// Unacknowledged bytes of one connection, at least and at most. The most leaves room in the far end's receive window, so
/// that tokens pass beside KV that fills its part ([`super::priority`]).
const SEND_WINDOWS: (u64, u64) = (8 << 20, 40 << 20);
/// Round trips' worth of bytes: one on its way, one to be acknowledged while what was lost comes again.
const ROUND_TRIPS: f64 = 2.0;
/// The part of what a link is known to carry that may be sent before it has acknowledged anything.
const FIRST_BURST: f64 = 0.8;
/// Largest UDP payloads: what Ethernet takes; and what is tried on a LAN or within a host, where the kernel sends ten at a
/// time and drops them silently where ten are more than 65,507 bytes.
pub(super) const ETHERNET: u16 = 1452;
pub(super) const LARGEST: u16 = 6500;

/// Settings of one connection.
pub(super) fn transport(streams: u32, datagram: u16) -> quinn::TransportConfig {
    let mut config = quinn::TransportConfig::default();
    let mut discovery = quinn::MtuDiscoveryConfig::default();
    discovery.upper_bound(datagram);
    config
        .datagram_receive_buffer_size(Some(NUDGES))
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(0u8.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(RECEIVE_WINDOW.into())
        .send_window(SEND_WINDOWS.0)
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(Metered))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IDLE.try_into().ok());
    config
}

/// The same for one whose packets another stream carries whole: nothing about the way there is to be found out.
pub(super) fn carried(mut config: quinn::TransportConfig) -> quinn::TransportConfig {
    config.initial_mtu(LARGEST).mtu_discovery_config(None);
    config
}

/// The same for one that has to prove itself yet.
pub(super) fn unproven(datagram: u16) -> quinn::TransportConfig {
    let mut config = transport(1, datagram);
    config.receive_window(UNPROVEN_WINDOW.into());
    config
}

/// The largest datagram worth trying on the way to `address`: large ones cost a third of the processor's time for a byte,
/// and every one that a router drops costs a round trip.
pub(super) fn datagram(address: SocketAddr) -> u16 {
    let near = match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    if near { LARGEST } else { ETHERNET }
}

/// Unacknowledged bytes that keep a link of that bandwidth and round trip full.
fn send_window(bandwidth: BytesPerSecond, round_trip: Duration) -> u64 {
    let on_the_way = bandwidth.0 * round_trip.as_secs_f64() * ROUND_TRIPS;
    (on_the_way as u64).clamp(SEND_WINDOWS.0, SEND_WINDOWS.1)
}

/// How a connection's packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// By this peer's own socket, to there.
    Open(SocketAddr),
    /// In a stream of the control plane, whose connection travels so.
    Carried(PathKind),
}

impl Transport {
    /// As an advert states it. A stream of a straight connection goes straight to its far end, too.
    pub fn path(self) -> PathKind {
        match self {
            Self::Open(_) => PathKind::Direct,
            Self::Carried(path) => path,
        }
    }

    /// Where this peer's packets go by its own socket.
    pub fn far_end(self) -> Option<SocketAddr> {
        if let Self::Open(address) = self { Some(address) } else { None }
    }
}

/// A connection, and what it is set to.
#[derive(Debug)]
pub(super) struct Tuning {
    pub connection: quinn::Connection,
    pub way: Transport,
    pub meter: Arc<Meter>,
    window: AtomicU64,
    /// Whether it carries parts of KV transfers, and nothing else.
    kv_stream: AtomicBool,
    /// Who answers for what comes over it, once that is proven, and to whom.
    far_end: OnceLock<(PeerId, OffenceReporter)>,
}

impl Tuning {
    pub fn new(connection: quinn::Connection, way: Transport) -> Arc<Self> {
        // A connection of this crate is always watched; nothing is lost but figures where one is not.
        let meter = Meter::of(&connection).unwrap_or_default();
        Arc::new(Self {
            connection,
            way,
            meter,
            window: AtomicU64::new(SEND_WINDOWS.0),
            kv_stream: AtomicBool::new(false),
            far_end: OnceLock::new(),
        })
    }

    /// The far end, which called or was called, has shown that it belongs here: from now on it answers for what it says. This
    /// KV leaves by all connections of this peer.
    pub fn proven(&self, peer: PeerId, offence_reporter: &OffenceReporter, kv: &Streams) {
        // Proven once.
        let _ = self.far_end.set((peer, offence_reporter.clone()));
        self.meter.leaving.beside(kv);
    }

    /// What came over it is no message that an honest peer says.
    pub fn blame(&self) {
        if let Some((peer, offence_reporter)) = self.far_end.get() {
            offence_reporter.blame(*peer, Offence::Garbage);
        }
    }

    /// It carries parts of KV transfers, and nothing else.
    pub fn become_kv_stream(&self) {
        self.kv_stream.store(true, Ordering::Relaxed);
    }

    /// Whether that is all it does.
    pub fn is_kv_stream(&self) -> bool {
        self.kv_stream.load(Ordering::Relaxed)
    }

    /// The far end that called here may do what peers may.
    pub fn open_up(&self) {
        self.connection.set_max_concurrent_bi_streams(super::STREAMS.into());
        self.connection.set_receive_window(RECEIVE_WINDOW.into());
    }

    /// The shortest seen: what waits in a queue is not on its way, and windows that follow the queue make it longer.
    fn round_trip(&self) -> Duration {
        self.connection.stats().path.min_rtt
    }

    /// Packets that have come from the far end.
    pub fn heard(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// Asks the far end's transport for an acknowledgement.
    pub fn nudge(&self) {
        // A far end that takes none, or has gone, is not asked.
        let _ = self.connection.send_datagram(Bytes::from_static(&[0]));
    }

    /// How long an acknowledgement is on its way when nothing holds it up; none where the far end cannot be asked for one.
    pub fn answers_within(&self) -> Option<Duration> {
        self.connection.max_datagram_size().filter(|most| *most > 0).map(|_| self.connection.rtt())
    }

    /// Fits the window to the link.
    pub fn fit(&self, bandwidth: BytesPerSecond) {
        let window = send_window(bandwidth, self.round_trip());
        if self.window.swap(window, Ordering::Relaxed) != window {
            self.connection.set_send_window(window);
        }
    }

    /// Lets the first bytes of a new connection leave as fast as the link was known to carry them.
    pub fn hurry(&self, bandwidth: BytesPerSecond) {
        let burst = bandwidth.0 * self.round_trip().as_secs_f64() * FIRST_BURST;
        // The far end timed the probe: what it claims must not make us flood the way to it.
        self.meter.set_floor((burst as u64).min(SEND_WINDOWS.0));
    }

    /// Widens the send window until the guard is dropped.
    pub fn widen(&self, ahead: u64) -> Wider<'_> {
        self.connection.set_send_window(self.window.load(Ordering::Relaxed) + ahead);
        Wider(self)
    }
}

/// While it lives, more may be on its way.
pub(super) struct Wider<'t>(&'t Tuning);

impl Drop for Wider<'_> {
    fn drop(&mut self) {
        self.0.connection.set_send_window(self.0.window.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_what_is_on_its_way_and_have_an_end() {
        let window = |mbit: f64, ms| send_window(BytesPerSecond(mbit * 125e3), Duration::from_millis(ms));
        assert!(window(1000.0, 80) >= 20_000_000 && window(1000.0, 80) < 21_000_000);
        assert_eq!(window(10.0, 1), SEND_WINDOWS.0);
        assert_eq!(window(1e6, 300), SEND_WINDOWS.1);
        assert_eq!(window(f64::NAN, 1), SEND_WINDOWS.0);
        let words = 2 * (SEND_WINDOWS.1 - u64::from(STREAM_WINDOW));
        assert!(SEND_WINDOWS.1 + u64::from(STREAM_WINDOW) < u64::from(RECEIVE_WINDOW) && words > 0);
    }

    #[test]
    fn ten_of_the_largest_datagrams_fit_what_the_kernel_takes_at_once() {
        assert!(10 * u32::from(LARGEST) <= 65_507);
        let at = |ip: &str| datagram(SocketAddr::new(ip.parse().unwrap_or([8; 4].into()), 1));
        assert_eq!(["127.0.0.1", "10.1.2.3", "192.168.0.9", "fe80::1", "::1"].map(at), [LARGEST; 5]);
        assert_eq!(["8.8.8.8", "2001:db8::1"].map(at), [ETHERNET; 2]);
    }
}
