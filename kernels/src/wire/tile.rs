//! Tiles of pages: blocks of keys head by head, then blocks of values.

use super::{
    BLOCK, BlockShape, CodeBits, CodecScratch, GatheredRows, KeyRotation, PayloadError, open, pack, tile_bytes,
};
use crate::{
    cpu::Simd,
    pages::{PagePool, SequenceKv, Side},
};
use std::ops::Range;
use tsnode_protocol::KvCodec;

/// How tiles are packed and unpacked.
#[derive(Clone, Copy, Debug)]
pub struct TileCodec<'a> {
    /// By which instructions: all give the same bytes.
    pub simd: Simd,
    /// As what.
    pub codec: KvCodec,
    /// How the layer's keys turn with their positions, if they do.
    pub turn: Option<&'a KeyRotation>,
}

impl<'a> TileCodec<'a> {
    /// The turn that numbers of such a block are packed without.
    pub(crate) fn turn_of(&self, form: BlockShape) -> Option<&'a KeyRotation> {
        self.turn.filter(|_| form.bits != CodeBits::Eight && form.side == Side::Keys)
    }
}

/// A part of a sequence's KV, inside its reserved pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Layer, counted over the stage.
    pub layer: usize,
    /// KV heads.
    pub heads: Range<usize>,
    /// Tokens.
    pub tokens: Range<usize>,
}

impl Tile {
    fn bytes(&self, codec: KvCodec, kv: &SequenceKv) -> usize {
        let layout = kv.layout();
        tile_bytes(codec, layout.dtype, self.tokens.len(), self.heads.len(), layout.dim)
    }

    /// Its strips, in the order of their bytes.
    fn strips(&self) -> impl Iterator<Item = Strip> + use<> {
        let Self { layer, heads, tokens } = self.clone();
        [Side::Keys, Side::Values].into_iter().flat_map(move |side| {
            let tokens = tokens.clone();
            heads.clone().map(move |head| Strip { layer, side, head, tokens: tokens.clone() })
        })
    }
}

/// A sequence's pages, to be read.
pub(crate) type SourcePages<'a> = (&'a SequenceKv, &'a PagePool);

/// A tile's keys or values of one head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    pub layer: usize,
    pub side: Side,
    pub head: usize,
    pub tokens: Range<usize>,
}

impl Strip {
    /// Its blocks, in the order of their bytes.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = self.tokens.end;
        self.tokens.clone().step_by(BLOCK).map(move |start| start..end.min(start + BLOCK))
    }

    /// Its blocks as they lie in pages, of a codec that packs.
    fn gathered<'p>(self, codec: KvCodec, (kv, pool): SourcePages<'p>) -> impl Iterator<Item = GatheredRows<'p>> {
        let layout = kv.layout();
        self.blocks().filter_map(move |tokens| {
            let bits = CodeBits::of(codec, tokens.len())?;
            let form = BlockShape { bits, side: self.side, tokens: tokens.len(), dim: layout.dim };
            let runs = kv.runs(pool, self.layer, self.side, self.head, tokens);
            Some(GatheredRows::gather(form, layout.stored(), runs))
        })
    }

    /// Unpacks the first bytes of `packed` into pages; the rest is for what follows.
    pub fn import<'p>(
        &self,
        packing: TileCodec<'_>,
        (kv, pool): (&SequenceKv, &mut PagePool),
        scratch: &mut CodecScratch,
        packed: &'p [u8],
    ) -> &'p [u8] {
        let (layout, mut rest) = (kv.layout(), packed);
        for tokens in self.blocks() {
            let Some(bits) = CodeBits::of(packing.codec, tokens.len()) else {
                kv.runs_mut(pool, self.layer, self.side, self.head, tokens, |run| {
                    let (bytes, after) = rest.split_at(run.len());
                    run.copy_from_slice(bytes);
                    rest = after;
                });
                continue;
            };
            let form = BlockShape { bits, side: self.side, tokens: tokens.len(), dim: layout.dim };
            let (block, after) = rest.split_at(form.bytes());
            rest = after;
            let mut block = open(packing, form, block, scratch);
            let mut row = 0;
            kv.runs_mut(pool, self.layer, self.side, self.head, tokens, |run| {
                block.rows(row, layout.stored(), run);
                row += run.len() / layout.row();
            });
        }
        rest
    }
}

/// Packs what lies in pages. `payload` becomes as long as the tile; what memory it has is used again.
pub fn export(
    packing: TileCodec<'_>,
    kv: &SequenceKv,
    pool: &PagePool,
    tile: &Tile,
    scratch: &mut CodecScratch,
    payload: &mut Vec<u8>,
) {
    payload.resize(tile.bytes(packing.codec, kv), 0);
    export_strips(packing, tile.strips().map(|strip| (strip, (kv, pool))), scratch, payload);
}

/// Packs strips one behind the other into `out`, which is as long as they are.
pub(crate) fn export_strips<'p>(
    packing: TileCodec<'_>,
    strips: impl Iterator<Item = (Strip, SourcePages<'p>)>,
    scratch: &mut CodecScratch,
    out: &mut [u8],
) {
    let mut rest = out;
    if packing.codec == KvCodec::Raw {
        for (strip, (kv, pool)) in strips {
            for run in kv.runs(pool, strip.layer, strip.side, strip.head, strip.tokens) {
                let (out, after) = rest.split_at_mut(run.len());
                out.copy_from_slice(run);
                rest = after;
            }
        }
        return;
    }
    let mut blocks = strips.flat_map(|(strip, pages)| strip.gathered(packing.codec, pages));
    let mut now = blocks.next();
    while let Some(block) = now {
        let next = blocks.next();
        let (out, after) = rest.split_at_mut(block.form().bytes());
        pack(packing, &block, next.as_ref(), scratch, out);
        (rest, now) = (after, next);
    }
}

/// Unpacks a payload into pages.
///
/// # Errors
/// When it is not exactly as long as the tile needs; then nothing is written.
pub fn import(
    packing: TileCodec<'_>,
    kv: &SequenceKv,
    pool: &mut PagePool,
    tile: &Tile,
    scratch: &mut CodecScratch,
    payload: &[u8],
) -> Result<(), PayloadError> {
    let (found, expected) = (payload.len(), tile.bytes(packing.codec, kv));
    if found != expected {
        return Err(PayloadError { found, expected });
    }
    tile.strips().fold(payload, |rest, strip| strip.import(packing, (kv, &mut *pool), scratch, rest));
    Ok(())
}
