//! Dense matrices as they are stored.

use half::{bf16, f16};

/// How numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Stores numbers in `out`, as many as fit.
    pub(super) fn put(self, numbers: &[f32], out: &mut [u8]) {
        match self {
            Self::F32 => out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, x)| *out = x.to_le_bytes()),
            Self::F16 => {
                let each = out.as_chunks_mut().0.iter_mut().zip(numbers);
                each.for_each(|(out, x)| *out = f16::from_f32(*x).to_le_bytes());
            }
            Self::Bf16 => {
                let each = out.as_chunks_mut().0.iter_mut().zip(numbers);
                each.for_each(|(out, x)| *out = bf16::from_f32(*x).to_le_bytes());
            }
        }
    }

    /// The number at `index` of `bytes`, widened.
    ///
    /// # Panics
    /// When `bytes` ends before it.
    #[must_use]
    pub fn get(self, bytes: &[u8], index: usize) -> f32 {
        let at = index * self.bytes();
        match self {
            Self::F32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            Self::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
            Self::Bf16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        }
    }
}

/// A row-major matrix as it lies in a file or a page; its bytes need no alignment.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: Dtype,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl<'a> Matrix<'a> {
    /// A view of `bytes` as `rows` × `cols` numbers.
    ///
    /// # Panics
    /// When `bytes` is not exactly that long; weights and pages check sizes where they are made.
    #[must_use]
    pub fn new(bytes: &'a [u8], dtype: Dtype, rows: usize, cols: usize) -> Self {
        assert_eq!(bytes.len(), rows * cols * dtype.bytes(), "matrix of {rows} x {cols} {dtype:?}");
        Self { bytes, dtype, rows, cols }
    }

    /// All its bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How its numbers are stored.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows `from..to`.
    #[must_use]
    pub fn slice(&self, from: usize, to: usize) -> Self {
        let row = self.cols * self.dtype.bytes();
        Self { bytes: &self.bytes[from * row..to * row], rows: to - from, ..*self }
    }

    /// Writes row `index`, widened.
    pub fn widen_row(&self, index: usize, out: &mut [f32]) {
        let row = self.slice(index, index + 1);
        for (i, out) in out.iter_mut().enumerate().take(self.cols) {
            *out = self.dtype.get(row.bytes, i);
        }
    }
}
