//! Maps with small keys that a search makes itself, looked up more often than anything else: hashed by a product and a
//! rotation for each word (as Firefox and rustc do), which nobody outside can aim at.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A map of what is looked up often, and never listed: its order means nothing.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// 2⁶⁴ divided by the golden ratio, odd: neighbouring numbers end up far apart.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes word by word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WordHasher(u64);

impl WordHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
}

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.add(n.into());
    }

    fn write_u16(&mut self, n: u16) {
        self.add(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.add(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.add(n as u64);
    }

    /// Maps look at the first bits and at the last: the product's last ones depend on few.
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
