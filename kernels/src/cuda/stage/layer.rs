//! A layer on a GPU: its weights there, and its parts as launches.

use super::{
    GpuLinear, GpuNorm, GpuScratch, Mixing,
    attention::GpuAttention,
    delta::GpuDelta,
    experts::{ExpertRows, GpuExperts},
};
use crate::{
    config::Activation,
    cuda::{
        columns::Columns,
        machine::{GpuError, Machine},
        ops::{GpuRows, Kind, Ops},
        step::GpuStep,
    },
    models::{LayerOutline, MixerOutline, MlpOutline, NormOutline},
    pages::{PageLayout, StateLayout},
    ranks::RankOutputs,
};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct GpuLayer {
    /// None in families that norm only what comes out.
    attention_norm: Option<GpuNorm>,
    mixer: GpuMixer,
    output: GpuLinear,
    attention_post_norm: Option<GpuNorm>,
    mlp_norm: Option<GpuNorm>,
    /// Of the MLP, or of the expert that all rows pass; of none where there is neither.
    gate_up: GpuLinear,
    down: GpuLinear,
    /// What is added to that.
    experts: Option<Box<GpuExperts>>,
    mlp_post_norm: Option<GpuNorm>,
    gelu: bool,
    /// What comes out is multiplied by.
    factor: f32,
}

/// What mixes tokens.
#[derive(Debug)]
enum GpuMixer {
    Attention(Box<GpuAttention>),
    Delta(Box<GpuDelta>),
}

impl GpuMixer {
    /// What rows are multiplied by first.
    fn inputs(&self) -> &GpuLinear {
        match self {
            Self::Attention(attention) => &attention.inputs,
            Self::Delta(delta) => &delta.inputs,
        }
    }

    /// Columns of what it mixes.
    fn outputs(&self) -> &RankOutputs {
        match self {
            Self::Attention(attention) => &attention.outputs,
            Self::Delta(delta) => &delta.outputs,
        }
    }
}

impl GpuLayer {
    /// A layer before which there are `kv_place` of the stage's with keys and values.
    pub fn load(
        machine: &Arc<dyn Machine>,
        layer: &LayerOutline<'_>,
        (layout, states): (&PageLayout, &StateLayout),
        kv_place: usize,
    ) -> Result<Self, GpuError> {
        let norm = |norm: NormOutline<'_>| GpuNorm::load(machine, norm);
        let (mixer, output) = match &layer.mixer {
            MixerOutline::Attention(attention) => {
                let loaded = GpuAttention::load(machine, attention, layout, kv_place)?;
                (GpuMixer::Attention(Box::new(loaded)), attention.output)
            }
            MixerOutline::Delta(delta) => {
                (GpuMixer::Delta(Box::new(GpuDelta::load(machine, delta, states)?)), delta.output)
            }
        };
        let (mlp, experts) = match &layer.mlp {
            MlpOutline::Gated(mlp) => (Some(mlp), None),
            MlpOutline::Experts(experts) => {
                let beside = experts.beside.as_ref().map(|beside| &beside.mlp);
                (beside.or(experts.shared.as_ref().map(|shared| &shared.mlp)), Some(experts))
            }
        };
        if mlp.is_some_and(|mlp| !matches!(mlp.activation, Activation::Silu | Activation::GeluTanh)) {
            return Err(GpuError::Unsupported("an MLP without a gate".into()));
        }
        Ok(Self {
            attention_norm: layer.attention_norm.map(norm).transpose()?,
            mixer,
            output: GpuLinear::load(machine, &[output])?,
            attention_post_norm: layer.attention_post_norm.map(norm).transpose()?,
            mlp_norm: layer.mlp_norm.map(norm).transpose()?,
            gate_up: mlp.map_or_else(|| Ok(GpuLinear::nothing()), |mlp| GpuLinear::load(machine, &mlp.inputs))?,
            down: mlp.map_or_else(|| Ok(GpuLinear::nothing()), |mlp| GpuLinear::load(machine, &[mlp.down]))?,
            experts: experts.map(|experts| GpuExperts::load(machine, experts).map(Box::new)).transpose()?,
            mlp_post_norm: layer.mlp_post_norm.map(norm).transpose()?,
            gelu: mlp.is_some_and(|mlp| mlp.activation == Activation::GeluTanh),
            factor: layer.factor,
        })
    }
}

/// What a layer computes with.
pub(super) struct GpuLayerContext<'a> {
    pub ops: &'a mut Ops,
    pub work: &'a mut GpuScratch,
    pub step: &'a GpuStep,
    pub width: usize,
    pub hidden: u64,
}

/// What is computed of a layer between two times that GPUs put their columns side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GpuLayerPiece {
    /// What attention mixes for each head, from rows normed and turned, or what states say for them.
    Attend,
    /// What that adds to the rows.
    Output,
    /// The half of the MLP that is gated.
    Gate,
    /// What the MLP adds to the rows.
    Down,
}

impl GpuLayerPiece {
    /// A layer's, in their order.
    ///
    /// Every other one leaves its columns in `mixed`, those between in `out`. So a GPU writes where others copy from only
    /// after it has met them once more, when they were done with copying: see `gpus.rs`.
    pub const ALL: [Self; 4] = [Self::Attend, Self::Output, Self::Gate, Self::Down];
}

impl GpuLayer {
    /// Its attention, if it has that.
    pub fn attention(&self) -> Option<&GpuAttention> {
        match &self.mixer {
            GpuMixer::Attention(attention) => Some(attention),
            GpuMixer::Delta(_) => None,
        }
    }

