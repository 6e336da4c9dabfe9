//! Checkpoints: safetensors and GGUF files, mapped into memory and used as they lie there.

mod files;

pub use crate::finite::Bad;
pub use crate::stored::Stored;
use crate::{
    cpu::{Cpu, Dtype, Matrix},
    finite,
    gguf::{Architecture, GgufError},
    quant::{Blocks, QuantType},
};
use safetensors::SafeTensors;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes hashed in one place of a file for a model's id.
const SAMPLE: usize = 64 * 1024;
/// Distance between hashed places.
const SAMPLE_EVERY: usize = 64 * 1024 * 1024;

/// Why weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A name that is there, and no file.
    #[error("{0}: is not a file: get it again")]
    NotAFile(PathBuf),
    /// A folder without weights.
    #[error(
        "there is no model.safetensors, and no model.safetensors.index.json that names other files, but {found}: \
         get the model in safetensors, or give one of its files by name"
    )]
    NoFiles {
        /// Files that could be meant.
        found: String,
    },
    /// One of several files is not there.
    #[error("{path}: is missing; the weights are in {total} files: get it again")]
    NoShard {
        /// Which.
        path: PathBuf,
        /// Files of the model.
        total: u32,
    },
    /// What says which file has which tensor cannot be used.
    #[error("{path}: {error}")]
    Index {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: String,
    },
    /// Nothing says which of two copies of a tensor counts.
    #[error(
        "tensor {name} is in {first} and in {second}, and no weight_map of model.safetensors.index.json says in which it \
         counts: get the model's files again, all of one version"
    )]
    Twice {
        /// Which.
        name: String,
        /// The file that was read first.
        first: String,
        /// The other one.
        second: String,
    },
    /// Not a safetensors file, or one cut short.
    #[error("{file}: broken or cut short: {error}")]
    Broken {
        /// Which.
        file: String,
        /// What was found.
        error: String,
    },
    /// A GGUF file cannot be used.
    #[error("{path}: {error}")]
    Gguf {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: GgufError,
    },
    /// A tensor the model needs is not there.
    #[error("tensor {0} is missing: the weights are of another model, or a file is missing")]
    Missing(String),
    /// A tensor is not in the file that the index says has it.
    #[error("tensor {name} is missing: by the index it is in {file}, which is of another model or of another version")]
    NotIn {
        /// Which.
        name: String,
        /// The file that should have it.
        file: String,
    },
    /// A tensor has other sizes than config.json says.
    #[error("tensor {name} has shape {found:?}, config.json asks for {expected:?}")]
    Shape {
        /// Which.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// By the configuration.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a form that is not read.
    #[error("tensor {name} is stored as {found}; of safetensors, F32, F16 and BF16 are read")]
    Dtype {
        /// Which.
        name: String,
        /// In the file.
        found: String,
    },
    /// A tensor that nothing can be computed with.
    #[error("{file}: tensor {name} holds {bad}; the file is damaged or its training failed: get it again, or another")]
    NotFinite {
        /// The file.
        file: String,
        /// Which.
        name: String,
        /// What is in it first that is no number.
        bad: Bad,
    },
    /// More ranks than heads to share among them.
    #[error("tensor parallelism of {ranks} needs as many KV heads, and the model has {heads}: set --tensor-parallel")]
    Ranks {
        /// Asked for.
        ranks: usize,
        /// KV heads of the model.
        heads: usize,
    },
    /// The system gives no threads to load with.
    #[error("no threads to load with: {0}")]
    Threads(std::io::Error),
}

/// A file and its bytes.
#[derive(Clone)]
pub(crate) struct Storage {
    file: Arc<str>,
    held: Held,
}

#[derive(Clone)]
enum Held {
    Map(Arc<memmap2::Mmap>),
    Static(&'static [u8]),
}

impl Storage {
    /// Maps a file.
    pub(crate) fn map(path: &Path) -> Result<Self, WeightsError> {
        let io = |error| WeightsError::Io { path: path.to_owned(), error };
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::NotAFile(path.to_owned()));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read only. Someone who shortens the file while it is served can make reads fail with
        // SIGBUS, as with any program that maps its data; weights are not files people edit.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Self { file: path.display().to_string().into(), held: Held::Map(Arc::new(map)) })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Map(map) => map,
            Held::Static(bytes) => bytes,
        }
    }
}

/// A tensor of a file.
pub(crate) struct Part {
    /// What models call it.
    pub name: String,
    /// Its sizes, outermost first.
    pub shape: Vec<usize>,
    /// How its numbers are stored.
    pub stored: Stored,
    /// Where they lie.
    pub range: Range<usize>,
    /// What is added to each.
    pub shift: f32,
}

