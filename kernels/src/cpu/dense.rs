//! Products with dense matrices, in blocks: what is used again is still in a cache.
//!
//! A panel is a few outputs by a depth of columns that fits the second-level cache; all rows pass it before the next.
//! Sums stay in lanes from depth to depth, so blocks change nothing of a sum's order.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::{Dtype, LANES, Lanes, Matrix, SHARE_FROM, Simd, bf16 as two, packed::WIDE, plain, team::Team};
use half::bf16;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

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
    /// Rows rounded to bfloat16.
    static ROUNDED: RefCell<Vec<bf16>> = const { RefCell::new(Vec::new()) };
}

/// A number of a row, as products with some matrices take it.
pub(super) trait RowElement: Copy {
    /// Numbers that every lane takes as many of.
    const GROUP: usize;

    /// Goes on with lanes over whole groups of columns.
    fn lanes(simd: Simd, block: Block<'_, Self>, acc: &mut [Lanes]);

    /// The columns after the last whole group.
    fn last_lanes(x: &[Self], w: Matrix<'_>, acc: &mut [Lanes]);
}

impl RowElement for f32 {
    const GROUP: usize = LANES;

    fn lanes(simd: Simd, block: Block<'_>, acc: &mut [Lanes]) {
        simd.lanes(block, acc);
    }

    fn last_lanes(x: &[Self], w: Matrix<'_>, acc: &mut [Lanes]) {
        plain::last_lanes(x, w, acc);
    }
}

impl RowElement for bf16 {
    const GROUP: usize = two::SIXTEEN;

    fn lanes(simd: Simd, block: Block<'_, Self>, acc: &mut [Lanes]) {
        simd.lanes_of_two(block, acc);
    }

    fn last_lanes(x: &[Self], w: Matrix<'_>, acc: &mut [Lanes]) {
        two::last_lanes_of_two(x, w, acc);
    }
}

/// Some columns of `x` and `w`: `x` holds rows as wide as `w`'s.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, X = f32> {
    pub x: &'a [X],
    pub w: Matrix<'a>,
    /// First column.
    pub from: usize,
    /// Columns, a multiple of [`RowElement::GROUP`].
    pub len: usize,
}

impl<X: RowElement> Block<'_, X> {
    /// Rows of `x`.
    pub fn rows(&self) -> usize {
        self.x.len() / self.w.cols
    }

    /// Whether it lies inside, and `acc` has lanes for every row and output: what fast versions rely on.
    pub fn check(&self, acc: &[Lanes]) {
        assert!(self.len.is_multiple_of(X::GROUP) && self.from + self.len <= self.w.cols);
        assert!(self.x.len() == self.rows() * self.w.cols && acc.len() == self.rows() * self.w.rows);
    }
}

/// Memory cut into parts of one length, the last maybe shorter, for threads that each take some.
pub(crate) struct Cut<'a, T> {
    start: *mut T,
    len: usize,
    part: usize,
    _borrowed: PhantomData<&'a mut [T]>,
}

#[allow(unsafe_code)]
// SAFETY: `part` and `range` are the only accesses, and their callers take nothing twice.
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

impl<T> Cut<'_, T> {
    /// Items of a range, whatever the parts.
    ///
    /// # Safety
    /// Nobody else has any of them.
    #[allow(unsafe_code, clippy::mut_from_ref)] // As in `part`.
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the slice this was made of; nobody else has it, by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
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
// SAFETY: `put` and `some` are the only accesses, and their callers have disjoint outputs.
unsafe impl Sync for Outputs<'_> {}

impl<'a> Outputs<'a> {
    /// Of `rows` rows of `width` outputs.
    pub fn new(out: &'a mut [f32], rows: usize, width: usize) -> Self {
        assert_eq!(out.len(), rows * width);
        Self { start: out.as_mut_ptr(), rows, width, _borrowed: PhantomData }
    }

    /// Outputs of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Some outputs of a row.
    ///
    /// # Safety
    /// No other thread has them, and the caller has them once.
    #[allow(unsafe_code, clippy::mut_from_ref)] // As in `Cut::part`.
    pub unsafe fn some(&self, row: usize, range: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && range.start <= range.end && range.end <= self.width);
        // SAFETY: inside the slice this was made of, by the line above; nobody else has it, by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.width + range.start), range.len()) }
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
            match values.first_chunk() {
                // A whole panel's, as one store.
                Some(all) if values.len() == WIDE => to.cast::<[f32; WIDE]>().write_unaligned(*all),
                _ => std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()),
            }
        }
    }
}

/// Rows as dense products read them.
pub(super) struct DenseRows<'a> {
    x: &'a [f32],
    cols: usize,
    /// Rounded to bfloat16, where matrices are that.
    rounded: &'a [bf16],
    /// In lines, where a version of its own reads them so.
    #[cfg(target_arch = "x86_64")]
    lines: avx512::RowLines<'a>,
}