    /// Columns of what is mixed, by the rows with what is still to be added to them.
    pub fn mix(&self, place: GpuLayerContext<'_>, more: Option<u64>, mixing: Mixing<'_>) -> Result<Columns, GpuError> {
        let GpuLayerContext { ops, work, step, width, hidden } = place;
        let (rows, linear, outputs) = (step.rows, self.mixer.inputs(), self.mixer.outputs());
        // The MLP finds as much room as it needs.
        let inputs = work.inputs.fit(rows * linear.outs.max(self.gate_up.outs) * 4)?;
        let whole = work.mixed.fit(rows * outputs.all.max(self.gate_up.outputs.all) * 4)?;

        let normed = GpuRows { at: work.normed.fit(rows * width * 4)?, kind: linear.kind(rows) };
        let (weight, eps) = before(self.attention_norm.as_ref());
        ops.norm(hidden, more, weight, eps, rows, width, normed)?;
        linear.run(ops, normed, rows, inputs)?;
        let kind = self.mixed_kind(step);
        let mixed = Columns::place(outputs, rows, kind.bytes(), whole, &mut work.mixed_apart)?;
        let out = GpuRows { at: mixed.own, kind };
        match &self.mixer {
            GpuMixer::Attention(attention) => attention.mix((ops, work), step, mixing, inputs, out)?,
            GpuMixer::Delta(delta) => delta.mix((ops, work), step, inputs, out)?,
        }
        Ok(mixed)
    }

    /// Columns of what is added of that.
    pub fn output(&self, place: GpuLayerContext<'_>) -> Result<Columns, GpuError> {
        let GpuLayerContext { ops, work, step, width, .. } = place;
        let mixed = GpuRows { at: work.mixed.at(), kind: self.mixed_kind(step) };
        product(&self.output, ops, mixed, step.rows, width, work)
    }

    /// How what is mixed is written.
    fn mixed_kind(&self, step: &GpuStep) -> Kind {
        let kind = self.output.kind(step.rows);
        match &self.mixer {
            GpuMixer::Attention(attention) => attention.mixed_kind(step, kind),
            GpuMixer::Delta(_) => kind,
        }
    }

    /// Columns of the MLP's gated half, by the rows with what attention adds.
    pub fn gate(&self, place: GpuLayerContext<'_>) -> Result<Columns, GpuError> {
        let GpuLayerContext { ops, work, step, width, hidden } = place;
        let rows = step.rows;
        let more = added(ops, (self.attention_post_norm.as_ref(), 1.0), work.out.at(), rows, width, hidden)?;
        // Experts are chosen by rows as they are.
        let kind = if self.experts.is_some() { Kind::F32 } else { self.gate_up.kind(rows) };
        let normed = GpuRows { at: work.normed.at(), kind };
        let (weight, eps) = before(self.mlp_norm.as_ref());
        ops.norm(hidden, more, weight, eps, rows, width, normed)?;
        self.gate_up.run(ops, normed, rows, work.inputs.at())?;
        let (kind, outputs) = (self.gated_kind(rows), &self.gate_up.outputs);
        let gated = Columns::place(outputs, rows, kind.bytes(), work.mixed.at(), &mut work.mixed_apart)?;
        if self.gate_up.outs == 0 {
            return Ok(gated);
        }
        ops.gate(work.inputs.at(), rows, outputs.mine.len(), self.gelu, GpuRows { at: gated.own, kind })?;
        Ok(gated)
    }

    /// How the MLP's gated half is written: rounded already where it is whole, since blocks may not be cut by GPUs.
    fn gated_kind(&self, rows: usize) -> Kind {
        let (kind, outputs) = (self.down.kind(rows), &self.gate_up.outputs);
        if outputs.mine.len() == outputs.all { kind } else { kind.unrounded() }
    }

    /// Columns of what the MLP adds.
    pub fn down(&self, place: GpuLayerContext<'_>) -> Result<Columns, GpuError> {
        let GpuLayerContext { ops, work, step, width, hidden } = place;
        let gated = GpuRows { at: work.mixed.at(), kind: self.gated_kind(step.rows) };
        let out = product(&self.down, ops, gated, step.rows, width, work)?;
        if let Some(experts) = &self.experts {
            let rows = ExpertRows { hidden, normed: work.normed.at(), out: work.out.at(), rows: step.rows };
            experts.add(ops, &mut work.experts, rows)?;
        }
        Ok(out)
    }

    /// Adds what the MLP adds if it is normed first; what is still to be added is handed out.
    pub fn end(&self, place: GpuLayerContext<'_>) -> Result<Option<u64>, GpuError> {
        let GpuLayerContext { ops, work, step, width, hidden } = place;
        added(ops, (self.mlp_post_norm.as_ref(), self.factor), work.out.at(), step.rows, width, hidden)
    }
}

/// Weights of a norm before a part, nowhere where there is none.
fn before(norm: Option<&GpuNorm>) -> (u64, f32) {
    norm.map_or((0, 0.0), GpuNorm::place)
}

/// What came out is added by the next norm, or here if it is normed first.
fn added(
    ops: &Ops,
    (norm, factor): (Option<&GpuNorm>, f32),
    out: u64,
    rows: usize,
    width: usize,
    hidden: u64,
) -> Result<Option<u64>, GpuError> {
    match norm {
        None => Ok(Some(out)),
        Some(norm) => ops.norm_add(out, norm.place(), rows, width, hidden, factor).map(|()| None),
    }
}

/// Columns of what is added to rows.
fn product(
    linear: &GpuLinear,
    ops: &mut Ops,
    input: GpuRows,
    rows: usize,
    width: usize,
    work: &mut GpuScratch,
) -> Result<Columns, GpuError> {
    let whole = work.out.fit(rows * width * 4)?;
    let out = Columns::place(&linear.outputs, rows, 4, whole, &mut work.out_apart)?;
    linear.run(ops, input, rows, out.own)?;
    Ok(out)
}
