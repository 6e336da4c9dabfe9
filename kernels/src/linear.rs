//! Weight matrices as layers hold them.

use crate::{
    cpu::Cpu,
    weights::{Tensor, View},
};

/// A matrix that rows are multiplied by: `[output][input]`.
pub(crate) struct Weight {
    tensor: Tensor,
}

impl Weight {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self { tensor }
    }

    /// `out[r][o] = x[r] · w[o]`.
    pub(crate) fn apply(&self, cpu: &Cpu, x: &[f32], out: &mut [f32]) {
        match self.tensor.view() {
            View::Dense(matrix) => cpu.linear(x, matrix, out),
            View::Quantised(blocks) => cpu.widened(x, blocks, out),
        }
    }

    /// Bytes as stored.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensor.bytes()
    }
}
