//! Watches what a connection's far end acknowledges: how fast the link carries what is sent over it anyway.
//!
//! It stands where congestion control does, since only there acknowledgements are seen: everything but one thing is left to
//! Cubic. A link whose bandwidth is known, or is to be probed, need not be felt out from ten packets on: a floor under
//! the window says what may be in flight at once, until something is lost. Cubic then goes on from what was in flight, since
//! its own window never had a reason to grow: from ten packets it would feel its way up for many seconds.

use super::scavenger::{self, Leaving};
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
    now: Mutex<AckRun>,
    /// Bytes that may be in flight whatever Cubic thinks; 0 where nothing is known.
    floor: AtomicU64,
    /// What leaves by it, which may have to give way.
    pub leaving: Leaving,
}

/// What is being acknowledged.
#[derive(Debug, Default)]
struct AckRun {
    /// By the acknowledgement that is being read.
    batch: AckBatch,
    /// While the sender has always something to send.
    busy: AckSpan,
    queue: LinkQueue,
    /// Whether something was lost.
    lost: bool,
    /// Whether the sender waits for its program at times or not.
    all: AckSpan,
    waited: bool,
    found: Vec<Evidence>,
}

/// An acknowledgement, and when what it is for was sent.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    came: Instant,
    sent: Instant,
}

/// What comes in one acknowledgement: nothing tells which of its packets came when.
#[derive(Debug, Default)]
struct AckBatch {
    mark: Option<Mark>,
    bytes: u64,
    /// Whether the sender had nothing to send.
    idle: bool,
}

/// Bytes that were acknowledged after one mark, until another.
#[derive(Debug, Default)]
struct AckSpan {
    marks: Option<(Mark, Mark)>,
    bytes: u64,
}

impl AckSpan {
    /// So many more, or the first mark: what came with that one may have been under way for any time.
    fn add(&mut self, mark: Mark, bytes: u64) {
        match &mut self.marks {
            None => self.begin(mark),
            Some((_, last)) => {
                *last = mark;
                self.bytes += bytes;
            }
        }
    }

    fn begin(&mut self, mark: Mark) {
        (self.marks, self.bytes) = (Some((mark, mark)), 0);
    }

    fn stop(&mut self) {
        *self = Self::default();
    }

    /// How fast they were carried, if that took so long; the next span begins where this one ends. A far end that comes late
    /// acknowledges in a moment what it took longer to send: the longer of both times counts.
    fn rate(&mut self, least: Duration) -> Option<BytesPerSecond> {
        let (first, last) = self.marks?;
        let took = last.came.saturating_duration_since(first.came);
        if took < least {
            return None;
        }
        let took = took.max(last.sent.saturating_duration_since(first.sent));
        let rate = BytesPerSecond(self.bytes as f64 / took.as_secs_f64());
        self.begin(last);
        Some(rate)
    }

    /// Since it began.
    fn lasts(&self) -> Option<Duration> {
        self.marks.map(|(first, _)| first.came.elapsed())
    }

    /// Whether nothing has come since its mark.
    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether nothing has come for so long.
    fn is_old(&self, now: Instant, least: Duration) -> bool {
        self.marks.is_some_and(|(_, last)| now.saturating_duration_since(last.came) > least)
    }
}

/// Whether what was acknowledged had waited in the link's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum LinkQueue {
    #[default]
    Unseen,
    /// All of it.
    Stood,
    /// Some of it: at times the link had nothing to carry.
    CameAndWent,
    /// None of it.
    Empty,
}

