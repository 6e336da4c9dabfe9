//! No bytes make the GGUF reader panic, or take memory that the file does not pay for.
use crate::counting::{MemoryMeter, alone};
use crate::gguf_writer::{MatrixFormat, Writer, convert};
use proptest::prelude::*;
use std::path::Path;
use std::sync::LazyLock;
use tsnode_kernels::gguf::Gguf;

/// Bytes of memory a byte of the file may ask for while it is read. Names are what costs most: 24 bytes in the file
/// become an entry of some 100 bytes in a list and in a set that may each be twice as large as what they hold.
const PER_BYTE: usize = 32;
/// Bytes that need no file: errors' texts, proptest's own.
const FREE: usize = 256 * 1024;

/// Reads a file as far as it can be, within memory.
fn read(bytes: &[u8]) {
    let meter = MemoryMeter::start();
    if let Ok(file) = Gguf::parse(bytes) {
        let within = |tensor: &tsnode_kernels::gguf::TensorInfo<'_>| tensor.range.end <= bytes.len();
        assert!(file.tensors.iter().all(within));
        let parsed = meter.most();
        assert!(parsed <= FREE + PER_BYTE * bytes.len(), "{parsed} bytes for {} of the file", bytes.len());
        // What is made of it is larger: texts appear in lists, sets and in the files themselves.
        let _ = file.small_files();
    }
    let took = meter.most();
    assert!(took <= FREE + 8 * PER_BYTE * bytes.len(), "{took} bytes for {} of the file", bytes.len());
}

/// A model that is valid and small.
static VALID: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/llama-gqa");
    convert(&folder, MatrixFormat::Q8, "gpt-2").bytes()
});
/// Where the tensors' bytes of [`VALID`] begin, or a little before.
const HEAD: usize = 12_000;

fn metadata_only() -> Vec<u8> {
    let mut writer = Writer::default();
    writer.text("general.architecture", "llama").count("general.alignment", 64).texts("x", &["a", "b"]);
    writer.reals("y", &[1.0]).tensor("t", &[2, 32], 8, vec![0; 68]).tensor("u", &[3], 0, vec![0; 12]);
    writer.bytes()
}

/// Numbers that break arithmetic which is not careful.
fn odd() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| u64::MAX >> bit),
        0..300_u64,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_are_believed(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        counts in (odd(), odd()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd(), 1..9_usize), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let _alone = alone();
        read(&noise);
        let mut begun = b"GGUF\x03\0\0\0".to_vec();
        begun.extend(counts.0.to_le_bytes());
        begun.extend(counts.1.to_le_bytes());
        begun.extend(&noise);
        read(&begun);
        for valid in [&metadata_only(), &*VALID] {
            let mut changed = valid.clone();
            for (at, number, len) in &changes {
                let at = at.index(changed.len().min(HEAD) - 8);
                changed[at..at + len.min(&8)].copy_from_slice(&number.to_le_bytes()[..*len.min(&8)]);
            }
            read(&changed);
            read(&valid[..cut.index(valid.len())]);
        }
    }
}

/// A tokenizer made to be expensive: every text can be cut everywhere.
#[test]
fn pieces_that_can_be_cut_everywhere_are_bounded() {
    let _alone = alone();
    let texts: Vec<String> = (1..=1024).map(|len| "a".repeat(len)).collect();
    let mut writer = Writer::default();
    writer.text("general.architecture", "llama").text("tokenizer.ggml.model", "llama");
    writer.texts("tokenizer.ggml.tokens", &texts);
    read(&writer.bytes());
}
