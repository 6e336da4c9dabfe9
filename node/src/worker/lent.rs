//! A model that this peer lends, and the threads that compute it: one for each device, whose pages are those of all its models.

use super::{
    compute::Compute,
    devices::{Lost, ModelDevices},
};
use crate::text::grammar::{GrammarError, GrammarVocabulary, Grammars};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{Device, KvDtype, ModelId};

/// A model to lend, and what computes it.
#[derive(Clone)]
pub struct LentModel {
    /// It.
    pub source: Arc<ModelSource>,
    /// The model that drafts for it, if there is one.
    pub draft: Option<Arc<ModelSource>>,
    /// Elements of its KV pages.
    pub dtype: KvDtype,
    /// Compute threads, one for each device of the advert.
    pub computes: Vec<Compute>,
    /// Those devices.
    pub adverted: Arc<[Device]>,
}

/// One that is lent.
pub(super) struct Lent {
    pub source: Arc<ModelSource>,
    pub draft: Option<Arc<ModelSource>>,
    pub dtype: KvDtype,
    /// Over its tokens.
    pub grammars: Arc<Grammars>,
    pub devices: ModelDevices,
    /// As the advert has them.
    pub adverted: Arc<[Device]>,
}

/// All of them, by their ids.
pub(super) type Models = BTreeMap<ModelId, Arc<Lent>>;

/// Has the devices of these models asked from now on, until `asking` ends; one that is lost is told on the channel.
pub(super) fn lend(
    models: Vec<LentModel>,
    tasks: &TaskTracker,
    asking: &CancellationToken,
) -> (Models, mpsc::Receiver<Lost>) {
    let threads = models.iter().map(|model| model.computes.len()).sum::<usize>();
    let (losses, lost) = mpsc::channel(threads.max(1));
    let lent = |LentModel { source, draft, dtype, computes, adverted }: LentModel| {
        let lent = Lent {
            grammars: Grammars::new(vocabulary(source.clone())),
            devices: ModelDevices::start(computes, tasks, asking, &losses),
            source,
            draft,
            dtype,
            adverted,
        };
        (lent.source.card().id, Arc::new(lent))
    };
    (models.into_iter().map(lent).collect(), lost)
}

/// Reads the tokens of a model.
fn vocabulary(source: Arc<ModelSource>) -> impl Fn() -> Result<GrammarVocabulary, GrammarError> {
    move || {
        let missing = || GrammarError::NoVocabulary("this peer has no tokenizer.json of the model".into());
        GrammarVocabulary::read(source.file("tokenizer.json").ok_or_else(missing)?, source.card().shape.vocab)
    }
}
