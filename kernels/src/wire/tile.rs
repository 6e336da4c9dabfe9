//! Tiles of pages: blocks of keys head by head, then blocks of values.

use super::{BLOCK, Bits, Form, PayloadError, Rows, Scratch, open, pack, tile_bytes};
use crate::{
    cpu::Simd,
    pages::{PagePool, SequenceKv, Side},
};
use std::ops::Range;
use tsnode_protocol::KvCodec;

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

    /// Its blocks, in the order of their bytes.
    fn blocks(&self) -> impl Iterator<Item = (Side, usize, Range<usize>)> + use<> {
        let (heads, tokens) = (self.heads.clone(), self.tokens.clone());
        let of_head = move |side, head, tokens: Range<usize>| {
            let end = tokens.end;
            tokens.step_by(BLOCK).map(move |start| (side, head, start..end.min(start + BLOCK)))
        };
        [Side::Keys, Side::Values].into_iter().flat_map(move |side| {
            let tokens = tokens.clone();
            heads.clone().flat_map(move |head| of_head(side, head, tokens.clone()))
        })
    }
}

/// Packs what lies in pages. `payload` becomes as long as the tile; what memory it has is used again.
pub fn export(
    simd: Simd,
    codec: KvCodec,
    kv: &SequenceKv,
    pool: &PagePool,
    tile: &Tile,
    scratch: &mut Scratch,
    payload: &mut Vec<u8>,
) {
    payload.resize(tile.bytes(codec, kv), 0);
    let layout = kv.layout();
    let mut rest = payload.as_mut_slice();
    for (side, head, tokens) in tile.blocks() {
        let Some(bits) = Bits::of(codec) else {
            for run in kv.runs(pool, tile.layer, side, head, tokens) {
                let (out, after) = rest.split_at_mut(run.len());
                out.copy_from_slice(run);
                rest = after;
            }
            continue;
        };
        let form = Form { bits, side, tokens: tokens.len(), dim: layout.dim };
        let mut rows = [[].as_slice(); BLOCK];
        let all = kv.runs(pool, tile.layer, side, head, tokens).flat_map(|run| run.chunks_exact(layout.row()));
        rows.iter_mut().zip(all).for_each(|(slot, row)| *slot = row);
        let (out, after) = rest.split_at_mut(form.bytes());
        pack(simd, form, Rows { rows: &rows[..form.tokens], dtype: layout.stored() }, scratch, out);
        rest = after;
    }
}

/// Unpacks a payload into pages.
///
/// # Errors
/// When it is not exactly as long as the tile needs; then nothing is written.
pub fn import(
    simd: Simd,
    codec: KvCodec,
    kv: &SequenceKv,
    pool: &mut PagePool,
    tile: &Tile,
    scratch: &mut Scratch,
    payload: &[u8],
) -> Result<(), PayloadError> {
    let (found, expected) = (payload.len(), tile.bytes(codec, kv));
    if found != expected {
        return Err(PayloadError { found, expected });
    }
    let layout = kv.layout();
    let mut rest = payload;
    for (side, head, tokens) in tile.blocks() {
        let Some(bits) = Bits::of(codec) else {
            kv.runs_mut(pool, tile.layer, side, head, tokens, |run| {
                let (bytes, after) = rest.split_at(run.len());
                run.copy_from_slice(bytes);
                rest = after;
            });
            continue;
        };
        let form = Form { bits, side, tokens: tokens.len(), dim: layout.dim };
        let (block, after) = rest.split_at(form.bytes());
        rest = after;
        let block = open(simd, form, block, scratch);
        let mut row = 0;
        kv.runs_mut(pool, tile.layer, side, head, tokens, |run| {
            for out in run.chunks_exact_mut(layout.row()) {
                block.row(row, layout.stored(), out);
                row += 1;
            }
        });
    }
    Ok(())
}
