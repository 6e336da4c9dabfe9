//! Measures links by small real transfers: round trips for latency, trains of packets for bandwidth
//! ([`tsnode_coordinator::links`]). The far end times the trains, since it alone sees them arrive.

use super::tuning::Tuning;
use super::{LinkError, Links, Stream};
use crate::data_plane::listening::canonical;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use tsnode_coordinator::links::{FIRST_GUESS, LONGEST_TRAIN, Probing, carried, train_window};
use tsnode_protocol::stream::{Opening, PROBE_BYTES, TrainSeen};
use tsnode_protocol::{BytesPerSecond, Link, PeerId, Seconds};

/// Round trips of which the shortest counts: the others waited for a thread.
const PINGS: usize = 4;
/// How often a train is looked at while it arrives.
const LOOK: Duration = Duration::from_millis(1);
/// Looks at one train; a slower one is told from its beginning.
const LOOKS: usize = 4096;

/// What a probe has taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probed {
    /// The link, with all that is known of it.
    pub link: Link,
    /// Bytes of its trains; none where traffic had told enough.
    pub bytes: u64,
}

impl Links {
    /// Measures the link to `peer`. Where traffic has just told its bandwidth, only round trips are tried; where the
    /// connection is busy, nothing is, since a queue is not the link.
    ///
    /// # Errors
    /// When the peer is not reached.
    pub async fn probe(&self, peer: PeerId, addresses: &[SocketAddr]) -> Result<Probed, LinkError> {
        let known = &self.inner.known;
        // The connection must be there before the clock starts.
        let connection = self.connection(peer, addresses).await?;
        known.gather();
        let opening = Opening::Probe { bytes: PROBE_BYTES };
        let (mut stream, path) = (Self::open_on(&connection, &opening).await?, connection.way.path());
        let mut sent = 0;
        if !connection.meter.is_busy() {
            let took = ping(&mut stream).await?;
            known.round_trip(peer, path, Seconds(took.as_secs_f64()));
            if known.wants_probe(peer, path) {
                let is_within = self.is_within(&connection);
                let rate = match known.within().filter(|_| is_within) {
                    Some(rate) => rate,
                    None => {
                        let (bytes, rate) = trains(&mut stream, &connection, took).await?;
                        sent = bytes;
                        rate
                    }
                };
                // A fault may have come meanwhile.
                if is_within && sent > 0 && self.is_within(&connection) {
                    known.probed_within(rate);
                }
                known.probed(peer, path, rate);
                connection.hurry(rate);
            }
        }
        stream.sender.finish()?;
        known.gather();
        let link = known.links().into_iter().find(|l| l.link.to == peer);
        let link = link.ok_or_else(|| LinkError::Lost("it was too busy to be measured".into()))?;
        Ok(Probed { link: link.link, bytes: sent })
    }
}

impl Links {
    /// Whether a connection goes by this host's loopback as it is: what one of these carries all do. Many peers on one host would
    /// be at measuring each other all the time: each of them has a link to every other, and a fast one takes long trains.
    fn is_within(&self, connection: &Tuning) -> bool {
        let to = connection.way.far_end().map(canonical).filter(|to| to.ip().is_loopback());
        let is_limited = self.inner.datagrams.shaped || self.inner.uplink.rate().is_some();
        to.is_some_and(|to| !is_limited && !self.inner.faults.as_ref().is_some_and(|f| f.borrow().slows(to)))
    }
}

/// The shortest of a few round trips.
pub(super) async fn ping(stream: &mut Stream) -> Result<Duration, LinkError> {
    let mut shortest = Duration::MAX;
    for _ in 0..PINGS {
        let sent = Instant::now();
        train(stream, 0).await?;
        shortest = shortest.min(sent.elapsed());
    }
    Ok(shortest)
}

