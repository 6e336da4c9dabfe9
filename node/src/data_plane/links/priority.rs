//! What goes first where streams share a connection, and how far each kind may fill it.

use tsnode_protocol::stream::Opening;

/// Between two kinds: a stream's urgency moves it inside its own only.
const BAND: i32 = 256;
/// What streams of one kind may have on their way beyond what less urgent ones may (bytes).
const AHEAD: u64 = 16 << 20;

/// What a stream carries, the least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamKind {
    /// Files and probes: nobody waits for them within a step.
    Bulk,
    /// KV: a request waits for it.
    Kv,
    /// Activations: a whole batch waits for them.
    Activations,
    /// Tokens, orders and response logs: small, and somebody reads along.
    Words,
}

impl StreamKind {
    #[deny(clippy::wildcard_enum_match_arm)]
    pub fn of(opening: &Opening) -> Self {
        match opening {
            Opening::Prove(..)
            | Opening::Decode(_)
            | Opening::Prefill(_)
            | Opening::ResponseLog(_)
            | Opening::Recall(_)
            | Opening::Where
            | Opening::Meet(_)
            | Opening::Encode(_)
            | Opening::Heartbeats(_) => Self::Words,
            Opening::Ring(_) => Self::Activations,
            Opening::Kv(_) => Self::Kv,
            Opening::File { .. } | Opening::Weights(_) | Opening::Probe { .. } => Self::Bulk,
        }
    }

    /// QUIC's priority: of what waits on one connection, the highest is sent first.
    pub fn priority(self, urgency: u8) -> i32 {
        self as i32 * BAND + i32::from(urgency)
    }

    /// How far beyond the connection's send window this may go. All streams share that window, so KV that fills it would
    /// else keep tokens from even queueing behind their priority.
    pub fn ahead(self) -> u64 {
        match self {
            Self::Bulk | Self::Kv => 0,
            Self::Activations => AHEAD,
            Self::Words => 2 * AHEAD,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_before_activations_before_kv_before_files() {
        let kinds = [StreamKind::Bulk, StreamKind::Kv, StreamKind::Activations, StreamKind::Words];
        assert!(kinds.is_sorted_by(|a, b| a.priority(u8::MAX) < b.priority(0)), "urgency stays inside a kind");
        assert!(kinds.is_sorted_by(|a, b| a.ahead() <= b.ahead()));
    }
}
