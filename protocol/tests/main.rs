//! What crosses a wire or a disk, from outside: its bytes, what holds for every value, and that no bytes do harm.
//!
//! One program, since each has to be linked: a new file is a line here.

mod adverts;
#[expect(clippy::unwrap_used, reason = "a committed file that cannot be read fails the test")]
#[path = "fuzzing/examples.rs"]
mod examples;
mod fuzzed;
mod fuzzing;
mod messages;
#[expect(clippy::unwrap_used, reason = "a committed file that cannot be read fails the test")]
#[path = "fuzzing/mutate.rs"]
mod mutate;
mod properties;
mod wire;
