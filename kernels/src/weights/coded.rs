//! Matrices that servers' quantisers leave: numbers of four or eight bits in one tensor, scales and zeros in others beside it
//! (FP8, GPTQ, AWQ, compressed-tensors).
//!
//! Four-bit numbers whose groups are whole blocks are blocks of GGUF's kinds, nothing rounded. The rest is widened when it is
//! loaded: FP8 to bfloat16, as PyTorch does where it has no products of it; four bits by an index of groups to half precision.

mod eights;

use super::{Checkpoint, Entry, Tensor, TensorData, WeightsError};
use crate::{
    cpu::{Cpu, Dtype},
    finite::NonFinite,
    quant::{
        Blocks, QuantType, WordPacking,
        fours::{EIGHT, Fours, HalfFormat},
    },
    stored::{Coding, Fp8, Int4, Stored},
};
use eights::{Eights, LARGEST, NAN, Scales};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that one thread looks at in one go.
const PART: usize = 1 << 20;
/// A word whose eight numbers are 8, and one less each.
const ALL_EIGHT: [u32; 2] = [0x8888_8888, 0x7777_7777];

/// Outputs of such a matrix.
#[derive(Clone)]
pub(super) struct Coded {
    parts: Arc<CodedTensors>,
    /// The first of its outputs.
    pub first: usize,
}

/// The tensors that a matrix is in, all of one size that fits.
struct CodedTensors {
    codes: Arc<Entry>,
    scales: Arc<Entry>,
    how: CodedHow,
    outputs: usize,
    inputs: usize,
}

enum CodedHow {
    Eights { stored: Scales, block: [usize; 2] },
    Fours { halves: HalfFormat, zeros: Option<Arc<Entry>>, index: Option<Arc<Entry>>, group: usize, int4: Int4 },
}

/// Some outputs, which have to be widened.
#[derive(Clone, Copy, Debug)]
pub struct CodedView<'a> {
    whole: CodedForm<'a>,
    first: usize,
    rows: usize,
}

#[derive(Clone, Copy, Debug)]
enum CodedForm<'a> {
    Eights(Eights<'a>),
    Fours(Fours<'a>),
}

impl CodedView<'_> {
    /// Rows and columns.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let inputs = match self.whole {
            CodedForm::Eights(eights) => eights.inputs,
            CodedForm::Fours(fours) => fours.inputs,
        };
        (self.rows, inputs)
    }

    /// What it is widened to for products.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self.whole {
            CodedForm::Eights(_) => Dtype::Bf16,
            CodedForm::Fours(_) => Dtype::F16,
        }
    }

    /// Writes row `index`, in single precision.
    pub fn widen_row(&self, index: usize, out: &mut [f32]) {
        match self.whole {
            CodedForm::Eights(eights) => eights.widen_row(self.first + index, out),
            CodedForm::Fours(fours) => fours.widen_row(self.first + index, out),
        }
    }
}

impl Coded {
    pub fn from(&self, row: usize) -> Self {
        Self { parts: self.parts.clone(), first: self.first + row }
    }

