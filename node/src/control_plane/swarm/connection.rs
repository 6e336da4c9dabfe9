//! What a connection of the control plane is, whatever carries it.

use libp2p::{PeerId, core::muxing::StreamMuxerBox};
use std::time::Duration;

/// From the first packet to an admitted connection; the exchange at the door has its own, shorter limit.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// Streams one peer may have open towards us; the protocols of the control plane need about ten.
pub(super) const STREAMS: u32 = 128;

/// A connection that can open streams, and whom it leads to.
pub(super) type Connection = (PeerId, StreamMuxerBox);
