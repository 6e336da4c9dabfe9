//! Tensor parallelism: the ranks that hold a stage together, what each has of it, and how their parts meet.
//!
//! Every matrix is cut by its outputs, none by its inputs: an output's sum is whole on one rank, in the order it has on
//! any number of them (`docs/design/arithmetic.md`). So ranks have no partial sums to add up, in whatever order; they put their
//! columns side by side ([`Gather`]). Heads of keys and values are cut too, with the query heads that share them: a rank
//! has pages for its own heads only.

use std::cell::Cell;
use std::hint::spin_loop;
use std::mem::swap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// Looks at the counter before a rank that waits lets others run: some ten microseconds.
const LOOKS: usize = 4_000;
/// Outputs are shared out in these, as quantised products compute them.
const OCTET: usize = 8;

/// One of the ranks that hold a stage together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    index: usize,
    of: usize,
}

impl Rank {
    /// The only one.
    pub(crate) const ALONE: Self = Self { index: 0, of: 1 };

    /// All of so many.
    pub(crate) fn all(of: usize) -> impl Iterator<Item = Self> {
        (0..of).map(move |index| Self { index, of })
    }

    /// Whether it is the one that has what need not be cut.
    pub(crate) fn is_first(self) -> bool {
        self.index == 0
    }

    /// Its outputs of a matrix's.
    pub(crate) fn outputs(self, all: usize) -> Range<usize> {
        let unit = if all < OCTET * self.of { 1 } else { OCTET };
        let Range { start, end } = self.part(all.div_ceil(unit));
        start * unit..all.min(end * unit)
    }

    /// Its heads of keys and values.
    pub(crate) fn heads(self, all: usize) -> Range<usize> {
        self.part(all)
    }

    fn part(self, all: usize) -> Range<usize> {
        self.index * all / self.of..(self.index + 1) * all / self.of
    }
}

/// Outputs of a matrix: how many there are, and which of them a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankOutputs {
    pub all: usize,
    pub mine: Range<usize>,
}

/// What a rank hears from the others.
pub(crate) trait Gather {
    /// Puts the columns of all ranks side by side: `x` is `[row][mine]` and becomes `[row][all]`, the same on every rank.
    /// All ranks must come, with as many rows.
    fn gather(&self, rows: usize, x: &mut Vec<f32>);
}

/// Of a rank that is the only one.
pub(crate) struct SingleRank;

impl Gather for SingleRank {
    fn gather(&self, _rows: usize, _x: &mut Vec<f32>) {}
}

/// Where ranks of one process meet: each lays its columns down, and takes all once everybody has.
///
/// There are two tables, used in turns. Who lays down on one for the next time but one has met the others since they took
/// from it, so nobody has to wait a second time for the table to be free.
pub(crate) struct Hall {
    tables: [Vec<RwLock<Vec<f32>>>; 2],
    /// How often a rank has come, over all meetings.
    came: AtomicUsize,
    /// A rank will not come any more.
    broken: AtomicBool,
}

impl Hall {
    /// For so many ranks.
    pub(crate) fn new(ranks: usize) -> Self {
        let table = || (0..ranks).map(|_| RwLock::default()).collect();
        Self { tables: [table(), table()], came: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }

    /// Begins anew; no seat may be taken.
    pub(crate) fn open(&mut self) {
        *self.came.get_mut() = 0;
        *self.broken.get_mut() = false;
    }

    /// The place of rank `index`, to be taken once after [`Self::open`].
    pub(crate) fn seat(&self, index: usize) -> HallSeat<'_> {
        HallSeat { hall: self, index, meetings: Cell::new(0) }
    }

    /// Waits until all ranks have come for the `meeting`th time, counted from one.
    fn meet(&self, meeting: usize) {
        self.came.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0;
        while self.came.load(Ordering::Acquire) < meeting * self.tables[0].len() {
            assert!(!self.broken.load(Ordering::Relaxed), "another rank of the stage panicked");
            looks += 1;
            if looks < LOOKS { spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// A rank in the hall.
pub(crate) struct HallSeat<'a> {
    hall: &'a Hall,
    index: usize,
    meetings: Cell<usize>,
}

impl Gather for HallSeat<'_> {
    fn gather(&self, rows: usize, x: &mut Vec<f32>) {
        let table = &self.hall.tables[self.meetings.get() % 2];
        swap(&mut *table[self.index].write().unwrap_or_else(PoisonError::into_inner), x);
        self.meetings.set(self.meetings.get() + 1);
        self.hall.meet(self.meetings.get());
        let laid = |part: &RwLock<Vec<f32>>| part.read().unwrap_or_else(PoisonError::into_inner).len();
        let total: usize = table.iter().map(laid).sum();
        x.resize(total, 0.0);
        let (all, mut from) = (total / rows.max(1), 0);
        for part in table {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            let width = part.len() / rows.max(1);
            // An empty part would have no rows to go through.
            for (row, columns) in part.chunks_exact(width.max(1)).enumerate() {
                x[row * all + from..][..width].copy_from_slice(columns);
            }
            from += width;
        }
    }
}

impl Drop for HallSeat<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.hall.broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_output_is_on_one_rank(all in 0usize..300, of in 1usize..9) {
            let mut next = 0;
            for rank in Rank::all(of) {
                let part = rank.outputs(all);
                prop_assert_eq!(part.start, next);
                next = part.end;
                prop_assert!(all < of || !part.is_empty(), "{:?} of {}", rank, all);
            }
            prop_assert_eq!(next, all);
            prop_assert!(Rank::all(of).all(|rank| all < of || !rank.heads(all).is_empty()));
        }
    }

    #[test]
    fn columns_of_all_ranks_come_side_by_side() {
        let mut hall = Hall::new(3);
        hall.open();
        let number = |round: usize, row: usize, column: usize| (round * 1000 + row * 100 + column) as f32;
        std::thread::scope(|scope| {
            for rank in Rank::all(3) {
                let hall = &hall;
                scope.spawn(move || {
                    let seat = hall.seat(rank.index);
                    for round in 0..200 {
                        let (rows, width) = (1 + round % 4, 2 + round % 9);
                        let mine = rank.outputs(width);
                        let rows_of = |columns: Range<usize>| -> Vec<f32> {
                            (0..rows).flat_map(|row| columns.clone().map(move |c| number(round, row, c))).collect()
                        };
                        let mut x = rows_of(mine);
                        seat.gather(rows, &mut x);
                        assert_eq!(x, rows_of(0..width), "round {round}");
                    }
                });
            }
        });
    }

    #[test]
    fn nobody_waits_for_a_rank_that_panicked() {
        let mut hall = Hall::new(2);
        for _ in 0..3 {
            hall.open();
            let ends = std::thread::scope(|scope| {
                let ends = [0, 1].map(|index| {
                    let seat = hall.seat(index);
                    scope.spawn(move || {
                        seat.gather(1, &mut vec![0.0]);
                        assert_eq!(index, 0, "this rank breaks");
                        seat.gather(1, &mut vec![0.0]);
                    })
                });
                ends.map(|end| end.join().is_err())
            });
            assert_eq!(ends, [true, true]);
        }
    }
}
