//! The hashes by which the hub names files: SHA-256 of large ones, and git's of small ones.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use data_encoding::HEXLOWER;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// What a file is called among the blobs: its hash in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobHash(String);

impl BlobHash {
    /// The hash that an ETag says. One that is no hash names nothing that could be verified.
    pub fn of_etag(etag: &str) -> Option<Self> {
        let text = etag.trim().trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        let is_hash = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then_some(Self(text))
    }

    /// Its digits.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// Hashes a file of this many bytes, as this kind of hash wants it.
    pub fn hasher(&self, bytes: u64) -> Hasher {
        if self.0.len() == 64 {
            return Hasher(Context::new(&SHA256));
        }
        // As git names what a file holds.
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(format!("blob {bytes}\0").as_bytes());
        Hasher(context)
    }

    /// Whether a file is what the hash says.
    pub fn fits(&self, path: &Path, mut read: impl FnMut(u64)) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let mut hasher = self.hasher(file.metadata()?.len());
        hasher.read(&mut file, &mut read)?;
        Ok(hasher.finish() == *self)
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A hash in the making.
pub struct Hasher(Context);

impl Hasher {
    /// Takes more of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Takes all that is left of a file.
    pub fn read(&mut self, file: &mut File, read: &mut impl FnMut(u64)) -> io::Result<()> {
        let mut block = vec![0; BLOCK];
        loop {
            match file.read(&mut block)? {
                0 => return Ok(()),
                n => {
                    self.update(&block[..n]);
                    read(n as u64);
                }
            }
        }
    }

    /// The hash of all that came.
    pub fn finish(self) -> BlobHash {
        BlobHash(HEXLOWER.encode(self.0.finish().as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_hashes_or_nothing() {
        let sha = "a".repeat(64);
        assert_eq!(BlobHash::of_etag(&format!("\"{sha}\"")).unwrap().digits(), sha);
        assert_eq!(BlobHash::of_etag(&format!("W/\"{}\"", "B".repeat(40))).unwrap().digits(), "b".repeat(40));
        for wrong in ["", "\"\"", "\"../../etc/passwd\"", "\"5d41-2\"", &"g".repeat(64)] {
            assert_eq!(BlobHash::of_etag(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn files_are_hashed_as_git_and_the_hub_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "hello\n").unwrap();
        // git hash-object, sha256sum
        let hashes = [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ];
        for hash in hashes {
            assert!(BlobHash::of_etag(hash).unwrap().fits(&path, |_| ()).unwrap());
        }
        std::fs::write(&path, "hallo\n").unwrap();
        assert!(hashes.iter().all(|hash| !BlobHash::of_etag(hash).unwrap().fits(&path, |_| ()).unwrap()));
    }
}
