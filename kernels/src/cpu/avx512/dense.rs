//! Dense products of several rows: two rows side by side in a register, so that both have their eight lanes, and the same
//! eight weights for both.
//!
//! Rows are laid out once as products read them (`rows.rs`). A panel is a few outputs; its rows pass a depth of columns after
//! the other, and sums of a tile (some pairs of rows by some outputs) wait in memory in the order registers leave them.

use super::super::{
    Dtype, LANES, Matrix,
    dense::{self, Outputs},
    team::Team,
};
pub(in super::super) use super::rows::Rows;
use super::{
    rows::{Line, Tile},
    stored::{Bf16, F16, F32, Stored},
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
    /// Rows laid out, kept from step to step.
    static ROWS: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    /// Sums of the panel a thread works on.
    static SUMS: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with rows laid out.
pub(in super::super) fn with_rows<T>(
    team: Option<&Team>,
    x: &[f32],
    cols: usize,
    work: impl FnOnce(Rows<'_>) -> T,
) -> T {
    ROWS.with_borrow_mut(|lines| work(Rows::lay(team, x, cols, lines)))
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
        // SAFETY: `Simd::detect` chose this file only after `is_available`. Rows are as wide as `w`'s, and there is room for
        // the sums of as many pairs as pass together.
        unsafe {
            let of = Panel { rows, w, out, first };
            match w.dtype {
                Dtype::F32 => of.run::<F32>(sums),
                Dtype::F16 => of.run::<F16>(sums),
                Dtype::Bf16 => of.run::<Bf16>(sums),
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
    unsafe fn run<S: Stored>(self, sums: &mut [Line]) {
        let pairs = self.rows.pairs();
        for first in (0..pairs).step_by(PAIRS) {
            for depth in 0..self.rows.depths() {
                for tile in Tile::all(first..pairs.min(first + PAIRS)) {
                    let sums = &mut sums[(tile.first - first) * self.w.rows..][..tile.pairs * self.w.rows];
                    // SAFETY: the tile is one of the rows', and its sums are those of all outputs.
                    unsafe {
                        match tile.pairs {
                            8 => self.outputs::<S, 8, 3>(tile, depth, sums),
                            4 => self.outputs::<S, 4, 6>(tile, depth, sums),
                            3 => self.outputs::<S, 3, 6>(tile, depth, sums),
                            2 => self.outputs::<S, 2, 6>(tile, depth, sums),
                            _ => self.outputs::<S, 1, 8>(tile, depth, sums),
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`Self::run`]; `tile` is one of the rows', of `P` pairs, and `sums` holds those of all outputs.
    #[inline(always)]
    unsafe fn outputs<S: Stored, const P: usize, const C: usize>(self, tile: Tile, depth: usize, sums: &mut [Line]) {
        let whole = self.w.rows - self.w.rows % C;
        let (many, few) = sums.split_at_mut(P * whole);
        // SAFETY: outputs `o..o + C`, then single ones, exist; their sums are as many.
        unsafe {
            for (o, sums) in (0..whole).step_by(C).zip(many.chunks_exact_mut(P * C)) {
                self.tile::<S, P, C>(tile, depth, o, sums);
            }
            for (o, sums) in (whole..self.w.rows).zip(few.chunks_exact_mut(P)) {
                self.tile::<S, P, 1>(tile, depth, o, sums);
            }
        }
    }

    /// `P` pairs of rows by `C` outputs, a register of lanes for each. Asks for the next outputs' weights meanwhile.
    ///
    /// # Safety
    /// As for [`Self::outputs`]; outputs `o..o + C` exist, and there are `P * C` sums.
    #[inline(always)]
    unsafe fn tile<S: Stored, const P: usize, const C: usize>(
        self,
        tile: Tile,
        depth: usize,
        o: usize,
        sums: &mut [Line],
    ) {
        let (Self { rows, w, .. }, last) = (self, depth + 1 == self.rows.depths());
        let (x, columns) = rows.at(tile, depth);
        let (whole, rest) = (columns.len() / LANES, columns.len() % LANES);
        // SAFETY: a tile's lines lie one after the other, `P` for every group of eight columns; each load of weights reads
        // a whole group of `columns`, or through `rest_of` what is left of one.
        unsafe {
            let ws: [*const u8; C] =
                std::array::from_fn(|j| w.bytes.as_ptr().add(((o + j) * w.cols + columns.start) * S::BYTES));
            let mut acc = [[_mm512_setzero_ps(); C]; P];
            if depth > 0 {
                for (i, acc) in acc.iter_mut().enumerate() {
                    for (j, acc) in acc.iter_mut().enumerate() {
                        *acc = sums.get_unchecked(i * C + j).load();
                    }
                }
            }
            let next = C * w.cols * S::BYTES;
            for group in 0..whole {
                let wk: [__m512; C] = std::array::from_fn(|j| {
                    let at = ws[j].add(group * LANES * S::BYTES);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(next).cast());
                    S::load(at)
                });
                for (i, acc) in acc.iter_mut().enumerate() {
                    let xk = (*x.add(group * P + i)).load();
                    for (acc, wk) in acc.iter_mut().zip(wk) {
                        *acc = _mm512_fmadd_ps(xk, wk, *acc);
                    }
                }
            }
            if rest > 0 {
                // Lanes past the end keep what they have, as the definition's do.
                let some = ((1u16 << rest) - 1) * 0x101;
                let wk: [__m512; C] = std::array::from_fn(|j| rest_of::<S>(ws[j].add(whole * LANES * S::BYTES), rest));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let xk = (*x.add(whole * P + i)).load();
                    for (acc, wk) in acc.iter_mut().zip(wk) {
                        *acc = _mm512_mask3_fmadd_ps(xk, wk, *acc, some);
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
    unsafe fn put<const P: usize, const C: usize>(self, tile: Tile, o: usize, acc: [[__m512; C]; P]) {
        let mut sums = [[0.0; C]; 2];
        for (row, acc) in (2 * tile.first..).step_by(2).zip(acc) {
            for (j, lanes) in acc.into_iter().enumerate() {
                // SAFETY: registers only.
                unsafe {
                    let four = _mm512_add_ps(lanes, _mm512_shuffle_f32x4::<0b10_11_00_01>(lanes, lanes));
                    let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
                    let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
                    sums[0][j] = _mm512_cvtss_f32(one);
                    sums[1][j] = _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(one));
                }
            }
            for (row, sums) in (row..self.rows.count()).zip(&sums) {
                // SAFETY: every panel has outputs of its own.
                unsafe { self.out.put(row, self.first + o, sums) };
            }
        }
    }
}

/// Less than eight numbers as lanes, the others zero.
///
/// # Safety
/// `at` points to `count < 8` readable numbers; AVX-512 (F, BW, DQ).
#[inline(always)]
unsafe fn rest_of<S: Stored>(at: *const u8, count: usize) -> __m512 {
    let mut bytes = [0; 4 * LANES];
    // SAFETY: the caller's promise; then eight numbers of the array.
    unsafe {
        std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), count * S::BYTES);
        S::load(bytes.as_ptr())
    }
}
