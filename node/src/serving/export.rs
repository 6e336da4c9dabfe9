//! Prompt flow 5 and 6: packs a sequence's KV as it is computed and sends it to every decode stage that needs it.

use super::stage::{Admission, Beside, Side, StageContext};
use crate::links::{FrameReceiver, FrameSender, LinkError, Stream};
use std::ops::Range;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tsnode_kernels::engine::Engine;
use tsnode_protocol::{
    KvCodec, LayerRange, Manifest, PeerId, RequestId, TileHeader, codec,
    kv::{KvAnswer, KvHeader, KvPart},
    limits,
    ring::{KvExport, KvTarget, RingFrame},
    stream::Opening,
};

/// Token ranges computed and not yet packed; the stage waits above it, which holds the prefill back.
const RANGES: usize = 64;
/// Tokens in a tile of what was there before: as many as a step computes.
const PIECE: u32 = 512;
/// How long a decode stage may take to confirm the last tile.
const CONFIRM: Duration = Duration::from_secs(10);

/// The way to a sequence's export; dropping it ends the export.
pub(super) struct Exporter {
    ranges: mpsc::Sender<Range<u32>>,
    _end: DropGuard,
}

impl Exporter {
    /// The first tokens' KV was there before the sequence.
    pub async fn has(&self, tokens: u32) {
        let mut start = 0;
        while start < tokens {
            let end = tokens.min(start + PIECE);
            self.computed(start..end).await;
            start = end;
        }
    }

    /// These tokens' KV exists now in all layers of the stage.
    pub async fn computed(&self, tokens: Range<u32>) {
        // An export that has failed has said so on its own; the prefill goes on for its first token.
        let _ = self.ranges.send(tokens).await;
    }
}

/// Starts sending `request`'s KV to the targets that share layers with this stage.
/// Says on `side` when all of it is confirmed, or why it is not.
pub(super) fn start(
    context: StageContext,
    request: RequestId,
    prompt_tokens: u32,
    what: KvExport,
    (side, admission): (Side, Admission),
    stop: CancellationToken,
) -> Exporter {
    let (ranges, computed) = mpsc::channel(RANGES);
    let guard = stop.clone().drop_guard();
    let position = context.position;
    context.tasks.clone().spawn(async move {
        let sent = tokio::select! {
            () = stop.cancelled() => return,
            sent = send_all(&context, request, prompt_tokens, what, computed) => sent,
        };
        let (bytes, failed) = match sent {
            Ok(bytes) => (bytes, None),
            Err(error) => (0, Some(error.to_string())),
        };
        // The ring may have ended meanwhile; then nobody waits for this.
        let _ = side.send(Beside { admission, frame: RingFrame::KvSent { request, position, bytes, failed } }).await;
    });
    Exporter { ranges, _end: guard }
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("KV to {0}: {1}")]
    Link(PeerId, LinkError),
    #[error("KV refused by {0}: {1}")]
    Refused(PeerId, String),
    #[error("KV not confirmed by {0} in time")]
    Unconfirmed(tsnode_protocol::PeerId),
    #[error("KV could not be packed: {0}")]
    Pack(String),
}

async fn send_all(
    context: &StageContext,
    request: RequestId,
    prompt_tokens: u32,
    what: KvExport,
    mut computed: mpsc::Receiver<Range<u32>>,
) -> Result<u64, ExportError> {
    let shared = |t: &KvTarget| t.layers.intersection(context.layers);
    let mut parcels = Vec::new();
    for target in what.targets.iter().filter(|t| !shared(t).is_empty()) {
        parcels.push(Parcel::open(context, request, prompt_tokens, what.codec, target, shared(target)).await?);
    }
    let mut done = 0;
    while done < prompt_tokens {
        let Some(tokens) = computed.recv().await else { return Err(ExportError::Pack("the sequence ended".into())) };
        let end = what.codec.tile_end(tokens.end, prompt_tokens);
        if end == done {
            continue;
        }
        for parcel in &mut parcels {
            parcel.send(context, request, what.codec, done..end).await?;
        }
        done = end;
    }
    let mut bytes = 0;
    for parcel in &mut parcels {
        parcel.close().await?;
    }
    for parcel in parcels {
        bytes += parcel.confirmed().await?;
    }
    Ok(bytes)
}

