//! A stage on a GPU: its weights there, and its layers as launches.

mod attention;
mod delta;
mod experts;
mod layer;

pub(crate) use experts::EXPERTS_TOGETHER;
pub(crate) use layer::GpuLayerPiece;

use super::{
    buffers::Buffer,
    columns::Columns,
    machine::{Arg, GpuError, GpuMemory, Machine, Queue},
    ops::{GpuRows, Kind, Ops, Out, kind_for_all},
    step::GpuStep,
    tiles::GpuTurn,
    weights::{Form, GpuMatrix, size},
};
use crate::{
    models::{AttentionOutline, LayerOutline, LinearOutline, MixerOutline, NormOutline, Outline, ROW_NORMS_TOGETHER},
    pages::PageLayout,
    ranks::RankOutputs,
    rope::RopePairs,
    weights::Tensor,
    wire::KeyRotation,
};
use experts::ExpertScratch;
use layer::{GpuLayer, GpuLayerContext};
use std::sync::Arc;

/// Channels of a head that kernels are written for.
const MOST_DIM: usize = 256;
/// The same of heads that lie in several heads of a page.
const MOST_WIDE: usize = 512;

/// A step that goes through a stage on a GPU.
#[derive(Clone, Copy)]
pub(crate) struct GpuPass<'a> {
    pub step: &'a GpuStep,
    pub layout: PageLayout,
    /// Whether the compute queue is marked by the place of each layer that has keys and values once those are stored.
    pub marks: bool,
}

/// Consecutive layers of a model on a GPU.
#[derive(Debug)]
pub(crate) struct GpuStage {
    pub width: usize,
    embed: Option<(GpuMatrix, f32)>,
    layers: Vec<GpuLayer>,
    head: Option<GpuHead>,
    ropes: Vec<GpuRope>,
    /// Angles of each rope over a block of packed keys.
    turns: Vec<GpuMemory>,
}

/// Frequencies of so many pairs of channels, and what sines and cosines are multiplied by.
#[derive(Debug)]
struct GpuRope {
    frequencies: GpuMemory,
    half: usize,
    amplitude: f32,
}

#[derive(Debug)]
struct GpuHead {
    norm: GpuNorm,
    weight: GpuLinear,
    cap: Option<f32>,
}

#[derive(Debug)]
struct GpuNorm {
    weight: GpuMemory,
    eps: f32,
}

/// Matrices whose outputs lie side by side, one where they could be put one below the other.
#[derive(Debug)]
struct GpuLinear {
    parts: Vec<GpuMatrix>,
    bias: Option<GpuMemory>,
    outs: usize,
    /// Of the first matrix.
    outputs: RankOutputs,
}

/// Memory that a step's rows are in on their way; one for all stages of a GPU.
#[derive(Debug)]
pub(crate) struct GpuScratch {
    pub hidden: Buffer,
    pub chosen: Buffer,
    pub logits: Buffer,
    normed: Buffer,
    inputs: Buffer,
    mixed: Buffer,
    out: Buffer,
    /// Own columns of several rows, where other GPUs have the others.
    mixed_apart: Buffer,
    out_apart: Buffer,
    logits_apart: Buffer,
    experts: ExpertScratch,
    /// What matrices made of rows behind a convolution, and by how much states fade and turn for them; what heads say, of states or
    /// before their gates are opened.
    passed: Buffer,
    turned: Buffer,
    said: Buffer,
}

/// What all layers of a step mix by.
#[derive(Clone, Copy)]
struct Mixing<'a> {
    layout: PageLayout,
    ropes: &'a [GpuRope],
    /// Whether a layer's place is marked once its keys and values are stored.
    marks: bool,
}

impl GpuScratch {
    pub fn new(machine: &Arc<dyn Machine>) -> Self {
        let buffer = || Buffer::new(machine.clone());
        let (hidden, chosen, logits) = (buffer(), buffer(), buffer());
        let (normed, inputs, mixed, out) = (buffer(), buffer(), buffer(), buffer());
        let (mixed_apart, out_apart, logits_apart) = (buffer(), buffer(), buffer());
        let (passed, turned, said) = (buffer(), buffer(), buffer());
        Self {
            hidden,
            chosen,
            logits,
            normed,
            inputs,
            mixed,
            out,
            mixed_apart,
            out_apart,
            logits_apart,
            experts: ExpertScratch::new(machine),
            passed,
            turned,
            said,
        }
    }

