//! Dense products of several rows: two rows side by side in a register, so that both have their eight lanes, and the same
//! weights for both.
//!
//! Rows are laid out once as products read them (`rows.rs`). A panel is a few outputs; its rows pass a depth of columns after
//! the other, and sums of a tile (some pairs of rows by some outputs) wait in memory in the order registers leave them.

use super::super::{
    Dtype, Matrix,
    dense::{self, DenseFormats, Outputs},
    team::Team,
    vector::{
        F16, F32, array_of,
        dense::{LINE, Prefetch},
    },
};
use super::{
    rows::{Line, LineContent, RowTile, Rows},
    stored::{Multiplied, One, Two, TwoApart},
};
use std::arch::x86_64::*;
use std::cell::RefCell;

/// Pairs of rows that pass a panel before the next: what waits of their sums stays in a second-level cache.
const PAIRS: usize = 32;
/// Outputs of a panel for many rows: so many that rows are seldom read again, a multiple of every tile's.
const PANEL: usize = 192;
/// What every tile's outputs divide.
const OUTPUTS: usize = 24;

thread_local! {
    /// Rows laid out for matrices of single or half precision and for bfloat16 ones, kept from step to step.
    static ROWS: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
    /// Sums of the panel a thread works on.
    static SUMS: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Rows laid out, for the matrices that are to be multiplied.
#[derive(Default)]
pub(in super::super) struct RowLines<'a> {
    eight: Option<Rows<'a>>,
    two: Option<Rows<'a>>,
}

impl RowLines<'_> {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.eight.is_some() || self.two.is_some()
    }

    /// Those for such matrices.
    pub fn of(&self, dtype: Dtype) -> Option<&Rows<'_>> {
        match dtype {
            Dtype::F32 | Dtype::F16 => self.eight.as_ref(),
            Dtype::Bf16 => self.two.as_ref(),
        }
    }
}

/// Calls `work` with rows laid out; bfloat16 numbers as they are if the processor `multiplies` them.
pub(in super::super) fn with_lines<T>(
    team: Option<&Team>,
    x: &[f32],
    cols: usize,
    wanted: DenseFormats,
    multiplies: bool,
    work: impl FnOnce(RowLines<'_>) -> T,
) -> T {
    ROWS.with_borrow_mut(|[eight, two]| {
        let form = if multiplies { LineContent::Two } else { LineContent::TwoApart };
        work(RowLines {
            eight: wanted.any([Dtype::F32, Dtype::F16]).then(|| Rows::lay(team, x, cols, LineContent::Eight, eight)),
            two: wanted.any([Dtype::Bf16]).then(|| Rows::lay(team, x, cols, form, two)),
        })
    })
}

/// Outputs of a panel.
pub(in super::super) fn width(rows: usize, outputs: usize, threads: usize) -> usize {
    dense::panel_width(rows, outputs, threads, PANEL).next_multiple_of(OUTPUTS)
}

/// All rows by the outputs of `w`, which are those from `first` on.
pub(in super::super) fn panel(rows: &Rows<'_>, w: Matrix<'_>, out: &Outputs<'_>, first: usize) {
    assert_eq!(rows.cols(), w.cols);
    SUMS.with_borrow_mut(|sums| {
        sums.resize(PAIRS.min(rows.pairs()) * w.rows, Line::ZERO);
        let of = Panel { rows, w, out, first };
        // SAFETY: `Simd::detect` chose this file only after `is_available`, and lines of two only where the processor multiplies
        // them. Rows are as wide as `w`'s, and there is room for the sums of as many pairs as pass together.
        unsafe {
            match (w.dtype, rows.form()) {
                (Dtype::F32, LineContent::Eight) => of.run::<One<F32>>(sums),
                (Dtype::F16, LineContent::Eight) => of.run::<One<F16>>(sums),
                (Dtype::Bf16, LineContent::Two) => of.run_two(sums),
                (Dtype::Bf16, LineContent::TwoApart) => of.run::<TwoApart>(sums),
                (dtype, form) => unreachable!("rows in {form:?} for {dtype:?}"),
            }
        }
    });
}

#[derive(Clone, Copy)]
struct Panel<'a> {
    rows: &'a Rows<'a>,
    w: Matrix<'a>,
    out: &'a Outputs<'a>,
    first: usize,
}

