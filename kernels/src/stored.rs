//! How the numbers of a tensor lie in its file.

use crate::{cpu::Dtype, quant::QuantType};

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// One after the other.
    Dense(Dtype),
    /// In blocks that share scales.
    Quantised(QuantType),
}
