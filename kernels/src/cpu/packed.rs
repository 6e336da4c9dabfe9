//! Quantised matrices laid out for products: sixteen outputs side by side, so that a vector register holds the same
//! columns of eight or all of them, and four columns of each as bytes.
//!
//! Quants, scales and least values are those of the file, only their places change; nothing is rounded again. A quant is
//! stored with [`Layout::shift`] added, so that none is below zero. A block of sixteen outputs is, one after the other:
//!
//! | blocks of | what | for |
//! |---|---|---|
//! | both | scales in half precision, `[output]` | all |
//! | both | least values (of blocks of 32) or steps, the same | [`Layout::least`] |
//! | 256 | scales of the parts, `[part][output]` | all |
//! | 256 | least values of the parts, `[pair of parts][output][2]` | [`Layout::least`] |
//! | both | `[8 columns][output][4]` bytes: four bits of a column in the lower half, of the one four further in the upper | up to 6 bits |
//! | both | `[32 columns][output][4]` bytes: a fifth bit of columns four apart in each bit | 5 bits |
//! | both | `[16 columns][output][4]` bytes: two upper bits of columns four apart | 6 bits |
//! | both | `[4 columns][output][4]` bytes | 8 bits |

use super::team::Team;
use crate::memory::Memory;
use crate::quant::{Blocks, QuantType, k_quants::Large, small::Small};
use half::f16;

/// Outputs side by side.
pub(super) const WIDE: usize = 16;
/// Bytes of one number of half precision for each output.
pub(super) const HALVES: usize = 2 * WIDE;
/// Bytes of four columns of all outputs.
pub(super) const FOUR: usize = 4 * WIDE;

/// Bits that a quant is stored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bits {
    Four,
    Five,
    Six,
    Eight,
}

/// How quants of sixteen outputs lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Columns of a block: 32, or 256 in parts that have whole numbers as scales.
    pub numbers: usize,
    /// Columns of a part; a block of 32 is one.
    pub part: usize,
    pub bits: Bits,
    /// What is added to every quant.
    pub shift: u8,
    /// Whether there are least values.
    pub least: bool,
}

impl Layout {
    pub const fn of(kind: QuantType) -> Self {
        const fn small(bits: Bits, shift: u8, least: bool) -> Layout {
            Layout { numbers: 32, part: 32, bits, shift, least }
        }
        const fn large(part: usize, bits: Bits, shift: u8, least: bool) -> Layout {
            Layout { numbers: 256, part, bits, shift, least }
        }
        match kind {
            QuantType::Q4_0 => small(Bits::Four, 8, false),
            QuantType::Q4_1 => small(Bits::Four, 0, true),
            QuantType::Q5_0 => small(Bits::Five, 16, false),
            QuantType::Q5_1 => small(Bits::Five, 0, true),
            QuantType::Q8_0 => small(Bits::Eight, 128, false),
            QuantType::Q2K => large(16, Bits::Four, 0, true),
            QuantType::Q3K => large(16, Bits::Four, 4, false),
            QuantType::Q4K => large(32, Bits::Four, 0, true),
            QuantType::Q5K => large(32, Bits::Five, 0, true),
            QuantType::Q6K => large(16, Bits::Six, 32, false),
            // Numbers of a table are looked up once, here: they need more bits than their places in it.
            QuantType::Iq4Nl => small(Bits::Eight, 128, false),
            QuantType::Iq4Xs => large(32, Bits::Eight, 128, false),
            QuantType::Mxfp4 => small(Bits::Five, 16, false),
            QuantType::Iq2Xxs | QuantType::Iq3Xxs => large(32, Bits::Eight, 128, false),
            QuantType::Iq2Xs | QuantType::Iq2S => large(16, Bits::Eight, 128, false),
            QuantType::Iq3S | QuantType::Iq1S | QuantType::Iq1M => large(16, Bits::Five, 16, false),
        }
    }

    /// Parts of a block.
    pub const fn parts(self) -> usize {
        self.numbers / self.part
    }

    /// Whether parts have scales.
    pub const fn is_large(self) -> bool {
        self.numbers > self.part
    }

    /// Where the scales of a block's parts begin.
    pub const fn part_scales(self) -> usize {
        if self.least { 2 * HALVES } else { HALVES }
    }

    /// Where the least values of a block's parts begin.
    pub const fn part_least(self) -> usize {
        self.part_scales() + self.parts() * WIDE
    }

