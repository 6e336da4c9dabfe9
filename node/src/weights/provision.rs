//! A peer that was told no model fetches one that its swarm serves: which, is decided in `coordinator`'s `wanted`.

use super::{
    error::FetchError,
    fetch::{BadPeers, FetchTimeouts, Fetcher, Peers},
    fetch_progress::Fetching,
    index::Index,
    remembered::{self, FOLDER, Remembered},
    stock::{Stock, Tell},
    stocks::Stocks,
};
use crate::hardware::memory::Size;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tsnode_coordinator::wanted::{self, FetchableModel, Glob, Unwanted};
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{Advert, ModelCard, ModelId};

/// How long it is listened who else has a model, once somebody has.
const LISTENING: Duration = Duration::from_millis(1500);
/// Before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long others are waited for that have a model, by a peer that fetched one before: then it lends that again.
const ALONE: Duration = Duration::from_secs(4);

/// What a peer may fetch by itself.
#[derive(Clone, Debug)]
pub struct ProvisionLimits {
    /// Bytes of a model's layers at most; none at all where it is 0.
    pub budget: u64,
    /// Names that are allowed; all where there are none.
    pub allowed: Vec<Glob>,
    /// The only one that is wanted, by its name.
    pub named: Option<String>,
}

/// A model of which layers may be fetched, or why there is none.
type OpenedStock = Result<Arc<Stock<Peers>>, FetchError>;

/// Measures what a layer of a model takes here, and keeps it for whoever lends the model. It computes for seconds.
pub type MeasureLayer = Arc<dyn Fn(&ModelSource) + Send + Sync>;

/// Looks for a model to fetch, and fetches it.
pub struct Provision {
    fetcher: Fetcher<Peers>,
    stocks: Stocks,
    allowed: Vec<Glob>,
    named: Option<String>,
    /// Memory that is lent (bytes).
    memory: u64,
    /// The model inside the program: nobody has to fetch it.
    own: ModelId,
    /// What came over the network (bytes).
    fetched: Arc<AtomicU64>,
    /// Models that turned out to be larger than said.
    refused: BTreeSet<ModelId>,
    /// Models that nobody gave: others are taken first.
    not_given: BTreeSet<ModelId>,
    measure: MeasureLayer,
}

impl Provision {
    /// Into a data folder.
    #[must_use]
    pub fn new(
        (places, stocks): (Peers, Stocks),
        data_dir: &Path,
        index: Index,
        limits: ProvisionLimits,
        (memory, own): (u64, ModelId),
        measure: MeasureLayer,
    ) -> Self {
        let fetcher = Fetcher {
            places,
            folder: data_dir.join(FOLDER),
            index,
            budget: limits.budget,
            patience: FetchTimeouts::default(),
            bad: BadPeers::default(),
        };
        Self {
            fetcher,
            stocks,
            allowed: limits.allowed,
            named: limits.named,
            memory,
            own,
            fetched: Arc::default(),
            refused: BTreeSet::new(),
            not_given: BTreeSet::new(),
            measure,
        }
    }

    /// Resolves when there is a model that can be lent: its layers are fetched once a plan gives this peer some.
    pub async fn run(mut self, tell: Tell) -> Arc<Stock<Peers>> {
        let (mut roster, begun) = (self.fetcher.places.roster.clone(), Instant::now());
        let mut last = self.last();
        loop {
            let fetched = self.fetched.load(Ordering::Relaxed);
            match self.choose() {
                Err(Unwanted::None) if begun.elapsed() >= ALONE && last.is_some() => {
                    if let Some(last) = last.take()
                        && let Some(stock) = self.reopen(&last, &tell).await
                    {
                        tracing::info!(model = last.name, "nobody has a model: lends what was fetched last");
                        return stock;
                    }
                }
                Err(Unwanted::None) => {
                    if let Some(name) = &self.named {
                        let why = Some(format!("no peer of this swarm has {name}: it is waited for"));
                        tell(Fetching { model: name.clone(), why, fetched, ..Fetching::default() });
                    }
                }
                Err(why) => {
                    let model = self.named.clone().unwrap_or_default();
                    tell(Fetching { model, why: Some(why.to_string()), fetched, ..Fetching::default() });
                }
                Ok(first) => {
                    let Some((wanted, opened)) = self.listen(&first, &tell).await else { continue };
                    match opened {
                        Ok(stock) => {
                            remembered::set_last(&self.fetcher.folder, &wanted.card);
                            return stock;
                        }
                        Err(error) => {
                            tracing::warn!(model = wanted.card.name, %error, "not fetched");
                            match error {
                                FetchError::Budget { .. } | FetchError::Unusable { .. } => {
                                    self.refused.insert(wanted.card.id);
                                }
                                FetchError::NotGiven { .. } => {
                                    self.not_given.insert(wanted.card.id);
                                }
                                FetchError::Room { .. } | FetchError::Disk { .. } | FetchError::Starved { .. } => {}
                            }
                            let (model, why) = (wanted.card.name, Some(error.to_string()));
                            let fetched = self.fetched.load(Ordering::Relaxed);
                            tell(Fetching { model, why, fetched, ..Fetching::default() });
                            sleep(AGAIN).await;
                            continue;
                        }
                    }
                }
            }
            tokio::select! {
                there = roster.changed() => if !there {
                    // The process ends.
                    std::future::pending::<()>().await;
                },
                () = sleep(ALONE), if last.is_some() => {}
            }
        }
    }

