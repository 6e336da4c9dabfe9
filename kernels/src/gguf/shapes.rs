//! Tensors of a model's files, by their names: what its config.json says of them, and short lists.

use super::{Gguf, GgufError, TensorInfo};
use crate::{cpu::Dtype, stored::Stored};
use std::collections::BTreeMap;

/// Numbers of a tensor that goes into config.json.
const NUMBERS: usize = 4096;

/// Tensors of all files by the names the files give them.
pub(super) struct Shapes<'g, 'a> {
    tensors: BTreeMap<&'a str, (&'g Gguf<'a>, &'g TensorInfo<'a>)>,
}

impl<'g, 'a> Shapes<'g, 'a> {
    pub(super) fn of(heads: impl IntoIterator<Item = &'g Gguf<'a>>) -> Self {
        let each = |head: &'g Gguf<'a>| head.tensors.iter().map(move |tensor| (tensor.name, (head, tensor)));
        Self { tensors: heads.into_iter().flat_map(each).collect() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Rows of a matrix.
    pub(super) fn rows(&self, name: &str) -> Result<u32, GgufError> {
        let wrong = |problem: &str| GgufError::Tensor { name: name.to_owned(), problem: problem.to_owned() };
        let (_, tensor) = self.tensors.get(name).ok_or_else(|| wrong("is missing"))?;
        match tensor.shape[..] {
            [rows, _] => u32::try_from(rows).map_err(|_| wrong("has too many rows")),
            _ => Err(wrong("is no matrix")),
        }
    }

    /// The numbers of a short list, if it is there.
    pub(super) fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some((head, tensor)) = self.tensors.get(name) else { return Ok(None) };
        match (&tensor.shape[..], tensor.stored) {
            ([len], Stored::Dense(Dtype::F32)) if *len <= NUMBERS => {
                let bytes = &head.bytes[tensor.range.clone()];
                Ok(Some((0..*len).map(|i| Dtype::F32.get(bytes, i)).collect()))
            }
            _ => {
                let problem = format!("a list of at most {NUMBERS} numbers, stored as F32, is expected");
                Err(GgufError::Tensor { name: name.to_owned(), problem })
            }
        }
    }
}
