//! Dense products of several rows: two rows side by side in a register, so that both have their eight lanes, and the same
//! weights for both.
//!
//! Rows are laid out once as products read them (`rows.rs`). A panel is a few outputs; its rows pass a depth of columns after
//! the other, and sums of a tile (some pairs of rows by some outputs) wait in memory in the order registers leave them.

use super::super::{
    Dtype, Matrix,
    dense::{
        self, Outputs, Wanted,
        tile::{Ask, LINE},
    },
    isa::{F16, F32, Isa, avx512::Avx512, each, entries},
    team::Team,
};
use super::{
    rows::{Form, Line, Rows, Tile},
    stored::{Multiplied, One, Two, TwoApart},
};
use std::arch::x86_64::__m512;
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
pub(in super::super) struct Lines<'a> {
    eight: Option<Rows<'a>>,
    two: Option<Rows<'a>>,
}

impl Lines<'_> {
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
    wanted: Wanted,
    multiplies: bool,
    work: impl FnOnce(Lines<'_>) -> T,
) -> T {
    ROWS.with_borrow_mut(|[eight, two]| {
        let form = if multiplies { Form::Two } else { Form::TwoApart };
        work(Lines {
            eight: wanted.eight.then(|| Rows::lay(team, x, cols, Form::Eight, eight)),
            two: wanted.two.then(|| Rows::lay(team, x, cols, form, two)),
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
        match (w.dtype, rows.form()) {
            (Dtype::F32, Form::Eight) => run_singles(of, sums),
            (Dtype::F16, Form::Eight) => run_halves(of, sums),
            // SAFETY: lines of two are laid out only where the processor multiplies them.
            (Dtype::Bf16, Form::Two) => unsafe { run_two(Avx512::had(), Two::had(), of, sums) },
            (Dtype::Bf16, Form::TwoApart) => run_apart(of, sums),
            (dtype, form) => unreachable!("rows in {form:?} for {dtype:?}"),
        }
    });
}

entries! { Avx512, "avx512f,avx512bw,avx512dq,avx512vl",
    fn run_singles(of: Panel<'_>, sums: &mut [Line]) = |isa, of: Panel<'_>, sums| of.tiles(isa, One::<F32>::NEW, sums);
    fn run_halves(of: Panel<'_>, sums: &mut [Line]) = |isa, of: Panel<'_>, sums| of.tiles(isa, One::<F16>::NEW, sums);
    fn run_apart(of: Panel<'_>, sums: &mut [Line]) = |isa, of: Panel<'_>, sums| of.tiles(isa, TwoApart, sums);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn run_two(isa: Avx512, by: Two, of: Panel<'_>, sums: &mut [Line]) {
    of.tiles(isa, by, sums);
}

#[derive(Clone, Copy)]
struct Panel<'a> {
    rows: &'a Rows<'a>,
    w: Matrix<'a>,
    out: &'a Outputs<'a>,
    first: usize,
}

impl Panel<'_> {
    /// All tiles; `sums` has a line for every output and pair of those that pass together.
    #[inline(always)]
    fn tiles<M: Multiplied>(self, isa: Avx512, by: M, sums: &mut [Line]) {
        let pairs = self.rows.pairs();
        for first in (0..pairs).step_by(PAIRS) {
            for depth in 0..self.rows.depths() {
                for tile in Tile::all(first..pairs.min(first + PAIRS)) {
                    let sums = &mut sums[(tile.first - first) * self.w.rows..][..tile.pairs * self.w.rows];
                    match tile.pairs {
                        8 => self.outputs::<M, 8, 3>(isa, by, tile, depth, sums),
                        4 => self.outputs::<M, 4, 6>(isa, by, tile, depth, sums),
                        3 => self.outputs::<M, 3, 6>(isa, by, tile, depth, sums),
                        2 => self.outputs::<M, 2, 6>(isa, by, tile, depth, sums),
                        _ => self.outputs::<M, 1, 8>(isa, by, tile, depth, sums),
                    }
                }
            }
        }
    }

    /// A tile of the rows', of `P` pairs, by all outputs, whose sums are `sums`.
    #[inline(always)]
    fn outputs<M: Multiplied, const P: usize, const C: usize>(
        self,
        isa: Avx512,
        by: M,
        tile: Tile,
        depth: usize,
        sums: &mut [Line],
    ) {
        let whole = self.w.rows - self.w.rows % C;
        let (many, few) = sums.split_at_mut(P * whole);
        for (o, sums) in (0..whole).step_by(C).zip(many.chunks_exact_mut(P * C)) {
            self.tile::<M, P, C>(isa, by, tile, depth, o, sums);
        }
        for (o, sums) in (whole..self.w.rows).zip(few.chunks_exact_mut(P)) {
            self.tile::<M, P, 1>(isa, by, tile, depth, o, sums);
        }
    }

    /// `P` pairs of rows by outputs `o..o + C`, a register of lanes for each. Asks for weights further on meanwhile ([`Ask`]).
    #[inline(always)]
    fn tile<M: Multiplied, const P: usize, const C: usize>(
        self,
        isa: Avx512,
        by: M,
        tile: Tile,
        depth: usize,
        o: usize,
        sums: &mut [Line],
    ) {
        let (Self { rows, w, .. }, last) = (self, depth + 1 == self.rows.depths());
        let ((x, columns), (group, lines)) = (rows.at(tile, depth), (M::FORM.columns(), M::FORM.lines()));
        let (whole, rest) = (columns.len() / group, columns.len() % group);
        let here: [&[u8]; C] =
            each(|j| &w.bytes[((o + j) * w.cols + columns.start) * M::BYTES..][..columns.len() * M::BYTES]);
        let ws: [&[M::Group]; C] = each(|j| &M::groups(here[j])[..whole]);
        let mut acc = [[isa.splat(0.0); C]; P];
        if depth > 0 {
            for (acc, sum) in acc.as_flattened_mut().iter_mut().zip(&*sums) {
                *acc = sum.load(isa);
            }
        }
        let (line, mut g) = (LINE / (group * M::BYTES), 0);
        for Ask { lines, further } in Ask::all(whole / line, C * w.cols * M::BYTES) {
            while g < lines.end * line {
                for w in ws {
                    isa.ask(w.as_ptr().wrapping_add(g).cast::<u8>().wrapping_add(further));
                }
                for part in g..g + line {
                    go_on(isa, by, x, ws, part, &mut acc);
                }
                g += line;
            }
        }
        while g < whole {
            go_on(isa, by, x, ws, g, &mut acc);
            g += 1;
        }
        if rest > 0 {
            let wk: [M::Weights; C] = each(|j| by.weights(isa, &M::rest(&here[j][whole * group * M::BYTES..])));
            for (i, acc) in acc.iter_mut().enumerate() {
                let x = &x[(whole * P + i) * lines..];
                for (acc, wk) in acc.iter_mut().zip(wk) {
                    *acc = by.multiply_add_rest(isa, x, wk, *acc, rest);
                }
            }
        }
        if last {
            return self.put(isa, tile, o, acc);
        }
        for (sum, acc) in sums.iter_mut().zip(acc.as_flattened()) {
            sum.store(isa, *acc);
        }
    }

    /// Adds up lanes in the order of [`super::super::plain::reduce`] and writes what they come to.
    #[inline(always)]
    fn put<const P: usize, const C: usize>(self, isa: Avx512, tile: Tile, o: usize, acc: [[__m512; C]; P]) {
        let mut sums = [[0.0; C]; 2];
        for (row, acc) in (2 * tile.first..).step_by(2).zip(acc) {
            for (j, lanes) in acc.into_iter().enumerate() {
                [sums[0][j], sums[1][j]] = isa.reduce_two(lanes);
            }
            for (row, sums) in (row..self.rows.count()).zip(&sums) {
                // SAFETY: every panel has outputs of its own.
                unsafe { self.out.put(row, self.first + o, sums) };
            }
        }
    }
}

/// Group `group` of columns.
#[inline(always)]
fn go_on<M: Multiplied, const P: usize, const C: usize>(
    isa: Avx512,
    by: M,
    x: &[Line],
    ws: [&[M::Group]; C],
    group: usize,
    acc: &mut [[__m512; C]; P],
) {
    let lines = M::FORM.lines();
    let wk: [M::Weights; C] = each(|j| by.weights(isa, &ws[j][group]));
    let x = &x[group * P * lines..][..P * lines];
    for (acc, x) in acc.iter_mut().zip(x.chunks_exact(lines)) {
        for (acc, wk) in acc.iter_mut().zip(wk) {
            *acc = by.multiply_add(isa, x, wk, *acc);
        }
    }
}