    /// Bytes before the quants of a block.
    pub const fn header(self) -> usize {
        match (self.is_large(), self.least) {
            (false, _) => self.part_scales(),
            (true, false) => self.part_least(),
            (true, true) => self.part_least() + self.parts() * WIDE,
        }
    }

    /// Where in a block's quants the bits above the fourth begin.
    pub const fn upper(self) -> usize {
        self.numbers / 8 * FOUR
    }

    /// Bytes of a block of sixteen outputs.
    pub const fn block(self) -> usize {
        let quants = match self.bits {
            Bits::Four => self.upper(),
            Bits::Five => self.upper() + self.numbers / 32 * FOUR,
            Bits::Six => self.upper() + self.numbers / 16 * FOUR,
            Bits::Eight => self.numbers / 4 * FOUR,
        };
        self.header() + quants
    }

    /// Column `k` of output `j` among a block's quants, shifted.
    pub fn get(self, quants: &[u8], j: usize, k: usize) -> u8 {
        // Columns in 64 bytes, and bits of each.
        let piece = |from: usize, columns: usize, bits: usize| {
            let byte = quants[from + k / columns * FOUR + 4 * j + k % 4];
            byte >> (k % columns / 4 * bits) & ((1u16 << bits) - 1) as u8
        };
        match self.bits {
            Bits::Four => piece(0, 8, 4),
            Bits::Five => piece(0, 8, 4) | piece(self.upper(), 32, 1) << 4,
            Bits::Six => piece(0, 8, 4) | piece(self.upper(), 16, 2) << 4,
            Bits::Eight => piece(0, 4, 8),
        }
    }
}

