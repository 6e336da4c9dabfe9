//! Quantised matrices laid out for products: eight outputs side by side, so that a vector register holds the same
//! columns of all eight.
//!
//! Quants, scales and least values are those of the file, only their places change; nothing is rounded again. Kinds
//! that no fast product is written for are stored with 8 bits a quant. A layout's header holds, of each of the eight
//! outputs, the block's scale (and least value or step) in half precision:
//!
//! | layout | block | header | then |
//! |---|---|---|---|
//! | [`Layout::Eight`] | 32 | scales, least values if any | pairs of columns: `[pair][output][2]` quants |
//! | [`Layout::Four`] | 32 | scales | `[8 columns][output][4]` bytes, quant `q + 8` of a column in the lower half, of the one four further in the upper |
//! | [`Layout::EightParts`] | 256 | scales, steps | `[part][output]` scales, `[pair of parts][output][2]` least values if any, quants as `Eight` |
//! | [`Layout::FourParts`] | 256 | scales, steps | `[part][output]` scales, `[pair of parts][output][2]` least values, quants as `Four` but not shifted |

use super::{dense::Cut, team::Team};
use crate::quant::{Blocks, QuantType, large::Large, small::Small};
use half::f16;

/// Outputs side by side.
pub(super) const OCTET: usize = 8;
/// Bytes of one number of half precision for each output.
const HALVES: usize = 2 * OCTET;

/// How quants of eight outputs lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Blocks of 32, 8 bits a quant.
    Eight {
        /// Whether there are least values.
        least: bool,
    },
    /// Blocks of 32, 4 bits a quant.
    Four,
    /// Blocks of 256 in parts of 16, 8 bits a quant.
    EightParts {
        /// Whether there are least values.
        least: bool,
    },
    /// Blocks of 256 in parts of 32, 4 bits a quant.
    FourParts,
}

impl Layout {
    fn of(kind: QuantType) -> Self {
        match kind {
            QuantType::Q4_0 => Self::Four,
            QuantType::Q5_0 | QuantType::Q8_0 => Self::Eight { least: false },
            QuantType::Q4_1 | QuantType::Q5_1 => Self::Eight { least: true },
            QuantType::Q4K => Self::FourParts,
            QuantType::Q3K | QuantType::Q6K => Self::EightParts { least: false },
            QuantType::Q2K | QuantType::Q5K => Self::EightParts { least: true },
        }
    }

    /// Columns of a block.
    pub fn numbers(self) -> usize {
        match self {
            Self::Eight { .. } | Self::Four => 32,
            Self::EightParts { .. } | Self::FourParts => 256,
        }
    }

    /// Columns whose rounded numbers are added up beforehand.
    pub fn part(self) -> usize {
        match self {
            Self::Eight { .. } | Self::Four | Self::FourParts => 32,
            Self::EightParts { .. } => 16,
        }
    }

    /// Bytes before the quants of a block of eight outputs.
    pub fn header(self) -> usize {
        let parts = self.numbers() / self.part() * OCTET;
        match self {
            Self::Eight { least } => HALVES * (1 + usize::from(least)),
            Self::Four => HALVES,
            Self::EightParts { least } => 2 * HALVES + parts * (1 + usize::from(least)),
            Self::FourParts => 2 * HALVES + 2 * parts,
        }
    }

    /// Bytes of a block of eight outputs.
    pub fn block(self) -> usize {
        let quants = self.numbers() * OCTET;
        self.header() + if self.is_four() { quants / 2 } else { quants }
    }

    /// Whether a quant has four bits.
    pub fn is_four(self) -> bool {
        matches!(self, Self::Four | Self::FourParts)
    }

    /// Where in a block's quants column `k` of output `j` is, and whether it is in the upper half of its byte.
    pub fn place(self, j: usize, k: usize) -> (usize, bool) {
        if self.is_four() { (k / 8 * 32 + 4 * j + k % 4, k % 8 >= 4) } else { (k / 2 * 16 + 2 * j + k % 2, false) }
    }
}

