//! PyTorch pickles that are imported.

#![no_main]

#[path = "../../tests/fuzzing/pickles.rs"]
#[allow(dead_code)] // The target uses a part.
mod pickles;

/// libFuzzer's hook ends the process at any panic; those that are caught are no findings, others still end it.
static HOOK: std::sync::Once = std::sync::Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
    pickles::pickles(bytes);
});
