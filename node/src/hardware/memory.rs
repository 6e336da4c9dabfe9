//! Plan flow 1 and 6: whether a stage fits this host, added up before anything of it is loaded.

use std::fmt;
use tsnode_coordinator::{
    batcher::BatcherConfig,
    policy::caps::{LONG, LONGEST},
};
use tsnode_kernels::{load::Largest, source::ModelSource, weights::WeightsError};
use tsnode_protocol::LayerRange;

/// What to do where a peer has too little memory.
const LESS: &str = "lend less KV with --kv-memory, name a smaller model with --model, or serve none with --no-model";

/// Memory that a stage needs (bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// What needs it, as people call it.
    pub what: String,
    /// Weights as they will lie in memory: mapped from the file, or laid out anew where they are quantised.
    pub weights: u64,
    /// KV pages that can still be written.
    pub kv: u64,
    /// Buffers of the largest step.
    pub working: u64,
}

/// More memory is needed than there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{need}, where {} is free; {advice}", Size(*.free))]
pub struct TooLarge {
    /// What is needed.
    pub need: Need,
    /// What there is (bytes).
    pub free: u64,
    /// What to do about it.
    pub advice: &'static str,
}

/// What holds stages: how many have each layer together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageHolder {
    /// Ranks of the processor.
    Ranks(usize),
    /// GPUs. What a step's buffers take there is never lent.
    Gpus(usize),
}

impl Need {
    /// Of `layers` of a model, beside `kv` bytes of KV pages.
    ///
    /// # Errors
    /// When it cannot be cut for so many, or weights are missing, which opening the model has found before.
    pub fn of(source: &ModelSource, layers: LayerRange, holder: StageHolder, kv: u64) -> Result<Self, WeightsError> {
        let (weights, working) = match holder {
            StageHolder::Ranks(ranks) => {
                (source.stage_memory(layers, ranks)?.total(), source.working_bytes(layers, ranks, largest()))
            }
            StageHolder::Gpus(count) => (source.gpu_bytes(layers, count)?, 0),
        };
        Ok(Self { what: called(source, layers), weights, kv, working })
    }

    /// Of the single layer that needs least beside `kv` bytes of KV pages, or of all of a model that one stage has to hold: the
    /// least that a plan can ask of a peer.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_least(source: &ModelSource, holder: StageHolder, kv: u64) -> Result<Self, WeightsError> {
        let shape = source.card().shape;
        if shape.whole {
            return Self::of(source, shape.all_layers(), holder, kv);
        }
        let layers = shape.layers;
        // Embedding and head come with the first and the last.
        let one = |start| Self::of(source, LayerRange { start, end: start + 1 }, holder, kv);
        let [first, middle, last] = [one(0)?, one(layers / 2)?, one(layers - 1)?];
        Ok([middle, last].into_iter().fold(first, |a, b| if b.total() < a.total() { b } else { a }))
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.working
    }

    /// Refuses more than is free.
    ///
    /// # Errors
    /// When it is.
    pub fn within(self, free: u64) -> Result<(), TooLarge> {
        self.within_or(free, LESS)
    }

    /// The same, with other advice.
    ///
    /// # Errors
    /// When it is.
    pub fn within_or(self, free: u64, advice: &'static str) -> Result<(), TooLarge> {
        if self.total() <= free { Ok(()) } else { Err(TooLarge { need: self, free, advice }) }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [total, weights, kv, working] = [self.total(), self.weights, self.kv, self.working].map(Size);
        write!(f, "{} needs {total}: weights {weights} + KV {kv} + working memory {working}", self.what)
    }
}

/// As people call these layers.
fn called(source: &ModelSource, layers: LayerRange) -> String {
    let card = source.card();
    if layers == card.shape.all_layers() {
        card.name.clone()
    } else {
        format!("{} of {} layers of {}", layers.len(), card.shape.layers, card.name)
    }
}

/// The largest step of any group: how long its steps are is known only once all its stages' devices are.
fn largest() -> Largest {
    let (tokens, running) = (u64::from(LONGEST * LONG), BatcherConfig::default().max_running as u64);
    Largest { tokens, logits: tokens.min(running) }
}

/// Bytes, as people read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let in_units = |shift: u32| bytes as f64 / (1_u64 << shift) as f64;
        if bytes >= 1 << 30 {
            write!(f, "{:.1} GiB", in_units(30))
        } else {
            // One digit after the point below ten: a small model's parts are not all 0.
            write!(f, "{:.*} MiB", usize::from(bytes < 10 << 20), in_units(20))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_its_sum() {
        let source = ModelSource::embedded().unwrap();
        let need = Need::of(&source, source.card().shape.all_layers(), StageHolder::Ranks(1), 1 << 30).unwrap();
        assert!(need.weights > 6 << 20 && need.working > 1 << 20, "{need:?}");
        assert_eq!(need.clone().within(need.total()), Ok(()));
        let said = need.clone().within(need.total() - 1).unwrap_err().to_string();
        for part in ["gutenberg-tiny needs 1.0 GiB: weights 6.5 MiB + KV 1.0 GiB + working", "is free", "--kv-memory"] {
            assert!(said.contains(part), "{said} does not say: {part}");
        }
    }

    #[test]
    fn a_part_of_a_model_needs_less() {
        let source = ModelSource::embedded().unwrap();
        let all = Need::of(&source, source.card().shape.all_layers(), StageHolder::Ranks(1), 0).unwrap();
        let least = Need::of_least(&source, StageHolder::Ranks(1), 0).unwrap();
        assert!(least.weights < all.weights / 2 && least.total() < all.total(), "{least} and {all}");
        assert!(least.what.starts_with("1 of "), "{}", least.what);
    }

    #[test]
    fn sizes_are_read_at_a_glance() {
        let said = [0, 1 << 19, 6 << 20, 300 << 20, 5 << 29].map(|bytes| Size(bytes).to_string());
        assert_eq!(said, ["0.0 MiB", "0.5 MiB", "6.0 MiB", "300 MiB", "2.5 GiB"]);
    }
}
