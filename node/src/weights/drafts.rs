//! A model's files of weights as far as they are here: which chunks, and where.
//!
//! What a chunk should be is known, so that what is there is known by its hash alone. A file that is not whole has a name that nobody
//! takes for a file's; what of it was found is remembered in the index, for that very file as it was left.

use super::{error::FetchError, identify::place, index::Index};
use crate::{platform, store::disk};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tsnode_kernels::source::PartFile;
use tsnode_protocol::weights::{
    self, Bitfield, CHUNK_BYTES, ChunkHash, HASH_BYTES, WeightsFile, WeightsManifest, chunk_bytes, chunks,
};

/// Ending of what is not whole yet.
pub(super) const INCOMPLETE: &str = "incomplete";
/// Locked by all who have a model's files open, so that nobody takes these away meanwhile.
const OPEN: &str = "open";
/// What the index has for a chunk that is not there.
const NOTHING: ChunkHash = [0; HASH_BYTES];

/// A chunk: which file, which of it.
pub(super) type Chunk = (u16, u32);

/// One file.
struct PartialFile {
    to: PathBuf,
    /// While it is not whole.
    path: PathBuf,
    is_placed: AtomicBool,
    file: File,
    about: WeightsFile,
    hashes: Vec<ChunkHash>,
    there: Mutex<Bitfield>,
}

impl PartialFile {
    fn open(to: PathBuf, about: WeightsFile, hashes: Vec<ChunkHash>, index: &Index) -> io::Result<Self> {
        let path = disk::beside(&to, INCOMPLETE);
        let is_whole = index.get(&to).is_some_and(|known| known == hashes);
        if to.exists() && !is_whole {
            fs::rename(&to, &path)?;
        }
        let from = if is_whole { &to } else { &path };
        let file = File::options().create(!is_whole).truncate(false).read(true).write(true).open(from)?;
        let there = if is_whole {
            Bitfield::all(about.bytes)
        } else {
            found(&file, &path, (&about, hashes.as_slice()), index)?
        };
        if file.metadata()?.len() != about.bytes {
            file.set_len(about.bytes)?;
        }
        Ok(Self { to, path, is_placed: AtomicBool::new(is_whole), file, about, hashes, there: Mutex::new(there) })
    }

    fn there(&self) -> MutexGuard<'_, Bitfield> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_whole(&self) -> bool {
        let there = self.there();
        (0..chunks(self.about.bytes)).all(|chunk| there.has(chunk))
    }

    fn now_at(&self) -> &Path {
        if self.is_placed.load(Ordering::Acquire) { &self.to } else { &self.path }
    }

    fn part(&self) -> PartFile {
        let (bytes, there) = (self.about.bytes, self.there());
        let place = |chunk: u64| chunk * CHUNK_BYTES..chunk * CHUNK_BYTES + chunk_bytes(bytes, chunk);
        let there = (0..chunks(bytes)).filter(|chunk| there.has(*chunk)).map(place).collect();
        PartFile { path: self.now_at().to_owned(), there }
    }

    /// Waits until the disk has what came, and remembers what that is.
    fn keep(&self, index: &Index) -> io::Result<()> {
        let there = self.there().clone();
        // What comes from now on may not be on the disk: it counts the next time.
        self.file.sync_all()?;
        let of = |(chunk, hash): (u64, &ChunkHash)| if there.has(chunk) { *hash } else { NOTHING };
        index.set(&self.path, &(0..).zip(&self.hashes).map(of).collect::<Vec<_>>());
        Ok(())
    }

    /// Gives it its name: it is whole.
    fn place(&self, index: &Index) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.to)?;
        self.is_placed.store(true, Ordering::Release);
        disk::sync_folder(&self.to)?;
        index.set(&self.to, &self.hashes);
        Ok(())
    }
}

