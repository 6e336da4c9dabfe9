//! Models that are lent later than at the start: those that come from peers, since this peer was told none, or was told them by their names
//! and has them not on its disk; and all of them anew, where their owner changes how much of the machine they may use.

use super::{
    ComputeChoice, ModelChoice, NodeConfig, NodeError, WantedModel,
    opened::{self, Opened},
    resources::Resources,
};
use crate::{
    control_plane::driver::NowLent,
    data_plane::library::Shelf,
    faults::Faults,
    hardware::{self, DeviceChoice, DeviceName, cores},
    limits::{LimitsHandle, Relend},
    store::Store,
    view::SwarmView,
    weights::{self, ConcurrentFetches, Fetching, Giver, Index, MeasureLayer, Peers, Provision, Stock, Stocks, Tell},
    worker::{WorkerGone, WorkerHandle},
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tsnode_kernels::{device::Host, source::ModelSource};
use tsnode_protocol::{Advert, ModelId};

/// How long the threads of the models before may take to give their memory back; what they still have then is not lent.
const RELEASE: Duration = Duration::from_millis(300);
/// Models that are found within so long are lent together: each time that others are added, those before are loaded anew.
const TOGETHER: Duration = Duration::from_secs(3);
/// How long others have to go on with what this peer serves, before it is loaded anew beside another model.
const HANDING_OVER: Duration = Duration::from_secs(40);
/// How long where nothing runs here: who is alone has nobody to hand it to, and others plan anew meanwhile.
const IDLE: Duration = Duration::from_secs(3);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(100);

/// Models by their places in the configuration, as far as they are here.
type Here = BTreeMap<usize, Arc<Stock<Peers>>>;

/// What is under way, each in a task of its own: it goes on while nobody waits for it, as where models are lent anew for a minute, and
/// ends with whoever has this.
struct UnderWay<T>(JoinSet<T>);

impl<T: Send + 'static> UnderWay<T> {
    fn start(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.0.spawn(work);
    }

    /// What comes of the next; none where nothing is under way.
    async fn next(&mut self) -> Option<T> {
        loop {
            match self.0.join_next().await? {
                Ok(came) => return Some(came),
                Err(error) => tracing::error!(%error, "a model that was looked for does not come any more"),
            }
        }
    }
}

