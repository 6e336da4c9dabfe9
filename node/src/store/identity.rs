//! Who this peer is: an ed25519 key in the data folder.
//!
//! `identity.key` is a ledger of one record, the 32 seed bytes of the key: its checksum tells a damaged key from another
//! peer's. Versions before wrote the seed alone, which is read and written anew. Whoever reads it can speak as this peer,
//! so it is created readable by its owner only and refused when anyone else can read it.

use crate::{
    plain, platform,
    store::{disk, ledger::advice},
};
use ed25519_dalek::SigningKey;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};
use tsnode_protocol::{PeerId, codec::CodecError, ledger};

/// Name of the key's file in the data folder.
pub const KEY_FILE: &str = "identity.key";
/// Length of a seed, and of files of versions before (bytes).
const SEED_BYTES: usize = 32;
/// More than any key's file has (bytes).
const FILE_BYTES: u64 = 256;
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
        "{} is not a key: {found}; it is left as it is: restore it from a copy, or move it away to become a new peer",
        path.display()
    )]
    Malformed {
        /// The key's file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// A key without a checksum, as versions before wrote them, that is not this peer's.
    #[error(
        "{} is damaged: it is the key of {is}, and the peer of this folder was {was}; it is left as it is: restore it from a \
         copy, or move it away to become a new peer (one that is {is}'s belongs into a folder of its own)",
        path.display()
    )]
    Another {
        /// The key's file.
        path: PathBuf,
        /// Whose key it is.
        is: PeerId,
        /// Who this peer was.
        was: PeerId,
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
        Self::of(folder, None)
    }

    /// The same for the folder of the peer that was `before`, if that is known: a key without a checksum must be that one's.
    ///
    /// # Errors
    /// The same.
    pub fn of(folder: &Path, before: Option<PeerId>) -> Result<Self, IdentityError> {
        let path = folder.join(KEY_FILE);
        let Some((identity, form)) = read(&path, before)? else { return Self::create(folder, &path) };
        if form == KeyFileFormat::SeedAlone
            && let Err(error) = write(&path, &identity.signing.to_bytes())
        {
            // It is as good as it was.
            tracing::info!(%error, file = %path.display(), "the key has no checksum yet");
        }
        Ok(identity)
    }

    /// Reads the key in `folder`, if there is one, and writes nothing.
    ///
    /// # Errors
    /// When it is malformed or open to others, or the disk refuses.
    pub fn load(folder: &Path, before: Option<PeerId>) -> Result<Option<Self>, IdentityError> {
        Ok(read(&folder.join(KEY_FILE), before)?.map(|(identity, _)| identity))
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
        libp2p::identity::Keypair::ed25519_from_bytes(self.signing.to_bytes()).expect("a seed is 32 bytes")
    }

    fn create(folder: &Path, path: &Path) -> Result<Self, IdentityError> {
        let mut seed = [0; SEED_BYTES];
        getrandom::fill(&mut seed).map_err(|e| IdentityError::Random(e.to_string()))?;
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Io { doing, path, source }
        };
        disk::make_folder(folder).map_err(failed("create", folder))?;
        write(path, &seed).map_err(failed("write", path))?;
        let identity = Self::from_seed(&seed);
        tracing::info!(peer = %identity.peer_id(), file = %path.display(), "a new peer: its key was made");
        Ok(identity)
    }
}

/// How a key was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFileFormat {
    /// With a checksum.
    Ledger,
    /// As versions before did.
    SeedAlone,
}

fn write(path: &Path, seed: &[u8; SEED_BYTES]) -> io::Result<()> {
    let mut bytes = ledger::HEADER.to_vec();
    ledger::push(&mut bytes, seed).map_err(|e: CodecError| io::Error::other(e.to_string()))?;
    disk::write_whole(path, &bytes)
}

