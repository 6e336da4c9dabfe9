//! A peer that was told no model: what it fetches from others it lends, beside what runs.

use super::{ModelChoice, NodeConfig, NodeError, WantedModel, resources::Resources};
use crate::{
    control_plane::driver::NowLent,
    data_plane::library::Shelf,
    store::Store,
    view::SwarmView,
    weights::{Fetching, Giver, Index, Provision},
    worker::WorkerHandle,
};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// How long the threads of the model inside the program may take to give their memory back; what they still have then is not lent.
const RELEASE: Duration = Duration::from_millis(300);

/// What it takes to lend a model later than at the start.
pub(super) struct Volunteer {
    pub provision: Provision,
    pub config: NodeConfig,
    pub store: Store,
    pub index: Index,
    pub worker: WorkerHandle,
    pub giver: Giver,
    pub shelf: Shelf,
    pub view: watch::Sender<SwarmView>,
    /// To the driver.
    pub lent: mpsc::Sender<NowLent>,
}

/// Whether a peer fetches at all: who names a model, or wants none, has what he wants.
pub(super) fn may_fetch(config: &NodeConfig) -> bool {
    let is_fallback = |model: &WantedModel| model.choice == ModelChoice::Fallback && model.draft.is_none();
    config.models.iter().any(is_fallback) && config.weights.budget > 0
}

impl Volunteer {
    pub async fn run(self, stop: CancellationToken) {
        let Self { provision, config, store, index, worker, giver, shelf, view, lent } = self;
        let tell = |fetching: Fetching| {
            view.send_if_modified(|view| {
                let changed = view.fetching.as_ref() != Some(&fetching);
                view.fetching = Some(fetching);
                changed
            });
        };
        let Some((name, path)) = stop.run_until_cancelled(provision.run(tell)).await else { return };
        // What the model inside the program had is free for the other.
        if worker.lend(Vec::new()).await.is_err() {
            return;
        }
        tokio::time::sleep(RELEASE).await;
        let opened = async {
            let wanted = WantedModel::new(ModelChoice::Path(path.clone()), config.kv_dtype);
            let config = NodeConfig { models: vec![WantedModel { name: Some(name.clone()), ..wanted }], ..config };
            let late = Resources::find(&config, &store, &index, &mut |_| ()).await?;
            let (files, advert) = (late.models.iter().map(|model| model.source.clone()).collect(), late.advert.clone());
            let (models, holdings) = late.start(&config, None)?;
            Ok::<_, NodeError>((files, holdings, advert, models))
        };
        let (files, holdings, advert, models) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                let why = format!("{name} was fetched and cannot be served here: {error}");
                tracing::error!(%why);
                view.send_modify(|view| view.fetching = Some(Fetching { why: Some(why), ..Fetching::default() }));
                return;
            }
        };
        tracing::info!(model = name, path = %path.display(), "lends what it fetched");
        shelf.set(files);
        giver.hold(holdings);
        // Either being gone, the process ends.
        if worker.lend(models).await.is_ok() {
            let _ = lent.send(NowLent { models: advert.models, devices: advert.devices }).await;
        }
        view.send_modify(|view| view.fetching = view.fetching.take().map(|far| Fetching { holders: 0, ..far }));
    }
}
