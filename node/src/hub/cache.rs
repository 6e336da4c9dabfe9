//! The Hugging Face cache of this host, in its own layout: `models--org--repo/{blobs,snapshots,refs}`.

use super::{
    catalogue,
    error::HubError,
    hash::BlobHash,
    name::{ModelName, Quant, RepoId, Revision},
    repo_files::{self, CheckpointFormat, ChosenFiles, INDEX},
};
use crate::{platform, store::disk};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Ending of what is not whole yet.
const INCOMPLETE: &str = "incomplete";
/// Largest index that is read (bytes).
const INDEX_BYTES: u64 = 64 << 20;
/// Largest file that names a commit (bytes).
const REF_BYTES: u64 = 256;
/// Says of a repository that its terms have to be accepted by whoever has it. Beside what others know of the cache.
const GATED: &str = ".gated";
/// Says of a repository what the hub says of its licence, and is there as the other is.
const LICENCE: &str = ".licence";
/// Folders within folders of a snapshot.
const DEPTH: usize = 8;

/// The cache: a folder that other programs use as well.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// How it is asked for.
    pub name: ModelName,
    /// As of which commit.
    pub commit: Revision,
    /// Its files' sizes together (bytes).
    pub bytes: u64,
    /// A file that is missing.
    pub lacking: Option<String>,
    /// Whether it has to be imported before it is served.
    pub pickles: bool,
    /// What is opened to serve it.
    pub path: PathBuf,
}

/// What is wrong with a file of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It is not what its name says.
    Hash(PathBuf),
    /// A link to a file that is not there.
    Dangling(PathBuf),
    /// It cannot be read.
    Unreadable(PathBuf, String),
}

