//! The fuzz targets' bodies for a fixed number of inputs, within memory: no file and no peer costs more than it sends.

use crate::counting::{MemoryMeter, alone};
use crate::fuzzing;
use crate::mutate::{self, FuzzInput, Mutator};
use std::path::Path;

/// What is done with an input; whether something was in it.
type FuzzTarget = fn(&[u8]) -> bool;

/// Bytes of memory that a byte of an input may ask for: lists, sets and small files of what is in it; orders are two bytes
/// for a step's buffers.
const PER_BYTE: usize = 256;
/// Bytes that need no input: the engine's pages and buffers, errors' texts, the model that orders are for.
const FREE: usize = 4 << 20;

/// Reads `inputs` inputs made of `examples`, of which some are as good as these are.
fn run(seed: u64, inputs: usize, examples: &[Vec<u8>], target: FuzzTarget) {
    let _alone = alone();
    let seed = mutate::seed(seed);
    let mut mutator = Mutator::new(seed);
    let mut read = 0;
    for input in 0..inputs {
        let bytes = mutator.next(examples);
        let _tried = FuzzInput { seed, input, bytes: &bytes };
        let meter = MemoryMeter::start();
        read += usize::from(target(&bytes));
        let (took, most) = (meter.most(), FREE + PER_BYTE * bytes.len());
        assert!(took <= most, "input {input} of seed {seed}, {} bytes, took {took} of {most}", bytes.len());
    }
    assert!((inputs / 50..inputs).contains(&read), "{read} of {inputs} were read: too much is changed, or too little");
}

#[test]
fn no_gguf_file_does_harm() {
    run(1, 5_000, &fuzzing::tiny::ggufs(), fuzzing::gguf);
}

#[test]
fn no_folder_does_harm() {
    run(2, 5_000, &fuzzing::tiny::folders(), fuzzing::folder);
}

#[test]
fn no_order_does_harm() {
    run(3, 10_000, &fuzzing::orders::examples(), fuzzing::engine);
}

/// So that changes begin where it matters. With `TSNODE_WRITE_CORPUS=1` fuzzing begins there too.
#[test]
fn what_is_not_changed_is_read() {
    let _alone = alone();
    let targets: [(_, _, FuzzTarget); 3] = [
        ("gguf", fuzzing::tiny::ggufs(), fuzzing::gguf),
        ("folder", fuzzing::tiny::folders(), fuzzing::folder),
        ("engine", fuzzing::orders::examples(), fuzzing::engine),
    ];
    for (name, examples, target) in targets {
        assert!(examples.iter().all(|bytes| target(bytes)), "{name}");
        if std::env::var_os("TSNODE_WRITE_CORPUS").is_some() {
            mutate::write_corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name), &examples);
        }
    }
}
