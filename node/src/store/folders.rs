//! Where a user's files lie, by the XDG base directories.

use crate::platform::HOME;
use std::path::PathBuf;

/// A folder of the XDG specification.
#[must_use]
pub fn xdg(variable: &str, below_home: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    named.unwrap_or_else(|| PathBuf::from(std::env::var_os(HOME).unwrap_or_else(|| "/".into())).join(below_home))
}
