//! Rows laid out for dense products: in pairs, a group of numbers of each in a line, and in the order in which they are read.

use super::super::{LANES, SHARE_FROM, bf16, dense::Cut, team::Team};
use std::arch::x86_64::*;
use std::ops::Range;

/// Lines of a pair of rows in a depth: those of sixteen rows fit a first-level cache.
const DEPTH: usize = 64;
/// Lines of all rows, twice, that fit it: few rows take more columns at a time, so that weights are read as they lie in memory.
const NEAR: usize = 16 * DEPTH;

/// What lines hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum LineContent {
    /// Eight numbers of each row.
    Eight,
    /// Sixteen of each row, rounded to bfloat16.
    Two,
    /// Sixteen of each row, rounded to bfloat16 and widened again: first every second number, then the others.
    TwoApart,
}

impl LineContent {
    /// Columns of a group.
    pub const fn columns(self) -> usize {
        match self {
            Self::Eight => LANES,
            Self::Two | Self::TwoApart => bf16::SIXTEEN,
        }
    }

    /// Lines of a group for two rows.
    pub const fn lines(self) -> usize {
        match self {
            Self::Eight | Self::Two => 1,
            Self::TwoApart => 2,
        }
    }
}

/// What a register holds, where loading it never touches two lines of a cache.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(in super::super) struct Line([f32; 2 * LANES]);

impl Line {
    pub const ZERO: Self = Self([0.0; 2 * LANES]);

    /// Sets one half.
    pub fn put(&mut self, half: usize, eight: &[f32; LANES]) {
        self.0[half * LANES..][..LANES].copy_from_slice(eight);
    }

    /// # Safety
    /// The processor has AVX-512F.
    #[inline(always)]
    pub unsafe fn load(&self) -> __m512 {
        // SAFETY: a line is 64 bytes at a multiple of 64.
        unsafe { _mm512_load_ps(self.0.as_ptr()) }
    }

    /// # Safety
    /// The processor has AVX-512F.
    #[inline(always)]
    pub unsafe fn store(&mut self, lanes: __m512) {
        // SAFETY: as for `load`.
        unsafe { _mm512_store_ps(self.0.as_mut_ptr(), lanes) }
    }
}

/// Pairs of rows worked on at once.
#[derive(Clone, Copy)]
pub(in super::super) struct RowTile {
    /// First pair.
    pub first: usize,
    /// 8, 4, 3, 2 or 1.
    pub pairs: usize,
}

impl RowTile {
    /// Those of some pairs.
    pub fn all(pairs: Range<usize>) -> impl Iterator<Item = Self> {
        let mut first = pairs.start;
        std::iter::from_fn(move || {
            let pairs = match pairs.end - first {
                0 => return None,
                8.. => 8,
                4..8 => 4,
                fewer => fewer,
            };
            first += pairs;
            Some(Self { first: first - pairs, pairs })
        })
    }
}

/// Rows in lines: `[depth][tile][group][pair of the tile][line of the group]`, half of each line of the pair's first row and half
/// of its second. What is not there, of a row or a column, is zero.
pub(in super::super) struct Rows<'a> {
    lines: &'a [Line],
    form: LineContent,
    count: usize,
    cols: usize,
    /// Groups of columns of a depth; of the last one maybe fewer.
    depth: usize,
}

impl<'a> Rows<'a> {
    /// Lays out rows of `cols` numbers in memory of the step before.
    pub fn lay(team: Option<&Team>, x: &[f32], cols: usize, form: LineContent, lines: &'a mut Vec<Line>) -> Self {
        let (count, groups) = (x.len() / cols, cols.div_ceil(form.columns()));
        let pairs = count.div_ceil(2);
        // Depths of about one length: a short one at the end would be little work for much loading.
        let depth = groups.div_ceil(groups.div_ceil(DEPTH.max(NEAR / count) / form.lines()));
        lines.resize(pairs * groups * form.lines(), Line::ZERO);
        let tiles = pairs.div_ceil(8);
        let cut = Cut::new(lines, form.lines());
        let lay = |part: usize| {
            let (from, tiles) = (part / tiles * depth, part % tiles * 8..pairs.min((part % tiles + 1) * 8));
            let here = depth.min(groups - from);
            for tile in RowTile::all(tiles) {
                for pair in 0..tile.pairs {
                    let two = &x[2 * (tile.first + pair) * cols..x.len().min(2 * (tile.first + pair + 1) * cols)];
                    for group in 0..here {
                        let at = from * pairs + here * tile.first + group * tile.pairs + pair;
                        // SAFETY: every depth and tile is laid out once, and their lines lie apart.
                        let lines = unsafe { cut.part(at) };
                        Line::lay(form, two, cols, (from + group) * form.columns(), lines);
                    }
                }
            }
        };
        let parts = tiles * groups.div_ceil(depth);
        match team.filter(|_| x.len() >= SHARE_FROM) {
            Some(team) => team.share(parts, lay),
            None => (0..parts).for_each(lay),
        }
        Self { lines, form, count, cols, depth }
    }

    /// What lines hold.
    pub fn form(&self) -> LineContent {
        self.form
    }

    /// Rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Pairs of rows, the last maybe of one.
    pub fn pairs(&self) -> usize {
        self.count.div_ceil(2)
    }

    /// Depths.
    pub fn depths(&self) -> usize {
        self.cols.div_ceil(self.form.columns()).div_ceil(self.depth)
    }

    /// Lines of a tile at a depth, those of `tile.pairs` for every group of columns, and which columns these are.
    #[inline(always)]
    pub fn at(&self, tile: RowTile, depth: usize) -> (*const Line, Range<usize>) {
        let (columns, lines) = (self.form.columns(), self.form.lines());
        let from = depth * self.depth;
        let here = self.depth.min(self.cols.div_ceil(columns) - from);
        let first = from * self.pairs() + here * tile.first;
        let lines = &self.lines[first * lines..][..here * tile.pairs * lines];
        (lines.as_ptr(), from * columns..self.cols.min((from + here) * columns))
    }
}

impl Line {
    /// A group of columns from `from` on of one or two rows.
    fn lay(form: LineContent, rows: &[f32], cols: usize, from: usize, lines: &mut [Self]) {
        lines.fill(Self::ZERO);
        for (half, row) in rows.chunks_exact(cols).enumerate() {
            let some = &row[from..cols.min(from + form.columns())];
            match form {
                LineContent::Eight => lines[0].0[half * LANES..][..some.len()].copy_from_slice(some),
                LineContent::Two => {
                    let line: &mut [u16; 4 * LANES] = bytemuck::cast_mut(&mut lines[0].0);
                    let half = &mut line[half * bf16::SIXTEEN..][..bf16::SIXTEEN];
                    half.iter_mut().zip(some).for_each(|(out, x)| *out = bf16::rounded(*x));
                }
                LineContent::TwoApart => {
                    for (k, x) in some.iter().enumerate() {
                        let wide = f32::from_bits(u32::from(bf16::rounded(*x)) << 16);
                        lines[1 - k % 2].0[half * LANES + k / 2] = wide;
                    }
                }
            }
        }
    }
}
