//! How the numbers of a tensor lie in its file.

use crate::{
    cpu::Dtype,
    quant::{QuantType, WordPacking},
};

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// One after the other.
    Dense(Dtype),
    /// In blocks that share scales.
    Quantised(QuantType),
}

/// How a model's matrices are stored, those that are not of 16 or 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Numbers of 8 bits with 3 of them behind the point (e4m3), and scales.
    Fp8(Fp8),
    /// Numbers of 4 bits, scales, and what number is zero.
    Int4(Int4),
}

/// Which numbers share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// Outputs and inputs of a block; without one, an output has one, or the matrix.
    pub block: Option<[usize; 2]>,
}

/// Numbers of 4 bits, eight in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int4 {
    /// Whose layout.
    pub layout: WordPacking,
    /// Inputs that share a scale; all where there is none.
    pub group: Option<usize>,
    /// Whether 8 is zero everywhere.
    pub symmetric: bool,
    /// Whether zeros are stored less one.
    pub less_one: bool,
    /// Whether a tensor says which group an input is of (`desc_act`).
    pub by_index: bool,
}
