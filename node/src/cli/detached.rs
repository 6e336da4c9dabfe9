//! The testnet that runs detached in the usual folder.

use crate::store::folders::xdg;
use std::path::PathBuf;
use tsnode_testnet::{PeerInfo, TestnetState};

/// Where its state lies unless another folder is named.
pub(super) fn usual_folder() -> PathBuf {
    xdg("XDG_STATE_HOME", ".local/state").join("tsnode/testnet")
}

/// A peer of it, if one runs.
pub(super) fn running() -> Option<PeerInfo> {
    TestnetState::read(&usual_folder()).ok()?.alive().next().cloned()
}
