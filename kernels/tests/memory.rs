//! No file and no peer makes the crate take memory that it does not pay for: memory is counted for the whole process, so
//! these are a program of their own, and whoever counts holds [`counting::alone`].

#![expect(clippy::unwrap_used, reason = "what cannot be read or made fails the test")]

mod counting;
mod expert_bounds;
mod fuzzed;
mod fuzzing;
mod gguf_bounds;
mod gguf_writer;
mod loader_bounds;
#[path = "../../protocol/tests/fuzzing/mutate.rs"]
mod mutate;
