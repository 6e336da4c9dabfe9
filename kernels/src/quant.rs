//! Quantised numbers as GGUF stores them: blocks that share scales, and what each block means.

pub(crate) mod fours;
pub mod k_quants;
pub mod small;

pub use fours::WordPacking;

use fours::Fours;
use half::f16;
use k_quants::Large;
use small::Small;

/// How a block of quantised numbers is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantType {
    /// 32 numbers of 4 bits, one scale.
    Q4_0,
    /// 32 numbers of 4 bits, a scale and a least value.
    Q4_1,
    /// 32 numbers of 5 bits, one scale.
    Q5_0,
    /// 32 numbers of 5 bits, a scale and a least value.
    Q5_1,
    /// 32 numbers of 8 bits, one scale.
    Q8_0,
    /// 256 numbers of 2 bits; scales and least values of 4 bits for each 16.
    Q2K,
    /// 256 numbers of 3 bits; scales of 6 bits for each 16.
    Q3K,
    /// 256 numbers of 4 bits; scales and least values of 6 bits for each 32.
    Q4K,
    /// 256 numbers of 5 bits; scales and least values of 6 bits for each 32.
    Q5K,
    /// 256 numbers of 6 bits; scales of 8 bits for each 16.
    Q6K,
    /// 32 numbers of a table of 16, one scale.
    Iq4Nl,
    /// 256 numbers of the same table; scales of 6 bits for each 32.
    Iq4Xs,
    /// 32 numbers of a table of 15, one power of two.
    Mxfp4,
    /// 256 numbers by eights of a table; scales of 4 bits for each 32.
    Iq2Xxs,
    /// 256 numbers by eights of a table; scales of 4 bits for each 16.
    Iq2Xs,
    /// The same of a longer table.
    Iq2S,
    /// 256 numbers by fours of a table; scales of 4 bits for each 32.
    Iq3Xxs,
    /// The same of a longer table.
    Iq3S,
    /// 256 numbers by eights of a table of -1, 0 and 1, and a shift; scales of 3 bits for each 32.
    Iq1S,
    /// The same with scales for each 16.
    Iq1M,
}

impl QuantType {
    /// All kinds.
    pub const ALL: [Self; 20] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq1S,
        Self::Iq1M,
    ];

    /// Numbers in a block.
    #[must_use]
    pub const fn numbers(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
            Self::Iq4Xs | Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S | Self::Iq3Xxs | Self::Iq3S => 256,
            Self::Iq1S | Self::Iq1M => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Mxfp4 => 17,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Iq4Xs => 136,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq1S => 50,
            Self::Iq1M => 56,
            Self::Iq2Xxs => 66,
            Self::Iq2Xs => 74,
            Self::Iq2S => 82,
            Self::Iq3Xxs => 98,
            Self::Iq3S => 110,
        }
    }

    /// What a block's scale of half precision is worth, where decoding takes a part of it to have whole numbers.
    #[must_use]
    pub const fn worth(self) -> f32 {
        match self {
            Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S | Self::Iq1S | Self::Iq1M => 0.125,
            Self::Iq3Xxs => 0.25,
            _ => 1.0,
        }
    }

    /// Where in a block's bytes its numbers of half precision are: scale, and least value or step.
    #[must_use]
    pub const fn scales(self) -> &'static [usize] {
        match self {
            // IQ1_M's is in four places.
            Self::Mxfp4 | Self::Iq1M => &[],
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl | Self::Iq4Xs => &[0],
            Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S | Self::Iq3Xxs | Self::Iq3S | Self::Iq1S => &[0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => &[0, 2],
            Self::Q2K => &[80, 82],
            Self::Q3K => &[108],
            Self::Q6K => &[208],
        }
    }
}

/// A row-major matrix of quantised numbers; every row is a whole number of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    bytes: &'a [u8],
    kind: QuantType,
    rows: usize,
    cols: usize,
    lay: Lay<'a>,
}

/// Where a block's parts are.
#[derive(Clone, Copy, Debug)]
enum Lay<'a> {
    /// Together, as in GGUF files.
    Together,
    Apart(ApartScales<'a>),
    /// In tensors of another layout; the first row is that output.
    Fours(Fours<'a>, usize),
}

/// Powers of two that lie apart from the numbers (MXFP4 in safetensors files).
#[derive(Clone, Copy, Debug)]
struct ApartScales<'a> {
    powers: &'a [u8],
    /// Where the first row lies, and how many rows further each next one.
    first: usize,
    every: usize,
}

