//! A model of which a peer has what it serves: layers are fetched when a plan gives it them.

use super::{
    drafts::{Chunk, PartialFiles},
    error::FetchError,
    fetch::{Fetcher, ModelHolders},
    fetch_progress::{Fetching, seconds_left},
    index::Index,
    notes,
    origin::{KeptOrigin, kept_origin},
    shed::{self, LayerUses, LayersInUse},
    work::FetchTally,
};
use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::wanted;
use tsnode_kernels::source::{ModelSource, Start, start_of};
use tsnode_protocol::{
    LayerRange, ModelCard, PartialModel,
    weights::{WeightsFile, chunks_at},
};

/// How often it is said how far it is.
const TELL: Duration = Duration::from_millis(250);
/// Before what did not come is asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// Before it is looked again whether the disk has room.
const ROOM_AGAIN: Duration = Duration::from_secs(30);
/// Chunks of a whole model that are fetched before others have their turn: eleven seconds at 100 Mbit/s.
const AT_ONCE: usize = 128;

/// Whose turn it is to bring layers. Nobody ends that.
type StockTurn = Result<OwnedSemaphorePermit, AcquireError>;

/// Hears how far it is.
pub type Tell = Arc<dyn Fn(Fetching) + Send + Sync>;

/// The model, as far as it is here.
pub struct Stock<P> {
    fetcher: Fetcher<P>,
    card: ModelCard,
    folder: PathBuf,
    drafts: Arc<PartialFiles>,
    /// What came over the network for it (bytes).
    fetched: Arc<AtomicU64>,
    /// Hears how far layers are that are brought.
    tell: Mutex<Tell>,
    /// Layers come for one stage after the other: what two need is fetched once.
    turn: Arc<Semaphore>,
    /// Layers that are here, as they were looked for last.
    layers: Mutex<PartialModel>,
    /// Layers of stages here, which stay.
    uses: LayerUses,
    /// What may be here of it while not all of it is wanted (bytes).
    budget: AtomicU64,
    /// Whether all of it is wanted here, whatever the budget.
    is_wanted_whole: AtomicBool,
    /// What the files say of themselves, by whole chunks (bytes): of GGUF, with a vocabulary, some MiB.
    starts: u64,
}

impl<P: ModelHolders> Stock<P> {
    /// Fetches what has to be there before the model can be opened: what its tensors are, and its small files. What comes over the
    /// network for it is added to `fetched` (bytes).
    ///
    /// # Errors
    /// When that cannot be had, or is not to be.
    pub async fn open(
        fetcher: Fetcher<P>,
        card: ModelCard,
        fetched: Arc<AtomicU64>,
        tell: Tell,
    ) -> Result<Self, FetchError> {
        let drafts = Arc::new(fetcher.begin(&card).await?);
        let folder = fetcher.folder_of(card.id);
        let mut stock = Self::of((fetcher, card), folder, drafts, fetched, tell.clone());
        stock.starts = stock.fetch_starts(&tell).await?;
        stock.look().await;
        if let Ok(source) = stock.source().await {
            // Sizes are not in an id: what members said of them is over once the files say it.
            stock.card = source.card().clone();
        }
        Ok(stock)
    }

    fn of(
        (fetcher, card): (Fetcher<P>, ModelCard),
        folder: PathBuf,
        drafts: Arc<PartialFiles>,
        fetched: Arc<AtomicU64>,
        tell: Tell,
    ) -> Self {
        Self {
            layers: Mutex::new(PartialModel::of(card.id, [])),
            budget: AtomicU64::new(fetcher.budget),
            fetcher,
            card,
            folder,
            drafts,
            fetched,
            tell: Mutex::new(tell),
            turn: Arc::new(Semaphore::new(1)),
            uses: LayerUses::default(),
            is_wanted_whole: AtomicBool::new(false),
            starts: 0,
        }
    }

    /// What is here of a model by itself, where nobody is there to ask; none where that cannot even be opened.
    pub async fn reopen(fetcher: Fetcher<P>, folder: &Path, name: &str, tell: Tell) -> Option<Self> {
        let (at, index, called) = (folder.to_owned(), fetcher.index.clone(), name.to_owned());
        let (drafts, starts, card) = tokio::task::spawn_blocking(move || here(&at, &index, &called)).await.ok()??;
        let mut stock = Self::of((fetcher, card), folder.to_owned(), Arc::new(drafts), Arc::default(), tell);
        stock.starts = starts;
        stock.look().await;
        Some(stock)
    }