    /// What was fetched last, if it is still there and may still be lent; of one that is named, that.
    fn last(&self) -> Option<Remembered> {
        let is_meant = |fetched: &Remembered| may_lend(fetched, self.named.as_deref(), &self.allowed);
        remembered::last(&self.fetcher.folder, is_meant)
    }

    /// What was fetched last, as far as it is here.
    async fn reopen(&self, last: &Remembered, tell: &Tell) -> Option<Arc<Stock<Peers>>> {
        let path = self.fetcher.folder.join(&last.path);
        let reopen = || async {
            let stock = Stock::reopen(self.fetcher.clone(), &path, &last.name, tell.clone()).await;
            let why = "what is here of it is not enough to open it".into();
            stock.ok_or_else(|| FetchError::Unusable { model: last.name.clone(), why })
        };
        let stock = self.stocks.open(last.model()?, reopen).await.ok()?;
        if let Err(error) = self.within_limits(&stock) {
            tracing::warn!(model = last.name, %error, "what was fetched last is not lent");
            let why = Some(error.to_string());
            tell(Fetching { model: last.name.clone(), why, ..Fetching::default() });
            return None;
        }
        stock.hear(tell.clone());
        Some(stock)
    }

    /// Holds it to this peer's budget and memory, by the sizes that its files say: who has opened it may have had another budget, and
    /// members may have said other sizes.
    fn within_limits(&self, stock: &Stock<Peers>) -> Result<(), FetchError> {
        stock.bind(self.fetcher.budget);
        one_layer_fits(stock.card(), stock.takes(), (self.fetcher.budget, self.memory))
    }

    fn choose(&self) -> Result<FetchableModel, Unwanted> {
        let first = self.choose_without(&self.not_given);
        if self.not_given.is_empty() { first } else { first.or_else(|_| self.choose_without(&BTreeSet::new())) }
    }

    fn choose_without(&self, others: &BTreeSet<ModelId>) -> Result<FetchableModel, Unwanted> {
        let is_wanted = |card: &ModelCard| !self.refused.contains(&card.id) && !others.contains(&card.id);
        let me = self.fetcher.places.me;
        let adverts = self.fetcher.places.roster.adverts();
        let foreign = |card: &ModelCard| card.id != self.own && is_wanted(card);
        let strip = |advert: &Advert| {
            let models = advert.models.iter().filter(|card| foreign(card)).cloned().collect();
            Advert { models, ..advert.clone() }
        };
        let others: BTreeMap<_, _> =
            adverts.iter().filter(|(peer, _)| **peer != me).map(|(peer, advert)| (*peer, strip(advert))).collect();
        let others = others.iter().map(|(peer, advert)| (*peer, advert)).collect();
        let limits = wanted::FetchLimits { budget: self.fetcher.budget, memory: self.memory, allowed: &self.allowed };
        wanted::choose(&others, &limits, self.named.as_deref())
    }

