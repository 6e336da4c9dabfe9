//! What is left to fetch of a model: its files as far as they are here, and who takes which chunk.

use super::{error::FetchError, identify::place, index::Index};
use crate::{platform, store::disk};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tsnode_protocol::{
    PeerId,
    weights::{self, CHUNK_BYTES, ChunkHash, WeightsFile, chunk_bytes, chunks},
};

/// Ending of what is not whole yet.
const INCOMPLETE: &str = "incomplete";

/// How far it is: counted by those who fetch, read by those who look.
#[derive(Debug, Default)]
pub struct Tally {
    /// All files together (bytes); nothing before that is known.
    pub bytes: AtomicU64,
    /// Verified and on disk (bytes).
    pub done: AtomicU64,
    /// Came over the network as chunks, right or wrong (bytes).
    pub fetched: AtomicU64,
    /// Holders asked just now.
    pub holders: AtomicUsize,
}

/// A file that is not whole yet, under a name that nobody takes for a file's.
pub(super) struct Draft {
    to: PathBuf,
    path: PathBuf,
    file: File,
    about: WeightsFile,
    hashes: Vec<ChunkHash>,
    missing: Vec<u32>,
}

impl Draft {
    /// With what is there of it, each chunk held against its hash: nothing else says what is there.
    pub fn open(to: &Path, about: WeightsFile, hashes: Vec<ChunkHash>, index: &Index) -> io::Result<Self> {
        let path = disk::beside(to, INCOMPLETE);
        let is_whole = index.get(to).is_some_and(|known| known == hashes);
        if to.exists() && !is_whole {
            fs::rename(to, &path)?;
        }
        let from = if is_whole { to } else { &path };
        let file = File::options().create(!is_whole).truncate(false).read(true).write(true).open(from)?;
        let missing = if is_whole { Vec::new() } else { missing(&file, &about, &hashes)? };
        file.set_len(about.bytes)?;
        Ok(Self { to: to.to_owned(), path, file, about, hashes, missing })
    }
}

fn missing(file: &File, about: &WeightsFile, hashes: &[ChunkHash]) -> io::Result<Vec<u32>> {
    let there = file.metadata()?.len();
    let mut content = vec![0; CHUNK_BYTES as usize];
    let mut missing = Vec::new();
    for (chunk, hash) in (0..chunks(about.bytes)).zip(hashes) {
        let at = place(about.bytes, chunk);
        let content = &mut content[..at.len()];
        let is_there = at.end as u64 <= there && platform::read_exact_at(file, content, at.start as u64).is_ok();
        if !is_there || weights::chunk_hash(about.bytes, chunk, content) != *hash {
            // A file has fewer than 2³² chunks: the manifest was checked.
            missing.push(chunk as u32);
        }
    }
    Ok(missing)
}

/// Why a stream takes no more.
#[derive(Debug)]
pub(super) enum Ended {
    /// It broke, or the holder does not answer.
    Broke(String),
    /// What came is not what its hash says.
    Wrong { file: u16, chunk: u32 },
    /// The disk does not take it.
    Disk(PathBuf, io::Error),
}

type Chunk = (u16, u32);

/// Who takes what. Held for operations on these alone.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Chunk>,
    /// Taken and not given yet.
    taken: usize,
    /// What holders said they have not.
    lacks: BTreeMap<PeerId, BTreeSet<Chunk>>,
}

/// All of it.
pub(super) struct Work {
    drafts: Vec<Draft>,
    queue: Mutex<Queue>,
    tally: Arc<Tally>,
}