/// The key in a file, if there is one.
fn read(path: &Path, before: Option<PeerId>) -> Result<Option<(Identity, KeyFileFormat)>, IdentityError> {
    let failed = |doing| move |source| IdentityError::Io { doing, path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("open"))?,
    };
    let facts = file.metadata().map_err(failed("read"))?;
    if let Some(mode) = platform::mode(&facts).filter(|mode| mode & OTHERS != 0) {
        return Err(IdentityError::Exposed { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(failed("read"))?;
    let (seed, form) =
        seed(&bytes).map_err(|found| IdentityError::Malformed { path: path.to_owned(), found: found.into() })?;
    let identity = Identity::from_seed(&seed);
    match (form, before) {
        (KeyFileFormat::SeedAlone, Some(was)) if was != identity.peer_id() => {
            Err(IdentityError::Another { path: path.to_owned(), is: identity.peer_id(), was })
        }
        _ => Ok(Some((identity, form))),
    }
}

/// The seed in a file's bytes, or what they are.
fn seed(bytes: &[u8]) -> Result<([u8; SEED_BYTES], KeyFileFormat), &'static str> {
    if bytes.is_empty() {
        return Err("it is empty");
    }
    if let Ok(alone) = <[u8; SEED_BYTES]>::try_from(bytes)
        && !bytes.starts_with(&ledger::HEADER[..6])
    {
        return if alone == [0; SEED_BYTES] {
            Err("it holds nothing but zeros")
        } else {
            Ok((alone, KeyFileFormat::SeedAlone))
        };
    }
    let contents = ledger::read(bytes).map_err(|_| "it is damaged, or another version's")?;
    match contents.records[..] {
        [record] if contents.damaged == 0 && contents.end == bytes.len() => {
            Ok((record.try_into().map_err(|_| "it is damaged, or another version's")?, KeyFileFormat::Ledger))
        }
        _ => Err("it is damaged: its checksum does not fit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_peer_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let nested = folder.path().join("data");
        let first = Identity::load_or_create(&nested).unwrap();
        let second = Identity::load_or_create(&nested).unwrap();
        assert_eq!(first.peer_id(), second.peer_id());
        let mode = platform::mode(&fs::metadata(nested.join(KEY_FILE)).unwrap());
        assert_eq!(mode, Some(0o600));
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
        platform::set_mode(&path, 0o640);
        let refusal = Identity::load_or_create(folder.path()).err().unwrap();
        assert!(matches!(refusal, IdentityError::Exposed { mode: 0o640, .. }));
        assert!(refusal.to_string().contains("chmod 600"), "{refusal}");
    }

    #[test]
    fn a_broken_key_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEY_FILE);
        disk::write_whole(&path, b"half a key").unwrap();
        let refusal = Identity::load_or_create(folder.path()).err().unwrap();
        assert!(matches!(refusal, IdentityError::Malformed { .. }), "{refusal}");
        assert_eq!(fs::read(&path).unwrap(), b"half a key");
    }

    #[test]
    fn every_bit_of_a_key_is_guarded() {
        let folder = tempfile::tempdir().unwrap();
        Identity::load_or_create(folder.path()).unwrap();
        let path = folder.path().join(KEY_FILE);
        let whole = fs::read(&path).unwrap();
        let is_refused = |bytes: &[u8]| {
            disk::write_whole(&path, bytes).unwrap();
            Identity::load_or_create(folder.path()).is_err() && fs::read(&path).unwrap() == bytes
        };
        for at in 0..whole.len() {
            let flipped = |bit: u8| {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                bytes
            };
            assert!((0..8).all(|bit| is_refused(&flipped(bit))), "byte {at}");
            assert!(is_refused(&whole[..at]), "cut at {at}");
        }
        assert!(is_refused(&vec![0; whole.len()]) && is_refused(&[0; SEED_BYTES]));
    }

    #[test]
    fn a_key_of_versions_before_is_read_and_gets_a_checksum_unless_it_is_somebody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEY_FILE);
        let (was, other) = (Identity::from_seed(&[7; 32]).peer_id(), Identity::from_seed(&[8; 32]).peer_id());
        disk::write_whole(&path, &[7; SEED_BYTES]).unwrap();
        let refusal = Identity::of(folder.path(), Some(other)).err().unwrap();
        assert!(matches!(refusal, IdentityError::Another { .. }) && refusal.to_string().contains("copy"), "{refusal}");
        assert_eq!(fs::read(&path).unwrap(), [7; SEED_BYTES], "it is left alone");
        assert_eq!(Identity::load(folder.path(), Some(was)).unwrap().unwrap().peer_id(), was);
        assert_eq!(fs::read(&path).unwrap(), [7; SEED_BYTES], "who only looks writes nothing");
        assert_eq!(Identity::of(folder.path(), Some(was)).unwrap().peer_id(), was);
        assert!(fs::read(&path).unwrap().starts_with(&ledger::HEADER));
        // With a checksum it is who it says, whoever was here before.
        assert_eq!(Identity::of(folder.path(), Some(other)).unwrap().peer_id(), was);
    }
}
