//! Openings and frames: what comes over data streams.

#![no_main]

#[path = "../../tests/fuzzing/mod.rs"]
#[allow(dead_code)] // Each target uses a part.
mod fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::data(bytes);
});