/// Which chunks of a file are there: those that the index knows of just this file, or else those that fit their hashes.
fn found(
    file: &File,
    path: &Path,
    (about, hashes): (&WeightsFile, &[ChunkHash]),
    index: &Index,
) -> io::Result<Bitfield> {
    let mut there = Bitfield::none(about.bytes);
    let size = file.metadata()?.len();
    if let Some(known) = index.get(path).filter(|known| known.len() == hashes.len() && size == about.bytes) {
        for (chunk, (known, hash)) in (0..).zip(known.iter().zip(hashes)) {
            there.set(chunk, known == hash);
        }
        return Ok(there);
    }
    let mut content = vec![0; CHUNK_BYTES as usize];
    let mut data = 0;
    for (chunk, hash) in (0..chunks(about.bytes)).zip(hashes) {
        let at = place(about.bytes, chunk);
        let end = at.end as u64;
        if data < at.start as u64 {
            data = platform::next_data(file, at.start as u64);
        }
        if end > size || data >= end {
            continue;
        }
        let content = &mut content[..at.len()];
        platform::read_exact_at(file, content, at.start as u64)?;
        there.set(chunk, weights::chunk_hash(about.bytes, chunk, content) == *hash);
    }
    Ok(there)
}

/// All files of a model.
pub struct PartialFiles {
    manifest: WeightsManifest,
    drafts: Vec<PartialFile>,
    /// Held while files get their names, and while they are opened by them.
    naming: Mutex<()>,
    _open: Option<File>,
}

impl PartialFiles {
    /// As far as they are in a folder, each called by its number there.
    pub(super) fn open(
        folder: &Path,
        manifest: WeightsManifest,
        hashes: Vec<Vec<ChunkHash>>,
        index: &Index,
    ) -> Result<Self, FetchError> {
        let mut drafts = Vec::new();
        for (n, (file, hashes)) in manifest.files.iter().zip(hashes).enumerate() {
            let to = folder.join(name(&manifest, n));
            let opened = PartialFile::open(to.clone(), *file, hashes, index).map_err(FetchError::disk(&to))?;
            drafts.push(opened);
        }
        Ok(Self { manifest, drafts, naming: Mutex::default(), _open: say_open(folder) })
    }

    /// What they are.
    #[must_use]
    pub fn manifest(&self) -> &WeightsManifest {
        &self.manifest
    }

    /// Files keep their names as long as this is held. For threads that may wait.
    pub(super) fn still(&self) -> MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where they are now, and what of them.
    pub(super) fn parts(&self) -> Vec<PartFile> {
        self.drafts.iter().map(PartialFile::part).collect()
    }

    fn draft(&self, file: u16) -> Option<&PartialFile> {
        self.drafts.get(usize::from(file))
    }

    /// Bytes of a file; none of one that there is not.
    pub(super) fn bytes(&self, file: u16) -> u64 {
        self.draft(file).map_or(0, |draft| draft.about.bytes)
    }

    /// Bytes of a chunk.
    pub(super) fn bytes_of(&self, (file, chunk): Chunk) -> u64 {
        chunk_bytes(self.bytes(file), chunk.into())
    }

    /// Every chunk there is.
    pub(super) fn all(&self) -> impl Iterator<Item = Chunk> {
        let of = |(file, draft): (u16, &PartialFile)| {
            // A file has fewer than 2³² chunks: the manifest was checked.
            (0..chunks(draft.about.bytes) as u32).map(move |chunk| (file, chunk))
        };
        (0..).zip(&self.drafts).flat_map(of)
    }

    pub(super) fn has(&self, (file, chunk): Chunk) -> bool {
        self.draft(file).is_some_and(|draft| draft.there().has(chunk.into()))
    }