/// Calls a function made for a kind, whose number is its constant parameter.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! by_kind {
    ($kind:expr, $what:ident($($arg:expr),*)) => {
        match $kind {
            QuantType::Q4_0 => $what::<{ QuantType::Q4_0 as usize }>($($arg),*),
            QuantType::Q4_1 => $what::<{ QuantType::Q4_1 as usize }>($($arg),*),
            QuantType::Q5_0 => $what::<{ QuantType::Q5_0 as usize }>($($arg),*),
            QuantType::Q5_1 => $what::<{ QuantType::Q5_1 as usize }>($($arg),*),
            QuantType::Q8_0 => $what::<{ QuantType::Q8_0 as usize }>($($arg),*),
            QuantType::Q2K => $what::<{ QuantType::Q2K as usize }>($($arg),*),
            QuantType::Q3K => $what::<{ QuantType::Q3K as usize }>($($arg),*),
            QuantType::Q4K => $what::<{ QuantType::Q4K as usize }>($($arg),*),
            QuantType::Q5K => $what::<{ QuantType::Q5K as usize }>($($arg),*),
            QuantType::Q6K => $what::<{ QuantType::Q6K as usize }>($($arg),*),
            QuantType::Iq4Nl => $what::<{ QuantType::Iq4Nl as usize }>($($arg),*),
            // These lie as others do.
            QuantType::Iq4Xs | QuantType::Iq2Xxs | QuantType::Iq3Xxs => {
                $what::<{ QuantType::Iq4Xs as usize }>($($arg),*)
            }
            QuantType::Iq2Xs | QuantType::Iq2S => $what::<{ QuantType::Iq2Xs as usize }>($($arg),*),
            QuantType::Iq3S | QuantType::Iq1S | QuantType::Iq1M => $what::<{ QuantType::Iq1M as usize }>($($arg),*),
            QuantType::Mxfp4 => $what::<{ QuantType::Mxfp4 as usize }>($($arg),*),
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use by_kind;

/// A quantised matrix laid out for products.
pub struct Packed {
    pub(super) kind: QuantType,
    pub(super) layout: Layout,
    pub(super) rows: usize,
    pub(super) cols: usize,
    bytes: Memory,
}

impl Packed {
    /// Lays `blocks` out anew in `bytes`, of which there are [`Self::size`], all zero.
    pub(super) fn new(team: &Team, mut bytes: Memory, blocks: Blocks<'_>) -> Self {
        let kind = blocks.kind();
        let layout = Layout::of(kind);
        let panel = panel(layout, &blocks);
        team.share_parts(&mut bytes, panel.max(1), |i, out| pack_panel(layout, blocks, i * WIDE, out));
        Self { kind, layout, rows: blocks.rows(), cols: blocks.cols(), bytes }
    }

    /// Bytes that `blocks` take once they are laid out.
    pub(crate) fn size(blocks: &Blocks<'_>) -> usize {
        blocks.rows().div_ceil(WIDE) * panel(Layout::of(blocks.kind()), blocks)
    }

    /// The same of outputs side by side with others: no room between.
    pub(crate) fn share(blocks: &Blocks<'_>) -> usize {
        (blocks.rows() * panel(Layout::of(blocks.kind()), blocks)).div_ceil(WIDE)
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

    /// Blocks in a row.
    pub(super) fn blocks(&self) -> usize {
        self.cols / self.layout.numbers
    }

    /// Blocks `from..to` of the sixteen outputs from `16 * index` on.
    pub(super) fn panel(&self, index: usize, from: usize, to: usize) -> &[u8] {
        let block = self.layout.block();
        let len = self.blocks() * block;
        &self.bytes[index * len..][..len][from * block..to * block]
    }
}

/// Bytes of sixteen outputs.
fn panel(layout: Layout, blocks: &Blocks<'_>) -> usize {
    blocks.cols() / layout.numbers * layout.block()
}

/// Outputs past the last row stay zero.
fn pack_panel(layout: Layout, blocks: Blocks<'_>, first: usize, out: &mut [u8]) {
    for j in 0..WIDE.min(blocks.rows() - first) {
        let mut out = out.chunks_exact_mut(layout.block());
        blocks.each_block(first + j, |block| {
            let Some(out) = out.next() else { return };
            if let Some(small) = Small::decode(blocks.kind(), block) {
                pack_small(layout, &small, j, out);
            } else if let Some(large) = Large::decode(blocks.kind(), block) {
                // What is stored is the file's scale; what it is worth, outputs are multiplied by.
                pack_large(layout, &Large { scale: large.scale / blocks.kind().worth(), ..large }, j, out);
            }
        });
    }
}

fn pack_small(layout: Layout, block: &Small, j: usize, out: &mut [u8]) {
    put_half(out, j, block.scale);
    if layout.least {
        put_half(&mut out[HALVES..], j, block.least);
    }
    put_quants(layout, &block.q, j, &mut out[layout.header()..]);
}

fn pack_large(layout: Layout, block: &Large, j: usize, out: &mut [u8]) {
    // Parts of 16 in a part of the layout; those of 32 hold two alike.
    let each = layout.part / crate::quant::k_quants::PART;
    put_half(out, j, block.scale);
    for part in 0..layout.parts() {
        out[layout.part_scales() + part * WIDE + j] = block.scales[part * each] as u8;
        if layout.least {
            out[layout.part_least() + part / 2 * HALVES + 2 * j + part % 2] = block.least[part * each];
        }
    }
    if layout.least {
        put_half(&mut out[HALVES..], j, block.step);
    }
    put_quants(layout, &block.q, j, &mut out[layout.header()..]);
}

fn put_half(out: &mut [u8], j: usize, value: f32) {
    // It was a half-precision number in the file, so nothing is lost. Of MXFP4 it was a power of two: those above what half
    // precision holds are refused with what is no number, those below are as good as nothing.
    out[2 * j..2 * j + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Writes the quants of one output, each of its bytes whole.
fn put_quants(layout: Layout, quants: &[i8], j: usize, out: &mut [u8]) {
    let q = |k: usize| (quants[k] as u8).wrapping_add(layout.shift);
    let mut lines = out.chunks_exact_mut(FOUR).map(|line| &mut line[4 * j..4 * j + 4]);
    if layout.bits == Bits::Eight {
        for (k, line) in (0..layout.numbers).step_by(4).zip(lines) {
            line.copy_from_slice(&[q(k), q(k + 1), q(k + 2), q(k + 3)]);
        }
        return;
    }
    for (k, line) in (0..layout.numbers).step_by(8).zip(&mut lines) {
        for (c, out) in (k..).zip(line) {
            *out = q(c) & 15 | q(c + 4) << 4;
        }
    }
    let (columns, bits) = if layout.bits == Bits::Five { (32, 1) } else { (16, 2) };
    for (k, line) in (0..layout.numbers).step_by(columns).zip(lines) {
        for (c, out) in (k..).zip(line) {
            *out = (0..columns / 4).fold(0, |byte, four| byte | (q(c + 4 * four) >> 4) << (four * bits));
        }
    }
}
