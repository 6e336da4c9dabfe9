//! States: what some layers keep of a sequence in place of keys and values, changed by one row after the other.

use super::{Attend, RowRun};
use crate::{
    cpu::{Cpu, Cut, Outputs},
    pages::{SequenceKv, StateUnit},
};
use std::ops::Range;

/// A layer's place among those with a state, and the groups of heads that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateLayer {
    pub layer: usize,
    pub groups: usize,
}

/// A group's part of a sequence's state in a layer, and the rows that change it.
pub(crate) struct GroupState<'a> {
    /// Of the batch, in the sequence's order.
    pub rows: Range<usize>,
    pub group: usize,
    layer: usize,
    kv: &'a SequenceKv,
    memory: &'a Cut<'a, u8>,
    out: &'a Outputs<'a>,
    /// Columns of `out`: the group's.
    columns: Range<usize>,
}

impl GroupState<'_> {
    /// Works on the last inputs of its convolution.
    pub(crate) fn tail(&mut self, work: impl FnOnce(&mut [f32])) {
        self.unit(StateUnit::Tail { group: self.group }, work);
    }

    /// Works on one of its matrices.
    pub(crate) fn matrix(&mut self, matrix: usize, work: impl FnOnce(&mut [f32])) {
        self.unit(StateUnit::Matrix { group: self.group, matrix }, work);
    }

    /// Writes numbers of a row, from the group's column `first` on.
    pub(crate) fn put(&mut self, row: usize, first: usize, numbers: &[f32]) {
        assert!(self.rows.contains(&row) && first + numbers.len() <= self.columns.len(), "others' outputs");
        // SAFETY: a group's columns of a sequence's rows are its own, by the line above.
        #[expect(unsafe_code, reason = "the line above says why it is sound")]
        unsafe {
            self.out.put(row, self.columns.start + first, numbers);
        }
    }

    fn unit(&mut self, unit: StateUnit, work: impl FnOnce(&mut [f32])) {
        // SAFETY: each group of each sequence is handed out once, and has its units one at a time.
        #[expect(unsafe_code, reason = "the line above says why it is sound")]
        let bytes = unsafe { self.kv.state_beside(self.memory, self.layer, unit) };
        if let Ok(numbers) = bytemuck::try_cast_slice_mut::<u8, f32>(bytes) {
            return work(numbers);
        }
        // Memory that begins at an odd place.
        let mut numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|number| f32::from_ne_bytes(*number)).collect();
        work(&mut numbers);
        bytes.copy_from_slice(bytemuck::cast_slice(&numbers));
    }

    /// Makes zeros of it.
    fn clear(&mut self) {
        self.tail(|tail| tail.fill(0.0));
        for matrix in 0..self.kv.state_layout().matrices {
            self.matrix(matrix, |numbers| numbers.fill(0.0));
        }
    }
}

impl<'a> Attend<'a> {
    /// Hands out the state of every sequence of the batch in a layer, group by group. Of a sequence that begins it is zeros. `out` is
    /// `[row][group][number]`.
    pub(crate) fn states(
        &mut self,
        cpu: &Cpu,
        StateLayer { layer, groups }: StateLayer,
        multiply_adds: usize,
        out: &mut [f32],
        work: impl Fn(&mut GroupState<'_>) + Sync,
    ) {
        let (runs, rows) = (self.whole_runs(), self.positions.len());
        let width = out.len() / rows.max(1);
        let (out, memory) = (Outputs::new(out, rows, width), self.pool.cut());
        let each = width / groups;
        cpu.share(runs.len() * groups, multiply_adds, |i| {
            let (&RowRun { kv, row, start, len }, group) = (&runs[i / groups], i % groups);
            let (rows, columns) = (row..row + len, group * each..(group + 1) * each);
            let mut state = GroupState { rows, group, layer, kv, memory: &memory, out: &out, columns };
            if start == 0 {
                state.clear();
            }
            work(&mut state);
        });
    }

    /// All rows of a sequence as one run, however they are worked on together.
    fn whole_runs(&self) -> Vec<RowRun<'a>> {
        let mut whole: Vec<RowRun<'a>> = Vec::with_capacity(self.runs.len());
        for &RowRun { kv, row, start, len } in &self.runs {
            match whole.last_mut() {
                Some(last) if std::ptr::eq(last.kv, kv) => last.len += len,
                _ => whole.push(RowRun { kv, row, start, len }),
            }
        }
        whole
    }
}
