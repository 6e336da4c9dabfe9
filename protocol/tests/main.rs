//! What crosses a wire or a disk, from outside: its bytes, what holds for every value, and that no bytes do harm.
//!
//! One program, since each has to be linked: a new file is a line here.

#[path = "fuzzing/examples.rs"]
mod examples;
mod fuzzed;
mod fuzzing;
#[path = "fuzzing/mutate.rs"]
mod mutate;
mod properties;
mod wire;
