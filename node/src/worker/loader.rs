//! Plan flow 6: loads stages, one after the other and beside what runs; layers that are not here are fetched first.
//!
//! Loading reads every weight, which takes seconds to minutes: meanwhile the host answers, heartbeats go out, and stages
//! loaded before compute. One at a time, because each takes every thread it may, and must see what memory the one before it
//! has left. Layers on their way hold nobody up.

use super::{compute::Compute, lent::Lent, speculator::DraftModel};
use crate::{
    hardware::memory::{Need, StageHolder},
    view::Weights,
    weights::{FetchError, LayersInUse, Peers, Stock, Stocks},
};
use futures::FutureExt as _;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tsnode_kernels::{
    cuda::GpuError,
    device,
    engine::{CarriedStage, Engine, EngineError, StageKey, Threads},
    gpu_check::{self, ProofError},
    load::{LoadProgress, LoadReport},
    pages::PAGE_BYTES,
    source::ModelSource,
};
use tsnode_protocol::{Group, LayerRange, Stage};

/// How often it is tried to fetch a stage's layers where that panics.
const TRIES: u32 = 3;
/// Before it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A stage that a plan gives this peer.
pub(super) struct LoadOrder {
    /// Its group.
    pub group: Group,
    /// Its place in the ring.
    pub position: usize,
    /// Its model.
    pub model: Arc<Lent>,
    /// The thread of the device that gets it.
    pub compute: Compute,
    /// Nobody wants it any more.
    pub given_up: CancellationToken,
    /// Its memory; none while it waits for some.
    pub hold: Option<Hold>,
}

/// Memory of a device that a stage has, or is about to get: free once this is dropped, wherever an order gets lost.
pub(super) struct Hold {
    freed: CancellationToken,
    told: Arc<Notify>,
    /// Its layers on the disk, where not all of its model are there.
    layers: Option<LayersInUse>,
}

impl Hold {
    /// With what is cancelled when the memory is free, which `told` hears of.
    pub fn new(told: Arc<Notify>) -> (Self, CancellationToken) {
        let freed = CancellationToken::new();
        (Self { freed: freed.clone(), told, layers: None }, freed)
    }

    /// Free again, and nobody hears of it.
    pub fn give_back(self) {
        self.freed.cancel();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Before anybody hears that it is free: who waits may want the room of these.
        self.layers = None;
        if !self.freed.is_cancelled() {
            self.freed.cancel();
            self.told.notify_one();
        }
    }
}

impl LoadOrder {
    /// The device that gets it.
    pub fn device(&self) -> u16 {
        self.group.stages[self.position].device
    }
}

/// What became of an order.
pub(super) struct LoadOutcome {
    pub order: LoadOrder,
    pub stage: Result<StageKey, NotLoaded>,
    /// What drafts for the groups that this peer leads, once it is loaded.
    pub draft: Option<DraftModel>,
}

/// An order, and the model to load its layers of.
struct Fetched {
    order: LoadOrder,
    source: Result<Arc<ModelSource>, NotLoaded>,
}

/// Why there is no stage.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLoaded {
    /// Nobody wants it any more.
    #[error("not wanted any more")]
    Unwanted,
    /// There is no memory for it now.
    #[error("{0}")]
    NoRoom(String),
    /// It cannot be loaded here.
    #[error("{0}")]
    Failed(String),
    /// The GPU does not compute it as the processor does: nothing is loaded there any more.
    #[error("{0}")]
    Unfit(String),
}

impl From<EngineError> for NotLoaded {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Gpu(GpuError::Memory { .. }) => Self::NoRoom(error.to_string()),
            error => Self::failed(error),
        }
    }
}

impl From<FetchError> for NotLoaded {
    fn from(error: FetchError) -> Self {
        match error {
            // As of memory: what goes may make room for it.
            FetchError::Budget { .. } => Self::NoRoom(error.to_string()),
            error => Self::failed(error),
        }
    }
}

