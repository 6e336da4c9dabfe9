//! A model's small files, and clusters written down.

#![no_main]

#[path = "../../tests/fuzzing/mod.rs"]
#[allow(dead_code)] // The target uses a part.
mod fuzzing;

use tsnode::{data_plane::models, text};

/// libFuzzer's hook ends the process at any panic; those that are caught are no findings, others still end it.
static HOOK: std::sync::Once = std::sync::Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
    fuzzing::texts(bytes);
});
