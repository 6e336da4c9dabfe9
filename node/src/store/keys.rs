//! Keys that HTTP clients show: what each may do, and its hash. A key itself is said once, when it is made, and kept nowhere.

use crate::{
    plain,
    platform::{self, Edition},
    store::{disk, ledger::advice, sealed},
};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// File in the data folder.
pub const KEYS_FILE: &str = "keys.json";
/// What keys begin with, so that people and scanners of leaked secrets know one when they see it.
const PREFIX: &str = "tsk-";
/// The name of the key in the configuration.
const CONFIGURED: &str = "--api-key";
/// How often the file is looked at for changes.
const LOOK: Duration = Duration::from_secs(1);
/// Largest file that is read.
const FILE_BYTES: u64 = 1 << 20;

/// What the holder of a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// Send prompts.
    Inference,
    /// Everything: also look at the swarm, and steer the peer.
    Admin,
}

/// A key, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// What people call it.
    pub name: String,
    /// What it is good for.
    pub scope: KeyScope,
    /// BLAKE3 of the key, which has 256 bits of its own: no salt and no slow hash is needed.
    pub hash: String,
}

/// Why keys cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read or written.
    #[error("{}: {}{}", path.display(), plain::io_error(error), advice(error))]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file holds something else.
    #[error(
        "{path}: {error}; it is left as it is, and nobody is let in meanwhile: restore it from a copy, or move it away and make \
         new keys with: tsnode keys add NAME"
    )]
    Broken {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: String,
    },
    /// There is one of that name.
    #[error("there is a key called {0} already; remove it with: tsnode keys remove {0}")]
    Taken(String),
    /// There is none.
    #[error("there is no key called {0}; tsnode keys list shows all")]
    Unknown(String),
}

/// Reads the keys of a data folder; none where there is no file.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn read(folder: &Path) -> Result<Vec<ApiKey>, KeysError> {
    let path = folder.join(KEYS_FILE);
    let io = |error| KeysError::Io { path: path.clone(), error };
    let size = match fs::metadata(&path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let broken = |error: String| KeysError::Broken { path: path.clone(), error };
    if size > FILE_BYTES {
        return Err(broken(format!("{size} bytes are no list of keys")));
    }
    sealed::unseal(&fs::read(&path).map_err(io)?).map_err(|e| broken(e.to_string()))
}

/// Makes a key, writes down its hash, and says it. The folder is made if need be.
///
/// # Errors
/// When the name is taken, or the file cannot be written: then nothing is left of it.
pub fn add(folder: &Path, name: &str, scope: KeyScope) -> Result<String, KeysError> {
    let made = disk::make_folder(folder).map_err(|error| KeysError::Io { path: folder.to_owned(), error })?;
    add_in(folder, name, scope).inspect_err(|_| disk::unmake(&made))
}

fn add_in(folder: &Path, name: &str, scope: KeyScope) -> Result<String, KeysError> {
    let mut keys = read(folder)?;
    if name == CONFIGURED || keys.iter().any(|k| k.name == name) {
        return Err(KeysError::Taken(name.to_owned()));
    }
    let text = format!("{PREFIX}{}", spelt(&crate::random_bytes::<32>()));
    keys.push(ApiKey { name: name.to_owned(), scope, hash: hash(&text) });
    write(folder, &keys)?;
    Ok(text)
}

/// Removes a key: within a second a running peer refuses it.
///
/// # Errors
/// When there is none of that name, or the file cannot be written.
pub fn remove(folder: &Path, name: &str) -> Result<(), KeysError> {
    let mut keys = read(folder)?;
    let before = keys.len();
    keys.retain(|k| k.name != name);
    if keys.len() == before { Err(KeysError::Unknown(name.to_owned())) } else { write(folder, &keys) }
}

