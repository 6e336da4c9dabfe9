//! Where models came from, and on which terms, as adverts say it.

use crate::{ModelId, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// Where a peer has a model from, by its own account.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct ModelOrigin {
    /// The model that is described.
    pub model: ModelId,
    /// The hub's repository, and its commit: `org/repo@0123…`.
    pub source: String,
    /// Its licence, as the hub calls it, if it said one.
    pub licence: Option<String>,
    /// Whether its terms have to be accepted by whoever has it: known of what `tsnode` fetched from the hub, and of what came from peers
    /// that said so.
    pub is_gated: bool,
    /// Whether members who ask get its weights here: of gated repositories only where the peer's owner has said so.
    pub is_given: bool,
}

impl ModelOrigin {
    /// Whether a text can be a source or a licence: short, and nothing that a terminal obeys.
    #[must_use]
    pub fn is_plain(text: &str) -> bool {
        (1..=limits::TEXT_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// Refuses texts that are none.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        let texts = [Some(&self.source), self.licence.as_ref()];
        match texts.into_iter().flatten().all(|text| Self::is_plain(text)) {
            true => Ok(()),
            false => Err(CodecError::Invalid("origin of a model is no plain text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_refused() {
        let check = |source: &str, licence: Option<&str>| {
            let (source, licence) = (source.to_owned(), licence.map(ToOwned::to_owned));
            ModelOrigin { model: ModelId([1; 16]), source, licence, is_gated: false, is_given: true }.check().is_ok()
        };
        assert!(check("org/repo@0123", None) && check("org/repo@0123", Some("apache-2.0")));
        for wrong in ["", "a b", "a\u{1b}[2J", "a\n", "é", &"a".repeat(limits::TEXT_BYTES + 1)] {
            assert!(!check(wrong, None) && !check("org/repo", Some(wrong)), "{wrong:?}");
        }
    }
}