    /// Which model is wanted once it has been listened, and it, opened and measured: the first one is meanwhile, since nothing else is to
    /// be done, and seldom another is wanted then.
    async fn listen(&self, first: &FetchableModel, tell: &Tell) -> Option<(FetchableModel, OpenedStock)> {
        let until = Instant::now() + LISTENING;
        let mut early = Box::pin(self.prepared(first, tell));
        let mut done = None;
        tokio::select! {
            opened = &mut early => {
                done = Some(opened);
                sleep_until(until).await;
            }
            () = sleep_until(until) => {}
        }
        let wanted = self.choose().ok()?;
        let is_first = wanted.card.id == first.card.id;
        let opened = match done {
            Some(Ok(stock)) if is_first => Ok(stock),
            None if is_first => early.await,
            // Another is wanted, or those who were heard since may give what the first did not.
            _ => Box::pin(self.prepared(&wanted, tell)).await,
        };
        Some((wanted, opened))
    }

    /// A model that can be lent, of which it is known what a layer takes here.
    async fn prepared(&self, wanted: &FetchableModel, tell: &Tell) -> OpenedStock {
        let stock = self.open(wanted, tell).await?;
        let (source, measure) = (stock.source().await?, self.measure.clone());
        // What was not measured now is when it is lent.
        let _ = tokio::task::spawn_blocking(move || measure(&source)).await;
        Ok(stock)
    }

    async fn open(&self, wanted: &FetchableModel, tell: &Tell) -> OpenedStock {
        let FetchableModel { card, bytes, holders } = wanted;
        tracing::info!(
            model = card.name, id = %card.id, bytes, holders = holders.len(), folder = %self.fetcher.folder.display(),
            "takes up the model that this swarm serves, to serve layers of it"
        );
        let open = || Stock::open(self.fetcher.clone(), card.clone(), self.fetched.clone(), tell.clone());
        let stock = self.stocks.open(card.id, open).await?;
        self.within_limits(&stock)?;
        stock.hear(tell.clone());
        Ok(stock)
    }
}

/// Whether what plans may give of it, and the memory that is lent, is at least a layer, or all of a model that one stage has to hold.
fn one_layer_fits(card: &ModelCard, takes: Option<u64>, (budget, memory): (u64, u64)) -> Result<(), FetchError> {
    let (model, bytes) = (card.name.clone(), card.shape.least_bytes());
    let what = if card.shape.whole { "all" } else { "a layer" };
    if takes.is_some_and(|takes| takes < bytes) {
        return Err(FetchError::Budget { model, what: what.into(), bytes, budget });
    }
    if bytes > memory {
        let why = format!("{what} of it has {}, more than is lent: --memory", Size(bytes));
        return Err(FetchError::Unusable { model, why });
    }
    Ok(())
}

/// Whether what was fetched once may be lent again; what is only pulled where it is named.
fn may_lend(fetched: &Remembered, named: Option<&str>, allowed: &[Glob]) -> bool {
    match named {
        Some(named) => fetched.name == named,
        None => !fetched.only_pulled && (allowed.is_empty() || allowed.iter().any(|glob| glob.fits(&fetched.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;

    #[test]
    fn a_model_of_which_no_layer_fits_by_what_its_files_say_is_refused() {
        let card = sample::card();
        let bytes = card.shape.layer_bytes;
        let refused = |takes, memory| one_layer_fits(&card, takes, (1, memory)).err().map(|error| error.to_string());
        assert_eq!((refused(None, bytes), refused(Some(bytes), bytes)), (None, None));
        assert!(refused(Some(bytes - 1), bytes).unwrap().contains("--model-budget"));
        assert!(refused(None, bytes - 1).unwrap().contains("--memory"));
    }

    #[test]
    fn what_is_only_pulled_is_lent_where_it_is_named() {
        let of = |only_pulled| Remembered { name: "org/1".into(), path: "1".into(), only_pulled };
        let (lent, pulled) = (of(false), of(true));
        let [own, other] = ["org/*", "other/*"].map(|glob| [Glob::new(glob)]);
        assert!(may_lend(&lent, None, &[]) && may_lend(&lent, None, &own) && !may_lend(&lent, None, &other));
        assert!(!may_lend(&pulled, None, &[]) && !may_lend(&pulled, None, &own));
        assert!(may_lend(&pulled, Some("org/1"), &[]) && !may_lend(&pulled, Some("org/2"), &[]));
    }
}