impl Cache {
    /// The cache in a folder, which need not be there yet.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn repo(&self, repo: &RepoId) -> PathBuf {
        self.folder.join(repo.folder())
    }

    /// Where a file's bytes lie.
    pub(super) fn blob(&self, repo: &RepoId, hash: &BlobHash) -> PathBuf {
        self.repo(repo).join("blobs").join(hash.digits())
    }

    /// Where they lie as long as they are not all there.
    pub(super) fn incomplete(&self, repo: &RepoId, hash: &BlobHash) -> PathBuf {
        disk::beside(&self.blob(repo, hash), INCOMPLETE)
    }

    /// The file that whoever fetches a blob holds locked, as `huggingface_hub` does.
    pub(super) fn lock(&self, repo: &RepoId, hash: &BlobHash) -> PathBuf {
        self.folder.join(".locks").join(repo.folder()).join(format!("{hash}.lock"))
    }

    /// Where a revision's files are.
    #[must_use]
    pub fn snapshot(&self, repo: &RepoId, commit: &Revision) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit.as_str())
    }

    /// The commit that a revision is known to be.
    pub(super) fn commit(&self, repo: &RepoId, revision: &Revision) -> Option<Revision> {
        if revision.is_commit() {
            return Some(revision.clone());
        }
        let path = self.repo(repo).join("refs").join(revision.as_str());
        fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= REF_BYTES)?;
        fs::read_to_string(path).ok()?.trim().parse().ok().filter(Revision::is_commit)
    }

    /// Keeps which commit a revision is.
    pub(super) fn remember(&self, repo: &RepoId, revision: &Revision, commit: &Revision) -> Result<(), HubError> {
        if revision == commit || self.commit(repo, revision).as_ref() == Some(commit) {
            return Ok(());
        }
        let path = self.repo(repo).join("refs").join(revision.as_str());
        let written = make_parents(&path).and_then(|()| {
            let draft = disk::beside(&path, &format!("{}.tmp", std::process::id()));
            fs::write(&draft, commit.as_str()).and_then(|()| fs::rename(&draft, &path))
        });
        written.map_err(HubError::disk(&path))
    }

    /// Keeps whether terms have to be accepted by whoever has a repository.
    pub(super) fn mark_gated(&self, repo: &RepoId, gated: bool) -> Result<(), HubError> {
        let path = self.repo(repo).join(GATED);
        let marked = match gated {
            true => make_parents(&path).and_then(|()| fs::write(&path, [])),
            false => fs::remove_file(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        };
        marked.map_err(HubError::disk(&path))
    }

    /// Keeps a repository's licence, as the hub calls it.
    pub(super) fn mark_licence(&self, repo: &RepoId, licence: &str) -> Result<(), HubError> {
        let path = self.repo(repo).join(LICENCE);
        make_parents(&path).and_then(|()| fs::write(&path, licence)).map_err(HubError::disk(&path))
    }

    /// A repository's licence: as the hub said it when something of it was fetched, or else as the catalogue has it.
    #[must_use]
    pub fn licence(&self, repo: &RepoId) -> Option<String> {
        let path = self.repo(repo).join(LICENCE);
        let is_short = fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() <= REF_BYTES);
        let said = is_short.then(|| fs::read_to_string(path).ok()).flatten();
        said.or_else(|| Some(catalogue::aliases().iter().find(|alias| alias.model.repo == *repo)?.licence.clone()))
    }

    /// Whether a file of a snapshot is there; a link to nothing is not.
    pub(super) fn has(&self, repo: &RepoId, commit: &Revision, file: &str) -> bool {
        self.snapshot(repo, commit).join(file).is_file()
    }

    /// Makes a snapshot's link to a blob, in the place of one that led nowhere.
    pub(super) fn link(&self, repo: &RepoId, commit: &Revision, file: &str, hash: &BlobHash) -> Result<(), HubError> {
        let pointer = self.snapshot(repo, commit).join(file);
        let up = "../".repeat(file.split('/').count() + 1);
        let draft = disk::beside(&pointer, &format!("{}.new", std::process::id()));
        let linked = make_parents(&pointer).and_then(|()| {
            // Of a process that was killed.
            let _ = fs::remove_file(&draft);
            platform::symlink(format!("{up}blobs/{hash}"), &draft)?;
            fs::rename(&draft, &pointer)
        });
        linked.map_err(HubError::disk(&pointer))
    }

    /// A model that is here, as far as it is.
    pub(super) fn model(&self, name: &ModelName) -> Result<Option<CachedModel>, HubError> {
        let Some(commit) = self.commit(&name.repo, &name.revision) else { return Ok(None) };
        let snapshot = self.snapshot(&name.repo, &commit);
        let files = files_in(&snapshot);
        if files.is_empty() {
            return Ok(None);
        }
        let choice = repo_files::choose(&files, name)?;
        Ok(Some(self.described(name, commit, &choice)))
    }

    fn described(&self, name: &ModelName, commit: Revision, choice: &ChosenFiles) -> CachedModel {
        let snapshot = self.snapshot(&name.repo, &commit);
        let path = match &choice.form {
            CheckpointFormat::Gguf(first) => snapshot.join(first),
            CheckpointFormat::Folder | CheckpointFormat::Pickles => snapshot.clone(),
        };
        let bytes = choice.files.iter().filter_map(|file| fs::metadata(snapshot.join(file)).ok());
        let pickles = choice.form == CheckpointFormat::Pickles;
        let lacking = if pickles { None } else { repo_files::lacking(choice, index_of(&snapshot).as_deref()) };
        CachedModel { name: name.clone(), bytes: bytes.map(|about| about.len()).sum(), commit, lacking, pickles, path }
    }

    /// All models that are here.
    #[must_use]
    pub fn models(&self) -> Vec<CachedModel> {
        let mut found = Vec::new();
        for repo in self.repos() {
            for (revision, commit) in self.revisions(&repo) {
                let files = files_in(&self.snapshot(&repo, &commit));
                let name = ModelName { repo: repo.clone(), quant: None, revision };
                let known = repo_files::names(&files, &name).into_iter();
                let described = known.filter_map(|name| {
                    let choice = repo_files::choose(&files, &name).ok()?;
                    Some(self.described(&name, commit.clone(), &choice))
                });
                found.extend(described);
            }
        }
        found
    }

    /// Repositories of which something is here.
    fn repos(&self) -> BTreeSet<RepoId> {
        names_in(&self.folder).iter().filter_map(|name| RepoId::of_folder(name)).collect()
    }

    /// Revisions of a repository: what refs name, and commits that none does.
    fn revisions(&self, repo: &RepoId) -> Vec<(Revision, Revision)> {
        let refs = self.repo(repo).join("refs");
        let named = files_in(&refs).into_iter().filter_map(|name| name.parse::<Revision>().ok());
        let mut found: Vec<_> = named.filter_map(|name| Some((name.clone(), self.commit(repo, &name)?))).collect();
        for name in names_in(&self.repo(repo).join("snapshots")) {
            let commit = name.parse::<Revision>().ok().filter(Revision::is_commit);
            if let Some(commit) = commit.filter(|commit| found.iter().all(|(_, known)| known != commit)) {
                found.push((commit.clone(), commit));
            }
        }
        found
    }

    /// Removes a model, and what nothing else of the repository is made of. Says how many bytes that were.
    ///
    /// # Errors
    /// When there is none, or the disk refuses.
    pub fn remove(&self, name: &ModelName) -> Result<u64, HubError> {
        let absent = || HubError::Absent { name: name.clone(), folder: self.folder.clone() };
        let root = self.repo(&name.repo);
        if !root.is_dir() {
            return Err(absent());
        }
        let before = bytes_in(&root);
        if name.quant.is_none() && name.revision == Revision::default() {
            let locks = self.folder.join(".locks").join(name.repo.folder());
            let _ = fs::remove_dir_all(locks);
            return fs::remove_dir_all(&root).map(|()| before).map_err(HubError::disk(&root));
        }
        let commit = self.commit(&name.repo, &name.revision).ok_or_else(absent)?;
        let snapshot = self.snapshot(&name.repo, &commit);
        let is_meant = |file: &String| name.quant.is_none() || Quant::of_file(file) == name.quant;
        let mut meant: Vec<String> = links_in(&snapshot).into_iter().filter(is_meant).collect();
        meant.sort();
        if meant.is_empty() {
            return Err(absent());
        }
        for file in &meant {
            let path = snapshot.join(file);
            fs::remove_file(&path).map_err(HubError::disk(&path))?;
        }
        if links_in(&snapshot).is_empty() {
            fs::remove_dir_all(&snapshot).map_err(HubError::disk(&snapshot))?;
        }
        self.remove_unlinked(&name.repo)?;
        Ok(before.saturating_sub(bytes_in(&root)))
    }

    /// Removes blobs that no snapshot has.
    fn remove_unlinked(&self, repo: &RepoId) -> Result<(), HubError> {
        let snapshots = self.repo(repo).join("snapshots");
        let target = |file: &String| fs::read_link(snapshots.join(file)).ok()?.file_name().map(ToOwned::to_owned);
        let linked: BTreeSet<_> = links_in(&snapshots).iter().filter_map(target).collect();
        let blobs = self.repo(repo).join("blobs");
        for name in names_in(&blobs) {
            if !linked.contains(Path::new(&name).as_os_str()) {
                let path = blobs.join(&name);
                fs::remove_file(&path).map_err(HubError::disk(&path))?;
            }
        }
        Ok(())
    }

    /// Holds every file of a repository against its hash. `read` is told of bytes that were read.
    #[must_use]
    pub fn verify(&self, repo: &RepoId, mut read: impl FnMut(u64)) -> Vec<Damage> {
        let root = self.repo(repo);
        let mut found = Vec::new();
        for name in names_in(&root.join("blobs")) {
            let path = root.join("blobs").join(&name);
            // What is not named by its hash is not whole yet.
            let Some(hash) = BlobHash::of_etag(&name) else { continue };
            match hash.fits(&path, &mut read) {
                Ok(true) => {}
                Ok(false) => found.push(Damage::Hash(path)),
                Err(error) => found.push(Damage::Unreadable(path, crate::plain::io_error(&error))),
            }
        }
        let snapshots = root.join("snapshots");
        let dangling = links_in(&snapshots).into_iter().map(|file| snapshots.join(file)).filter(|path| !path.exists());
        found.extend(dangling.map(Damage::Dangling));
        found
    }

    /// Bytes of a repository's blobs.
    #[must_use]
    pub fn bytes(&self, repo: &RepoId) -> u64 {
        bytes_in(&self.repo(repo).join("blobs"))
    }

    /// Repositories that a name means; all of them where there is none.
    #[must_use]
    pub fn meant(&self, name: Option<&ModelName>) -> Vec<RepoId> {
        self.repos().into_iter().filter(|repo| name.is_none_or(|name| name.repo == *repo)).collect()
    }
}

