//! GGUF files, versions 2 and 3: what llama.cpp keeps models in, read where it lies in memory.
//!
//! A file is a header, metadata by key, what tensors there are, and the tensors' bytes. Nothing it says of itself is
//! believed before it was held against the file's length: a count is a bound on a loop that reads, never on memory.

mod architecture;
mod config;
mod metadata;
mod reader;
mod shapes;
mod small_files;
mod tensors;
mod tokenizer;

pub(crate) use architecture::{Architecture, ROPE_FACTORS};
pub use metadata::{Array, Metadata, MetadataValue};
pub(crate) use small_files::small_files;
pub use tensors::TensorInfo;

use reader::Reader;
use std::collections::BTreeMap;

/// Metadata entries of one file.
const ENTRIES: u64 = 65_536;
/// Tensors of one file.
const TENSORS: u64 = 65_536;

/// Why a GGUF file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// Another kind of file.
    #[error("does not begin with GGUF: not such a file, or a download that failed")]
    Magic,
    /// A version that is not read.
    #[error("GGUF version {0}; 2 and 3 are read: convert the model again")]
    Version(u32),
    /// Numbers the other way round.
    #[error("written for big-endian machines: convert the model again")]
    BigEndian,
    /// The file ends too early, or a length in it is a lie.
    #[error("broken or cut short: {needed} bytes are asked for at byte {at}, the file has {len}")]
    CutShort {
        /// From where.
        at: u64,
        /// Bytes the file says are there.
        needed: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// More of something than any model has.
    #[error("{what}: {found}, at most {limit} are read")]
    TooMany {
        /// Of what.
        what: String,
        /// In the file.
        found: u64,
        /// The most read.
        limit: u64,
    },
    /// A text that is none.
    #[error("{0} is not UTF-8")]
    Text(String),
    /// A kind of value that does not exist, or lists of lists.
    #[error("metadata {key} has values of type {kind}, which is not read")]
    ValueType {
        /// Which.
        key: String,
        /// The type's number.
        kind: u32,
    },
    /// Two of the same name.
    #[error("{0} is there twice")]
    Twice(String),
    /// Metadata that a model needs.
    #[error("metadata {0} is missing: the file holds no language model, or was cut apart")]
    Missing(String),
    /// Metadata of the wrong kind, or out of range.
    #[error("metadata {key}: {wanted} is expected")]
    Value {
        /// Which.
        key: String,
        /// What should be there.
        wanted: &'static str,
    },
    /// Something that is not written, by its key and value.
    #[error("{key} = {value:?} is not supported; {supported}")]
    Unsupported {
        /// Which.
        key: String,
        /// Its value.
        value: String,
        /// What is.
        supported: String,
    },
    /// A tensor that cannot be used.
    #[error("tensor {name}: {problem}")]
    Tensor {
        /// Which.
        name: String,
        /// Why.
        problem: String,
    },
    /// A tokenizer that cannot be used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// Files of one model that do not belong together.
    #[error("{0}")]
    Split(String),
}

/// A file's metadata and tensors; texts and lists stay in the file.
pub struct Gguf<'a> {
    /// What it says about the model.
    pub metadata: Metadata<'a>,
    /// Its tensors, in the order of the file.
    pub tensors: Vec<TensorInfo<'a>>,
    bytes: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// Reads and checks everything but the tensors' numbers.
    ///
    /// # Errors
    /// When a count, a length, a place or a type is not what it can be.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        Self::parse_start(bytes, bytes.len() as u64)
    }

    /// The same by the first bytes of a file of so many.
    ///
    /// # Errors
    /// As [`Self::parse`]; [`GgufError::CutShort`] where that is not all it says of itself.
    pub fn parse_start(bytes: &'a [u8], file: u64) -> Result<Self, GgufError> {
        let mut reader = Reader::new(bytes);
        let (tensors, entries) = header(&mut reader)?;
        let metadata = metadata::read(&mut reader, entries)?;
        let tensors = tensors::read(&mut reader, (tensors, file), metadata.alignment()?)?;
        Ok(Self { metadata, tensors, bytes })
    }

    /// The small files of a Hugging Face folder, as far as metadata and shapes say what is in them, by name.
    ///
    /// # Errors
    /// When metadata is missing, or the model is of a kind that is not read.
    pub fn small_files(&self) -> Result<BTreeMap<String, Vec<u8>>, GgufError> {
        small_files(&self.metadata, std::slice::from_ref(self))
    }

    /// `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.
    ///
    /// # Errors
    /// When there is no tokenizer, or one of a kind that is not read.
    pub fn text_files(&self) -> Result<BTreeMap<String, Vec<u8>>, GgufError> {
        Ok(small_files::text_files(&self.metadata)?.0)
    }
}

/// Counts of tensors and metadata entries.
fn header(reader: &mut Reader<'_>) -> Result<(u64, u64), GgufError> {
    if reader.take(4).ok() != Some(b"GGUF") {
        return Err(GgufError::Magic);
    }
    match reader.u32()? {
        2 | 3 => {}
        other if matches!(other.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
        other => return Err(GgufError::Version(other)),
    }
    let (tensors, entries) = (reader.u64()?, reader.u64()?);
    at_most("tensors", tensors, TENSORS)?;
    at_most("metadata entries", entries, ENTRIES)?;
    Ok((tensors, entries))
}

/// Refuses more than `limit` of something.
fn at_most(what: &str, found: u64, limit: u64) -> Result<(), GgufError> {
    if found > limit { Err(GgufError::TooMany { what: what.to_owned(), found, limit }) } else { Ok(()) }
}
