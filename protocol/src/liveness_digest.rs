//! Plan flow 1: who is missed, and who is there, as peers say it to all.
//!
//! Heartbeats go to few. What everybody has to know of everybody is asked for by a [`Call`], and held against a [`LivenessDigest`].

use crate::{PeerId, codec::CodecError, limits};
use bincode::{Decode, Encode};

/// The first bytes of a peer's id: enough to tell the members of a swarm apart, in a quarter of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct PeerTag(pub [u8; 8]);

impl PeerTag {
    /// The tag of a peer: the first eight bytes of its id.
    #[must_use]
    pub fn of(peer: PeerId) -> Self {
        let mut tag = [0; 8];
        tag.copy_from_slice(&peer.0[..8]);
        Self(tag)
    }

    /// The least and the greatest id that begin so.
    #[must_use]
    pub fn range(self) -> std::ops::RangeInclusive<PeerId> {
        let filled = |with| {
            let mut id = [with; 32];
            id[..8].copy_from_slice(&self.0);
            PeerId(id)
        };
        filled(0)..=filled(u8::MAX)
    }
}

/// Peers that are to speak up, since the signer misses them, or something that they said. Who does not is taken for dead.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Call {
    /// Those who are to answer, with what the signer heard of each last.
    pub peers: Vec<Missed>,
}

/// Somebody who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Missed {
    /// The peer that is to answer.
    pub peer: PeerTag,
    /// The highest sequence that the caller has heard of it: who has heard a higher one need not wait for the answer, which may
    /// have overtaken the call.
    pub last: u64,
}

/// Who is there, by the signer's view: only ever a reason to ask them.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LivenessDigest {
    /// Who, and how much of what they said the signer has heard.
    pub present: Vec<Present>,
}

/// Somebody who is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Present {
    /// The peer that is alive.
    pub peer: PeerTag,
    /// The sum of the sequences of its last advert and of its last heartbeat that all were to hear: whose own sum is lower
    /// has missed one. None where the signer does not know.
    pub said: Option<u64>,
}

impl Call {
    /// Refuses calls for more peers than a swarm has.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        match self.peers.len() {
            0 => Err(CodecError::Invalid("a call for nobody")),
            1..=limits::PEERS => Ok(()),
            _ => Err(CodecError::Invalid("a call for too many peers")),
        }
    }
}

impl LivenessDigest {
    /// Refuses more peers than a swarm has.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.present.len() > limits::PEERS {
            return Err(CodecError::Invalid("too many peers are there"));
        }
        Ok(())
    }
}