    /// Bytes of all chunks that are there.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.all().filter(|chunk| self.has(*chunk)).map(|chunk| self.bytes_of(chunk)).sum()
    }

    /// Hashes of a file's chunks.
    pub(super) fn hashes(&self, file: u16) -> Option<&[ChunkHash]> {
        Some(&self.draft(file)?.hashes)
    }

    /// Which chunks of a file are there now.
    pub(super) fn bitfield(&self, file: u16) -> Option<Bitfield> {
        Some(self.draft(file)?.there().clone())
    }

    /// Whether this is that chunk.
    pub(super) fn fits(&self, (file, chunk): Chunk, content: &[u8]) -> bool {
        let Some(draft) = self.draft(file) else { return false };
        let hash = draft.hashes.get(chunk as usize);
        let bytes = draft.about.bytes;
        content.len() as u64 == chunk_bytes(bytes, chunk.into())
            && hash.is_some_and(|hash| weights::chunk_hash(bytes, chunk.into(), content) == *hash)
    }

    /// Writes a chunk that fits.
    pub(super) fn write(&self, (file, chunk): Chunk, content: &[u8]) -> Result<(), (PathBuf, io::Error)> {
        let Some(draft) = self.draft(file) else { return Ok(()) };
        let written = platform::write_all_at(&draft.file, content, u64::from(chunk) * CHUNK_BYTES);
        written.map_err(|error| (draft.path.clone(), error))?;
        draft.there().set(chunk.into(), true);
        Ok(())
    }

    /// A chunk, as it lies on the disk, if it is there. One that was changed since is not any more.
    pub(super) fn read(&self, (file, chunk): Chunk) -> Option<Vec<u8>> {
        let draft = self.draft(file).filter(|_| self.has((file, chunk)))?;
        let mut content = vec![0; self.bytes_of((file, chunk)) as usize];
        let read = platform::read_exact_at(&draft.file, &mut content, u64::from(chunk) * CHUNK_BYTES);
        if read.is_ok() && self.fits((file, chunk), &content) {
            return Some(content);
        }
        if !self.has((file, chunk)) {
            // It has gone meanwhile, as it was meant to.
            return None;
        }
        draft.there().set(chunk.into(), false);
        tracing::error!(
            file = %draft.now_at().display(), chunk,
            "the file has changed since it was fetched: the disk is damaged, or somebody writes to it"
        );
        None
    }

    /// Whether all of a file is there, and it is called so.
    pub(super) fn is_placed(&self, file: u16) -> bool {
        self.draft(file).is_some_and(|draft| draft.is_placed.load(Ordering::Acquire))
    }

    /// From now on these chunks count as not there: nobody is given what is about to go, nor takes it for damage.
    pub(super) fn forget(&self, chunks: &[Chunk]) {
        for (file, chunk) in chunks {
            self.draft(*file).into_iter().for_each(|draft| draft.there().set(u64::from(*chunk), false));
        }
    }

    /// Gives the room of chunks that count as not there back to the disk, of files that are not whole.
    pub(super) fn shed(&self, chunks: &[Chunk], index: &Index) -> Result<(), FetchError> {
        for (file, chunk) in chunks {
            let Some(draft) = self.draft(*file) else { continue };
            let gone = platform::punch(&draft.file, u64::from(*chunk) * CHUNK_BYTES, self.bytes_of((*file, *chunk)));
            gone.map_err(FetchError::disk(&draft.path))?;
        }
        let files: BTreeSet<u16> = chunks.iter().map(|(file, _)| *file).collect();
        for draft in files.into_iter().filter_map(|file| self.draft(file)) {
            draft.keep(index).map_err(FetchError::disk(&draft.path))?;
        }
        Ok(())
    }

    /// Has the disk keep what came, and gives the files their names once all of them are whole.
    pub(super) fn keep(&self, index: &Index) -> Result<(), FetchError> {
        let _naming = self.still();
        let is_whole = self.drafts.iter().all(PartialFile::is_whole);
        for draft in self.drafts.iter().filter(|draft| !draft.is_placed.load(Ordering::Acquire)) {
            let kept = if is_whole { draft.place(index) } else { draft.keep(index) };
            kept.map_err(FetchError::disk(&draft.path))?;
        }
        Ok(())
    }
}

/// Says that the files in a folder are open, as long as what is given back is there. A disk that knows no locks does not say it.
fn say_open(folder: &Path) -> Option<File> {
    let file = File::options().create(true).truncate(false).write(true).open(folder.join(OPEN)).ok()?;
    file.try_lock_shared().ok().map(|()| file)
}

/// Whether somebody has the files in a folder open.
pub(super) fn are_open(folder: &Path) -> bool {
    let file = File::options().write(true).open(folder.join(OPEN));
    file.is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// What a file of weights is called here: as those that read models expect it.
pub(super) fn name(manifest: &WeightsManifest, n: usize) -> String {
    let files = manifest.files.len();
    let ending = match manifest.form {
        weights::WeightsForm::Safetensors => "safetensors",
        weights::WeightsForm::Gguf => "gguf",
    };
    if files == 1 { format!("model.{ending}") } else { format!("model-{:05}-of-{files:05}.{ending}", n + 1) }
}
