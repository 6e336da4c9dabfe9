//! Checkpoints: safetensors and GGUF files, mapped into memory and used as they lie there.

mod coded;
mod error;
mod files;
mod storage;
mod tensor;
mod tensors;

pub use self::{
    error::WeightsError,
    tensor::{Tensor, TensorData},
};
pub use crate::finite::NonFinite;
pub use crate::stored::Stored;

pub use coded::CodedView;
pub(crate) use storage::Storage;

use self::{
    tensor::{Entry, SeparateScales},
    tensors::Tensors,
};
use crate::{cpu::Dtype, gguf::Architecture, quant::QuantType, stored::Coding};
use safetensors::SafeTensors;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Bytes hashed in one place of a file for a model's id.
const SAMPLE: usize = 64 * 1024;
/// Distance between hashed places.
const SAMPLE_EVERY: usize = 64 * 1024 * 1024;

/// A tensor of a file.
pub(crate) struct FileTensor {
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

/// All tensors of a model, by name.
#[derive(Default)]
pub struct Checkpoint {
    shards: Vec<Storage>,
    tensors: Tensors,
    /// Which file has a tensor, by the index of a folder with several.
    index: BTreeMap<String, String>,
    /// Tensors of which other files hold copies that do not count.
    copied: BTreeSet<String>,
    /// What was decided, for whoever starts with it.
    notes: Vec<String>,
    /// Gives tensors the names they have in the file, where those are others.
    names: Option<&'static Architecture>,
    /// How some matrices are stored in several tensors, or with scales in one.
    coding: Option<Coding>,
    /// Whether rows are multiplied by all matrices as they are.
    exact: bool,
}

impl Checkpoint {
    /// A checkpoint inside the program.
    ///
    /// # Errors
    /// When the bytes are no safetensors file.
    pub fn embedded(bytes: &'static [u8]) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::default();
        checkpoint.add("", Storage::embedded("embedded model", bytes))?;
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

    /// Opens files that are all of a model, whatever they are called.
    pub(crate) fn open_all(files: Vec<Storage>) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::default();
        for file in files {
            checkpoint.add("", file)?;
        }
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
            match (self.index.get(name), self.tensors.file(&read_as)) {
                (Some(other), _) if other != file => {
                    self.copied.insert(name.to_owned());
                    continue;
                }
                (None, Some(first)) => {
                    return Err(WeightsError::Twice { name: name.to_owned(), first, second: storage.file.to_string() });
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
            self.tensors.insert(read_as.into_owned(), entry);
        }
        drop(parsed);
        self.shards.push(storage);
        Ok(())
    }

    /// Has rows multiplied by all matrices as they are, in single precision however those are stored.
    pub(crate) fn make_exact(&mut self) {
        self.exact = true;
    }

    /// A checkpoint for the tensors of GGUF files.
    pub(crate) fn of_gguf(names: &'static Architecture) -> Self {
        Self { names: Some(names), ..Self::default() }
    }

    /// Adds a file and its tensors.
    ///
    /// # Errors
    /// With the name of a tensor that is there already.
    pub(crate) fn add_parts(&mut self, storage: Storage, parts: Vec<FileTensor>) -> Result<(), String> {
        let shard = self.shards.len();
        for FileTensor { name, shape, stored, range, shift } in parts {
            let called = self.called(&name);
            if self.has(&name) {
                return Err(called);
            }
            let (storage, stored, finite) = (storage.clone(), Ok(stored), AtomicBool::new(false));
            let entry = Entry { called, storage, shard, stored, shape, range, shift, finite };
            self.tensors.insert(name, entry);
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

    /// Whether there is a tensor of that name, or others that stand for it.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.has(name) || self.stands_in(name)
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
            let entry = self.tensors.get(&name)?.ok_or_else(|| self.missing(&name))?;
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
        let apart = Some(SeparateScales { entry: powers, first: 0, every: 1 });
        Ok(Tensor { entry, range, stored, rows: count * rows, cols, apart, coded: None, exact: self.exact })
    }

    /// The matrix `name` of one row, which some files have as a vector.
    pub(crate) fn row(&self, name: &str, cols: usize) -> Result<Tensor, WeightsError> {
        let expected = [1, cols];
        let vector = self.tensors.shape(name).is_some_and(|shape| shape.len() == 1);
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
        if let Some(bad) = NonFinite::of(&out) {
            return Err(WeightsError::NotFinite { file: storage.file.to_string(), name: called.clone(), bad });
        }
        let shift = *shift;
        if shift != 0.0 {
            out.iter_mut().for_each(|number| *number += shift);
        }
        Ok(out)
    }

    fn tensor(&self, name: &str, expected: &[usize], rows: usize, cols: usize) -> Result<Tensor, WeightsError> {
        if let Some(coded) = self.coded(name, expected)? {
            return Ok(Tensor { exact: self.exact, ..coded });
        }
        let entry = self.tensors.get(name)?.ok_or_else(|| self.missing(name))?;
        if entry.shape != expected {
            let (found, expected) = (entry.shape.clone(), expected.to_vec());
            return Err(WeightsError::Shape { name: self.called(name), found, expected });
        }
        let unread = |found: String| WeightsError::Dtype { name: self.called(name), found };
        let stored = entry.stored.clone().map_err(unread)?;
        Ok(Tensor {
            entry: entry.clone(),
            range: entry.range.clone(),
            stored,
            rows,
            cols,
            apart: None,
            coded: None,
            exact: self.exact,
        })
    }

    /// What is read of which file where something is loaded: all of each tensor that `load` asks for.
    pub(crate) fn asked_for<T>(&self, load: impl FnOnce(&Self) -> T) -> (T, Vec<(usize, Range<usize>)>) {
        let noting = self.with(self.tensors.noting());
        let loaded = load(&noting);
        (loaded, noting.tensors.noted())
    }

    /// Whether all of its files are there.
    pub(crate) fn is_whole(&self) -> bool {
        self.shards.iter().all(Storage::is_whole)
    }

    /// The same checkpoint, of which nothing is had that is not there. Else numbers of files that are still fetched are zeros.
    pub(crate) fn needed(&self) -> Self {
        self.with(self.tensors.needed())
    }

    fn with(&self, tensors: Tensors) -> Self {
        let Self { shards, index, copied, notes, names, coding, exact, .. } = self;
        Self {
            shards: shards.clone(),
            tensors,
            index: index.clone(),
            copied: copied.clone(),
            notes: notes.clone(),
            names: *names,
            coding: *coding,
            exact: *exact,
        }
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
        self.tensors.fingerprint(&mut hasher, |name| self.copied.contains(name));
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
        self.tensors.fingerprint(hasher, |name| self.names.is_some() || self.copied.contains(name));
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
