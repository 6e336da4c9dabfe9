//! What a stage keeps of sequences that ended. Its compute thread does so and notes it, in the order in which it is told: nobody
//! waits for that, and what is asked for afterwards finds it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tsnode_kernels::engine::{Engine, PrefixKey, StageKey};
use tsnode_protocol::{RequestId, limits, ring::PrefixId};

/// Beginnings of sequences, by the names that the leader gave them; the engine may have let go of one meanwhile.
#[derive(Clone, Default)]
pub(super) struct KeptPrefixes(Arc<Mutex<BTreeMap<PrefixId, PrefixKey>>>);

impl KeptPrefixes {
    pub fn find(&self, prefix: PrefixId) -> Option<PrefixKey> {
        self.table().get(&prefix).copied()
    }

    /// Ends a sequence, but for its first tokens' KV; all of it where there is too much, or the name is another's.
    pub fn keep(
        &self,
        engine: &mut Engine,
        (stage, request): (StageKey, RequestId),
        (prefix, tokens): (PrefixId, u32),
    ) {
        let mut table = self.table();
        if table.len() >= limits::PREFIXES || table.contains_key(&prefix) {
            return engine.release(stage, request);
        }
        table.extend(engine.keep(stage, request, tokens).map(|key| (prefix, key)));
    }

    pub fn forget(&self, engine: &mut Engine, prefix: PrefixId) {
        if let Some(key) = self.table().remove(&prefix) {
            engine.forget(key);
        }
    }

    pub fn forget_all(&self, engine: &mut Engine) {
        let all = std::mem::take(&mut *self.table());
        all.into_values().for_each(|key| engine.forget(key));
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<PrefixId, PrefixKey>> {
        // It is whole whenever the lock is free.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