    /// See [`Ops::renewals`].
    pub fn renewals(&self) -> usize {
        let all = [&self.hidden, &self.chosen, &self.logits, &self.normed, &self.inputs, &self.mixed, &self.out];
        let apart = [&self.mixed_apart, &self.out_apart, &self.logits_apart];
        let states = [&self.passed, &self.turned, &self.said];
        all.iter().chain(&apart).chain(&states).map(|buffer| buffer.renewals()).sum::<usize>() + self.experts.renewals()
    }
}

fn whole(x: usize) -> Arg {
    Arg::Whole(x as u32)
}

fn floats(machine: &Arc<dyn Machine>, numbers: &[f32]) -> Result<GpuMemory, GpuError> {
    GpuMemory::loaded(machine, bytemuck::cast_slice(numbers))
}

impl GpuNorm {
    fn load(machine: &Arc<dyn Machine>, norm: NormOutline<'_>) -> Result<Self, GpuError> {
        Ok(Self { weight: floats(machine, norm.weight)?, eps: norm.eps })
    }

    /// Where its weights are, and its epsilon.
    fn place(&self) -> (u64, f32) {
        (self.weight.at(), self.eps)
    }
}

/// What is added to a product's outputs, zeros where there is nothing.
fn of_bias(linear: LinearOutline<'_>) -> Vec<f32> {
    linear.bias.map_or_else(|| vec![0.0; size(&linear.weight.tensor().view()).0], <[f32]>::to_vec)
}

/// Says what of a layer is not written, before anything is copied.
fn refuse_unwritten(layer: &LayerOutline<'_>) -> Result<(), GpuError> {
    experts::refuse_unwritten(&layer.mlp)?;
    let attention = match &layer.mixer {
        MixerOutline::Attention(attention) => attention,
        MixerOutline::Delta(delta) => return delta::refuse_unwritten(delta),
    };
    if attention.head_dim > MOST_WIDE {
        return Err(GpuError::Unsupported(format!("a head of {} channels", attention.head_dim)));
    }
    let queries = attention.inputs[0].outputs;
    if attention.row_norms.is_some() && queries.mine.len() != queries.all {
        return Err(GpuError::Unsupported(ROW_NORMS_TOGETHER.into()));
    }
    Ok(())
}

impl GpuLinear {
    fn load(machine: &Arc<dyn Machine>, linears: &[LinearOutline<'_>]) -> Result<Self, GpuError> {
        let tensors: Vec<_> = linears.iter().map(|linear| linear.weight.tensor()).collect();
        let mut forms = tensors.iter().map(|tensor| Form::of(&tensor.view()));
        let first = forms.next();
        let parts = if forms.all(|form| Some(form) == first) {
            let all = linears.iter().map(|linear| linear.outputs.all).sum();
            vec![GpuMatrix::load(machine, &tensors)?.part_of(all)]
        } else {
            let each = tensors.iter().zip(linears);
            let load = |(tensor, linear): (&&Tensor, &LinearOutline<'_>)| -> Result<GpuMatrix, GpuError> {
                Ok(GpuMatrix::load(machine, &[tensor])?.part_of(linear.outputs.all))
            };
            each.map(load).collect::<Result<_, _>>()?
        };
        let Some(outputs) = linears.first().map(|linear| linear.outputs.clone()) else {
            return Err(GpuError::Unsupported("a matrix of nothing".into()));
        };
        let outs = parts.iter().map(|part| part.rows).sum();
        let bias = if linears.iter().any(|linear| linear.bias.is_some()) {
            let all: Vec<f32> = linears.iter().flat_map(|linear| of_bias(*linear)).collect();
            Some(floats(machine, &all)?)
        } else {
            None
        };
        Ok(Self { parts, bias, outs, outputs })
    }

    /// Queries, keys, values and gates of attention whose matrix for queries has each head's rows and those of its gate in turns.
    fn load_gated(machine: &Arc<dyn Machine>, attention: &AttentionOutline<'_>) -> Result<Self, GpuError> {
        let ([queries, keys, values], dim) = (&attention.inputs, attention.head_dim.max(1));
        let all = queries.weight.tensor();
        let starts = |first: usize| (first..size(&all.view()).0).step_by(2 * dim);
        let some = |first| starts(first).map(|row| all.rows(row..row + dim)).collect::<Vec<Tensor>>();
        let (heads, gates) = (some(0), some(dim));
        let between = [keys.weight.tensor(), values.weight.tensor()];
        let tensors: Vec<&Tensor> = heads.iter().chain(between).chain(&gates).collect();
        let alike = |a: &&Tensor, b: &&Tensor| Form::of(&a.view()) == Form::of(&b.view());
        let load = |tensors: &[&Tensor]| GpuMatrix::load(machine, tensors);
        let parts: Vec<GpuMatrix> = tensors.chunk_by(alike).map(load).collect::<Result<_, _>>()?;
        let outs = parts.iter().map(|part| part.rows).sum();
        let bias = if attention.inputs.iter().any(|linear| linear.bias.is_some()) {
            let [queries, keys, values] = attention.inputs.map(of_bias);
            let some =
                |first| starts(first).flat_map(|row| queries[row..row + dim].iter().copied()).collect::<Vec<_>>();
            Some(floats(machine, &[some(0), keys, values, some(dim)].concat())?)
        } else {
            None
        };
        Ok(Self { parts, bias, outs, outputs: queries.outputs.clone() })
    }

    /// No matrix: of a layer that has only experts.
    fn nothing() -> Self {
        Self { parts: Vec::new(), bias: None, outs: 0, outputs: RankOutputs { all: 0, mine: 0..0 } }
    }

    /// What its products read.
    fn kind(&self, rows: usize) -> Kind {
        kind_for_all(self.parts.iter(), rows)
    }

    /// `out` is `[row][outs]`.
    fn run(&self, ops: &mut Ops, input: GpuRows, rows: usize, out: u64) -> Result<(), GpuError> {
        let mut from = out;
        let mut list = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            list.push((part, Out { at: from, stride: self.outs }));
            from += part.rows as u64 * 4;
        }
        ops.products(input, rows, &list)?;
        match &self.bias {
            Some(bias) => ops.add_bias(out, self.outs, bias.at(), self.outs, rows),
            None => Ok(()),
        }
    }
}

