//! What is in use of a model that is here in part, and what goes where other layers have to come within its owner's budget.

use super::drafts::{Chunk, PartialFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::LayerRange;

/// Layers that stages here are made of, or are about to be. Clones are of the same; held for operations on the map, and while it is
/// settled what goes.
#[derive(Clone, Default)]
pub(super) struct LayerUses(Arc<Mutex<Used>>);

#[derive(Default)]
struct Used {
    next: u64,
    /// With what says that no stage will be made of them any more.
    layers: BTreeMap<u64, (LayerRange, CancellationToken)>,
}

/// Keeps layers on the disk as long as it is there.
pub struct LayersInUse {
    uses: LayerUses,
    key: u64,
}

impl LayerUses {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, until what is given back is dropped, or they are given up: whoever waits to load them may be the last to know.
    pub fn hold(&self, layers: LayerRange, given_up: CancellationToken) -> LayersInUse {
        let mut used = self.used();
        let key = used.next;
        used.next += 1;
        used.layers.insert(key, (layers, given_up));
        LayersInUse { uses: self.clone(), key }
    }

    /// Acts by all of them, and nobody begins to hold others meanwhile: whoever does so next sees what was done.
    pub fn still<T>(&self, act: impl FnOnce(&[LayerRange]) -> T) -> T {
        let used = self.used();
        let held = used.layers.values().filter(|(_, given_up)| !given_up.is_cancelled());
        let layers: Vec<LayerRange> = held.map(|(layers, _)| *layers).collect();
        act(&layers)
    }
}

impl Drop for LayersInUse {
    fn drop(&mut self) {
        self.uses.used().layers.remove(&self.key);
    }
}

/// Chunks that go so that there are so many bytes less: none of those that stay, nor of a file of which all is there, whose name says so.
/// None where that is not enough.
pub(super) fn chosen(drafts: &PartialFiles, stay: &BTreeSet<Chunk>, bytes: u64) -> Option<Vec<Chunk>> {
    let (mut chosen, mut over) = (Vec::new(), bytes);
    // Side by side: then few layers lose something, and these all of it.
    for chunk in drafts.all().filter(|chunk| drafts.has(*chunk) && !stay.contains(chunk) && !drafts.is_placed(chunk.0))
    {
        if over == 0 {
            break;
        }
        over = over.saturating_sub(drafts.bytes_of(chunk));
        chosen.push(chunk);
    }
    (over == 0).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_in_use_as_long_as_somebody_holds_them() {
        let (uses, layers) = (LayerUses::default(), |start, end| LayerRange { start, end });
        let held = || uses.still(<[LayerRange]>::to_vec);
        let given_up = CancellationToken::new();
        let hold = |layers| uses.clone().hold(layers, given_up.clone());
        let (one, other) = (hold(layers(0, 4)), hold(layers(2, 6)));
        assert_eq!(held(), [layers(0, 4), layers(2, 6)]);
        drop(one);
        let same = hold(layers(2, 6));
        drop(other);
        assert_eq!(held(), [layers(2, 6)], "another has them as well");
        let last = uses.hold(layers(0, 1), CancellationToken::new());
        given_up.cancel();
        assert_eq!(held(), [layers(0, 1)], "no stage will be made of the others");
        drop((same, last));
        assert_eq!(held(), []);
        uses.still(|_| assert!(uses.0.try_lock().is_err(), "nobody begins to hold some meanwhile"));
    }
}
