//! KV that leaves while a step is still computing: a layer's can be packed as soon as its keys and values are stored.

use super::{Shards, StageKey, carded, key_rotation::StageRotations};
use crate::{
    cpu::Simd,
    cuda::{GpuRanks, TilePlace},
    pages::PagePool,
    wire::{self, KeyRotation, Tile, TileCodec},
};
use std::collections::BTreeMap;
use std::ops::Range;
use tsnode_protocol::{KvCodec, RequestId};

/// Whoever wants a layer's KV before the next layer is computed.
///
/// It is called on the thread that computes, which waits for it. Where several ranks of the processor hold a stage it is not
/// called: no rank has all heads. Several GPUs are asked for theirs by one thread, which calls it as for one GPU.
pub trait Tap: Send {
    /// Keys and values of the step's tokens are stored in this layer, counted over the model.
    fn layer(&mut self, layer: u32, fresh: &mut Fresh<'_>);
}

/// The KV of one layer, in the middle of a step.
pub struct Fresh<'a> {
    pub(super) pool: &'a PagePool,
    pub(super) sequences: &'a BTreeMap<(StageKey, RequestId), Shards>,
    pub(super) stage: StageKey,
    /// Counted over the stage.
    pub(super) layer: usize,
    pub(super) heads: usize,
    /// How its keys turn.
    pub(super) turn: Option<&'a KeyRotation>,
    pub(super) scratch: &'a mut wire::CodecScratch,
    /// Where the pages are, if not here.
    pub(super) gpus: Option<&'a mut GpuRanks>,
}

impl Fresh<'_> {
    /// Packs tokens of a sequence, those before the step or in it, straight from their pages. `payload` becomes as long as
    /// the tile; what memory it has is used again. Whether the sequence is there and has room for so many.
    pub fn export(&mut self, request: RequestId, tokens: Range<u32>, codec: KvCodec, payload: &mut Vec<u8>) -> bool {
        let Some(kv) = self.sequences.get(&(self.stage, request)) else { return false };
        let tokens = tokens.start as usize..tokens.end as usize;
        if tokens.end > kv.room() || !tokens.start.is_multiple_of(codec.tile_step() as usize) {
            return false;
        }
        if let Some(gpus) = &mut self.gpus {
            let place = TilePlace { stage: self.stage, layers: self.layer..self.layer + 1, tokens, codec };
            return carded::export_beside(gpus, kv, &place, payload);
        }
        let tile = Tile { layer: self.layer, heads: 0..self.heads, tokens };
        let packing = TileCodec { simd: Simd::detect(), codec, turn: self.turn };
        wire::export(packing, kv.of(0), self.pool, &tile, self.scratch, payload);
        true
    }
}

/// What attention tells of the keys and values it has stored.
pub(super) trait OnStored {
    /// In this layer of the stage, of the pool's heads.
    fn stored(&mut self, layer: usize, heads: usize, pool: &PagePool, step: TappedStep<'_>);
}

/// Whose step it is.
#[derive(Clone, Copy)]
pub(super) struct TappedStep<'a> {
    pub stage: StageKey,
    pub sequences: &'a BTreeMap<(StageKey, RequestId), Shards>,
}

/// A tap, and what it needs.
pub(super) struct Tapped<'a> {
    pub tap: &'a mut dyn Tap,
    /// Where the stage's layers begin.
    pub first: u32,
    pub turns: &'a StageRotations,
    pub scratch: &'a mut wire::CodecScratch,
}

impl OnStored for Tapped<'_> {
    fn stored(&mut self, layer: usize, heads: usize, pool: &PagePool, step: TappedStep<'_>) {
        let TappedStep { stage, sequences } = step;
        let (turn, scratch) = (self.turns.of(layer), &mut *self.scratch);
        let mut fresh = Fresh { pool, sequences, stage, layer, heads, turn, scratch, gpus: None };
        self.tap.layer(self.first + layer as u32, &mut fresh);
    }
}
