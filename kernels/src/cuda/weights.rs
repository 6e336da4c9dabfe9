//! Weights on a GPU: laid out for it on the way from the file's memory map (`device/forms.cuh`).

mod interleaved;

use super::machine::{GpuError, GpuMemory, Machine, Queue};
use crate::{
    cpu::Dtype,
    quant::{Blocks, QuantType},
    weights::{Tensor, TensorData},
};
use half::{bf16, f16};
use std::sync::Arc;

/// Bytes that go to the GPU at a time.
const PIECE: usize = 8 << 20;

/// Takes a tensor's next bytes, of the first plane and of the second.
type Send<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), GpuError>;

/// How weights are stored on a GPU; the numbers are those of `device/common.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Single precision.
    F32 = 0,
    /// Half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// [`QuantType::Q4_0`].
    Q4_0 = 3,
    /// [`QuantType::Q8_0`].
    Q8_0 = 4,
    /// [`QuantType::Q4K`].
    Q4K = 5,
    /// [`QuantType::Q6K`].
    Q6K = 6,
    /// [`QuantType::Mxfp4`], of experts alone.
    Mxfp4 = 7,
}

impl Form {
    /// Of a tensor. Formats that have no kernels are widened to half precision.
    pub fn of(view: &TensorData<'_>) -> Self {
        match view {
            TensorData::Dense(matrix) => Self::of_dtype(matrix.dtype()),
            TensorData::Quantised(blocks) => match blocks.kind() {
                QuantType::Q4_0 => Self::Q4_0,
                QuantType::Q8_0 => Self::Q8_0,
                QuantType::Q4K => Self::Q4K,
                QuantType::Q6K => Self::Q6K,
                _ => Self::F16,
            },
            TensorData::Coded(coded) => Self::of_dtype(coded.dtype()),
        }
    }

    /// Of a matrix of an expert's, for which kernels have one format more.
    pub fn of_expert(view: &TensorData<'_>) -> Self {
        match view {
            TensorData::Quantised(blocks) if blocks.kind() == QuantType::Mxfp4 => Self::Mxfp4,
            _ => Self::of(view),
        }
    }

    fn of_dtype(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }

    /// Its name in kernels' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Q6K => "q6_k",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// Numbers of a row that are rounded to 8 bits with one scale, for products of up to 64 rows; none for dense weights.
    pub fn rounded(self) -> Option<usize> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Q4_0 | Self::Q8_0 | Self::Mxfp4 => Some(32),
            Self::Q4K | Self::Q6K => Some(256),
        }
    }

    /// Bytes of so many numbers: what lies in the first plane, and in the second behind it.
    fn planes(self, numbers: usize) -> (usize, usize) {
        match self {
            Self::F32 => (numbers * 4, 0),
            Self::F16 | Self::Bf16 => (numbers * 2, 0),
            Self::Q4_0 => (numbers / 32 * 16, numbers / 32 * 2),
            Self::Q8_0 => (numbers, numbers / 32 * 2),
            Self::Q4K => (numbers / 256 * 144, 0),
            Self::Q6K => (numbers / 256 * 208, numbers / 256 * 2),
            Self::Mxfp4 => (numbers / 32 * 16, numbers / 32),
        }
    }

    /// Bytes of a matrix of so many numbers.
    pub fn bytes(self, numbers: usize) -> usize {
        let (first, second) = self.planes(numbers);
        first + second
    }
}

/// Bytes of a tensor on a GPU.
pub(crate) fn bytes_on_gpu(tensor: &Tensor) -> u64 {
    bytes_as(tensor, Form::of)
}

/// The same of a matrix of an expert's.
pub(crate) fn expert_bytes_on_gpu(tensor: &Tensor) -> u64 {
    bytes_as(tensor, Form::of_expert)
}

