//! Weight matrices as layers hold them: as they lie in the file where products read that, packed where they do not.

use crate::{
    cpu::{Cpu, Operand, Packed},
    weights::{Tensor, View},
};
use std::sync::{Arc, OnceLock};

/// A matrix that rows are multiplied by: `[output][input]`.
#[derive(Clone)]
pub(crate) struct Weight(Arc<Stored>);

struct Stored {
    tensor: Tensor,
    packed: OnceLock<Packed>,
}

impl Weight {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self(Arc::new(Stored { tensor, packed: OnceLock::new() }))
    }

    /// As it lies in the file.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.0.tensor
    }

    /// Bytes of a quantised matrix once it is packed; none of one that products read where it lies.
    pub(crate) fn packed_bytes(&self) -> u64 {
        match self.0.tensor.view() {
            View::Dense(_) => 0,
            View::Quantised(blocks) => Packed::size(&blocks) as u64,
        }
    }

    /// Packs a quantised matrix. What lies in the file is not read after.
    pub(crate) fn prepare(&self, cpu: &Cpu) {
        if let View::Quantised(blocks) = self.0.tensor.view() {
            self.0.packed.get_or_init(|| cpu.pack(blocks));
            self.0.tensor.forget();
        }
    }

    /// `out[r][o] = x[r] · w[o]`.
    pub(crate) fn apply(&self, cpu: &Cpu, x: &[f32], out: &mut [f32]) {
        cpu.products(x, [(self.operand(cpu), out)]);
    }

    /// As products take it. A quantised matrix that was not prepared is when it is first used.
    pub(crate) fn operand(&self, cpu: &Cpu) -> Operand<'_> {
        match self.0.tensor.view() {
            View::Dense(matrix) => Operand::Dense(matrix),
            View::Quantised(blocks) => Operand::Packed(self.0.packed.get_or_init(|| cpu.pack(blocks))),
        }
    }

    /// Bytes as stored.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.tensor.bytes()
    }
}
