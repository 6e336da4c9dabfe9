//! Prompt flow 7: receives KV for sequences that wait for it. Nothing half-received is ever decoded from.
//!
//! A stage registers what it expects and for how long; each KV stream is checked against that, unpacked straight into
//! the reserved pages, and counted only once its manifest fits. When every layer of the stage has arrived, or the
//! patience is over, the stage hears of it once.

use super::stage::{Admission, Beside, Side, StageContext};
use crate::links::{FrameReceiver, LinkError, Stream};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tsnode_kernels::engine::{Engine, StageKey};
use tsnode_protocol::{
    KvCodec, KvDtype, LayerRange, Manifest, RequestId, TileHeader, codec,
    kv::{KvAnswer, KvHeader, KvPart},
    limits,
    ring::RingFrame,
};

/// A sequence that waits for KV at one stage.
pub(super) struct Expected {
    pub request: RequestId,
    pub tokens: u32,
    pub codec: KvCodec,
    pub patience: Duration,
    pub stage: StageContext,
    pub side: Side,
    pub admission: Admission,
    pub ring: CancellationToken,
}

/// What has come of it so far.
struct Pending {
    expected: Arc<Expected>,
    /// Layers that lie in pages, each counted once.
    arrived: Vec<u32>,
    /// Ends patience and reception when the sequence is released.
    end: CancellationToken,
}

/// Sequences that wait for KV on this peer, by request and stage. Held for map operations only, never across an await.
#[derive(Clone, Default)]
pub(super) struct Desk {
    pending: Arc<Mutex<BTreeMap<(RequestId, StageKey), Pending>>>,
}

#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("no sequence of that name waits for KV here")]
    Unexpected,
    #[error("KV of {theirs} where {ours} was expected")]
    Mismatch { theirs: String, ours: String },
    #[error("a tile outside what the stream announced")]
    Stray,
    #[error("the stream ended without its manifest")]
    Cut,
    #[error("manifest does not fit: {announced:?} announced, {tiles} tiles and {bytes} bytes arrived")]
    Manifest { announced: Manifest, tiles: u32, bytes: u64 },
    #[error("tile could not be unpacked: {0}")]
    Unpack(String),
    #[error("layer {layer} lacks {missing} tokens")]
    Incomplete { layer: u32, missing: u32 },
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(RequestId, StageKey), Pending>> {
        // Every critical section is a map operation that leaves the map whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a sequence's KV; the stage hears `KvArrived` exactly once unless the sequence is forgotten first.
    pub fn expect(&self, expected: Expected) {
        let end = expected.ring.child_token();
        let key = (expected.request, expected.stage.key);
        let (patience, admission, tasks) = (expected.patience, expected.admission, expected.stage.tasks.clone());
        let pending = Pending { expected: Arc::new(expected), arrived: Vec::new(), end: end.clone() };
        self.lock().insert(key, pending);
        let desk = self.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => drop(desk.leave(key, admission)),
                () = tokio::time::sleep(patience) => {
                    let why = format!("no KV within {:.1} s of the reservation", patience.as_secs_f64());
                    desk.settle(key, admission, Some(why)).await;
                }
            }
        });
    }

    /// The sequence is released: whatever still arrives for it is refused.
    pub fn forget(&self, request: RequestId, key: StageKey) {
        if let Some(pending) = self.lock().remove(&(request, key)) {
            pending.end.cancel();
        }
    }

    /// This admission waits no longer; a later one of the same sequence may.
    fn leave(&self, key: (RequestId, StageKey), admission: Admission) -> Option<Pending> {
        let mut pending = self.lock();
        if pending.get(&key)?.expected.admission != admission {
            return None;
        }
        pending.remove(&key)
    }

    /// Says how the waiting ended, if it has not ended yet.
    async fn settle(&self, key: (RequestId, StageKey), admission: Admission, failed: Option<String>) {
        let Some(pending) = self.leave(key, admission) else { return };
        pending.end.cancel();
        let position = pending.expected.stage.position;
        let frame = RingFrame::KvArrived { request: key.0, position, failed };
        // A ring that has ended no longer listens.
        let _ = pending.expected.side.send(Beside { admission, frame }).await;
    }

    fn find(&self, header: &KvHeader) -> Option<((RequestId, StageKey), Arc<Expected>, CancellationToken)> {
        let wanted = |e: &Expected| header.layers.intersection(e.stage.layers) == header.layers;
        self.lock()
            .iter()
            .find(|((request, _), p)| *request == header.request && wanted(&p.expected))
            .map(|(key, p)| (*key, p.expected.clone(), p.end.clone()))
    }

    /// Takes one KV stream in and answers it.
    pub async fn receive(&self, header: KvHeader, stream: Stream) {
        let Stream { mut sender, receiver } = stream;
        let answer = match self.find(&header) {
            None => Err(ReceiveError::Unexpected),
            Some((key, expected, end)) => {
                let taken = tokio::select! {
                    () = end.cancelled() => Err(ReceiveError::Unexpected),
                    taken = take_in(&expected, &header, receiver) => taken,
                };
                self.conclude(key, &expected, header.layers, taken).await
            }
        };
        let answer = match answer {
            Ok(()) => KvAnswer::Committed,
            Err(error) => {
                tracing::warn!(request = %header.request, %error, "KV refused");
                KvAnswer::Refused(error.to_string())
            }
        };
        if sender.send(&answer).await.is_ok() {
            let _ = sender.finish();
        }
    }

    /// Counts layers that arrived whole; commits the sequence when none is missing.
    async fn conclude(
        &self,
        key: (RequestId, StageKey),
        expected: &Expected,
        layers: LayerRange,
        taken: Result<(), ReceiveError>,
    ) -> Result<(), ReceiveError> {
        if let Err(error) = taken {
            self.settle(key, expected.admission, Some(error.to_string())).await;
            return Err(error);
        }
        let whole = {
            let mut pending = self.lock();
            let entry = pending.get_mut(&key).filter(|p| p.expected.admission == expected.admission);
            let entry = entry.ok_or(ReceiveError::Unexpected)?;
            entry.arrived.extend(layers.iter());
            entry.arrived.sort_unstable();
            entry.arrived.dedup();
            entry.arrived.len() == expected.stage.layers.len() as usize
        };
        if whole {
            let (stage, request, tokens) = (expected.stage.key, expected.request, expected.tokens);
            let commit = move |engine: &mut Engine| engine.set_len(stage, request, tokens);
            let committed = expected.stage.compute.call(commit).await;
            let failed = match committed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            self.settle(key, expected.admission, failed).await;
        }
        Ok(())
    }
}

