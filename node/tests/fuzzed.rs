//! The fuzz targets' bodies for a fixed number of inputs, and settings files: no file of a peer, a user or a disk does harm.

#![allow(clippy::unwrap_used)] // A story that cannot be told fails.

mod fuzzing;
#[path = "fuzzing/kept.rs"]
mod kept;
#[path = "../../protocol/tests/fuzzing/mutate.rs"]
mod mutate;

use mutate::Mutator;
use std::collections::BTreeMap;
use std::path::Path;
use tsnode::{config::Settings, invites, keys, models, store, text};

/// Inputs of each kind.
const INPUTS: usize = 3_000;
/// Memory for one input (bytes): tokenizers' caches and tables of characters, a template's steps.
const MOST: u64 = 64 << 20;

/// Reads inputs made of `examples`, of which some are as good as these are.
fn run(seed: u64, examples: &[Vec<u8>], target: impl Fn(&[u8]) -> bool) {
    let (mut mutator, mut read) = (Mutator::new(seed), 0);
    for input in 0..INPUTS {
        let bytes = mutator.next(examples);
        let took = allocation_counter::measure(|| read += usize::from(target(&bytes))).bytes_max;
        assert!(took <= MOST, "input {input} of seed {seed}, {} bytes, took {took} of {MOST}", bytes.len());
    }
    assert!((INPUTS / 50..INPUTS).contains(&read), "{read} of {INPUTS} were read: too much is changed, or too little");
}

#[test]
fn no_file_of_a_model_does_harm() {
    run(1, &fuzzing::examples(), fuzzing::texts);
}

#[test]
fn nothing_in_a_data_folder_does_harm() {
    run(3, &kept::examples(), kept::kept);
}

#[test]
fn no_settings_file_does_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let examples = [
        "threads = 2\nname = \"a\"\nhttp = \"127.0.0.1:1\"\n# \u{e9}\n",
        "kv_memory = \"2GiB\"\nmodel = \"x\"\nshape-mbit = 10.5\nshape_ms = 3\ntensor-parallel = 1\nthreads = \"4\"\n",
        "listen = \"[::1]:0\"\nkv-dtype = \"bf16\"\nlayout = \"prefill=2,decode=3\"\nallow-remote-http = true\n",
    ];
    run(2, &examples.map(|text| text.as_bytes().to_vec()), |bytes| {
        std::fs::write(&path, bytes).unwrap();
        Settings::gather(&BTreeMap::new(), |_| None, &path, true).is_ok_and(|settings| settings.node().is_ok())
    });
}

/// So that changes begin where it matters. With `TSNODE_WRITE_CORPUS=1` fuzzing begins there too.
#[test]
fn what_is_not_changed_is_read() {
    let read = |name: &str, examples: Vec<Vec<u8>>, target: fn(&[u8]) -> bool| {
        for (place, bytes) in examples.iter().enumerate() {
            assert!(target(bytes), "{name}: example {place}");
        }
        if std::env::var_os("TSNODE_WRITE_CORPUS").is_some() {
            mutate::write_corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name), &examples);
        }
    };
    read("texts", fuzzing::examples(), fuzzing::texts);
    read("kept", kept::examples(), kept::kept);
}
