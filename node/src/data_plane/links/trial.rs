//! Moves bytes between two ends in one process, over our own links and over others: what `tsnode bench link` measures.

mod others;

use super::{Connections, IncomingStream, LinkError, Links, LinksConfig, Shaping, Stream};
use crate::{
    data_plane::{doors::Doors, offences::OffenceReporter},
    platform,
    store::identity::Identity,
};
use bytes::Bytes;
use futures::future::join_all;
use serde::Serialize;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tsnode_coordinator::kv_streams::KvStreams;
use tsnode_protocol::{
    KvCodec, KvDtype, KvStream, LayerRange, Manifest, ModelId, PeerId, RequestId, Secret, SwarmId, TileHeader,
    checksum::Checksum,
    codec,
    kv::{KvAnswer, KvHeader, KvPart, Packing},
    limits,
    proof::Membership,
    stream::Opening,
};

/// Payload of a tile: 512 tokens of 8 heads of 128 channels, packed to four bits.
const TILE: usize = 512 * 1024;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrialCarrier {
    /// Our own links: tiles on a KV stream, checked against a manifest.
    Own,
    /// The same, with several connections that share the tiles.
    KvStreams,
    /// One stream of a QUIC connection with the same settings, and nothing else.
    Bare,
    /// A TCP connection.
    Tcp,
    /// TLS over a TCP connection, with the same ciphers.
    Tls,
}

/// What moving them took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MovedBytes {
    /// From the first byte to the far end's word that it has all.
    pub seconds: f64,
    /// Processor time of both ends together, where the system tells.
    pub cpu_seconds: Option<f64>,
}

/// Moves `bytes` in datagrams of at most `datagram`, where there are any, by `kv_streams` connections where several share them.
/// Connections are there before the clock starts.
///
/// # Errors
/// When the two ends of this process do not reach each other.
pub async fn carry(
    carrier: TrialCarrier,
    bytes: u64,
    datagram: u16,
    kv_streams: NonZeroU8,
) -> Result<MovedBytes, LinkError> {
    match carrier {
        TrialCarrier::Own => TrialPair::new(None, Some(datagram), NonZeroU8::MIN).await?.kv_transfer(bytes).await,
        TrialCarrier::KvStreams => TrialPair::new(None, Some(datagram), kv_streams).await?.kv_transfer(bytes).await,
        TrialCarrier::Bare => others::bare(bytes, datagram).await,
        TrialCarrier::Tcp => others::tcp(bytes).await,
        TrialCarrier::Tls => others::tls(bytes).await,
    }
}

/// What a link that is pretended to be slow was found to carry.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slowed {
    /// What a probe said before it (byte/s).
    pub probed: f64,
    /// Bytes of that probe.
    pub probe_bytes: u64,
    /// What traffic said (byte/s).
    pub seen: f64,
    /// A KV transfer after it.
    pub moved: MovedBytes,
}

/// Moves `bytes` over such a link, which was probed before, as every link of a peer is.
///
/// # Errors
/// When the two ends of this process do not reach each other.
pub async fn slowed(shaping: Shaping, bytes: u64) -> Result<Slowed, LinkError> {
    let mut pair = TrialPair::new(Some(shaping), None, NonZeroU8::MIN).await?;
    let probed = pair.from.links.probe(pair.to.id, &[pair.to.address]).await?;
    let moved = pair.kv_transfer(bytes).await?;
    let seen = pair.from.links.measured().first().map_or(f64::NAN, |m| m.link.bandwidth.0);
    Ok(Slowed { probed: probed.link.bandwidth.0, probe_bytes: probed.bytes, seen, moved })
}

/// Measures what happens until it is stopped.
pub(super) struct CpuWatch {
    started: Instant,
    cpu: Option<f64>,
}

impl CpuWatch {
    pub fn start() -> Self {
        Self { started: Instant::now(), cpu: platform::processor_time() }
    }

    pub fn stop(&self) -> MovedBytes {
        let cpu_seconds = self.cpu.zip(platform::processor_time()).map(|(before, after)| after - before);
        MovedBytes { seconds: self.started.elapsed().as_secs_f64(), cpu_seconds }
    }
}

struct TrialEnd {
    links: Links,
    incoming: super::Incoming,
    address: SocketAddr,
    id: PeerId,
    _stop: DropGuard,
}

impl TrialEnd {
    fn new(shaping: Option<Shaping>, datagram: Option<u16>, kv_streams: NonZeroU8) -> Result<Self, LinkError> {
        let identity = Identity::from_seed(&crate::random_bytes());
        let id = identity.peer_id();
        let stop = CancellationToken::new();
        let membership = Membership::new(SwarmId([0; 16]), Some(Secret([0; 32])));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        // Nobody is kept out, so nobody need hear of offences.
        let (offence_reporter, _) = OffenceReporter::channel();
        let config = LinksConfig {
            identity,
            membership,
            listen,
            shaping,
            datagram,
            offence_reporter,
            faults: None,
            heartbeats: None,
            carriage: None,
            kv_streams: KvStreams::Fixed(kv_streams),
            doors: Doors::default(),
        };
        let (links, incoming, _) = Links::bind(config, stop.clone())?;
        let address = links.local_addr().map_err(|e| LinkError::Lost(e.to_string()))?;
        Ok(Self { links, incoming, address, id, _stop: stop.drop_guard() })
    }
}

