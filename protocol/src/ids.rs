//! Names of things: peers, swarms, models, groups, plans, requests.

use bincode::{Decode, Encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};

/// A text that is not the id it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind}: {text:?}")]
pub struct ParseIdError {
    /// What was expected.
    pub kind: &'static str,
    /// What was found, cut to a readable length.
    pub text: String,
}

impl ParseIdError {
    fn new(kind: &'static str, text: &str) -> Self {
        Self { kind, text: text.chars().take(80).collect() }
    }
}

/// A peer's name: its ed25519 public key, written as libp2p writes it (`12D3KooW…`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct PeerId(pub [u8; 32]);

/// What libp2p puts in front of an ed25519 key: identity multihash of 36 bytes; protobuf key type 1; 32 key bytes.
const LIBP2P_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

impl PeerId {
    /// The multihash bytes libp2p uses for this key.
    #[must_use]
    pub fn to_libp2p_bytes(self) -> [u8; 38] {
        let mut bytes = [0; 38];
        bytes[..6].copy_from_slice(&LIBP2P_PREFIX);
        bytes[6..].copy_from_slice(&self.0);
        bytes
    }

    /// Reads libp2p's multihash bytes; `None` unless they hold an ed25519 key.
    #[must_use]
    pub fn from_libp2p_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.strip_prefix(&LIBP2P_PREFIX)?.try_into().ok().map(Self)
    }

    /// The last six characters, for tables and logs where the whole name is too long.
    #[must_use]
    pub fn short(self) -> String {
        let whole = self.to_string();
        whole[whole.len() - 6..].to_owned()
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&bs58::encode(self.to_libp2p_bytes()).into_string())
    }
}

impl FromStr for PeerId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        // Time to read base58 grows with the square of its length; an id has 52 characters.
        (text.len() <= 64)
            .then(|| bs58::decode(text).into_vec().ok())
            .flatten()
            .and_then(|bytes| Self::from_libp2p_bytes(&bytes))
            .ok_or_else(|| ParseIdError::new("peer id", text))
    }
}

macro_rules! text_form {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
text_form!(PeerId);

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!("{}{}", $prefix, data_encoding::HEXLOWER.encode(&self.0)))
            }
        }
        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix($prefix)
                    .and_then(|hex| data_encoding::HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok())
                    .and_then(|bytes| bytes.try_into().ok())
                    .map(Self)
                    .ok_or_else(|| ParseIdError::new(stringify!($name), text))
            }
        }
        text_form!($name);
    };
}

hex_id!(
    /// A swarm's name; peers of one swarm share it.
    SwarmId, 16, "sw-"
);
hex_id!(
    /// A client's request, from acceptance to its one end. Drawn at random by the gateway.
    RequestId, 16, "req-"
);
hex_id!(
    /// What a model is: a hash over configuration, tokenizer and weights (see `kernels::weights`).
    ModelId, 16, "m-"
);
hex_id!(
    /// What a group is: a hash over model and stages, so that an unchanged group keeps its name from plan to plan.
    GroupId, 8, "g-"
);
hex_id!(
    /// What a plan is: a hash over everything in it.
    PlanId, 16, "p-"
);
hex_id!(
    /// An invite, as its issuer and other members name it.
    InviteId, 8, "i-"
);
hex_id!(
    /// One life of a group's ring of streams; a leader draws a new one whenever it builds the ring again.
    RingId, 8, "ring-"
);

/// A span of time with one first coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Which coordinator of an epoch: 0 is the first by rank, each takeover adds one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u32);

/// Which life of a peer: each start of its process begins a later one. It is the upper half of the sequences its messages
/// have, so that nothing it said before a restart counts after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life(pub u32);

impl Life {
    /// The life in which a message of this sequence was said.
    #[must_use]
    pub fn of(sequence: u64) -> Self {
        Self((sequence >> 32) as u32)
    }

    /// The life after `last`, by a clock that may have been moved since (seconds since 1970).
    #[must_use]
    pub fn after(last: Option<Self>, unix_seconds: u64) -> Self {
        let by_clock = u32::try_from(unix_seconds).unwrap_or(u32::MAX);
        Self(by_clock.max(last.map_or(0, |l| l.0.saturating_add(1))))
    }

    /// Where its sequences begin.
    #[must_use]
    pub fn sequence(self) -> u64 {
        u64::from(self.0) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_id_reads_as_libp2p_writes_it() {
        // From the libp2p peer-id specification's ed25519 example key.
        let key = data_encoding::HEXLOWER
            .decode(b"1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
            .unwrap();
        let id = PeerId(key.try_into().unwrap());
        assert_eq!(id.to_string(), "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn other_texts_are_refused() {
        assert!("12D3".parse::<PeerId>().is_err());
        // Minutes of work, if it were read.
        assert!("2".repeat(8 << 20).parse::<PeerId>().is_err());
        assert!("req-00".parse::<RequestId>().is_err());
        assert!("m-zz".parse::<ModelId>().is_err());
    }

    #[test]
    fn a_life_follows_its_last_one_whatever_the_clock_says() {
        let first = Life::after(None, 1_800_000_000);
        let second = Life::after(Some(first), 1_799_996_400);
        assert!(second > first && second.sequence() > first.sequence() + u64::from(u32::MAX) - 1);
        assert_eq!(Life::of(second.sequence() + 17), second);
    }
}
