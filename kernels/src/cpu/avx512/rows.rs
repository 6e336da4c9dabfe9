//! Rows laid out for dense products: in pairs, eight numbers of each in a line, and in the order in which they are read.

use super::super::{LANES, SHARE_FROM, dense::Cut, team::Team};
use std::arch::x86_64::*;
use std::ops::Range;

/// Groups of eight columns of a depth: those of sixteen rows fit a first-level cache.
const DEPTH: usize = 64;
/// Groups of eight columns of all rows that fit it: few rows take more columns at a time, so that weights are read as they
/// lie in memory.
const NEAR: usize = 16 * DEPTH;

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
pub(in super::super) struct Tile {
    /// First pair.
    pub first: usize,
    /// 8, 4, 3, 2 or 1.
    pub pairs: usize,
}

impl Tile {
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

/// Rows in lines: `[depth][tile][group][pair of the tile]`, each line eight numbers of the pair's first row and eight of its
/// second. What is not there, of a row or a column, is zero.
pub(in super::super) struct Rows<'a> {
    lines: &'a [Line],
    count: usize,
    cols: usize,
    /// Groups of eight columns of a depth; of the last one maybe fewer.
    depth: usize,
}

impl<'a> Rows<'a> {
    /// Lays out rows of `cols` numbers in memory of the step before.
    pub fn lay(team: Option<&Team>, x: &[f32], cols: usize, lines: &'a mut Vec<Line>) -> Self {
        let (count, groups) = (x.len() / cols, cols.div_ceil(LANES));
        let pairs = count.div_ceil(2);
        // Depths of about one length: a short one at the end would be little work for much loading.
        let depth = groups.div_ceil(groups.div_ceil(DEPTH.max(NEAR / count)));
        lines.resize(pairs * groups, Line::ZERO);
        let tiles = pairs.div_ceil(8);
        let cut = Cut::new(lines, 1);
        let lay = |part: usize| {
            let (from, tiles) = (part / tiles * depth, part % tiles * 8..pairs.min((part % tiles + 1) * 8));
            let here = depth.min(groups - from);
            for tile in Tile::all(tiles) {
                for pair in 0..tile.pairs {
                    let two = &x[2 * (tile.first + pair) * cols..x.len().min(2 * (tile.first + pair + 1) * cols)];
                    for group in 0..here {
                        let at = from * pairs + here * tile.first + group * tile.pairs + pair;
                        // SAFETY: every depth and tile is laid out once, and their lines lie apart.
                        let line = unsafe { cut.part(at) };
                        line[0] = Line::of(two, cols, (from + group) * LANES);
                    }
                }
            }
        };
        let parts = tiles * groups.div_ceil(depth);
        match team.filter(|_| x.len() >= SHARE_FROM) {
            Some(team) => team.share(parts, lay),
            None => (0..parts).for_each(lay),
        }
        Self { lines, count, cols, depth }
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
        self.cols.div_ceil(LANES).div_ceil(self.depth)
    }

    /// Lines of a tile at a depth, `tile.pairs` for every group of columns, and which columns these are.
    #[inline(always)]
    pub fn at(&self, tile: Tile, depth: usize) -> (*const Line, Range<usize>) {
        let from = depth * self.depth;
        let here = self.depth.min(self.cols.div_ceil(LANES) - from);
        let lines = &self.lines[from * self.pairs() + here * tile.first..][..here * tile.pairs];
        (lines.as_ptr(), from * LANES..self.cols.min((from + here) * LANES))
    }
}

impl Line {
    /// Columns from `from` on of one or two rows.
    fn of(rows: &[f32], cols: usize, from: usize) -> Self {
        let mut line = Self::ZERO;
        for (row, half) in rows.chunks_exact(cols).zip(line.0.as_chunks_mut::<LANES>().0) {
            let some = &row[from..cols.min(from + LANES)];
            match some.first_chunk() {
                Some(eight) => *half = *eight,
                None => half[..some.len()].copy_from_slice(some),
            }
        }
        line
    }
}
