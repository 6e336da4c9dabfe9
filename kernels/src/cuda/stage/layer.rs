//! A layer on a GPU: its weights there, and its parts as launches.

mod wide;

use super::{
    GpuLinear, GpuNorm, GpuRope, GpuScratch,
    experts::{ExpertRows, GpuExperts},
    floats,
};
use crate::{
    config::{Activation, Growth},
    cuda::{
        columns::Columns,
        machine::{Arg, GpuError, GpuMemory, Launch, Machine},
        ops::{GpuRows, Kind, NOT_TURNED, Ops},
        step::Step,
        weights::size,
    },
    engine::AttentionParams,
    models::{LayerOutline, MlpOutline, NormOutline},
    pages::PageLayout,
    rope::RopePairs,
};
use std::sync::Arc;
use tsnode_protocol::KvDtype;
use wide::StoredHeads;

/// Tokens of a tile of keys; rows and heads of a tile of queries.
const TILE: usize = 64;

#[derive(Debug)]
pub(super) struct GpuLayer {
    /// None in families that norm only what comes out.
    attention_norm: Option<GpuNorm>,
    inputs: GpuLinear,
    head_norms: Option<[GpuNorm; 2]>,
    /// Of all heads together.
    row_norms: Option<[GpuNorm; 2]>,
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
    look: AttentionParams,
    /// Of each query head.
    sinks: Option<GpuMemory>,
    growth: Option<Growth>,
    pub rope: usize,
    pub neighbours: bool,
    heads: usize,
    stored: StoredHeads,
    /// What comes out is multiplied by.
    factor: f32,
    /// Heads of keys and values of all GPUs.
    all_kv_heads: usize,
}

/// A layer's pages.
#[derive(Clone, Copy)]
pub(super) struct GpuLayerPages {
    pub memory: u64,
    pub table: u64,
    pub most: usize,
    pub layout: PageLayout,
}

fn whole(x: usize) -> Arg {
    Arg::Whole(x as u32)
}

impl GpuLayer {
    pub fn load(machine: &Arc<dyn Machine>, layer: &LayerOutline<'_>, layout: &PageLayout) -> Result<Self, GpuError> {
        let norm = |norm: NormOutline<'_>| GpuNorm::load(machine, norm);
        let LayerOutline { attention, mlp, .. } = layer;
        let (mlp, experts) = match mlp {
            MlpOutline::Gated(mlp) => (Some(mlp), None),
            MlpOutline::Experts(experts) => {
                let beside = experts.beside.as_ref().map(|beside| &beside.mlp);
                (beside.or(experts.shared.as_ref().map(|shared| &shared.mlp)), Some(experts))
            }
        };
        if mlp.is_some_and(|mlp| !matches!(mlp.activation, Activation::Silu | Activation::GeluTanh)) {
            return Err(GpuError::Unsupported("an MLP without a gate".into()));
        }
        let [queries, keys] = [0, 1].map(|which: usize| size(&attention.inputs[which].weight.tensor().view()).0);
        let inputs = &attention.inputs[..if attention.has_values { 3 } else { 2 }];
        Ok(Self {
            attention_norm: layer.attention_norm.map(norm).transpose()?,
            inputs: GpuLinear::load(machine, inputs)?,
            head_norms: match attention.head_norms {
                Some([query, key]) => Some([norm(query)?, norm(key)?]),
                None => None,
            },
            row_norms: match attention.row_norms {
                Some([query, key]) => Some([norm(query)?, norm(key)?]),
                None => None,
            },
            output: GpuLinear::load(machine, &[attention.output])?,
            attention_post_norm: layer.attention_post_norm.map(norm).transpose()?,
            mlp_norm: layer.mlp_norm.map(norm).transpose()?,
            gate_up: mlp.map_or_else(|| Ok(GpuLinear::nothing()), |mlp| GpuLinear::load(machine, &mlp.inputs))?,
            down: mlp.map_or_else(|| Ok(GpuLinear::nothing()), |mlp| GpuLinear::load(machine, &[mlp.down]))?,
            experts: experts.map(|experts| GpuExperts::load(machine, experts).map(Box::new)).transpose()?,
            mlp_post_norm: layer.mlp_post_norm.map(norm).transpose()?,
            gelu: mlp.is_some_and(|mlp| mlp.activation == Activation::GeluTanh),
            look: attention.look,
            sinks: attention.sinks.map(|sinks| floats(machine, sinks)).transpose()?,
            growth: attention.growth,
            rope: attention.rope,
            neighbours: attention.pairs == RopePairs::Neighbours,
            heads: queries / attention.head_dim.max(1),
            stored: StoredHeads::of(attention, keys, layout),
            factor: layer.factor,
            all_kv_heads: attention.inputs[1].outputs.all / attention.head_dim.max(1),
        })
    }
}

