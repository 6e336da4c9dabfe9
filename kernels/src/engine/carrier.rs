//! Stages on their way into an engine: what takes long of it, copying weights to GPUs, is for a thread that nobody waits for.

use super::{Engine, EngineError, RankPart, StageKey};
use crate::{
    cuda::{GpuCarrier, GpuError, GpuStage},
    pages::PageUse,
    ranks::Rank,
    source::StageModel,
};
use tsnode_protocol::{KvDtype, LayerRange, ModelShape};

/// Brings stages to where an engine computes. It may be used beside the engine, by another thread.
#[derive(Clone, Debug)]
pub struct StageCarrier {
    /// None where the processor computes, which reads weights where they lie.
    gpus: Option<GpuCarrier>,
    ranks: usize,
    dtype: KvDtype,
}

/// A stage that its engine need only take in.
pub struct CarriedStage {
    pub(super) parts: Vec<RankPart>,
    pub(super) shape: ModelShape,
    pub(super) layers: LayerRange,
    /// On GPUs, by rank.
    pub(super) there: Option<Vec<GpuStage>>,
}

impl StageCarrier {
    /// Brings a stage there. It takes as long as copying all of its weights where GPUs compute.
    ///
    /// # Errors
    /// When one token's KV does not fit a page, the stage was cut for another number of ranks, a GPU has no memory for it, or
    /// the model is none that GPUs compute.
    pub fn carry(&self, model: StageModel) -> Result<CarriedStage, EngineError> {
        let StageModel { stages, shape, layers } = model;
        let (found, expected) = (stages.len(), self.ranks);
        if found != expected {
            return Err(EngineError::Ranks { found, expected });
        }
        let part = |(rank, stage)| RankPart::new(rank, stage, &shape, self.dtype);
        let parts = Rank::all(found).zip(stages).map(part).collect::<Result<Vec<_>, _>>()?;
        let there = self.gpus.as_ref().map(|gpus| carry(gpus, &parts)).transpose()?;
        Ok(CarriedStage { parts, shape, layers, there })
    }
}

fn carry(gpus: &GpuCarrier, parts: &[RankPart]) -> Result<Vec<GpuStage>, EngineError> {
    let none = || GpuError::Unsupported("this family of models".into());
    let mut outlines = Vec::with_capacity(parts.len());
    for part in parts {
        outlines.push((part.stage.outline().ok_or_else(none)?, part.layout));
    }
    Ok(gpus.carry(outlines.into_iter())?)
}

impl Engine {
    /// What brings stages to it.
    #[must_use]
    pub fn carrier(&self) -> StageCarrier {
        StageCarrier { gpus: self.gpus.as_ref().map(|gpus| gpus.carrier()), ranks: self.pools.len(), dtype: self.dtype }
    }

    /// Takes in a stage that its [`StageCarrier`] has brought.
    pub fn take(&mut self, carried: CarriedStage) -> StageKey {
        self.take_in(carried, PageUse::Running)
    }

    /// The same as [`Engine::load_beside`] does.
    pub fn take_beside(&mut self, carried: CarriedStage) -> StageKey {
        self.take_in(carried, PageUse::Cached)
    }
}
