//! What a data folder holds: keys, invites, notes.

#![no_main]

#[path = "../../tests/fuzzing/kept.rs"]
#[allow(dead_code)] // The target uses a part.
mod kept;

use tsnode::{
    store,
    store::{invites, keys},
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    kept::kept(bytes);
});
