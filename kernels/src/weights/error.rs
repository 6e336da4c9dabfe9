//! What is wrong with weights, in words for who has to get others.

use crate::{finite::NonFinite, gguf::GgufError};
use std::path::PathBuf;
use tsnode_protocol::LayerRange;

/// Why weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A name that is there, and no file.
    #[error("{0}: is not a file: get it again")]
    NotAFile(PathBuf),
    /// A folder without weights.
    #[error(
        "there is no model.safetensors, and no model.safetensors.index.json that names other files, but {found}: \
         get the model in safetensors, or give one of its files by name"
    )]
    NoFiles {
        /// Files that could be meant.
        found: String,
    },
    /// One of several files is not there.
    #[error("{path}: is missing; the weights are in {total} files: get it again")]
    NoShard {
        /// Which.
        path: PathBuf,
        /// Files of the model.
        total: u32,
    },
    /// What says which file has which tensor cannot be used.
    #[error("{path}: {error}")]
    Index {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: String,
    },
    /// Nothing says which of two copies of a tensor counts.
    #[error(
        "tensor {name} is in {first} and in {second}, and no weight_map of model.safetensors.index.json says in which it \
         counts: get the model's files again, all of one version"
    )]
    Twice {
        /// Which.
        name: String,
        /// The file that was read first.
        first: String,
        /// The other one.
        second: String,
    },
    /// Not a safetensors file, or one cut short.
    #[error("{file}: broken or cut short: {error}")]
    Broken {
        /// Which.
        file: String,
        /// What was found.
        error: String,
    },
    /// A GGUF file cannot be used.
    #[error("{path}: {error}")]
    Gguf {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: GgufError,
    },
    /// A tensor the model needs is not there.
    #[error("tensor {0} is missing: the weights are of another model, or a file is missing")]
    Missing(String),
    /// A tensor is not in the file that the index says has it.
    #[error("tensor {name} is missing: by the index it is in {file}, which is of another model or of another version")]
    NotIn {
        /// Which.
        name: String,
        /// The file that should have it.
        file: String,
    },
    /// A tensor of a file that is still fetched is not there, or not all of it.
    #[error("{file}: tensor {name} is not here yet: it has not been fetched, or was lost since")]
    NotHere {
        /// The file.
        file: String,
        /// Which.
        name: String,
    },
    /// A tensor has other sizes than config.json says.
    #[error("tensor {name} has shape {found:?}, config.json asks for {expected:?}")]
    Shape {
        /// Which.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// By the configuration.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a form that is not read.
    #[error("tensor {name} is stored as {found}; of safetensors, F32, F16 and BF16 are read")]
    Dtype {
        /// Which.
        name: String,
        /// In the file.
        found: String,
    },
    /// A tensor that does not say what the configuration says of it.
    #[error("tensor {name} {what}: the weights are of another model, or damaged: get them again")]
    Coded {
        /// Which.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A tensor that nothing can be computed with.
    #[error("{file}: tensor {name} holds {bad}; the file is damaged or its training failed: get it again, or another")]
    NotFinite {
        /// The file.
        file: String,
        /// Which.
        name: String,
        /// What is in it first that is no number.
        bad: NonFinite,
    },
    /// More ranks than heads to share among them, or a number that wide heads cannot be shared among.
    #[error(
        "tensor parallelism of {ranks} cannot share {heads} KV heads, as many as layers of the model have: set --tensor-parallel \
         to a number that can"
    )]
    Ranks {
        /// Asked for.
        ranks: usize,
        /// KV heads of the model.
        heads: usize,
    },
    /// Some layers of a model that one stage has to hold.
    #[error(
        "layers {layers} of {all} are no stage: this model's need more of each other than passes from stage to stage"
    )]
    Whole {
        /// Asked for.
        layers: LayerRange,
        /// Of the model.
        all: u32,
    },
    /// The system gives no threads to load with.
    #[error("no threads to load with: {0}")]
    Threads(std::io::Error),
}
