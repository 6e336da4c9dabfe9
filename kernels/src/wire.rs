//! Prompt flow 5: packs KV for a link in three, four or eight bits, and unpacks it into pages (ThunderServe §4, after KIVI).
//!
//! Keys are quantised per channel, values per token: a channel of keys keeps its range from token to token. A **block** is
//! the keys or the values of one head for [`BLOCK`] tokens, or fewer at a prompt's end, and is packed on its own. Numbers
//! that share a step are a **group**: a channel of a block of keys, or [`GROUP`] channels of one token's values.
//!
//! | in order | three and four bits | eight bits |
//! |---|---|---|
//! | base | largest step of the block, 2 bytes | the same |
//! | spread | of values: what a scale counts, 1 byte | |
//! | scales | of keys: a byte a group, steps below the base | a byte a group, steps below the base |
//! | | of values: 4 bits a group, spreads below the base, and in the upper 4 bits its zero | |
//! | zeros | of keys: the lower 8 of 12 bits a group, then the upper 4, two groups a byte | |
//! | codes | 3 or 4 bits a number | a byte a number, token by token |
//!
//! Steps are floats of five mantissa bits, named by a whole number ([`steps`]). A number is `(zero + code) · step` with a
//! code of 0 to 7 or 15 and a zero that for keys counts sixteenths, or `code · step` with a code of -127 to 127: both are exact, so that unpacked values depend on
//! nothing but the bytes. Two tokens share the bytes of their four-bit codes, the first one's in the lower halves, so that
//! rows are packed as they lie in pages; a last token without a partner has its first and its second half of channels
//! share bytes, and so have the upper bits of keys' zeros. Codes of three bits lie as those of four, whose upper
//! bits they leave free, and the last quarter of their bytes goes into those bits of the others ([`threes`]). Nothing is padded but the last half byte of an odd number of either.
//!
//! Keys have been turned by their positions. Three and four bits have them turned back to where their block begins, in single precision
//! and by cosines and sines that are the same on every host, and turned on when they are unpacked ([`KeyRotation`]): then a channel
//! keeps to its own numbers, and its steps are smaller.
//!
//! A block of at most [`SHORT`] tokens has eight bits where others have three or four: it would spend more than another bit a number on
//! its keys' steps, and a prompt that short is all one such block, whose few bytes no link notices.

mod cache_lines;
pub mod codec_speed;
mod key_rotation;
mod plain;
mod steps;
mod threes;
mod tile;

use cache_lines::Lines;
pub use key_rotation::KeyRotation;
pub(crate) use key_rotation::{turn_back, turn_on};
#[cfg(target_arch = "x86_64")]
pub(crate) use plain::encode_from;
pub(crate) use plain::{decode, encode, low_high};
pub(crate) use steps::choose;
pub(crate) use tile::Strip;
pub use tile::{Tile, TileCodec, export, import};

use crate::{
    cpu::{Dtype, Simd},
    pages::Side,
};
use tsnode_protocol::{KvCodec, KvDtype};

/// Tokens that share a key channel's step.
pub const BLOCK: usize = 64;
/// Tokens of a block at most that has eight bits for each number where longer ones have fewer.
pub const SHORT: usize = 16;
/// Channels that share a value token's step.
pub const GROUP: usize = 32;
/// Rows of keys that are unpacked before they are turned: what stays in the nearest cache.
const TOGETHER: usize = 16;
const _: () = assert!((KvCodec::Int4.tile_step() as usize).is_multiple_of(BLOCK));

/// A payload of another size than its tile needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{found} bytes where the tile needs {expected}")]
pub struct PayloadError {
    /// Given.
    pub found: usize,
    /// Needed.
    pub expected: usize,
}

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeBits {
    Three,
    Four,
    Eight,
}

/// What a code lies in while it is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Half,
    Byte,
}

impl CodeBits {
    /// Of a block of so many tokens.
    pub(crate) fn of(codec: KvCodec, tokens: usize) -> Option<Self> {
        match codec {
            KvCodec::Raw => None,
            KvCodec::Int3 if tokens > SHORT => Some(Self::Three),
            KvCodec::Int4 if tokens > SHORT => Some(Self::Four),
            KvCodec::Int3 | KvCodec::Int4 | KvCodec::Int8 => Some(Self::Eight),
        }
    }
}

/// What a block is: all that its size follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    pub bits: CodeBits,
    pub side: Side,
    pub tokens: usize,
    pub dim: usize,
}

impl BlockShape {
    /// Numbers of groups.
    pub(crate) fn groups(&self) -> usize {
        match self.side {
            Side::Keys => self.dim,
            Side::Values => self.tokens * self.dim.div_ceil(GROUP),
        }
    }

    /// Bytes before the codes.
    fn head_bytes(&self) -> usize {
        match (self.bits, self.side) {
            (CodeBits::Three | CodeBits::Four, Side::Keys) => 2 + 2 * self.groups() + self.groups().div_ceil(2),
            (CodeBits::Three | CodeBits::Four, Side::Values) => 3 + self.groups(),
            (CodeBits::Eight, _) => 2 + self.groups(),
        }
    }

    pub(crate) fn cell(&self) -> Cell {
        match self.bits {
            CodeBits::Three | CodeBits::Four => Cell::Half,
            CodeBits::Eight => Cell::Byte,
        }
    }

    /// Bytes of all codes' cells.
    pub(crate) fn cell_bytes(&self) -> usize {
        match self.cell() {
            Cell::Half => self.tokens / 2 * self.dim + self.tokens % 2 * self.dim.div_ceil(2),
            Cell::Byte => self.tokens * self.dim,
        }
    }

