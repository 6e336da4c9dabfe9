//! `measured.json`: what was measured on this machine, in a file that can be put into another data folder of the machine before a
//! peer starts there: many peers on one host need not measure it one by one, each beside the others that do.

use super::{disk, note::Measured};
use serde_json::{Map, Value};
use std::{fs::File, io::Read as _, path::Path};

/// The file, in the data folder.
pub const MEASURED_FILE: &str = "measured.json";
/// More is not of this program (bytes).
const MOST: u64 = 256 * 1024;

fn read(folder: &Path) -> Option<Map<String, Value>> {
    let mut text = String::new();
    let file = File::open(folder.join(MEASURED_FILE)).ok()?;
    file.take(MOST).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// What the file has of a measurement. Whoever asks sees whether it was of the same machine: it is damaged, or another's, at no
/// cost but of measuring again.
pub(super) fn measured(folder: &Path, what: Measured) -> Option<Vec<u8>> {
    serde_json::to_vec(read(folder)?.get(&what.to_string())?).ok()
}

/// Notes a measurement that is JSON; others are for this folder alone.
pub(super) fn note(folder: &Path, what: Measured, bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let mut all = read(folder).unwrap_or_default();
    all.insert(what.to_string(), value);
    let written = serde_json::to_vec_pretty(&all).map_err(std::io::Error::from);
    if let Err(error) = written.and_then(|text| disk::write_whole(&folder.join(MEASURED_FILE), &text)) {
        tracing::debug!(%error, "{MEASURED_FILE} is not written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use tsnode_protocol::ModelId;

    #[test]
    fn what_one_peer_measured_is_known_in_another_folder_it_was_put_into() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let profile = Measured::Profile(ModelId([3; 16]));
        let store = Store::open(one.path()).unwrap();
        store.set_measured(Measured::Processor, br#"{"flops":1.5}"#);
        store.set_measured(profile, br#"{"of":2}"#);
        std::fs::copy(one.path().join(MEASURED_FILE), other.path().join(MEASURED_FILE)).unwrap();
        let store = Store::open(other.path()).unwrap();
        assert_eq!(store.measured(Measured::Processor).unwrap(), br#"{"flops":1.5}"#);
        assert_eq!(store.measured(profile).unwrap(), br#"{"of":2}"#);
        assert_eq!(store.measured(Measured::Gpus(0, 1, ModelId([3; 16]))), None);
        // What it measured itself counts.
        store.set_measured(profile, br#"{"of":3}"#);
        assert_eq!(store.measured(profile).unwrap(), br#"{"of":3}"#);
    }

    #[test]
    fn a_file_that_is_none_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        for text in [&b""[..], b"{", b"[1]", &[0xff; 64]] {
            std::fs::write(folder.path().join(MEASURED_FILE), text).unwrap();
            assert_eq!(measured(folder.path(), Measured::Processor), None);
        }
        note(folder.path(), Measured::Processor, b"1");
        assert_eq!(measured(folder.path(), Measured::Processor).unwrap(), b"1");
    }
}
