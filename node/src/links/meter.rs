//! Watches what a connection's far end acknowledges: how fast the link carries what is sent over it anyway.
//!
//! It stands where congestion control does, since only there acknowledgements are seen: everything but one thing is left to
//! Cubic. A link whose bandwidth is known, or is to be probed, need not be felt out from ten packets on: a floor under
//! the window says what may be in flight at once, until something is lost. Cubic then goes on from what was in flight, since
//! its own window never had a reason to grow: from ten packets it would feel its way up for many seconds.

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tsnode_coordinator::links::Evidence;
use tsnode_protocol::BytesPerSecond;

/// The shortest time that says how fast a link is: timers and threads are late by milliseconds.
const SPAN: Duration = Duration::from_millis(100);
/// A round trip that much longer than the shortest one has waited in a queue: the link is full.
const QUEUED: f64 = 1.25;
const QUEUED_AT_LEAST: Duration = Duration::from_millis(2);
/// Findings kept until somebody asks; the oldest go first.
const KEPT: usize = 64;

/// What one connection has shown.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Held for arithmetic only.
    now: Mutex<Run>,
    /// Bytes that may be in flight whatever Cubic thinks; 0 where nothing is known.
    floor: AtomicU64,
}

/// A time in which the sender had always something to send.
#[derive(Debug, Default)]
struct Run {
    began: Option<Instant>,
    bytes: u64,
    queue: Queue,
    /// Whether something was lost.
    lost: bool,
    found: Vec<Evidence>,
}

/// Whether what was acknowledged had waited in the link's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Queue {
    #[default]
    Unseen,
    /// All of it.
    Stood,
    /// Some of it: at times the link had nothing to carry.
    CameAndWent,
    /// None of it.
    Empty,
}

impl Queue {
    fn and(self, waited: bool) -> Self {
        match (self, waited) {
            (Self::Unseen | Self::Stood, true) => Self::Stood,
            (Self::Unseen | Self::Empty, false) => Self::Empty,
            _ => Self::CameAndWent,
        }
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Run> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of a connection, if it was made by [`Metered`].
    pub fn of(connection: &quinn::Connection) -> Option<Arc<Self>> {
        let controller = connection.congestion_state().into_any().downcast::<Watching>().ok()?;
        Some(controller.meter)
    }

    /// What was found since this was last asked.
    pub fn take(&self) -> Vec<Evidence> {
        std::mem::take(&mut self.lock().found)
    }

    /// Lets so many bytes be in flight until something is lost.
    pub fn set_floor(&self, bytes: u64) {
        self.floor.store(bytes, Ordering::Relaxed);
    }

    /// Whether the connection is busy with more than it can send.
    pub fn is_busy(&self) -> bool {
        self.lock().began.is_some_and(|began| began.elapsed() < SPAN * 4)
    }
}

impl Run {
    fn acknowledged(&mut self, bytes: u64, idle: bool, rtt: &RttEstimator) {
        if idle {
            self.began = None;
        }
        self.bytes += bytes;
        self.queue = self.queue.and(rtt.get() > rtt.min().mul_f64(QUEUED) + QUEUED_AT_LEAST);
    }

    /// At the end of an acknowledgement, where what was acknowledged by now is known.
    fn look(&mut self, now: Instant, span: Duration) {
        let Some(began) = self.began else { return self.begin(now) };
        let took = now.saturating_duration_since(began);
        if took < span {
            return;
        }
        let rate = BytesPerSecond(self.bytes as f64 / took.as_secs_f64());
        if self.found.len() == KEPT {
            self.found.remove(0);
        }
        self.found.push(if self.is_full() { Evidence::Full(rate) } else { Evidence::AtLeast(rate) });
        self.begin(now);
    }

    /// Whether the link carried all it can: its queue was never empty, or it has none to speak of and lost what was too much.
    fn is_full(&self) -> bool {
        self.queue == Queue::Stood || (self.lost && self.queue == Queue::Empty)
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.bytes, self.queue, self.lost) = (Some(now), 0, Queue::Unseen, false);
    }
}

/// Makes watched congestion controllers.
#[derive(Debug, Default)]
pub(super) struct Metered;

impl ControllerFactory for Metered {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let cubic = Arc::new(CubicConfig::default()).build(now, mtu);
        Box::new(Watching { cubic, meter: Arc::default(), mtu, flying: 0, idle: true, rtt: Duration::ZERO })
    }
}

struct Watching {
    cubic: Box<dyn Controller>,
    meter: Arc<Meter>,
    mtu: u16,
    /// Bytes on their way, about.
    flying: u64,
    /// Whether the last acknowledgement found the sender with nothing to send.
    idle: bool,
    rtt: Duration,
}

impl Watching {
    /// Something was lost while the floor let more be in flight than Cubic would have: it takes over from there.
    fn take_over(&mut self, now: Instant) {
        let floor = self.meter.floor.swap(0, Ordering::Relaxed);
        let window = floor.min(self.flying);
        if window > self.cubic.window() {
            let mut config = CubicConfig::default();
            config.initial_window(window);
            self.cubic = Arc::new(config).build(now, self.mtu);
        }
    }
}

impl Controller for Watching {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
        self.flying += bytes;
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, idle: bool, rtt: &RttEstimator) {
        self.cubic.on_ack(now, sent, bytes, idle, rtt);
        (self.idle, self.rtt) = (idle, rtt.get());
        self.meter.lock().acknowledged(bytes, idle, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, idle: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, idle, largest);
        self.flying = in_flight;
        if !(idle || self.idle) {
            self.meter.lock().look(now, SPAN.max(2 * self.rtt));
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.take_over(now);
        self.cubic.on_congestion_event(now, sent, persistent, lost);
        self.meter.lock().lost = true;
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.cubic.on_mtu_update(mtu);
        self.mtu = mtu;
    }

    fn window(&self) -> u64 {
        self.cubic.window().max(self.meter.floor.load(Ordering::Relaxed))
    }

    fn metrics(&self) -> quinn::congestion::ControllerMetrics {
        self.cubic.metrics()
    }

    /// Of the same connection: what is found by either is found.
    fn clone_box(&self) -> Box<dyn Controller> {
        let Self { mtu, flying, idle, rtt, .. } = *self;
        Box::new(Self { cubic: self.cubic.clone_box(), meter: self.meter.clone(), mtu, flying, idle, rtt })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
