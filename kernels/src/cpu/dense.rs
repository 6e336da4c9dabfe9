//! Products with dense matrices, in blocks: what is used again is still in a cache.
//!
//! A panel is a few outputs by a depth of columns that fits the second-level cache; all rows pass it before the next.
//! Sums stay in lanes from depth to depth, so blocks change nothing of a sum's order.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::{LANES, Lanes, Matrix, Simd, plain, team::Team};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Columns of a panel: sixteen rows of them fit a first-level cache.
const DEPTH: usize = 512;
/// Numbers of rows that fit it: few rows take more columns at a time, so that weights are read as they lie in memory.
const NEAR: usize = 16 * DEPTH;
/// Rows that pass a panel before their lanes are added up.
const ROWS: usize = 256;
/// Outputs of a panel for many rows.
const PANEL: usize = 48;
/// Most lanes kept for a panel: 128 KiB.
const KEPT: usize = 4096;
/// Parts for each thread, so that one that is held up does not hold up all.
const PARTS_PER_THREAD: usize = 4;

thread_local! {
    /// Lanes and sums of the panel a thread works on, kept from step to step.
    static SCRATCH: RefCell<(Vec<Lanes>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Some columns of `x` and `w`: `x` holds rows as wide as `w`'s.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub x: &'a [f32],
    pub w: Matrix<'a>,
    /// First column.
    pub from: usize,
    /// Columns, a multiple of [`LANES`].
    pub len: usize,
}

impl Block<'_> {
    /// Rows of `x`.
    pub fn rows(&self) -> usize {
        self.x.len() / self.w.cols
    }

    /// Whether it lies inside, and `acc` has lanes for every row and output: what fast versions rely on.
    pub fn check(&self, acc: &[Lanes]) {
        assert!(self.len.is_multiple_of(LANES) && self.from + self.len <= self.w.cols);
        assert!(self.x.len() == self.rows() * self.w.cols && acc.len() == self.rows() * self.w.rows);
    }
}

/// Memory cut into parts of one length, the last maybe shorter, for threads that each take some.
pub(super) struct Cut<'a, T> {
    start: *mut T,
    len: usize,
    part: usize,
    _borrowed: PhantomData<&'a mut [T]>,
}

#[allow(unsafe_code)]
// SAFETY: `part` is the only access, and its callers take each part once.
unsafe impl<T: Send> Sync for Cut<'_, T> {}

impl<'a, T> Cut<'a, T> {
    /// Parts of `part` items, at least one.
    pub fn new(all: &'a mut [T], part: usize) -> Self {
        assert!(part > 0);
        Self { start: all.as_mut_ptr(), len: all.len(), part, _borrowed: PhantomData }
    }

    /// Parts.
    pub fn len(&self) -> usize {
        self.len.div_ceil(self.part)
    }

    /// Part `index`.
    ///
    /// # Safety
    /// Nobody else has it.
    #[allow(unsafe_code, clippy::mut_from_ref)] // What it was made of was borrowed mutably, and is cut up here.
    pub unsafe fn part(&self, index: usize) -> &mut [T] {
        assert!(index < self.len());
        let from = index * self.part;
        // SAFETY: inside the slice this was made of; nobody else has it, by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), self.part.min(self.len - from)) }
    }
}

/// Outputs of a product that threads fill side by side.
pub(crate) struct Outputs<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    _borrowed: PhantomData<&'a mut [f32]>,
}

#[allow(unsafe_code)]
// SAFETY: `put` is the only access, and its callers write disjoint outputs.
unsafe impl Sync for Outputs<'_> {}

impl<'a> Outputs<'a> {
    /// Of `rows` rows of `width` outputs.
    pub fn new(out: &'a mut [f32], rows: usize, width: usize) -> Self {
        assert_eq!(out.len(), rows * width);
        Self { start: out.as_mut_ptr(), rows, width, _borrowed: PhantomData }
    }

    /// Writes `values` as the outputs from `first` on of `row`.
    ///
    /// # Safety
    /// No other thread writes these outputs of the row.
    #[allow(unsafe_code)]
    pub unsafe fn put(&self, row: usize, first: usize, values: &[f32]) {
        assert!(row < self.rows && first + values.len() <= self.width);
        // SAFETY: inside the slice this was made of, by the line above; nobody else touches it, by the caller.
        unsafe {
            let to = self.start.add(row * self.width + first);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
    }
}

/// `out[r][o] = x[r] · w[o]`, shared among the team; on the calling thread without one.
pub(super) fn product(simd: Simd, team: Option<&Team>, x: &[f32], w: Matrix<'_>, out: &mut [f32]) {
    let rows = x.len() / w.cols;
    #[cfg(target_arch = "x86_64")]
    if simd.has_pairs() && rows > 1 {
        return avx512::product(team, x, w, out);
    }
    let width = panel_width(rows, w.rows, team.map_or(1, Team::threads), PANEL);
    let outputs = Outputs::new(out, rows, w.rows);
    let panel = |part: usize| {
        let (from, to) = (part * width, w.rows.min((part + 1) * width));
        panel(simd, x, w.slice(from, to), &outputs, from);
    };
    let parts = w.rows.div_ceil(width);
    match team {
        Some(team) => team.share(parts, panel),
        None => (0..parts).for_each(panel),
    }
}

/// Outputs of a panel, `many` at most for many rows.
pub(super) fn panel_width(rows: usize, outputs: usize, threads: usize, many: usize) -> usize {
    let most = if rows >= ROWS / 8 { many } else { KEPT / rows.max(1) };
    let shares = if threads == 1 { 1 } else { threads * PARTS_PER_THREAD };
    outputs.div_ceil(shares).clamp(1, most).next_multiple_of(4)
}

fn panel(simd: Simd, x: &[f32], w: Matrix<'_>, out: &Outputs<'_>, first: usize) {
    SCRATCH.with_borrow_mut(|(lanes, sums)| {
        for (block, x) in x.chunks(ROWS * w.cols).enumerate() {
            let rows = x.len() / w.cols;
            lanes.clear();
            lanes.resize(rows * w.rows, [0.0; LANES]);
            sums.resize(rows * w.rows, 0.0);
            let whole = w.cols - w.cols % LANES;
            let depth = (NEAR / rows).max(DEPTH) / LANES * LANES;
            for from in (0..whole).step_by(depth) {
                simd.lanes(Block { x, w, from, len: depth.min(whole - from) }, lanes);
            }
            if whole < w.cols {
                plain::last_lanes(x, w, lanes);
            }
            simd.reduce(lanes, sums);
            for (row, sums) in sums.chunks_exact(w.rows).enumerate() {
                // SAFETY: every panel has outputs of its own.
                #[allow(unsafe_code)]
                unsafe {
                    out.put(block * ROWS + row, first, sums);
                }
            }
        }
    });
}
