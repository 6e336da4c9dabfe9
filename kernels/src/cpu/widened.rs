//! Matrices whose numbers are written anew, in a form that products read.

use super::{Dtype, team::Team};
use crate::memory::Memory;

/// Rows that a thread writes in one go.
const ROWS: usize = 16;

/// Fills `memory` with rows of `width` bytes and `cols` numbers that `row` writes, stored as `dtype`.
pub(super) fn fill(
    team: &Team,
    mut memory: Memory,
    (width, cols): (usize, usize),
    dtype: Dtype,
    row: impl Fn(usize, &mut [f32]) + Sync,
) -> Memory {
    team.share_parts(&mut memory, (ROWS * width).max(1), |i, part| {
        let mut line = vec![0.0; cols];
        for (index, out) in (i * ROWS..).zip(part.chunks_exact_mut(width)) {
            row(index, &mut line);
            dtype.put(&line, out);
        }
    });
    memory
}
