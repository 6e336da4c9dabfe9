//! Bytes to values and back: bincode with a version in front, a limit on size, and nothing left over at the end.
//!
//! bincode is no longer maintained upstream, so this is the only module that names it beside the derives.

use bincode::{
    Decode, Encode, config,
    enc::{EncoderImpl, write::SizeWriter},
    error::EncodeError,
};

/// Version of everything this crate encodes. Peers speak only when theirs is equal.
pub const VERSION: u16 = 25;

/// What can be encoded and decoded: everything with bincode's derives.
pub trait Wire: Encode + Decode<()> {}
impl<T: Encode + Decode<()>> Wire for T {}

/// Why bytes were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// More bytes than the kind of message allows.
    #[error("message of {bytes} bytes is over its limit of {limit}")]
    TooLarge {
        /// Size found.
        bytes: usize,
        /// Size allowed.
        limit: usize,
    },
    /// Written by another protocol version.
    #[error("protocol version {theirs}, ours is {VERSION}")]
    Version {
        /// The version found.
        theirs: u16,
    },
    /// Not an encoding of the expected type.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// A value that decodes but breaks a rule of its type.
    #[error("invalid message: {0}")]
    Invalid(&'static str),
}

/// Encodes `value` behind the version.
///
/// # Panics
/// Never for types of this crate: bincode fails only on types it cannot represent and on I/O, and there is neither.
#[must_use]
pub fn encode<T: Encode>(value: &T) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bincode::encode_into_std_write(value, &mut bytes, config::standard())
        .expect("types of this crate always encode into memory");
    bytes
}

/// Decodes one value of at most `LIMIT` bytes that fills `bytes` exactly, and in the one way it can be encoded: nobody can
/// make other bytes of a signed message, whose signature holds and which nobody has seen.
///
/// # Errors
/// When the bytes are too many, of another version, malformed, longer than they need be, or followed by more.
pub fn decode<T: Wire, const LIMIT: usize>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > LIMIT {
        return Err(CodecError::TooLarge { bytes: bytes.len(), limit: LIMIT });
    }
    let Some((version, body)) = bytes.split_first_chunk::<2>() else {
        return Err(CodecError::Malformed("no version".into()));
    };
    let theirs = u16::from_le_bytes(*version);
    if theirs != VERSION {
        return Err(CodecError::Version { theirs });
    }
    let (value, used) = bincode::decode_from_slice(body, config::standard().with_limit::<LIMIT>())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    if used != body.len() {
        return Err(CodecError::Malformed(format!("{} bytes left over", body.len() - used)));
    }
    // A number has one shortest form, and all else has only one.
    let shortest = encoded_bytes(&value).map_err(|e| CodecError::Malformed(e.to_string()))?;
    if shortest != used {
        return Err(CodecError::Malformed(format!("{used} bytes where {shortest} do")));
    }
    Ok(value)
}

/// Bytes of a value behind the version.
fn encoded_bytes<T: Encode>(value: &T) -> Result<usize, EncodeError> {
    let mut encoder = EncoderImpl::new(SizeWriter::default(), config::standard());
    value.encode(&mut encoder)?;
    Ok(encoder.into_writer().bytes_written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gossip, Heartbeat, Signed, SwarmId, Term};
    use ed25519_dalek::SigningKey;

    #[test]
    fn a_number_is_read_in_its_shortest_form_alone() {
        let read = |body: &[u8]| decode::<Term, 64>(&[&VERSION.to_le_bytes(), body].concat());
        assert_eq!((read(&[5]), read(&[251, 251, 0])), (Ok(Term(5)), Ok(Term(251))));
        for longer in [&[251, 5, 0][..], &[252, 5, 0, 0, 0], &[252, 251, 0, 0, 0]] {
            assert!(matches!(read(longer), Err(CodecError::Malformed(_))), "{longer:?}");
        }
    }

    /// The signature covers the sequence, not how it is written: gossip would pass the same message on again and again,
    /// each time as news.
    #[test]
    fn an_envelope_cannot_be_written_otherwise() {
        let swarm = SwarmId([7; 16]);
        let bytes = Signed::seal(&SigningKey::from_bytes(&[1; 32]), swarm, 5, &Gossip::Heartbeat(Heartbeat::default()));
        let bytes = bytes.to_bytes();
        let sequence = 2 + 32;
        assert_eq!(bytes[sequence], 5);
        let longer = [&bytes[..sequence], &[251, 5, 0], &bytes[sequence + 1..]].concat();
        assert!(Signed::<Gossip>::from_bytes(&bytes).is_ok_and(|signed| signed.verify(swarm).is_ok()));
        assert!(matches!(Signed::<Gossip>::from_bytes(&longer), Err(CodecError::Malformed(_))));
    }
}
