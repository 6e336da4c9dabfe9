//! Columns of rows that several GPUs have whole: each computes its own, and gets the others' from where they lie.
//!
//! Own columns of one row are computed where they belong. Those of more rows would lie apart there, which not all kernels
//! write; they are computed without gaps in memory of their own and copied.

use super::{
    buffers::Buffer,
    machine::{GpuError, Rectangle},
};
use crate::ranks::RankOutputs;

/// A GPU's columns of rows, and where they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    /// Where the GPU has, or will have, the columns of all.
    pub whole: u64,
    /// Where its own are, rows of them without a gap.
    pub own: u64,
    rows: usize,
    from: usize,
    mine: usize,
    all: usize,
    /// Of a number (bytes).
    size: usize,
}

impl Columns {
    /// A place for columns of `rows` rows of numbers of `size` bytes, which are to be whole at `whole`.
    pub fn place(
        outputs: &RankOutputs,
        rows: usize,
        size: usize,
        whole: u64,
        apart: &mut Buffer,
    ) -> Result<Self, GpuError> {
        let (from, mine, all) = (outputs.mine.start, outputs.mine.len(), outputs.all);
        let belongs = whole != 0 && (rows == 1 || mine == all);
        let own = if belongs { whole + (from * size) as u64 } else { apart.fit(rows * mine * size)? };
        Ok(Self { whole, own, rows, from, mine, all, size })
    }

    /// Whether own columns are where they belong.
    pub fn are_in_place(&self) -> bool {
        self.own == self.whole + (self.from * self.size) as u64
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How much a GPU's own are (bytes).
    pub fn bytes(&self) -> usize {
        self.rows * self.mine * self.size
    }

    /// What is to be copied of them to where another has them whole.
    pub fn to(&self, whole: u64) -> Rectangle {
        Rectangle {
            from: self.own,
            from_pitch: self.mine * self.size,
            to: whole + (self.from * self.size) as u64,
            to_pitch: self.all * self.size,
            width: self.mine * self.size,
            rows: self.rows,
        }
    }
}
