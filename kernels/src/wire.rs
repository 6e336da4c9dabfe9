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
mod groups;
mod key_rotation;
mod plain;
mod rows;
mod steps;
mod threes;
mod tile;

pub(crate) use cache_lines::Lines;
pub(crate) use groups::Groups;
pub use key_rotation::KeyRotation;
#[cfg(target_arch = "x86_64")]
pub(crate) use key_rotation::pack_key_alone;
pub(crate) use key_rotation::{KeyScratch, pack_keys, unpack_keys};
#[cfg(target_arch = "x86_64")]
pub(crate) use plain::encode_alone;
pub(crate) use plain::{decode, encode, low_high};
pub(crate) use rows::{BlockRows, GatheredRows};
#[cfg(target_arch = "x86_64")]
pub(crate) use steps::{BELOW, LEAST, needed_by_keys, scale_keys, write_keys};
pub(crate) use steps::{choose, read};
pub(crate) use tile::{Strip, export_strips};
pub use tile::{Tile, TileCodec, export, import};

use crate::{cpu::Dtype, pages::Side};
use tsnode_protocol::{KvCodec, KvDtype};

/// Tokens that share a key channel's step.
pub const BLOCK: usize = 64;
/// Tokens of a block at most that has eight bits for each number where longer ones have fewer.
pub const SHORT: usize = 16;
/// Channels that share a value token's step.
pub const GROUP: usize = 32;
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
    /// The largest code where codes begin with 0.
    pub(crate) fn most(&self) -> f32 {
        if self.bits == CodeBits::Three { 7.0 } else { 15.0 }
    }

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
    groups: Groups,
    /// Keys in single precision, turned back.
    turned: Lines,
    /// Codes of three bits, each in half a byte.
    halves: Vec<u8>,
}

/// Packs a block into `out`, which is as long as it, and asks memory for the rows that are `next`.
pub(crate) fn pack(
    packing: TileCodec<'_>,
    block: &GatheredRows<'_>,
    next: Option<&GatheredRows<'_>>,
    scratch: &mut CodecScratch,
    out: &mut [u8],
) {
    let (form, rows) = (block.form(), block.before(next));
    let CodecScratch { groups, turned, halves, .. } = scratch;
    groups.fit(form.groups());
    let (head, codes) = out.split_at_mut(form.head_bytes());
    let mut pack = |cells: &mut [u8]| match packing.turn_of(form) {
        Some(turn) => packing.simd.pack_keys(turn, form, rows, KeyScratch { groups, turned }, head, cells),
        None => {
            packing.simd.low_high(form, rows, groups);
            packing.simd.choose(form, groups, head);
            packing.simd.encode(form, rows, groups, cells);
        }
    };
    if form.bits == CodeBits::Three {
        halves.resize(form.cell_bytes(), 0);
        pack(halves);
        threes::squeeze(halves, codes);
    } else {
        pack(codes);
    }
}

/// A packed block whose steps are read.
pub(crate) struct OpenedBlock<'a> {
    packing: TileCodec<'a>,
    form: BlockShape,
    groups: &'a mut Groups,
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
    let CodecScratch { groups, turned, halves } = scratch;
    groups.fit(form.groups());
    let (head, mut codes) = packed.split_at(form.head_bytes());
    packing.simd.read(form, head, groups);
    if form.bits == CodeBits::Three {
        halves.resize(form.cell_bytes(), 0);
        threes::widen(codes, halves);
        codes = halves;
    }
    OpenedBlock { packing, form, groups, turned, codes }
}

impl OpenedBlock<'_> {
    /// Unpacks the rows of tokens from the `first` on into a page, as many as there is room for.
    pub(crate) fn rows(&mut self, first: usize, dtype: Dtype, out: &mut [u8]) {
        let Self { packing, form, groups, turned, codes } = self;
        match packing.turn_of(*form) {
            None => packing.simd.decode(*form, codes, first, groups, dtype, out),
            Some(turn) => {
                packing.simd.unpack_keys(turn, *form, codes, first, KeyScratch { groups, turned }, dtype, out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
