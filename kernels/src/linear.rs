//! Weight matrices as layers hold them: as they lie in the file where products read that, packed or widened where they do not.

use crate::{
    cpu::{Cpu, Dtype, Matrix, Operand, Packed},
    memory::Memory,
    weights::{Tensor, TensorData},
};
use std::sync::{Arc, OnceLock};

/// A matrix that rows are multiplied by: `[output][input]`.
#[derive(Clone)]
pub(crate) struct Weight(Arc<WeightMatrix>);

struct WeightMatrix {
    tensor: Tensor,
    /// Whether rows are multiplied as they are, where products with what the file has would round them first.
    exact: bool,
    packed: OnceLock<Packed>,
    widened: OnceLock<Memory>,
}

impl Weight {
    /// A matrix that rows are multiplied by as its checkpoint says.
    pub(crate) fn new(tensor: Tensor) -> Self {
        let exact = tensor.is_exact();
        Self(Arc::new(WeightMatrix { tensor, exact, packed: OnceLock::new(), widened: OnceLock::new() }))
    }

    /// A matrix that rows are multiplied by without being rounded, in single precision however it is stored: one whose
    /// outputs decide something.
    pub(crate) fn exact(tensor: Tensor) -> Self {
        Self(Arc::new(WeightMatrix { tensor, exact: true, packed: OnceLock::new(), widened: OnceLock::new() }))
    }

    /// Whether rows are multiplied by it as they are, in single precision.
    pub(crate) fn is_exact(&self) -> bool {
        self.0.exact
    }

    /// As it lies in the file.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.0.tensor
    }

    /// Bytes of a matrix once it is packed or widened; none of one that products read where it lies.
    pub(crate) fn packed_bytes(&self) -> u64 {
        if let Some(dtype) = self.widened_to() {
            let (rows, cols) = self.0.tensor.size();
            return (dtype.bytes() * rows * cols) as u64;
        }
        match self.0.tensor.view() {
            TensorData::Dense(_) | TensorData::Coded(_) => 0,
            TensorData::Quantised(blocks) => Packed::size(&blocks) as u64,
        }
    }

    /// Packs a quantised matrix, and widens one that is to be exact or has no products of its own. What lies in the file is
    /// not read after.
    pub(crate) fn prepare(&self, cpu: &Cpu) {
        if let Some(dtype) = self.widened_to() {
            self.widened(cpu, dtype);
            return self.0.tensor.forget();
        }
        if let TensorData::Quantised(blocks) = self.0.tensor.view() {
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
        if let Some(dtype) = self.widened_to() {
            return self.widened(cpu, dtype);
        }
        match self.0.tensor.view() {
            TensorData::Dense(matrix) => Operand::Dense(matrix),
            TensorData::Quantised(blocks) => Operand::Packed(self.0.packed.get_or_init(|| cpu.pack(blocks))),
            TensorData::Coded(coded) => self.widened(cpu, coded.dtype()),
        }
    }

    /// As what products read it once it is widened, where they do not read what lies in the file. Rows are as they are beside
    /// matrices of single and half precision.
    fn widened_to(&self) -> Option<Dtype> {
        let exact = self.0.exact.then_some(Dtype::F32);
        match self.0.tensor.view() {
            TensorData::Dense(matrix) => exact.filter(|_| matrix.dtype() == Dtype::Bf16),
            TensorData::Quantised(_) => exact,
            TensorData::Coded(coded) => exact.or(Some(coded.dtype())),
        }
    }

    fn widened(&self, cpu: &Cpu, dtype: Dtype) -> Operand<'_> {
        let (rows, cols) = self.0.tensor.size();
        let tensor = &self.0.tensor;
        let bytes =
            self.0.widened.get_or_init(|| cpu.widened((rows, cols), dtype, |row, out| tensor.widen_row(row, out)));
        Operand::Dense(Matrix::new(bytes, dtype, rows, cols))
    }

    /// Bytes that products read and memory holds, if those are more than what is stored: by that, others plan.
    pub(crate) fn bytes(&self) -> u64 {
        let stored = self.0.tensor.bytes();
        match self.0.tensor.view() {
            TensorData::Quantised(blocks) if !self.0.exact => stored.max(Packed::share(&blocks) as u64),
            _ => stored,
        }
    }
}
