//! What was heard of every signer: old messages go no further, nor do more than any peer has to say.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_coordinator::allowance::{Allowance, Purse};
use tsnode_protocol::{Gossip, PeerId, Verified};

/// A heartbeat a second, and bursts of adverts, plans and endorsements when the swarm changes.
const WORDS: Allowance = Allowance { per_second: 20.0, burst: 400.0 };
/// Signers remembered; those with nothing to answer for are forgotten first.
const SIGNERS: usize = 4096;

/// Why a message goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// It is not newer than the last of its kind.
    Old,
    /// Its signer says too much.
    TooMuch,
}

/// All signers.
#[derive(Debug)]
pub(super) struct Heard {
    started: Instant,
    signers: BTreeMap<PeerId, Signer>,
}

#[derive(Debug)]
struct Signer {
    purse: Purse,
    last: BTreeMap<&'static str, u64>,
}

impl Heard {
    pub fn new() -> Self {
        Self { started: Instant::now(), signers: BTreeMap::new() }
    }

    /// Takes note of a message, if it is news.
    ///
    /// # Errors
    /// Says why it is none.
    pub fn note(&mut self, message: &Verified<Gossip>) -> Result<(), Excess> {
        self.note_at(self.started.elapsed(), message)
    }

    fn note_at(&mut self, now: Duration, message: &Verified<Gossip>) -> Result<(), Excess> {
        if self.signers.len() >= SIGNERS && !self.signers.contains_key(&message.signer()) {
            self.signers.retain(|_, s| !s.purse.is_full(now));
        }
        let new = || Signer { purse: Purse::new(WORDS, now), last: BTreeMap::new() };
        let signer = self.signers.entry(message.signer()).or_insert_with(new);
        let last = signer.last.entry(message.message().kind()).or_default();
        if message.sequence() <= *last {
            return Err(Excess::Old);
        }
        *last = message.sequence();
        signer.purse.take(now).map_err(|_| Excess::TooMuch)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ed25519_dalek::SigningKey;
    use tsnode_protocol::{Heartbeat, Signed, SwarmId};

    fn message(sequence: u64) -> Verified<Gossip> {
        let key = SigningKey::from_bytes(&[2; 32]);
        let swarm = SwarmId([1; 16]);
        Signed::seal(&key, swarm, sequence, &Gossip::Heartbeat(Heartbeat::default())).verify(swarm).unwrap()
    }

    #[test]
    fn what_is_old_and_what_is_too_much_goes_no_further() {
        let (mut heard, now) = (Heard::new(), Duration::ZERO);
        assert_eq!(heard.note_at(now, &message(5)), Ok(()));
        assert_eq!(heard.note_at(now, &message(5)), Err(Excess::Old));
        assert_eq!(heard.note_at(now, &message(4)), Err(Excess::Old));
        let passed = (6..1006).filter(|n| heard.note_at(now, &message(*n)).is_ok()).count();
        assert_eq!(passed, 399);
        assert_eq!(heard.note_at(now, &message(2000)), Err(Excess::TooMuch));
        assert_eq!(heard.note_at(Duration::from_secs(1), &message(2001)), Ok(()));
    }
}
