//! Which swarm a peer is in, as one line of text that every version reads.

use tsnode_protocol::{Secret, SwarmId};

/// A swarm, and what its members know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belonging {
    /// Which.
    pub swarm: SwarmId,
    /// Its secret; none of an open one.
    pub secret: Option<Secret>,
}

impl Belonging {
    /// The same in every version.
    pub(super) fn text(&self) -> String {
        let secret = self.secret.map_or_else(|| "open".to_owned(), |s| data_encoding::HEXLOWER.encode(&s.0));
        format!("{} {secret}", self.swarm)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (swarm, secret) = text.split_once(' ')?;
        let secret = match secret {
            "open" => None,
            hex => Some(Secret(data_encoding::HEXLOWER.decode(hex.as_bytes()).ok()?.try_into().ok()?)),
        };
        Some(Self { swarm: swarm.parse().ok()?, secret })
    }

    /// Until version 7 an invite was remembered: version, swarm, and a secret or none. Open swarms of those days go on, since
    /// nobody has invites to them; a private one's members have other words now.
    pub(super) fn parse_open_invite(text: &str) -> Option<Self> {
        let body = text.trim().strip_prefix("ts1")?.to_uppercase();
        let bytes = data_encoding::BASE32_NOPAD.decode(body.as_bytes()).ok()?;
        let ([_, _, swarm @ .., secret], _) = bytes.split_first_chunk::<19>()?;
        (*secret == 0).then_some(Self { swarm: SwarmId(*swarm), secret: None })
    }
}