/// A quantised matrix laid out for products.
pub struct Packed {
    pub(super) layout: Layout,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) bytes: Vec<u8>,
}

impl Packed {
    /// Lays `blocks` out anew.
    pub(super) fn new(team: &Team, blocks: Blocks<'_>) -> Self {
        let layout = Layout::of(blocks.kind());
        let octet = octet(layout, &blocks);
        let mut bytes = vec![0; Self::size(&blocks)];
        let parts = Cut::new(&mut bytes, octet.max(1));
        team.share(parts.len(), |i| {
            // SAFETY: each part is handed out once.
            #[allow(unsafe_code)]
            pack_octet(layout, blocks, i * OCTET, unsafe { parts.part(i) });
        });
        Self { layout, rows: blocks.rows(), cols: blocks.cols(), bytes }
    }

    /// Bytes that `blocks` take once they are laid out.
    pub(crate) fn size(blocks: &Blocks<'_>) -> usize {
        blocks.rows().div_ceil(OCTET) * octet(Layout::of(blocks.kind()), blocks)
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Blocks of the eight outputs from `8 * index` on.
    pub(super) fn octet(&self, index: usize) -> &[u8] {
        let len = self.cols / self.layout.numbers() * self.layout.block();
        &self.bytes[index * len..][..len]
    }
}

/// Bytes of eight outputs.
fn octet(layout: Layout, blocks: &Blocks<'_>) -> usize {
    blocks.cols() / layout.numbers() * layout.block()
}

/// Outputs past the last row stay zero.
fn pack_octet(layout: Layout, blocks: Blocks<'_>, first: usize, out: &mut [u8]) {
    for j in 0..OCTET.min(blocks.rows() - first) {
        let row = blocks.row(first + j).chunks_exact(blocks.kind().bytes());
        for (block, out) in row.zip(out.chunks_exact_mut(layout.block())) {
            if let Some(small) = Small::decode(blocks.kind(), block) {
                pack_small(layout, &small, j, out);
            } else if let Some(large) = Large::decode(blocks.kind(), block) {
                pack_large(layout, &large, j, out);
            }
        }
    }
}

fn pack_small(layout: Layout, block: &Small, j: usize, out: &mut [u8]) {
    put_half(out, j, block.scale);
    if layout == (Layout::Eight { least: true }) {
        put_half(&mut out[HALVES..], j, block.least);
    }
    let shift = if layout == Layout::Four { 8 } else { 0 };
    put_quants(layout, &block.q, shift, j, &mut out[layout.header()..]);
}

fn pack_large(layout: Layout, block: &Large, j: usize, out: &mut [u8]) {
    put_half(out, j, block.scale);
    put_half(&mut out[HALVES..], j, block.step);
    let parts = layout.numbers() / layout.part();
    let each = large_parts_in(layout);
    let (scales, rest) = out[2 * HALVES..].split_at_mut(parts * OCTET);
    for part in 0..parts {
        scales[part * OCTET + j] = block.scales[part * each] as u8;
        if layout != (Layout::EightParts { least: false }) {
            rest[part / 2 * HALVES + 2 * j + part % 2] = block.least[part * each];
        }
    }
    put_quants(layout, &block.q, 0, j, &mut out[layout.header()..]);
}

/// Parts of 16 in a part of the layout; those of 32 hold two alike.
fn large_parts_in(layout: Layout) -> usize {
    layout.part() / crate::quant::large::PART
}

fn put_half(out: &mut [u8], j: usize, value: f32) {
    // It was a half-precision number in the file, so nothing is lost.
    out[2 * j..2 * j + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

fn put_quants(layout: Layout, quants: &[i8], shift: i8, j: usize, out: &mut [u8]) {
    for (k, q) in quants.iter().enumerate() {
        let (at, upper) = layout.place(j, k);
        let q = (q + shift) as u8;
        if upper { out[at] |= q << 4 } else { out[at] |= q }
    }
}