/// For which dense matrices rows are made ready.
#[derive(Clone, Copy)]
pub(super) struct DenseFormats {
    /// A bit for each kind of number.
    dtypes: u8,
}

impl DenseFormats {
    /// For these matrices.
    pub fn by(dtypes: impl Iterator<Item = Dtype>) -> Self {
        Self { dtypes: dtypes.fold(0, |all, dtype| all | (1 << dtype as u8)) }
    }

    /// Whether some are of one of these.
    pub fn any<const N: usize>(self, dtypes: [Dtype; N]) -> bool {
        self.dtypes & Self::by(dtypes.into_iter()).dtypes != 0
    }
}

/// Calls `work` with rows of `cols` numbers, made ready for the matrices that are wanted.
pub(super) fn with_laid<T>(
    simd: Simd,
    team: Option<&Team>,
    x: &[f32],
    cols: usize,
    wanted: DenseFormats,
    work: impl FnOnce(&DenseRows<'_>) -> T,
) -> T {
    #[cfg(target_arch = "x86_64")]
    if x.len() > cols && simd.has_lines() {
        return avx512::with_lines(team, x, cols, wanted, simd.multiplies_bf16(), |lines| {
            work(&DenseRows { x, cols, rounded: &[], lines })
        });
    }
    ROUNDED.with_borrow_mut(|all| {
        let rounded = if wanted.any([Dtype::Bf16]) { round(simd, team, x, all) } else { &[] };
        work(&DenseRows {
            x,
            cols,
            rounded,
            #[cfg(target_arch = "x86_64")]
            lines: avx512::RowLines::default(),
        })
    })
}

/// Rounds rows to bfloat16, shared among the threads when it is worth it.
fn round<'a>(simd: Simd, team: Option<&Team>, x: &[f32], all: &'a mut Vec<bf16>) -> &'a [bf16] {
    all.resize(x.len(), bf16::ZERO);
    match team.filter(|_| x.len() >= SHARE_FROM) {
        Some(team) => team.share_parts(all, SHARE_FROM / 4, |i, part| {
            simd.round_to_bf16(&x[i * (SHARE_FROM / 4)..][..part.len()], part);
        }),
        None => simd.round_to_bf16(x, all),
    }
    all
}

impl DenseRows<'_> {
    /// How many there are.
    pub fn rows(&self) -> usize {
        self.x.len() / self.cols
    }

    /// Outputs of a panel for `threads` threads.
    pub fn width(&self, outputs: usize, threads: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.lines.any() {
            return avx512::width(self.rows(), outputs, threads);
        }
        panel_width(self.rows(), outputs, threads, PANEL)
    }

    /// `out[r][first + o] = x[r] · w[o]`.
    pub fn panel(&self, simd: Simd, w: Matrix<'_>, out: &Outputs<'_>, first: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(rows) = self.lines.of(w.dtype) {
            return avx512::panel(rows, w, out, first);
        }
        match w.dtype {
            Dtype::Bf16 => panel(simd, self.rounded, w, out, first),
            Dtype::F32 | Dtype::F16 => panel(simd, self.x, w, out, first),
        }
    }
}

/// `out[r][o] = x[r] · w[o]` on the calling thread.
pub(super) fn product_here(simd: Simd, x: &[f32], w: Matrix<'_>, out: &mut [f32]) {
    let rows = x.len() / w.cols;
    with_laid(simd, None, x, w.cols, DenseFormats::by([w.dtype].into_iter()), |laid| {
        let (width, out) = (laid.width(w.rows, 1), Outputs::new(out, rows, w.rows));
        for from in (0..w.rows).step_by(width) {
            laid.panel(simd, w.slice(from, w.rows.min(from + width)), &out, from);
        }
    });
}

/// Outputs of a panel, `many` at most for many rows.
pub(super) fn panel_width(rows: usize, outputs: usize, threads: usize, many: usize) -> usize {
    let most = if rows >= ROWS / 8 { many } else { KEPT / rows.max(1) };
    let shares = if threads == 1 { 1 } else { threads * PARTS_PER_THREAD };
    outputs.div_ceil(shares).clamp(1, most).next_multiple_of(4)
}

fn panel<X: RowElement>(simd: Simd, x: &[X], w: Matrix<'_>, out: &Outputs<'_>, first: usize) {
    SCRATCH.with_borrow_mut(|(lanes, sums)| {
        for (block, x) in x.chunks(ROWS * w.cols).enumerate() {
            let rows = x.len() / w.cols;
            lanes.clear();
            lanes.resize(rows * w.rows, [0.0; LANES]);
            sums.resize(rows * w.rows, 0.0);
            let whole = w.cols - w.cols % X::GROUP;
            let depth = (NEAR / rows).max(DEPTH) / X::GROUP * X::GROUP;
            for from in (0..whole).step_by(depth) {
                X::lanes(simd, Block { x, w, from, len: depth.min(whole - from) }, lanes);
            }
            if whole < w.cols {
                X::last_lanes(x, w, lanes);
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
