//! What a peer lends: its model, and the devices to compute it with.

use super::{Computed, ModelChoice, NodeConfig, NodeError, devices::Devices};
use crate::{
    data_plane::library::Shelf,
    embedding::{Computing, Lender, Lenders},
    hub,
    store::Store,
    text::{Templates, TextError, TextModel, speak_alike},
    weights::{Holding, Index, identify},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;
use tsnode_kernels::{
    device::Host as Hardware,
    engine::Engine,
    load::Progress,
    source::{ModelSource, SourceError},
};
use tsnode_protocol::{Advert, Device, EncoderCard, EncoderTask};

/// A peer's model, what it computes with, and its advert.
pub(super) struct Resources {
    /// None on a gateway.
    pub source: Option<Arc<ModelSource>>,
    /// What drafts for it.
    pub draft: Option<Arc<ModelSource>>,
    /// The model's small files.
    pub shelf: Shelf,
    /// Its weights, for others.
    pub holding: Option<Holding>,
    /// Engines, one for each device of the advert.
    pub engines: Vec<Engine>,
    /// The advert, without addresses yet.
    pub advert: Advert,
}

impl Resources {
    /// Opens the model, names it by its content and measures the host. Whoever waits is told how far the hashing is.
    pub async fn find(
        config: &NodeConfig,
        store: &Store,
        index: &Index,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Self, NodeError> {
        let source = open(&config.model, config.computed)?;
        // Once for each file: a gigabyte a second and thread, where the disk gives it.
        let named = |source| tokio::task::block_in_place(|| identify(source, index, config.threads.count, progress));
        let (source, holding) = source.map(named).map(Holding::new).unzip();
        Self::of(config, store, source, holding).await
    }

    /// The same of a model that is open and has its name.
    pub async fn of(
        config: &NodeConfig,
        store: &Store,
        source: Option<Arc<ModelSource>>,
        holding: Option<Holding>,
    ) -> Result<Self, NodeError> {
        let shelf = Shelf::new(source.clone());
        check_text(&shelf).await?;
        let draft = tokio::task::block_in_place(|| open_draft(config, source.as_ref()))?;
        // Some tenths of a second of computing, seconds with a large model, once: nothing else of this peer runs yet.
        let devices = |source: &Arc<ModelSource>| {
            let devices = Devices { config, models: (source, draft.as_deref()), host: Hardware::detect(), store };
            tokio::task::block_in_place(|| devices.lend())
        };
        let (devices, engines) = source.as_ref().map_or(Ok(Vec::new()), devices)?.into_iter().unzip();
        let advert = advert(config, source.as_deref(), devices);
        Ok(Self { source, draft, shelf, holding, engines, advert })
    }
}

fn open(choice: &ModelChoice, computed: Computed) -> Result<Option<ModelSource>, NodeError> {
    let source = match choice {
        ModelChoice::None => return Ok(None),
        ModelChoice::Fallback | ModelChoice::Embedded | ModelChoice::Named(_) => ModelSource::embedded()?,
        ModelChoice::Path(path) => open_named(path)?,
    };
    let source = if computed.long_context {
        source.with_long_context().ok_or_else(|| NodeError::NoLongContext(choice.to_string()))?
    } else {
        source
    };
    let failed = |error| SourceError::Weights { path: choice.to_string().into(), error };
    let source = source.in_precision(computed.precision).map_err(failed)?;
    Ok(Some(match choice {
        ModelChoice::Path(path) => said(source, path),
        _ => source,
    }))
}

/// The model at `path`; what had to be decided to read it is said.
fn open_path(path: &Path) -> Result<ModelSource, SourceError> {
    Ok(said(open_named(path)?, path))
}

fn said(source: ModelSource, path: &Path) -> ModelSource {
    for note in source.notes() {
        tracing::warn!(model = %path.display(), "{note}");
    }
    source
}

/// The model at `path`, called by its repository where its folder is called after a commit.
///
/// # Errors
/// When it cannot be used.
pub fn open_named(path: &Path) -> Result<ModelSource, SourceError> {
    let source = ModelSource::open(path)?;
    Ok(match hub::name_of(path) {
        Some(name) => source.called(&name),
        None => source,
    })
}

/// The model that is to draft for `source`, if there is to be one; one that speaks of other tokens is refused.
///
/// # Errors
/// When it cannot be used, or not for that.
pub fn open_draft(
    config: &NodeConfig,
    source: Option<&Arc<ModelSource>>,
) -> Result<Option<Arc<ModelSource>>, NodeError> {
    let (Some(path), Some(source)) = (&config.draft, source) else { return Ok(None) };
    let draft = Arc::new(open_path(path)?);
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
    for note in read.notes() {
        tracing::warn!(model = files.card.name, "{note}");
    }
    match read.check().await {
        // A host that is short of processes or slow just now is no reason not to serve.
        Err(error @ (TextError::Unbounded | TextError::Busy | TextError::NoProcess { .. })) => {
            tracing::warn!(%error, "the chat template was not tried");
            Ok(())
        }
        tried => tried.map_err(failed),
    }
}

/// Reads the encoders to lend and starts their threads; `moving` says when what runs here is for others to go on with.
pub(super) fn lenders(config: &NodeConfig, moving: &watch::Receiver<bool>) -> Result<Lenders, NodeError> {
    let computing = Computing { threads: config.threads.count, cores: config.cores.as_ref() };
    let start = |(path, task): &(PathBuf, EncoderTask)| {
        let lender = Lender::start(path, *task, computing, moving.clone())?;
        let EncoderCard { name, dimensions, context, .. } = lender.card();
        tracing::info!(name, dimensions, context, "lends an encoder");
        Ok(lender)
    };
    let started: Result<Vec<Lender>, NodeError> =
        tokio::task::block_in_place(|| config.encoders.iter().map(start).collect());
    Ok(Lenders::new(started?))
}

fn advert(config: &NodeConfig, source: Option<&ModelSource>, devices: Vec<Device>) -> Advert {
    Advert {
        name: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        addresses: Vec::new(),
        data_addresses: Vec::new(),
        devices,
        models: source.map(|s| s.card().clone()).into_iter().collect(),
        links: Vec::new(),
        reachable: true,
        encoders: vec![],
        invites: vec![],
        traffic: vec![],
        settings: vec![],
    }
}
