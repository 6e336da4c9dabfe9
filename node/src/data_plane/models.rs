//! The models this peer can take requests for: its own, and those it learned of from others' adverts.
//!
//! A gateway needs only a model's small files; those of a model it does not hold are fetched from a peer that does,
//! checked against the hash in the advert, and kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tsnode_protocol::{ModelCard, ModelId};

/// A model's card and the content of its small files by name.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// The card.
    pub card: ModelCard,
    /// `config.json`, `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`, … as far as they exist.
    pub files: Arc<BTreeMap<String, Vec<u8>>>,
}

/// Why a model's files cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelFilesError {
    /// No peer has announced such a model.
    #[error("no peer announces this model")]
    Unknown,
    /// It is known, but no peer would give its files.
    #[error("the model's files could not be fetched: {0}")]
    Fetch(String),
}

/// Asks for a model's files.
#[derive(Debug)]
pub struct FilesQuery {
    /// The model.
    pub model: ModelId,
    /// Where to answer.
    pub answer: oneshot::Sender<Result<ModelFiles, ModelFilesError>>,
}

/// The way to models' small files.
#[derive(Clone, Debug)]
pub struct ModelLibrary {
    queries: mpsc::Sender<FilesQuery>,
}

impl ModelLibrary {
    /// A handle and the receiving end for whoever answers it.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<FilesQuery>) {
        let (queries, receiver) = mpsc::channel(64);
        (Self { queries }, receiver)
    }

    /// The files of a model.
    ///
    /// # Errors
    /// When no peer has them.
    pub async fn files(&self, model: ModelId) -> Result<ModelFiles, ModelFilesError> {
        let (answer, files) = oneshot::channel();
        let gone = || ModelFilesError::Fetch("this peer is shutting down".into());
        self.queries.send(FilesQuery { model, answer }).await.map_err(|_| gone())?;
        files.await.map_err(|_| gone())?
    }
}
