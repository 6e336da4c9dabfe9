//! What is left to fetch: who takes which chunk. What few holders have is taken first, so that it is with many soon.

use super::drafts::{Chunk, PartialFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tsnode_protocol::{PeerId, weights::Bitfield};

/// After so long a holder is asked anew what it has, as long as that is not all that is wanted: it may be fetching itself.
const ANEW: Duration = Duration::from_secs(1);

/// How far it is: counted by those who fetch, read by those who look.
#[derive(Debug, Default)]
pub struct FetchTally {
    /// All that is wanted (bytes); nothing before that is known.
    pub bytes: AtomicU64,
    /// Of that, verified and on disk (bytes).
    pub done: AtomicU64,
    /// Came over the network as chunks, right or wrong (bytes).
    pub fetched: AtomicU64,
    /// Holders asked just now.
    pub holders: AtomicUsize,
}

/// Why a stream takes no more.
#[derive(Debug)]
pub(super) enum StreamEnded {
    /// It broke, or the holder does not answer.
    Broke(String),
    /// What came is not what its hash says.
    Wrong { file: u16, chunk: u32 },
    /// The disk does not take it.
    Disk(PathBuf, io::Error),
}

/// What a holder says to have.
struct HolderChunks {
    files: BTreeMap<u16, Bitfield>,
    at: Instant,
}

impl HolderChunks {
    fn has(&self, (file, chunk): Chunk) -> bool {
        self.files.get(&file).is_some_and(|bits| bits.has(chunk.into()))
    }
}

/// Who takes what. Held for operations on these alone.
#[derive(Default)]
struct ChunkQueue {
    /// In an order of this peer's own: others who fetch the same begin elsewhere, and have what they can give each other.
    waiting: Vec<Chunk>,
    /// Taken and not given yet.
    taken: usize,
    said: BTreeMap<PeerId, HolderChunks>,
    /// Said to be there, and not given.
    lacks: BTreeMap<PeerId, BTreeSet<Chunk>>,
    /// How many have each chunk, of those that have said what they have.
    holders: BTreeMap<Chunk, usize>,
}

impl ChunkQueue {
    fn has(&self, peer: PeerId, chunk: Chunk) -> bool {
        let is_lost = || self.lacks.get(&peer).is_some_and(|lacks| lacks.contains(&chunk));
        self.said.get(&peer).is_some_and(|said| said.has(chunk)) && !is_lost()
    }

    fn say(&mut self, peer: PeerId, files: BTreeMap<u16, Bitfield>, at: Instant) {
        let new = HolderChunks { files, at };
        let old = self.said.remove(&peer);
        for chunk in &self.waiting {
            let had = old.as_ref().is_some_and(|said| said.has(*chunk));
            let count = self.holders.entry(*chunk).or_default();
            *count = (*count + usize::from(new.has(*chunk))).saturating_sub(usize::from(had));
        }
        self.said.insert(peer, new);
    }
}

/// All of it.
pub(super) struct FetchWork {
    drafts: Arc<PartialFiles>,
    queue: Mutex<ChunkQueue>,
    tally: Arc<FetchTally>,
}

impl FetchWork {
    /// To fetch those of the wanted chunks that are not there.
    pub fn new(drafts: Arc<PartialFiles>, wanted: &BTreeSet<Chunk>, tally: Arc<FetchTally>) -> Self {
        let own = RandomState::new();
        let mut waiting: Vec<Chunk> = wanted.iter().copied().filter(|chunk| !drafts.has(*chunk)).collect();
        waiting.sort_by_cached_key(|chunk| own.hash_one(chunk));
        let work = Self { drafts, queue: Mutex::new(ChunkQueue { waiting, ..ChunkQueue::default() }), tally };
        let all: u64 = wanted.iter().map(|chunk| work.drafts.bytes_of(*chunk)).sum();
        work.tally.bytes.store(all, Ordering::Relaxed);
        work.tally.done.store(all.saturating_sub(work.missing_bytes()), Ordering::Relaxed);
        work
    }

    fn queue(&self) -> MutexGuard<'_, ChunkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tally(&self) -> &FetchTally {
        &self.tally
    }

    /// Verified and on disk of what is wanted (bytes).
    pub fn done(&self) -> u64 {
        self.tally.done.load(Ordering::Relaxed)
    }

    pub fn missing_bytes(&self) -> u64 {
        self.queue().waiting.iter().map(|chunk| self.drafts.bytes_of(*chunk)).sum()
    }

    pub fn is_done(&self) -> bool {
        let queue = self.queue();
        queue.waiting.is_empty() && queue.taken == 0
    }

    /// Files of which something is wanted, and their sizes.
    pub fn files(&self) -> BTreeMap<u16, u64> {
        self.queue().waiting.iter().map(|(file, _)| (*file, self.drafts.bytes(*file))).collect()
    }

    /// What a holder has of them now.
    pub fn say(&self, peer: PeerId, files: BTreeMap<u16, Bitfield>) {
        self.queue().say(peer, files, Instant::now());
    }

    /// Whether it is to be asked what it has.
    pub fn asks(&self, peer: PeerId) -> bool {
        let queue = self.queue();
        let Some(said) = queue.said.get(&peer) else { return !queue.waiting.is_empty() };
        said.at.elapsed() > ANEW && queue.waiting.iter().any(|chunk| !said.has(*chunk))
    }

    /// Whether a holder could be asked for something.
    pub fn has_some_for(&self, peer: PeerId) -> bool {
        let queue = self.queue();
        queue.waiting.iter().any(|chunk| queue.has(peer, *chunk))
    }

    /// The next chunk to ask a holder for. It waits again when the turn is dropped.
    pub fn take(self: &Arc<Self>, peer: PeerId) -> Option<ChunkTurn> {
        let mut queue = self.queue();
        let there = queue.waiting.iter().enumerate().filter(|(_, chunk)| queue.has(peer, **chunk));
        let (at, _) = there.min_by_key(|(_, chunk)| queue.holders.get(*chunk).copied().unwrap_or_default())?;
        let chunk = queue.waiting.swap_remove(at);
        queue.taken += 1;
        drop(queue);
        Some(ChunkTurn { work: self.clone(), peer, chunk, is_given: false })
    }
}

