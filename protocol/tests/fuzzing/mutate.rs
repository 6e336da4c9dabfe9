//! Bytes that are almost right: examples, changed as a broken or lying sender would change them. A seed says how.

use std::path::Path;

/// Writes examples into a folder, which is where `cargo fuzz` begins.
pub fn write_corpus(folder: &Path, examples: &[Vec<u8>]) {
    std::fs::create_dir_all(folder).unwrap();
    for (place, bytes) in examples.iter().enumerate() {
        std::fs::write(folder.join(format!("example-{place}")), bytes).unwrap();
    }
}

/// The seed of a test's inputs: its own, or another one that `TSNODE_SEED` says.
pub fn seed(own: u64) -> u64 {
    std::env::var("TSNODE_SEED").map_or(own, |seed| seed.parse().unwrap())
}

/// An input that is being read. Where its target panics it is written down, so that `cargo fuzz run` or a test reads it again.
pub struct FuzzInput<'a> {
    /// What made it.
    pub seed: u64,
    /// How many were made before it.
    pub input: usize,
    /// It.
    pub bytes: &'a [u8],
}

impl Drop for FuzzInput<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, input, bytes } = &*self;
            let path = std::env::temp_dir().join(format!("tsnode-input-{input}-of-seed-{seed}"));
            let kept = std::fs::write(&path, bytes);
            println!("input {input} of seed {seed}, {} bytes: {} ({kept:?})", bytes.len(), path.display());
        }
    }
}

/// Numbers that break arithmetic which is not careful, in bytes that also encode large numbers.
const ODD: [u8; 10] = [0, 1, 2, 0x7f, 0x80, 250, 251, 252, 253, 0xff];

/// Changes examples, the same way for the same seed.
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A number below `sides`, which is not 0.
    pub fn rng(&mut self, sides: usize) -> usize {
        // Knuth's constants; the upper bits are the better ones.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % sides
    }

    fn byte(&mut self) -> u8 {
        self.rng(256) as u8
    }

    /// One of `examples` with one to four changes, or noise.
    pub fn next(&mut self, examples: &[Vec<u8>]) -> Vec<u8> {
        if self.rng(16) == 0 {
            let len = self.rng(300);
            return (0..len).map(|_| self.byte()).collect();
        }
        let mut bytes = examples[self.rng(examples.len())].clone();
        for _ in 0..=self.rng(4) {
            let other = &examples[self.rng(examples.len())];
            self.change(&mut bytes, other);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let at = self.rng(bytes.len());
        let until = bytes.len().min(at + 1 + self.rng(16));
        match self.rng(8) {
            0 => bytes[at] ^= 1 << self.rng(8),
            1 => bytes[at] = self.byte(),
            // Most lengths and counts are one byte, or a byte that says how many follow.
            2 => bytes[at] = ODD[self.rng(ODD.len())],
            3 => {
                let odd = ODD[self.rng(ODD.len())];
                bytes[at..until].fill(odd);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..until)),
            6 => {
                let again = bytes[at..until].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let from = self.rng(other.len().max(1)).min(other.len());
                let to = other.len().min(from + 1 + self.rng(64));
                bytes.splice(at..until, other[from..to].iter().copied());
            }
        }
    }
}
