//! What tensors a file holds, and that each lies where it can.

use super::{GgufError, reader::Reader};
use crate::{cpu::Dtype, quant::QuantType, stored::Stored};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a tensor's name.
const NAME: u64 = 256;
/// Dimensions of a tensor.
const DIMENSIONS: u64 = 4;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its sizes, the outermost first as everywhere but in the file.
    pub shape: Vec<usize>,
    /// How its numbers are stored.
    pub stored: Stored,
    /// Where in the file they lie.
    pub range: Range<usize>,
}

/// Reads what `count` tensors of a file of `len` bytes are; their bytes follow, each at a multiple of `alignment`.
pub(super) fn read<'a>(
    reader: &mut Reader<'a>,
    (count, len): (u64, u64),
    alignment: u64,
) -> Result<Vec<TensorInfo<'a>>, GgufError> {
    let mut heads = Vec::new();
    let mut names = BTreeSet::new();
    for _ in 0..count {
        let head = TensorHead::read(reader)?;
        if !names.insert(head.name) {
            return Err(GgufError::Twice(format!("tensor {}", head.name)));
        }
        heads.push(head);
    }
    let start = (reader.at() as u64).next_multiple_of(alignment);
    let place = |head: TensorHead<'a>| head.place(start, alignment, len);
    let tensors = heads.into_iter().map(place).collect::<Result<Vec<_>, _>>()?;
    refuse_overlaps(&tensors)?;
    Ok(tensors)
}

/// A tensor as the file describes it.
struct TensorHead<'a> {
    name: &'a str,
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl<'a> TensorHead<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, GgufError> {
        let name = reader.name("tensor", NAME)?;
        let dimensions = u64::from(reader.u32()?);
        super::at_most(&format!("dimensions of tensor {name}"), dimensions, DIMENSIONS)?;
        let mut shape = (0..dimensions).map(|_| reader.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(Self { name, shape, kind: reader.u32()?, offset: reader.u64()? })
    }

    fn place(self, start: u64, alignment: u64, len: u64) -> Result<TensorInfo<'a>, GgufError> {
        let wrong = |problem: String| GgufError::Tensor { name: self.name.to_owned(), problem };
        let stored = stored(self.kind).ok_or_else(|| wrong(unread(self.kind)))?;
        let bytes = bytes(stored, &self.shape).map_err(wrong)?;
        if !self.offset.is_multiple_of(alignment) {
            return Err(wrong(format!("lies at {}, which is no multiple of {alignment}", self.offset)));
        }
        let from = start.checked_add(self.offset);
        let range = from.and_then(|from| Some(from..from.checked_add(bytes)?)).filter(|range| range.end <= len);
        let outside = || wrong(format!("{bytes} bytes from {} on: the file is cut short, it has {len}", self.offset));
        let range = range.ok_or_else(outside)?;
        // What lies inside a mapped file fits the address space, and so does every size, none being zero.
        Ok(TensorInfo {
            name: self.name,
            shape: self.shape.iter().map(|n| *n as usize).collect(),
            stored,
            range: range.start as usize..range.end as usize,
        })
    }
}

/// Bytes of a tensor of `shape`.
fn bytes(stored: Stored, shape: &[u64]) -> Result<u64, String> {
    let numbers = shape.iter().try_fold(1_u64, |product, n| product.checked_mul(*n));
    let numbers = numbers.filter(|n| *n > 0).ok_or_else(|| format!("shape {shape:?} is out of range"))?;
    let (block, size) = match stored {
        Stored::Dense(dtype) => (1, dtype.bytes() as u64),
        Stored::Quantised(kind) => (kind.numbers() as u64, kind.bytes() as u64),
    };
    let columns = shape.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(block) {
        return Err(format!("rows of {columns} numbers are not whole blocks of {block}"));
    }
    (numbers / block).checked_mul(size).ok_or_else(|| format!("shape {shape:?} is out of range"))
}

fn refuse_overlaps(tensors: &[TensorInfo<'_>]) -> Result<(), GgufError> {
    let mut by_place: Vec<_> = tensors.iter().collect();
    by_place.sort_by_key(|t| t.range.start);
    for pair in by_place.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            let problem = format!("lies in the same bytes as {}", pair[0].name);
            return Err(GgufError::Tensor { name: pair[1].name.to_owned(), problem });
        }
    }
    Ok(())
}

fn stored(kind: u32) -> Option<Stored> {
    Some(match kind {
        0 => Stored::Dense(Dtype::F32),
        1 => Stored::Dense(Dtype::F16),
        30 => Stored::Dense(Dtype::Bf16),
        2 => Stored::Quantised(QuantType::Q4_0),
        3 => Stored::Quantised(QuantType::Q4_1),
        6 => Stored::Quantised(QuantType::Q5_0),
        7 => Stored::Quantised(QuantType::Q5_1),
        8 => Stored::Quantised(QuantType::Q8_0),
        10 => Stored::Quantised(QuantType::Q2K),
        11 => Stored::Quantised(QuantType::Q3K),
        12 => Stored::Quantised(QuantType::Q4K),
        13 => Stored::Quantised(QuantType::Q5K),
        14 => Stored::Quantised(QuantType::Q6K),
        16 => Stored::Quantised(QuantType::Iq2Xxs),
        17 => Stored::Quantised(QuantType::Iq2Xs),
        18 => Stored::Quantised(QuantType::Iq3Xxs),
        19 => Stored::Quantised(QuantType::Iq1S),
        21 => Stored::Quantised(QuantType::Iq3S),
        22 => Stored::Quantised(QuantType::Iq2S),
        29 => Stored::Quantised(QuantType::Iq1M),
        20 => Stored::Quantised(QuantType::Iq4Nl),
        23 => Stored::Quantised(QuantType::Iq4Xs),
        39 => Stored::Quantised(QuantType::Mxfp4),
        _ => return None,
    })
}

/// Says which type it is that is not read.
fn unread(kind: u32) -> String {
    let name = match kind {
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        34 => "TQ1_0",
        35 => "TQ2_0",
        _ => "of an unknown type",
    };
    format!(
        "stored as {name} ({kind}); F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, all IQ kinds and MXFP4 are read"
    )
}
