//! Attention on a GPU: its weights there, and what it mixes as launches.

mod wide;

use super::{GpuLinear, GpuNorm, GpuRope, GpuScratch, Mixing, floats, whole};
use crate::{
    config::Growth,
    cuda::{
        machine::{Arg, GpuError, GpuMemory, Launch, Machine},
        ops::{GpuRows, Kind, NOT_TURNED, Ops},
        step::GpuStep,
        weights::size,
    },
    engine::AttentionParams,
    models::{AttentionOutline, NormOutline},
    pages::PageLayout,
    ranks::RankOutputs,
    rope::RopePairs,
};
use std::sync::Arc;
use tsnode_protocol::KvDtype;
use wide::StoredHeads;

/// Tokens of a tile of keys; rows and heads of a tile of queries.
const TILE: usize = 64;

/// Attention of a layer.
#[derive(Debug)]
pub(super) struct GpuAttention {
    /// Queries, keys, values, and gates if there are some.
    pub inputs: GpuLinear,
    /// Of what it mixes.
    pub outputs: RankOutputs,
    head_norms: Option<[GpuNorm; 2]>,
    /// Of all heads together.
    row_norms: Option<[GpuNorm; 2]>,
    look: AttentionParams,
    /// Of each query head.
    sinks: Option<GpuMemory>,
    growth: Option<Growth>,
    pub rope: usize,
    pub neighbours: bool,
    heads: usize,
    stored: StoredHeads,
    /// Heads of keys and values of all GPUs.
    all_kv_heads: usize,
    /// The column of the first gate.
    gates: Option<usize>,
    /// The layer's place among those with keys and values.
    place: usize,
}

/// A layer's pages.
#[derive(Clone, Copy)]
pub(super) struct GpuLayerPages {
    pub memory: u64,
    pub table: u64,
    pub most: usize,
    pub layout: PageLayout,
}

impl GpuAttention {
    /// That of the layer at `place` among those with keys and values.
    pub fn load(
        machine: &Arc<dyn Machine>,
        attention: &AttentionOutline<'_>,
        layout: &PageLayout,
        place: usize,
    ) -> Result<Self, GpuError> {
        let norm = |norm: NormOutline<'_>| GpuNorm::load(machine, norm);
        let [queries, keys] = [0, 1].map(|which: usize| size(&attention.inputs[which].weight.tensor().view()).0);
        let dim = attention.head_dim.max(1);
        let (heads, inputs, outputs) = if attention.is_gated {
            let mixed = queries / 2;
            let outputs = RankOutputs { all: mixed, mine: 0..mixed };
            (mixed / dim, GpuLinear::load_gated(machine, attention)?, outputs)
        } else {
            let inputs = &attention.inputs[..if attention.has_values { 3 } else { 2 }];
            (queries / dim, GpuLinear::load(machine, inputs)?, attention.inputs[0].outputs.clone())
        };
        Ok(Self {
            gates: attention.is_gated.then(|| inputs.outs - outputs.all),
            inputs,
            outputs,
            head_norms: match attention.head_norms {
                Some([query, key]) => Some([norm(query)?, norm(key)?]),
                None => None,
            },
            row_norms: match attention.row_norms {
                Some([query, key]) => Some([norm(query)?, norm(key)?]),
                None => None,
            },
            look: attention.look,
            sinks: attention.sinks.map(|sinks| floats(machine, sinks)).transpose()?,
            growth: attention.growth,
            rope: attention.rope,
            neighbours: attention.pairs == RopePairs::Neighbours,
            heads,
            stored: StoredHeads::of(attention, keys, layout),
            all_kv_heads: attention.inputs[1].outputs.all / dim,
            place,
        })
    }

    /// Whether its keys are turned back where they are packed.
    pub fn turns_back(&self) -> bool {
        self.look.parts == 1
    }

    /// What it mixes for rows of which matrices made what is at `inputs`; with a mark once keys and values are stored.
    pub fn mix(
        &self,
        (ops, work): (&mut Ops, &mut GpuScratch),
        step: &GpuStep,
        Mixing { layout, ropes, marks }: Mixing<'_>,
        inputs: u64,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let rows = step.rows;
        let pages = GpuLayerPages { memory: step.memory, table: step.table(self.place), most: step.most, layout };
        self.norm_rows(ops, rows, inputs, layout)?;
        let turning = self.turning(&ropes[self.rope]);
        let turns = self.attention_turns(step, pages) && !marks;
        if !turns {
            self.turn_and_store(ops, step, inputs, turning, pages)?;
        }
        if marks {
            ops.machine.mark(self.place)?;
        }
        let turning = if turns { turning } else { NOT_TURNED };
        let Some(gates) = self.gates else { return self.attend(ops, step, inputs, turning, pages, out) };
        let mixed = GpuRows { at: work.said.fit(rows * self.outputs.all * 4)?, kind: Kind::F32 };
        self.attend(ops, step, inputs, turning, pages, mixed)?;
        let gates = (inputs + gates as u64 * 4, self.inputs.outs);
        ops.open_gates(mixed.at, (rows, self.outputs.all), gates, out)
    }

    /// How what it mixes is written for a product that reads rows of a kind: rounded already where all rows are attended one by one
    /// (`device/chunk.cu` rounds nothing), and blocks of that are cut neither by GPUs nor by the heads that a block of attention has,
    /// eight that share keys or what is left of them; and where gates are opened behind it.
    pub fn mixed_kind(&self, step: &GpuStep, kind: Kind) -> Kind {
        if self.gates.is_some() {
            return kind;
        }
        let heads = &self.outputs;
        let (group, dim) = (self.heads / self.all_kv_heads.max(1), heads.all / self.heads.max(1));
        let fits = |block: usize| [group.min(8), group % 8].iter().all(|many| (many * dim).is_multiple_of(block));
        let whole = step.tiles_count == 0 && heads.mine.len() == heads.all && !self.stored.are_wide;
        if whole && kind.block().is_none_or(fits) { kind } else { kind.unrounded() }
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
    fn attention_turns(&self, step: &GpuStep, pages: GpuLayerPages) -> bool {
        step.alone
            && step.tiles_count == 0
            && !self.stored.are_stored_apart()
            && self.heads / pages.layout.heads.max(1) <= 8
    }

    fn turn_and_store(
        &self,
        ops: &Ops,
        step: &GpuStep,
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
        step: &GpuStep,
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
        step: &GpuStep,
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
        step: &GpuStep,
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
