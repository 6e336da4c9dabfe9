//! JSON files with a checksum: whoever reads one knows that it is as it was written. Files of before have none and are read as well.
//!
//! The checksum is the last line, `// blake3 …`. Who has changed a file by hand removes that line.

use serde::{Serialize, de::DeserializeOwned};

/// How the last line begins.
const MARK: &str = "// blake3 ";

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsealed {
    /// There is nothing in it.
    #[error("it is empty, and was not left so by tsnode")]
    Empty,
    /// It is not what was written.
    #[error(
        "its checksum does not fit: it is damaged, or was changed by hand (who did that on purpose removes the last line, \
         which begins with {MARK:?})"
    )]
    Checksum,
    /// It is something else.
    #[error("it is damaged: {0}")]
    Content(String),
}

/// The text of a file that holds `what`.
///
/// # Errors
/// When that is nothing JSON can say.
pub fn seal<T: Serialize>(what: &T) -> serde_json::Result<Vec<u8>> {
    let text = serde_json::to_string_pretty(what)?;
    Ok(format!("{text}\n{MARK}{}\n", blake3::hash(text.as_bytes()).to_hex()).into_bytes())
}

/// What a file holds.
///
/// # Errors
/// When it is damaged.
pub fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unsealed> {
    if bytes.trim_ascii().is_empty() {
        return Err(Unsealed::Empty);
    }
    let text = str::from_utf8(bytes).map_err(|_| Unsealed::Content("it is not text".into()))?;
    let json = match text.trim_end().rsplit_once('\n') {
        Some((json, last)) if last.starts_with(MARK) => {
            let fits = last[MARK.len()..] == *blake3::hash(json.as_bytes()).to_hex();
            fits.then_some(json).ok_or(Unsealed::Checksum)?
        }
        _ => text,
    };
    serde_json::from_str(json).map_err(|error| Unsealed::Content(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_noticed_and_files_of_before_are_read() {
        let what = vec!["one".to_owned(), "two".to_owned()];
        let whole = seal(&what).unwrap();
        assert_eq!(unseal(&whole), Ok(what.clone()));
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bent = whole.clone();
                bent[at] ^= 1 << bit;
                // What is not seen may not matter: a line's end, at most.
                assert!(unseal::<Vec<String>>(&bent).is_err() || at + 1 == whole.len(), "byte {at}");
            }
            let read = unseal::<Vec<String>>(&whole[..at]);
            assert!(read.is_err() || read.as_ref() == Ok(&what), "cut at {at}: {read:?}");
        }
        assert_eq!(unseal(br#"["one","two"]"#), Ok(what));
        assert_eq!(unseal::<Vec<String>>(b" \n"), Err(Unsealed::Empty));
        assert_eq!(unseal::<Vec<String>>(&[0; 40]), Err(Unsealed::Content("expected value at line 1 column 1".into())));
    }
}