impl NotLoaded {
    fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Weights read since the start.
#[derive(Debug, Default)]
pub(super) struct LoadTally {
    stages: AtomicU64,
    bytes: AtomicU64,
}

impl LoadTally {
    pub fn so_far(&self) -> Weights {
        Weights { stages: self.stages.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

/// Loads what is ordered until nobody can order any more.
pub(super) struct Loader {
    /// What brings layers of models that are not here yet.
    pub stocks: Stocks,
    /// Threads that may be used.
    pub threads: Threads,
    /// How far it is, while it loads.
    pub progress: watch::Sender<Option<LoadProgress>>,
    /// What was read.
    pub tally: Arc<LoadTally>,
    /// Where results go.
    pub loaded: mpsc::Sender<LoadOutcome>,
}

impl Loader {
    pub(super) async fn run(self, mut orders: mpsc::Receiver<LoadOrder>) {
        // By what they draft for, and the device that is on.
        let mut drafts = BTreeMap::new();
        // Models that devices were compared with the processor for, of those that were not here when they were lent.
        let mut compared = BTreeSet::new();
        // Layers on their way: what is here already is loaded meanwhile.
        let mut coming = JoinSet::new();
        loop {
            let Fetched { order, source } = tokio::select! {
                Some(came) = coming.join_next() => match came {
                    Ok(came) => came,
                    Err(error) => {
                        tracing::error!(%error, "a stage's layers were not fetched");
                        continue;
                    }
                },
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    if let Some(stock) = self.stocks.of(order.group.model) {
                        coming.spawn(bring(order, stock));
                        continue;
                    }
                    Fetched { source: Ok(order.model.source.clone()), order }
                }
            };
            let place = (order.group.model, order.group.stages[order.position].device);
            let is_tried = order.model.source.is_whole() || compared.contains(&place);
            if order.position == 0 && !drafts.contains_key(&place) && !order.given_up.is_cancelled() {
                drafts.extend(self.load_draft(&order).await.map(|draft| (place, draft)));
            }
            let source = match source {
                Ok(_) if order.given_up.is_cancelled() => Err(NotLoaded::Unwanted),
                Ok(source) if !is_tried => self.compare(&order, &source).await.map(|()| source),
                source => source,
            };
            let stage = match source {
                Ok(source) => {
                    compared.insert(place);
                    self.load(&order, source).await
                }
                Err(why) => Err(why),
            };
            self.progress.send_replace(None);
            let draft = drafts.get(&place).cloned();
            if self.loaded.send(LoadOutcome { order, stage, draft }).await.is_err() {
                return;
            }
        }
    }

    /// Whether a GPU that was lent before these layers were here computes them as the processor does.
    async fn compare(&self, order: &LoadOrder, source: &Arc<ModelSource>) -> Result<(), NotLoaded> {
        let (source, threads, layers) = (source.clone(), self.threads.count, order.group.stages[order.position].layers);
        let compare = move |engine: &mut Engine| match engine.is_on_gpu() {
            true => gpu_check::compare_layers(engine, &source, threads, layers),
            false => Ok(()),
        };
        match order.compute.call(compare).await.map_err(NotLoaded::failed)? {
            Ok(()) => Ok(()),
            Err(ProofError::Engine(error)) => Err(error.into()),
            Err(error @ (ProofError::Differs { .. } | ProofError::Choice { .. })) => {
                Err(NotLoaded::Unfit(error.to_string()))
            }
            Err(error @ (ProofError::Threads(_) | ProofError::Weights(_))) => Err(NotLoaded::failed(error)),
        }
    }

    async fn load(&self, order: &LoadOrder, source: Arc<ModelSource>) -> Result<StageKey, NotLoaded> {
        let (group, Stage { layers, device, .. }) = (&order.group, order.group.stages[order.position]);
        self.tally.stages.fetch_add(1, Ordering::Relaxed);
        let (stage, report) = self.read_layers(&order.compute, source, layers).await?;
        let key = order.compute.call(move |engine| engine.take(stage)).await.map_err(NotLoaded::failed)?;
        tracing::info!(
            group = %group.id, phase = %group.phase, position = order.position, device, %layers,
            bytes = report.bytes, seconds = report.took.as_secs_f64(),
            quantised = report.quantised, packed = report.packed, packing_s = report.packing.as_secs_f64(),
            "stage loaded"
        );
        Ok(key)
    }

    /// The draft model, whole and beside all stages. Without it groups are served as well, so that why it cannot be had now is
    /// only logged; the next group that is led there may find it can.
    async fn load_draft(&self, order: &LoadOrder) -> Option<DraftModel> {
        let (compute, source) = (&order.compute, order.model.draft.clone()?);
        let (shape, name) = (source.card().shape, source.card().name.clone());
        let loaded = async {
            let (stage, report) = self.read_layers(compute, source, shape.all_layers()).await?;
            let key = compute.call(move |engine| engine.take_beside(stage)).await.map_err(NotLoaded::failed)?;
            Ok::<_, NotLoaded>((key, report))
        };
        match loaded.await {
            Ok((key, report)) => {
                tracing::info!(%name, bytes = report.bytes, seconds = report.took.as_secs_f64(), "draft model loaded");
                Some(DraftModel::new(key, shape))
            }
            Err(error) => {
                tracing::error!(%name, %error, "draft model not loaded: answers are proposed without it");
                None
            }
        }
    }

    /// Reads layers and brings them to where that thread computes, which goes on meanwhile.
    async fn read_layers(
        &self,
        compute: &Compute,
        source: Arc<ModelSource>,
        layers: LayerRange,
    ) -> Result<(CarriedStage, LoadReport), NotLoaded> {
        let asked = |engine: &mut Engine| (engine.pages(), engine.in_use(), engine.gpus(), engine.carrier());
        let (pages, in_use, cards, carrier) = compute.call(asked).await.map_err(NotLoaded::failed)?;
        // Pages that were ever written have their memory already, whichever model of the device wrote them.
        let kv = ((pages.total * PAGE_BYTES) as u64).saturating_sub(in_use.kv);
        let (threads, progress, tally) = (self.threads, self.progress.clone(), self.tally.clone());
        let load = move || -> Result<(CarriedStage, LoadReport), NotLoaded> {
            let mut before = 0;
            let mut tell = |far: LoadProgress| {
                tally.bytes.fetch_add(far.done.saturating_sub(before), Ordering::Relaxed);
                before = far.done;
                progress.send_replace(Some(far));
            };
            let (stage, report) = if cards > 0 {
                // Whether they have room for it the cards say.
                let threads = Threads { ranks: cards, ..threads };
                source.load_stage_for_gpus_by(threads, layers, &mut tell)
            } else {
                let need =
                    Need::of(&source, layers, StageHolder::Ranks(threads.ranks), kv).map_err(NotLoaded::failed)?;
                need.within(device::free_memory()).map_err(|e| NotLoaded::NoRoom(e.to_string()))?;
                source.load_stage_by(threads, layers, &mut tell)
            }
            .map_err(NotLoaded::failed)?;
            Ok((carrier.carry(stage)?, report))
        };
        on_a_thread(load).await.map_err(NotLoaded::Failed)?
    }
}

/// The model with an order's layers, which are fetched as far as they are not here.
async fn bring(mut order: LoadOrder, stock: Arc<Stock<Peers>>) -> Fetched {
    let layers = order.group.stages[order.position].layers;
    if let Some(hold) = &mut order.hold {
        hold.layers = Some(stock.hold(layers, order.given_up.clone()));
    }
    let source = tokio::select! {
        () = order.given_up.cancelled() => {
            stock.rests();
            Err(NotLoaded::Unwanted)
        }
        brought = answered(AGAIN, || async { stock.bring(layers).await.map_err(NotLoaded::from) }) => brought,
    };
    Fetched { order, source }
}

/// What comes of work that may panic: then it is done again a few times, `again` later, and said to have failed after that. An order that
/// nobody answers would be waited for as long as its plan holds.
async fn answered<T, W: Future<Output = Result<T, NotLoaded>>>(
    again: Duration,
    work: impl Fn() -> W,
) -> Result<T, NotLoaded> {
    for tried in 1.. {
        if let Ok(done) = AssertUnwindSafe(work()).catch_unwind().await {
            return done;
        }
        if tried == TRIES {
            break;
        }
        tracing::error!(tried, "fetching a stage's layers panicked: it is tried again");
        sleep(again).await;
    }
    Err(NotLoaded::Failed(format!("fetching its layers panicked {TRIES} times: see what the log has before")))
}

/// Runs `work` on a thread that does not keep a peer from leaving, as a runtime's own would.
async fn on_a_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, String> {
    let (answer, result) = oneshot::channel();
    // Whoever asked may have gone; then nobody wants the result.
    let run = move || drop(answer.send(work()));
    std::thread::Builder::new().name("load".into()).spawn(run).map_err(|e| format!("no thread to load with: {e}"))?;
    result.await.map_err(|_| "loading panicked".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lost(hold: Hold) {
        assert!(hold.freed.is_cancelled(), "as it is meant to");
        drop(hold);
    }

    #[tokio::test]
    async fn memory_is_free_once_its_order_is_lost_and_who_gives_it_back_is_not_told() {
        let told = Arc::new(Notify::new());
        let (hold, freed) = Hold::new(told.clone());
        assert!(!freed.is_cancelled());
        hold.give_back();
        assert!(freed.is_cancelled() && told.notified().now_or_never().is_none());
        let (hold, freed) = Hold::new(told.clone());
        assert!(AssertUnwindSafe(lost(hold)).catch_unwind().await.is_err());
        assert!(freed.is_cancelled() && told.notified().now_or_never().is_some());
        assert!(told.notified().now_or_never().is_none(), "once");
    }

    #[tokio::test]
    async fn an_order_is_answered_whatever_panics() {
        for (panics, is_done) in [(0, true), (2, true), (3, false)] {
            let tried = AtomicU64::new(0);
            let work = || async {
                assert!(tried.fetch_add(1, Ordering::Relaxed) >= panics, "as it is meant to");
                Ok(())
            };
            match answered(Duration::ZERO, work).await {
                Ok(()) => assert!(is_done, "{panics}"),
                Err(error) => assert!(!is_done && error.to_string().contains("panicked 3 times"), "{panics}: {error}"),
            }
            assert_eq!(tried.into_inner(), panics + u64::from(is_done));
        }
    }
}
