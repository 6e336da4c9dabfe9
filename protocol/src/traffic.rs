//! What a gateway is asked for, as it has been of late: part of its advert, so that all who see the same swarm plan for the same requests.

use crate::{ModelId, codec::CodecError};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// Lengths that stand for all.
pub const LENGTHS: usize = 16;
/// Longest prompt or answer stated (tokens).
pub const LONGEST: u32 = 1 << 24;
/// Most requests a second stated.
pub const MOST_A_SECOND: f64 = 1e6;
/// Highest variation stated: of a thousand requests at once, and then none for long.
pub const MOST_VARIATION: f64 = 1e3;

/// Requests for one model at one gateway, as they have been of late.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Traffic {
    /// The model that is asked for.
    pub model: ModelId,
    /// Requests a second.
    pub rate: f64,
    /// Square of the coefficient of variation of the time between them: 1 where they come independently, more in bursts.
    pub variation: f64,
    /// Lengths of prompts (tokens): each stands for a sixteenth of them, the shortest first.
    pub prompts: [u32; LENGTHS],
    /// The same of answers.
    pub answers: [u32; LENGTHS],
}

impl Traffic {
    /// Refuses what no requests are like.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if !(0.0..=MOST_A_SECOND).contains(&self.rate) {
            return Err(CodecError::Invalid("rate of requests out of range"));
        }
        if !(0.0..=MOST_VARIATION).contains(&self.variation) {
            return Err(CodecError::Invalid("variation of requests out of range"));
        }
        let are_lengths = |all: &[u32]| all.is_sorted() && all.iter().all(|n| (1..=LONGEST).contains(n));
        if !are_lengths(&self.prompts) || !are_lengths(&self.answers) {
            return Err(CodecError::Invalid("lengths of requests out of range or out of order"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_rates_are_what_requests_can_have() {
        let (model, prompts, answers) = (ModelId([1; 16]), [7; LENGTHS], [LONGEST; LENGTHS]);
        let good = Traffic { model, rate: 0.5, variation: 1.0, prompts, answers };
        assert_eq!(good.check(), Ok(()));
        for rate in [f64::NAN, -1.0, f64::INFINITY, 2.0 * MOST_A_SECOND] {
            assert!(Traffic { rate, ..good }.check().is_err(), "{rate}");
        }
        for variation in [f64::NAN, -1.0, f64::INFINITY, 2.0 * MOST_VARIATION] {
            assert!(Traffic { variation, ..good }.check().is_err(), "{variation}");
        }
        let mut falling = [7; LENGTHS];
        falling[0] = 8;
        for lengths in [[0; LENGTHS], [LONGEST + 1; LENGTHS], falling] {
            assert!(Traffic { prompts: lengths, ..good }.check().is_err(), "{lengths:?}");
            assert!(Traffic { answers: lengths, ..good }.check().is_err(), "{lengths:?}");
        }
    }
}
