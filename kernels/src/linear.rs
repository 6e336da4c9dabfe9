//! Weight matrices as layers hold them: as they lie in the file where products read that, packed where they do not.

use crate::{
    cpu::{Cpu, Dtype, Matrix, Operand, Packed},
    weights::{Tensor, View},
};
use std::sync::{Arc, OnceLock};

/// A matrix that rows are multiplied by: `[output][input]`.
#[derive(Clone)]
pub(crate) struct Weight(Arc<Stored>);

struct Stored {
    tensor: Tensor,
    /// Whether rows are multiplied as they are, where products with what the file has would round them first.
    exact: bool,
    packed: OnceLock<Packed>,
    widened: OnceLock<Vec<f32>>,
}

impl Weight {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self(Arc::new(Stored { tensor, exact: false, packed: OnceLock::new(), widened: OnceLock::new() }))
    }

    /// A matrix that rows are multiplied by without being rounded, in single precision however it is stored: one whose
    /// outputs decide something.
    pub(crate) fn exact(tensor: Tensor) -> Self {
        Self(Arc::new(Stored { tensor, exact: true, packed: OnceLock::new(), widened: OnceLock::new() }))
    }

    /// As it lies in the file.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.0.tensor
    }

    /// Bytes of a matrix once it is packed or widened; none of one that products read where it lies.
    pub(crate) fn packed_bytes(&self) -> u64 {
        if self.is_widened() {
            let (rows, cols) = self.0.tensor.size();
            return 4 * (rows * cols) as u64;
        }
        match self.0.tensor.view() {
            View::Dense(_) => 0,
            View::Quantised(blocks) => Packed::size(&blocks) as u64,
        }
    }

    /// Packs a quantised matrix, and widens one that is to be exact. What lies in the file is not read after.
    pub(crate) fn prepare(&self, cpu: &Cpu) {
        if self.is_widened() {
            self.widened();
            return self.0.tensor.forget();
        }
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
        if self.is_widened() {
            let (rows, cols) = self.0.tensor.size();
            return Operand::Dense(Matrix::new(bytemuck::cast_slice(self.widened()), Dtype::F32, rows, cols));
        }
        match self.0.tensor.view() {
            View::Dense(matrix) => Operand::Dense(matrix),
            View::Quantised(blocks) => Operand::Packed(self.0.packed.get_or_init(|| cpu.pack(blocks))),
        }
    }

    /// Rows are as they are beside matrices of single and half precision.
    fn is_widened(&self) -> bool {
        let dense = matches!(self.0.tensor.view(), View::Dense(matrix) if matrix.dtype() != Dtype::Bf16);
        self.0.exact && !dense
    }

    fn widened(&self) -> &[f32] {
        self.0.widened.get_or_init(|| {
            let (rows, cols) = self.0.tensor.size();
            let mut all = vec![0.0; rows * cols];
            all.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| self.0.tensor.widen_row(row, out));
            all
        })
    }

    /// Bytes as stored.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.tensor.bytes()
    }
}
