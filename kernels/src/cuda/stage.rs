//! A stage on a card: its weights there, and its layers as launches.

use super::{
    buffers::Buffer,
    machine::{Arg, CardError, Launch, Machine, Memory},
    ops::{Kind, Ops, Out, Rows, kind_for_all},
    step::Step,
    tiles::CardTurn,
    weights::{Form, Matrix, size},
};
use crate::{
    config::Activation,
    engine::Look,
    models::{LayerOutline, LinearOutline, NormOutline, Outline},
    pages::Layout,
    rope::RopePairs,
    wire::Turn,
};
use std::sync::Arc;
use tsnode_protocol::KvDtype;

/// Channels of a head that kernels are written for.
const MOST_DIM: usize = 256;
/// Tokens of a tile of keys; rows and heads of a tile of queries.
const TILE: usize = 64;

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
struct Layer {
    attention_norm: Norm,
    inputs: Linear,
    head_norms: Option<[Norm; 2]>,
    output: Linear,
    attention_post_norm: Option<Norm>,
    mlp_norm: Norm,
    gate_up: Linear,
    down: Linear,
    mlp_post_norm: Option<Norm>,
    gelu: bool,
    look: Look,
    rope: usize,
    neighbours: bool,
    heads: usize,
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

/// A layer's pages.
#[derive(Clone, Copy)]
struct Pages {
    memory: u64,
    table: u64,
    most: usize,
    layout: Layout,
}

fn whole(x: usize) -> Arg {
    Arg::Whole(x as u32)
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

impl Layer {
    fn load(machine: &Arc<dyn Machine>, layer: &LayerOutline<'_>) -> Result<Self, CardError> {
        let norm = |norm: NormOutline<'_>| Norm::load(machine, norm);
        let LayerOutline { attention, mlp, .. } = layer;
        if !matches!(mlp.activation, Activation::Silu | Activation::GeluTanh) {
            return Err(CardError::Unsupported("an MLP without a gate".into()));
        }
        let queries = size(&attention.inputs[0].weight.tensor().view()).0;
        Ok(Self {
            attention_norm: norm(layer.attention_norm)?,
            inputs: Linear::load(machine, &attention.inputs)?,
            head_norms: match attention.head_norms {
                Some([query, key]) => Some([norm(query)?, norm(key)?]),
                None => None,
            },
            output: Linear::load(machine, &[attention.output])?,
            attention_post_norm: layer.attention_post_norm.map(norm).transpose()?,
            mlp_norm: norm(layer.mlp_norm)?,
            gate_up: Linear::load(machine, &mlp.inputs)?,
            down: Linear::load(machine, &[mlp.down])?,
            mlp_post_norm: layer.mlp_post_norm.map(norm).transpose()?,
            gelu: mlp.activation == Activation::GeluTanh,
            look: attention.look,
            rope: attention.rope,
            neighbours: attention.pairs == RopePairs::Neighbours,
            heads: queries / attention.head_dim.max(1),
        })
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

/// What a layer computes with.
struct Place<'a> {
    ops: &'a mut Ops,
    work: &'a mut Work,
    step: &'a Step,
    width: usize,
    hidden: u64,
}

impl Layer {
    /// What is still to be added to the rows is handed in and out.
    fn forward(
        &self,
        place: Place<'_>,
        more: Option<u64>,
        rope: &(Memory, f32),
        half: usize,
        pages: Pages,
        mark: Option<usize>,
    ) -> Result<Option<u64>, CardError> {
        let Place { ops, work, step, width, hidden } = place;
        let rows = step.rows;
        let out = work.out.fit(rows * width * 4)?;
        let inputs = work.inputs.fit(rows * self.inputs.outs.max(self.gate_up.outs) * 4)?;

        let normed = Rows { at: work.normed.fit(rows * width * 4)?, kind: self.inputs.kind(rows) };
        ops.norm(hidden, more, self.attention_norm.weight.at(), self.attention_norm.eps, rows, width, normed)?;
        self.inputs.run(ops, normed, rows, inputs)?;
        self.turn_and_store(ops, step, inputs, rope, half, pages)?;
        if let Some(number) = mark {
            ops.machine.mark(number)?;
        }
        let mixed_width = self.heads * pages.layout.dim;
        let kind = self.output.kind(rows);
        let mixed = Rows { at: work.mixed.fit(rows * mixed_width.max(self.down_width()) * 4)?, kind };
        self.attend(ops, step, inputs, pages, mixed)?;
        self.output.run(ops, mixed, rows, out)?;
        let more = added(ops, self.attention_post_norm.as_ref(), out, rows, width, hidden)?;

        let normed = Rows { kind: self.gate_up.kind(rows), ..normed };
        ops.norm(hidden, more, self.mlp_norm.weight.at(), self.mlp_norm.eps, rows, width, normed)?;
        self.gate_up.run(ops, normed, rows, inputs)?;
        let gated = Rows { kind: self.down.kind(rows), ..mixed };
        ops.gate(inputs, rows, self.down_width(), self.gelu, gated)?;
        self.down.run(ops, gated, rows, out)?;
        added(ops, self.mlp_post_norm.as_ref(), out, rows, width, hidden)
    }

    fn down_width(&self) -> usize {
        self.gate_up.outs / 2
    }

    fn turn_and_store(
        &self,
        ops: &Ops,
        step: &Step,
        x: u64,
        (frequencies, amplitude): &(Memory, f32),
        half: usize,
        pages: Pages,
    ) -> Result<(), CardError> {
        let Layout { heads: kv_heads, dim, dtype, tokens } = pages.layout;
        let norm = |which: usize| self.head_norms.as_ref().map_or(0, |norms| norms[which].weight.at());
        let eps = self.head_norms.as_ref().map_or(0.0, |norms| norms[0].eps);
        let args = [
            x.into(),
            whole(self.inputs.outs),
            whole(self.heads),
            whole(kv_heads),
            whole(dim),
            step.positions.into(),
            step.sequences.into(),
            frequencies.into(),
            (*amplitude).into(),
            whole(half),
            Arg::Whole(u32::from(self.neighbours)),
            norm(0).into(),
            norm(1).into(),
            eps.into(),
            pages.memory.into(),
            pages.table.into(),
            whole(pages.most),
            whole(tokens),
            Arg::Whole(kv_kind(dtype) as u32),
        ];
        let grid = [step.rows as u32, (self.heads + 2 * kv_heads) as u32, 1];
        let launch = Launch { module: "rows", kernel: "rope_append", grid, threads: 32, shared: 0 };
        ops.attention(launch, &args)
    }

    fn attend(&self, ops: &mut Ops, step: &Step, q: u64, pages: Pages, out: Rows) -> Result<(), CardError> {
        if step.tiles_count > 0 {
            self.attend_chunks(ops, step, q, pages, out)?;
        }
        if step.singles_count > 0 {
            self.attend_singles(ops, step, q, pages, out)?;
        }
        Ok(())
    }

    /// What both kernels of attention are told of scores and pages.
    fn common(&self, pages: Pages) -> [Arg; 8] {
        let Layout { heads, tokens, .. } = pages.layout;
        [
            self.look.scale.into(),
            self.look.cap.unwrap_or(0.0).into(),
            whole(self.look.window.unwrap_or(0)),
            pages.memory.into(),
            pages.table.into(),
            whole(pages.most),
            whole(tokens),
            whole(heads),
        ]
    }

    fn attend_chunks(&self, ops: &Ops, step: &Step, q: u64, pages: Pages, out: Rows) -> Result<(), CardError> {
        let Layout { heads: kv_heads, dim, dtype, .. } = pages.layout;
        let (kernel, wide) = match (dtype, dim) {
            (KvDtype::Bf16, ..=64) => ("chunk_64_bf16", 64),
            (KvDtype::Bf16, ..=128) => ("chunk_128_bf16", 128),
            (KvDtype::Bf16, _) => ("chunk_256_bf16", 256),
            (_, ..=64) => ("chunk_64_f16", 64),
            (_, ..=128) => ("chunk_128_f16", 128),
            _ => ("chunk_256_f16", 256),
        };
        let group = self.heads / kv_heads;
        let args = [
            [q.into(), whole(self.inputs.outs), whole(group), step.tiles.into()].as_slice(),
            &self.common(pages),
            &[whole(dim), out.at.into(), Arg::Whole(out.kind as u32)],
        ]
        .concat();
        // Tiles of queries, keys and values, rows apart by eight numbers more than they have.
        let shared = (3 * TILE * (wide + 8) * 2) as u32;
        let grid = [step.tiles_count as u32, kv_heads as u32, 1];
        ops.attention(Launch { module: "chunk", kernel, grid, threads: 128, shared }, &args)
    }

    fn attend_singles(&self, ops: &mut Ops, step: &Step, q: u64, pages: Pages, out: Rows) -> Result<(), CardError> {
        let Layout { heads: kv_heads, dim, dtype, .. } = pages.layout;
        let (rows, group) = (step.singles_count, self.heads / kv_heads);
        let across = kv_heads * group.div_ceil(8);
        let parts = step.parts_for(self.look.window, across, ops.machine.processors());
        let (sums, tops) = ops.attention_parts(parts, rows * self.heads, dim)?;
        let args = [
            [q.into(), whole(self.inputs.outs), whole(group), step.singles.into()].as_slice(),
            &[step.positions.into(), step.sequences.into()],
            &self.common(pages),
            &[whole(dim), sums.into(), tops.into(), out.at.into(), Arg::Whole(out.kind as u32)],
        ]
        .concat();
        let grid = [parts as u32, across as u32, rows as u32];
        let kernel = attend_kernel(dtype, dim);
        ops.attention(Launch { module: "attend", kernel, grid, threads: 128, shared: 0 }, &args)?;
        if parts == 1 {
            return Ok(());
        }
        let args = [
            sums.into(),
            tops.into(),
            step.singles.into(),
            whole(parts),
            whole(dim),
            out.at.into(),
            Arg::Whole(out.kind as u32),
        ];
        let grid = [self.heads as u32, rows as u32, 1];
        ops.attention(Launch { module: "attend", kernel: "attend_merge", grid, threads: 128, shared: 0 }, &args)
    }
}

fn attend_kernel(dtype: KvDtype, dim: usize) -> &'static str {
    match (dtype, dim) {
        (KvDtype::F32, ..=64) => "attend_64_f32",
        (KvDtype::F32, ..=128) => "attend_128_f32",
        (KvDtype::F32, _) => "attend_256_f32",
        (KvDtype::F16, ..=64) => "attend_64_f16",
        (KvDtype::F16, ..=128) => "attend_128_f16",
        (KvDtype::F16, _) => "attend_256_f16",
        (KvDtype::Bf16, ..=64) => "attend_64_bf16",
        (KvDtype::Bf16, ..=128) => "attend_128_bf16",
        (KvDtype::Bf16, _) => "attend_256_bf16",
    }
}

/// What came out is added by the next norm, or here if it is normed first.
fn added(
    ops: &Ops,
    norm: Option<&Norm>,
    out: u64,
    rows: usize,
    width: usize,
    hidden: u64,
) -> Result<Option<u64>, CardError> {
    match norm {
        None => Ok(Some(out)),
        Some(norm) => ops.norm_add(out, norm.weight.at(), norm.eps, rows, width, hidden).map(|()| None),
    }
}
