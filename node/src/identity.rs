//! This peer's key: an ed25519 seed in the data folder, readable by its owner alone.

use ed25519_dalek::SigningKey;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tsnode_protocol::PeerId;

/// Name of the file: 64 hexadecimal digits and a newline.
pub const FILE: &str = "identity.key";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Others can read it.
    #[error("{path}: readable by others (mode {mode:o}); run: chmod 600 {path}")]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It holds something else.
    #[error("{path}: not an identity (64 hexadecimal digits); restore it, or remove it to become a new peer")]
    Malformed {
        /// Which.
        path: PathBuf,
    },
}

/// Who this peer is.
#[derive(Clone)]
pub struct Identity {
    key: SigningKey,
}

impl Identity {
    /// A new one.
    #[must_use]
    pub fn generate() -> Self {
        Self { key: SigningKey::from_bytes(&crate::random_bytes()) }
    }

    /// The one in `folder`, made if there is none.
    ///
    /// # Errors
    /// When it cannot be read or written, is readable by others, or is malformed.
    pub fn open(folder: &Path) -> Result<Self, IdentityError> {
        let path = folder.join(FILE);
        if !path.exists() {
            let new = Self::generate();
            new.write(&path).map_err(|error| IdentityError::Io { path: path.clone(), error })?;
            return Ok(new);
        }
        let io = |error| IdentityError::Io { path: path.clone(), error };
        let mode = fs::metadata(&path).map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::Exposed { path, mode });
        }
        let text = fs::read(&path).map_err(io)?;
        let seed = data_encoding::HEXLOWER_PERMISSIVE.decode(text.trim_ascii()).ok();
        match seed.and_then(|s| s.try_into().ok()) {
            Some(seed) => Ok(Self { key: SigningKey::from_bytes(&seed) }),
            None => Err(IdentityError::Malformed { path }),
        }
    }

    /// Written beside its place and moved there, so that there is never half a key.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        writeln!(file, "{}", data_encoding::HEXLOWER.encode(&self.key.to_bytes()))?;
        file.sync_all()?;
        fs::rename(beside, path)
    }

    /// The peer's name.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        PeerId(self.key.verifying_key().to_bytes())
    }

    /// The key that signs.
    #[must_use]
    pub fn signing_key(&self) -> &SigningKey {
        &self.key
    }

    /// The same key as libp2p holds it.
    ///
    /// # Panics
    /// Never: every 32 bytes are an ed25519 seed.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn keypair(&self) -> libp2p::identity::Keypair {
        libp2p::identity::Keypair::ed25519_from_bytes(self.key.to_bytes()).expect("32 bytes are a seed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_made_once_and_kept_private() {
        let folder = tempfile::tempdir().unwrap();
        let made = Identity::open(folder.path()).unwrap().peer_id();
        assert_eq!(Identity::open(folder.path()).unwrap().peer_id(), made);
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Identity::open(folder.path()), Err(IdentityError::Exposed { mode: 0o644, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "nonsense").unwrap();
        assert!(matches!(Identity::open(folder.path()), Err(IdentityError::Malformed { .. })));
    }

    #[test]
    fn libp2p_gives_the_same_name() {
        let identity = Identity::generate();
        let theirs = identity.keypair().public().to_peer_id();
        assert_eq!(theirs.to_string(), identity.peer_id().to_string());
    }
}