impl Damage {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Hash(path) | Self::Dangling(path) | Self::Unreadable(path, _) => path,
        }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hash(path) => write!(f, "{}: it is not what its name says", path.display()),
            Self::Dangling(path) => write!(f, "{}: what it links to is not there", path.display()),
            Self::Unreadable(path, why) => write!(f, "{}: {why}", path.display()),
        }
    }
}

/// Whether the hub said of a model at a path in such a cache that its terms have to be accepted by whoever has it. Of what other
/// programs fetched it is not known.
#[must_use]
pub fn is_gated(path: &Path) -> bool {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let repo = full.ancestors().find(|folder| folder.ends_with("snapshots")).and_then(Path::parent);
    repo.is_some_and(|repo| repo.join(GATED).exists())
}

/// Where a model at a path in such a cache came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedOrigin {
    /// Its repository and commit: `org/repo@0123…`.
    pub source: String,
    /// Its licence, as far as it is known.
    pub licence: Option<String>,
}

/// Where a model at a path in such a cache came from; none of one that is not in such a cache.
#[must_use]
pub fn origin_of(path: &Path) -> Option<CachedOrigin> {
    let full = std::path::absolute(path).ok()?;
    let snapshots = full.ancestors().find(|folder| folder.ends_with("snapshots"))?;
    let commit = full.strip_prefix(snapshots).ok()?.components().next()?.as_os_str().to_str()?;
    let commit = commit.parse::<Revision>().ok().filter(Revision::is_commit)?;
    let folder = snapshots.parent()?;
    let repo = RepoId::of_folder(folder.file_name()?.to_str()?)?;
    let licence = Cache::new(folder.parent()?).licence(&repo);
    Some(CachedOrigin { source: format!("{repo}@{commit}"), licence })
}

