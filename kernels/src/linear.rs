//! Weight matrices as layers hold them: as they lie in the file where products read that, packed where they do not.

use crate::{
    cpu::{Cpu, Packed},
    weights::{Tensor, View},
};
use std::sync::OnceLock;

/// A matrix that rows are multiplied by: `[output][input]`.
pub(crate) struct Weight {
    tensor: Tensor,
    packed: OnceLock<Packed>,
}

impl Weight {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self { tensor, packed: OnceLock::new() }
    }

    /// `out[r][o] = x[r] · w[o]`. A quantised matrix is packed when it is first used.
    pub(crate) fn apply(&self, cpu: &Cpu, x: &[f32], out: &mut [f32]) {
        match self.tensor.view() {
            View::Dense(matrix) => cpu.linear(x, matrix, out),
            View::Quantised(blocks) => cpu.quantised(x, self.packed.get_or_init(|| cpu.pack(blocks)), out),
        }
    }

    /// Bytes as stored.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensor.bytes()
    }
}