/// A block of the longest kind that is put together of parts.
type JoinedBlock = [u8; 17];

impl<'a> Blocks<'a> {
    /// A view of `bytes` as `rows` × `cols` numbers.
    ///
    /// # Panics
    /// When `cols` is not a multiple of the block or `bytes` is not exactly that long; checkpoints check both.
    #[must_use]
    pub fn new(bytes: &'a [u8], kind: QuantType, rows: usize, cols: usize) -> Self {
        assert!(cols.is_multiple_of(kind.numbers()), "{cols} columns of {kind:?}");
        assert_eq!(bytes.len(), rows * cols / kind.numbers() * kind.bytes(), "matrix of {rows} x {cols} {kind:?}");
        Self { bytes, kind, rows, cols, lay: Lay::Together }
    }

    /// Numbers in MXFP4, sixteen bytes for 32 of them, whose powers of two lie in `powers`; rows lie `every` apart from the
    /// `first` on.
    ///
    /// # Panics
    /// When `cols` is not a multiple of the block, or the last row is not there; checkpoints check both.
    #[must_use]
    pub fn apart(bytes: &'a [u8], powers: &'a [u8], (first, every): (usize, usize), rows: usize, cols: usize) -> Self {
        let kind = QuantType::Mxfp4;
        let lines = if rows == 0 { 0 } else { first + (rows - 1) * every + 1 };
        let blocks = lines * cols / kind.numbers();
        assert!(cols.is_multiple_of(kind.numbers()), "{cols} columns of {kind:?}");
        assert!(bytes.len() >= 16 * blocks && powers.len() >= blocks, "matrix of {rows} x {cols} {kind:?}");
        Self { bytes, kind, rows, cols, lay: Lay::Apart(ApartScales { powers, first, every }) }
    }

    /// Outputs of a matrix of four-bit numbers as blocks of `kind`, which is [`Fours::kind`], from output `first` on.
    pub(crate) fn of_fours(fours: Fours<'a>, kind: QuantType, first: usize, rows: usize) -> Self {
        Self { bytes: fours.codes, kind, rows, cols: fours.inputs, lay: Lay::Fours(fours, first) }
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How they are stored.
    #[must_use]
    pub fn kind(&self) -> QuantType {
        self.kind
    }

    /// Calls `each` with the blocks of row `index`, in their order.
    pub(crate) fn each_block(&self, index: usize, mut each: impl FnMut(&[u8])) {
        let count = self.cols / self.kind.numbers();
        match self.lay {
            Lay::Together => {
                let row = count * self.kind.bytes();
                self.bytes[index * row..][..row].chunks_exact(self.kind.bytes()).for_each(each);
            }
            Lay::Apart(ApartScales { powers, first, every }) => {
                let from = (first + index * every) * count;
                for (power, pairs) in powers[from..][..count].iter().zip(self.bytes[16 * from..].chunks_exact(16)) {
                    each(&joined(*power, pairs));
                }
            }
            Lay::Fours(fours, first) => {
                for block in 0..count {
                    each(&fours.block(self.kind, first + index, block)[..self.kind.bytes()]);
                }
            }
        }
    }

    /// Writes row `index`, widened.
    pub fn widen_row(&self, index: usize, out: &mut [f32]) {
        let mut out = out.chunks_exact_mut(self.kind.numbers());
        self.each_block(index, |block| {
            let Some(out) = out.next() else { return };
            if let Some(small) = Small::decode(self.kind, block) {
                small.widen(out);
            } else if let Some(large) = Large::decode(self.kind, block) {
                large.widen(out);
            }
        });
    }
}

/// A block as GGUF files have it, of one whose numbers lie in pairs: there the lower halves are the first sixteen.
fn joined(power: u8, pairs: &[u8]) -> JoinedBlock {
    let number = |i: usize| (pairs[i / 2] >> (i % 2 * 4)) & 15;
    std::array::from_fn(|at| match at.checked_sub(1) {
        None => power,
        Some(i) => number(i) | number(i + 16) << 4,
    })
}

/// What four bits stand for in llama.cpp's IQ4 kinds.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 16 bytes: the lower halves are the first numbers, the upper ones the last.
fn nibbles(bytes: &[u8]) -> [i8; 32] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 } as i8)
}

/// The half-precision number at byte `at`.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