/// The KV stream to one target.
struct Parcel {
    target: PeerId,
    layers: LayerRange,
    sender: FrameSender,
    receiver: FrameReceiver,
    tiles: u32,
    bytes: u64,
    checksum: blake3::Hasher,
    /// A tile's memory, used again for the next.
    payload: Vec<u8>,
}

impl Parcel {
    async fn open(
        context: &StageContext,
        request: RequestId,
        tokens: u32,
        codec: KvCodec,
        target: &KvTarget,
        layers: LayerRange,
    ) -> Result<Self, ExportError> {
        let header = KvHeader { request, model: context.model, dtype: context.dtype, codec, layers, tokens };
        let Stream { sender, receiver } = context
            .links
            .open(target.peer, &target.addresses, &Opening::Kv(header))
            .await
            .map_err(|e| ExportError::Link(target.peer, e))?;
        let (target, checksum) = (target.peer, blake3::Hasher::new());
        Ok(Self { target, layers, sender, receiver, tiles: 0, bytes: 0, checksum, payload: Vec::new() })
    }

    /// Packs and sends some tokens of every layer the target shares.
    async fn send(
        &mut self,
        context: &StageContext,
        request: RequestId,
        codec: KvCodec,
        tokens: Range<u32>,
    ) -> Result<(), ExportError> {
        for layer in self.layers.iter() {
            let mut tile = TileHeader {
                layer,
                head_start: 0,
                head_end: context.shape.kv_heads,
                token_start: tokens.start,
                token_end: tokens.end,
                bytes: 0,
            };
            let (key, part) = (context.key, tile);
            let mut payload = std::mem::take(&mut self.payload);
            let pack =
                move |engine: &mut Engine| engine.export(key, request, &part, codec, &mut payload).map(|()| payload);
            let packed = context.compute.call(pack).await.map_err(|e| ExportError::Pack(e.to_string()))?;
            let mut payload = packed.map_err(|e| ExportError::Pack(e.to_string()))?;
            if context.links.falsifies_tile() {
                payload.iter_mut().for_each(|byte| *byte = byte.rotate_left(3));
            }
            tile.bytes = payload.len() as u32;
            let spoilt = context.links.spoils_tile().then(|| spoil(&payload));
            self.tile(tile, &payload, spoilt.as_deref()).await.map_err(|e| ExportError::Link(self.target, e))?;
            self.payload = payload;
        }
        Ok(())
    }

    /// Sends a tile; of one that is spoilt on purpose, something else than what its checksum is of.
    async fn tile(&mut self, tile: TileHeader, payload: &[u8], spoilt: Option<&[u8]>) -> Result<(), LinkError> {
        self.tiles += 1;
        self.bytes += payload.len() as u64;
        self.checksum.update(&codec::encode(&tile)).update(payload);
        self.sender.send(&KvPart::Tile(tile)).await?;
        self.sender.send_bytes(spoilt.unwrap_or(payload), limits::TILE_BYTES).await
    }

    /// Ends the stream with what the receiver holds it against.
    async fn close(&mut self) -> Result<(), ExportError> {
        let manifest =
            Manifest { tiles: self.tiles, bytes: self.bytes, checksum: *self.checksum.finalize().as_bytes() };
        let link = |e| ExportError::Link(self.target, e);
        self.sender.send(&KvPart::End(manifest)).await.map_err(link)?;
        self.sender.finish().map_err(link)
    }

    async fn confirmed(mut self) -> Result<u64, ExportError> {
        let answer = timeout(CONFIRM, self.receiver.recv::<KvAnswer>()).await;
        match answer.map_err(|_| ExportError::Unconfirmed(self.target))? {
            Ok(Some(KvAnswer::Committed)) => Ok(self.bytes),
            Ok(Some(KvAnswer::Refused(why))) => Err(ExportError::Refused(self.target, why)),
            Ok(None) => Err(ExportError::Unconfirmed(self.target)),
            Err(error) => Err(ExportError::Link(self.target, error)),
        }
    }
}

/// With one bit flipped.
fn spoil(payload: &[u8]) -> Vec<u8> {
    let mut spoilt = payload.to_vec();
    if let Some(byte) = spoilt.get_mut(payload.len() / 2) {
        *byte ^= 1;
    }
    spoilt
}
