//! A gated delta rule on a GPU (`device/delta.cu`): its weights there, and what its states say as launches. States lie in pages, as on
//! the processor.

use super::{GpuLinear, GpuNorm, GpuScratch, floats};
use crate::{
    cuda::{
        machine::{GpuError, GpuMemory, Machine},
        ops::{DeltaParts, DeltaRows, DeltaShape, GpuRows, Ops},
        step::GpuStep,
    },
    models::{DeltaOutline, STATES_TOGETHER},
    pages::StateLayout,
    ranks::RankOutputs,
};
use std::sync::Arc;

/// Says what is not written, before anything is copied.
pub(super) fn refuse_unwritten(delta: &DeltaOutline<'_>) -> Result<(), GpuError> {
    let outputs = delta.output.outputs;
    if outputs.mine.len() != outputs.all {
        return Err(GpuError::Unsupported(STATES_TOGETHER.into()));
    }
    DeltaShape::of(delta.sizes, delta.by_group, StateLayout::default().places(0)).map(|_| ())
}

#[derive(Debug)]
pub(super) struct GpuDelta {
    /// For all that rows are multiplied by before the convolution.
    pub inputs: GpuLinear,
    /// Of what heads say.
    pub outputs: RankOutputs,
    /// `[group][token][channel]`.
    convolution: GpuMemory,
    rates: GpuMemory,
    rate_biases: GpuMemory,
    norm: GpuNorm,
    shape: DeltaShape,
}

impl GpuDelta {
    pub fn load(machine: &Arc<dyn Machine>, delta: &DeltaOutline<'_>, states: &StateLayout) -> Result<Self, GpuError> {
        let shape = DeltaShape::of(delta.sizes, delta.by_group, states.places(delta.place))?;
        let values = shape.values();
        Ok(Self {
            inputs: GpuLinear::load(machine, &delta.inputs)?,
            outputs: RankOutputs { all: values, mine: 0..values },
            convolution: floats(machine, delta.convolution)?,
            rates: floats(machine, delta.rates)?,
            rate_biases: floats(machine, delta.rate_biases)?,
            norm: GpuNorm::load(machine, delta.norm)?,
            shape,
        })
    }

    /// What heads say for rows of which matrices made what is at `inputs`, normed and gated. The rows change their sequences' states.
    pub fn mix(
        &self,
        (ops, work): (&mut Ops, &mut GpuScratch),
        step: &GpuStep,
        inputs: u64,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let rows = step.rows;
        let parts = DeltaParts {
            passed: work.passed.fit(rows * self.shape.channels() * 4)?,
            turned: work.turned.fit(rows * self.shape.heads() * 8)?,
            said: work.said.fit(rows * self.shape.values() * 4)?,
        };
        let weights = [self.convolution.at(), self.rates.at(), self.rate_biases.at()];
        let batch = DeltaRows::from(step);
        ops.delta_pass(inputs, &self.shape, weights, &batch, &parts)?;
        ops.delta_rule(inputs, &self.shape, &batch, &parts)?;
        ops.delta_norm((parts.said, inputs), &self.shape, self.norm.place(), rows, out)
    }
}
