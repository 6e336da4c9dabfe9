//! Envelopes, gossip, invites and names: what comes over the control plane.

#![no_main]

#[path = "../../tests/fuzzing/mod.rs"]
#[allow(dead_code)] // Each target uses a part.
mod fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::control(bytes);
});
