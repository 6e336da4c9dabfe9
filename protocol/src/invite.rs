//! Invites (`ts1…`): all a machine elsewhere needs to join a swarm.

use crate::{
    SwarmId,
    codec::{self, CodecError},
    limits,
};
use bincode::{Decode, Encode};
use std::{fmt, str::FromStr};

/// What members of a private swarm know and others do not.
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Swarm id, secret, and where to find members.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Invite {
    /// The swarm.
    pub swarm: SwarmId,
    /// Its secret; none for an open swarm.
    pub secret: Option<Secret>,
    /// Multiaddrs of members, each ending in `/p2p/<peer id>`.
    pub addresses: Vec<String>,
}

/// Why a text is no invite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InviteError {
    /// Does not begin with `ts1`.
    #[error("an invite begins with ts1")]
    Prefix,
    /// A character or length that base32 does not have.
    #[error("not base32: a character was lost or added")]
    Base32,
    /// The check at its end does not fit: mistyped or cut.
    #[error("its checksum does not fit: it was mistyped or cut short")]
    Checksum,
    /// The content is not an invite of this version.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

const PREFIX: &str = "ts1";
const CHECK: usize = 4;

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = codec::encode(self);
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(&check.as_bytes()[..CHECK]);
        let text = data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase();
        write!(f, "{PREFIX}{text}")
    }
}

impl FromStr for Invite {
    type Err = InviteError;
    fn from_str(text: &str) -> Result<Self, InviteError> {
        let body = text.trim().strip_prefix(PREFIX).ok_or(InviteError::Prefix)?;
        if body.len() > 2 * limits::ADDRESSES * limits::TEXT_BYTES {
            return Err(InviteError::Base32);
        }
        let bytes =
            data_encoding::BASE32_NOPAD.decode(body.to_uppercase().as_bytes()).map_err(|_| InviteError::Base32)?;
        let (content, check) = bytes.split_last_chunk::<CHECK>().ok_or(InviteError::Checksum)?;
        if blake3::hash(content).as_bytes()[..CHECK] != *check {
            return Err(InviteError::Checksum);
        }
        let invite = codec::decode::<Self, { 2 * limits::ADDRESSES * limits::TEXT_BYTES }>(content)?;
        if invite.addresses.len() > limits::ADDRESSES || invite.addresses.iter().any(|a| a.len() > limits::TEXT_BYTES) {
            return Err(CodecError::Invalid("too many addresses or too long").into());
        }
        Ok(invite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invite() -> Invite {
        Invite {
            swarm: SwarmId([3; 16]),
            secret: Some(Secret([5; 32])),
            addresses: vec!["/ip4/192.0.2.1/udp/7447/quic-v1/p2p/12D3KooW".into()],
        }
    }

    #[test]
    fn survives_being_written_down() {
        let text = invite().to_string();
        assert!(text.starts_with("ts1"));
        assert_eq!(text.parse(), Ok(invite()));
        assert_eq!(format!("  {text}\n").parse(), Ok(invite()));
    }

    #[test]
    fn a_slip_of_the_pen_is_noticed() {
        let text = invite().to_string();
        assert_eq!("xs1abc".parse::<Invite>(), Err(InviteError::Prefix));
        assert!(text[..text.len() - 3].parse::<Invite>().is_err());
        let at = 20;
        let other = if &text[at..=at] == "a" { "b" } else { "a" };
        let slipped = format!("{}{other}{}", &text[..at], &text[at + 1..]);
        assert_eq!(slipped.parse::<Invite>(), Err(InviteError::Checksum));
    }
}