struct Entry {
    /// What the file calls it, for people who look for it there.
    called: String,
    storage: Storage,
    shard: usize,
    /// `Err` has the name of a form that is not read.
    stored: Result<Stored, String>,
    shape: Vec<usize>,
    range: Range<usize>,
    shift: f32,
    /// Set once every number of it was looked at, so that no stage loaded later looks again.
    finite: AtomicBool,
}

impl Entry {
    /// Refuses numbers that nothing can be computed with.
    fn check(&self, cpu: &Cpu) -> Result<(), WeightsError> {
        let Ok(stored) = self.stored else { return Ok(()) };
        if self.finite.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(bad) = finite::first_bad(cpu, &self.storage.bytes()[self.range.clone()], stored) {
            return Err(WeightsError::NotFinite {
                file: self.storage.file.to_string(),
                name: self.called.clone(),
                bad,
            });
        }
        self.finite.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The same of powers of two by themselves.
    fn check_powers(&self) -> Result<(), WeightsError> {
        if self.finite.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(bad) = finite::first_bad_power(&self.storage.bytes()[self.range.clone()]) {
            let (file, name) = (self.storage.file.to_string(), self.called.clone());
            return Err(WeightsError::NotFinite { file, name, bad });
        }
        self.finite.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn fingerprint(&self, name: &str, hasher: &mut blake3::Hasher) {
        let place = [self.shard, self.range.start, self.range.end].map(|n| (n as u64).to_le_bytes());
        hasher.update(name.as_bytes()).update(place.as_flattened());
    }
}

/// All tensors of a model, by name.
#[derive(Default)]
pub struct Checkpoint {
    shards: Vec<Storage>,
    tensors: BTreeMap<String, Arc<Entry>>,
    /// Which file has a tensor, by the index of a folder with several.
    index: BTreeMap<String, String>,
    /// Tensors of which other files hold copies that do not count.
    copied: BTreeSet<String>,
    /// What was decided, for whoever starts with it.
    notes: Vec<String>,
    /// Gives tensors the names they have in the file, where those are others.
    names: Option<&'static Architecture>,
}

/// A matrix of a checkpoint, kept alive by it.
#[derive(Clone)]
pub struct Tensor {
    entry: Arc<Entry>,
    range: Range<usize>,
    stored: Stored,
    rows: usize,
    cols: usize,
    apart: Option<Apart>,
}

/// Powers of two of a matrix in MXFP4 that lie in a tensor of their own, and how many rows lie from one to the next of it.
#[derive(Clone)]
struct Apart {
    entry: Arc<Entry>,
    /// Row of the first.
    first: usize,
    every: usize,
}

/// A tensor as it lies in its file.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// Numbers that kernels read as they are.
    Dense(Matrix<'a>),
    /// Blocks, row after row.
    Quantised(Blocks<'a>),
}

impl Tensor {
    /// As it lies in the file.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        let bytes = &self.entry.storage.bytes()[self.range.clone()];
        if let Some(Apart { entry, first, every }) = &self.apart {
            let powers = &entry.storage.bytes()[entry.range.clone()];
            return View::Quantised(Blocks::apart(bytes, powers, (*first, *every), self.rows, self.cols));
        }
        match self.stored {
            Stored::Dense(dtype) => View::Dense(Matrix::new(bytes, dtype, self.rows, self.cols)),
            Stored::Quantised(kind) => View::Quantised(Blocks::new(bytes, kind, self.rows, self.cols)),
        }
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Some of its rows.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Self {
        if let Some(apart) = &self.apart {
            let apart = Some(Apart { first: apart.first + rows.start * apart.every, ..apart.clone() });
            return Self { entry: self.entry.clone(), range: self.range.clone(), rows: rows.len(), apart, ..*self };
        }
        let row = self.range.len() / self.rows.max(1);
        let range = self.range.start + rows.start * row..self.range.start + rows.end * row;
        Self { entry: self.entry.clone(), range, rows: rows.len(), apart: None, ..*self }
    }

    /// Of a matrix whose powers of two lie apart, every `every`th row from `first` on.
    pub(crate) fn every(mut self, first: usize, every: usize) -> Self {
        if let Some(apart) = &mut self.apart {
            (apart.first, apart.every) = (first, every);
            self.rows = (self.rows - first).div_ceil(every);
        }
        self
    }

    /// Writes row `index`, widened.
    pub fn widen_row(&self, index: usize, out: &mut [f32]) {
        match self.view() {
            View::Dense(matrix) => matrix.widen_row(index, out),
            View::Quantised(blocks) => blocks.widen_row(index, out),
        }
    }

    /// The same of a row that is kept so, which nobody looks at later.
    pub(crate) fn kept_row(&self, index: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        self.widen_row(index, out);
        let Entry { called, storage, .. } = &*self.entry;
        match Bad::of(out) {
            Some(bad) => {
                let bad = Bad { index: index * self.cols + bad.index, ..bad };
                Err(WeightsError::NotFinite { file: storage.file.to_string(), name: called.clone(), bad })
            }
            None => Ok(()),
        }
    }

    /// Bytes as stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.apart.is_some() {
            return (self.rows * self.cols / 32 * 17) as u64;
        }
        self.range.len() as u64
    }

    /// Looks at every number of the whole tensor, the first time it is asked to. Costs what reading it does.
    pub(crate) fn check(&self, cpu: &Cpu) -> Result<(), WeightsError> {
        if let Some(Apart { entry, .. }) = &self.apart {
            return entry.check_powers();
        }
        self.entry.check(cpu)
    }

    /// Whether some numbers are of both.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        if let (Some(a), Some(b)) = (&self.apart, &other.apart) {
            let last = |apart: &Apart, tensor: &Self| apart.first + tensor.rows.saturating_sub(1) * apart.every;
            let apart = a.every == b.every && a.first % a.every != b.first % b.every;
            let ends = a.first <= last(b, other) && b.first <= last(a, self);
            return Arc::ptr_eq(&self.entry, &other.entry) && ends && !apart;
        }
        let (a, b) = (&self.range, &other.range);
        Arc::ptr_eq(&self.entry, &other.entry) && a.start < b.end && b.start < a.end
    }

    /// Tells the system that the tensor will hardly be read again: its memory is free for others. It still can be.
    pub(crate) fn forget(&self) {
        #[cfg(unix)]
        if let Held::Map(map) = &self.entry.storage.held {
            // SAFETY: the map is of a file, shared and read only: pages dropped are read from the file again.
            #[expect(unsafe_code, reason = "the lines above say why it is sound")]
            let told = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.range.start, self.range.len())
            };
            // Advice: a system that does not take it keeps the pages.
            let _ = told;
        }
    }
}

