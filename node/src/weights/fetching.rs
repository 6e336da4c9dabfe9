//! How far a model is that is fetched, as people see it.

use crate::hardware::memory::Size;
use serde::{Deserialize, Serialize};
use std::fmt;
use tsnode_protocol::LayerRange;

/// A model on its way here, or why none is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Its name.
    pub model: String,
    /// The layers that are wanted; none before a plan gives this peer some.
    #[serde(default)]
    pub layers: Option<LayerRange>,
    /// All that is wanted of it, by whole chunks (bytes).
    pub bytes: u64,
    /// Of that, verified and on disk (bytes).
    pub done: u64,
    /// What came over the network for it, right or wrong (bytes).
    pub fetched: u64,
    /// Peers that give it just now.
    pub holders: usize,
    /// What keeps it from coming.
    pub why: Option<String>,
}

impl fmt::Display for Fetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.why {
            return f.write_str(why);
        }
        let s = if self.holders == 1 { "" } else { "s" };
        let Self { model, bytes, done, holders, .. } = self;
        let layers = self.layers.map_or_else(String::new, |layers| format!(" (layers {layers})"));
        write!(f, "fetching {model}{layers} from {holders} peer{s}: {} of {}", Size(*done), Size(*bytes))
    }
}
