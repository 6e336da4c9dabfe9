//! How many connections carry a KV transfer: one, unless one core would not keep up with the link and others have nothing to do.
//!
//! A connection's packets are built and sealed by one task, and opened by one: 7.5 Gbit/s on the cores of `docs/research/kv-transfer.md`.
//! What one carries is not known apart from what the link does: a probe goes by one connection, too. A link that carried
//! [`FAST`] may well have been held back by a core; a slower one was not, and a second connection would only take its share
//! from others' traffic.

use std::num::NonZeroU8;
use tsnode_protocol::{BytesPerSecond, Link, PathKind, limits};

/// A link that one core may be too slow for: 2 Gbit/s.
pub const FAST: BytesPerSecond = BytesPerSecond(250e6);
/// What a parallel stream carries at least (bytes): with less the KV transfer is over before two are faster than one.
pub const WORTH: u64 = 2 << 20;

/// What an owner lets KV transfers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvStreams {
    /// As many as there are cores that compute nothing, where the link is fast.
    Spare(usize),
    /// So many, whatever the link.
    Fixed(NonZeroU8),
}

impl KvStreams {
    /// How many there are at most.
    #[must_use]
    pub fn most(self) -> u8 {
        let wanted = match self {
            Self::Spare(cores) => u8::try_from(cores).unwrap_or(u8::MAX),
            Self::Fixed(kv_streams) => kv_streams.get(),
        };
        wanted.clamp(1, limits::KV_STREAMS)
    }

    /// How many carry so many bytes of so many layers over a link, as far as it is known.
    #[must_use]
    pub fn of(self, link: Option<&Link>, bytes: u64, layers: u32) -> u8 {
        let most = self.most().min(u8::try_from(layers).unwrap_or(u8::MAX));
        let wanted = match self {
            Self::Fixed(_) => most,
            Self::Spare(_) => {
                let fast = link.is_some_and(|l| l.path == PathKind::Direct && l.bandwidth.0 >= FAST.0);
                if fast { most.min(u8::try_from(bytes / WORTH).unwrap_or(u8::MAX)) } else { 1 }
            }
        };
        wanted.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{PeerId, Seconds};

    fn link(mbit: f64, path: PathKind) -> Link {
        Link { to: PeerId([1; 32]), latency: Seconds(1e-4), bandwidth: BytesPerSecond(mbit * 125e3), path }
    }

    #[test]
    fn only_fast_links_and_long_kv_transfers_take_more_than_one_connection() {
        let kv_streams = |spare, link: Option<Link>, mib: u64| KvStreams::Spare(spare).of(link.as_ref(), mib << 20, 32);
        let fast = || Some(link(10_000.0, PathKind::Direct));
        assert_eq!([0, 1, 2, 3, 64].map(|spare| kv_streams(spare, fast(), 1000)), [1, 1, 2, 3, limits::KV_STREAMS]);
        assert_eq!([1, 4, 7, 100].map(|mib| kv_streams(64, fast(), mib)), [1, 2, 3, limits::KV_STREAMS], "by bytes");
        assert_eq!(kv_streams(64, Some(link(1000.0, PathKind::Direct)), 1000), 1, "one core keeps up");
        let over = PathKind::Relayed { via: PeerId([2; 32]) };
        assert_eq!([kv_streams(64, Some(link(10_000.0, over)), 1000), kv_streams(64, None, 1000)], [1, 1]);
    }

    #[test]
    fn an_owner_may_say_how_many() {
        let fixed = |n| KvStreams::Fixed(NonZeroU8::new(n).unwrap_or(NonZeroU8::MIN));
        assert_eq!([1, 2, 200].map(|n| fixed(n).of(None, 1, 32)), [1, 2, limits::KV_STREAMS]);
        assert_eq!(fixed(3).of(None, 1, 2), 2, "a parallel stream has a layer at least");
        assert_eq!(fixed(3).of(None, 1, 0), 1);
    }
}
