//! The first exchange on every connection: both sides prove that they are of the same swarm and know its secret.
//!
//! The transport has already proven both peer ids; the codes are keyed with the secret and bound to both ids, both
//! nonces and the side that speaks, so a code heard on one connection is worth nothing on another.

use crate::{PeerId, Secret, SwarmId, TicketKey};
use bincode::{Decode, Encode};

/// Which side opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSide {
    /// The one that opened it.
    Dialer,
    /// The one that accepted it.
    Listener,
}

/// A number used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Nonce(pub [u8; 32]);

/// A proof of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Code(pub [u8; 32]);

/// Both ends of one connection, as the transport proved them, and the nonce each drew for it.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Who opened it.
    pub dialer: PeerId,
    /// Who accepted it.
    pub listener: PeerId,
    /// The opener's nonce.
    pub dialer_nonce: Nonce,
    /// The accepter's nonce.
    pub listener_nonce: Nonce,
}

impl Ends {
    /// Those of a lifeline: nothing is proven of them but what they say, and nothing is to be had there but the place. The dialer's
    /// nonce is one that none draws, so that a code of a lifeline is worth nothing elsewhere.
    #[must_use]
    pub fn of_lifeline(dialer: PeerId, listener: PeerId, listener_nonce: Nonce) -> Self {
        Self { dialer, listener, dialer_nonce: Nonce(*b"tsnode 2026 lifeline, no nonce. "), listener_nonce }
    }
}

/// What a member proves knowledge of.
#[derive(Clone)]
pub struct Membership {
    key: [u8; 32],
}

impl Membership {
    /// For a swarm with this id and secret; an open swarm's key follows from its id alone.
    #[must_use]
    pub fn new(swarm: SwarmId, secret: Option<Secret>) -> Self {
        let mut material = swarm.0.to_vec();
        if let Some(secret) = secret {
            material.extend_from_slice(&secret.0);
        }
        Self { key: blake3::derive_key("tsnode 2026 membership proof", &material) }
    }

    /// For who comes with a ticket, and whoever lets it in.
    #[must_use]
    pub fn by_ticket(key: TicketKey) -> Self {
        Self { key: blake3::derive_key("tsnode 2026 ticket proof", &key.0) }
    }

    /// What `side` must show on the connection between `ends`.
    #[must_use]
    pub fn code(&self, side: ConnectionSide, ends: &Ends) -> Code {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(match side {
            ConnectionSide::Dialer => b"dialer",
            ConnectionSide::Listener => b"listen",
        });
        for part in [&ends.dialer.0, &ends.listener.0, &ends.dialer_nonce.0, &ends.listener_nonce.0] {
            hasher.update(part);
        }
        Code(*hasher.finalize().as_bytes())
    }

    /// Whether `shown` is what `side` must show; takes the same time wherever they differ.
    #[must_use]
    pub fn accepts(&self, side: ConnectionSide, ends: &Ends, shown: Code) -> bool {
        blake3::Hash::from(self.code(side, ends).0) == blake3::Hash::from(shown.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_holds_for_one_side_one_pair_one_secret() {
        let member = Membership::new(SwarmId([1; 16]), Some(Secret([2; 32])));
        let ends = Ends {
            dialer: PeerId([3; 32]),
            listener: PeerId([4; 32]),
            dialer_nonce: Nonce([5; 32]),
            listener_nonce: Nonce([6; 32]),
        };
        let code = member.code(ConnectionSide::Dialer, &ends);
        assert!(member.accepts(ConnectionSide::Dialer, &ends, code));
        assert!(!member.accepts(ConnectionSide::Listener, &ends, code));
        assert!(!member.accepts(ConnectionSide::Dialer, &Ends { dialer: PeerId([9; 32]), ..ends }, code));
        assert!(!member.accepts(ConnectionSide::Dialer, &Ends { listener_nonce: Nonce([9; 32]), ..ends }, code));
        let stranger = Membership::new(SwarmId([1; 16]), None);
        assert!(!stranger.accepts(ConnectionSide::Dialer, &ends, code));
    }
}