/// Whole or not at all, for the owner alone.
fn write(folder: &Path, keys: &[ApiKey]) -> Result<(), KeysError> {
    let path = folder.join(KEYS_FILE);
    let written = sealed::seal(&keys).map_err(Into::into).and_then(|bytes| disk::write_whole(&path, &bytes));
    written.map_err(|error| KeysError::Io { path, error })
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

fn spelt(bytes: &[u8]) -> String {
    data_encoding::BASE32_NOPAD.encode(bytes).to_lowercase()
}

/// The keys a running peer asks for, followed as their file changes.
#[derive(Debug)]
pub struct KeyRing {
    folder: PathBuf,
    configured: Option<ApiKey>,
    /// Held for a look at the clock, and once a second at the file's date.
    known: Mutex<KnownKeys>,
}

#[derive(Debug)]
struct KnownKeys {
    keys: Vec<ApiKey>,
    looked: Instant,
    file: Option<Edition>,
}

impl KeyRing {
    /// The keys of a folder, and the one of the configuration, which may do everything.
    ///
    /// # Errors
    /// When the folder's file is broken.
    pub fn open(folder: &Path, configured: Option<&str>) -> Result<Self, KeysError> {
        let configured =
            configured.map(|text| ApiKey { name: CONFIGURED.into(), scope: KeyScope::Admin, hash: hash(text) });
        let known = KnownKeys { keys: read(folder)?, looked: Instant::now(), file: edition(folder) };
        Ok(Self { folder: folder.to_owned(), configured, known: Mutex::new(known) })
    }

    /// The key that was shown, with its hash left out; an error if keys are asked for and this is none of them.
    ///
    /// # Errors
    /// When the key is wrong or missing.
    pub fn check(&self, shown: Option<&str>) -> Result<Option<(String, KeyScope)>, WrongKey> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.elapsed() >= LOOK {
            self.look(&mut known);
        }
        let found = self.find(&known, shown);
        if found.is_ok() || shown.is_none() {
            return found;
        }
        // One that was made just now is good as soon as it is printed.
        self.look(&mut known);
        self.find(&known, shown)
    }

    fn find(&self, known: &KnownKeys, shown: Option<&str>) -> Result<Option<(String, KeyScope)>, WrongKey> {
        let mut all = known.keys.iter().chain(&self.configured).peekable();
        if all.peek().is_none() {
            return Ok(None);
        }
        // Of hashes an attacker knows nothing, so that the time a comparison takes says nothing.
        let hash = hash(shown.ok_or(WrongKey)?);
        all.find(|k| k.hash == hash).map(|k| Some((k.name.clone(), k.scope))).ok_or(WrongKey)
    }

    /// Reads the file again, if it is another one.
    fn look(&self, known: &mut KnownKeys) {
        known.looked = Instant::now();
        let now = edition(&self.folder);
        if now == known.file {
            return;
        }
        known.file = now;
        match read(&self.folder) {
            Ok(keys) => known.keys = keys,
            // Those known before stay: a broken file must not open the door.
            Err(error) => tracing::warn!(%error, "keys not read anew"),
        }
    }
}

/// A key that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongKey;

fn edition(folder: &Path) -> Option<Edition> {
    platform::edition(&fs::metadata(folder.join(KEYS_FILE)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_its_hash_and_forgotten_when_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(KeyRing::open(folder.path(), None).unwrap().check(None), Ok(None), "nobody asks for a key");
        let text = add(folder.path(), "bob", KeyScope::Inference).unwrap();
        assert!(matches!(add(folder.path(), "bob", KeyScope::Admin), Err(KeysError::Taken(_))));
        let kept = fs::read_to_string(folder.path().join(KEYS_FILE)).unwrap();
        assert!(!kept.contains(&text) && kept.contains("bob"));
        let ring = KeyRing::open(folder.path(), Some("mine")).unwrap();
        assert_eq!(ring.check(Some(&text)), Ok(Some(("bob".into(), KeyScope::Inference))));
        assert_eq!(ring.check(Some("mine")), Ok(Some((CONFIGURED.into(), KeyScope::Admin))));
        assert_eq!((ring.check(Some("tsk-wrong")), ring.check(None)), (Err(WrongKey), Err(WrongKey)));
        // The file was looked at a moment ago, and the next key is good nevertheless.
        let next = add(folder.path(), "ann", KeyScope::Admin).unwrap();
        assert_eq!(ring.check(Some(&next)), Ok(Some(("ann".into(), KeyScope::Admin))));
        remove(folder.path(), "bob").unwrap();
        assert!(matches!(remove(folder.path(), "bob"), Err(KeysError::Unknown(_))));
        let until = Instant::now() + Duration::from_secs(10);
        while ring.check(Some(&text)).is_ok() {
            assert!(Instant::now() < until, "a removed key is still good");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_key_that_cannot_be_written_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        // A folder cannot be replaced by a file, whoever asks for it.
        let folder = parent.path().join("data");
        fs::create_dir_all(folder.join(KEYS_FILE).join("inside")).unwrap();
        assert!(write(&folder, &[]).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no draft is left behind");
        // What is a file is no folder.
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(add(&parent.path().join("file/data"), "bob", KeyScope::Admin).is_err());
        let wrong = parent.path().join("new/data");
        assert!(add(&wrong, CONFIGURED, KeyScope::Admin).is_err());
        assert!(!parent.path().join("new").exists(), "no folder is left behind");
    }

    #[test]
    fn a_changed_file_is_noticed_whatever_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        add(folder.path(), "bob", KeyScope::Inference).unwrap();
        let path = folder.path().join(KEYS_FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("bob", "bib")).unwrap();
        let said = read(folder.path()).unwrap_err().to_string();
        assert!(said.contains("checksum") && said.contains("changed by hand"), "{said}");
        // By hand, and on purpose.
        fs::write(&path, text.lines().filter(|l| !l.starts_with("//")).collect::<String>().replace("bob", "bib"))
            .unwrap();
        assert_eq!(read(folder.path()).unwrap()[0].name, "bib");
    }

    #[test]
    fn a_broken_file_is_named_and_does_not_open_the_door() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(KEYS_FILE), "[{}").unwrap();
        let said = KeyRing::open(folder.path(), None).unwrap_err().to_string();
        assert!(said.contains(KEYS_FILE) && said.contains("tsnode keys add"), "{said}");
    }
}