/// Unpacks every tile of the stream, and holds them against header and manifest.
async fn take_in(expected: &Expected, header: &KvHeader, mut stream: FrameReceiver) -> Result<(), ReceiveError> {
    check_header(expected, header)?;
    let mut checksum = blake3::Hasher::new();
    let (mut tiles, mut bytes) = (0u32, 0u64);
    let mut tokens: BTreeMap<u32, u32> = header.layers.iter().map(|layer| (layer, 0)).collect();
    loop {
        match stream.recv::<KvPart>().await?.ok_or(ReceiveError::Cut)? {
            KvPart::Tile(tile) => {
                tile.check().map_err(LinkError::from)?;
                accept_order(expected, &tile, &mut tokens)?;
                let payload = stream.recv_bytes(limits::TILE_BYTES).await?.ok_or(ReceiveError::Cut)?;
                if payload.len() != tile.bytes as usize {
                    return Err(ReceiveError::Stray);
                }
                checksum.update(&codec::encode(&tile)).update(&payload);
                tiles += 1;
                bytes += payload.len() as u64;
                unpack(expected, header, tile, payload).await?;
            }
            KvPart::End(announced) => {
                let ours = Manifest { tiles, bytes, checksum: *checksum.finalize().as_bytes() };
                if announced != ours {
                    return Err(ReceiveError::Manifest { announced, tiles, bytes });
                }
                return all_there(&tokens, expected.tokens);
            }
        }
    }
}

fn check_header(expected: &Expected, header: &KvHeader) -> Result<(), ReceiveError> {
    let mismatch = |theirs: String, ours: String| Err(ReceiveError::Mismatch { theirs, ours });
    let stage = &expected.stage;
    if header.model != stage.model {
        return mismatch(header.model.to_string(), stage.model.to_string());
    }
    if header.tokens != expected.tokens {
        return mismatch(format!("{} tokens", header.tokens), format!("{} tokens", expected.tokens));
    }
    if header.codec != expected.codec {
        return mismatch(format!("{:?} tiles", header.codec), format!("{:?} tiles", expected.codec));
    }
    // Packed tiles hold 16-bit scales whatever the pages hold; raw ones are the pages' own bytes.
    if header.codec == KvCodec::Raw && header.dtype != stage.dtype {
        let name = |d: KvDtype| format!("{d:?} pages");
        return mismatch(name(header.dtype), name(stage.dtype));
    }
    Ok(())
}

/// Tiles of a layer come in token order, each token once, with all KV heads.
fn accept_order(expected: &Expected, tile: &TileHeader, tokens: &mut BTreeMap<u32, u32>) -> Result<(), ReceiveError> {
    let have = tokens.get_mut(&tile.layer).ok_or(ReceiveError::Stray)?;
    let heads = expected.stage.shape.kv_heads;
    if tile.token_start != *have || tile.token_end > expected.tokens || tile.head_start != 0 || tile.head_end != heads {
        return Err(ReceiveError::Stray);
    }
    *have = tile.token_end;
    Ok(())
}

async fn unpack(
    expected: &Expected,
    header: &KvHeader,
    tile: TileHeader,
    payload: Vec<u8>,
) -> Result<(), ReceiveError> {
    let (key, request, packing) = (expected.stage.key, expected.request, header.codec);
    let job = move |engine: &mut Engine| engine.import(key, request, &tile, packing, &payload);
    let done = expected.stage.compute.call(job).await.map_err(|e| ReceiveError::Unpack(e.to_string()))?;
    done.map_err(|e| ReceiveError::Unpack(e.to_string()))
}

fn all_there(tokens: &BTreeMap<u32, u32>, wanted: u32) -> Result<(), ReceiveError> {
    match tokens.iter().find(|(_, have)| **have != wanted) {
        Some((layer, have)) => Err(ReceiveError::Incomplete { layer: *layer, missing: wanted - have }),
        None => Ok(()),
    }
}
