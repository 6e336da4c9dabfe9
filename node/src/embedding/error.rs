//! Why a folder is no encoder that can be lent.

use std::path::PathBuf;

/// Why a folder is no encoder that can be lent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncoderError {
    /// A file cannot be read.
    #[error("{}: {error}; an encoder is a folder as Hugging Face has it, with config.json, tokenizer.json and model.safetensors", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// A file is larger than any that is read.
    #[error("{}: it has {bytes} bytes, and at most {limit} are read", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What is read at most.
        limit: u64,
    },
    /// A file is not what it should be.
    #[error("{}: {error}; download it again, or restore it from a copy", path.display())]
    Broken {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// The model is of a kind that is not computed.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// Which file says so.
        path: PathBuf,
        /// What it says, and what is computed.
        what: String,
    },
    /// The host does not give what it takes.
    #[error("the encoder does not start: {0}")]
    System(String),
}