impl GpuStage {
    /// Copies a stage's weights to the GPU.
    ///
    /// # Errors
    /// When the GPU has no memory for it, or kernels are not written for it.
    pub fn load(machine: &Arc<dyn Machine>, outline: &Outline<'_>, layout: &PageLayout) -> Result<Self, GpuError> {
        if !layout.dim.is_multiple_of(8) || layout.dim > MOST_DIM {
            return Err(GpuError::Unsupported(format!("a head of {} channels", layout.dim)));
        }
        if let Some(lacks) = outline.lacks {
            return Err(GpuError::Unsupported(lacks.into()));
        }
        outline.layers.iter().try_for_each(refuse_unwritten)?;
        let table = |(table, scale): (_, f32)| Ok((GpuMatrix::load(machine, &[table])?, scale));
        let head = |head: &crate::models::HeadOutline<'_>| -> Result<GpuHead, GpuError> {
            let weight = GpuLinear::load(machine, &[head.linear])?;
            Ok(GpuHead { norm: GpuNorm::load(machine, head.norm)?, weight, cap: head.cap })
        };
        let rope = |rope: &crate::rope::Rope| -> Result<GpuRope, GpuError> {
            let (frequencies, amplitude) = rope.frequencies();
            Ok(GpuRope { frequencies: floats(machine, frequencies)?, half: frequencies.len(), amplitude })
        };
        let mut layers = Vec::with_capacity(outline.layers.len());
        let mut kv_place = 0;
        for layer in &outline.layers {
            layers.push(GpuLayer::load(machine, layer, (layout, &outline.states), kv_place)?);
            kv_place += usize::from(layer.attention().is_some());
        }
        let mut attention = outline.layers.iter().filter_map(LayerOutline::attention);
        let pairs = attention.next().map(|attention| attention.pairs).unwrap_or_default();
        let turn = |rope: &crate::rope::Rope| floats(machine, KeyRotation::new(rope, pairs).all_angles());
        let stage = Self {
            width: outline.hidden,
            embed: outline.embed.map(table).transpose()?,
            layers,
            head: outline.head.as_ref().map(head).transpose()?,
            ropes: outline.ropes.iter().map(rope).collect::<Result<_, _>>()?,
            turns: outline.ropes.iter().map(turn).collect::<Result<_, _>>()?,
        };
        // Whoever computes with it does not ask this queue.
        machine.download(Queue::Load, 0, &mut [])?;
        Ok(stage)
    }

    /// How the keys of a layer, counted over those with keys and values, turn over a block.
    pub fn turn(&self, layer: usize) -> Option<GpuTurn> {
        let layer = self.layers.iter().filter_map(GpuLayer::attention).nth(layer)?;
        let pairs = if layer.neighbours { RopePairs::Neighbours } else { RopePairs::Halves };
        // Pairs of channels of a head that lies in several of a page's are not in the same one.
        let (angles, rope) =
            self.turns.get(layer.rope).zip(self.ropes.get(layer.rope)).filter(|_| layer.turns_back())?;
        Some(GpuTurn { angles: angles.at(), half: rope.half, pairs })
    }

    /// Tokens whose logits it and its like on other GPUs compute.
    pub fn vocab(&self) -> usize {
        self.head.as_ref().map_or(0, |head| head.weight.outputs.all)
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Rows of the step's tokens in `work.hidden`.
    pub fn embed(&self, ops: &Ops, work: &mut GpuScratch, step: &GpuStep) -> Result<(), GpuError> {
        let Some((table, scale)) = &self.embed else { return Ok(()) };
        let hidden = work.hidden.fit(step.rows * self.width * 4)?;
        ops.embed(table, step.tokens, step.rows, *scale, hidden)
    }

    /// Runs every layer over `work.hidden`, where the GPU has all of each.
    pub fn run(&self, ops: &mut Ops, work: &mut GpuScratch, pass: GpuPass<'_>) -> Result<(), GpuError> {
        for layer in 0..self.layers.len() {
            for piece in GpuLayerPiece::ALL {
                self.piece(ops, work, pass, layer, piece)?;
            }
        }
        self.end(ops, work, pass.step)
    }

    /// A piece of a layer over `work.hidden`: the GPU's columns of it.
    pub fn piece(
        &self,
        ops: &mut Ops,
        work: &mut GpuScratch,
        pass: GpuPass<'_>,
        index: usize,
        piece: GpuLayerPiece,
    ) -> Result<Columns, GpuError> {
        let GpuPass { step, layout, marks } = pass;
        let layer = &self.layers[index];
        if !matches!(piece, GpuLayerPiece::Attend) {
            let place = self.place(ops, work, step);
            return match piece {
                GpuLayerPiece::Output => layer.output(place),
                GpuLayerPiece::Gate => layer.gate(place),
                GpuLayerPiece::Attend | GpuLayerPiece::Down => layer.down(place),
            };
        }
        // What the layer before adds to the rows is added by the next norm.
        let more = self.added_before(ops, work, step, index)?;
        let place = self.place(ops, work, step);
        layer.mix(place, more, Mixing { layout, ropes: &self.ropes, marks })
    }

    /// Adds what the last layer adds.
    pub fn end(&self, ops: &mut Ops, work: &mut GpuScratch, step: &GpuStep) -> Result<(), GpuError> {
        match self.added_before(ops, work, step, self.layers.len())? {
            Some(more) => ops.add(work.hidden.at(), more, step.rows * self.width),
            None => Ok(()),
        }
    }

    /// What is still to be added to the rows before a layer.
    fn added_before(
        &self,
        ops: &mut Ops,
        work: &mut GpuScratch,
        step: &GpuStep,
        index: usize,
    ) -> Result<Option<u64>, GpuError> {
        match index.checked_sub(1).and_then(|before| self.layers.get(before)) {
            Some(before) => before.end(self.place(ops, work, step)),
            None => Ok(None),
        }
    }

    fn place<'a>(&self, ops: &'a mut Ops, work: &'a mut GpuScratch, step: &'a GpuStep) -> GpuLayerContext<'a> {
        let hidden = work.hidden.at();
        GpuLayerContext { ops, work, step, width: self.width, hidden }
    }

    /// The GPU's columns of the logits of the step's chosen rows; none if there are none.
    pub fn logits(&self, ops: &mut Ops, work: &mut GpuScratch, step: &GpuStep) -> Result<Option<Columns>, GpuError> {
        let (Some(head), rows) = (&self.head, step.chosen_rows) else { return Ok(None) };
        if rows == 0 {
            return Ok(None);
        }
        let mut from = work.hidden.at();
        if let Some(chosen) = step.chosen {
            let out = work.chosen.fit(rows * self.width * 4)?;
            ops.gather(from, chosen, rows, self.width, out)?;
            from = out;
        }
        let normed = GpuRows { at: work.normed.fit(rows * self.width * 4)?, kind: head.weight.kind(rows) };
        ops.norm(from, None, head.norm.weight.at(), head.norm.eps, rows, self.width, normed)?;
        let outputs = &head.weight.outputs;
        // The GPU that has the first columns is to have all.
        let whole = if outputs.mine.start == 0 { work.logits.fit(rows * outputs.all * 4)? } else { 0 };
        let logits = Columns::place(outputs, rows, 4, whole, &mut work.logits_apart)?;
        head.weight.run(ops, normed, rows, logits.own)?;
        if let Some(cap) = head.cap {
            ops.soft_cap(logits.own, rows * head.weight.outs, cap)?;
        }
        Ok(Some(logits))
    }
}
