//! Lets the owner's command line in without a key: a token that a running peer leaves in its data folder, for its user alone.
//!
//! It is drawn anew at each start, is good at that process only, and only from its own host: one that is left behind by a
//! process that was killed opens nothing. Whoever can read it can read the peer's identity beside it, and change its keys.

use crate::store::Store;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// File in the data folder, while the peer runs.
pub const TOKEN_FILE: &str = "http.token";
/// What tokens begin with, so that people and scanners of leaked secrets know one when they see it.
const PREFIX: &str = "tsl-";
/// Longer than any token (bytes).
const FILE_BYTES: u64 = 256;

/// What a running peer knows of its token: the token itself is in the file, and in memory nowhere.
#[derive(Debug)]
pub struct LocalToken {
    hash: blake3::Hash,
    /// Where HTTP listens.
    at: IpAddr,
}

impl LocalToken {
    /// Draws a token and leaves it in the data folder, in the place of the one before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn leave(store: &Store, at: SocketAddr) -> std::io::Result<Self> {
        let drawn = data_encoding::BASE32_NOPAD.encode(&crate::random_bytes::<32>()).to_lowercase();
        let token = format!("{PREFIX}{drawn}");
        store.write_file(TOKEN_FILE, &format!("{token}\n"))?;
        Ok(Self { hash: blake3::hash(token.as_bytes()), at: at.ip().to_canonical() })
    }

    /// Whether this is the token, and comes from this host. Hashes are compared in constant time.
    #[must_use]
    pub fn accepts(&self, shown: Option<&str>, from: IpAddr) -> bool {
        let from = from.to_canonical();
        // Who calls the address of one of this host's networks from this host calls from that very address.
        let is_here = from.is_loopback() || from == self.at;
        is_here && shown.is_some_and(|shown| blake3::hash(shown.as_bytes()) == self.hash)
    }
}

/// The token of the peer that runs on this folder; none where none runs, or it is another user's.
#[must_use]
pub fn read(folder: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(folder.join(TOKEN_FILE)).ok()?.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    let token = text.trim();
    let is_token = token.starts_with(PREFIX) && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    is_token.then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_good_on_its_host_and_until_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(read(folder.path()), None);
        let first = LocalToken::leave(&store, "192.0.2.7:80".parse().unwrap()).unwrap();
        let token = read(folder.path()).unwrap();
        let mode = std::fs::metadata(folder.path().join(TOKEN_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for (from, good) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(first.accepts(Some(&token), from.parse().unwrap()), good, "from {from}");
        }
        let here = IpAddr::from([127, 0, 0, 1]);
        assert!(!first.accepts(None, here) && !first.accepts(Some(""), here) && !first.accepts(Some("tsl-"), here));
        let second = LocalToken::leave(&store, "127.0.0.1:80".parse().unwrap()).unwrap();
        assert!(!second.accepts(Some(&token), here), "the process before has ended");
        assert!(second.accepts(read(folder.path()).as_deref(), here));
        assert!(!format!("{second:?}").contains(&read(folder.path()).unwrap()));
    }

    #[test]
    fn a_file_that_holds_something_else_is_no_token() {
        let folder = tempfile::tempdir().unwrap();
        for (text, token) in [("", None), ("tsl-a\r\nX: y", None), ("other", None), ("tsl-a\n", Some("tsl-a"))] {
            std::fs::write(folder.path().join(TOKEN_FILE), text).unwrap();
            assert_eq!(read(folder.path()).as_deref(), token, "{text:?}");
        }
    }
}
