//! The models of this peer of which what is wanted is fetched. Each is opened once, whoever wants it: its files have one account of what
//! is there.

use super::{error::FetchError, fetch::Peers, stock::Stock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;
use tsnode_protocol::{ModelId, PartialModel};

/// One that is open, or will be.
type StockCell = Arc<OnceCell<Arc<Stock<Peers>>>>;

/// All of them. Clones are of the same; held for operations on the maps alone.
#[derive(Clone, Default)]
pub struct Stocks(Arc<Mutex<OpenStocks>>);

#[derive(Default)]
struct OpenStocks {
    opened: BTreeMap<ModelId, StockCell>,
    /// Those that are lent: layers of them are brought when a plan wants them.
    lent: BTreeMap<ModelId, Arc<Stock<Peers>>>,
}

impl Stocks {
    fn kept(&self) -> MutexGuard<'_, OpenStocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, opened where it is not yet. Who comes meanwhile waits for that.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open<O: Future<Output = Result<Stock<Peers>, FetchError>>>(
        &self,
        model: ModelId,
        open: impl FnOnce() -> O,
    ) -> Result<Arc<Stock<Peers>>, FetchError> {
        let place = self.kept().opened.entry(model).or_default().clone();
        place.get_or_try_init(|| async { open().await.map(Arc::new) }).await.cloned()
    }

    /// Brings layers of this model too from now on.
    pub fn keep(&self, stock: Arc<Stock<Peers>>) {
        self.kept().lent.insert(stock.card().id, stock);
    }

    /// What brings layers of a model; none of one that is here whole.
    #[must_use]
    pub fn of(&self, model: ModelId) -> Option<Arc<Stock<Peers>>> {
        self.kept().lent.get(&model).cloned()
    }

    /// What is here of those that are lent and are not here whole.
    #[must_use]
    pub fn partial(&self) -> Vec<PartialModel> {
        self.kept().lent.values().filter_map(|stock| stock.partial()).collect()
    }
}
