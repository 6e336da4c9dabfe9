//! Models that came from peers, as they lie in the data folder: what there is, whether it is what it should be, and its end.

use super::{
    drafts::{self, INCOMPLETE},
    identify::place,
    notes,
    origin::{KeptOrigin, kept_origin},
    remembered::{self, FOLDER},
};
use crate::{plain, platform, store::disk};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tsnode_kernels::source::SMALL_FILES;
use tsnode_protocol::{
    ModelFile, ModelId,
    weights::{self, CHUNK_BYTES, ChunkHash, WeightsForm, WeightsManifest, chunk_bytes, chunks},
};

/// One of them.
#[derive(Clone, Debug)]
pub struct KeptModel {
    /// What those called it from whom it came; its id where that is not known any more.
    pub name: String,
    /// What it is.
    pub id: ModelId,
    /// Where it lies.
    pub folder: PathBuf,
    /// Where it was from before.
    pub origin: KeptOrigin,
    /// All of its weights (bytes); nothing where the folder does not say any more what they are to be.
    pub bytes: u64,
    /// Of that, what lies here, by whole chunks (bytes).
    pub held: u64,
    outline: Option<FilesOutline>,
}

/// What the files are to be, and their chunks' hashes.
type FilesOutline = (WeightsManifest, Vec<Vec<ChunkHash>>);

/// What is wrong with one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptDamage {
    /// Nothing says what the folder's files are to be.
    Outline(PathBuf),
    /// Chunks of a file of weights are not what their hashes say.
    Chunks {
        /// The file.
        path: PathBuf,
        /// How many.
        wrong: usize,
        /// Whether all of the file should be there.
        is_whole: bool,
    },
    /// The small files in a folder are not those of its model.
    Small(PathBuf),
    /// A file cannot be read.
    Unreadable(PathBuf, String),
}

/// Those of a data folder, by name.
#[must_use]
pub fn kept(data_dir: &Path) -> Vec<KeptModel> {
    let models = data_dir.join(FOLDER);
    let names: BTreeMap<PathBuf, String> =
        remembered::all(&models).into_iter().map(|known| (known.path, known.name)).collect();
    let read = |entry: fs::DirEntry| {
        let called = PathBuf::from(entry.file_name());
        let id = called.to_str()?.parse::<ModelId>().ok()?;
        let name = names.get(&called).cloned().unwrap_or_else(|| id.to_string());
        entry.path().is_dir().then(|| KeptModel::read(name, id, entry.path()))
    };
    let mut found: Vec<KeptModel> = fs::read_dir(&models).into_iter().flatten().flatten().filter_map(read).collect();
    found.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    found
}

impl KeptModel {
    fn read(name: String, id: ModelId, folder: PathBuf) -> Self {
        let (outline, origin) = (notes::read(&folder), kept_origin(&folder));
        let mut model = Self { name, id, folder, origin, bytes: 0, held: 0, outline };
        if let Some((manifest, _)) = &model.outline {
            model.bytes = manifest.bytes();
            model.held = (0..manifest.files.len()).map(|n| model.held_of(manifest, n)).sum();
        }
        model
    }

    /// Whether a peer fetches it or serves layers of it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        drafts::are_open(&self.folder)
    }

    /// Whether all of it is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let Some((manifest, _)) = &self.outline else { return false };
        (0..manifest.files.len()).all(|n| self.file(manifest, n).is_some_and(|(_, is_whole)| is_whole))
    }

    /// Where a file is, and whether it is called as one of which all is there.
    fn file(&self, manifest: &WeightsManifest, n: usize) -> Option<(PathBuf, bool)> {
        let whole = self.folder.join(drafts::name(manifest, n));
        let part = disk::beside(&whole, INCOMPLETE);
        let found = if whole.is_file() { (whole, true) } else { (part, false) };
        found.0.is_file().then_some(found)
    }

    fn held_of(&self, manifest: &WeightsManifest, n: usize) -> u64 {
        let bytes = manifest.files[n].bytes;
        match self.file(manifest, n) {
            Some((_, true)) => bytes,
            Some((path, false)) => {
                let Ok(file) = File::open(path) else { return 0 };
                written(&file, bytes).map(|chunk| chunk_bytes(bytes, chunk)).sum()
            }
            None => 0,
        }
    }

    /// Holds what is here against its hashes. `read` is told of bytes that were read.
    #[must_use]
    pub fn verify(&self, mut read: impl FnMut(u64)) -> Vec<KeptDamage> {
        let Some((manifest, hashes)) = &self.outline else {
            return vec![KeptDamage::Outline(self.folder.clone())];
        };
        let mut found = Vec::new();
        for (n, hashes) in hashes.iter().enumerate() {
            let Some((path, is_whole)) = self.file(manifest, n) else { continue };
            match wrong_chunks(&path, (manifest.files[n].bytes, is_whole), hashes, &mut read) {
                Ok(0) => {}
                Ok(wrong) => found.push(KeptDamage::Chunks { path, wrong, is_whole }),
                Err(error) => found.push(KeptDamage::Unreadable(path, plain::io_error(&error))),
            }
        }
        if manifest.form == WeightsForm::Safetensors && manifest.id(&small_files(&self.folder), None) != self.id {
            found.push(KeptDamage::Small(self.folder.clone()));
        }
        found
    }
}