impl LinkQueue {
    fn and(self, waited: bool) -> Self {
        match (self, waited) {
            (Self::Unseen | Self::Stood, true) => Self::Stood,
            (Self::Unseen | Self::Empty, false) => Self::Empty,
            _ => Self::CameAndWent,
        }
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, AckRun> {
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

    /// Whether the connection is busy with more than it can send, or may.
    pub fn is_busy(&self) -> bool {
        self.leaving.gives_way() || self.lock().busy.lasts().is_some_and(|lasts| lasts < SPAN * 4)
    }
}

impl AckRun {
    fn acknowledged(&mut self, mark: Mark, bytes: u64, idle: bool, waited: bool) {
        let latest = self.batch.mark.map_or(mark.sent, |before| before.sent.max(mark.sent));
        self.batch.mark = Some(Mark { sent: latest, ..mark });
        self.batch.bytes += bytes;
        self.batch.idle |= idle;
        self.queue = self.queue.and(waited);
    }

    /// At the end of an acknowledgement, where what was acknowledged by now is known. A sender that waits for its program shows
    /// no more than what it sends.
    fn look(&mut self, idle: bool, span: Duration) {
        let AckBatch { mark, bytes, idle: was_idle } = std::mem::take(&mut self.batch);
        let Some(mark) = mark else { return };
        let idle = idle || was_idle;
        if idle {
            self.busy.stop();
        } else {
            self.busy.add(mark, bytes);
        }
        if self.busy.is_empty() {
            (self.queue, self.lost) = (LinkQueue::Unseen, false);
        }
        if let Some(rate) = self.busy.rate(span) {
            self.finds(if self.is_full() { Evidence::Full(rate) } else { Evidence::AtLeast(rate) });
            (self.queue, self.lost) = (LinkQueue::Unseen, false);
        }
        if self.all.is_old(mark.came, SPAN) {
            self.all.stop();
        }
        self.waited |= idle;
        self.all.add(mark, bytes);
        if let Some(rate) = self.all.rate(span)
            && std::mem::take(&mut self.waited)
        {
            self.finds(Evidence::Passing(rate));
        }
    }

    fn finds(&mut self, evidence: Evidence) {
        if self.found.len() == KEPT {
            self.found.remove(0);
        }
        self.found.push(evidence);
    }

    /// Whether the link carried all it can: its queue was never empty, or it has none to speak of and lost what was too much.
    fn is_full(&self) -> bool {
        self.queue == LinkQueue::Stood || (self.lost && self.queue == LinkQueue::Empty)
    }
}

/// Makes watched congestion controllers.
#[derive(Debug, Default)]
pub(super) struct Metered;

impl ControllerFactory for Metered {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let cubic = Arc::new(CubicConfig::default()).build(now, mtu);
        let acknowledged = Acknowledged::default();
        Box::new(Watching {
            cubic,
            meter: Arc::default(),
            mtu,
            flying: 0,
            rtt: Duration::ZERO,
            acknowledged,
            room: None,
        })
    }
}

struct Watching {
    cubic: Box<dyn Controller>,
    meter: Arc<Meter>,
    mtu: u16,
    /// Bytes on their way, about.
    flying: u64,
    rtt: Duration,
    acknowledged: Acknowledged,
    /// Bytes that may be on their way while it gives way to others.
    room: Option<u64>,
}

/// By the acknowledgement that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    bytes: u64,
    /// When the last of it was sent, and the shortest round trip so far.
    newest: Option<(Instant, Duration)>,
}

impl Acknowledged {
    /// Whether it waited in the link's queue, as far as is known: this one alone, where a smoothed round trip is of the past.
    fn waited(&self, now: Instant) -> bool {
        self.newest.is_none_or(|(sent, shortest)| {
            now.saturating_duration_since(sent) > shortest.mul_f64(QUEUED) + QUEUED_AT_LEAST
        })
    }
}

impl Watching {
    /// After an acknowledgement: what may be on its way, if it is to give way.
    fn give_way(&mut self, now: Instant) {
        let acknowledged = std::mem::take(&mut self.acknowledged);
        let (bytes, waited) = (acknowledged.bytes, acknowledged.waited(now));
        let (gives_way, least) = (self.meter.leaving.gives_way(), scavenger::least(self.mtu, self.rtt));
        self.room = gives_way.then(|| scavenger::room(self.room, bytes, waited, least));
    }