/// Two ends that know each other.
struct TrialPair {
    from: TrialEnd,
    to: TrialEnd,
}

impl TrialPair {
    async fn new(shaping: Option<Shaping>, datagram: Option<u16>, kv_streams: NonZeroU8) -> Result<Self, LinkError> {
        let end = || TrialEnd::new(shaping, datagram, kv_streams);
        let pair = Self { from: end()?, to: end()? };
        let connections = pair.connections().await?;
        if connections.0.len() != usize::from(kv_streams.get()) {
            return Err(LinkError::Lost("fewer connections than were asked for".into()));
        }
        if let Some(datagram) = datagram {
            join_all(connections.0.iter().map(|connection| settled(&connection.connection, datagram))).await;
        }
        Ok(pair)
    }

    async fn connections(&self) -> Result<Connections, LinkError> {
        self.from.links.connections(self.to.id, &[self.to.address], u64::MAX, limits::KV_STREAMS.into()).await
    }

    /// One KV stream on each connection, from its opening to its commitment.
    async fn kv_transfer(&mut self, bytes: u64) -> Result<MovedBytes, LinkError> {
        let header = KvHeader {
            request: RequestId([0; 16]),
            model: ModelId([0; 16]),
            dtype: KvDtype::F16,
            codec: KvCodec::Int4,
            layers: LayerRange { start: 0, end: limits::KV_STREAMS.into() },
            kv_stream: KvStream::WHOLE,
            tokens: 512,
        };
        let watch = CpuWatch::start();
        let (connections, mut tasks) = (self.connections().await?, JoinSet::new());
        for kv_stream in connections.kv_streams() {
            let stream = connections.open(kv_stream, &Opening::Kv(KvHeader { kv_stream, ..header })).await?;
            let arrived = self.to.incoming.next().await.ok_or_else(nobody)?;
            // On threads of their own, as stages of two peers are.
            tasks.spawn(receive(arrived));
            tasks.spawn(send(stream, bytes / u64::from(kv_stream.of)));
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|e| LinkError::Lost(e.to_string()))??;
        }
        Ok(watch.stop())
    }
}

fn nobody() -> LinkError {
    LinkError::Lost("the far end has gone".into())
}

/// Waits until a connection has found out how large its datagrams may be, or a moment: what is measured is how it carries,
/// not how it begins.
pub(super) async fn settled(connection: &quinn::Connection, datagram: u16) {
    const MOMENT: Duration = Duration::from_secs(2);
    let until = Instant::now() + MOMENT;
    while connection.stats().path.current_mtu < datagram && Instant::now() < until {
        // Whatever is acknowledged brings the next trial.
        connection.force_key_update();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A tile's payload that is sent again and again.
pub(super) fn payload() -> Bytes {
    Bytes::from((0..TILE).map(|i| (i % 251) as u8).collect::<Vec<u8>>())
}

async fn send(mut stream: Stream, bytes: u64) -> Result<(), LinkError> {
    let (payload, mut checksum, mut manifest) = (payload(), Checksum::default(), Manifest::default());
    while manifest.bytes < bytes {
        let (token_start, token_end) = (manifest.tiles * 512, (manifest.tiles + 1) * 512);
        let tile = TileHeader { layer: 0, head_start: 0, head_end: 8, token_start, token_end, bytes: TILE as u32 };
        checksum.update(&codec::encode(&tile)).update(&payload);
        manifest.tiles += 1;
        manifest.bytes += payload.len() as u64;
        stream.sender.send(&KvPart::Tile(tile)).await?;
        stream.sender.send_payload(payload.clone(), limits::TILE_BYTES).await?;
    }
    manifest.checksum = checksum.finish();
    stream.sender.send(&KvPart::End(manifest, Packing::default())).await?;
    stream.sender.finish()?;
    match stream.receiver.recv::<KvAnswer>().await? {
        Some(KvAnswer::Committed) => Ok(()),
        other => Err(LinkError::Lost(format!("not committed: {other:?}"))),
    }
}

async fn receive(arrived: IncomingStream) -> Result<(), LinkError> {
    let Stream { mut sender, mut receiver } = arrived.stream;
    let (mut payload, mut checksum, mut ours) = (Vec::new(), Checksum::default(), Manifest::default());
    loop {
        match receiver.recv::<KvPart>().await?.ok_or_else(nobody)? {
            KvPart::Tile(tile) => {
                if !receiver.recv_payload(limits::TILE_BYTES, &mut payload).await? {
                    return Err(nobody());
                }
                checksum.update(&codec::encode(&tile)).update(&payload);
                ours.tiles += 1;
                ours.bytes += payload.len() as u64;
            }
            KvPart::End(announced, _) => {
                ours.checksum = checksum.finish();
                if announced != ours {
                    return Err(LinkError::Lost(format!("{announced:?} announced, {ours:?} arrived")));
                }
                sender.send(&KvAnswer::Committed).await?;
                return sender.finish();
            }
        }
    }
}
