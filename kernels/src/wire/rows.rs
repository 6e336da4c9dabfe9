//! Rows of blocks, as they lie in pages.

use super::{BLOCK, BlockShape};
use crate::cpu::Dtype;

/// The rows of a block, gathered from pages.
pub(crate) struct GatheredRows<'a> {
    form: BlockShape,
    dtype: Dtype,
    slots: [&'a [u8]; BLOCK],
}

impl<'a> GatheredRows<'a> {
    /// Of runs of rows that lie one behind the other, as many as the block has in all.
    pub fn gather(form: BlockShape, dtype: Dtype, runs: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut slots = [[].as_slice(); BLOCK];
        let mut gathered = 0;
        for run in runs {
            for (slot, row) in slots[gathered..form.tokens].iter_mut().zip(run.chunks_exact(form.dim * dtype.bytes())) {
                *slot = row;
                gathered += 1;
            }
        }
        assert_eq!(gathered, form.tokens, "rows of a block");
        Self { form, dtype, slots }
    }

    /// Rows and channels.
    pub fn form(&self) -> BlockShape {
        self.form
    }

    /// They, and those that are worked on after them.
    pub fn before<'b>(&'b self, next: Option<&'b Self>) -> BlockRows<'b> {
        let next = next.map_or([].as_slice(), |next| &next.slots[..next.form.tokens]);
        BlockRows {
            rows: &self.slots[..self.form.tokens],
            row: self.form.dim * self.dtype.bytes(),
            dtype: self.dtype,
            next,
        }
    }
}

/// Rows of a block, all as long.
#[derive(Clone, Copy)]
pub(crate) struct BlockRows<'a> {
    rows: &'a [&'a [u8]],
    /// Bytes of each.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86 has loops that need it"))]
    row: usize,
    pub dtype: Dtype,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86 asks memory for them"))]
    next: &'a [&'a [u8]],
}

impl<'a> BlockRows<'a> {
    pub fn as_slice(&self) -> &'a [&'a [u8]] {
        self.rows
    }

    /// Whether they are all that a block has, in this type.
    #[cfg(target_arch = "x86_64")]
    pub fn are_of(&self, form: BlockShape, bytes: usize) -> bool {
        self.rows.len() == form.tokens && self.row == form.dim * bytes
    }

    /// Row `t` of those that are worked on next, if there are as many.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn next(&self, t: usize) -> Option<&'a [u8]> {
        self.next.get(t).copied()
    }
}