impl Checkpoint {
    /// A checkpoint inside the program.
    ///
    /// # Errors
    /// When the bytes are no safetensors file.
    pub fn embedded(bytes: &'static [u8]) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::default();
        checkpoint.add("", Storage { file: "embedded model".into(), held: Held::Static(bytes) })?;
        Ok(checkpoint)
    }

    /// Opens a folder's weights: `model.safetensors`, the files that its `model.safetensors.index.json` names, or else those
    /// that are numbered or the only ones there.
    ///
    /// # Errors
    /// When a file is missing, unreadable or broken, or nothing says which of two copies of a tensor counts.
    pub fn open(folder: &Path) -> Result<Self, WeightsError> {
        let files = files::find(folder)?;
        let total = u32::try_from(files.names.len()).unwrap_or(u32::MAX);
        let mut checkpoint = Self { index: files.index, notes: files.note.into_iter().collect(), ..Self::default() };
        for name in &files.names {
            let path = folder.join(name);
            if !path.exists() {
                return Err(WeightsError::NoShard { path, total });
            }
            checkpoint.add(name, Storage::map(&path)?)?;
        }
        checkpoint.note_copies();
        Ok(checkpoint)
    }

    /// Opens one safetensors file; one of several that are numbered stands for all.
    ///
    /// # Errors
    /// When it is missing, unreadable or broken.
    pub fn open_file(path: &Path) -> Result<Self, WeightsError> {
        if let Some(folder) = files::siblings(path) {
            return Self::open(folder);
        }
        let mut checkpoint = Self::default();
        checkpoint.add("", Storage::map(path)?)?;
        Ok(checkpoint)
    }

    /// Says that the index decided between copies of tensors.
    fn note_copies(&mut self) {
        if let Some(first) = self.copied.first() {
            let (file, more) = (&self.index[first], self.copied.len() - 1);
            let more = if more == 0 { String::new() } else { format!(", and {more} other tensors likewise") };
            self.notes.push(format!("tensor {first} is in several files, that in {file} counts by the index{more}"));
        }
    }

