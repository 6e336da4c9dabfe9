//! Models' text sides, read once and kept.

use super::ApiError;
use crate::{
    data_plane::models::ModelLibrary,
    text::{Parsers, SpecialText, Templates, TextModel, Workers},
    view::{SwarmView, is_called},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tsnode_coordinator::waiting::NotReady;
use tsnode_protocol::{ModelCard, ModelId};

/// Tokenizers kept; the one asked for longest ago goes first.
const KEPT: usize = 8;
/// When to ask again where nobody has a model.
const RETRY: Duration = Duration::from_secs(2);

/// Models by what clients call them.
#[derive(Clone)]
pub struct Texts {
    library: ModelLibrary,
    templates: Templates,
    special: SpecialText,
    parsers: Parsers,
    /// Of all models.
    workers: Arc<Workers>,
    /// Most recent last. Held for list operations only.
    kept: Arc<Mutex<Vec<Arc<TextModel>>>>,
}

impl Texts {
    /// Of this library, with chat templates rendered there.
    #[must_use]
    pub fn new(library: ModelLibrary, templates: Templates) -> Self {
        let (special, parsers) = (SpecialText::default(), Parsers::default());
        Self { library, templates, special, parsers, workers: Arc::default(), kept: Arc::default() }
    }

    /// The same, with special tokens' texts in messages read as told.
    #[must_use]
    pub fn reading(self, special: SpecialText) -> Self {
        Self { special, ..self }
    }

    /// The same, with answers taken apart as told.
    #[must_use]
    pub fn parsing(self, parsers: Parsers) -> Self {
        Self { parsers, ..self }
    }

    /// The model a client means: by name or id; the swarm's default if it names none.
    pub(super) async fn find(&self, view: &SwarmView, name: Option<&str>) -> Result<Arc<TextModel>, ApiError> {
        self.read(find_card(view, name)?.id).await
    }

    async fn read(&self, model: ModelId) -> Result<Arc<TextModel>, ApiError> {
        if let Some(kept) = self.take(model) {
            return Ok(kept);
        }
        let files = self.library.files(model).await?;
        let (templates, workers) = (self.templates.clone(), self.workers.clone());
        let (special, parsers) = (self.special, self.parsers);
        let told = move |text: TextModel| text.reading(special).parsing(parsers).with_workers(workers);
        let read = move || TextModel::new(&files, &templates).map(told);
        // A large tokenizer takes a second to read.
        let read = tokio::task::spawn_blocking(read).await;
        let read = read.map_err(|e| ApiError::Model(e.to_string()))??;
        // Whoever lends the model was warned at its start; this is for a gateway's log.
        for note in read.notes() {
            tracing::info!(model = read.card().name, "{note}");
        }
        Ok(self.keep(Arc::new(read)))
    }

    fn take(&self, model: ModelId) -> Option<Arc<TextModel>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|m| m.card().id == model)?;
        let found = kept.remove(at);
        kept.push(found.clone());
        Some(found)
    }

    /// Of a model that others have read meanwhile theirs is kept.
    fn keep(&self, model: Arc<TextModel>) -> Arc<TextModel> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(theirs) = kept.iter().find(|m| m.card().id == model.card().id) {
            return theirs.clone();
        }
        kept.push(model.clone());
        if kept.len() > KEPT {
            kept.remove(0);
        }
        model
    }
}

/// The card of the model a client names.
pub(super) fn find_card<'v>(view: &'v SwarmView, name: Option<&str>) -> Result<&'v ModelCard, ApiError> {
    let Some(name) = name else {
        let default = |m: &&ModelCard| view.default_model.is_none_or(|id| id == m.id);
        return view
            .models
            .iter()
            .find(default)
            .ok_or_else(|| ApiError::Unserved { reason: NotReady::NothingLent.to_string(), retry_after: RETRY });
    };
    view.models.iter().find(|m| is_called(m, name)).ok_or_else(|| ApiError::UnknownModel {
        asked: name.chars().take(120).collect(),
        there: view.models.iter().map(|m| m.name.clone()).collect(),
    })
}
