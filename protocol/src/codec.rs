//! Bytes to values and back: bincode with a version in front, a limit on size, and nothing left over at the end.
//!
//! bincode is no longer maintained upstream, so this is the only module that names it beside the derives.

use bincode::{Decode, Encode, config};

/// Version of everything this crate encodes. Peers speak only when theirs is equal.
pub const VERSION: u16 = 5;

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
    #[allow(clippy::expect_used)]
    bincode::encode_into_std_write(value, &mut bytes, config::standard())
        .expect("types of this crate always encode into memory");
    bytes
}

/// Decodes one value of at most `LIMIT` bytes that fills `bytes` exactly.
///
/// # Errors
/// When the bytes are too many, of another version, malformed, or followed by more.
pub fn decode<T: Decode<()>, const LIMIT: usize>(bytes: &[u8]) -> Result<T, CodecError> {
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
    Ok(value)
}
