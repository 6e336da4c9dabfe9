//! What a peer lends: its model, and the devices to compute it with.

use super::{ModelChoice, NodeConfig, NodeError};
use crate::{
    cores,
    hardware::{self, Lend},
    library::Shelf,
    store::Store,
    text::{Templates, TextError, TextModel, speak_alike},
};
use std::sync::Arc;
use tsnode_kernels::{
    device::Host as Hardware,
    source::{ModelSource, SourceError},
};
use tsnode_protocol::{Advert, Device};

/// A peer's model and advert.
pub(super) struct Lent {
    /// None on a gateway.
    pub source: Option<Arc<ModelSource>>,
    /// What guesses for it.
    pub draft: Option<Arc<ModelSource>>,
    /// The model's small files.
    pub shelf: Shelf,
    /// The advert, without addresses yet.
    pub advert: Advert,
}

impl Lent {
    /// Opens the model and measures the host.
    pub async fn find(config: &NodeConfig, store: &Store) -> Result<Self, NodeError> {
        let source = open(&config.model)?;
        let shelf = Shelf::new(source.clone());
        check_text(&shelf).await?;
        let draft = tokio::task::block_in_place(|| open_draft(config, source.as_ref()))?;
        let advert = advert(config, source.as_deref(), draft.as_deref(), store)?;
        Ok(Self { source, draft, shelf, advert })
    }

    /// Memory for KV pages (bytes).
    pub fn kv_bytes(&self) -> u64 {
        self.advert.devices.first().map_or(0, |d| d.kv_bytes)
    }
}

fn open(choice: &ModelChoice) -> Result<Option<Arc<ModelSource>>, SourceError> {
    Ok(match choice {
        ModelChoice::None => None,
        ModelChoice::Embedded => Some(Arc::new(ModelSource::embedded()?)),
        ModelChoice::Path(path) => Some(Arc::new(ModelSource::open(path)?)),
    })
}

/// The model that is to guess for `source`, if there is to be one; one that speaks of other tokens is refused.
///
/// # Errors
/// When it cannot be used, or not for that.
pub fn open_draft(
    config: &NodeConfig,
    source: Option<&Arc<ModelSource>>,
) -> Result<Option<Arc<ModelSource>>, NodeError> {
    let (Some(path), Some(source)) = (&config.draft, source) else { return Ok(None) };
    let draft = Arc::new(ModelSource::open(path)?);
    let texts = [&draft, source].map(|source| Shelf::new(Some(source.clone())).own());
    let [Some(of_draft), Some(of_model)] = texts else { return Ok(None) };
    let templates = Templates::apart().map_err(|e| NodeError::System(e.to_string()))?;
    let read = |files| {
        let failed = |error| NodeError::Text { model: path.display().to_string(), error };
        TextModel::new(files, &templates).map_err(failed)
    };
    let (of_draft, of_model) = (read(&of_draft)?, read(&of_model)?);
    let (draft_file, model) = (path.display().to_string(), config.model.to_string());
    let refused = |error| NodeError::Draft { draft: draft_file, model, error };
    speak_alike(of_draft.tokenizer(), of_model.tokenizer()).map_err(refused)?;
    Ok(Some(draft))
}

/// Reads tokenizer and template once, so that a model whose text cannot be read is refused before anybody counts on it.
async fn check_text(shelf: &Shelf) -> Result<(), NodeError> {
    let Some(files) = shelf.own() else { return Ok(()) };
    let templates = Templates::apart().map_err(|e| NodeError::System(e.to_string()))?;
    let failed = |error| NodeError::Text { model: files.card.name.clone(), error };
    let read = tokio::task::block_in_place(|| TextModel::new(&files, &templates)).map_err(failed)?;
    match read.check().await {
        // A host that is short of processes or slow just now is no reason not to serve.
        Err(error @ (TextError::Unbounded | TextError::Busy | TextError::NoProcess { .. })) => {
            tracing::warn!(%error, "the chat template was not tried");
            Ok(())
        }
        tried => tried.map_err(failed),
    }
}

fn advert(
    config: &NodeConfig,
    source: Option<&ModelSource>,
    draft: Option<&ModelSource>,
    store: &Store,
) -> Result<Advert, NodeError> {
    let mut devices = Vec::new();
    if let Some(source) = source {
        let host = Hardware::detect();
        match &host.gpus {
            Ok(gpus) => tracing::info!(?gpus, "GPUs found; this version computes on the processor"),
            Err(why) => tracing::info!(why, "no GPU"),
        }
        let lend = Lend { threads: config.threads.count, memory_bytes: config.memory_bytes, kv_bytes: config.kv_bytes };
        // Some tenths of a second of computing, seconds with a large model, once: nothing else of this peer runs yet.
        let device = tokio::task::block_in_place(|| {
            cores::run_on(config.cores.as_ref(), || {
                let device = hardware::processor(&host, lend, store)?;
                hardware::room(&host, &device, source, config.threads.ranks)?;
                let device = hardware::room_beside(&host, device, (source, draft), config.threads.ranks)?;
                let profile = hardware::profile(&host, source, config.threads, config.kv_dtype, store);
                Ok::<_, hardware::LendError>(Device { profile, ..device })
            })
        });
        let device = device.map_err(|e| NodeError::System(e.to_string()))?;
        devices.push(device?);
    }
    Ok(Advert {
        name: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        addresses: Vec::new(),
        data_addresses: Vec::new(),
        devices,
        models: source.map(|s| s.card().clone()).into_iter().collect(),
        links: Vec::new(),
        reachable: true,
        invites: vec![],
        traffic: vec![],
    })
}
