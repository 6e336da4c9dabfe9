//! Why a model cannot be used: what, where, and what would do.

use crate::{config::ModelConfigError, weights::WeightsError};
use std::path::PathBuf;

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Nothing is there.
    #[error("{0}: no such file or folder")]
    Absent(PathBuf),
    /// Neither a folder nor a file that is read.
    #[error(
        "{0}: a model is a folder with config.json, tokenizer.json and *.safetensors, its model.safetensors, \
         or a .gguf file"
    )]
    NotAModel(PathBuf),
    /// A folder with more than one model.
    #[error("{folder}: there is no config.json, but {} GGUF models ({}): name one of them", .models.len(), .models.join(", "))]
    Several {
        /// Which.
        folder: PathBuf,
        /// Their files.
        models: Vec<String>,
    },
    /// A GGUF file cannot be used; the error names it.
    #[error(transparent)]
    Gguf(WeightsError),
    /// A small file is missing or cannot be read.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A small file is too large.
    #[error("{path}: {bytes} bytes, at most {limit} are read")]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most read.
        limit: usize,
    },
    /// The configuration cannot be used.
    #[error("{path}: {error}")]
    Config {
        /// The model.
        path: PathBuf,
        /// Why.
        error: ModelConfigError,
    },
    /// The weights cannot be used.
    #[error("{path}: {error}")]
    Weights {
        /// The model.
        path: PathBuf,
        /// Why.
        error: WeightsError,
    },
}
