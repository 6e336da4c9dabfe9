//! Prompt flow 7: one KV stream, held against what was expected, its header and its manifest, and unpacked as it comes.

use super::ExpectedKv;
use crate::data_plane::links::{FrameReceiver, FrameSender, LinkError};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_kernels::engine::{Engine, EngineError};
use tsnode_protocol::{
    KvCodec, KvDtype, Manifest, PeerId, Seconds, TileHeader,
    checksum::Checksum,
    codec,
    kv::{Delivery, KvAnswer, KvHeader, KvPart, Packing},
    limits,
};

/// Credit is given back in pieces of this size (bytes).
const CREDIT_PIECE: u64 = limits::KV_CREDIT / 8;

#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
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
    #[error("{owed} bytes sent where there was credit for {}", limits::KV_CREDIT)]
    Credit { owed: u64 },
    #[error("manifest does not fit: {announced:?} announced, {tiles} tiles and {bytes} bytes arrived")]
    Manifest { announced: Manifest, tiles: u32, bytes: u64 },
    #[error("tile could not be unpacked: {0}")]
    Unpack(String),
    #[error("layer {layer} lacks {missing} tokens")]
    Incomplete { layer: u32, missing: u32 },
}

impl ReceiveError {
    /// What it is counted as.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Link(LinkError::Codec(_)) => "malformed",
            Self::Link(_) => "broken",
            Self::Unexpected => "unexpected",
            Self::Mismatch { .. } => "foreign",
            Self::Stray => "stray",
            Self::Cut => "cut",
            Self::Credit { .. } => "over credit",
            Self::Manifest { .. } => "manifest",
            Self::Unpack(_) => "unpack",
            Self::Incomplete { .. } => "incomplete",
        }
    }
}

/// What has come of a stream.
pub(super) struct IncomingKv<'a> {
    expected: &'a ExpectedKv,
    header: &'a KvHeader,
    stream: FrameReceiver,
    checksum: Checksum,
    tiles: u32,
    bytes: u64,
    /// Tokens that each layer has.
    tokens: BTreeMap<u32, u32>,
    /// Of `bytes`, those that the sender has its credit back for.
    credited: u64,
    /// A tile's memory, used again for the next.
    payload: Vec<u8>,
    began: Instant,
    unpack: Duration,
    last_unpack: Duration,
}

impl<'a> IncomingKv<'a> {
    /// A stream that has said what it is.
    pub fn new(expected: &'a ExpectedKv, header: &'a KvHeader, stream: FrameReceiver) -> Self {
        Self {
            expected,
            header,
            stream,
            checksum: Checksum::default(),
            tiles: 0,
            bytes: 0,
            tokens: header.carried().map(|layer| (layer, 0)).collect(),
            credited: 0,
            payload: Vec::new(),
            began: Instant::now(),
            unpack: Duration::ZERO,
            last_unpack: Duration::ZERO,
        }
    }

    /// Unpacks every tile, and gives credit for the next ones.
    pub async fn take_in(mut self, from: PeerId, answers: &mut FrameSender) -> Result<Delivery, ReceiveError> {
        check_header(self.expected, self.header)?;
        loop {
            match self.stream.recv::<KvPart>().await?.ok_or(ReceiveError::Cut)? {
                KvPart::Tile(tile) => self.tile(tile, answers).await?,
                KvPart::End(announced, packing) => {
                    self.check_manifest(announced)?;
                    return Ok(self.delivery(from, packing));
                }
            }
        }
    }

    async fn tile(&mut self, tile: TileHeader, answers: &mut FrameSender) -> Result<(), ReceiveError> {
        tile.check().map_err(|why| self.stream.refuse(why))?;
        self.accept_order(&tile)?;
        let owed = self.bytes - self.credited;
        if owed > 0 && owed + u64::from(tile.bytes) > limits::KV_CREDIT {
            return Err(ReceiveError::Credit { owed: owed + u64::from(tile.bytes) });
        }
        let mut payload = std::mem::take(&mut self.payload);
        if !self.stream.recv_payload(limits::TILE_BYTES, &mut payload).await? {
            return Err(ReceiveError::Cut);
        }
        if payload.len() != tile.bytes as usize {
            return Err(ReceiveError::Stray);
        }
        self.checksum.update(&codec::encode(&tile)).update(&payload);
        self.tiles += 1;
        self.bytes += payload.len() as u64;
        let (began, work) = (Instant::now(), unpack(self.expected, self.header, tile, payload));
        let work = work.await?;
        self.payload = work.payload;
        self.last_unpack = began.elapsed();
        // Beside other parallel streams a tile waits for theirs to be unpacked, which would count for each.
        self.unpack += if self.header.kv_stream.of > 1 { work.took } else { self.last_unpack };
        if self.bytes - self.credited >= CREDIT_PIECE {
            answers.send(&KvAnswer::Credit(self.bytes - self.credited)).await?;
            self.credited = self.bytes;
        }
        Ok(())
    }

    /// Tiles of a layer come in token order, each token once, with all KV heads.
    fn accept_order(&mut self, tile: &TileHeader) -> Result<(), ReceiveError> {
        let have = self.tokens.get_mut(&tile.layer).ok_or(ReceiveError::Stray)?;
        let (heads, end) = (self.expected.stage.shape.kv_heads, self.expected.tokens);
        if tile.token_start != *have || tile.token_end > end || tile.head_start != 0 || tile.head_end != heads {
            return Err(ReceiveError::Stray);
        }
        *have = tile.token_end;
        Ok(())
    }

    fn check_manifest(&self, announced: Manifest) -> Result<(), ReceiveError> {
        let (tiles, bytes) = (self.tiles, self.bytes);
        if announced != (Manifest { tiles, bytes, checksum: self.checksum.finish() }) {
            return Err(ReceiveError::Manifest { announced, tiles, bytes });
        }
        let wanted = self.expected.tokens;
        match self.tokens.iter().find(|(_, have)| **have != wanted) {
            Some((layer, have)) => Err(ReceiveError::Incomplete { layer: *layer, missing: wanted - have }),
            None => Ok(()),
        }
    }

    fn delivery(&self, from: PeerId, packing: Packing) -> Delivery {
        let seconds = |d: Duration| Seconds(d.as_secs_f64());
        Delivery {
            from,
            to: self.expected.me,
            bytes: self.bytes,
            tiles: self.tiles,
            streams: 1,
            pack: packing.all,
            pack_tail: packing.tail,
            wire: seconds(self.began.elapsed().saturating_sub(self.last_unpack)),
            unpack: seconds(self.unpack),
            unpack_tail: seconds(self.last_unpack),
        }
    }
}

fn check_header(expected: &ExpectedKv, header: &KvHeader) -> Result<(), ReceiveError> {
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

/// A tile's memory, to be used again, and how long the compute thread took.
struct UnpackedTile {
    payload: Vec<u8>,
    took: Duration,
}

async fn unpack(
    expected: &ExpectedKv,
    header: &KvHeader,
    tile: TileHeader,
    payload: Vec<u8>,
) -> Result<UnpackedTile, ReceiveError> {
    let (key, request, packing) = (expected.stage.key, expected.request, header.codec);
    let job = move |engine: &mut Engine| {
        let began = Instant::now();
        engine.import(key, request, &tile, packing, &payload)?;
        Ok::<_, EngineError>(UnpackedTile { payload, took: began.elapsed() })
    };
    let done = expected.stage.compute.call(job).await.map_err(|e| ReceiveError::Unpack(e.to_string()))?;
    done.map_err(|e| ReceiveError::Unpack(e.to_string()))
}
