//! Writes `kernels/tests/data/candle-products.safetensors`: what candle makes of quantised matrices, for
//! `kernels/tests/candle.rs`. Candle knows nothing of tsnode.
//!
//! ```text
//! cargo run --release --manifest-path scripts/candle_products/Cargo.toml
//! ```
//!
//! The file has rows `x`, and for each GGUF type, named as both sides name it in Rust:
//!
//! | tensor | what |
//! |---|---|
//! | `Q4K.blocks` | a matrix, quantised by candle, as GGUF stores it |
//! | `Q4K.widened` | products of `x` with the numbers that candle says the blocks are |
//! | `Q4K.quantised` | products of `x` with the blocks as candle computes them |
//!
//! Every run writes the same blocks. The last bits of products are those of the processor that candle ran on.

use candle_core::{
    Device, Module, Result, Tensor,
    quantized::{GgmlDType, QMatMul, QTensor},
    safetensors,
};
use std::collections::HashMap;

const OUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/tests/data/candle-products.safetensors");
/// Not a multiple of 16: of those, candle rounds the rows for Q8_0 by 256 instead of 32 on some processors.
const OUTPUTS: usize = 24;
/// Two blocks of the larger types.
const COLUMNS: usize = 512;
const ROWS: usize = 3;
/// How many times larger the few large numbers are.
const LARGE: f32 = 6.0;
const KINDS: [GgmlDType; 10] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

fn main() -> Result<()> {
    let mut draw = Draw(5);
    let x = draw.tensor(ROWS, COLUMNS, 1.0)?;
    let w = draw.tensor(OUTPUTS, COLUMNS, 0.05)?;
    let mut tensors = HashMap::from([("x".to_owned(), x.clone())]);
    for kind in KINDS {
        let quantised = QTensor::quantize(&w, kind)?;
        let blocks = quantised.data()?.into_owned();
        let widened = x.matmul(&quantised.dequantize(&Device::Cpu)?.t()?)?;
        let product = QMatMul::from_qtensor(quantised)?.forward(&x)?;
        let len = blocks.len();
        tensors.insert(format!("{kind:?}.blocks"), Tensor::from_vec(blocks, len, &Device::Cpu)?);
        tensors.insert(format!("{kind:?}.widened"), widened);
        tensors.insert(format!("{kind:?}.quantised"), product);
    }
    safetensors::save(&tensors, OUT)
}

/// Knuth's linear congruential generator.
struct Draw(u64);

impl Draw {
    fn tensor(&mut self, rows: usize, cols: usize, spread: f32) -> Result<Tensor> {
        let numbers = (0..rows * cols).map(|_| spread * self.number()).collect();
        Tensor::from_vec(numbers, (rows, cols), &Device::Cpu)
    }

    /// Close to a normal number of spread 1, but one in 128 is larger.
    fn number(&mut self) -> f32 {
        let normal = (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0;
        if self.uniform() < 1.0 / 128.0 { LARGE * normal } else { normal }
    }

    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}