fn bytes_as(tensor: &Tensor, form: fn(&TensorData<'_>) -> Form) -> u64 {
    let view = tensor.view();
    let (rows, cols) = size(&view);
    form(&view).bytes(rows * cols) as u64
}

/// A matrix on a GPU, `[output][input]`: one tensor's, or several with as many inputs one below the other.
#[derive(Debug)]
pub(crate) struct GpuMatrix {
    pub memory: GpuMemory,
    pub form: Form,
    pub rows: usize,
    pub cols: usize,
    /// Rows on all GPUs that have parts of it. How sums are cut follows from these, so that they are the same on any number
    /// of GPUs.
    pub all: usize,
}

impl GpuMatrix {
    /// Copies tensors to the GPU, which all have the same form and inputs; they are there once [`Queue::Load`] was waited for.
    pub fn load(machine: &Arc<dyn Machine>, tensors: &[&Tensor]) -> Result<Self, GpuError> {
        let views: Vec<TensorData<'_>> = tensors.iter().map(|tensor| tensor.view()).collect();
        let matrix = Self::of_views(machine, &views)?;
        tensors.iter().for_each(|tensor| tensor.forget());
        Ok(matrix)
    }

    /// As a part of one of so many rows.
    pub fn part_of(self, all: usize) -> Self {
        Self { all, ..self }
    }

    fn of_views(machine: &Arc<dyn Machine>, views: &[TensorData<'_>]) -> Result<Self, GpuError> {
        let Some(first) = views.first() else { return Err(GpuError::Unsupported("a matrix of nothing".into())) };
        let (form, (_, cols)) = (Form::of(first), size(first));
        let rows = views.iter().map(|view| size(view).0).sum::<usize>();
        check_columns(form, cols)?;
        let memory = GpuMemory::take(machine, form.bytes(rows * cols))?;
        copy_below(machine, views, form, rows * cols, interleaved::TOGETHER, memory.at())?;
        Ok(Self { memory, form, rows, cols, all: rows })
    }

    /// One matrix that is no checkpoint's.
    #[cfg(test)]
    pub fn of_view(machine: &Arc<dyn Machine>, view: &TensorData<'_>) -> Result<Self, GpuError> {
        let matrix = Self::of_views(machine, &[*view])?;
        machine.download(Queue::Load, 0, &mut []).map(|()| matrix)
    }
}

/// Matrices of all experts of a layer on a GPU, quantised ones row by row.
#[derive(Debug)]
pub(crate) struct GpuExpertMatrices {
    pub memory: GpuMemory,
    pub form: Form,
    /// Of one.
    pub rows: usize,
    pub cols: usize,
    /// Bytes from one to the next.
    pub every: usize,
}

impl GpuExpertMatrices {
    /// Copies what each expert has, one below the other, to the GPU; it is there once [`Queue::Load`] was waited for.
    pub fn load(machine: &Arc<dyn Machine>, experts: &[Vec<&Tensor>]) -> Result<Self, GpuError> {
        let views: Vec<Vec<TensorData<'_>>> =
            experts.iter().map(|tensors| tensors.iter().map(|tensor| tensor.view()).collect()).collect();
        let matrices = Self::of_views(machine, &views)?;
        experts.iter().flatten().for_each(|tensor| tensor.forget());
        Ok(matrices)
    }

    fn of_views(machine: &Arc<dyn Machine>, views: &[Vec<TensorData<'_>>]) -> Result<Self, GpuError> {
        let nothing = || GpuError::Unsupported("a matrix of nothing".into());
        let first = views.first().ok_or_else(nothing)?;
        let (form, cols) = first.first().map(|view| (Form::of_expert(view), size(view).1)).ok_or_else(nothing)?;
        check_columns(form, cols)?;
        let rows_of = |views: &[TensorData<'_>]| views.iter().map(|view| size(view).0).sum::<usize>();
        let rows = rows_of(first);
        let alike = |view: &TensorData<'_>| Form::of_expert(view) == form && size(view).1 == cols;
        if !views.iter().all(|views| rows_of(views) == rows && views.iter().all(alike)) {
            return Err(GpuError::Unsupported("a layer whose experts are not all alike".into()));
        }
        // Kernels read 16 bytes at a time.
        let every = form.bytes(rows * cols).next_multiple_of(16);
        let memory = GpuMemory::take(machine, every * views.len())?;
        for (expert, views) in views.iter().enumerate() {
            copy_below(machine, views, form, rows * cols, 1, memory.at() + (expert * every) as u64)?;
        }
        Ok(Self { memory, form, rows, cols, every })
    }

    /// Some that are no checkpoint's.
    #[cfg(test)]
    pub fn of_each(machine: &Arc<dyn Machine>, views: &[TensorData<'_>]) -> Result<Self, GpuError> {
        let views: Vec<Vec<TensorData<'_>>> = views.iter().map(|view| vec![*view]).collect();
        let matrices = Self::of_views(machine, &views)?;
        machine.download(Queue::Load, 0, &mut []).map(|()| matrices)
    }
}

/// Copies views of one form, one below the other, to a place for so many numbers. Of quantised ones as many rows lie together.
fn copy_below(
    machine: &Arc<dyn Machine>,
    views: &[TensorData<'_>],
    form: Form,
    numbers: usize,
    together: usize,
    at: u64,
) -> Result<(), GpuError> {
    let (mut first, mut second) = (at, at + form.planes(numbers).0 as u64);
    let mut send = |a: &[u8], b: &[u8]| -> Result<(), GpuError> {
        machine.upload(Queue::Load, first, a)?;
        machine.upload(Queue::Load, second, b)?;
        (first, second) = (first + a.len() as u64, second + b.len() as u64);
        Ok(())
    };
    if form.rounded().is_none() {
        return views.iter().try_for_each(|view| lay_out(view, &mut send));
    }
    let quantised = views.iter().filter_map(|view| match view {
        TensorData::Quantised(blocks) => Some(*blocks),
        TensorData::Dense(_) | TensorData::Coded(_) => None,
    });
    let blocks: Vec<Blocks<'_>> = quantised.collect();
    interleaved::lay_out(&blocks, form, together, &mut send)
}

/// Rows and columns.
pub(crate) fn size(view: &TensorData<'_>) -> (usize, usize) {
    match view {
        TensorData::Dense(matrix) => (matrix.rows(), matrix.cols()),
        TensorData::Quantised(blocks) => (blocks.rows(), blocks.cols()),
        TensorData::Coded(coded) => coded.size(),
    }
}

/// Kernels read eight numbers of a row at a time.
fn check_columns(form: Form, cols: usize) -> Result<(), GpuError> {
    if cols.is_multiple_of(8) {
        return Ok(());
    }
    Err(GpuError::Unsupported(format!("a matrix of {cols} columns in {}", form.name())))
}

/// Hands on a tensor's bytes in pieces, as dense numbers.
fn lay_out(view: &TensorData<'_>, send: Send<'_>) -> Result<(), GpuError> {
    match view {
        TensorData::Dense(matrix) => matrix.bytes().chunks(PIECE).try_for_each(|piece| send(piece, &[])),
        TensorData::Quantised(blocks) => widened(size(view), Dtype::F16, &|row, out| blocks.widen_row(row, out), send),
        TensorData::Coded(coded) => widened(size(view), coded.dtype(), &|row, out| coded.widen_row(row, out), send),
    }
}

/// Numbers of rows that `row` writes, as `dtype`: half precision or bfloat16.
fn widened(
    (rows, cols): (usize, usize),
    dtype: Dtype,
    row: &dyn Fn(usize, &mut [f32]),
    send: Send<'_>,
) -> Result<(), GpuError> {
    let (mut line, mut bytes) = (vec![0.0; cols], Vec::with_capacity(PIECE));
    for index in 0..rows {
        row(index, &mut line);
        match dtype {
            Dtype::Bf16 => bytes.extend(line.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
            Dtype::F16 | Dtype::F32 => bytes.extend(line.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes())),
        }
        if bytes.len() >= PIECE || index + 1 == rows {
            send(&bytes, &[])?;
            bytes.clear();
        }
    }
    Ok(())
}