/// One chunk, and who is asked for it.
pub(super) struct ChunkTurn {
    work: Arc<FetchWork>,
    peer: PeerId,
    pub chunk: Chunk,
    is_given: bool,
}

impl ChunkTurn {
    /// What came for it. Nothing means that the holder has lost it.
    pub async fn give(mut self, content: Vec<u8>) -> Result<(), StreamEnded> {
        let (work, chunk) = (self.work.clone(), self.chunk);
        work.tally.fetched.fetch_add(content.len() as u64, Ordering::Relaxed);
        if content.is_empty() {
            work.queue().lacks.entry(self.peer).or_default().insert(chunk);
            return Ok(());
        }
        if !work.drafts.fits(chunk, &content) {
            return Err(StreamEnded::Wrong { file: chunk.0, chunk: chunk.1 });
        }
        let drafts = work.drafts.clone();
        let written = tokio::task::spawn_blocking(move || drafts.write(chunk, &content)).await;
        let written = written.unwrap_or_else(|error| Err((PathBuf::new(), io::Error::other(error))));
        written.map_err(|(path, error)| StreamEnded::Disk(path, error))?;
        work.tally.done.fetch_add(work.drafts.bytes_of(chunk), Ordering::Relaxed);
        self.is_given = true;
        Ok(())
    }
}

impl Drop for ChunkTurn {
    fn drop(&mut self) {
        let mut queue = self.work.queue();
        queue.taken -= 1;
        if !self.is_given {
            queue.waiting.push(self.chunk);
        }
    }
}
