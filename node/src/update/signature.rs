//! Who made a release: the list of its hashes is signed with ed25519, in minisign's format.
//!
//! Of minisign's two kinds it is the one that signs the file itself (`minisign -S -l`): OpenSSL verifies that too, which is what a
//! system has on which `scripts/install.sh` runs.

use super::UpdateError;
use data_encoding::BASE64;
use ed25519_dalek::{Signature, VerifyingKey};
use std::fmt;

/// Keys of who publishes releases.
const BUILT_IN: &str = include_str!("release_keys.txt");
/// What stands before the words that are signed beside the list.
const COMMENT: &str = "trusted comment: ";

/// Keys of which one has to have signed a release.
pub struct ReleaseKeys(Vec<ReleaseKey>);

/// A public key, and what minisign calls it.
struct ReleaseKey {
    id: KeyId,
    key: VerifyingKey,
}

/// Tells which key is meant, and proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId([u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

/// Why a release is not taken for that of who holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It is something else.
    #[error("it is no signature as minisign writes them")]
    Malformed,
    /// minisign's other kind.
    #[error(
        "it signs a hash of the list, and the list itself is to be signed: scripts/sign_release.sh, or minisign -S -l"
    )]
    Hashed,
    /// Nobody here trusts that key.
    #[error(
        "the release is signed with the key {0}, which is none of those that are trusted here; whoever knows whose it is names it by \
         TSNODE_RELEASE_KEY or --key"
    )]
    Stranger(KeyId),
    /// The list is another.
    #[error("SHA256SUMS is not what the key {0} has signed: it was changed, or the signature is of another list")]
    Wrong(KeyId),
}

impl ReleaseKeys {
    /// Those that this program was built with.
    ///
    /// # Errors
    /// When it was built with none.
    pub fn built_in() -> Result<Self, UpdateError> {
        Self::parse(BUILT_IN)
    }

    /// Keys as words of a text; what follows a `#` at a line's begin is for people.
    ///
    /// # Errors
    /// When one is none, or there is none.
    pub fn parse(text: &str) -> Result<Self, UpdateError> {
        let words = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
        let keys = words.map(ReleaseKey::parse).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(UpdateError::NoKey) } else { Ok(Self(keys)) }
    }

    /// Whether one of these keys has signed a list.
    ///
    /// # Errors
    /// Says why none has.
    pub(super) fn verify(&self, list: &[u8], signature: &str) -> Result<(), SignatureError> {
        let mut lines = signature.lines().skip(1);
        let mut line = || lines.next().ok_or(SignatureError::Malformed);
        let (signed, comment, all_signed) = (line()?, line()?, line()?);
        let signed: MinisignBlock<64> = MinisignBlock::parse(signed).ok_or(SignatureError::Malformed)?;
        let comment = comment.strip_prefix(COMMENT).ok_or(SignatureError::Malformed)?;
        let all_signed: [u8; 64] = decoded(all_signed).ok_or(SignatureError::Malformed)?;
        match &signed.kind {
            b"Ed" => {}
            b"ED" => return Err(SignatureError::Hashed),
            _ => return Err(SignatureError::Malformed),
        }
        let mut ours = self.0.iter().filter(|key| key.id == signed.id).peekable();
        if ours.peek().is_none() {
            return Err(SignatureError::Stranger(signed.id));
        }
        // The second signature has the comment belong to the first.
        let all = [&signed.value[..], comment.as_bytes()].concat();
        match ours.any(|key| key.has_signed(list, &signed.value) && key.has_signed(&all, &all_signed)) {
            true => Ok(()),
            false => Err(SignatureError::Wrong(signed.id)),
        }
    }
}

impl ReleaseKey {
    fn parse(word: &str) -> Result<Self, UpdateError> {
        let block = MinisignBlock::parse(word).filter(|block: &MinisignBlock<32>| block.kind == *b"Ed");
        let key =
            block.and_then(|block| Some(Self { id: block.id, key: VerifyingKey::from_bytes(&block.value).ok()? }));
        key.ok_or_else(|| UpdateError::Key(word.chars().take(80).collect()))
    }

    fn has_signed(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        self.key.verify_strict(bytes, &Signature::from_bytes(signature)).is_ok()
    }
}

/// What minisign writes of a key or of a signature.
struct MinisignBlock<const N: usize> {
    kind: [u8; 2],
    id: KeyId,
    value: [u8; N],
}

impl<const N: usize> MinisignBlock<N> {
    fn parse(line: &str) -> Option<Self> {
        let bytes = BASE64.decode(line.as_bytes()).ok()?;
        let (kind, rest) = bytes.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_first_chunk::<8>()?;
        Some(Self { kind: *kind, id: KeyId(*id), value: rest.try_into().ok()? })
    }
}

