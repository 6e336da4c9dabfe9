//! No bytes make the GGUF reader panic, or take memory that the file does not pay for.
#![allow(clippy::unwrap_used)] // A story that cannot be told fails.

mod gguf_writer;

use gguf_writer::{Form, Writer, convert};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use tsnode_kernels::{gguf::Gguf, source::ModelSource};

/// Bytes of memory a byte of the file may ask for while it is read. Names are what costs most: 24 bytes in the file
/// become an entry of some 100 bytes in a list and in a set that may each be twice as large as what they hold.
const PER_BYTE: usize = 32;
/// Bytes that need no file: errors' texts, proptest's own.
const FREE: usize = 256 * 1024;

/// Memory in use, and the most there was.
struct Counting;
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; only numbers are counted beside it.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by the test that allocates: memory is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Reads a file as far as it can be, within memory.
fn read(bytes: &[u8]) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    if let Ok(file) = Gguf::parse(bytes) {
        let within = |tensor: &tsnode_kernels::gguf::TensorInfo<'_>| tensor.range.end <= bytes.len();
        assert!(file.tensors.iter().all(within));
        let parsed = MOST.load(Ordering::Relaxed) - before;
        assert!(parsed <= FREE + PER_BYTE * bytes.len(), "{parsed} bytes for {} of the file", bytes.len());
        // What is made of it is larger: texts appear in lists, sets and in the files themselves.
        let _ = file.small_files();
    }
    let took = MOST.load(Ordering::Relaxed) - before;
    assert!(took <= FREE + 8 * PER_BYTE * bytes.len(), "{took} bytes for {} of the file", bytes.len());
}

/// A model that is valid and small.
static VALID: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/llama-gqa");
    convert(&folder, Form::Q8, "gpt-2").bytes()
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
        let _alone = ALONE.lock().unwrap();
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
    let _alone = ALONE.lock().unwrap();
    let texts: Vec<String> = (1..=1024).map(|len| "a".repeat(len)).collect();
    let mut writer = Writer::default();
    writer.text("general.architecture", "llama").text("tokenizer.ggml.model", "llama");
    writer.texts("tokenizer.ggml.tokens", &texts);
    read(&writer.bytes());
}

#[test]
fn changed_files_open_or_say_why() {
    let _alone = ALONE.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    let mut state = 1_u64;
    for _ in 0..300 {
        let mut bytes = VALID.clone();
        for _ in 0..2 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % HEAD;
            bytes[at] = (state >> 24) as u8;
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = ModelSource::open(&path) {
            assert!(error.to_string().contains("changed.gguf"), "{error}");
        }
    }
}
