//! The models of this peer of which layers are brought when they are wanted. Each is opened once, whoever wants it: its files have one
//! account of what is there.

use super::{error::FetchError, fetch::Peers, stock::Stock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;
use tsnode_protocol::ModelId;

type Kept = Arc<OnceCell<Arc<Stock<Peers>>>>;

/// All of them. Clones are of the same; held for operations on the map alone.
#[derive(Clone, Default)]
pub struct Stocks(Arc<Mutex<BTreeMap<ModelId, Kept>>>);

impl Stocks {
    fn place(&self, model: ModelId) -> Kept {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(model).or_default().clone()
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
        self.place(model).get_or_try_init(|| async { open().await.map(Arc::new) }).await.cloned()
    }

    /// What brings layers of a model; none of one that is here whole.
    #[must_use]
    pub fn of(&self, model: ModelId) -> Option<Arc<Stock<Peers>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&model)?.get().cloned()
    }
}
