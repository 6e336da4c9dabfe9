//! A stage on a card: its weights there, and its layers as launches.

mod layer;

use super::{
    buffers::Buffer,
    machine::{CardError, Machine, Memory},
    ops::{Kind, Ops, Out, Rows, kind_for_all},
    step::Step,
    tiles::CardTurn,
    weights::{Form, Matrix, size},
};
use crate::{
    models::{LinearOutline, NormOutline, Outline},
    pages::Layout,
    rope::RopePairs,
    wire::Turn,
};
use layer::{Layer, Pages, Place};
use std::sync::Arc;
use tsnode_protocol::KvDtype;

/// Channels of a head that kernels are written for.
const MOST_DIM: usize = 256;

/// Consecutive layers of a model on a card.
#[derive(Debug)]
pub(crate) struct CardStage {
    pub width: usize,
    embed: Option<(Matrix, f32)>,
    layers: Vec<Layer>,
    head: Option<Head>,
    /// Frequencies and amplitude of each rope.
    ropes: Vec<(Memory, f32)>,
    half: usize,
    /// Angles of each rope over a block of packed keys.
    turns: Vec<Memory>,
}

#[derive(Debug)]
struct Head {
    norm: Norm,
    weight: Linear,
    cap: Option<f32>,
}

#[derive(Debug)]
struct Norm {
    weight: Memory,
    eps: f32,
}

/// Matrices whose outputs lie side by side, one where they could be put one below the other.
#[derive(Debug)]
struct Linear {
    parts: Vec<Matrix>,
    bias: Option<Memory>,
    outs: usize,
}

/// Memory that a step's rows are in on their way; one for all stages of a card.
#[derive(Debug)]
pub(crate) struct Work {
    pub hidden: Buffer,
    pub chosen: Buffer,
    pub logits: Buffer,
    normed: Buffer,
    inputs: Buffer,
    mixed: Buffer,
    out: Buffer,
}

impl Work {
    pub fn new(machine: &Arc<dyn Machine>) -> Self {
        let buffer = || Buffer::new(machine.clone());
        let (hidden, chosen, logits) = (buffer(), buffer(), buffer());
        Self { hidden, chosen, logits, normed: buffer(), inputs: buffer(), mixed: buffer(), out: buffer() }
    }

    /// See [`Ops::renewals`].
    pub fn renewals(&self) -> usize {
        let all = [&self.hidden, &self.chosen, &self.logits, &self.normed, &self.inputs, &self.mixed, &self.out];
        all.iter().map(|buffer| buffer.renewals()).sum()
    }
}

/// How elements of pages are stored.
pub(super) fn kv_kind(dtype: KvDtype) -> Kind {
    match dtype {
        KvDtype::F32 => Kind::F32,
        KvDtype::F16 => Kind::F16,
        KvDtype::Bf16 => Kind::Bf16,
    }
}

fn floats(machine: &Arc<dyn Machine>, numbers: &[f32]) -> Result<Memory, CardError> {
    Memory::of(machine, bytemuck::cast_slice(numbers))
}

impl Norm {
    fn load(machine: &Arc<dyn Machine>, norm: NormOutline<'_>) -> Result<Self, CardError> {
        Ok(Self { weight: floats(machine, norm.weight)?, eps: norm.eps })
    }
}

