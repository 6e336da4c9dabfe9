//! Prompt flow 5 and 6: a sequence's KV leaves for every decode stage that needs it, as soon as it is computed.
//!
//! Two work on it: the compute thread packs tiles ([`packer`]), a layer's in the middle of the step that computes it where that
//! pays (Splitwise §IV-C), and a task sends them ([`parcel`]). Between them is a short queue. While it is full KV waits
//! in its pages, and is packed when there is room (ThunderServe App. E): computing never waits for a link.

mod packer;
mod parcel;
mod tile_memory;

pub(super) use packer::Taps;

use super::context::{AdmissionNo, AdmittedFrame, SideFrames, StageContext};
use crate::data_plane::links::LinkError;
use bytes::Bytes;
use futures::future::try_join_all;
use packer::{OutgoingTile, PackRequest, Packer};
use parcel::{Parcel, ParcelLayers};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tsnode_kernels::{engine::Engine, wire::tile_bytes};
use tsnode_protocol::{
    KvStream, LayerRange, PeerId, RequestId,
    kv::{KvHeader, KvPace},
    ring::{KvExport, KvTarget, RingFrame},
};

/// Tiles packed and not yet handed out.
const TILES: usize = 16;
/// Tiles handed out to a parcel and not yet sent.
const AHEAD: usize = 2;

/// The way to a sequence's export; dropping it ends the export.
pub(super) struct Exporter {
    packer: Packer,
    pace: KvPace,
    tokens: u32,
    computed: watch::Sender<u32>,
    _end: DropGuard,
}

impl Exporter {
    /// A step will compute its tokens up to `end`.
    pub fn tap(&self, end: u32, taps: &mut Taps) {
        if self.pace == KvPace::Layers {
            taps.add(self.packer.clone(), end.min(self.tokens));
        }
    }

    /// KV of its tokens up to `end` exists now in all layers of the stage.
    pub fn computed(&self, end: u32) {
        let end = end.min(self.tokens);
        self.computed.send_if_modified(|known| end > std::mem::replace(known, end.max(*known)));
    }
}

/// Starts sending `request`'s KV to the targets that share layers with this stage.
/// Says on `side` when all of it is confirmed, or why it is not.
pub(super) fn start(
    context: StageContext,
    request: RequestId,
    prompt_tokens: u32,
    what: KvExport,
    (side, admission): (SideFrames, AdmissionNo),
    stop: CancellationToken,
) -> Exporter {
    let (sender, tiles) = mpsc::channel(TILES);
    let (computed, far) = watch::channel(0);
    let (guard, pace, position) = (stop.clone().drop_guard(), what.pace, context.position);
    let wanted = PackRequest {
        stage: context.key,
        request,
        codec: what.codec,
        tokens: prompt_tokens,
        layers: wanted_layers(&context, &what.targets),
        heads: context.shape.kv_heads,
    };
    let packer = Packer::new(wanted, sender);
    let export = Export { context: context.clone(), wanted, packer: packer.clone(), tiles, computed: far };
    context.tasks.clone().spawn(async move {
        let sent = tokio::select! {
            () = stop.cancelled() => return,
            sent = export.run(what) => sent,
        };
        let (bytes, failed) = match sent {
            Ok(bytes) => (bytes, None),
            Err(error) => (0, Some(error.to_string())),
        };
        // The ring may have ended meanwhile; then nobody waits for this.
        let _ =
            side.send(AdmittedFrame { admission, frame: RingFrame::KvSent { request, position, bytes, failed } }).await;
    });
    Exporter { packer, pace, tokens: prompt_tokens, computed, _end: guard }
}

/// From the first layer of this stage that somebody wants to the last.
fn wanted_layers(context: &StageContext, targets: &[KvTarget]) -> LayerRange {
    let shared = targets.iter().map(|t| t.layers.intersection(context.layers)).filter(|l| !l.is_empty());
    let both = |a: LayerRange, b: LayerRange| LayerRange { start: a.start.min(b.start), end: a.end.max(b.end) };
    shared.reduce(both).unwrap_or(LayerRange { start: 0, end: 0 })
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("KV to {0}: {1}")]
    Link(PeerId, LinkError),
    #[error("KV refused by {0}: {1}")]
    Refused(PeerId, String),
    #[error("KV not confirmed by {0} in time")]
    Unconfirmed(PeerId),
    #[error("KV could not be packed: {0}")]
    Pack(String),
}