/// Removes one that no peer has open. Says how many bytes that were.
///
/// # Errors
/// When the disk refuses.
pub fn remove_kept(data_dir: &Path, model: &KeptModel) -> io::Result<u64> {
    // First: what is half gone is not taken for the model that was lent last.
    remembered::forget(&data_dir.join(FOLDER), model.id);
    fs::remove_dir_all(&model.folder).map(|()| model.held)
}

impl KeptDamage {
    /// Where.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Outline(path) | Self::Chunks { path, .. } | Self::Small(path) | Self::Unreadable(path, _) => path,
        }
    }

    /// Takes what does not fit for what is not there, so that it is fetched again; what fits stays. Only where no peer has it open.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn undo(&self) -> io::Result<()> {
        match self {
            Self::Outline(folder) => fs::remove_dir_all(folder),
            Self::Small(folder) => {
                let mut there = SMALL_FILES.iter().map(|name| folder.join(name)).filter(|path| path.is_file());
                there.try_for_each(fs::remove_file)
            }
            Self::Chunks { path, is_whole, .. } => {
                // The index may have it as it was left by whoever wrote it: another date is another file.
                File::options().write(true).open(path)?.set_modified(SystemTime::now())?;
                if *is_whole { fs::rename(path, disk::beside(path, INCOMPLETE)) } else { Ok(()) }
            }
            Self::Unreadable(path, _) => fs::remove_file(path),
        }
    }
}

impl fmt::Display for KeptDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path().display())?;
        match self {
            Self::Outline(_) => f.write_str("nothing says any more what its files are to be"),
            Self::Chunks { wrong: 1, .. } => f.write_str("a chunk is not what its hash says"),
            Self::Chunks { wrong, .. } => write!(f, "{wrong} chunks are not what their hashes say"),
            Self::Small(_) => f.write_str("config.json, the tokenizer or what is beside them is not that of the model"),
            Self::Unreadable(_, why) => f.write_str(why),
        }
    }
}

/// Chunks of a file of so many bytes of which something was written.
fn written(file: &File, bytes: u64) -> impl Iterator<Item = u64> {
    let mut data = None;
    (0..chunks(bytes)).filter(move |chunk| {
        let (start, end) = (chunk * CHUNK_BYTES, chunk * CHUNK_BYTES + chunk_bytes(bytes, *chunk));
        if data.is_none_or(|data| data < start) {
            data = Some(platform::next_data(file, start));
        }
        data.is_some_and(|data| data < end)
    })
}