    /// Who hears from now on how far layers are that are brought.
    pub fn hear(&self, tell: Tell) {
        *self.tell.lock().unwrap_or_else(PoisonError::into_inner) = tell;
    }

    fn told(&self) -> Tell {
        self.tell.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// No more of it is to be here than that from now on (bytes), but for what stages are made of; unless all of it is.
    pub fn bind(&self, budget: u64) {
        self.budget.store(budget, Ordering::Relaxed);
    }

    /// What plans may give this peer of it (bytes by its sizes); none where all of it may be here.
    #[must_use]
    pub fn takes(&self) -> Option<u64> {
        let budget = self.budget.load(Ordering::Relaxed);
        let of_layers = budget.saturating_sub(self.starts);
        (self.drafts.manifest().bytes() > budget).then(|| wanted::takes(&self.card.shape, of_layers))
    }

    /// Keeps layers here that a stage is made of, or is about to be, as long as what is given back is there, and that is not given up.
    #[must_use]
    pub fn hold(&self, layers: LayerRange, given_up: CancellationToken) -> LayersInUse {
        self.uses.hold(layers, given_up)
    }

    /// Its card.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// What others may have of it.
    #[must_use]
    pub fn drafts(&self) -> &Arc<PartialFiles> {
        &self.drafts
    }

    /// The layers that are here, as they were when it was opened and whenever some had come; none where all are.
    #[must_use]
    pub fn partial(&self) -> Option<PartialModel> {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        (layers.layers != [self.card.shape.all_layers()]).then(|| layers.clone())
    }

    /// Where it is from, as those said who gave it.
    #[must_use]
    pub fn origin(&self) -> KeptOrigin {
        kept_origin(&self.folder)
    }

    /// What came over the network for it (bytes).
    #[must_use]
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// The model, anew: of the files as they are now. Reads what they say of themselves.
    ///
    /// # Errors
    /// When it is not the model that it should be.
    pub async fn source(&self) -> Result<ModelSource, FetchError> {
        let (folder, drafts, card) = (self.folder.clone(), self.drafts.clone(), self.card.clone());
        let opened = tokio::task::spawn_blocking(move || open(&folder, &drafts, &card.name)).await;
        let source = opened.map_err(|e| self.unusable(e.to_string()))?.map_err(|why| self.unusable(why))?;
        if source.card().id != self.card.id {
            return Err(self.unusable("what came is another model".into()));
        }
        Ok(source)
    }

    /// The model with some of its layers, which are fetched as far as they are not here. Waits for holders, and for room on the disk, as
    /// long as it takes.
    ///
    /// # Errors
    /// When the disk fails, or the model cannot be used.
    pub async fn bring(&self, layers: LayerRange) -> Result<Arc<ModelSource>, FetchError> {
        let source = Arc::new(self.source().await?);
        let wanted = chunks_of(&source, layers).map_err(|why| self.unusable(why))?;
        if wanted.iter().all(|chunk| self.drafts.has(*chunk)) {
            // Anew: what was looked at before may not have all of them.
            return self.opened().await;
        }
        tracing::info!(model = self.card.name, %layers, chunks = wanted.len(), "fetches layers that a plan gives this peer");
        loop {
            let (turn, tell) = (self.turn.clone().acquire_owned().await, self.told());
            // While it waits, behind this, others have their turn.
            let came = match self.make_room(&source, &wanted, layers, turn).await {
                Ok(_turn) => self.get(&wanted, Some(layers), &tell).await,
                Err(error) => Err(error),
            };
            let Err(error) = came else { break };
            let (model, fetched) = (self.card.name.clone(), self.fetched());
            tell(Fetching { model, fetched, why: Some(error.to_string()), ..Fetching::default() });
            let again = match &error {
                FetchError::Starved { .. } | FetchError::NotGiven { .. } => AGAIN,
                FetchError::Room { .. } => ROOM_AGAIN,
                FetchError::Disk { error: disk, .. } if is_full(disk) => ROOM_AGAIN,
                FetchError::Budget { .. } | FetchError::Disk { .. } | FetchError::Unusable { .. } => return Err(error),
            };
            tracing::warn!(model = self.card.name, %layers, %error, "layers do not come");
            self.fetcher.bad.forget();
            sleep(again).await;
        }
        // Anew: what was looked at before is not what is there now.
        self.opened().await
    }

    /// Has chunks go that no stage here needs, as far as what is to come would be more than the budget. Gives the turn back: what has begun
    /// to go is gone before another has it, also where nobody waits for this any more.
    async fn make_room(
        &self,
        source: &Arc<ModelSource>,
        wanted: &BTreeSet<Chunk>,
        layers: LayerRange,
        turn: StockTurn,
    ) -> Result<StockTurn, FetchError> {
        let budget = self.budget.load(Ordering::Relaxed);
        let missing = wanted.iter().filter(|chunk| !self.drafts.has(**chunk));
        let missing: u64 = missing.map(|chunk| self.drafts.bytes_of(*chunk)).sum();
        let bytes = self.drafts.held().saturating_add(missing);
        if bytes <= budget || self.is_wanted_whole.load(Ordering::Relaxed) {
            return Ok(turn);
        }
        let (source, drafts, mut stay) = (source.clone(), self.drafts.clone(), wanted.clone());
        let (uses, index, model) = (self.uses.clone(), self.fetcher.index.clone(), self.card.name.clone());
        let shed = move || {
            stay.extend(all_starts(&drafts).into_iter().flatten());
            // Whoever holds layers later finds that these are not there.
            let chosen = uses.still(|used| {
                for layers in used {
                    let needs = chunks_of(&source, *layers);
                    stay.extend(needs.map_err(|why| FetchError::Unusable { model: model.clone(), why })?);
                }
                let Some(chosen) = shed::chosen(&drafts, &stay, bytes - budget) else {
                    let stays: u64 = stay.iter().map(|chunk| drafts.bytes_of(*chunk)).sum();
                    let (model, what) = (model.clone(), format!("layers {layers}"));
                    return Err(FetchError::Budget { model, what, bytes: stays, budget });
                };
                drafts.forget(&chosen);
                Ok(chosen)
            })?;
            drafts.shed(&chosen, &index).map(|()| (turn, chosen.len()))
        };
        let shed = tokio::task::spawn_blocking(shed).await;
        let (turn, gone) = shed.map_err(|e| self.unusable(e.to_string()))??;
        tracing::info!(model = self.card.name, %layers, chunks = gone, "layers that no plan gives this peer any more go, within --model-budget");
        // Others hear at once what is not here any more.
        self.look().await;
        Ok(turn)
    }

    /// Sees which layers are here. Where that cannot be seen, none are said to be.
    async fn look(&self) {
        if let Err(error) = self.opened().await {
            tracing::warn!(model = self.card.name, %error, "it is not known which of its layers are here");
        }
    }

    /// The model, anew, and which of its layers are here.
    async fn opened(&self) -> Result<Arc<ModelSource>, FetchError> {
        let source = Arc::new(self.source().await?);
        let (looked, drafts) = (source.clone(), self.drafts.clone());
        let here = tokio::task::spawn_blocking(move || layers_here(&looked, &drafts)).await;
        let here = here.map_err(|e| self.unusable(e.to_string()))?.map_err(|why| self.unusable(why))?;
        *self.layers.lock().unwrap_or_else(PoisonError::into_inner) = PartialModel::of(self.card.id, here);
        Ok(source)
    }

    /// Nobody waits for layers of it any more.
    pub fn rests(&self) {
        let (model, fetched) = (self.card.name.clone(), self.fetched());
        self.told()(Fetching { model, fetched, ..Fetching::default() });
    }

    /// Fetches all of it, as far as it is not here, and says where it is: a model as any other. Stages that wait for layers of it come
    /// between.
    ///
    /// # Errors
    /// When it cannot be had now, or there is no room for it.
    pub async fn whole(&self, tell: &Tell) -> Result<PathBuf, FetchError> {
        self.is_wanted_whole.store(true, Ordering::Relaxed);
        let came = self.rest(tell).await;
        // Where not all of it came, the budget holds again.
        self.is_wanted_whole.store(came.is_ok(), Ordering::Relaxed);
        came
    }

    async fn rest(&self, tell: &Tell) -> Result<PathBuf, FetchError> {
        let (bytes, own) = (self.drafts.manifest().bytes(), RandomState::new());
        // What was about to go when all of it came to be wanted is gone: from now on nothing does.
        drop(self.turn.acquire().await);
        let mut missing: Vec<Chunk> = self.drafts.all().filter(|chunk| !self.drafts.has(*chunk)).collect();
        // Others who fetch the same begin elsewhere.
        missing.sort_by_cached_key(|chunk| own.hash_one(chunk));
        let size = |chunks: &[Chunk]| chunks.iter().map(|chunk| self.drafts.bytes_of(*chunk)).sum::<u64>();
        let mut left = size(&missing);
        self.fetcher.has_room(&self.card, left)?;
        let (begun, first) = (Instant::now(), bytes.saturating_sub(left));
        // The last part, of nothing, has the files get their names.
        for part in missing.chunks(AT_ONCE).chain(std::iter::once::<&[Chunk]>(&[])) {
            let (tell, before) = (tell.clone(), bytes.saturating_sub(left));
            let tell: Tell = Arc::new(move |far: Fetching| {
                let done = before + far.done;
                let seconds_left =
                    seconds_left(bytes.saturating_sub(done), done.saturating_sub(first), begun.elapsed());
                tell(Fetching { bytes, done, seconds_left, ..far });
            });
            let _turn = self.turn.acquire().await;
            if let Err(error) = self.get(&part.iter().copied().collect(), None, &tell).await {
                self.fetcher.bad.forget();
                return Err(error);
            }
            left = left.saturating_sub(size(part));
        }
        if self.drafts.held() < bytes {
            return Err(self.unusable("what came does not stay on the disk: is it damaged?".into()));
        }
        self.look().await;
        Ok(self.folder.clone())
    }

    fn unusable(&self, why: String) -> FetchError {
        FetchError::Unusable { model: self.card.name.clone(), why }
    }

    /// What the files say of themselves. Says how much that is (bytes).
    async fn fetch_starts(&self, tell: &Tell) -> Result<u64, FetchError> {
        let manifest = self.drafts.manifest();
        let mut first = vec![1; manifest.files.len()];
        loop {
            let wanted: BTreeSet<Chunk> =
                (0..).zip(&first).flat_map(|(file, bytes)| of_file(file, &(0..*bytes))).collect();
            self.size_within_budget(&wanted)?;
            self.get(&wanted, None, tell).await?;
            let (drafts, there) = (self.drafts.clone(), first.clone());
            // The disk may take its time.
            let looked = tokio::task::spawn_blocking(move || starts(&drafts, &there)).await;
            let starts = looked.map_err(|e| self.unusable(e.to_string()))?.map_err(|why| self.unusable(why))?;
            let (mut more, mut places) = (false, BTreeSet::new());
            for (file, (start, (about, bytes))) in (0..).zip(starts.iter().zip(manifest.files.iter().zip(&mut first))) {
                match start {
                    Start::More(needed) => (more, *bytes) = (true, about.bytes.min(*needed)),
                    Start::Places(of) => places.extend(of.iter().flat_map(|place| of_file(file, place))),
                }
            }
            if !more {
                places.extend(wanted);
                let bytes = self.size_within_budget(&places)?;
                return self.get(&places, None, tell).await.map(|()| bytes);
            }
        }
    }

    /// What the files say of themselves may be much, where somebody made them so.
    fn size_within_budget(&self, starts: &BTreeSet<Chunk>) -> Result<u64, FetchError> {
        let bytes: u64 = starts.iter().map(|chunk| self.drafts.bytes_of(*chunk)).sum();
        let budget = self.budget.load(Ordering::Relaxed);
        if bytes > budget {
            let (model, what) = (self.card.name.clone(), "what its files say of themselves".into());
            return Err(FetchError::Budget { model, what, bytes, budget });
        }
        Ok(bytes)
    }

    /// Fetches chunks, saying how far it is.
    async fn get(&self, wanted: &BTreeSet<Chunk>, layers: Option<LayerRange>, tell: &Tell) -> Result<(), FetchError> {
        let (tally, before, begun) = (Arc::new(FetchTally::default()), self.fetched(), Instant::now());
        let seen = || {
            let [bytes, done, fetched] =
                [&tally.bytes, &tally.done, &tally.fetched].map(|count| count.load(Ordering::Relaxed));
            self.fetched.store(before + fetched, Ordering::Relaxed);
            let (model, holders) = (self.card.name.clone(), tally.holders.load(Ordering::Relaxed));
            let seconds_left = seconds_left(bytes.saturating_sub(done), fetched, begun.elapsed());
            Fetching { model, layers, bytes, done, fetched: before + fetched, holders, seconds_left, why: None }
        };
        let mut ticks = interval(TELL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut getting = std::pin::pin!(self.fetcher.get(&self.card, &self.drafts, wanted, &tally));
        let came = loop {
            tokio::select! {
                came = &mut getting => break came,
                _ = ticks.tick() => tell(seen()),
            }
        };
        tell(Fetching { holders: 0, ..seen() });
        came
    }
}

/// Whether a disk has no room, which may change.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn of_file(file: u16, place: &std::ops::Range<u64>) -> impl Iterator<Item = Chunk> + use<> {
    // A file has fewer than 2³² chunks: the manifest was checked.
    chunks_at(place).map(move |chunk| (file, chunk as u32))
}

/// What a stage of some layers reads.
fn chunks_of(source: &ModelSource, layers: LayerRange) -> Result<BTreeSet<Chunk>, String> {
    let of =
        |(file, place): (usize, std::ops::Range<usize>)| of_file(file as u16, &(place.start as u64..place.end as u64));
    Ok(source.places(layers).map_err(|e| e.to_string())?.into_iter().flat_map(of).collect())
}

/// So many of a file's first bytes at least, by whole chunks.
fn first_bytes(drafts: &PartialFiles, file: u16, bytes: u64) -> Option<Vec<u8>> {
    let chunks = of_file(file, &(0..bytes)).map(|chunk| drafts.read(chunk));
    Some(chunks.collect::<Option<Vec<_>>>()?.concat())
}

/// What the files say of themselves, by so many of the first bytes of each.
fn starts(drafts: &PartialFiles, first: &[u64]) -> Result<Vec<Start>, String> {
    let manifest = drafts.manifest();
    let of = |(file, (about, bytes)): (u16, (&WeightsFile, &u64))| {
        let there = first_bytes(drafts, file, *bytes).ok_or_else(|| "a chunk was lost".to_owned())?;
        start_of(manifest.form, &there, about.bytes)
    };
    (0..).zip(manifest.files.iter().zip(first)).map(of).collect()
}

fn open(folder: &Path, drafts: &PartialFiles, name: &str) -> Result<ModelSource, String> {
    let manifest = drafts.manifest();
    let _still = drafts.still();
    let source = ModelSource::open_parts(folder, &drafts.parts(), manifest.form).map_err(|e| e.to_string())?;
    let roots: Vec<_> = manifest.files.iter().map(|file| file.root).collect();
    Ok(source.called(name).identified(&roots))
}

/// Layers of which all is here that a stage of each alone reads.
fn layers_here(source: &ModelSource, drafts: &PartialFiles) -> Result<Vec<u32>, String> {
    let mut here = Vec::new();
    for layer in source.card().shape.all_layers().iter() {
        let own = LayerRange { start: layer, end: layer + 1 };
        if chunks_of(source, own)?.into_iter().all(|chunk| drafts.has(chunk)) {
            here.push(layer);
        }
    }
    Ok(here)
}

/// What has to be here for the files to be opened, by what is; none where that does not say it.
fn all_starts(drafts: &PartialFiles) -> Option<BTreeSet<Chunk>> {
    let of_one = |(file, about): (u16, &WeightsFile)| {
        let mut bytes = 1;
        loop {
            let there = first_bytes(drafts, file, bytes)?;
            match start_of(drafts.manifest().form, &there, about.bytes).ok()? {
                Start::More(needed) => bytes = needed.min(about.bytes),
                Start::Places(places) => {
                    let first = of_file(file, &(0..bytes));
                    let all = first.chain(places.iter().flat_map(|place| of_file(file, place)));
                    return Some(all.collect::<Vec<_>>());
                }
            }
        }
    };
    let all: Option<Vec<Vec<Chunk>>> = (0..).zip(&drafts.manifest().files).map(of_one).collect();
    Some(all?.into_iter().flatten().collect())
}

/// What a folder has of the model that it is called after, and how much its files say of themselves (bytes).
fn here(folder: &Path, index: &Index, name: &str) -> Option<(PartialFiles, u64, ModelCard)> {
    let (manifest, hashes) = notes::read(folder)?;
    let drafts = PartialFiles::open(folder, manifest, hashes, index).ok()?;
    let starts = all_starts(&drafts)?;
    starts.iter().all(|chunk| drafts.has(*chunk)).then_some(())?;
    let starts: u64 = starts.iter().map(|chunk| drafts.bytes_of(*chunk)).sum();
    let source = open(folder, &drafts, name).ok()?;
    let is_it = folder.file_name().is_some_and(|own| *own == *source.card().id.to_string());
    is_it.then(|| (drafts, starts, source.card().clone()))
}

#[cfg(test)]
mod tests;