/// What it takes to lend models later than at the start.
pub(super) struct Volunteer {
    /// Where they come from and to.
    pub places: Peers,
    /// What the owner allows, and what is to be lent anew since that has changed.
    pub limits: LimitsHandle,
    pub relends: mpsc::Receiver<Relend>,
    /// What a testnet breaks.
    pub faults: Option<watch::Receiver<Faults>>,
    pub index: Index,
    /// Memory that is lent (bytes).
    pub memory: u64,
    /// A model that is here from the start: nobody has to fetch it.
    pub own: ModelId,
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

/// What may be fetched for it: who names a model allows it. None for one that is not fetched.
fn limits(
    model: &WantedModel,
    computed: ComputeChoice,
    usual: &weights::ProvisionLimits,
) -> Option<weights::ProvisionLimits> {
    let usual = usual.clone();
    match &model.choice {
        // Computed otherwise it would be another model than the one that others have.
        _ if computed != ComputeChoice::default() => None,
        ModelChoice::Fallback => (model.draft.is_none() && usual.budget > 0).then_some(usual),
        ModelChoice::Named(name) => {
            Some(weights::ProvisionLimits { named: Some(name.clone()), allowed: Vec::new(), ..usual })
        }
        ModelChoice::Embedded | ModelChoice::Path(_) => None,
    }
}

impl Volunteer {
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.provide()).await;
    }

    /// Lends every model that comes, and all anew whenever the owner changes what they may use.
    async fn provide(mut self) {
        let several = Arc::<Mutex<ConcurrentFetches>>::default();
        let mut coming = UnderWay(JoinSet::new());
        for (place, model) in self.config.models.iter().enumerate() {
            let Some(limits) = limits(model, self.config.computed, &self.config.weights) else { continue };
            if self.config.models[..place].iter().any(|other| other.choice == model.choice) {
                tracing::warn!(model = ?model.choice, "a model that is named twice is lent once");
                continue;
            }
            let (from, index) = ((self.places.clone(), self.stocks.clone()), self.index.clone());
            let (memory, measure) = ((self.memory, self.own), self.measurer(model));
            let provision = Provision::new(from, &self.config.data_dir, index, limits, memory, measure);
            let tell = self.teller(place, several.clone());
            coming.start(async move { (place, provision.run(tell).await) });
        }
        let (mut here, mut lent) = (Here::new(), Here::new());
        loop {
            let (place, stock) = tokio::select! {
                Some(came) = coming.next() => came,
                Some(relend) = self.relends.recv() => match self.relend(relend, &lent).await {
                    Ok(()) => continue,
                    Err(WorkerGone) => return,
                },
                else => return,
            };
            here.insert(place, stock);
            let until = Instant::now() + TOGETHER;
            while let Ok(Some((place, stock))) = timeout_at(until, coming.next()).await {
                here.insert(place, stock);
            }
            match self.lend(&here, &lent).await {
                Ok(true) => lent.clone_from(&here),
                Ok(false) => here.clone_from(&lent),
                Err(WorkerGone) => return,
            }
        }
    }

    /// What measures a layer on the processor, where that is to compute the model, and does nothing meanwhile that others would miss.
    /// The store keeps it for when the model is lent.
    fn measurer(&self, model: &WantedModel) -> MeasureLayer {
        let NodeConfig { threads, cores, devices, models, .. } = self.config.clone();
        let (store, dtype) = (self.store.clone(), model.kv_dtype);
        let is_idle = models.len() == 1;
        let turn = Mutex::new(());
        Arc::new(move |source: &ModelSource| {
            // What is measured of one that is not wanted any more goes on to its end: beside it another would be measured wrongly.
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let host = Host::detect();
            let has_gpus = host.gpus.as_ref().is_ok_and(|gpus| !gpus.is_empty());
            let is_computed_here = match &devices {
                DeviceChoice::Auto => !has_gpus,
                DeviceChoice::Named(names) => names.iter().any(|name| matches!(name, DeviceName::Processor)),
            };
            if is_idle && is_computed_here {
                let measure = || hardware::profile(&host, source, threads, dtype, &store).is_some();
                if let Err(error) = cores::run_on(cores.as_ref(), measure) {
                    tracing::info!(%error, "a layer is measured later");
                }
            }
        })
    }

    /// What hears how far a model is.
    fn teller(&self, place: usize, several: Arc<Mutex<ConcurrentFetches>>) -> Tell {
        let view = self.view.clone();
        Arc::new(move |far: Fetching| {
            let shown = several.lock().unwrap_or_else(PoisonError::into_inner).told(place, far);
            view.send_if_modified(|view| {
                let changed = view.fetching.as_ref() != Some(&shown);
                view.fetching = Some(shown);
                changed
            });
        })
    }

    /// Lends what was there from the start and what has come. Where that cannot be done together, it goes on with what it had, and says
    /// so.
    async fn lend(&self, here: &Here, before: &Here) -> Result<bool, WorkerGone> {
        let new = here.iter().filter(|(place, _)| !before.contains_key(place));
        let names: Vec<&str> = new.map(|(_, stock)| stock.card().name.as_str()).collect();
        let names = names.join(", ");
        if before.is_empty() && self.models(before).is_empty() {
            // Only the model inside the program was here, which nobody misses.
            self.worker.lend(Vec::new()).await?;
        } else {
            tracing::info!(model = names, "comes beside what this peer lends: others go on with that meanwhile");
            self.hand_over().await?;
        }
        sleep(RELEASE).await;
        let Err(error) = self.open(here).await? else {
            tracing::info!(model = names, "lends layers of it, which are fetched when a plan gives this peer some");
            return Ok(true);
        };
        self.say(format!("{names} cannot be served here: {error}"));
        if !self.models(before).is_empty()
            && let Err(error) = self.open(before).await?
        {
            self.say(format!("what this peer lent before cannot be served any more: {error}"));
        }
        Ok(false)
    }

    /// Lends what is lent within other limits; where that cannot be done, within those that held.
    async fn relend(&mut self, relend: Relend, lent: &Here) -> Result<(), WorkerGone> {
        let before = (self.config.memory_bytes, self.config.threads.count);
        let (memory_bytes, threads) = relend.over(before);
        (self.config.memory_bytes, self.config.threads.count) = (memory_bytes, threads);
        if self.models(lent).is_empty() {
            // The model inside the program takes next to nothing.
            self.settle(relend, Ok("holds for the next model that is lent here".into())).await;
            return Ok(());
        }
        tracing::info!(?memory_bytes, threads, "models are lent anew within other limits");
        self.hand_over().await?;
        sleep(RELEASE).await;
        let Err(error) = self.open(lent).await? else {
            self.settle(relend, Ok("its models are lent within these limits".into())).await;
            return Ok(());
        };
        (self.config.memory_bytes, self.config.threads.count) = before;
        tracing::warn!(%error, "the limits are as before: models cannot be lent within the others");
        let mut why = error.to_string();
        if let Err(error) = self.open(lent).await? {
            let gone = format!("what this peer lent before cannot be served any more: {error}");
            why = format!("{why}; and {gone}");
            self.say(gone);
        }
        self.settle(relend, Err(why)).await;
        Ok(())
    }

    /// Says what became of it, which waits for the disk.
    async fn settle(&self, relend: Relend, outcome: Result<String, String>) {
        let limits = self.limits.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || limits.settled(relend, outcome)).await {
            tracing::error!(%error, "what became of the limits is not known");
        }
    }

    fn say(&self, why: String) {
        tracing::error!(%why);
        self.view.send_modify(|view| view.fetching = Some(Fetching { why: Some(why), ..Fetching::default() }));
    }

    /// The models that there are, with their places: those on disk and those that have come.
    fn models(&self, here: &Here) -> Vec<(usize, WantedModel)> {
        let is_here = |(place, model): &(usize, &WantedModel)| match model.choice {
            ModelChoice::Path(_) | ModelChoice::Embedded => true,
            ModelChoice::Fallback | ModelChoice::Named(_) => here.contains_key(place),
        };
        self.config.models.iter().enumerate().filter(is_here).map(|(place, model)| (place, model.clone())).collect()
    }

    /// Lends nothing for a while, as a peer that is paused, until plans go on without it and its memory is free.
    async fn hand_over(&self) -> Result<(), WorkerGone> {
        let models = self.shelf.cards();
        // Its end is the process's.
        let _ = self
            .lent
            .send(NowLent { models, devices: Vec::new(), origins: Vec::new(), limited: BTreeSet::new() })
            .await;
        let since = Instant::now();
        loop {
            let report = self.worker.report().await?;
            let runs = report.load.running + report.load.waiting > 0 || report.held + report.talks > 0;
            let patience = if runs { HANDING_OVER } else { IDLE };
            // Weights on GPUs are not in that sum.
            let has_none = report.in_use.weights == 0 && !runs;
            if has_none || since.elapsed() > patience {
                break;
            }
            sleep(LOOK).await;
        }
        self.worker.rest().await?;
        self.worker.lend(Vec::new()).await
    }

    /// Opens these models, measures what computes them, and lends them all.
    async fn open(&self, here: &Here) -> Result<Result<(), NodeError>, WorkerGone> {
        let opened = match self.resources(here).await {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let (files, advert, limited) = (opened.sources(), opened.advert.clone(), opened.limited(&self.config));
        let (models, holdings) = match opened.start(&self.config, self.faults.as_ref()) {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        self.shelf.set(files);
        self.giver.hold(holdings);
        here.values().for_each(|stock| self.stocks.keep(stock.clone()));
        self.worker.lend(models).await?;
        let Advert { models, devices, origins, .. } = advert;
        let _ = self.lent.send(NowLent { models, devices, origins, limited }).await;
        Ok(Ok(()))
    }

    async fn resources(&self, here: &Here) -> Result<Resources, NodeError> {
        let (mut wanted, mut opened) = (Vec::new(), Vec::new());
        for (place, model) in self.models(here) {
            opened.push(match here.get(&place) {
                Some(stock) => Opened::part(&model, stock).await?,
                None => {
                    let how = (self.config.threads.count, self.config.computed);
                    Opened::find(&model, how, &self.index, &mut |_| ()).await?
                }
            });
            wanted.push(model);
        }
        let config = NodeConfig { models: wanted, ..self.config.clone() };
        let resources = Resources::of(&config, &self.store, opened)?;
        // What was served until now goes on being served, whatever a flag calls it.
        if config.models.len() == self.config.models.len()
            && let Some(keep) = opened::unknown(&config.keep, &resources.called())
        {
            tracing::warn!(keep, called = ?resources.called(), "--keep: no model that is lent here is named or called so");
        }
        Ok(resources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::wanted::Glob;
    use tsnode_kernels::source::Precision;
    use tsnode_protocol::KvDtype;

    fn model(choice: ModelChoice) -> WantedModel {
        WantedModel::new(choice, KvDtype::F16)
    }

    fn usual(budget: u64) -> weights::ProvisionLimits {
        weights::ProvisionLimits { budget, allowed: vec![Glob::new("other/*")], named: None }
    }

    #[tokio::test]
    async fn what_is_under_way_goes_on_while_nobody_waits_for_it() {
        fn fails() -> u8 {
            panic!("and takes nothing else with it")
        }
        let mut coming = UnderWay(JoinSet::new());
        let (far, came) = tokio::sync::oneshot::channel();
        coming.start(async move {
            far.send(()).unwrap();
            7
        });
        coming.start(async { fails() });
        // As while models are lent anew.
        tokio::time::timeout(Duration::from_secs(10), came).await.unwrap().unwrap();
        assert_eq!((coming.next().await, coming.next().await), (Some(7), None));
    }

    #[test]
    fn only_what_is_named_and_not_here_or_is_not_named_at_all_is_fetched() {
        let named = model(ModelChoice::Named("org/a".into()));
        let may = limits(&named, ComputeChoice::default(), &usual(0)).unwrap();
        assert_eq!((may.named.as_deref(), may.allowed.len()), (Some("org/a"), 0), "who names it allows it");
        let fallback = model(ModelChoice::Fallback);
        assert_eq!(limits(&fallback, ComputeChoice::default(), &usual(1)).unwrap().allowed.len(), 1);
        assert!(limits(&fallback, ComputeChoice::default(), &usual(0)).is_none());
        let exact = ComputeChoice { precision: Precision::Exact, long_context: false };
        let path = model(ModelChoice::Path("here".into()));
        for (model, computed) in [(&named, exact), (&fallback, exact), (&path, ComputeChoice::default())] {
            assert!(limits(model, computed, &usual(1)).is_none());
        }
        assert!(limits(&model(ModelChoice::Embedded), ComputeChoice::default(), &usual(1)).is_none());
        let has_none = opened::has_none;
        assert!(has_none(&[named.clone(), named.clone()]) && !has_none(&[named, path]) && !has_none(&[]));
    }
}