    /// What may be on its way, if it is to give way: one that had to before its last acknowledgement may not have to now.
    fn room_now(&self) -> Option<u64> {
        self.room.filter(|_| self.meter.leaving.gives_way())
    }

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
        // Who gives way shows neither Cubic nor the meter what the link carries, but Cubic where somebody waits for what leaves.
        let gives_way = self.room.is_some();
        self.cubic.on_ack(now, sent, bytes, idle || (gives_way && self.meter.leaving.urgent() == 0), rtt);
        self.meter.leaving.acknowledged(bytes);
        let idle = idle || gives_way;
        self.rtt = rtt.get();
        let newest = self.acknowledged.newest.map_or(sent, |(before, _)| before.max(sent));
        self.acknowledged = Acknowledged { bytes: self.acknowledged.bytes + bytes, newest: Some((newest, rtt.min())) };
        let waited = rtt.get() > rtt.min().mul_f64(QUEUED) + QUEUED_AT_LEAST;
        self.meter.lock().acknowledged(Mark { came: now, sent }, bytes, idle, waited);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, idle: bool, largest: Option<u64>) {
        let idle = idle || self.room.is_some();
        self.cubic.on_end_acks(now, in_flight, idle, largest);
        self.flying = in_flight;
        self.meter.lock().look(idle, SPAN.max(2 * self.rtt));
        self.give_way(now);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        if self.room_now().is_some() && self.meter.leaving.urgent() == 0 && !persistent {
            // What gives way to others' KV is lost in the queue that this fills: that is no reason to send its own as slowly later.
            self.room = Some(scavenger::least(self.mtu, self.rtt));
            return;
        }
        self.take_over(now);
        self.cubic.on_congestion_event(now, sent, persistent, lost);
        self.meter.lock().lost = true;
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.cubic.on_mtu_update(mtu);
        self.mtu = mtu;
    }

    fn window(&self) -> u64 {
        let window = self.cubic.window().max(self.meter.floor.load(Ordering::Relaxed));
        self.room_now().map_or(window, |room| window.min(room.saturating_add(self.meter.leaving.urgent())))
    }

    fn metrics(&self) -> quinn::congestion::ControllerMetrics {
        self.cubic.metrics()
    }

    /// Of the same connection: what is found by either is found.
    fn clone_box(&self) -> Box<dyn Controller> {
        let Self { mtu, flying, rtt, acknowledged, room, .. } = *self;
        Box::new(Self {
            cubic: self.cubic.clone_box(),
            meter: self.meter.clone(),
            mtu,
            flying,
            rtt,
            acknowledged,
            room,
        })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const KB: u64 = 1000;

    /// So many bytes acknowledged after so many milliseconds, sent after so many, by a sender that then had nothing to send or
    /// more; from a full link or not.
    struct Ack {
        came: u32,
        sent: u32,
        bytes: u64,
        idle: bool,
        waited: bool,
    }

    fn found(acks: impl Iterator<Item = Ack>) -> Vec<Evidence> {
        let (mut run, start) = (AckRun::default(), Instant::now());
        for Ack { came, sent, bytes, idle, waited } in acks {
            let mark = Mark { came: start + MS * came, sent: start + MS * sent };
            run.acknowledged(mark, bytes, idle, waited);
            run.look(idle, SPAN);
        }
        run.found
    }

    #[test]
    fn a_sender_that_always_has_more_shows_what_the_link_carries() {
        let acks = |waited| {
            (0..=20).map(move |k| Ack { came: 20 + 10 * k, sent: 10 * k, bytes: 10 * KB, idle: false, waited })
        };
        assert_eq!(found(acks(true)), [Evidence::Full(BytesPerSecond(1e6)); 2]);
        assert_eq!(found(acks(false)), [Evidence::AtLeast(BytesPerSecond(1e6)); 2]);
    }

    #[test]
    fn one_that_waits_for_its_program_shows_what_the_link_carries_at_least() {
        // A layer's KV every 20 ms: it waits in no queue of the link, whatever round trips say.
        let acks = (0..=10).map(|k| Ack { came: 20 + 20 * k, sent: 20 * k, bytes: 20 * KB, idle: true, waited: true });
        assert_eq!(found(acks), [Evidence::Passing(BytesPerSecond(1e6)); 2]);
        // Now and then a word: that shows nothing.
        let words = (0..10).map(|k| Ack { came: 500 * k, sent: 500 * k, bytes: KB, idle: true, waited: false });
        assert_eq!(found(words), []);
    }

    #[test]
    fn who_comes_late_to_acknowledge_makes_no_link_faster() {
        // What left in 200 ms is acknowledged at once, 190 ms late; the next 100 ms bring nothing.
        let late = [(20, 0), (210, 200), (310, 205)];
        let acks = late.map(|(came, sent)| Ack { came, sent, bytes: 200 * KB, idle: true, waited: false });
        // The second is 190 ms after the first: too long to belong together.
        let [Evidence::Passing(rate)] = found(acks.into_iter())[..] else { panic!() };
        assert!(rate.0 <= 2e6, "{rate:?}");
        let burst =
            (0..=2).map(|k| Ack { came: 20 + 50 * k, sent: 100 * k, bytes: 100 * KB, idle: false, waited: false });
        assert_eq!(found(burst), [Evidence::AtLeast(BytesPerSecond(1e6))]);
    }

    #[test]
    fn weights_give_way_but_what_is_urgent_does_not_and_what_is_lost_meanwhile_slows_nothing_later() {
        let (all, other, now) = (scavenger::Streams::default(), Leaving::default(), Instant::now());
        let cubic = Arc::new(CubicConfig::default()).build(now, 1000);
        let acknowledged = Acknowledged::default();
        let (meter, rtt) = (Arc::new(Meter::default()), Duration::ZERO);
        let mut watching =
            Watching { cubic, meter: meter.clone(), mtu: 1000, flying: 0, rtt, acknowledged, room: Some(6000) };
        meter.leaving.beside(&all);
        other.beside(&all);
        let _weights = meter.leaving.weights();
        let whole = watching.window();
        assert!(whole > 8000, "{whole}");
        let kv = other.kv();
        assert_eq!(watching.window(), 6000);
        // Activations have room beside what weights have, until they are there.
        meter.leaving.hurry(2000);
        assert_eq!(watching.window(), 8000);
        meter.leaving.acknowledged(1500);
        assert_eq!(watching.window(), 6500);
        meter.leaving.acknowledged(1500);
        watching.on_congestion_event(now, now, false, 1000);
        assert_eq!(watching.window(), 4000);
        drop(kv);
        assert_eq!(watching.window(), whole, "nothing is felt out again");
        // Of what is urgent a loss counts as ever.
        let kv = other.kv();
        meter.leaving.hurry(2000);
        watching.on_congestion_event(now, now, false, 1000);
        drop(kv);
        assert!(watching.window() < whole);
    }
}
