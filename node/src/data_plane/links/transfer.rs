//! What a link to a peer carries when it is asked to: many bytes at once, timed until the far end has them all.

use super::{LinkError, Links, probe, trial::CpuWatch};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use tsnode_coordinator::links::LONGEST_TRAIN;
use tsnode_protocol::stream::{Opening, PROBE_BYTES};
use tsnode_protocol::{BytesPerSecond, PathKind, PeerId, Seconds};

const GIB: f64 = (1u64 << 30) as f64;

/// A link, as a transfer over it has shown it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// To whom.
    pub to: PeerId,
    /// How it went.
    pub path: PathKind,
    /// Latency α, one way: half of the shortest round trip before it.
    pub latency: Seconds,
    /// Bandwidth β.
    pub bandwidth: BytesPerSecond,
    /// Bytes sent.
    pub bytes: u64,
    /// From the first byte to the far end's word that it has all.
    pub took: Seconds,
    /// Processor seconds of this peer's process meanwhile, for every GiB, where the system tells.
    pub cpu_s_per_gib: Option<f64>,
}

impl Links {
    /// Sends `bytes` of zeros to `peer`, over the way that new streams take now.
    ///
    /// # Errors
    /// When the peer is not reached, or does not take them.
    pub async fn transfer(&self, peer: PeerId, addresses: &[SocketAddr], bytes: u64) -> Result<Transfer, LinkError> {
        let connection = self.connection(peer, addresses).await?;
        let opening = Opening::Probe { bytes: PROBE_BYTES };
        let mut pings = Self::open_on(&connection, &opening).await?;
        let round_trip = probe::ping(&mut pings).await?;
        pings.sender.finish()?;
        let watch = CpuWatch::start();
        let mut streams = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let mut stream = Self::open_on(&connection, &opening).await?;
            let mut here = left.min(PROBE_BYTES.into());
            left -= here;
            let mut trains = 0;
            while here > 0 {
                let train = here.min(LONGEST_TRAIN);
                probe::send(&mut stream, train).await?;
                (here, trains) = (here - train, trains + 1);
            }
            stream.sender.finish()?;
            streams.push((stream, trains));
        }
        for (mut stream, trains) in streams {
            for _ in 0..trains {
                probe::seen(&mut stream).await?;
            }
        }
        let moved = watch.stop();
        Ok(Transfer {
            to: peer,
            path: connection.way.path(),
            latency: Seconds(round_trip.as_secs_f64() / 2.0),
            bandwidth: BytesPerSecond(bytes as f64 / moved.seconds),
            bytes,
            took: Seconds(moved.seconds),
            cpu_s_per_gib: moved.cpu_seconds.map(|cpu| cpu / (bytes as f64 / GIB)),
        })
    }
}
