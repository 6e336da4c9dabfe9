//! Plan flow 2: sealing what this peer says, and judging what others say before it is passed on.

use ed25519_dalek::SigningKey;
use libp2p::gossipsub::{IdentTopic, Message, MessageId};
use std::sync::atomic::{AtomicU64, Ordering};
use tsnode_protocol::{Gossip, Life, PeerId, Signed, SwarmId, Verified, envelope::EnvelopeError};

/// The one topic of a swarm.
pub(super) fn topic(swarm: SwarmId) -> IdentTopic {
    IdentTopic::new(format!("tsnode/{swarm}/gossip/1"))
}

/// A message's name is the hash of its content: envelopes are signed, so nobody else's message can have it.
pub(super) fn message_id(message: &Message) -> MessageId {
    MessageId::from(blake3::hash(&message.data).as_bytes().to_vec())
}

/// Why a message goes no further.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessageRefusal {
    /// The neighbour that passed it on is not to blame.
    Ignore(String),
    /// The neighbour should have refused it itself.
    Reject(String),
}

/// Judges the bytes of one message of `swarm`, heard by `own`: what passes goes to the control machine and onwards.
pub(super) fn judge(bytes: &[u8], swarm: SwarmId, own: PeerId) -> Result<Verified<Gossip>, MessageRefusal> {
    let verified = Signed::from_bytes(bytes).map_err(EnvelopeError::from).and_then(|signed| signed.verify(swarm));
    match verified {
        // An echo, or what we said before a restart.
        Ok(message) if message.signer() == own => Err(MessageRefusal::Ignore("our own message".into())),
        Ok(message) => Ok(message),
        Err(error) => Err(MessageRefusal::Reject(error.to_string())),
    }
}

/// Signs this peer's messages with a sequence that grows.
pub(super) struct Sealer {
    key: SigningKey,
    swarm: SwarmId,
    next: AtomicU64,
}

impl Sealer {
    /// The sequence starts with the process's life, so that it goes on growing over restarts, whatever the clock does.
    pub(super) fn new(key: SigningKey, swarm: SwarmId, life: Life) -> Self {
        Self { key, swarm, next: AtomicU64::new(life.sequence() + 1) }
    }

    /// The sealed message as others will read it, and its bytes.
    ///
    /// # Errors
    /// When others would refuse it.
    pub(super) fn seal(&self, message: &Gossip) -> Result<(Verified<Gossip>, Vec<u8>), EnvelopeError> {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        let sealed = Verified::seal(&self.key, self.swarm, sequence, message.clone())?;
        let bytes = sealed.proof().to_bytes();
        Ok((sealed, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{Heartbeat, limits};

    const SWARM: SwarmId = SwarmId([1; 16]);
    const LISTENER: PeerId = PeerId([0; 32]);

    fn sealer(swarm: SwarmId) -> Sealer {
        Sealer::new(SigningKey::from_bytes(&[2; 32]), swarm, Life(7))
    }

    fn heartbeat() -> Gossip {
        Gossip::Heartbeat(Heartbeat::default())
    }

    #[test]
    fn what_is_sealed_is_accepted_with_a_growing_sequence() {
        let sealer = sealer(SWARM);
        let (first, bytes) = sealer.seal(&heartbeat()).unwrap();
        let (second, _) = sealer.seal(&heartbeat()).unwrap();
        assert!(second.sequence() > first.sequence());
        assert_eq!(judge(&bytes, SWARM, LISTENER), Ok(first));
    }

    #[test]
    fn our_own_words_are_not_news() {
        let (message, bytes) = sealer(SWARM).seal(&heartbeat()).unwrap();
        assert!(matches!(judge(&bytes, SWARM, message.signer()), Err(MessageRefusal::Ignore(_))));
    }

    #[test]
    fn garbage_oversize_and_other_swarms_are_blamed_on_the_neighbour() {
        let (_, foreign) = sealer(SwarmId([9; 16])).seal(&heartbeat()).unwrap();
        for bytes in [b"garbage".to_vec(), vec![1; limits::GOSSIP_BYTES + 1], foreign] {
            assert!(matches!(judge(&bytes, SWARM, LISTENER), Err(MessageRefusal::Reject(_))));
        }
    }

    #[test]
    fn another_version_is_named() {
        let (_, mut bytes) = sealer(SWARM).seal(&heartbeat()).unwrap();
        let ours = tsnode_protocol::codec::VERSION;
        let theirs = ours + 1;
        bytes[..2].copy_from_slice(&theirs.to_le_bytes());
        let refusal = judge(&bytes, SWARM, LISTENER);
        assert_eq!(refusal, Err(MessageRefusal::Reject(format!("protocol version {theirs}, ours is {ours}"))));
    }
}