/// How many chunks of a file do not fit; of one that is not whole, of those that were written.
fn wrong_chunks(
    path: &Path,
    (bytes, is_whole): (u64, bool),
    hashes: &[ChunkHash],
    read: &mut impl FnMut(u64),
) -> io::Result<usize> {
    let file = File::open(path)?;
    let looked: Vec<u64> = if is_whole { (0..chunks(bytes)).collect() } else { written(&file, bytes).collect() };
    let (mut content, mut wrong) = (vec![0; CHUNK_BYTES as usize], 0);
    for chunk in looked {
        let at = place(bytes, chunk);
        let content = &mut content[..at.len()];
        let is_right = match platform::read_exact_at(&file, content, at.start as u64) {
            Ok(()) => {
                hashes.get(chunk as usize).is_some_and(|hash| weights::chunk_hash(bytes, chunk, content) == *hash)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        wrong += usize::from(!is_right);
        read(at.len() as u64);
    }
    Ok(wrong)
}

/// The small files of a folder, as a card names them.
fn small_files(folder: &Path) -> Vec<ModelFile> {
    let read = |name: &&str| {
        let bytes = fs::read(folder.join(name)).ok()?;
        Some(ModelFile { name: (*name).to_owned(), bytes: bytes.len() as u64, hash: *blake3::hash(&bytes).as_bytes() })
    };
    SMALL_FILES.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Index;
    use tsnode_protocol::weights::WeightsFile;

    const BYTES: u64 = 3 * CHUNK_BYTES - 7;

    /// A model of one file, of which these chunks are there, and what its file should be.
    fn home(there: &[u64]) -> (tempfile::TempDir, KeptModel, Vec<u8>) {
        let data_dir = tempfile::tempdir().unwrap();
        let mut content = vec![0; BYTES as usize];
        blake3::Hasher::new().update(b"kept").finalize_xof().fill(&mut content);
        let hashes: Vec<ChunkHash> =
            (0..chunks(BYTES)).map(|chunk| weights::chunk_hash(BYTES, chunk, &content[place(BYTES, chunk)])).collect();
        let file = WeightsFile { bytes: BYTES, root: weights::root(&hashes) };
        let manifest = WeightsManifest { form: WeightsForm::Safetensors, files: vec![file] };
        let small = [("config.json", "{}"), ("tokenizer.json", "[]")];
        let hash = |text: &str| *blake3::hash(text.as_bytes()).as_bytes();
        let files = small.map(|(name, text)| ModelFile { name: name.into(), bytes: 2, hash: hash(text) });
        let id = manifest.id(&files, None);
        let folder = data_dir.path().join(FOLDER).join(id.to_string());
        fs::create_dir_all(&folder).unwrap();
        small.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
        notes::write(&folder, &manifest, &[hashes]).unwrap();
        let file = File::create(folder.join("model.safetensors.incomplete")).unwrap();
        file.set_len(BYTES).unwrap();
        for chunk in there {
            let at = place(BYTES, *chunk);
            platform::write_all_at(&file, &content[at.clone()], at.start as u64).unwrap();
        }
        let [model] = <[KeptModel; 1]>::try_from(kept(data_dir.path())).unwrap();
        assert_eq!((model.id, model.name.clone()), (id, id.to_string()), "nobody remembers what it was called");
        (data_dir, model, content)
    }

    fn again(data_dir: &tempfile::TempDir) -> KeptModel {
        kept(data_dir.path()).remove(0)
    }

    #[test]
    fn what_is_here_of_it_is_seen_and_what_is_wrong_of_that_is_found() {
        let (data_dir, model, content) = home(&[0, 2]);
        assert_eq!((model.bytes, model.is_whole()), (BYTES, false));
        // Where the disk does not say what was written, all was.
        assert!([BYTES, BYTES - CHUNK_BYTES].contains(&model.held), "{}", model.held);
        let path = model.folder.join("model.safetensors.incomplete");
        let file = File::options().write(true).open(&path).unwrap();
        platform::write_all_at(&file, &content, 0).unwrap();
        let mut read = 0;
        assert_eq!(again(&data_dir).verify(|bytes| read += bytes), []);
        assert_eq!(read, BYTES);
        platform::write_all_at(&file, &[content[5] ^ 1], 5).unwrap();
        let damage = KeptDamage::Chunks { path: path.clone(), wrong: 1, is_whole: false };
        assert_eq!(again(&data_dir).verify(|_| ()), [damage]);
        let whole = path.with_extension("");
        fs::rename(&path, &whole).unwrap();
        let model = again(&data_dir);
        let damage = model.verify(|_| ());
        assert!(model.is_whole() && damage.len() == 1, "{damage:?}");
        damage[0].undo().unwrap();
        assert!(path.exists() && !whole.exists() && !again(&data_dir).is_whole(), "what fits of it stays");
    }

    #[test]
    fn it_is_seen_that_somebody_has_it_open() {
        let (data_dir, model, _) = home(&[0]);
        assert!(!model.is_open());
        let (manifest, hashes) = model.outline.clone().unwrap();
        let _open = drafts::PartialFiles::open(&model.folder, manifest, hashes, &Index::default()).unwrap();
        assert!(model.is_open() && again(&data_dir).is_open(), "whoever looks does not take it");
    }

    #[test]
    fn files_of_another_model_and_a_folder_that_says_nothing_are_found() {
        let (data_dir, model, _) = home(&[]);
        assert_eq!(model.verify(|_| ()).len(), if model.held == 0 { 0 } else { 1 });
        fs::write(model.folder.join("config.json"), "[]").unwrap();
        let damage = model.verify(|_| ());
        assert_eq!(damage.last(), Some(&KeptDamage::Small(model.folder.clone())));
        fs::write(model.folder.join("outline"), "?").unwrap();
        let model = again(&data_dir);
        assert_eq!((model.bytes, model.is_whole()), (0, false));
        assert_eq!(model.verify(|_| ()), [KeptDamage::Outline(model.folder.clone())]);
        remove_kept(data_dir.path(), &model).unwrap();
        assert!(kept(data_dir.path()).is_empty());
    }
}