impl Work {
    pub fn new(drafts: Vec<Draft>, tally: Arc<Tally>) -> Self {
        let of = |(file, draft): (u16, &Draft)| draft.missing.iter().map(move |chunk| (file, *chunk)).collect();
        let waiting = (0..).zip(&drafts).flat_map(|pair| -> Vec<Chunk> { of(pair) }).collect();
        let work = Self { drafts, queue: Mutex::new(Queue { waiting, ..Queue::default() }), tally };
        let all: u64 = work.drafts.iter().map(|draft| draft.about.bytes).sum();
        work.tally.done.store(all - work.missing_bytes(), Ordering::Relaxed);
        work
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Verified and on disk (bytes).
    pub fn done(&self) -> u64 {
        self.tally.done.load(Ordering::Relaxed)
    }

    pub fn missing_bytes(&self) -> u64 {
        let bytes = |(file, chunk): &Chunk| self.bytes_of(*file, *chunk);
        self.queue().waiting.iter().map(bytes).sum()
    }

    fn bytes_of(&self, file: u16, chunk: u32) -> u64 {
        chunk_bytes(self.drafts[usize::from(file)].about.bytes, chunk.into())
    }

    pub fn is_done(&self) -> bool {
        let queue = self.queue();
        queue.waiting.is_empty() && queue.taken == 0
    }

    /// Whether a holder could be asked for something.
    pub fn has_some_for(&self, peer: PeerId) -> bool {
        let queue = self.queue();
        let lacks = queue.lacks.get(&peer);
        queue.waiting.iter().any(|chunk| lacks.is_none_or(|lacks| !lacks.contains(chunk)))
    }

    /// The next chunk to ask a holder for. It waits again when the turn is dropped.
    pub fn take(self: &Arc<Self>, peer: PeerId) -> Option<Turn> {
        let mut queue = self.queue();
        let lacks = queue.lacks.get(&peer);
        let at = queue.waiting.iter().position(|chunk| lacks.is_none_or(|lacks| !lacks.contains(chunk)))?;
        let (file, chunk) = queue.waiting.remove(at)?;
        queue.taken += 1;
        drop(queue);
        Some(Turn { work: self.clone(), peer, file, chunk, is_given: false })
    }

    /// Gives all files their names: they are whole.
    pub fn place(&self, index: &Index) -> Result<(), FetchError> {
        for draft in self.drafts.iter().filter(|draft| draft.path.exists()) {
            let placed = draft.file.sync_all().and_then(|()| fs::rename(&draft.path, &draft.to));
            placed.and_then(|()| disk::sync_folder(&draft.to)).map_err(FetchError::disk(&draft.to))?;
            index.set(&draft.to, &draft.hashes);
        }
        Ok(())
    }
}

/// One chunk, and who is asked for it.
pub(super) struct Turn {
    work: Arc<Work>,
    peer: PeerId,
    pub file: u16,
    pub chunk: u32,
    is_given: bool,
}

impl Turn {
    /// What came for it. Nothing means that the holder has lost it.
    pub async fn give(mut self, content: Vec<u8>) -> Result<(), Ended> {
        let (work, file, chunk) = (self.work.clone(), self.file, self.chunk);
        work.tally.fetched.fetch_add(content.len() as u64, Ordering::Relaxed);
        if content.is_empty() {
            work.queue().lacks.entry(self.peer).or_default().insert((file, chunk));
            return Ok(());
        }
        let draft = &work.drafts[usize::from(file)];
        let (size, bytes) = (draft.about.bytes, work.bytes_of(file, chunk));
        let is_right = content.len() as u64 == bytes
            && weights::chunk_hash(size, chunk.into(), &content) == draft.hashes[chunk as usize];
        if !is_right {
            return Err(Ended::Wrong { file, chunk });
        }
        let writer = work.clone();
        let write = move || {
            let draft = &writer.drafts[usize::from(file)];
            platform::write_all_at(&draft.file, &content, u64::from(chunk) * CHUNK_BYTES)
        };
        let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other).and_then(|written| written);
        written.map_err(|error| Ended::Disk(draft.path.clone(), error))?;
        work.tally.done.fetch_add(bytes, Ordering::Relaxed);
        self.is_given = true;
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.work.queue();
        queue.taken -= 1;
        if !self.is_given {
            queue.waiting.push_back((self.file, self.chunk));
        }
    }
}
