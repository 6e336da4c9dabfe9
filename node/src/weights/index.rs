//! What is known of files of weights on this host: the hashes of their chunks, so that no file is hashed twice.
//!
//! All of it can be made again from the files, so it may be damaged, lost or wrong ([`Spare`]). An entry counts only with its
//! checksum, and only for the very file that it was made of.

use crate::{platform, store::spare::Spare};
use std::fs;
use std::path::{Path, PathBuf};
use tsnode_protocol::weights::{ChunkHash, HASH_BYTES, chunks};

/// Where it lies, and what follows where it is lost.
const INDEX: Spare = Spare { folder: "weights.index", name: "the index of weights", without: "files are hashed again" };
/// Bytes before the hashes of an entry: its checksum, and what tells its file from any other.
const HEAD: usize = HASH_BYTES + STAMP;
const STAMP: usize = 5 * 8;

/// The index. Where it cannot be had nothing is remembered, and nothing else is lost.
#[derive(Clone, Debug, Default)]
pub struct Index {
    db: Option<sled::Db>,
}

impl Index {
    /// The index of a data folder; it is made where there is none. What is damaged is moved aside and said.
    pub async fn open(data_dir: &Path) -> Self {
        Self { db: INDEX.open(data_dir).await }
    }

    /// One that nothing has to be looked at of, for tests.
    #[cfg(test)]
    pub(super) fn open_here(data_dir: &Path) -> Self {
        Self { db: Some(crate::store::spare::open(&data_dir.join(INDEX.folder)).unwrap()) }
    }

    /// Hashes of a file's chunks, if they are known of just this file.
    #[must_use]
    pub fn get(&self, path: &Path) -> Option<Vec<ChunkHash>> {
        let (path, stamp, bytes) = stamped(path)?;
        let entry = self.db.as_ref()?.get(key(&path)).ok()??;
        let (head, list) = entry.split_at_checked(HEAD)?;
        let is_right = head[HASH_BYTES..] == stamp && list.len() as u64 == chunks(bytes) * HASH_BYTES as u64;
        let is_whole = head[..HASH_BYTES] == checksum(&path, &entry[HASH_BYTES..]);
        let hash = |hash: &[u8]| hash.try_into().ok();
        (is_right && is_whole).then(|| list.chunks_exact(HASH_BYTES).filter_map(hash).collect())
    }

    /// Remembers them. A disk that refuses is no harm.
    pub fn set(&self, path: &Path, hashes: &[ChunkHash]) {
        let (Some(db), Some((path, stamp, _))) = (&self.db, stamped(path)) else { return };
        let rest = [&stamp, hashes.as_flattened()].concat();
        let entry = [&checksum(&path, &rest)[..], &rest].concat();
        let kept = db.insert(key(&path), entry).and_then(|_| db.flush());
        if let Err(error) = kept {
            tracing::info!(%error, "hashes of weights are not remembered");
        }
    }
}

/// Longer names than databases like.
fn key(path: &Path) -> ChunkHash {
    *blake3::hash(path.as_os_str().as_encoded_bytes()).as_bytes()
}

fn checksum(path: &Path, rest: &[u8]) -> ChunkHash {
    *blake3::Hasher::new().update(path.as_os_str().as_encoded_bytes()).update(rest).finalize().as_bytes()
}

/// A file's own path, what tells it from any other, and its size.
fn stamped(path: &Path) -> Option<(PathBuf, [u8; STAMP], u64)> {
    let path = path.canonicalize().ok()?;
    let about = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let mut stamp = [0; STAMP];
    stamp.copy_from_slice(platform::stamp(&about).map(u64::to_le_bytes).as_flattened());
    Some((path, stamp, about.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::spare;

    fn indexed() -> (tempfile::TempDir, Index, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let index = Index { db: Some(spare::open(&folder.path().join(INDEX.folder)).unwrap()) };
        let path = folder.path().join("weights");
        fs::write(&path, b"weights").unwrap();
        (folder, index, path)
    }

    #[test]
    fn what_is_known_is_known_of_that_file_alone() {
        let (folder, index, path) = indexed();
        assert_eq!(index.get(&path), None);
        index.set(&path, &[[7; 32]]);
        assert_eq!(index.get(&path), Some(vec![[7; 32]]));
        let link = folder.path().join("link");
        platform::symlink(&path, &link).unwrap();
        assert_eq!(index.get(&link), Some(vec![[7; 32]]));
        drop(index);
        let again = Index { db: Some(spare::open(&folder.path().join(INDEX.folder)).unwrap()) };
        assert_eq!(again.get(&path), Some(vec![[7; 32]]));
        // The same bytes in the same place are another file by their inode and time.
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"weights").unwrap();
        assert_eq!(again.get(&path), None);
        assert_eq!((Index::default().get(&path), again.get(&folder.path().join("none"))), (None, None));
    }

    #[test]
    fn an_entry_that_lies_counts_for_nothing() {
        let (_folder, index, path) = indexed();
        index.set(&path, &[[7; 32]]);
        let (path, ..) = stamped(&path).unwrap();
        let db = index.db.as_ref().unwrap();
        let whole = db.get(key(&path)).unwrap().unwrap();
        for at in 0..whole.len() {
            let mut other = whole.to_vec();
            other[at] ^= 1;
            db.insert(key(&path), other).unwrap();
            assert_eq!(index.get(&path), None, "byte {at}");
            db.insert(key(&path), &whole[..at]).unwrap();
            assert_eq!(index.get(&path), None, "cut at {at}");
        }
        db.insert(key(&path), whole).unwrap();
        assert_eq!(index.get(&path), Some(vec![[7; 32]]));
    }
}
