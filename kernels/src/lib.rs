//! What computes: devices, kernels, models, weights, KV pages, KV packed for links, sampling.
//!
//! Nothing here knows that a network exists. The way in is [`engine::Engine`]: it holds stages of models and the KV of
//! sequences, and moves batches through them. Every floating-point sum has one order, whatever the batch, the chunk,
//! the cut into stages or the processor (`docs/design/arithmetic.md`): results are the same to the bit.

pub mod config;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod engine;
pub mod environment;
pub mod eval;
mod finite;
pub mod gguf;
pub mod gpu_check;
mod json;
mod linear;
pub mod load;
pub mod memory;
mod models;
pub mod pages;
pub mod probe;
pub mod profile;
pub mod quant;
mod ranks;
pub mod rope;
pub mod sampling;
pub mod source;
pub mod speed;
pub mod stored;
pub mod tanh;
pub mod weights;
pub mod wire;
