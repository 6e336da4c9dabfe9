//! Signed envelopes: a [`Signed`] cannot be read, and verifying is the only way to a [`Verified`].

use crate::{
    Gossip, PeerId, SwarmId,
    codec::{self, CodecError},
    limits,
};
use bincode::{Decode, Encode};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use std::marker::PhantomData;
use std::sync::Arc;

/// Keeps these signatures from meaning anything elsewhere.
const DOMAIN: &[u8] = b"tsnode envelope v1\0";

/// Something that may be put into an envelope.
pub trait Message: Encode + Decode<()> {
    /// Rules that hold beyond the encoding.
    ///
    /// # Errors
    /// Names the first rule broken.
    fn check(&self) -> Result<(), CodecError>;
}

impl Message for Gossip {
    fn check(&self) -> Result<(), CodecError> {
        Gossip::check(self)
    }
}

/// A message with its signer's signature, not yet checked.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[bincode(bounds = "")]
pub struct Signed<T> {
    signer: PeerId,
    sequence: u64,
    /// Shared, because envelopes are kept and shown to others: copies cost nothing.
    payload: Arc<[u8]>,
    signature: [u8; 64],
    of: PhantomData<T>,
}

/// A message whose signature and bounds hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<T> {
    signer: PeerId,
    sequence: u64,
    message: T,
    proof: Signed<T>,
}

/// Why an envelope was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The bytes or the message in them break a rule.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The signature does not hold for this swarm, signer, sequence and payload.
    #[error("signature of {0} does not hold")]
    Signature(PeerId),
}

impl<T: Message> Signed<T> {
    /// Signs `message` for `swarm`. `sequence` must grow with every message of one signer, also over restarts.
    #[must_use]
    pub fn seal(key: &SigningKey, swarm: SwarmId, sequence: u64, message: &T) -> Self {
        let signer = PeerId(key.verifying_key().to_bytes());
        let payload: Arc<[u8]> = codec::encode(message).into();
        let signature = key.sign(&signed_bytes(swarm, signer, sequence, &payload)).to_bytes();
        Self { signer, sequence, payload, signature, of: PhantomData }
    }

    /// The one way to the message.
    ///
    /// # Errors
    /// When the signature does not hold, or the message is malformed or out of bounds.
    pub fn verify(self, swarm: SwarmId) -> Result<Verified<T>, EnvelopeError> {
        let refused = EnvelopeError::Signature(self.signer);
        let key = VerifyingKey::from_bytes(&self.signer.0).map_err(|_| refused.clone())?;
        let bytes = signed_bytes(swarm, self.signer, self.sequence, &self.payload);
        key.verify_strict(&bytes, &Signature::from_bytes(&self.signature)).map_err(|_| refused)?;
        let message: T = codec::decode::<T, { limits::GOSSIP_BYTES }>(&self.payload)?;
        message.check()?;
        Ok(Verified { signer: self.signer, sequence: self.sequence, message, proof: self })
    }

    /// What tells this envelope from any other.
    #[must_use]
    pub fn signature(&self) -> &[u8; 64] {
        &self.signature
    }

    /// For the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// From the wire.
    ///
    /// # Errors
    /// When the bytes are too many, of another version or malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode::<Self, { limits::GOSSIP_BYTES }>(bytes)
    }
}

impl<T: Message> Verified<T> {
    /// Signs a message and trusts it: who holds the key need not check its own signature. Bounds are checked as others will.
    ///
    /// # Errors
    /// When others would refuse the message.
    pub fn seal(key: &SigningKey, swarm: SwarmId, sequence: u64, message: T) -> Result<Self, EnvelopeError> {
        message.check()?;
        let proof = Signed::seal(key, swarm, sequence, &message);
        let (bytes, limit) = (proof.payload.len(), limits::GOSSIP_BYTES);
        if bytes > limit {
            return Err(CodecError::TooLarge { bytes, limit }.into());
        }
        Ok(Self { signer: proof.signer, sequence, message, proof })
    }
}

impl<T> Verified<T> {
    /// The signed form, to send or show to others.
    pub fn proof(&self) -> &Signed<T> {
        &self.proof
    }

    /// Who said it.
    pub fn signer(&self) -> PeerId {
        self.signer
    }

    /// Its place among the signer's messages.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What was said.
    pub fn message(&self) -> &T {
        &self.message
    }

    /// What was said, and the signed form to show to others.
    pub fn into_parts(self) -> (T, Signed<T>) {
        (self.message, self.proof)
    }
}

fn signed_bytes(swarm: SwarmId, signer: PeerId, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = DOMAIN.to_vec();
    bytes.extend_from_slice(&swarm.0);
    bytes.extend_from_slice(&codec::VERSION.to_le_bytes());
    bytes.extend_from_slice(&signer.0);
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Heartbeat, gossip::Certificate};

    const SWARM: SwarmId = SwarmId([7; 16]);

    fn key(n: u8) -> SigningKey {
        SigningKey::from_bytes(&[n; 32])
    }

    fn heartbeat() -> Gossip {
        Gossip::Heartbeat(Heartbeat::default())
    }

    #[test]
    fn what_was_signed_is_what_is_read() {
        let bytes = Signed::seal(&key(1), SWARM, 5, &heartbeat()).to_bytes();
        let read = Signed::<Gossip>::from_bytes(&bytes).unwrap().verify(SWARM).unwrap();
        assert_eq!((read.sequence(), read.message()), (5, &heartbeat()));
        assert_eq!(read.signer().0, key(1).verifying_key().to_bytes());
    }

    #[test]
    fn no_bit_may_change_and_no_swarm() {
        let bytes = Signed::seal(&key(1), SWARM, 5, &heartbeat()).to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            let read = Signed::<Gossip>::from_bytes(&bent).map(|s| s.verify(SWARM));
            assert!(!matches!(read, Ok(Ok(_))), "bit {bit} went unnoticed");
        }
        assert!(Signed::<Gossip>::from_bytes(&bytes).unwrap().verify(SwarmId([8; 16])).is_err());
    }

    #[test]
    fn a_future_version_is_named() {
        let mut bytes = Signed::seal(&key(1), SWARM, 5, &heartbeat()).to_bytes();
        let theirs = codec::VERSION + 1;
        bytes[..2].copy_from_slice(&theirs.to_le_bytes());
        assert_eq!(Signed::<Gossip>::from_bytes(&bytes), Err(CodecError::Version { theirs }));
    }

    #[test]
    fn envelopes_nest() {
        let inner = Signed::seal(&key(1), SWARM, 1, &heartbeat());
        let outer = Gossip::Certificate(Certificate { plan: inner.clone(), endorsements: vec![inner] }.into());
        let read = Signed::seal(&key(2), SWARM, 1, &outer).verify(SWARM).unwrap();
        assert_eq!(read.message(), &outer);
    }
}
