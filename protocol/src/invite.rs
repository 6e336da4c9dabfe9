//! Invites (`ts1…`): all a machine elsewhere needs to join a swarm.

use crate::{
    InviteId, SwarmId,
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

/// What lets a newcomer into a private swarm, for a while: for it a member gives the swarm's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ticket {
    /// Its name, by which members know it.
    pub id: InviteId,
    /// What only who has it knows.
    pub secret: Secret,
    /// When it ends (seconds since 1970).
    pub expires: u64,
}

impl Ticket {
    /// What members know of it: who knows this can tell who has the ticket, and cannot make the ticket of it.
    #[must_use]
    pub fn key(&self, swarm: SwarmId) -> TicketKey {
        let material = [&swarm.0[..], &self.id.0, &self.secret.0].concat();
        TicketKey(blake3::derive_key("tsnode 2026 invite ticket", &material))
    }
}

/// A ticket's hash.
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct TicketKey(pub [u8; 32]);

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(…)")
    }
}

/// A ticket as its issuer tells other members of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TicketNotice {
    /// Names the ticket without giving it away.
    pub id: InviteId,
    /// Hash of the ticket's secret: enough to check who comes with it, not enough to make an invite of.
    pub key: TicketKey,
    /// When it ends (seconds since 1970).
    pub expires: u64,
    /// Whether the issuer counts who comes with it, so that nobody else may let them in.
    pub counted: bool,
}

/// Swarm id, ticket, and where to find members.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Invite {
    /// The swarm that the invite leads to.
    pub swarm: SwarmId,
    /// What lets in; none for an open swarm.
    pub ticket: Option<Ticket>,
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
    /// It was made by another version, whose invites were something else.
    #[error("it was made by another version of tsnode (protocol {theirs}): ask for a new one")]
    Version {
        /// The version it was made by.
        theirs: u16,
    },
    /// The content is not an invite.
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
        let invite = match codec::decode::<Self, { 2 * limits::ADDRESSES * limits::TEXT_BYTES }>(content) {
            Err(CodecError::Version { theirs }) => return Err(InviteError::Version { theirs }),
            decoded => decoded?,
        };
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
            ticket: Some(Ticket { id: InviteId([4; 8]), secret: Secret([5; 32]), expires: 1_800_000_000 }),
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
    fn one_of_another_version_says_so() {
        let mut bytes = codec::encode(&invite());
        bytes[0] = 6;
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(&check.as_bytes()[..CHECK]);
        let text = format!("ts1{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase());
        let error = text.parse::<Invite>().unwrap_err();
        assert_eq!(error, InviteError::Version { theirs: 6 });
        assert!(error.to_string().contains("ask for a new one"));
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
