//! The models of this peer as they are opened: named by their content, read once, and refused where they cannot be lent together.

use super::{ComputeChoice, ModelChoice, NodeConfig, NodeError, WantedModel};
use crate::{
    data_plane::library::files_of,
    hub,
    text::{Templates, TextError, TextModel, speak_alike},
    weights::{Holding, Index, KeptOrigin, Peers, Stock, identify, kept_origin},
};
use std::{path::Path, sync::Arc};
use tsnode_kernels::{
    load::LoadProgress,
    source::{ModelSource, SourceError},
};
use tsnode_protocol::{KvDtype, ModelOrigin};

/// A model of this peer.
pub(super) struct Opened {
    pub source: Arc<ModelSource>,
    /// What drafts for it.
    pub draft: Option<Arc<ModelSource>>,
    /// Its weights, for others.
    pub holding: Holding,
    /// Whether its terms have to be accepted by whoever has it.
    pub is_gated: bool,
    /// Where it came from, if that is known.
    pub origin: Option<hub::CachedOrigin>,
    /// What plans may give of it to this peer (bytes), where its owner bounds what is fetched.
    pub takes: Option<u64>,
    /// Elements of its KV pages.
    pub dtype: KvDtype,
    /// Whether its owner named it as one that stays in memory.
    pub is_kept: bool,
    /// Whether its owner said which part of the memory is its.
    pub has_part: bool,
}

impl Opened {
    /// Opens a model to be computed so, and names it by its content, hashed by so many threads. Whoever waits is told how far that is.
    pub async fn find(
        wanted: &WantedModel,
        (threads, computed): (usize, ComputeChoice),
        index: &Index,
        progress: &mut (dyn FnMut(LoadProgress) + Send),
    ) -> Result<Self, NodeError> {
        let source = open(wanted, computed)?;
        // Once for each file: a gigabyte a second and thread, where the disk gives it.
        let named = tokio::task::block_in_place(|| identify(source, index, threads, progress));
        let (source, holding) = Holding::new(named);
        let (is_gated, origin) = match &wanted.choice {
            ModelChoice::Path(path) => from(path),
            ModelChoice::Fallback | ModelChoice::Embedded | ModelChoice::Named(_) => (false, None),
        };
        Ok(Self { is_gated, origin, ..Self::read(wanted, source, holding).await? })
    }

    /// The same of a model of which layers are fetched when they are wanted.
    pub async fn part(wanted: &WantedModel, stock: &Stock<Peers>) -> Result<Self, NodeError> {
        let source = stock.source().await?;
        let source = match &wanted.name {
            Some(name) => source.called(name),
            None => source,
        };
        let holding = Holding::part(source.card().id, stock.drafts().clone());
        let (is_gated, origin) = said_by_peers(&stock.origin());
        let takes = stock.takes();
        Ok(Self { is_gated, origin, takes, ..Self::read(wanted, Arc::new(source), holding).await? })
    }

    async fn read(wanted: &WantedModel, source: Arc<ModelSource>, holding: Holding) -> Result<Self, NodeError> {
        check_text(&source).await?;
        let draft = tokio::task::block_in_place(|| open_draft(wanted, &source))?;
        let (is_gated, origin, takes) = (false, None, None);
        let (dtype, is_kept, has_part) = (wanted.kv_dtype, wanted.keep, wanted.memory_bytes.is_some());
        Ok(Self { source, draft, holding, is_gated, origin, takes, dtype, is_kept, has_part })
    }
}

/// What a peer starts with: the models that it has. Where none is, the one inside the program is measured in their place.
pub(super) fn at_first(config: &NodeConfig) -> NodeConfig {
    let mut models = config.models.clone();
    if has_none(&models) {
        models.push(WantedModel::new(ModelChoice::Fallback, config.kv_dtype));
    }
    models.retain(|model| !matches!(model.choice, ModelChoice::Named(_)));
    NodeConfig { models, ..config.clone() }
}

/// Whether none of those that a peer was told is here, so that nothing is lent before one of them comes.
pub(super) fn has_none(models: &[WantedModel]) -> bool {
    !models.is_empty() && models.iter().all(|model| matches!(model.choice, ModelChoice::Named(_)))
}

/// One model twice, or two that have one name, are no wish that can be met.
pub(super) fn refuse_alike(wanted: &[WantedModel], models: &[Opened]) -> Result<(), NodeError> {
    for (n, model) in models.iter().enumerate() {
        let (card, second) = (model.source.card(), wanted[n].choice.to_string());
        for (before, other) in wanted.iter().zip(&models[..n]) {
            let (first, other, name) = (before.choice.to_string(), other.source.card(), card.name.clone());
            if other.id == card.id {
                return Err(NodeError::SameModel { first, second, name });
            }
            if other.name == card.name {
                return Err(NodeError::SameName { first, second, name });
            }
        }
    }
    Ok(())
}