/// The task that sends.
struct Export {
    context: StageContext,
    wanted: PackRequest,
    packer: Packer,
    tiles: mpsc::Receiver<OutgoingTile>,
    computed: watch::Receiver<u32>,
}

impl Export {
    /// Packs and sends: what holds one parcel up holds up the others only once they have nothing left that is packed.
    async fn run(self, what: KvExport) -> Result<u64, ExportError> {
        let (mut couriers, mut deliveries) = (Vec::new(), Vec::new());
        for parcel in self.open(&what).await? {
            let (tiles, queue) = mpsc::channel(AHEAD);
            couriers.push(Courier { layers: parcel.layers(), tiles });
            deliveries.push(parcel.deliver(queue, self.packer.clone()));
        }
        let ((), bytes) = tokio::try_join!(self.feed(what.pace, couriers), try_join_all(deliveries))?;
        Ok(bytes.iter().sum())
    }

    /// Hands out tiles until all there will be are packed.
    async fn feed(mut self, pace: KvPace, couriers: Vec<Courier>) -> Result<(), ExportError> {
        loop {
            // Tiles of a layer leave in token order: what lies ready goes before anything more is packed.
            if let Ok(tile) = self.tiles.try_recv() {
                self.hand_out(tile, &couriers).await?;
                continue;
            }
            let computed = *self.computed.borrow_and_update();
            let whole = computed >= self.wanted.tokens;
            if (whole || pace == KvPace::Layers) && self.packer.lags(computed) {
                self.catch_up(computed).await?;
                continue;
            }
            if whole {
                return Ok(());
            }
            tokio::select! {
                Some(tile) = self.tiles.recv() => self.hand_out(tile, &couriers).await?,
                changed = self.computed.changed() => {
                    changed.map_err(|_| ExportError::Pack("the sequence ended".into()))?;
                }
            }
        }
    }

    async fn open(&self, what: &KvExport) -> Result<Vec<Parcel>, ExportError> {
        let PackRequest { request, codec, tokens, .. } = self.wanted;
        let (model, dtype) = (self.context.model, self.context.dtype);
        let mut parcels = Vec::new();
        for target in &what.targets {
            let layers = target.layers.intersection(self.context.layers);
            if !layers.is_empty() {
                let header = KvHeader { request, model, dtype, codec, layers, kv_stream: KvStream::WHOLE, tokens };
                let (heads, dim) = (self.wanted.heads as usize, self.context.shape.head_dim as usize);
                let layer = tile_bytes(codec, dtype, tokens as usize, heads, dim) as u64;
                let bytes = layer * u64::from(layers.len());
                parcels.extend(Parcel::open(&self.context, target, header, bytes).await?);
            }
        }
        Ok(parcels)
    }

    /// What no step has packed, between steps.
    async fn catch_up(&self, computed: u32) -> Result<(), ExportError> {
        let packer = self.packer.clone();
        let pack = move |engine: &mut Engine| packer.catch_up(engine, computed);
        let packed = self.context.compute.call(pack).await.map_err(|e| ExportError::Pack(e.to_string()))?;
        packed.map_err(|e| ExportError::Pack(e.to_string()))
    }

    async fn hand_out(&self, mut tile: OutgoingTile, couriers: &[Courier]) -> Result<(), ExportError> {
        let links = &self.context.links;
        if links.falsifies_tile() {
            tile.payload = tile.payload.iter().map(|byte| byte.rotate_left(3)).collect();
        }
        let spoilt = links.spoils_tile().then(|| spoil(&tile.payload));
        for courier in couriers.iter().filter(|c| c.layers.contain(tile.header.layer)) {
            let sealed = Sealed { tile: tile.clone(), spoilt: spoilt.clone() };
            // A parcel that takes none any more says itself why.
            courier.tiles.send(sealed).await.map_err(|_| ExportError::Pack("a stream ended".into()))?;
        }
        Ok(())
    }
}

/// The way to a parcel that is being delivered.
struct Courier {
    layers: ParcelLayers,
    tiles: mpsc::Sender<Sealed>,
}

/// A tile that is to be sent; of one that is spoilt on purpose, with something else than its checksum is of.
struct Sealed {
    tile: OutgoingTile,
    spoilt: Option<Bytes>,
}

/// With one bit flipped.
fn spoil(payload: &[u8]) -> Bytes {
    let mut spoilt = payload.to_vec();
    if let Some(byte) = spoilt.get_mut(payload.len() / 2) {
        *byte ^= 1;
    }
    spoilt.into()
}