/// The bytes of a line, where they are so many.
fn decoded<const N: usize>(line: &str) -> Option<[u8; N]> {
    BASE64.decode(line.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::tests::{public, signed};
    use ed25519_dalek::SigningKey;

    // By minisign 0.11, with a key that was thrown away: minisign -S -l, and without -l.
    const KEY: &str = "RWQSqpXS2DANL0zO9boTEuzIfxjCvahu+e9hCqz1aPqATydyUrCTbcuU";
    const LIST: &[u8] = b"hello\n";
    const SIGNATURE: &str = "untrusted comment: signature from minisign secret key
RWQSqpXS2DANL73yxEdFFIPjBVxPG18SOKc0GLPmZ85GoD32naVOWdhyPKI8wLzCv2egWLdg9FohgYdU+5zwQbZGaSHEP64UoQw=
trusted comment: tsnode 1.2.3
ouU1s/fjoeTdlEso7is4w8COAOUltS7j/qoyEi38b3TKkuW0/NY4QZLosRXy5cs1WLilHTcpoELuUWhXfNOjCA==
";
    const HASHED: &str = "untrusted comment: signature from minisign secret key
RUQSqpXS2DANL2SyOFmATo5i343AhXLkAk8qGXA7NVoq6ZZtPg6L4oBhT+goD2/eX51Ro8bq9sSLWS/x4GBV2xbR0+S5911yUAw=
trusted comment: tsnode 1.2.3
jyObANZ8LtMk7rQi9LhClzrTtbZAZyYOXhkCFyHaHisWoAulJMcLzhlQDsZhxUYIwHthA7igC1Qr+F2FQTFpBg==
";

    #[test]
    fn what_minisign_has_signed_is_taken_and_nothing_else() {
        let keys = ReleaseKeys::parse(KEY).unwrap();
        let id = keys.0[0].id;
        assert_eq!(id.to_string(), "2F0D30D8D295AA12");
        assert_eq!(keys.verify(LIST, SIGNATURE), Ok(()));
        assert_eq!(keys.verify(LIST, &SIGNATURE.replace('\n', "\r\n")), Ok(()));
        assert_eq!(keys.verify(b"hello", SIGNATURE), Err(SignatureError::Wrong(id)));
        assert_eq!(
            keys.verify(LIST, &SIGNATURE.replace("1.2.3", "1.2.4")),
            Err(SignatureError::Wrong(id)),
            "its comment"
        );
        assert_eq!(keys.verify(LIST, &SIGNATURE.replace("L73y", "L74y")), Err(SignatureError::Wrong(id)));
        assert_eq!(keys.verify(LIST, HASHED), Err(SignatureError::Hashed));
        let cut = SIGNATURE.split_once("ouU1").unwrap().0;
        for wrong in
            ["", "\n\n\n\n", "404 not found", cut, &SIGNATURE.replace("RWQ", "???"), &SIGNATURE.replace("RWQ", "AAQ")]
        {
            assert_eq!(keys.verify(LIST, wrong), Err(SignatureError::Malformed), "{wrong}");
        }
        let other = SigningKey::from_bytes(&[3; 32]);
        let both = ReleaseKeys::parse(&format!("{KEY} {}\n", public(&other))).unwrap();
        assert_eq!(both.verify(LIST, &signed(&other, LIST)), Ok(()));
        assert!(matches!(keys.verify(LIST, &signed(&other, LIST)), Err(SignatureError::Stranger(_))));
    }

    #[test]
    fn no_letter_of_a_signature_can_be_another() {
        let keys = ReleaseKeys::parse(KEY).unwrap();
        // The first line is for people, and nobody signs it.
        for at in SIGNATURE.find('\n').unwrap()..SIGNATURE.len() {
            let mut letters = SIGNATURE.as_bytes().to_vec();
            letters[at] ^= 1;
            let other = String::from_utf8(letters).unwrap();
            assert!(keys.verify(LIST, &other).is_err(), "{at}: {other}");
        }
    }

    #[test]
    fn a_text_has_keys_or_says_which_is_none() {
        assert!(ReleaseKeys::parse(&format!("# RW of the first\n\n {KEY}\n")).is_ok());
        assert!(matches!(ReleaseKeys::parse("# none\n"), Err(UpdateError::NoKey)));
        for wrong in ["RW", &KEY[..55], &KEY.replace("RWQ", "RUQ"), "https://example.com"] {
            assert!(matches!(ReleaseKeys::parse(wrong), Err(UpdateError::Key(said)) if said == wrong), "{wrong}");
        }
    }

    #[test]
    fn the_keys_of_releases_are_the_same_wherever_they_stand() {
        let read = |path: &str| std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let (installer, guide) = (read("scripts/install.sh"), read("docs/guide/install.md"));
        let built_in: Vec<&str> =
            BUILT_IN.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect();
        let theirs = installer.lines().find_map(|line| line.strip_prefix("KEYS='")?.strip_suffix('\''));
        assert_eq!(theirs.unwrap().split_whitespace().collect::<Vec<_>>(), built_in, "KEYS of scripts/install.sh");
        for key in built_in {
            assert!(guide.contains(key) && ReleaseKeys::parse(key).is_ok(), "{key}");
        }
    }
}