impl Panel<'_> {
    /// # Safety
    /// The processor has AVX-512 (F, BW, DQ, VL), rows are as wide as `w`'s, and `sums` has a line for every output and pair of
    /// those that pass together.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run<M: Multiplied>(self, sums: &mut [Line]) {
        // SAFETY: the caller's promise.
        unsafe { self.tiles::<M>(sums) }
    }

    /// The same for lines of two.
    ///
    /// # Safety
    /// As for [`Self::run`], and the processor has products of bfloat16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn run_two(self, sums: &mut [Line]) {
        // SAFETY: the caller's promise.
        unsafe { self.tiles::<Two>(sums) }
    }

    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn tiles<M: Multiplied>(self, sums: &mut [Line]) {
        let pairs = self.rows.pairs();
        for first in (0..pairs).step_by(PAIRS) {
            for depth in 0..self.rows.depths() {
                for tile in RowTile::all(first..pairs.min(first + PAIRS)) {
                    let sums = &mut sums[(tile.first - first) * self.w.rows..][..tile.pairs * self.w.rows];
                    // SAFETY: the tile is one of the rows', and its sums are those of all outputs.
                    unsafe {
                        match tile.pairs {
                            8 => self.outputs::<M, 8, 3>(tile, depth, sums),
                            4 => self.outputs::<M, 4, 6>(tile, depth, sums),
                            3 => self.outputs::<M, 3, 6>(tile, depth, sums),
                            2 => self.outputs::<M, 2, 6>(tile, depth, sums),
                            _ => self.outputs::<M, 1, 8>(tile, depth, sums),
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::run`]; `tile` is one of the rows', of `P` pairs, and `sums` holds those of all outputs.
    #[inline(always)]
    unsafe fn outputs<M: Multiplied, const P: usize, const C: usize>(
        self,
        tile: RowTile,
        depth: usize,
        sums: &mut [Line],
    ) {
        let whole = self.w.rows - self.w.rows % C;
        let (many, few) = sums.split_at_mut(P * whole);
        // SAFETY: outputs `o..o + C`, then single ones, exist; their sums are as many.
        unsafe {
            for (o, sums) in (0..whole).step_by(C).zip(many.chunks_exact_mut(P * C)) {
                self.tile::<M, P, C>(tile, depth, o, sums);
            }
            for (o, sums) in (whole..self.w.rows).zip(few.chunks_exact_mut(P)) {
                self.tile::<M, P, 1>(tile, depth, o, sums);
            }
        }
    }

    /// `P` pairs of rows by `C` outputs, a register of lanes for each. Asks for weights further on meanwhile ([`Prefetch`]).
    ///
    /// # Safety
    /// As for [`Self::outputs`]; outputs `o..o + C` exist, and there are `P * C` sums.
    #[inline(always)]
    unsafe fn tile<M: Multiplied, const P: usize, const C: usize>(
        self,
        tile: RowTile,
        depth: usize,
        o: usize,
        sums: &mut [Line],
    ) {
        let (Self { rows, w, .. }, last) = (self, depth + 1 == self.rows.depths());
        let ((x, columns), (group, lines)) = (rows.at(tile, depth), (M::FORM.columns(), M::FORM.lines()));
        let (whole, rest) = (columns.len() / group, columns.len() % group);
        // SAFETY: a tile's lines lie one after the other, those of `P` pairs for every group of columns; each load of weights
        // reads a whole group of `columns`, or through `rest_of` what is left of one.
        unsafe {
            let ws: [*const u8; C] =
                array_of!(C; |j| w.bytes.as_ptr().add(((o + j) * w.cols + columns.start) * M::BYTES));
            let mut acc = [[_mm512_setzero_ps(); C]; P];
            if depth > 0 {
                for (i, acc) in acc.iter_mut().enumerate() {
                    for (j, acc) in acc.iter_mut().enumerate() {
                        *acc = sums.get_unchecked(i * C + j).load();
                    }
                }
            }
            let (line, mut g) = (LINE / (group * M::BYTES), 0);
            for Prefetch { lines, further } in Prefetch::all(whole / line, C * w.cols * M::BYTES) {
                while g < lines.end * line {
                    for w in ws {
                        _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(g * group * M::BYTES + further).cast());
                    }
                    for part in 0..line {
                        go_on::<M, P, C>(x, ws, g + part, &mut acc);
                    }
                    g += line;
                }
            }
            while g < whole {
                go_on::<M, P, C>(x, ws, g, &mut acc);
                g += 1;
            }
            if rest > 0 {
                let wk: [M::Weights; C] = array_of!(C; |j| rest_of::<M>(ws[j].add(whole * group * M::BYTES), rest));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let x = x.add((whole * P + i) * lines);
                    for (acc, wk) in acc.iter_mut().zip(wk) {
                        *acc = M::multiply_add_rest(x, wk, *acc, rest);
                    }
                }
            }
            if last {
                return self.put(tile, o, acc);
            }
            for (i, acc) in acc.into_iter().enumerate() {
                for (j, acc) in acc.into_iter().enumerate() {
                    sums.get_unchecked_mut(i * C + j).store(acc);
                }
            }
        }
    }

    /// Adds up lanes in the order of [`super::super::plain::reduce`] and writes what they come to. No closures: they would not
    /// have these instructions.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn put<const P: usize, const C: usize>(self, tile: RowTile, o: usize, acc: [[__m512; C]; P]) {
        let mut sums = [[0.0; C]; 2];
        for (row, acc) in (2 * tile.first..).step_by(2).zip(acc) {
            // SAFETY: registers only; every panel has outputs of its own.
            unsafe {
                for (j, lanes) in acc.into_iter().enumerate() {
                    [sums[0][j], sums[1][j]] = both_sums(lanes);
                }
                for (row, sums) in (row..self.rows.count()).zip(&sums) {
                    self.out.put(row, self.first + o, sums);
                }
            }
        }
    }
}

/// The sums of the lanes of two rows, in the order of [`super::super::plain::reduce`].
#[inline]
#[target_feature(enable = "avx512f")]
fn both_sums(lanes: __m512) -> [f32; 2] {
    let four = _mm512_add_ps(lanes, _mm512_shuffle_f32x4::<0b10_11_00_01>(lanes, lanes));
    let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
    let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
    [_mm512_cvtss_f32(one), _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(one))]
}

/// Group `group` of the columns.
///
/// # Safety
/// All rows and outputs have it; AVX-512 (F, BW, DQ, VL), and whatever `M` needs.
#[inline(always)]
unsafe fn go_on<M: Multiplied, const P: usize, const C: usize>(
    x: *const Line,
    ws: [*const u8; C],
    group: usize,
    acc: &mut [[__m512; C]; P],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let wk: [M::Weights; C] = array_of!(C; |j| M::weights(ws[j].add(group * M::FORM.columns() * M::BYTES)));
        for (i, acc) in acc.iter_mut().enumerate() {
            let x = x.add((group * P + i) * M::FORM.lines());
            for (acc, wk) in acc.iter_mut().zip(wk) {
                *acc = M::multiply_add(x, wk, *acc);
            }
        }
    }
}

/// Less than a group of numbers, and zeros.
///
/// # Safety
/// `at` points to so many readable numbers, fewer than a group; AVX-512 (F, BW, DQ, VL).
#[inline(always)]
unsafe fn rest_of<M: Multiplied>(at: *const u8, count: usize) -> M::Weights {
    let mut bytes = [0; 32];
    // SAFETY: the caller's promise; then a group of the array.
    unsafe {
        std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), count * M::BYTES);
        M::weights(bytes.as_ptr())
    }
}