    fn code_bytes(&self) -> usize {
        match self.bits {
            CodeBits::Three => threes::bytes(self.cell_bytes()),
            CodeBits::Four | CodeBits::Eight => self.cell_bytes(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.head_bytes() + self.code_bytes()
    }
}

/// Rows of a block as they lie in pages.
#[derive(Clone, Copy)]
pub(crate) struct BlockRows<'a> {
    pub rows: &'a [&'a [u8]],
    pub dtype: Dtype,
}

impl<'a> BlockRows<'a> {
    /// Those of a block that lie one behind the other.
    pub(crate) fn of(numbers: &'a [u8], form: BlockShape, dtype: Dtype, slots: &'a mut [&'a [u8]; BLOCK]) -> Self {
        let rows = numbers.chunks_exact(form.dim * dtype.bytes());
        slots.iter_mut().zip(rows).for_each(|(slot, row)| *slot = row);
        Self { rows: &slots[..form.tokens], dtype }
    }
}

/// Bytes of a tile of `tokens` × `heads` × `dim`, keys and values.
#[must_use]
pub fn tile_bytes(codec: KvCodec, dtype: KvDtype, tokens: usize, heads: usize, dim: usize) -> usize {
    let side = |side| {
        let of = |tokens| block_bytes(codec, dtype, side, tokens, dim);
        let rest = tokens % BLOCK;
        tokens / BLOCK * of(BLOCK) + if rest == 0 { 0 } else { of(rest) }
    };
    heads * (side(Side::Keys) + side(Side::Values))
}

/// Bytes of one block, or of that much as it lies in pages.
pub(crate) fn block_bytes(codec: KvCodec, dtype: KvDtype, side: Side, tokens: usize, dim: usize) -> usize {
    match CodeBits::of(codec, tokens) {
        Some(bits) => BlockShape { bits, side, tokens, dim }.bytes(),
        None => tokens * dim * dtype.bytes(),
    }
}

/// What packing and unpacking need of memory, kept from tile to tile.
#[derive(Debug, Default)]
pub struct CodecScratch {
    low: Vec<f32>,
    high: Vec<f32>,
    step: Vec<f32>,
    shift: Vec<f32>,
    /// Keys in single precision, turned back.
    turned: Lines,
    /// Codes of three bits, each in half a byte.
    halves: Vec<u8>,
}

impl CodecScratch {
    fn fit(&mut self, groups: usize) {
        for numbers in [&mut self.low, &mut self.high, &mut self.step, &mut self.shift] {
            numbers.resize(groups, 0.0);
        }
    }
}

/// Packs a block's rows into `out`, which is as long as the block.
pub(crate) fn pack(
    packing: TileCodec<'_>,
    form: BlockShape,
    rows: BlockRows<'_>,
    scratch: &mut CodecScratch,
    out: &mut [u8],
) {
    scratch.fit(form.groups());
    let CodecScratch { low, high, step, shift, turned, halves } = scratch;
    let simd = packing.simd;
    let mut slots = [[].as_slice(); BLOCK];
    let rows = match packing.turn_of(form) {
        None => {
            simd.low_high(form, rows, low, high);
            rows
        }
        Some(turn) => {
            let turned = bytemuck::cast_slice_mut(turned.fit(form.tokens * form.dim));
            simd.turn_back(turn, form, rows, turned, low, high);
            BlockRows::of(turned, form, Dtype::F32, &mut slots)
        }
    };
    let (head, codes) = out.split_at_mut(form.head_bytes());
    simd.choose(form, low, high, head, step, shift);
    if form.bits == CodeBits::Three {
        halves.resize(form.cell_bytes(), 0);
        simd.encode(form, rows, step, shift, halves);
        threes::squeeze(halves, codes);
    } else {
        simd.encode(form, rows, step, shift, codes);
    }
}

/// A packed block whose steps are read.
pub(crate) struct OpenedBlock<'a> {
    simd: Simd,
    form: BlockShape,
    turn: Option<&'a KeyRotation>,
    /// Steps and shifts.
    scales: (&'a [f32], &'a [f32]),
    turned: &'a mut Lines,
    codes: &'a [u8],
}

/// Reads the steps of a packed block as long as its form says.
pub(crate) fn open<'a>(
    packing: TileCodec<'a>,
    form: BlockShape,
    packed: &'a [u8],
    scratch: &'a mut CodecScratch,
) -> OpenedBlock<'a> {
    scratch.fit(form.groups());
    let (head, codes) = packed.split_at(form.head_bytes());
    steps::read(form, head, &mut scratch.step, &mut scratch.shift);
    let CodecScratch { step, shift, turned, halves, .. } = scratch;
    let mut codes = codes;
    if form.bits == CodeBits::Three {
        halves.resize(form.cell_bytes(), 0);
        threes::widen(codes, halves);
        codes = halves;
    }
    OpenedBlock { simd: packing.simd, form, turn: packing.turn_of(form), scales: (step, shift), turned, codes }
}

impl OpenedBlock<'_> {
    /// Unpacks the rows of tokens from the `first` on into a page, as many as there is room for.
    pub(crate) fn rows(&mut self, first: usize, dtype: Dtype, out: &mut [u8]) {
        let Some(turn) = self.turn else {
            return self.simd.decode(self.form, self.codes, first, self.scales, dtype, out);
        };
        let dim = self.form.dim;
        for (n, out) in out.chunks_mut(TOGETHER * dim * dtype.bytes()).enumerate() {
            let first = first + n * TOGETHER;
            let turned = bytemuck::cast_slice_mut(self.turned.fit(out.len() / dtype.bytes()));
            self.simd.decode(self.form, self.codes, first, self.scales, Dtype::F32, turned);
            self.simd.turn_on(turn, dim, first, turned, dtype, out);
        }
    }
}

#[cfg(test)]
mod tests;
