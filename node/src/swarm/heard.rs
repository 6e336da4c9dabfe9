//! What was heard of every signer: old messages go no further, nor do more than any peer has to say.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    allowance::{Allowance, Purse},
    control::Calls,
};
use tsnode_protocol::{Gossip, PeerId, Verified};

/// A heartbeat a second, and bursts of adverts, plans and endorsements when the swarm changes.
const WORDS: Allowance = Allowance { per_second: 20.0, burst: 400.0 };
/// Signers remembered; those with nothing to answer for are forgotten first.
const SIGNERS: usize = 4096;

/// Why a message goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// It is not newer than the last of its kind, or a call that has come before.
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
    calls: Calls,
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
        let new = || Signer { purse: Purse::new(WORDS, now), last: BTreeMap::new(), calls: Calls::default() };
        let signer = self.signers.entry(message.signer()).or_insert_with(new);
        let (sequence, kind) = (message.sequence(), message.message().kind());
        let is_news = match message.message() {
            Gossip::Call(_) => signer.calls.note(sequence),
            _ => {
                let last = signer.last.entry(kind).or_default();
                let before = std::mem::replace(last, sequence.max(*last));
                sequence > before
            }
        };
        if !is_news {
            return Err(Excess::Old);
        }
        signer.purse.take(now).map_err(|_| Excess::TooMuch)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ed25519_dalek::SigningKey;
    use tsnode_protocol::{
        Call, Heartbeat, Signed, SwarmId,
        rollcall::{Missed, PeerTag},
    };

    fn message(sequence: u64) -> Verified<Gossip> {
        said(sequence, &Gossip::Heartbeat(Heartbeat::default()))
    }

    fn said(sequence: u64, gossip: &Gossip) -> Verified<Gossip> {
        let key = SigningKey::from_bytes(&[2; 32]);
        let swarm = SwarmId([1; 16]);
        Signed::seal(&key, swarm, sequence, gossip).verify(swarm).unwrap()
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

    #[test]
    fn a_call_that_was_overtaken_goes_on_and_once() {
        let (mut heard, now) = (Heard::new(), Duration::ZERO);
        let peers = vec![Missed { peer: PeerTag::of(PeerId([3; 32])), last: 0 }];
        let call = |sequence| said(sequence, &Gossip::Call(Call { peers: peers.clone() }));
        let passed = [9, 5, 9, 5].map(|sequence| heard.note_at(now, &call(sequence)).is_ok());
        assert_eq!(passed, [true, true, false, false]);
    }
}