impl Linear {
    fn load(machine: &Arc<dyn Machine>, linears: &[LinearOutline<'_>]) -> Result<Self, CardError> {
        let tensors: Vec<_> = linears.iter().map(|linear| linear.weight.tensor()).collect();
        let mut forms = tensors.iter().map(|tensor| Form::of(&tensor.view()));
        let first = forms.next();
        let parts = if forms.all(|form| Some(form) == first) {
            vec![Matrix::load(machine, &tensors)?]
        } else {
            tensors.iter().map(|tensor| Matrix::load(machine, &[tensor])).collect::<Result<_, _>>()?
        };
        let outs = parts.iter().map(|part| part.rows).sum();
        let bias = if linears.iter().any(|linear| linear.bias.is_some()) {
            let zeros = |linear: &LinearOutline<'_>| vec![0.0; size(&linear.weight.tensor().view()).0];
            let all: Vec<f32> = linears.iter().flat_map(|l| l.bias.map_or_else(|| zeros(l), <[f32]>::to_vec)).collect();
            Some(floats(machine, &all)?)
        } else {
            None
        };
        Ok(Self { parts, bias, outs })
    }

    /// What its products read.
    fn kind(&self, rows: usize) -> Kind {
        kind_for_all(self.parts.iter(), rows)
    }

    /// `out` is `[row][outs]`.
    fn run(&self, ops: &mut Ops, input: Rows, rows: usize, out: u64) -> Result<(), CardError> {
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

impl CardStage {
    /// Copies a stage's weights to the card.
    ///
    /// # Errors
    /// When the card has no memory for it, or kernels are not written for it.
    pub fn load(machine: &Arc<dyn Machine>, outline: &Outline<'_>, layout: &Layout) -> Result<Self, CardError> {
        if !layout.dim.is_multiple_of(8) || layout.dim > MOST_DIM {
            return Err(CardError::Unsupported(format!("a head of {} channels", layout.dim)));
        }
        let table = |(table, scale): (_, f32)| Ok((Matrix::load(machine, &[table])?, scale));
        let head = |head: &crate::models::HeadOutline<'_>| -> Result<Head, CardError> {
            let weight = LinearOutline { weight: head.weight, bias: None };
            Ok(Head { norm: Norm::load(machine, head.norm)?, weight: Linear::load(machine, &[weight])?, cap: head.cap })
        };
        let rope = |rope: &crate::rope::Rope| -> Result<(Memory, f32), CardError> {
            let (frequencies, amplitude) = rope.frequencies();
            Ok((floats(machine, frequencies)?, amplitude))
        };
        let pairs = outline.layers.first().map(|layer| layer.attention.pairs).unwrap_or_default();
        let turn = |rope: &crate::rope::Rope| floats(machine, Turn::new(rope, pairs).all_angles());
        Ok(Self {
            width: outline.hidden,
            embed: outline.embed.map(table).transpose()?,
            layers: outline.layers.iter().map(|layer| Layer::load(machine, layer)).collect::<Result<_, _>>()?,
            head: outline.head.as_ref().map(head).transpose()?,
            ropes: outline.ropes.iter().map(rope).collect::<Result<_, _>>()?,
            half: outline.ropes.first().map_or(0, |rope| rope.frequencies().0.len()),
            turns: outline.ropes.iter().map(turn).collect::<Result<_, _>>()?,
        })
    }

    /// How a layer's keys turn over a block.
    pub fn turn(&self, layer: usize) -> Option<CardTurn> {
        let layer = self.layers.get(layer)?;
        let pairs = if layer.neighbours { RopePairs::Neighbours } else { RopePairs::Halves };
        self.turns.get(layer.rope).map(|angles| CardTurn { angles: angles.at(), half: self.half, pairs })
    }

    /// Tokens whose logits it computes.
    pub fn vocab(&self) -> usize {
        self.head.as_ref().map_or(0, |head| head.weight.outs)
    }

    /// Rows of the step's tokens in `work.hidden`.
    pub fn embed(&self, ops: &Ops, work: &mut Work, step: &Step) -> Result<(), CardError> {
        let Some((table, scale)) = &self.embed else { return Ok(()) };
        let hidden = work.hidden.fit(step.rows * self.width * 4)?;
        ops.embed(table, step.tokens, step.rows, *scale, hidden)
    }

    /// Runs every layer over `work.hidden`. With `marks`, the compute queue is marked by the layer's number once its keys and
    /// values are stored.
    pub fn layers(
        &self,
        ops: &mut Ops,
        work: &mut Work,
        step: &Step,
        layout: Layout,
        marks: bool,
    ) -> Result<(), CardError> {
        let hidden = work.hidden.fit(step.rows * self.width * 4)?;
        // What the layer before adds to the rows is added by the next norm.
        let mut more = None;
        for (index, layer) in self.layers.iter().enumerate() {
            let table = step.table(index);
            let pages = Pages { memory: step.memory, table, most: step.most, layout };
            let place = Place { ops, work, step, width: self.width, hidden };
            more = layer.forward(place, more, &self.ropes[layer.rope], self.half, pages, marks.then_some(index))?;
        }
        match more {
            Some(more) => ops.add(hidden, more, step.rows * self.width),
            None => Ok(()),
        }
    }

    /// Logits in `work.logits` of the step's chosen rows.
    pub fn logits(&self, ops: &mut Ops, work: &mut Work, step: &Step) -> Result<(), CardError> {
        let (Some(head), rows) = (&self.head, step.chosen_rows) else { return Ok(()) };
        if rows == 0 {
            return Ok(());
        }
        let mut from = work.hidden.at();
        if let Some(chosen) = step.chosen {
            let out = work.chosen.fit(rows * self.width * 4)?;
            ops.gather(from, chosen, rows, self.width, out)?;
            from = out;
        }
        let normed = Rows { at: work.normed.fit(rows * self.width * 4)?, kind: head.weight.kind(rows) };
        ops.norm(from, None, head.norm.weight.at(), head.norm.eps, rows, self.width, normed)?;
        let logits = work.logits.fit(rows * head.weight.outs * 4)?;
        head.weight.run(ops, normed, rows, logits)?;
        match head.cap {
            Some(cap) => ops.soft_cap(logits, rows * head.weight.outs, cap),
            None => Ok(()),
        }
    }
}
