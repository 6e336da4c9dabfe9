//! The fuzz targets' bodies for a fixed number of inputs, within memory: no bytes of a peer cost more than their limit says.

use crate::examples::examples;
use crate::fuzzing::{self, CONTROL, DATA};
use crate::mutate::{self, FuzzInput, Mutator};
use std::path::Path;
use tsnode_protocol::limits;

/// Inputs for each target.
const INPUTS: u64 = 20_000;
/// Memory for one input, beside what its own bytes may ask for: a sealed copy and its check, texts of errors.
const FREE: u64 = 64 << 10;
/// Copies of a message at any one time: as read, as encoded, as sealed, as signed, with a bit changed.
const COPIES: u64 = 8;

/// Reads `INPUTS` inputs made of `examples`; each within `limit` bytes of what a message claims, and copies of itself.
fn run(seed: u64, examples: &[Vec<u8>], target: fn(&[u8]) -> bool, limit: usize) {
    let seed = mutate::seed(seed);
    let (mut mutator, mut read) = (Mutator::new(seed), 0);
    for input in 0..INPUTS {
        let bytes = mutator.next(examples);
        let _tried = FuzzInput { seed, input: input as usize, bytes: &bytes };
        let took = allocation_counter::measure(|| read += u64::from(target(&bytes))).bytes_max;
        let most = FREE + COPIES * bytes.len() as u64 + limit as u64;
        assert!(took <= most, "input {input} of seed {seed}, {} bytes, took {took} of {most}", bytes.len());
    }
    assert!((INPUTS / 50..INPUTS).contains(&read), "{read} of {INPUTS} were read: too much is changed, or too little");
}

#[test]
fn nothing_said_on_the_control_plane_does_harm() {
    run(1, &examples().0, fuzzing::control, limits::GOSSIP_BYTES);
}

#[test]
fn nothing_said_on_a_data_stream_does_harm() {
    run(2, &examples().1, fuzzing::data, limits::FRAME_BYTES);
}

/// So that changes begin where it matters. With `TSNODE_WRITE_CORPUS=1` fuzzing begins there too.
#[test]
fn what_is_not_changed_is_read() {
    let (control, data) = examples();
    for bytes in &control {
        assert!(fuzzing::control(bytes), "as {}: {bytes:?}", CONTROL[usize::from(bytes[0])].0);
    }
    for bytes in &data {
        assert!(fuzzing::data(bytes), "as {}: {bytes:?}", DATA[usize::from(bytes[0])].0);
    }
    for (target, readings, examples) in [("control", &CONTROL[..], &control), ("data", &DATA[..], &data)] {
        for (place, (name, _)) in readings.iter().enumerate() {
            assert!(examples.iter().any(|bytes| usize::from(bytes[0]) == place), "no example for {name}");
        }
        if std::env::var_os("TSNODE_WRITE_CORPUS").is_some() {
            mutate::write_corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target), examples);
        }
    }
}
