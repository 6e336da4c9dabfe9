//! The models of this peer of which layers are brought when they are wanted.

use super::{fetch::Peers, stock::Stock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tsnode_protocol::ModelId;

type Kept = BTreeMap<ModelId, Arc<Stock<Peers>>>;

/// All of them. Clones are of the same; held for operations on the map alone.
#[derive(Clone, Default)]
pub struct Stocks(Arc<Mutex<Kept>>);

impl Stocks {
    /// Brings layers of this model too from now on.
    pub fn keep(&self, stock: Arc<Stock<Peers>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(stock.card().id, stock);
    }

    /// What brings layers of a model; none of one that is here whole.
    #[must_use]
    pub fn of(&self, model: ModelId) -> Option<Arc<Stock<Peers>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&model).cloned()
    }
}
