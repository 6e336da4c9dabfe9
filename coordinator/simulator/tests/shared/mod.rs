//! Traces and reference cases that others made: they lie beside the project (`../shared`) and are not part of it.

use std::path::{Path, PathBuf};

/// Where something of it lies.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name)
}

/// A file of it. A test that asks for one is ignored where nobody has it.
///
/// # Panics
/// If it cannot be read: a test that compared nothing must not pass.
pub(crate) fn read(name: &str) -> String {
    let path = path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!(
            "{}: {e}. This test compares with files that are not part of the project: leave it ignored",
            path.display()
        )
    })
}
