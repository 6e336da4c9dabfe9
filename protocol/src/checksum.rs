//! A checksum for payloads that lie in memory: tells what was damaged between two hands.
//!
//! Who sends something wrong on purpose computes the right checksum of it, so a cryptographic one protects from nobody
//! here; and what crosses a network is authenticated packet by packet as it is. What is left are accidents in memory,
//! on a bus, and in our own code. For those XXH3 is enough, at a fraction of what BLAKE3 takes.

use xxhash_rust::xxh3::Xxh3;

/// A checksum that is being computed. How the bytes are cut into updates makes no difference.
#[derive(Clone, Default)]
pub struct Checksum(Xxh3);

impl Checksum {
    /// Goes on over `bytes`.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        Checksum::default().update(bytes).finish()
    }

    /// Both ends must agree: XXH3 of nothing is what its specification says.
    #[test]
    fn it_is_xxh3() {
        assert_eq!(sum(b""), 0x2D06_8005_38D3_94C2);
    }

    #[test]
    fn it_is_the_same_however_the_bytes_come() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * i / 7) as u8).collect();
        for cut in [1, 7, 63, 64, 65, 500] {
            let mut pieces = Checksum::default();
            bytes.chunks(cut).for_each(|piece| {
                pieces.update(piece);
            });
            assert_eq!(pieces.finish(), sum(&bytes), "{cut}");
        }
        assert_ne!(sum(&[0; 100]), sum(&[0; 101]));
    }
}
