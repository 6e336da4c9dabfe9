//! A token id.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// Index into a model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u32);
