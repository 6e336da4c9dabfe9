//! A checksum for payloads that lie in memory: tells what was damaged between two hands.
//!
//! Who sends something wrong on purpose computes the right checksum of it, so a cryptographic one protects from nobody
//! here; and what crosses a network is authenticated packet by packet as it is. What is left are accidents in memory,
//! on a bus, and in our own code. For those CRC-64 is enough, and processors that multiply without carry compute it faster
//! than they copy.

use crc_fast::{CrcAlgorithm::Crc64Nvme, Digest};

/// A checksum that is being computed. How the bytes are cut into updates makes no difference.
#[derive(Clone)]
pub struct Checksum(Digest);

impl Default for Checksum {
    fn default() -> Self {
        Self(Digest::new(Crc64Nvme))
    }
}

impl Checksum {
    /// Goes on over `bytes`.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        Checksum::default().update(bytes).finish()
    }

    /// Both ends must agree, whatever their processors: the check value of CRC-64/NVME in the catalogue of CRCs.
    #[test]
    fn it_is_crc_64_of_nvme() {
        assert_eq!(sum(b"123456789"), 0xAE8B_1486_0A79_9888);
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