/// What a model at a path in such a cache is called: by its repository, where its folder is called after a commit.
#[must_use]
pub fn name_of(path: &Path) -> Option<String> {
    let full = std::path::absolute(path).ok()?;
    let parts: Vec<&str> = full
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    let at = parts.iter().rposition(|part| *part == "snapshots").filter(|at| *at > 0)?;
    let repo = RepoId::of_folder(parts[at - 1])?;
    parts.get(at + 1)?.parse::<Revision>().ok().filter(Revision::is_commit)?;
    let file = parts.get(at + 2..).filter(|rest| !rest.is_empty()).map(|rest| rest.join("/"));
    match file {
        None => Some(repo.to_string()),
        Some(file) if file.ends_with(".safetensors") => Some(repo.to_string()),
        Some(file) => Quant::of_file(&file).map(|quant| format!("{repo}:{quant}")),
    }
}

pub(super) fn make_parents(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn index_of(snapshot: &Path) -> Option<Vec<u8>> {
    let path = snapshot.join(INDEX);
    fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= INDEX_BYTES)?;
    fs::read(path).ok()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Files below a folder, by their paths in it; links to nothing are none.
fn files_in(folder: &Path) -> Vec<String> {
    links_in(folder).into_iter().filter(|file| folder.join(file).is_file()).collect()
}

/// The same, with links to nothing.
fn links_in(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, above: &str, depth: usize, found: &mut Vec<String>) {
        for name in names_in(folder) {
            let (path, own) = (folder.join(&name), format!("{above}{name}"));
            match fs::symlink_metadata(&path) {
                Ok(about) if about.is_dir() && depth > 0 => walk(&path, &format!("{own}/"), depth - 1, found),
                Ok(about) if !about.is_dir() => found.push(own),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, "", DEPTH, &mut found);
    found
}

fn bytes_in(folder: &Path) -> u64 {
    let size = |file: &String| fs::symlink_metadata(folder.join(file)).ok();
    links_in(folder).iter().filter_map(size).filter(|about| about.is_file()).map(|about| about.len()).sum()
}

/// Holds a blob against everybody else who would fetch it; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct BlobHold {
    _file: File,
}

impl BlobHold {
    /// Takes a lock's file, if nobody has it.
    pub fn take(path: &Path) -> Result<Option<Self>, HubError> {
        let opened = make_parents(path).and_then(|()| File::options().create(true).append(true).open(path));
        let file = opened.map_err(HubError::disk(path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(HubError::disk(path)(error)),
        }
    }
}

#[cfg(test)]
mod tests;