    /// What was decided where files say several things, a line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds the file that is called `file` in the index.
    fn add(&mut self, file: &str, storage: Storage) -> Result<(), WeightsError> {
        let broken = |error: safetensors::SafeTensorError| WeightsError::Broken {
            file: storage.file.to_string(),
            error: error.to_string(),
        };
        let bytes = storage.bytes();
        let parsed = SafeTensors::deserialize(bytes).map_err(broken)?;
        let shard = self.shards.len();
        for (name, view) in parsed.iter() {
            let read_as = text_name(name);
            match (self.index.get(name), self.tensors.get(&*read_as)) {
                (Some(other), _) if other != file => {
                    self.copied.insert(name.to_owned());
                    continue;
                }
                (None, Some(first)) => {
                    let (first, second) = (first.storage.file.to_string(), storage.file.to_string());
                    return Err(WeightsError::Twice { name: name.to_owned(), first, second });
                }
                _ => {}
            }
            // Where the data lie: both pointers are into the same bytes.
            let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            let entry = Entry {
                called: name.to_owned(),
                storage: storage.clone(),
                shard,
                stored: dense(view.dtype()),
                shape: view.shape().to_vec(),
                range: start..start + view.data().len(),
                shift: 0.0,
                finite: AtomicBool::new(false),
            };
            self.tensors.insert(read_as.into_owned(), Arc::new(entry));
        }
        drop(parsed);
        self.shards.push(storage);
        Ok(())
    }

    /// A checkpoint for the tensors of GGUF files.
    pub(crate) fn of_gguf(names: &'static Architecture) -> Self {
        Self { names: Some(names), ..Self::default() }
    }

    /// Adds a file and its tensors.
    ///
    /// # Errors
    /// With the name of a tensor that is there already.
    pub(crate) fn add_parts(&mut self, storage: Storage, parts: Vec<Part>) -> Result<(), String> {
        let shard = self.shards.len();
        for Part { name, shape, stored, range, shift } in parts {
            let called = self.called(&name);
            if self.has(&name) {
                return Err(called);
            }
            let (storage, stored, finite) = (storage.clone(), Ok(stored), AtomicBool::new(false));
            let entry = Entry { called, storage, shard, stored, shape, range, shift, finite };
            self.tensors.insert(name, Arc::new(entry));
        }
        self.shards.push(storage);
        Ok(())
    }

    /// A tensor's name, and the one the file has for it.
    fn called(&self, name: &str) -> String {
        match self.names.and_then(|names| names.in_file(name)) {
            Some(other) => format!("{other} ({name})"),
            None => name.to_owned(),
        }
    }