/// What a layer computes with.
pub(super) struct GpuLayerContext<'a> {
    pub ops: &'a mut Ops,
    pub work: &'a mut GpuScratch,
    pub step: &'a Step,
    pub width: usize,
    pub hidden: u64,
}

/// What is computed of a layer between two times that GPUs put their columns side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GpuLayerPiece {
    /// What attention mixes for each head, from rows normed and turned.
    Attend,
    /// What attention adds to the rows.
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
    /// Whether its keys are turned back where they are packed.
    pub fn turns_back(&self) -> bool {
        self.look.parts == 1
    }

    /// Columns of what attention mixes, by the rows with what is still to be added to them; with a mark once keys and values
    /// are stored.
    pub fn mix(
        &self,
        place: GpuLayerContext<'_>,
        more: Option<u64>,
        rope: &GpuRope,
        pages: GpuLayerPages,
        mark: Option<usize>,
    ) -> Result<Columns, GpuError> {
        let GpuLayerContext { ops, work, step, width, hidden } = place;
        let rows = step.rows;
        let inputs = work.inputs.fit(rows * self.inputs.outs.max(self.gate_up.outs) * 4)?;

        let normed = GpuRows { at: work.normed.fit(rows * width * 4)?, kind: self.inputs.kind(rows) };
        let (weight, eps) = before(self.attention_norm.as_ref());
        ops.norm(hidden, more, weight, eps, rows, width, normed)?;
        self.inputs.run(ops, normed, rows, inputs)?;
        self.norm_rows(ops, rows, inputs, pages.layout)?;
        let turning = self.turning(rope);
        let turns = self.attention_turns(step, pages) && mark.is_none();
        if !turns {
            self.turn_and_store(ops, step, inputs, turning, pages)?;
        }
        if let Some(number) = mark {
            ops.machine.mark(number)?;
        }
        let (kind, heads) = (self.mixed_kind(step), &self.inputs.outputs);
        let whole = work.mixed.fit(rows * heads.all.max(self.gate_up.outputs.all) * 4)?;
        let mixed = Columns::place(heads, rows, kind.bytes(), whole, &mut work.mixed_apart)?;
        let turning = if turns { turning } else { NOT_TURNED };
        self.attend(ops, step, inputs, turning, pages, GpuRows { at: mixed.own, kind })?;
        Ok(mixed)
    }

    /// Columns of what attention adds.
    pub fn output(&self, place: GpuLayerContext<'_>) -> Result<Columns, GpuError> {
        let GpuLayerContext { ops, work, step, width, .. } = place;
        let mixed = GpuRows { at: work.mixed.at(), kind: self.mixed_kind(step) };
        product(&self.output, ops, mixed, step.rows, width, work)
    }

    /// How what attention mixes is written: rounded already where all rows are attended one by one (`device/chunk.cu` rounds
    /// nothing), and blocks of that are cut neither by GPUs nor by the heads that a block of attention has, eight that share keys
    /// or what is left of them.
    fn mixed_kind(&self, step: &Step) -> Kind {
        let (kind, heads) = (self.output.kind(step.rows), &self.inputs.outputs);
        let (group, dim) = (self.heads / self.all_kv_heads.max(1), heads.all / self.heads.max(1));
        let fits = |block: usize| [group.min(8), group % 8].iter().all(|many| (many * dim).is_multiple_of(block));
        let whole = step.tiles_count == 0 && heads.mine.len() == heads.all && !self.stored.are_wide;
        if whole && kind.block().is_none_or(fits) { kind } else { kind.unrounded() }
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

    /// Norms queries, and keys, of all heads together, where a layer has such norms.
    fn norm_rows(&self, ops: &Ops, rows: usize, x: u64, layout: PageLayout) -> Result<(), GpuError> {
        let Some([query, key]) = &self.row_norms else { return Ok(()) };
        let (stride, queries, keys) = (self.inputs.outs, self.heads * layout.dim, layout.heads * layout.dim);
        ops.norm_columns(x, stride, (query.weight.at(), query.eps), queries, rows)?;
        ops.norm_columns(x + queries as u64 * 4, stride, (key.weight.at(), key.eps), keys, rows)
    }

    /// How queries and keys turn, as kernels are told: `device/rope.cuh`.
    fn turning(&self, rope: &GpuRope) -> [Arg; 9] {
        let norm = |which: usize| self.head_norms.as_ref().map_or(0, |norms| norms[which].weight.at());
        let eps = self.head_norms.as_ref().map_or(0.0, |norms| norms[0].eps);
        let GpuRope { frequencies, half, amplitude } = rope;
        let pairs = [(*amplitude).into(), whole(*half), Arg::Whole(u32::from(self.neighbours))];
        let (beta, every) = self.growth.map_or((0.0, 0), |growth| (growth.beta, growth.every));
        let growth = [Arg::Number(beta), whole(every)];
        [
            frequencies.into(),
            pairs[0],
            pairs[1],
            pairs[2],
            norm(0).into(),
            norm(1).into(),
            eps.into(),
            growth[0],
            growth[1],
        ]
    }

    /// Whether attention turns queries and keys itself, and stores what a row's token has: where no row sees what another one
    /// stores, and one block has all heads that share keys.
    fn attention_turns(&self, step: &Step, pages: GpuLayerPages) -> bool {
        step.alone
            && step.tiles_count == 0
            && !self.stored.are_stored_apart()
            && self.heads / pages.layout.heads.max(1) <= 8
    }

    fn turn_and_store(
        &self,
        ops: &Ops,
        step: &Step,
        x: u64,
        turning: [Arg; 9],
        pages: GpuLayerPages,
    ) -> Result<(), GpuError> {
        if self.stored.are_stored_apart() {
            return self.append_wide(ops, step, x, turning, pages);
        }
        let PageLayout { heads: kv_heads, dim, dtype, tokens } = pages.layout;
        let args = [
            [x.into(), whole(self.inputs.outs), whole(self.heads), whole(kv_heads), whole(dim)].as_slice(),
            &[step.positions.into(), step.sequences.into()],
            &turning,
            &[pages.memory.into(), pages.table.into(), whole(pages.most), whole(tokens)],
            &[Arg::Whole(Kind::from(dtype) as u32)],
        ]
        .concat();
        let grid = [step.rows as u32, (self.heads + 2 * kv_heads) as u32, 1];
        let launch = Launch { module: "rows", kernel: "rope_append", grid, threads: 32, shared: 0 };
        ops.attention(launch, &args)
    }

    fn attend(
        &self,
        ops: &mut Ops,
        step: &Step,
        q: u64,
        turning: [Arg; 9],
        pages: GpuLayerPages,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        if self.stored.are_wide {
            return self.attend_wide(ops, step, q, pages, out);
        }
        if step.tiles_count > 0 {
            self.attend_chunks(ops, step, q, pages, out)?;
        }
        if step.singles_count > 0 {
            self.attend_singles(ops, step, q, turning, pages, out)?;
        }
        Ok(())
    }

    /// What both kernels of attention are told of scores and pages.
    fn common(&self, pages: GpuLayerPages) -> [Arg; 9] {
        let PageLayout { heads, tokens, .. } = pages.layout;
        [
            self.look.scale.into(),
            self.look.cap.unwrap_or(0.0).into(),
            whole(self.look.window.unwrap_or(0)),
            self.sinks.as_ref().map_or(0, GpuMemory::at).into(),
            pages.memory.into(),
            pages.table.into(),
            whole(pages.most),
            whole(tokens),
            whole(heads),
        ]
    }

    fn attend_chunks(
        &self,
        ops: &Ops,
        step: &Step,
        q: u64,
        pages: GpuLayerPages,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let PageLayout { heads: kv_heads, dim, dtype, .. } = pages.layout;
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

    fn attend_singles(
        &self,
        ops: &mut Ops,
        step: &Step,
        q: u64,
        turning: [Arg; 9],
        pages: GpuLayerPages,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let PageLayout { heads: kv_heads, dim, dtype, .. } = pages.layout;
        let (rows, group) = (step.singles_count, self.heads / kv_heads);
        let across = kv_heads * group.div_ceil(8);
        // As on one GPU that had all heads, so that sums are the same.
        let of_all = self.all_kv_heads * group.div_ceil(8);
        let parts = step.parts_for(self.look.window, of_all, ops.machine.processors());
        let of_parts = ops.attention_parts(parts, rows * self.heads, dim, rows * across)?;
        let numbers = Arg::Wide((step.rows * self.heads * dim) as u64);
        let args = [
            [q.into(), whole(self.inputs.outs), whole(group), step.singles.into()].as_slice(),
            &[step.positions.into(), step.sequences.into()],
            &self.common(pages),
            &[whole(dim), of_parts.sums.into(), of_parts.tops.into(), of_parts.done.into()],
            &[out.at.into(), numbers, Arg::Whole(out.kind as u32)],
            &turning,
        ]
        .concat();
        let grid = [parts as u32, across as u32, rows as u32];
        let kernel = attend_kernel(dtype, dim);
        ops.attention(Launch { module: "attend", kernel, grid, threads: 128, shared: 0 }, &args)
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
