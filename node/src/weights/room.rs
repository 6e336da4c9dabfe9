//! Room on a disk.

use std::io;
use std::path::Path;

/// Bytes that are free where a folder is, or will be.
pub(crate) fn free(folder: &Path) -> io::Result<u64> {
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    let about = rustix::fs::statvfs(there)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}
