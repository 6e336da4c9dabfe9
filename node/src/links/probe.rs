//! Measures links by small real transfers.

use super::{LinkError, Links, Stream};
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Instant;
use tsnode_protocol::{BytesPerSecond, Link, PathKind, PeerId, Seconds, stream::Opening};

/// Bytes sent for bandwidth: 20 ms at 100 Mbit/s.
const PROBE_BYTES: u32 = 256 * 1024;
/// Weight of a new measurement.
const NEW: f64 = 0.5;

impl Links {
    /// Measures the link to `peer`: latency by a round trip, bandwidth by a transfer of 256 KiB.
    ///
    /// # Errors
    /// When the peer is not reached.
    pub async fn probe(&self, peer: PeerId, addresses: &[SocketAddr]) -> Result<Link, LinkError> {
        // The connection must be there before the clock starts.
        self.connection(peer, addresses).await?;
        let started = Instant::now();
        let mut stream = self.open(peer, addresses, &Opening::Probe { bytes: PROBE_BYTES }).await?;
        let gone = || LinkError::Lost("the probe was not answered".into());
        stream.receiver.recv_bytes(0).await?.ok_or_else(gone)?;
        let round_trip = started.elapsed().as_secs_f64();
        let sent = Instant::now();
        stream.sender.send_bytes(&vec![0; PROBE_BYTES as usize], PROBE_BYTES as usize).await?;
        stream.receiver.recv_bytes(0).await?.ok_or_else(gone)?;
        stream.sender.finish()?;
        let carried = (sent.elapsed().as_secs_f64() - round_trip / 2.0).max(1e-6);
        let new = Link {
            to: peer,
            latency: Seconds(round_trip / 2.0),
            bandwidth: BytesPerSecond(f64::from(PROBE_BYTES) / carried),
            path: PathKind::Direct,
        };
        Ok(self.note(new))
    }

    fn note(&self, new: Link) -> Link {
        let mut measured = self.inner.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = measured.entry(new.to).or_insert(new);
        entry.latency = Seconds(entry.latency.0 * (1.0 - NEW) + new.latency.0 * NEW);
        entry.bandwidth = BytesPerSecond(entry.bandwidth.0 * (1.0 - NEW) + new.bandwidth.0 * NEW);
        *entry
    }
}

/// The far end: answers at once, reads, answers again.
pub(super) async fn answer(mut stream: Stream, bytes: u32) -> Result<(), LinkError> {
    stream.sender.send_bytes(&[], 0).await?;
    if stream.receiver.recv_bytes(bytes as usize).await?.is_some() {
        stream.sender.send_bytes(&[], 0).await?;
    }
    stream.sender.finish()
}
