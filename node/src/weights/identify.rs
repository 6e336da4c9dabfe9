//! Names a model by all bytes of its weights, each file hashed once in its life here.

use super::index::Index;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tsnode_kernels::{load::LoadProgress, source::ModelSource};
use tsnode_protocol::weights::{self, CHUNK_BYTES, ChunkHash};

/// How often it is said how far it is.
const TELL: Duration = Duration::from_millis(250);

/// A model that is named by its content.
pub struct Identified {
    /// It.
    pub source: ModelSource,
    /// Hashes of its files' chunks, file by file.
    pub hashes: Vec<Vec<ChunkHash>>,
    /// Bytes that had to be hashed for it.
    pub hashed: u64,
}

/// Hashes what the index does not know yet, by so many threads.
pub fn identify(
    source: ModelSource,
    index: &Index,
    threads: usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Identified {
    let known: Vec<Option<Vec<ChunkHash>>> = source.weights().map(|(path, _)| index.get(path)).collect();
    let files = source.weights().zip(&known);
    let total = files.filter(|(_, known)| known.is_none()).map(|((_, bytes), _)| bytes.len() as u64).sum();
    let mut done = 0;
    let mut hashes = Vec::new();
    for ((path, bytes), known) in source.weights().zip(known) {
        let of_file = known.unwrap_or_else(|| {
            let fresh = hash(bytes, threads, &mut |file| progress(LoadProgress { done: done + file, total }));
            index.set(path, &fresh);
            done += bytes.len() as u64;
            fresh
        });
        hashes.push(of_file);
    }
    let roots: Vec<ChunkHash> = hashes.iter().map(|hashes| weights::root(hashes)).collect();
    Identified { source: source.identified(&roots), hashes, hashed: total }
}

/// Hashes of a file's chunks.
fn hash(file: &[u8], threads: usize, progress: &mut dyn FnMut(u64)) -> Vec<ChunkHash> {
    let (bytes, count) = (file.len() as u64, weights::chunks(file.len() as u64) as usize);
    let share = count.div_ceil(threads.max(1));
    let mut hashes = vec![[0; 32]; count];
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        for (n, hashes) in hashes.chunks_mut(share).enumerate() {
            let (end, done) = (end.clone(), &done);
            scope.spawn(move || {
                for (at, hash) in hashes.iter_mut().enumerate() {
                    let chunk = (n * share + at) as u64;
                    *hash = weights::chunk_hash(bytes, chunk, &file[place(bytes, chunk)]);
                    done.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
                }
                drop(end);
            });
        }
        drop(end);
        while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(TELL) {
            progress(done.load(Ordering::Relaxed).min(bytes));
        }
    });
    progress(bytes);
    hashes
}

/// Where a chunk lies in a file.
pub(super) fn place(file: u64, chunk: u64) -> Range<usize> {
    let start = chunk.saturating_mul(CHUNK_BYTES).min(file);
    start as usize..(start + weights::chunk_bytes(file, chunk)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_threads_finds_the_same() {
        let mut file = vec![0; 5 * CHUNK_BYTES as usize + 3];
        blake3::Hasher::new().finalize_xof().fill(&mut file);
        let alone = hash(&file, 1, &mut |_| ());
        assert_eq!(weights::root(&alone), *blake3::hash(&file).as_bytes());
        for threads in [2, 3, 7, 64] {
            let mut last = 0;
            assert_eq!(hash(&file, threads, &mut |done| last = done), alone, "{threads}");
            assert_eq!(last, file.len() as u64);
        }
    }

    #[test]
    fn a_model_is_called_by_its_content_wherever_it_lies() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/gutenberg-tiny");
        let identified = |source| identify(source, &Index::default(), 2, &mut |_| ());
        let from_folder = identified(ModelSource::open(&folder).unwrap());
        let inside = identified(ModelSource::embedded().unwrap());
        assert_eq!(from_folder.source.card(), inside.source.card());
        let manifest = inside.source.manifest().unwrap();
        assert!(manifest.fits(inside.source.card()) && manifest.bytes() == inside.hashed);
        let file = std::fs::read(folder.join("model.safetensors")).unwrap();
        assert_eq!(manifest.files[0].root, *blake3::hash(&file).as_bytes());
    }
}
