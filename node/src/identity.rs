//! Who this peer is: an ed25519 key in the data folder.
//!
//! `identity.key` holds the 32 seed bytes of the key, raw, and nothing else. Whoever reads it can speak as this peer,
//! so it is created readable by its owner only and refused when anyone else can read it.

use crate::{ledger::advice, plain};
use ed25519_dalek::SigningKey;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use tsnode_protocol::PeerId;

/// Name of the key's file in the data folder.
pub const KEY_FILE: &str = "identity.key";
/// Length of the key's file (bytes).
const SEED_BYTES: usize = 32;
/// Owner reads and writes.
const PRIVATE: u32 = 0o600;
/// What group and others may do.
const OTHERS: u32 = 0o077;

/// This peer's key.
#[derive(Clone)]
pub struct Identity {
    /// Signs envelopes; its public half is the peer's id.
    pub signing: SigningKey,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The disk refused.
    #[error("cannot {doing} {}: {}{}", path.display(), plain::io_error(source), advice(source))]
    Io {
        /// What was being tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The key can be read or changed by others than its owner.
    #[error("{} is open to other users (mode {mode:03o}): run `chmod 600 '{}'`", path.display(), path.display())]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds something else than a key.
    #[error(
        "{} is not a key: it has {bytes} bytes instead of {SEED_BYTES}; restore it from a copy, or remove it to become \
         a new peer",
        path.display()
    )]
    Malformed {
        /// The key's file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The system has no randomness to make a key from.
    #[error("cannot draw a key: {0}")]
    Random(String),
}

impl Identity {
    /// Reads the key in `folder`, or creates folder and key when there is none.
    ///
    /// # Errors
    /// When the key is malformed or open to others, or the disk refuses; a key that exists is never replaced.
    pub fn load_or_create(folder: &Path) -> Result<Self, IdentityError> {
        let path = folder.join(KEY_FILE);
        match File::open(&path) {
            Ok(file) => Self::read(&path, file),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Self::create(folder, &path),
            Err(source) => Err(IdentityError::Io { doing: "open", path, source }),
        }
    }

    /// The identity whose key has this seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; SEED_BYTES]) -> Self {
        Self { signing: SigningKey::from_bytes(seed) }
    }

    /// The name other peers know this one by.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        PeerId(self.signing.verifying_key().to_bytes())
    }

    /// The same key as libp2p holds keys.
    ///
    /// # Panics
    /// Never: libp2p refuses only seeds that are not 32 bytes long.
    #[must_use]
    pub fn libp2p_keypair(&self) -> libp2p::identity::Keypair {
        #[allow(clippy::expect_used)]
        libp2p::identity::Keypair::ed25519_from_bytes(self.signing.to_bytes()).expect("a seed is 32 bytes")
    }

    fn read(path: &Path, mut file: File) -> Result<Self, IdentityError> {
        let failed = |source| IdentityError::Io { doing: "read", path: path.to_owned(), source };
        let facts = file.metadata().map_err(failed)?;
        let mode = facts.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(IdentityError::Exposed { path: path.to_owned(), mode });
        }
        if facts.len() != SEED_BYTES as u64 {
            return Err(IdentityError::Malformed { path: path.to_owned(), bytes: facts.len() });
        }
        let mut seed = [0; SEED_BYTES];
        file.read_exact(&mut seed).map_err(failed)?;
        Ok(Self::from_seed(&seed))
    }

    fn create(folder: &Path, path: &Path) -> Result<Self, IdentityError> {
        let mut seed = [0; SEED_BYTES];
        getrandom::fill(&mut seed).map_err(|e| IdentityError::Random(e.to_string()))?;
        fs::create_dir_all(folder).map_err(|source| IdentityError::Io {
            doing: "create",
            path: folder.to_owned(),
            source,
        })?;
        write_whole(path, &seed).map_err(|source| IdentityError::Io {
            doing: "write",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::from_seed(&seed))
    }
}

/// Creates `path` with `bytes` such that it is never seen half-written nor readable by others.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(&draft)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| sync_folder(path));
    if written.is_err() {
        // The first error is the one worth reporting.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Waits until the disk has the file's name: a key that a power cut takes away is another peer.
fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_peer_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let nested = folder.path().join("data");
        let first = Identity::load_or_create(&nested).unwrap();
        let second = Identity::load_or_create(&nested).unwrap();
        assert_eq!(first.peer_id(), second.peer_id());
        let mode = fs::metadata(nested.join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE);
        assert_eq!(fs::read_dir(&nested).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn libp2p_knows_the_peer_by_the_same_name() {
        let identity = Identity::from_seed(&[7; 32]);
        let libp2p_id = identity.libp2p_keypair().public().to_peer_id();
        assert_eq!(libp2p_id.to_bytes(), identity.peer_id().to_libp2p_bytes());
    }

    #[test]
    fn a_key_open_to_others_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        Identity::load_or_create(folder.path()).unwrap();
        let path = folder.path().join(KEY_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refusal = Identity::load_or_create(folder.path()).err().unwrap();
        assert!(matches!(refusal, IdentityError::Exposed { mode: 0o640, .. }));
        assert!(refusal.to_string().contains("chmod 600"), "{refusal}");
    }

    #[test]
    fn a_broken_key_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEY_FILE);
        write_whole(&path, b"half a key").unwrap();
        let refusal = Identity::load_or_create(folder.path()).err().unwrap();
        assert!(matches!(refusal, IdentityError::Malformed { bytes: 10, .. }));
        assert_eq!(fs::read(&path).unwrap(), b"half a key");
    }
}
