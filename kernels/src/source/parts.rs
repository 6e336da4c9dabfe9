//! What has to be there of a file of weights before a model can be opened of which nothing else is there yet.

use crate::gguf::{Gguf, GgufError};
use std::iter;
use std::ops::Range;
use std::path::PathBuf;
use tsnode_protocol::weights::WeightsForm;

/// Longest header of safetensors that is read, as the format's own library has it (bytes).
const HEADER: u64 = 100_000_000;
/// Longest start of a GGUF file: tokenizers of half a million words take twenty of these (bytes).
const METADATA: u64 = 512 << 20;

/// A file of weights of which not all has to be there. It is as long as it is to be.
#[derive(Clone, Debug)]
pub struct PartFile {
    /// Where it is, whatever it is called.
    pub path: PathBuf,
    /// Which of its bytes are there.
    pub there: Vec<Range<u64>>,
}

/// What is to be there of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// So many of its first bytes at least: then it can be said.
    More(u64),
    /// These places.
    Places(Vec<Range<u64>>),
}

/// By the first bytes of a file of `file` bytes: where it says what tensors it has, and what of them is part of a configuration.
///
/// # Errors
/// When they are no start of such a file.
pub fn start_of(form: WeightsForm, first: &[u8], file: u64) -> Result<Start, String> {
    match form {
        WeightsForm::Safetensors => safetensors(first, file),
        WeightsForm::Gguf => gguf(first, file),
    }
}

fn safetensors(first: &[u8], file: u64) -> Result<Start, String> {
    let Some(length) = first.first_chunk::<8>() else {
        return if file < 8 { Err(format!("it has {file} bytes")) } else { Ok(Start::More(8)) };
    };
    let end = u64::from_le_bytes(*length).saturating_add(8);
    if end > file.min(HEADER) {
        return Err(format!("its header is said to have {end} bytes, the file has {file}"));
    }
    Ok(Start::Places(iter::once(0..end).collect()))
}

fn gguf(first: &[u8], file: u64) -> Result<Start, String> {
    if first.len() < 4 && file >= 4 {
        return Ok(Start::More(file.min(1 << 20)));
    }
    let head = match Gguf::parse_start(first, file) {
        Err(GgufError::CutShort { .. }) if (first.len() as u64) < file.min(METADATA) => {
            return Ok(Start::More((first.len() as u64 * 2).clamp(1 << 20, file.min(METADATA))));
        }
        head => head.map_err(|error| error.to_string())?,
    };
    let to = |place: &Range<usize>| place.start as u64..place.end as u64;
    // Its own account of itself ends before the first tensor, if there is one.
    let end = head.tensors.iter().map(|tensor| tensor.range.start as u64).min().unwrap_or(first.len() as u64);
    // Factors of positions lie among the tensors.
    let lists = head.tensors.iter().filter(|tensor| tensor.shape.len() == 1 && !tensor.name.starts_with("blk."));
    Ok(Start::Places(std::iter::once(0..end).chain(lists.map(|tensor| to(&tensor.range))).collect()))
}

#[cfg(test)]
mod tests;