    /// Whether there is a tensor of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The matrix `name` of `rows` × `cols`.
    ///
    /// # Errors
    /// When it is missing, of other sizes or stored otherwise.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor, WeightsError> {
        self.tensor(name, &[rows, cols], rows, cols)
    }

    /// Matrices of `rows` × `cols` in one tensor, as one of `count * rows` rows.
    pub(crate) fn matrices(&self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Tensor, WeightsError> {
        self.tensor(name, &[count, rows, cols], count * rows, cols)
    }

    /// Matrices of `rows` × `cols` in MXFP4: their numbers in a tensor with `_blocks` behind its name, sixteen bytes for 32 of
    /// them, and their powers of two in one with `_scales`.
    pub(crate) fn apart(&self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Tensor, WeightsError> {
        let of = |name: String, expected: Vec<usize>| {
            let entry = self.tensors.get(&name).ok_or_else(|| self.missing(&name))?;
            let found = entry.shape.clone();
            match &entry.stored {
                _ if found != expected => Err(WeightsError::Shape { name, found, expected }),
                Err(dtype) if dtype == "U8" => Ok(entry.clone()),
                Err(found) => Err(WeightsError::Dtype { name, found: found.clone() }),
                Ok(found) => Err(WeightsError::Dtype { name, found: format!("{found:?}") }),
            }
        };
        // Whole blocks only: others have no such shape.
        let entry = of(format!("{name}_blocks"), vec![count, rows, cols.div_ceil(32), 16])?;
        let powers = of(format!("{name}_scales"), vec![count, rows, cols.div_ceil(32)])?;
        if !cols.is_multiple_of(32) {
            let (found, expected) = (entry.shape.clone(), vec![count, rows, cols]);
            return Err(WeightsError::Shape { name: format!("{name}_blocks"), found, expected });
        }
        let (range, stored) = (entry.range.clone(), Stored::Quantised(QuantType::Mxfp4));
        let apart = Some(Apart { entry: powers, first: 0, every: 1 });
        Ok(Tensor { entry, range, stored, rows: count * rows, cols, apart })
    }

    /// The matrix `name` of one row, which some files have as a vector.
    pub(crate) fn row(&self, name: &str, cols: usize) -> Result<Tensor, WeightsError> {
        let expected = [1, cols];
        let vector = self.tensors.get(name).is_some_and(|entry| entry.shape.len() == 1);
        self.tensor(name, if vector { &expected[1..] } else { &expected }, 1, cols)
    }

    /// Whether it is of a file in which the experts of a layer lie in one tensor, always.
    pub(crate) fn stacks_experts(&self) -> bool {
        self.names.is_some()
    }

    /// The vector `name` of `len` numbers, widened.
    ///
    /// # Errors
    /// As for [`Self::matrix`], and when a number is not finite: short as they are, vectors are looked at here.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
        let tensor = self.tensor(name, &[len], 1, len)?;
        let mut out = vec![0.0; len];
        tensor.widen_row(0, &mut out);
        let Entry { called, storage, shift, .. } = &*tensor.entry;
        if let Some(bad) = Bad::of(&out) {
            return Err(WeightsError::NotFinite { file: storage.file.to_string(), name: called.clone(), bad });
        }
        let shift = *shift;
        if shift != 0.0 {
            out.iter_mut().for_each(|number| *number += shift);
        }
        Ok(out)
    }

    fn tensor(&self, name: &str, expected: &[usize], rows: usize, cols: usize) -> Result<Tensor, WeightsError> {
        let entry = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        if entry.shape != expected {
            let (found, expected) = (entry.shape.clone(), expected.to_vec());
            return Err(WeightsError::Shape { name: self.called(name), found, expected });
        }
        let unread = |found: String| WeightsError::Dtype { name: self.called(name), found };
        let stored = entry.stored.clone().map_err(unread)?;
        Ok(Tensor { entry: entry.clone(), range: entry.range.clone(), stored, rows, cols, apart: None })
    }

    fn missing(&self, name: &str) -> WeightsError {
        match self.index.get(name) {
            Some(file) => WeightsError::NotIn { name: name.to_owned(), file: file.clone() },
            None => WeightsError::Missing(self.called(name)),
        }
    }

    /// Its files in their order: where they are, and their bytes.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.shards.iter().map(|shard| (Path::new(&*shard.file), shard.bytes()))
    }

    /// Whether the files are GGUF.
    pub(crate) fn is_gguf(&self) -> bool {
        self.names.is_some()
    }

    /// Of copies of tensors, those that the index says are the model's, if there are any.
    pub(crate) fn choice(&self) -> Option<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        let copied = self.tensors.iter().filter(|(name, _)| self.copied.contains(*name));
        copied.for_each(|(name, entry)| entry.fingerprint(name, &mut hasher));
        (!self.copied.is_empty()).then(|| *hasher.finalize().as_bytes())
    }

    /// Adds what tells this checkpoint from most others to `hasher`: size, and 64 KiB at the start, at the end and every
    /// 64 MiB between of each file. The start holds all names, shapes and places; GGUF files have their tokens there.
    pub fn fingerprint(&self, hasher: &mut blake3::Hasher) {
        for shard in &self.shards {
            let bytes = shard.bytes();
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            for start in (0..bytes.len()).step_by(SAMPLE_EVERY) {
                hasher.update(&bytes[start..bytes.len().min(start + SAMPLE)]);
            }
            hasher.update(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
        }
        // Of GGUF files not all names need be in what was hashed; of copies, the index says which are the model's.
        let named = |(name, entry): (&String, &Arc<Entry>)| {
            if self.names.is_some() || self.copied.contains(name) {
                entry.fingerprint(name, hasher);
            }
        };
        self.tensors.iter().for_each(named);
    }
}

/// What a tensor is called where its model is only of text: models that also see have it within another, as transformers 5
/// and 4 write them.
fn text_name(name: &str) -> Cow<'_, str> {
    const WITHIN: [(&str, &str); 2] = [("model.language_model.", "model."), ("language_model.", "")];
    let within = WITHIN.iter().find_map(|(theirs, ours)| Some((ours, name.strip_prefix(theirs)?)));
    within.map_or(Cow::Borrowed(name), |(ours, rest)| Cow::Owned(format!("{ours}{rest}")))
}

/// How safetensors files store numbers; `Err` has the name of a form that is not read.
fn dense(dtype: safetensors::Dtype) -> Result<Stored, String> {
    Ok(Stored::Dense(match dtype {
        safetensors::Dtype::F32 => Dtype::F32,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::BF16 => Dtype::Bf16,
        other => return Err(format!("{other:?}")),
    }))
}
