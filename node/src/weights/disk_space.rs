//! Room on a disk.

use std::io;
use std::path::Path;

/// Bytes that are free where a folder is, or will be; as many as there can be where the system does not say.
pub(crate) fn free(folder: &Path) -> io::Result<u64> {
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    Ok(crate::platform::free_bytes(there)?.unwrap_or(u64::MAX))
}