/// Sends trains until one is long enough; says how many bytes they were, and how fast the last was carried.
async fn trains(
    stream: &mut Stream,
    connection: &Tuning,
    round_trip: Duration,
) -> Result<(u64, BytesPerSecond), LinkError> {
    let (mut sent, mut probing) = (0, Probing::default());
    while let Some(bytes) = probing.next() {
        let guess = probing.found().unwrap_or(FIRST_GUESS);
        connection.meter.set_floor(train_window(bytes, guess, Seconds(round_trip.as_secs_f64())));
        let seen = train(stream, bytes).await;
        connection.meter.set_floor(0);
        sent += bytes;
        probing.seen(seen?.rate);
    }
    let rate = probing.found().ok_or_else(|| LinkError::Lost("a probe told nothing".into()))?;
    Ok((sent, rate))
}

async fn train(stream: &mut Stream, bytes: u64) -> Result<TrainSeen, LinkError> {
    send(stream, bytes).await?;
    seen(stream).await
}

pub(super) async fn send(stream: &mut Stream, bytes: u64) -> Result<(), LinkError> {
    let payload = bytes::Bytes::from(vec![0; bytes as usize]);
    stream.sender.send_payload(payload, LONGEST_TRAIN as usize).await
}

pub(super) async fn seen(stream: &mut Stream) -> Result<TrainSeen, LinkError> {
    let seen = stream.receiver.recv::<TrainSeen>().await?;
    seen.ok_or_else(|| LinkError::Lost("the probe was not answered".into()))
}

/// The far end: takes trains of `bytes` in all, and says of each how fast it came, with whatever came by other connections.
pub(super) async fn answer(mut stream: Stream, connections: &[Arc<Tuning>], bytes: u32) -> Result<(), LinkError> {
    let mut left = u64::from(bytes);
    while let Some(length) = stream.receiver.length(LONGEST_TRAIN.min(left) as usize).await? {
        left -= length as u64;
        let rate = watch(&mut stream, connections).await?;
        stream.sender.send(&TrainSeen { rate }).await?;
    }
    stream.sender.finish()
}

/// Lets a train pass, and looks at what all connections from there have received meanwhile: packets count when they come, not
/// when those lost before them have come again.
async fn watch(stream: &mut Stream, connections: &[Arc<Tuning>]) -> Result<Option<BytesPerSecond>, LinkError> {
    let received = || connections.iter().map(|connection| connection.connection.stats().udp_rx.bytes).sum::<u64>();
    let passing = stream.receiver.pass(LONGEST_TRAIN as usize);
    Ok(carried(&arrivals(passing, received, LOOKS).await?))
}

/// What had been received at each of so many looks at most, and when the train had passed. After the last look nothing is done until then:
/// a train that never ends costs nothing.
async fn arrivals(
    passing: impl Future<Output = Result<bool, LinkError>>,
    received: impl Fn() -> u64,
    looks: usize,
) -> Result<Vec<(Duration, u64)>, LinkError> {
    let started = Instant::now();
    let mut arrivals = vec![(Duration::ZERO, received())];
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Skip);
    tokio::pin!(passing);
    loop {
        tokio::select! {
            passed = &mut passing => {
                passed?;
                arrivals.push((started.elapsed(), received()));
                return Ok(arrivals);
            }
            _ = look.tick(), if arrivals.len() < looks => arrivals.push((started.elapsed(), received())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_train_that_does_not_end_is_looked_at_so_often_and_no_oftener() {
        let (mut looked, mut ends) = (0, Box::pin(tokio::time::sleep(200 * LOOK)));
        let passing = std::future::poll_fn(|cx| {
            looked += 1;
            ends.as_mut().poll(cx).map(|()| Ok(true))
        });
        let arrivals = arrivals(passing, || 7, 4).await.unwrap();
        assert!(arrivals.len() <= 5 && arrivals.iter().all(|(_, bytes)| *bytes == 7), "{arrivals:?}");
        assert!(looked < 20, "{looked}");
    }
}