    pub fn view(&self, rows: usize) -> TensorData<'_> {
        let CodedTensors { codes, scales, how, outputs, inputs } = &*self.parts;
        let (first, inputs) = (self.first, *inputs);
        let whole = match how {
            CodedHow::Eights { stored, block } => {
                let (codes, scales) = (codes.data(), scales.data());
                CodedForm::Eights(Eights { codes, scales, stored: *stored, inputs, block: *block })
            }
            CodedHow::Fours { halves, zeros, index, group, int4 } => {
                let fours = Fours {
                    packing: int4.layout,
                    codes: codes.data(),
                    scales: scales.data(),
                    halves: *halves,
                    zeros: zeros.as_ref().filter(|_| !int4.symmetric).map(|zeros| zeros.data()),
                    less_one: int4.less_one,
                    index: index.as_ref().map(|index| index.data()),
                    outputs: *outputs,
                    inputs,
                    group: *group,
                };
                if let Some(kind) = fours.kind() {
                    return TensorData::Quantised(Blocks::of_fours(fours, kind, first, rows));
                }
                CodedForm::Fours(fours)
            }
        };
        TensorData::Coded(CodedView { whole, first, rows })
    }

    /// Bytes of so many outputs as products read them.
    pub fn bytes(&self, rows: usize) -> u64 {
        let of = |kind: QuantType, (rows, inputs): (usize, usize)| rows * inputs / kind.numbers() * kind.bytes();
        let bytes = match self.view(rows) {
            TensorData::Quantised(blocks) => of(blocks.kind(), (rows, blocks.cols())),
            TensorData::Coded(view) => view.dtype().bytes() * rows * self.parts.inputs,
            TensorData::Dense(_) => 0,
        };
        bytes as u64
    }

    /// Whether all of its tensors are there: of zeros in their place nothing is to be said.
    fn is_here(&self) -> bool {
        let CodedTensors { codes, scales, how, .. } = &*self.parts;
        let beside = match how {
            CodedHow::Eights { .. } => [None, None],
            CodedHow::Fours { zeros, index, .. } => [zeros.as_ref(), index.as_ref()],
        };
        [codes, scales].into_iter().chain(beside.into_iter().flatten()).all(|entry| entry.storage.has(&entry.range))
    }

    /// Looks at all of the matrix, the first time it is asked to.
    pub fn check(&self, cpu: &Cpu) -> Result<(), WeightsError> {
        let CodedTensors { codes, scales, how, .. } = &*self.parts;
        if codes.finite.load(Ordering::Relaxed) || !self.is_here() {
            return Ok(());
        }
        match how {
            CodedHow::Eights { stored, .. } => {
                // Twice the largest number is still one.
                check_scales(scales, *stored, f32::MAX / (2.0 * LARGEST), 1)?;
                let parts: Vec<&[u8]> = codes.data().chunks(PART).collect();
                let none = |byte: &u8| byte & NAN == NAN;
                if let Some(first) = cpu.first_part(parts.len(), |i| parts[i].iter().any(none)) {
                    let at = first * PART + parts[first].iter().position(none).unwrap_or(0);
                    return Err(not_finite(codes, NonFinite { value: f32::NAN, index: at, numbers: 1 }));
                }
            }
            CodedHow::Fours { halves, zeros, index, group, int4 } => {
                let dtype = if *halves == HalfFormat::F16 { Dtype::F16 } else { Dtype::Bf16 };
                // Sixteen steps of it are within half precision.
                check_scales(scales, Scales::Numbers(dtype), 4000.0, *group)?;
                if let Some(zeros) = zeros.as_ref().filter(|_| int4.symmetric) {
                    check_symmetric(zeros, ALL_EIGHT[usize::from(int4.less_one)])?;
                }
                if let Some(index) = index {
                    check_index(index, self.parts.inputs.div_ceil(*group))?;
                }
            }
        }
        codes.finite.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn not_finite(entry: &Entry, bad: NonFinite) -> WeightsError {
    WeightsError::NotFinite { file: entry.storage.file.to_string(), name: entry.called.clone(), bad }
}

/// Refuses scales beyond `most`: what is multiplied by them must be numbers.
fn check_scales(entry: &Entry, stored: Scales, most: f32, numbers: usize) -> Result<(), WeightsError> {
    let bytes = entry.data();
    let count = bytes.len() / stored.bytes();
    match (0..count).map(|at| (at, stored.get(bytes, at))).find(|(_, scale)| scale.is_nan() || scale.abs() > most) {
        Some((index, value)) => Err(not_finite(entry, NonFinite { value, index: index * numbers, numbers })),
        None => Ok(()),
    }
}

fn words(entry: &Entry) -> impl Iterator<Item = u32> + '_ {
    entry.data().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

fn check_symmetric(zeros: &Entry, all: u32) -> Result<(), WeightsError> {
    match words(zeros).position(|word| word != all) {
        Some(at) => {
            let what = format!("has other zeros than 8 at number {}, where config.json says sym = true", at * EIGHT);
            Err(WeightsError::Coded { name: zeros.called.clone(), what })
        }
        None => Ok(()),
    }
}

fn check_index(index: &Entry, groups: usize) -> Result<(), WeightsError> {
    match words(index).enumerate().find(|(_, group)| *group as usize >= groups) {
        Some((at, group)) => {
            let what = format!("says that input {at} is of group {group}, of which there are {groups}");
            Err(WeightsError::Coded { name: index.called.clone(), what })
        }
        None => Ok(()),
    }
}

/// Names of the tensors of four-bit matrices: numbers, scales, zeros, groups.
fn names(packing: WordPacking) -> [&'static str; 4] {
    match packing {
        WordPacking::Gptq | WordPacking::Awq => ["qweight", "scales", "qzeros", "g_idx"],
        WordPacking::Compressed => ["weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"],
    }
}

impl Checkpoint {
    /// Reads matrices as that says, where they are not as usual.
    pub(crate) fn coded_by(mut self, coding: Option<Coding>) -> Self {
        self.coding = coding;
        self
    }

    /// Whether others stand for the tensor `name`.
    pub(super) fn stands_in(&self, name: &str) -> bool {
        let Some(Coding::Int4(int4)) = self.coding else { return false };
        let stem = name.strip_suffix("weight");
        stem.is_some_and(|stem| self.tensors.has(&format!("{stem}{}", names(int4.layout)[0])))
    }

    /// The matrix `name`, if it is stored in another way than usual.
    pub(super) fn coded(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightsError> {
        let (Some(coding), [outputs, inputs]) = (self.coding, expected) else { return Ok(None) };
        let size = (*outputs, *inputs);
        match coding {
            Coding::Fp8(fp8) => {
                let of_eight = |entry: &&Arc<Entry>| entry.stored.as_ref().is_err_and(|dtype| dtype == "F8_E4M3");
                let codes = self.tensors.get(name)?.filter(of_eight);
                codes.map(|codes| self.eights(name, codes, fp8, size)).transpose()
            }
            Coding::Int4(int4) if self.stands_in(name) => {
                let stem = name.strip_suffix("weight").unwrap_or(name);
                self.fours(stem, int4, size).map(Some)
            }
            Coding::Int4(_) => Ok(None),
        }
    }

    fn eights(
        &self,
        name: &str,
        codes: &Arc<Entry>,
        Fp8 { block }: Fp8,
        (outputs, inputs): (usize, usize),
    ) -> Result<Tensor, WeightsError> {
        if codes.shape != [outputs, inputs] {
            let (found, expected) = (codes.shape.clone(), vec![outputs, inputs]);
            return Err(WeightsError::Shape { name: name.to_owned(), found, expected });
        }
        let named = [format!("{name}_scale_inv"), format!("{name}_scale")];
        let scale = named.iter().find(|name| self.tensors.has(name)).unwrap_or(&named[0]);
        let scales = self.tensors.get(scale)?.ok_or_else(|| self.missing(scale))?;
        let stored = match &scales.stored {
            Ok(Stored::Dense(dtype)) => Scales::Numbers(*dtype),
            Err(dtype) if dtype == "F8_E8M0" => Scales::Powers,
            other => return Err(other_dtype(scale, other)),
        };
        let block = match (block, &scales.shape[..]) {
            (Some([n, k]), shape) if shape == [outputs.div_ceil(n), inputs.div_ceil(k)] => [n, k],
            (Some([n, k]), found) => {
                let expected = vec![outputs.div_ceil(n), inputs.div_ceil(k)];
                return Err(WeightsError::Shape { name: scale.clone(), found: found.to_vec(), expected });
            }
            (None, shape) if shape.iter().all(|n| *n == 1) => [outputs, inputs],
            (None, [n] | [n, 1]) if *n == outputs => [1, inputs],
            (None, found) => {
                let expected = vec![outputs, 1];
                return Err(WeightsError::Shape { name: scale.clone(), found: found.to_vec(), expected });
            }
        };
        Ok(tensor(codes, scales, CodedHow::Eights { stored, block }, (outputs, inputs)))
    }

    fn fours(&self, stem: &str, int4: Int4, (outputs, inputs): (usize, usize)) -> Result<Tensor, WeightsError> {
        let Int4 { layout, group, symmetric, by_index, .. } = int4;
        let group = group.unwrap_or(inputs);
        let [codes, scales, zeros, index] = names(layout).map(|name| format!("{stem}{name}"));
        let whole =
            inputs.is_multiple_of(EIGHT) && (outputs.is_multiple_of(EIGHT) || layout == WordPacking::Compressed);
        if !whole || group == 0 {
            let what = format!("is of {outputs} × {inputs} numbers, which are no whole words of eight");
            return Err(WeightsError::Coded { name: codes, what });
        }
        let (groups, words) = (inputs.div_ceil(group), outputs.div_ceil(EIGHT));
        let [of_codes, of_scales, of_zeros] = match layout {
            WordPacking::Gptq => [[inputs / EIGHT, outputs], [groups, outputs], [groups, words]],
            WordPacking::Awq => [[inputs, words], [groups, outputs], [groups, words]],
            WordPacking::Compressed => [[outputs, inputs / EIGHT], [outputs, groups], [words, groups]],
        };
        let integers = |name: &str, shape: &[usize]| -> Result<Arc<Entry>, WeightsError> {
            let entry = self.sized(name, shape)?;
            match &entry.stored {
                Err(dtype) if dtype == "I32" => Ok(entry.clone()),
                other => Err(other_dtype(name, other)),
            }
        };
        let codes = integers(&codes, &of_codes)?;
        let scale = self.sized(&scales, &of_scales)?;
        let halves = match &scale.stored {
            Ok(Stored::Dense(Dtype::F16)) => HalfFormat::F16,
            Ok(Stored::Dense(Dtype::Bf16)) => HalfFormat::Bf16,
            other => return Err(other_dtype(&scales, other)),
        };
        // Files of GPTQ have zeros that are all one number too: they are looked at.
        let has_zeros = !symmetric || layout == WordPacking::Gptq;
        let zeros = if has_zeros { Some(integers(&zeros, &of_zeros)?) } else { None };
        let index = if by_index { Some(integers(&index, &[inputs])?) } else { None };
        Ok(tensor(&codes, scale, CodedHow::Fours { halves, zeros, index, group, int4 }, (outputs, inputs)))
    }

    /// The tensor `name`, which must be of that shape.
    fn sized(&self, name: &str, expected: &[usize]) -> Result<&Arc<Entry>, WeightsError> {
        let entry = self.tensors.get(name)?.ok_or_else(|| self.missing(name))?;
        if entry.shape != expected {
            let (found, expected) = (entry.shape.clone(), expected.to_vec());
            return Err(WeightsError::Shape { name: name.to_owned(), found, expected });
        }
        Ok(entry)
    }
}

fn other_dtype(name: &str, stored: &Result<Stored, String>) -> WeightsError {
    let found = stored.as_ref().map_or_else(Clone::clone, |stored| format!("{stored:?}"));
    WeightsError::Coded { name: name.to_owned(), what: format!("is stored as {found}, which is not read there") }
}

fn tensor(codes: &Arc<Entry>, scales: &Arc<Entry>, how: CodedHow, (outputs, inputs): (usize, usize)) -> Tensor {
    let parts = CodedTensors { codes: codes.clone(), scales: scales.clone(), how, outputs, inputs };
    Tensor {
        entry: codes.clone(),
        range: codes.range.clone(),
        stored: Stored::Dense(Dtype::F16),
        rows: outputs,
        cols: inputs,
        apart: None,
        coded: Some(Coded { parts: Arc::new(parts), first: 0 }),
        exact: false,
    }
}