/// What is to stay in memory has to be one of these, which are called so, unless one of those that are wanted is still to come.
pub(super) fn refuse_unknown(keep: &[String], wanted: &[WantedModel], called: Vec<String>) -> Result<(), NodeError> {
    let comes = |model: &WantedModel| matches!(model.choice, ModelChoice::Named(_));
    match unknown(keep, &called) {
        Some(keep) if !called.is_empty() && !wanted.iter().any(comes) => {
            Err(NodeError::KeepsNone { keep: keep.clone(), called })
        }
        _ => Ok(()),
    }
}

/// What is to stay in memory and is none of those that are called so.
pub(super) fn unknown<'k>(keep: &'k [String], called: &[String]) -> Option<&'k String> {
    keep.iter().find(|name| !called.contains(name))
}

/// Whether terms have to be accepted by whoever has the model at a path, and where it came from: by the hub's cache, or as peers said that
/// gave it.
fn from(path: &Path) -> (bool, Option<hub::CachedOrigin>) {
    let (is_gated, origin) = said_by_peers(&kept_origin(path));
    (is_gated || hub::is_gated(path), hub::origin_of(path).or(origin))
}

fn said_by_peers(kept: &KeptOrigin) -> (bool, Option<hub::CachedOrigin>) {
    if let KeptOrigin::Unreadable(note) = kept {
        tracing::warn!(
            note = %note.display(),
            "what was said of a model's terms cannot be read: it counts as gated; fetched anew (tsnode models rm, and a pull) it has what is \
             said then"
        );
    }
    let origin = |ModelOrigin { source, licence, .. }| hub::CachedOrigin { source, licence };
    (kept.is_gated(), kept.said().cloned().map(origin))
}

fn open(wanted: &WantedModel, computed: ComputeChoice) -> Result<ModelSource, NodeError> {
    let choice = &wanted.choice;
    let source = match choice {
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
    let source = match choice {
        ModelChoice::Path(path) => said(source, path),
        _ => source,
    };
    Ok(match &wanted.name {
        Some(name) => source.called(name),
        None => source,
    })
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

/// The model that is to draft for `source`, if there is to be one; one that speaks of other tokens is refused, and so are models with
/// states.
///
/// # Errors
/// When it cannot be used, or not for that.
pub fn open_draft(wanted: &WantedModel, source: &Arc<ModelSource>) -> Result<Option<Arc<ModelSource>>, NodeError> {
    let Some(path) = &wanted.draft else { return Ok(None) };
    let draft = Arc::new(open_path(path)?);
    if [&draft, source].iter().any(|source| source.card().shape.has_state()) {
        let (draft, model) = (path.display().to_string(), wanted.choice.to_string());
        return Err(NodeError::DraftOfState { draft, model });
    }
    let templates = Templates::apart().map_err(|e| NodeError::System(e.to_string()))?;
    let read = |source: &ModelSource| {
        let failed = |error| NodeError::Text { model: path.display().to_string(), error };
        TextModel::new(&files_of(source), &templates).map_err(failed)
    };
    let (of_draft, of_model) = (read(&draft)?, read(source)?);
    let (draft_file, model) = (path.display().to_string(), wanted.choice.to_string());
    let refused = |error| NodeError::Draft { draft: draft_file, model, error };
    speak_alike(of_draft.tokenizer(), of_model.tokenizer()).map_err(refused)?;
    Ok(Some(draft))
}

/// Reads tokenizer and template once, so that a model whose text cannot be read is refused before anybody counts on it.
async fn check_text(source: &ModelSource) -> Result<(), NodeError> {
    let files = files_of(source);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_stay_in_memory_may_be_a_model_that_is_still_to_come() {
        let wanted = |choices: &[ModelChoice]| -> Vec<WantedModel> {
            choices.iter().map(|choice| WantedModel::new(choice.clone(), KvDtype::F16)).collect()
        };
        let (path, named) = (ModelChoice::Path("here".into()), ModelChoice::Named("org/a".into()));
        let is_refused = |keep: &str, wanted: &[WantedModel], called: &[&str]| {
            let called = called.iter().map(|name| (*name).to_owned()).collect();
            refuse_unknown(&[keep.to_owned()], wanted, called).is_err()
        };
        let (one, both) = (wanted(std::slice::from_ref(&path)), wanted(&[path.clone(), named.clone()]));
        assert!(!is_refused("here", &one, &["here"]) && is_refused("there", &one, &["here"]));
        assert!(!is_refused("there", &both, &["here"]), "it may be what the second is called");
        assert!(!is_refused("there", &wanted(&[named]), &["inside"]), "it is there in the place of what comes");
        assert!(!is_refused("there", &[], &[]), "a gateway keeps nothing");
    }
}
