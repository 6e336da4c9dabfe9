//! A peer that was told no model: what it fetches from others it lends, beside what runs.

use super::{Computed, ModelChoice, NodeConfig, NodeError, resources::Resources};
use crate::{
    control_plane::driver::NowLent,
    data_plane::library::Shelf,
    hardware::cores,
    store::Store,
    view::SwarmView,
    weights::{Fetching, Giver, Holding, Limits, Provision, Stocks, Tell},
    worker::{Late, WorkerHandle, compute::Compute},
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tsnode_kernels::engine::Engine;

/// How long the threads of the model inside the program may take to give their memory back; what they still have then is not lent.
const RELEASE: Duration = Duration::from_millis(300);

/// What it takes to lend a model later than at the start.
pub(super) struct Volunteer {
    pub provision: Provision,
    pub config: NodeConfig,
    pub store: Store,
    pub worker: WorkerHandle,
    pub giver: Giver,
    pub stocks: Stocks,
    pub shelf: Shelf,
    pub view: watch::Sender<SwarmView>,
    /// To the driver.
    pub lent: mpsc::Sender<NowLent>,
}

/// Whether a peer fetches at all: who has a model on disk, or wants none, has what he wants.
pub(super) fn may_fetch(config: &NodeConfig) -> bool {
    match &config.model {
        // Computed otherwise it would be another model than the one that others have.
        _ if config.computed != Computed::default() => false,
        ModelChoice::Fallback => config.draft.is_none() && config.weights.budget > 0,
        ModelChoice::Named(_) => true,
        ModelChoice::Embedded | ModelChoice::Path(_) | ModelChoice::None => false,
    }
}

/// What it may fetch: who names a model allows it.
pub(super) fn limits(config: &NodeConfig) -> Limits {
    match &config.model {
        ModelChoice::Named(name) => Limits { named: Some(name.clone()), allowed: Vec::new(), ..config.weights.clone() },
        _ => config.weights.clone(),
    }
}

impl Volunteer {
    pub async fn run(self, stop: CancellationToken) {
        let Self { provision, config, store, worker, giver, stocks, shelf, view, lent } = self;
        let told = view.clone();
        let tell: Tell = Arc::new(move |fetching: Fetching| {
            told.send_if_modified(|view| {
                let changed = view.fetching.as_ref() != Some(&fetching);
                view.fetching = Some(fetching);
                changed
            });
        });
        let Some(stock) = stop.run_until_cancelled(provision.run(tell)).await else { return };
        // What the model inside the program had is free for the other.
        if worker.lend(Late { source: None, computes: Vec::new() }).await.is_err() {
            return;
        }
        tokio::time::sleep(RELEASE).await;
        let name = stock.card().name.clone();
        let opened = async {
            let source = Arc::new(stock.source().await.map_err(|e| e.to_string())?);
            let holding = Holding::part(source.card().id, stock.drafts().clone());
            let late = Resources::of(&config, &store, Some(source.clone()), Some(holding)).await;
            let late = late.map_err(|e| e.to_string())?;
            let computes = start_all(&config, late.engines).map_err(|e| e.to_string())?;
            Ok::<_, String>((source, late.holding, late.advert, computes))
        };
        let (source, holding, advert, computes) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                let why = format!("{name} cannot be served here: {error}");
                tracing::error!(%why);
                view.send_modify(|view| view.fetching = Some(Fetching { why: Some(why), ..Fetching::default() }));
                return;
            }
        };
        tracing::info!(model = name, "lends layers of it, which are fetched when a plan gives this peer some");
        let card = source.card().clone();
        shelf.set(source.clone());
        giver.hold(holding);
        stocks.keep(Arc::new(stock));
        // Either being gone, the process ends.
        if worker.lend(Late { source: Some(source), computes }).await.is_ok() {
            let _ = lent.send(NowLent { card, devices: advert.devices }).await;
        }
    }
}

/// Compute threads for engines.
pub(super) fn start_all(config: &NodeConfig, engines: Vec<Engine>) -> Result<Vec<Compute>, NodeError> {
    // The thread that owns the processor's engine is the first of those that compute.
    let first = config.cores.as_ref().and_then(|cores| cores.only(0));
    let start = |engine: Engine| {
        let on = first.as_ref().filter(|_| !engine.is_on_gpu());
        cores::run_on(on, || Compute::start(engine, None)).and_then(|started| started)
    };
    let started: Result<Vec<Compute>, std::io::Error> = engines.into_iter().map(start).collect();
    started.map_err(|e| NodeError::System(e.to_string()))
}
