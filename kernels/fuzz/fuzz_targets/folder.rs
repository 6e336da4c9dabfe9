//! Folders of config.json, an index and safetensors.

#![no_main]

#[path = "../../tests/fuzzing/mod.rs"]
#[allow(dead_code, reason = "each target uses a part")]
mod fuzzing;
#[path = "../../tests/gguf_writer/mod.rs"]
mod gguf_writer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::folder(bytes);
});
