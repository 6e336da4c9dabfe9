//! One file of a repository comes into the cache: resumed where it broke off, whole and verified before it counts.

use super::{
    cache::{BlobHold, Cache, make_parents},
    client::{FileMeta, FileStream, Hub, deepest},
    error::HubError,
    hash::Hasher,
    name::{ModelName, Revision},
    news::PullNews,
};
use crate::store::disk;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is looked whether another process is done with a file.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What is fetched, and where to.
#[derive(Clone, Copy)]
pub(super) struct DownloadJob<'j> {
    pub hub: &'j Hub,
    pub cache: &'j Cache,
    pub name: &'j ModelName,
    pub commit: &'j Revision,
}

/// A stream that broke, which is no reason to give up yet.
struct Broke(String);

impl DownloadJob<'_> {
    /// Brings a file into the snapshot. Says how many bytes came over the network.
    pub async fn fetch(self, file: &str, news: &mut (dyn FnMut(PullNews<'_>) + Send)) -> Result<u64, HubError> {
        let meta = self.hub.meta(self.name, self.commit, file).await?;
        let _held = self.held(&meta, file, news).await?;
        let blob = self.cache.blob(&self.name.repo, &meta.hash);
        let mut fetched = 0;
        if is_whole(&blob, &meta) {
            news(PullNews::Here(meta.bytes));
        } else {
            fetched = self.blob(file, &meta, &blob, news).await?;
        }
        self.cache.link(&self.name.repo, self.commit, file, &meta.hash)?;
        Ok(fetched)
    }

    /// Waits until nobody else fetches the same.
    async fn held(
        self,
        meta: &FileMeta,
        file: &str,
        news: &mut (dyn FnMut(PullNews<'_>) + Send),
    ) -> Result<BlobHold, HubError> {
        let path = self.cache.lock(&self.name.repo, &meta.hash);
        let mut told = false;
        loop {
            if let Some(held) = BlobHold::take(&path)? {
                return Ok(held);
            }
            if !told {
                news(PullNews::Waits { file });
                told = true;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn blob(
        self,
        file: &str,
        meta: &FileMeta,
        blob: &Path,
        news: &mut (dyn FnMut(PullNews<'_>) + Send),
    ) -> Result<u64, HubError> {
        let path = self.cache.incomplete(&self.name.repo, &meta.hash);
        let mut fetched = 0;
        // What was here before may be of no use: then all of it comes once more.
        for _ in 0..2 {
            let mut draft = PartialDownload::open(&path, meta).await?;
            let resumed = draft.done > 0;
            news(PullNews::Here(draft.done));
            fetched += self.rest(file, meta, &mut draft, news).await?;
            let lost = draft.done;
            if draft.place(meta, blob)? {
                return Ok(fetched);
            }
            news(PullNews::Lost(lost));
            if !resumed {
                break;
            }
        }
        Err(HubError::Hash { repo: self.name.repo.clone(), file: file.to_owned() })
    }

    /// Fetches what a draft lacks, however often the stream breaks, as long as something comes.
    async fn rest(
        self,
        file: &str,
        meta: &FileMeta,
        draft: &mut PartialDownload,
        news: &mut (dyn FnMut(PullNews<'_>) + Send),
    ) -> Result<u64, HubError> {
        let patience = self.hub.settings().patience;
        let (mut fetched, mut tries, mut wait) = (0, 0, patience.first_wait);
        while draft.done < meta.bytes {
            let stream = self.hub.stream(self.name, self.commit, (file, meta), draft.done).await?;
            let before = fetched;
            let Some(Broke(why)) = draft.take(stream, meta, &mut fetched, news).await? else { continue };
            if fetched > before {
                (tries, wait) = (0, patience.first_wait);
            }
            tries += 1;
            if tries >= patience.tries {
                let repo = self.name.repo.clone();
                return Err(HubError::Broken { repo, file: file.into(), done: draft.done, total: meta.bytes, why });
            }
            tracing::debug!(file, done = draft.done, why, "goes on with a file that broke off");
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        Ok(fetched)
    }
}

/// Whether a blob is there. One that was cut is not.
fn is_whole(blob: &Path, meta: &FileMeta) -> bool {
    fs::metadata(blob).is_ok_and(|about| about.is_file() && about.len() == meta.bytes)
}

/// A file that is not whole yet, under a name that nobody takes for a file's.
struct PartialDownload {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    done: u64,
}

impl PartialDownload {
    /// With what is there of it.
    async fn open(path: &Path, meta: &FileMeta) -> Result<Self, HubError> {
        let (own, hash, bytes) = (path.to_owned(), meta.hash.clone(), meta.bytes);
        let read = move || {
            make_parents(&own)?;
            let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&own)?;
            let mut done = file.metadata()?.len();
            if done > bytes {
                file.set_len(0)?;
                done = 0;
            }
            let mut hasher = hash.hasher(bytes);
            hasher.read(&mut file, &mut |_| ())?;
            Ok(Self { path: own, file, hasher, done })
        };
        let read = tokio::task::spawn_blocking(read).await.map_err(io::Error::other);
        read.and_then(|draft| draft).map_err(HubError::disk(path))
    }

    /// Takes what comes, until it ends or breaks.
    async fn take(
        &mut self,
        stream: FileStream,
        meta: &FileMeta,
        fetched: &mut u64,
        news: &mut (dyn FnMut(PullNews<'_>) + Send),
    ) -> Result<Option<Broke>, HubError> {
        let FileStream { from, mut response } = stream;
        if from != self.done {
            news(PullNews::Lost(self.done));
            self.begin_anew(meta)?;
        }
        loop {
            let bytes = match response.chunk().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) if self.done == meta.bytes => return Ok(None),
                Ok(None) => return Ok(Some(Broke("it ended too soon".into()))),
                Err(error) => return Ok(Some(Broke(deepest(&error)))),
            };
            // More than the hub said is no part of the file; that something is wrong shows in the hash.
            let rest = usize::try_from(meta.bytes - self.done).unwrap_or(usize::MAX);
            let bytes = &bytes[..bytes.len().min(rest)];
            if bytes.is_empty() {
                return Ok(None);
            }
            self.file.write_all(bytes).map_err(HubError::disk(&self.path))?;
            self.hasher.update(bytes);
            self.done += bytes.len() as u64;
            *fetched += bytes.len() as u64;
            news(PullNews::Came(bytes.len() as u64));
        }
    }

    fn begin_anew(&mut self, meta: &FileMeta) -> Result<(), HubError> {
        use std::io::Seek as _;
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(HubError::disk(&self.path))?;
        (self.hasher, self.done) = (meta.hash.hasher(meta.bytes), 0);
        Ok(())
    }

    /// Gives the file its name, if it is what its hash says; else nothing is left of it.
    fn place(self, meta: &FileMeta, blob: &Path) -> Result<bool, HubError> {
        if self.hasher.finish() != meta.hash {
            fs::remove_file(&self.path).map_err(HubError::disk(&self.path))?;
            return Ok(false);
        }
        let placed = self.file.sync_all().and_then(|()| fs::rename(&self.path, blob));
        placed.and_then(|()| disk::sync_folder(blob)).map_err(HubError::disk(blob))?;
        Ok(true)
    }
}
