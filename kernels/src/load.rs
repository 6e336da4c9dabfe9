//! Loading a stage: every number is looked at once, and quantised weights are laid out for products.
//!
//! What a stage takes in memory is known before ([`StageMemory`]). Loading itself keeps little more than that: tensor by
//! tensor, and pages of the file that are not read again are given back at once.

use crate::{
    cpu::Cpu,
    cuda::{bytes_on_gpu, expert_bytes_on_gpu},
    linear::Weight,
    memory,
    models::{MlpOutline, ModelStage},
    weights::{Tensor, WeightsError},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How far loading is (bytes as stored).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    /// Done.
    pub done: u64,
    /// In all.
    pub total: u64,
}

/// What loading a stage was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Bytes of the file that the stage is made of.
    pub bytes: u64,
    /// Time in all: reading and looking at every number, and packing.
    pub took: Duration,
    /// Bytes of quantised matrices as stored.
    pub quantised: u64,
    /// The same laid out for products.
    pub packed: u64,
    /// Time for laying them out.
    pub packing: Duration,
}

/// The most that is computed in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Tokens.
    pub tokens: u64,
    /// Tokens of them whose logits are wanted, where the stage has the head.
    pub logits: u64,
}

/// Memory that a stage's weights take (bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageMemory {
    /// Read where they lie in the file, which stays mapped.
    pub mapped: u64,
    /// Quantised matrices laid out for products; their file is not read again.
    pub packed: u64,
    /// Norms and biases, copied.
    pub copied: u64,
}

impl StageMemory {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.mapped + self.packed + self.copied
    }

    /// Of all ranks together.
    pub(crate) fn of<'a>(stages: impl Iterator<Item = &'a dyn ModelStage> + Clone) -> Self {
        let (weights, tables) = all_of(stages.clone());
        let bytes: u64 = stages.map(ModelStage::bytes).map(|bytes| bytes.layers + bytes.head).sum();
        let matrices: u64 = weights.iter().map(|w| w.bytes()).sum();
        let mapped = |tensor: &Tensor| weights.iter().any(|w| w.packed_bytes() == 0 && w.tensor().meets(tensor));
        let once = tables.iter().filter(|table| !mapped(table)).map(|table| table.bytes());
        let dense = weights.iter().filter(|w| w.packed_bytes() == 0).map(|w| w.tensor().bytes());
        Self {
            mapped: dense.sum::<u64>() + once.sum::<u64>(),
            packed: weights.iter().map(|w| w.packed_bytes()).sum(),
            copied: bytes.saturating_sub(matrices),
        }
    }
}

/// What an engine holds (bytes), all but what it computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Weights of all loaded stages, as [`StageMemory::total`] has them; none of those on a GPU.
    pub weights: u64,
    /// KV pages that have been written to, or made ready to be: what the system has given of the pool.
    pub kv: u64,
}

/// What all ranks have: matrices that rows are multiplied by, and tensors that rows are taken out of.
fn all_of<'a>(stages: impl Iterator<Item = &'a dyn ModelStage> + Clone) -> (Vec<&'a Weight>, Vec<&'a Tensor>) {
    let weights = stages.clone().flat_map(|stage| stage.weights()).collect();
    (weights, stages.flat_map(|stage| stage.tables()).collect())
}

/// Stages, looked at only.
pub(crate) fn each(stages: &[Box<dyn ModelStage>]) -> impl Iterator<Item = &dyn ModelStage> + Clone {
    stages.iter().map(|stage| stage.as_ref())
}

/// Memory that stages' weights take on GPUs (bytes), where formats without kernels are widened.
pub(crate) fn on_gpus<'a>(stages: impl Iterator<Item = &'a dyn ModelStage> + Clone) -> u64 {
    let (weights, tables) = all_of(stages.clone());
    let bytes: u64 = stages.clone().map(ModelStage::bytes).map(|bytes| bytes.layers + bytes.head).sum();
    let matrices: u64 = weights.iter().map(|w| w.bytes()).sum();
    let there = tables.into_iter().map(bytes_on_gpu).chain(weights.into_iter().map(weight_on_gpu));
    // Kernels of experts read a format more than others do.
    let wider = |tensor: &Tensor| bytes_on_gpu(tensor).saturating_sub(expert_bytes_on_gpu(tensor));
    let experts = stages.flat_map(experts_of).filter(|weight| !weight.is_exact());
    let less: u64 = experts.map(|weight| wider(weight.tensor())).sum();
    (there.sum::<u64>() + bytes.saturating_sub(matrices)).saturating_sub(less)
}

/// Matrices of experts.
fn experts_of(stage: &dyn ModelStage) -> Vec<&Weight> {
    let layers = stage.outline().map(|outline| outline.layers).unwrap_or_default();
    let experts = layers.into_iter().filter_map(|layer| match layer.mlp {
        MlpOutline::Experts(experts) => Some(experts.experts),
        MlpOutline::Gated(_) => None,
    });
    experts.flatten().flatten().collect()
}

/// In single precision where its outputs decide something.
fn weight_on_gpu(weight: &Weight) -> u64 {
    let (rows, cols) = weight.tensor().size();
    if weight.is_exact() { (4 * rows * cols) as u64 } else { bytes_on_gpu(weight.tensor()) }
}

/// Looks at all of a stage's weights and leaves them as they lie, saying after each how far it is.
pub(crate) fn look(
    stages: &[Box<dyn ModelStage>],
    cpu: &Cpu,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadReport, WeightsError> {
    through(stages, cpu, progress, |_, _| ())
}

/// Looks at all of a stage's weights and packs those that are quantised, saying after each how far it is.
pub(crate) fn run(
    stages: &[Box<dyn ModelStage>],
    cpu: &Cpu,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<LoadReport, WeightsError> {
    through(stages, cpu, progress, |weight, report| {
        let at = Instant::now();
        weight.prepare(cpu);
        if weight.packed_bytes() > 0 {
            report.quantised += weight.tensor().bytes();
            report.packed += weight.packed_bytes();
            report.packing += at.elapsed();
        }
    })
}

/// Looks at all of a stage's weights, and does something with each matrix while what was just read of it is still in memory.
fn through(
    stages: &[Box<dyn ModelStage>],
    cpu: &Cpu,
    progress: &mut dyn FnMut(LoadProgress),
    mut then: impl FnMut(&Weight, &mut LoadReport),
) -> Result<LoadReport, WeightsError> {
    let started = Instant::now();
    let (weights, mut tables) = all_of(each(stages));
    // An output head may be the embedding; cut up, its parts are all of it.
    tables.retain(|table| !weights.iter().any(|w| w.tensor().meets(table)));
    let total = weights.iter().map(|w| w.tensor()).chain(tables.iter().copied()).map(Tensor::bytes).sum();
    let mut report = LoadReport { bytes: total, ..LoadReport::default() };
    let mut done = 0;
    let mut step = |bytes: u64| {
        done += bytes;
        progress(LoadProgress { done, total });
    };
    step(0);
    for table in tables {
        table.check(cpu)?;
        // Few of its rows are read in any step.
        table.forget();
        step(table.bytes());
    }
    for weight in weights {
        weight.tensor().check(cpu)?;
        then(weight, &mut report);
        step(weight.tensor().bytes());
    }
    memory::trim();
    Ok(LoadReport { took: started.elapsed(), ..report })
}
