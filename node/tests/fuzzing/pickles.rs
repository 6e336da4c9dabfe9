//! What the fuzz target does with bytes: [`pickles`] reads them as a PyTorch checkpoint, which somebody may have made up, and writes
//! what is in it as safetensors.

#![expect(clippy::unwrap_used, reason = "a fuzz target says what is wrong by failing")]

use safetensors::SafeTensors;
use std::path::Path;
use tsnode::import::Pickles;

/// Reads bytes as `pytorch_model.bin`, and writes what it holds. Says whether something was in it.
pub fn pickles(bytes: &[u8]) -> bool {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = made.unwrap();
    let (from, to) = (folder.path().join("pytorch_model.bin"), folder.path().join("to"));
    std::fs::write(&from, bytes).unwrap();
    let imported = match Pickles::open(&from).and_then(|pickles| pickles.write(&to, |_| ())) {
        Ok(imported) => imported,
        Err(error) => {
            let left = std::fs::read_dir(&to).map_or(0, Iterator::count);
            assert_eq!(left, 0, "something is left of what was refused: {error}");
            return false;
        }
    };
    let written = std::fs::read(imported.folder.join("model.safetensors")).unwrap();
    assert_eq!(SafeTensors::deserialize(&written).unwrap().len(), imported.tensors);
    true
}

/// The two parts of the checkpoint that the tests have.
pub fn examples() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pickles");
    [1, 2].map(|part| std::fs::read(folder.join(format!("pytorch_model-0000{part}-of-00002.bin"))).unwrap()).into()
}
