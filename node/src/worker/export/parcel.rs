//! Prompt flow 6: a KV stream to one decode stage, one of several where one core would not keep up with the link. Nothing is sent beyond what the receiver gives credit for.

use super::{
    ExportError, Sealed,
    packer::{OutgoingTile, Packer},
};
use crate::data_plane::links::{FrameReceiver, FrameSender, LinkError, Stream};
use crate::worker::context::StageContext;
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::{sync::mpsc, time::timeout};
use tsnode_coordinator::{batcher::KV_PATIENCE, urgency};
use tsnode_protocol::{
    KvStream, LayerRange, Manifest, PeerId,
    checksum::Checksum,
    codec,
    kv::{KvAnswer, KvHeader, KvPart, Packing},
    limits,
    ring::KvTarget,
    stream::Opening,
};

/// How long a decode stage may take to unpack something, and to confirm all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The layers of a parcel.
#[derive(Clone, Copy)]
pub(super) struct ParcelLayers {
    all: LayerRange,
    kv_stream: KvStream,
}

impl ParcelLayers {
    pub fn contain(self, layer: u32) -> bool {
        self.kv_stream.carries(self.all, layer)
    }
}

/// A KV stream to one target.
pub(super) struct Parcel {
    target: PeerId,
    header: KvHeader,
    sender: FrameSender,
    receiver: FrameReceiver,
    tiles: u32,
    bytes: u64,
    /// Sent, and not known to be unpacked.
    owed: u64,
    /// Not sent yet, as far as is foreseen.
    left: u64,
    opened: Instant,
    checksum: Checksum,
}

impl Parcel {
    /// Opens a stream on each of the connections that share what will come, which the header says and is so many bytes.
    pub async fn open(
        context: &StageContext,
        target: &KvTarget,
        header: KvHeader,
        bytes: u64,
    ) -> Result<Vec<Self>, ExportError> {
        let link = |e| ExportError::Link(target.peer, e);
        let connections = context.links.connections(target.peer, &target.addresses, bytes, header.layers.len()).await;
        let connections = connections.map_err(link)?;
        let mut parcels = Vec::new();
        for kv_stream in connections.kv_streams() {
            let header = KvHeader { kv_stream, ..header };
            let stream = connections.open(kv_stream, &Opening::Kv(header)).await.map_err(link)?;
            parcels.push(Self::new(target.peer, header, stream, bytes / u64::from(kv_stream.of)));
        }
        Ok(parcels)
    }

    fn new(target: PeerId, header: KvHeader, stream: Stream, left: u64) -> Self {
        let Stream { sender, receiver } = stream;
        Self {
            target,
            header,
            sender,
            receiver,
            tiles: 0,
            bytes: 0,
            owed: 0,
            left,
            opened: Instant::now(),
            checksum: Checksum::default(),
        }
    }

    /// Whose tiles it takes.
    pub fn layers(&self) -> ParcelLayers {
        ParcelLayers { all: self.header.layers, kv_stream: self.header.kv_stream }
    }

    /// Sends what comes, then what the receiver holds it against; bytes that then lie in the target's pages.
    pub async fn deliver(mut self, mut tiles: mpsc::Receiver<Sealed>, packer: Packer) -> Result<u64, ExportError> {
        while let Some(Sealed { tile, spoilt }) = tiles.recv().await {
            self.tile(&tile, spoilt).await?;
        }
        self.close(packer.packing()).await?;
        self.confirmed().await
    }

    /// Sends a tile once there is credit for it; of one that is spoilt on purpose, something else than its checksum is of.
    async fn tile(&mut self, tile: &OutgoingTile, spoilt: Option<Bytes>) -> Result<(), ExportError> {
        let bytes = tile.payload.len() as u64;
        while self.owed > 0 && self.owed + bytes > limits::KV_CREDIT {
            match self.answer().await? {
                KvAnswer::Credit(credit) => self.owed = self.owed.saturating_sub(credit),
                KvAnswer::Refused(why) => return Err(ExportError::Refused(self.target, why)),
                KvAnswer::Committed => return Err(ExportError::Unconfirmed(self.target)),
            }
        }
        self.tiles += 1;
        self.bytes += bytes;
        self.owed += bytes;
        self.checksum.update(&codec::encode(&tile.header)).update(&tile.payload);
        self.left = self.left.saturating_sub(bytes);
        self.sender.set_urgency(urgency::of_kv(self.left, self.opened.elapsed(), KV_PATIENCE));
        let link = |e| ExportError::Link(self.target, e);
        self.sender.send(&KvPart::Tile(tile.header)).await.map_err(link)?;
        let payload = spoilt.unwrap_or_else(|| tile.payload.clone());
        self.sender.send_payload(payload, limits::TILE_BYTES).await.map_err(link)
    }

    /// Ends the stream with what the receiver holds it against.
    async fn close(&mut self, packing: Packing) -> Result<(), ExportError> {
        let manifest = Manifest { tiles: self.tiles, bytes: self.bytes, checksum: self.checksum.finish() };
        let link = |e| ExportError::Link(self.target, e);
        self.sender.send(&KvPart::End(manifest, packing)).await.map_err(link)?;
        self.sender.finish().map_err(link)
    }

    /// Bytes that now lie in the target's pages.
    async fn confirmed(mut self) -> Result<u64, ExportError> {
        loop {
            match self.answer().await? {
                KvAnswer::Credit(_) => {}
                KvAnswer::Committed => {
                    self.note();
                    return Ok(self.bytes);
                }
                KvAnswer::Refused(why) => return Err(ExportError::Refused(self.target, why)),
            }
        }
    }

    fn note(&self) {
        let (quinn::PathStats { rtt, cwnd, lost_packets, congestion_events, .. }, bytes) =
            (self.sender.path(), self.bytes);
        let took = self.opened.elapsed();
        tracing::debug!(to = %self.target, bytes, ?took, ?rtt, cwnd, lost_packets, congestion_events, "KV delivered");
    }

    async fn answer(&mut self) -> Result<KvAnswer, ExportError> {
        let answer = timeout(PATIENCE, self.receiver.recv::<KvAnswer>()).await;
        match answer.map_err(|_| ExportError::Unconfirmed(self.target))? {
            Ok(Some(mut answer)) => {
                answer.shorten_reason();
                Ok(answer)
            }
            Ok(None) => Err(ExportError::Unconfirmed(self.target)),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn lost(&self, error: LinkError) -> ExportError {
        ExportError::Link(self.target, error)
    }
}
