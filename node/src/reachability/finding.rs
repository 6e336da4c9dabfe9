//! What was found, what shows it, and what to do.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing: slower, or not what was meant.
    Note,
    /// Something does not work for it.
    Fail,
}

/// What is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Another process runs with this peer's identity.
    SharedIdentity,
    /// This host has no address beyond itself.
    NoNetwork,
    /// The invite has ended, by this host's clock.
    InviteExpired,
    /// All known addresses are of IPv6, and this host has none.
    NoIpv6,
    /// No address of a member is known.
    NoAddress,
    /// Addresses that are written as no peer can call them.
    UnusableAddress,
    /// No known address answers.
    NobodyReached,
    /// This host's clock, or another's.
    WrongClock,
    /// Another version of the protocol is spoken there.
    OtherVersion,
    /// Whoever answers is of another swarm.
    OtherSwarm,
    /// The swarm is the same, and its secret is not.
    WrongSecret,
    /// Another peer answers at an address.
    OtherPeer,
    /// Small packets get through, and large ones are lost without a word.
    MtuBlackHole,
    /// TCP gets through and UDP does not.
    UdpBlocked,
    /// Something in front of a peer lets nothing in at a port.
    PeerFirewall,
    /// Something in front of this peer lets nothing in, and it is no address translation.
    OwnFirewall,
    /// This host is behind an address translation that forwards no port to it.
    NotForwarded,
    /// An address translation gives every destination another port.
    SymmetricNat,
    /// An address translation gives all destinations one port.
    ConeNat,
    /// An address translation of which only one destination has told.
    UnknownNat,
    /// The way to a peer is over another.
    Relayed,
    /// The way to a peer was opened from both sides.
    HolePunched,
}

/// One line of what was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How bad it is.
    pub state: Severity,
    /// What is behind it; none where nothing is wrong.
    pub cause: Option<Cause>,
    /// In a line.
    pub said: String,
    /// What shows it.
    pub evidence: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    /// Something that is as it should be.
    pub(super) fn fine(what: &'static str, said: impl Into<String>) -> Self {
        let (cause, evidence, remedy) = (None, String::new(), String::new());
        Self { what, state: Severity::Ok, cause, said: said.into(), evidence, remedy }
    }

    /// Something that is not.
    pub(super) fn of(what: &'static str, state: Severity, cause: Cause, said: impl Into<String>) -> Self {
        Self { state, cause: Some(cause), ..Self::fine(what, said) }
    }

    pub(super) fn shown_by(self, evidence: impl Into<String>) -> Self {
        Self { evidence: evidence.into(), ..self }
    }

    pub(super) fn mended_by(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}
