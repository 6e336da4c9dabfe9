//! One matrix of a checkpoint: where it lies, some of its rows, and whether all of its numbers are some.

use super::{
    Storage, WeightsError,
    coded::{Coded, CodedView},
};
use crate::{
    cpu::{Cpu, Dtype, Matrix},
    finite::{self, NonFinite},
    quant::Blocks,
    stored::Stored,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tensor as its file has it.
pub(super) struct Entry {
    /// What the file calls it, for people who look for it there.
    pub called: String,
    pub storage: Storage,
    pub shard: usize,
    /// `Err` has the name of a form that is not read.
    pub stored: Result<Stored, String>,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
    pub shift: f32,
    /// Set once every number of it was looked at, so that no stage loaded later looks again.
    pub finite: AtomicBool,
}

impl Entry {
    /// Its bytes.
    pub fn data(&self) -> &[u8] {
        &self.storage.bytes()[self.range.clone()]
    }

    /// Refuses numbers that nothing can be computed with.
    pub fn check(&self, cpu: &Cpu) -> Result<(), WeightsError> {
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
    pub fn check_powers(&self) -> Result<(), WeightsError> {
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

    pub fn fingerprint(&self, name: &str, hasher: &mut blake3::Hasher) {
        let place = [self.shard, self.range.start, self.range.end].map(|n| (n as u64).to_le_bytes());
        hasher.update(name.as_bytes()).update(place.as_flattened());
    }
}

/// A matrix of a checkpoint, kept alive by it.
#[derive(Clone)]
pub struct Tensor {
    pub(super) entry: Arc<Entry>,
    pub(super) range: Range<usize>,
    pub(super) stored: Stored,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) apart: Option<SeparateScales>,
    /// Of a matrix that several tensors stand for.
    pub(super) coded: Option<Coded>,
    /// Whether rows are multiplied by it as they are, in single precision.
    pub(super) exact: bool,
}

/// Powers of two of a matrix in MXFP4 that lie in a tensor of their own, and how many rows lie from one to the next of it.
#[derive(Clone)]
pub(super) struct SeparateScales {
    pub entry: Arc<Entry>,
    /// Row of the first.
    pub first: usize,
    pub every: usize,
}

/// A tensor as it lies in its file.
#[derive(Clone, Copy, Debug)]
pub enum TensorData<'a> {
    /// Numbers that kernels read as they are.
    Dense(Matrix<'a>),
    /// Blocks, row after row.
    Quantised(Blocks<'a>),
    /// Numbers that products read once they are widened.
    Coded(CodedView<'a>),
}

impl Tensor {
    /// As it lies in the file.
    #[must_use]
    pub fn view(&self) -> TensorData<'_> {
        if let Some(coded) = &self.coded {
            return coded.view(self.rows);
        }
        let bytes = &self.entry.storage.bytes()[self.range.clone()];
        if let Some(SeparateScales { entry, first, every }) = &self.apart {
            let powers = &entry.storage.bytes()[entry.range.clone()];
            return TensorData::Quantised(Blocks::apart(bytes, powers, (*first, *every), self.rows, self.cols));
        }
        match self.stored {
            Stored::Dense(dtype) => TensorData::Dense(Matrix::new(bytes, dtype, self.rows, self.cols)),
            Stored::Quantised(kind) => TensorData::Quantised(Blocks::new(bytes, kind, self.rows, self.cols)),
        }
    }

    /// Whether rows are multiplied by it as they are, in single precision however it is stored.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Some of its rows.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let (entry, coded) = (self.entry.clone(), self.coded.as_ref().map(|coded| coded.from(rows.start)));
        if coded.is_some() {
            return Self { entry, range: self.range.clone(), rows: rows.len(), apart: None, coded, ..*self };
        }
        if let Some(apart) = &self.apart {
            let apart = Some(SeparateScales { first: apart.first + rows.start * apart.every, ..apart.clone() });
            return Self { entry, range: self.range.clone(), rows: rows.len(), apart, coded, ..*self };
        }
        let row = self.range.len() / self.rows.max(1);
        let range = self.range.start + rows.start * row..self.range.start + rows.end * row;
        Self { entry, range, rows: rows.len(), apart: None, coded, ..*self }
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
            TensorData::Dense(matrix) => matrix.widen_row(index, out),
            TensorData::Quantised(blocks) => blocks.widen_row(index, out),
            TensorData::Coded(coded) => coded.widen_row(index, out),
        }
    }

    /// The same of a row that is kept so, which nobody looks at later.
    pub(crate) fn kept_row(&self, index: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        self.widen_row(index, out);
        let Entry { called, storage, .. } = &*self.entry;
        match NonFinite::of(out) {
            Some(bad) => {
                let bad = NonFinite { index: index * self.cols + bad.index, ..bad };
                Err(WeightsError::NotFinite { file: storage.file.to_string(), name: called.clone(), bad })
            }
            None => Ok(()),
        }
    }

    /// Bytes as stored; as products read them, where that is not what is stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let as_it_is = matches!(self.stored, Stored::Dense(Dtype::F32 | Dtype::F16)) && self.coded.is_none();
        if self.exact && !as_it_is {
            return 4 * (self.rows * self.cols) as u64;
        }
        if let Some(coded) = &self.coded {
            return coded.bytes(self.rows);
        }
        if self.apart.is_some() {
            return (self.rows * self.cols / 32 * 17) as u64;
        }
        self.range.len() as u64
    }

    /// Looks at every number of the whole tensor, the first time it is asked to. Costs what reading it does.
    pub(crate) fn check(&self, cpu: &Cpu) -> Result<(), WeightsError> {
        if let Some(SeparateScales { entry, .. }) = &self.apart {
            return entry.check_powers();
        }
        if let Some(coded) = &self.coded {
            return coded.check(cpu);
        }
        self.entry.check(cpu)
    }

    /// Whether some numbers are of both.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        if let (Some(a), Some(b)) = (&self.coded, &other.coded) {
            let ends = a.first < b.first + other.rows && b.first < a.first + self.rows;
            return Arc::ptr_eq(&self.entry, &other.entry) && ends;
        }
        if let (Some(a), Some(b)) = (&self.apart, &other.apart) {
            let last =
                |apart: &SeparateScales, tensor: &Self| apart.first + tensor.rows.saturating_sub(1) * apart.every;
            let apart = a.every == b.every && a.first % a.every != b.first % b.every;
            let ends = a.first <= last(b, other) && b.first <= last(a, self);
            return Arc::ptr_eq(&self.entry, &other.entry) && ends && !apart;
        }
        let (a, b) = (&self.range, &other.range);
        Arc::ptr_eq(&self.entry, &other.entry) && a.start < b.end && b.start < a.end
    }

    /// Tells the system that the tensor will hardly be read again: its memory is free for others. It still can be.
    pub(crate) fn forget(&self) {
        self.entry.storage.forget(&self.range);
    }
}
