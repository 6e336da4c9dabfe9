//! What was heard of every signer: old messages go no further, nor do more than any peer has to say.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    control::Calls,
    rate_limit::{RateLimit, TokenBucket},
};
use tsnode_protocol::{Gossip, PeerId, Verified};

/// A heartbeat a second, and bursts of adverts, plans and endorsements when the swarm changes.
const WORDS: RateLimit = RateLimit { per_second: 20.0, burst: 400.0 };
/// Honest neighbours pass on what they heard a few seconds ago: gossipsub keeps five of its beats, and a newcomer asks for
/// them after it has heard what came later. What a signer overtook longer ago than this nobody has to pass on.
const HISTORY: Duration = Duration::from_secs(15);
/// Signers remembered; those with nothing to answer for are forgotten first.
const SIGNERS: usize = 4096;

/// Why a message goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// It is not newer than the last of its kind, or a call that has come before; nobody is to blame.
    Late,
    /// The same, and its signer had said what came later for a while.
    Old,
    /// Its signer says too much.
    TooMuch,
}

/// All signers.
#[derive(Debug)]
pub(super) struct HeardSigners {
    started: Instant,
    signers: BTreeMap<PeerId, Signer>,
}

#[derive(Debug)]
struct Signer {
    bucket: TokenBucket,
    said: BTreeMap<&'static str, SignerSequences>,
    calls: Calls,
}

/// Sequences of one kind.
#[derive(Debug, Default)]
struct SignerSequences {
    last: u64,
    /// The last one, as it was when [`HISTORY`] was last over, and the time before that.
    settled: [u64; 2],
    turned: Duration,
}

impl SignerSequences {
    fn turn(&mut self, now: Duration) {
        if now >= self.turned + HISTORY {
            self.settled = [self.last, self.settled[0]];
            self.turned = now;
        }
    }

    fn excess(&self, sequence: u64) -> Excess {
        if sequence <= self.settled[1] { Excess::Old } else { Excess::Late }
    }
}

impl HeardSigners {
    pub fn new() -> Self {
        Self { started: Instant::now(), signers: BTreeMap::new() }
    }

    /// Whether something that this peer signed for this swarm has come, of late.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.signers.contains_key(&peer)
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
            self.signers.retain(|_, s| !s.bucket.is_full(now));
        }
        let new = || Signer { bucket: TokenBucket::new(WORDS, now), said: BTreeMap::new(), calls: Calls::default() };
        let signer = self.signers.entry(message.signer()).or_insert_with(new);
        let (sequence, kind) = (message.sequence(), message.message().kind());
        let said = signer.said.entry(kind).or_default();
        said.turn(now);
        let is_news = match message.message() {
            Gossip::Call(_) => signer.calls.note(sequence),
            _ => sequence > said.last,
        };
        if !is_news {
            return Err(said.excess(sequence));
        }
        said.last = sequence.max(said.last);
        signer.bucket.take(now).map_err(|_| Excess::TooMuch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::SigningKey;
    use tsnode_protocol::{
        Call, Heartbeat, Signed, SwarmId,
        liveness_digest::{Missed, PeerTag},
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
        let (mut heard, now) = (HeardSigners::new(), Duration::ZERO);
        assert_eq!(heard.note_at(now, &message(5)), Ok(()));
        assert_eq!(heard.note_at(now, &message(5)), Err(Excess::Late));
        assert_eq!(heard.note_at(now, &message(4)), Err(Excess::Late));
        let passed = (6..1006).filter(|n| heard.note_at(now, &message(*n)).is_ok()).count();
        assert_eq!(passed, 399);
        assert_eq!(heard.note_at(now, &message(2000)), Err(Excess::TooMuch));
        assert_eq!(heard.note_at(Duration::from_secs(1), &message(2001)), Ok(()));
    }

    #[test]
    fn who_passes_on_what_was_just_said_is_not_to_blame_and_who_digs_it_out_later_is() {
        let mut heard = HeardSigners::new();
        let mut note = |second: u64, of: u64| heard.note_at(Duration::from_secs(second), &message(of));
        // A message a second, with the second for its sequence; the listener starts after 20.
        for second in 20..120 {
            assert_eq!(note(second, second), Ok(()));
            assert_eq!(note(second, second - 14), Err(Excess::Late), "after {second} s");
            if second >= 50 {
                assert_eq!(note(second, second - 30), Err(Excess::Old), "after {second} s");
            }
        }
    }

    #[test]
    fn a_call_that_was_overtaken_goes_on_and_once() {
        let (mut heard, now) = (HeardSigners::new(), Duration::ZERO);
        let peers = vec![Missed { peer: PeerTag::of(PeerId([3; 32])), last: 0 }];
        let call = |sequence| said(sequence, &Gossip::Call(Call { peers: peers.clone() }));
        let passed = [9, 5, 9, 5].map(|sequence| heard.note_at(now, &call(sequence)).is_ok());
        assert_eq!(passed, [true, true, false, false]);
    }
}
