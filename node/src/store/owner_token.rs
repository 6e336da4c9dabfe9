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
/// Letters of what is drawn; behind them is a check.
const DRAWN: usize = 52;
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
        let drawn = spelt(&crate::random_bytes::<32>());
        let token = format!("{PREFIX}{drawn}{}", check(&drawn, &at.to_string()));
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

/// The token of the peer that runs on this folder and has its HTTP at this address; none where none runs, it is another user's, or
/// one of the two files is damaged: nobody else may see the token.
#[must_use]
pub fn read(folder: &Path, at: &str) -> Option<String> {
    let mut text = String::new();
    File::open(folder.join(TOKEN_FILE)).ok()?.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    let token = text.trim();
    let (drawn, checked) = token.strip_prefix(PREFIX)?.split_at_checked(DRAWN)?;
    (check(drawn, at) == checked).then(|| token.to_owned())
}

/// Ties what was drawn to the address it is for.
fn check(drawn: &str, at: &str) -> String {
    spelt(&blake3::hash(format!("{drawn} {at}").as_bytes()).as_bytes()[..5])
}

fn spelt(bytes: &[u8]) -> String {
    data_encoding::BASE32_NOPAD.encode(bytes).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_on_its_host_and_until_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (here, far) = ("127.0.0.1:80", "192.0.2.7:80");
        assert_eq!(read(folder.path(), far), None);
        let first = LocalToken::leave(&store, far.parse().unwrap()).unwrap();
        let token = read(folder.path(), far).unwrap();
        assert_eq!(read(folder.path(), "192.0.2.3:80"), None, "the address is damaged");
        let mode = crate::platform::mode(&std::fs::metadata(folder.path().join(TOKEN_FILE)).unwrap());
        assert_eq!(mode, Some(0o600));
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
        let at = here;
        let here = IpAddr::from([127, 0, 0, 1]);
        assert!(!first.accepts(None, here) && !first.accepts(Some(""), here) && !first.accepts(Some("tsl-"), here));
        let second = LocalToken::leave(&store, at.parse().unwrap()).unwrap();
        assert!(!second.accepts(Some(&token), here), "the process before has ended");
        assert!(second.accepts(read(folder.path(), at).as_deref(), here));
        assert!(!format!("{second:?}").contains(&read(folder.path(), at).unwrap()));
    }

    #[test]
    fn a_damaged_file_is_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let (store, at) = (Store::open(folder.path()).unwrap(), "127.0.0.1:80");
        LocalToken::leave(&store, at.parse().unwrap()).unwrap();
        let path = folder.path().join(TOKEN_FILE);
        let token = std::fs::read_to_string(&path).unwrap();
        for text in ["", "tsl-a\r\nX: y", "other", &token.replace("tsl-", "tsk-"), &token[..token.len() / 2]] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(folder.path(), at), None, "{text:?}");
        }
        for at_byte in 0..token.trim().len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at_byte] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(folder.path(), at), None, "byte {at_byte}");
        }
        std::fs::write(&path, &token).unwrap();
        assert_eq!(read(folder.path(), at).as_deref(), Some(token.trim()));
    }
}
