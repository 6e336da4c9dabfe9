//! What the crate does, from outside: models, files, pages and steps against references and against themselves.
//!
//! One program, since each has to be linked: a new file is a line here. What counts its process's memory is `memory.rs`.

#![expect(clippy::unwrap_used, reason = "what cannot be read or made fails the test")]

mod beside;
mod candle;
mod coded;
mod device_pool;
mod fake_quantised;
mod finite;
mod folders;
mod gguf;
mod gguf_writer;
mod gptoss;
mod perplexity;
mod quant;
mod ranks;
mod reference;
mod sharing;
mod tap;
mod two_models;
mod widened;
mod within;
