//! A mixture of experts on a GPU: the matrices of all of a layer's experts there, and what they make of rows as launches.

use super::{GpuNorm, GpuRows, Kind, Ops, Out, floats};
use crate::{
    config::Clamped,
    cpu::Gate,
    cuda::{
        buffers::Buffer,
        machine::{GpuError, GpuMemory, Machine},
        ops::{ExpertRouting, GpuPairs, GpuScores, Tiling},
        weights::{Form, GpuExpertMatrices, size},
    },
    linear::Weight,
    models::{BesideOutline, ExpertsOutline, MlpOutline},
    weights::Tensor,
};
use std::sync::Arc;

/// Experts of a layer, and of a row, that kernels have room for.
const MOST_EXPERTS: usize = 512;
const MOST_USED: usize = 32;
/// Numbers between matrices that there is memory for at a time, and pairs, by which kernels are launched: rows beyond that come
/// behind. In tests a few rows are many.
const NUMBERS: usize = if cfg!(test) { 4 << 10 } else { 64 << 20 };
const PAIRS: usize = 1 << 18;

/// What no kernels are written for.
pub(crate) const EXPERTS_TOGETHER: &str = "a mixture of experts that several GPUs hold together";

/// Says what of a mixture is not written, before anything is copied.
pub(super) fn refuse_unwritten(mlp: &MlpOutline<'_>) -> Result<(), GpuError> {
    let MlpOutline::Experts(experts) = mlp else { return Ok(()) };
    let refused = |what: &str| Err(GpuError::Unsupported(what.into()));
    if let Some(lacks) = experts.lacks {
        return refused(lacks);
    }
    if experts.outputs.iter().any(|outputs| outputs.mine.len() != outputs.all) {
        return refused(EXPERTS_TOGETHER);
    }
    if experts.experts.len() > MOST_EXPERTS || experts.used > MOST_USED {
        return Err(GpuError::Unsupported(format!("a row at {} of {} experts", experts.used, experts.experts.len())));
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct GpuExperts {
    router: GpuScores,
    bias: Option<GpuMemory>,
    correction: Option<GpuMemory>,
    used: usize,
    normed: bool,
    scale: f32,
    /// Gates and ups, one below the other where they could be put so.
    inputs: Vec<GpuExpertMatrices>,
    down: GpuExpertMatrices,
    gelu: bool,
    /// Of gates that end somewhere.
    clamped: Option<Clamped>,
    /// Of gates with ups, and of downs, expert by expert.
    biases: Option<[GpuMemory; 2]>,
    /// Of a gate.
    width: usize,
    hidden: usize,
    /// Whether there is one that all rows pass, and what a row scores there.
    shared: bool,
    shared_gate: Option<GpuScores>,
    factors: Option<GpuMemory>,
    beside: Option<GpuBeside>,
}

/// Norms of a mixture that stands beside an MLP: before the router, before the experts, behind them, behind the MLP.
#[derive(Debug)]
struct GpuBeside {
    router_norm: GpuNorm,
    norm: GpuNorm,
    post_norm: GpuNorm,
    mlp_post_norm: GpuNorm,
}

/// Rows at a mixture.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertRows {
    /// As they are.
    pub hidden: u64,
    /// As the norm before the MLP leaves them.
    pub normed: u64,
    /// What the MLP made of them, if there is one; what experts make is added.
    pub out: u64,
    pub rows: usize,
}

/// Memory that rows are in on their way through experts; one for all layers.
#[derive(Debug)]
pub(super) struct ExpertScratch {
    scores: Buffer,
    chosen: Buffer,
    parts: Buffer,
    order: Buffer,
    tiles: Buffer,
    inputs: Buffer,
    gated: Buffer,
    made: Buffer,
    gates: Buffer,
    /// Where a mixture stands beside an MLP: what the router gets, what the experts get, and what they make.
    routed: Buffer,
    beside: Buffer,
    apart: Buffer,
}

impl ExpertScratch {
    pub fn new(machine: &Arc<dyn Machine>) -> Self {
        let buffer = || Buffer::new(machine.clone());
        let (scores, chosen, parts, order, tiles) = (buffer(), buffer(), buffer(), buffer(), buffer());
        let (inputs, gated, made, gates) = (buffer(), buffer(), buffer(), buffer());
        let (routed, beside, apart) = (buffer(), buffer(), buffer());
        Self { scores, chosen, parts, order, tiles, inputs, gated, made, gates, routed, beside, apart }
    }

    /// See [`Ops::renewals`].
    pub fn renewals(&self) -> usize {
        let routing = [&self.scores, &self.chosen, &self.parts, &self.order, &self.tiles];
        let rows = [&self.inputs, &self.gated, &self.made, &self.gates, &self.routed, &self.beside, &self.apart];
        routing.iter().chain(&rows).map(|buffer| buffer.renewals()).sum()
    }
}

/// In single precision, however it is stored.
fn scores(machine: &Arc<dyn Machine>, weight: &Weight) -> Result<GpuScores, GpuError> {
    let tensor = weight.tensor();
    let (outs, cols) = size(&tensor.view());
    let mut numbers = vec![0.0; outs * cols];
    for (index, row) in numbers.chunks_exact_mut(cols.max(1)).enumerate() {
        tensor.widen_row(index, row);
    }
    Ok(GpuScores { weight: floats(machine, &numbers)?, outs, cols })
}

impl GpuBeside {
    fn load(machine: &Arc<dyn Machine>, outline: &BesideOutline<'_>) -> Result<Self, GpuError> {
        Ok(Self {
            router_norm: GpuNorm::load(machine, outline.router_norm)?,
            norm: GpuNorm::load(machine, outline.norm)?,
            post_norm: GpuNorm::load(machine, outline.post_norm)?,
            mlp_post_norm: GpuNorm::load(machine, outline.mlp_post_norm)?,
        })
    }
}

/// What is added to what experts' matrices make.
fn load_biases(machine: &Arc<dyn Machine>, biases: &[[&[f32]; 3]]) -> Result<[GpuMemory; 2], GpuError> {
    let inputs: Vec<f32> = biases.iter().flat_map(|[gate, up, _]| [*gate, *up].concat()).collect();
    let downs: Vec<f32> = biases.iter().flat_map(|[.., down]| down.iter().copied()).collect();
    Ok([floats(machine, &inputs)?, floats(machine, &downs)?])
}

impl GpuExperts {
    pub fn load(machine: &Arc<dyn Machine>, outline: &ExpertsOutline<'_>) -> Result<Self, GpuError> {
        let all: Vec<[&Tensor; 3]> = outline.experts.iter().map(|expert| expert.map(Weight::tensor)).collect();
        let matrices = |which: usize| all.iter().map(|expert| vec![expert[which]]).collect::<Vec<_>>();
        let load = |matrices: Vec<Vec<&Tensor>>| GpuExpertMatrices::load(machine, &matrices);
        let alike = |[gate, up, _]: &[&Tensor; 3]| Form::of_expert(&gate.view()) == Form::of_expert(&up.view());
        let inputs = if all.iter().all(alike) {
            vec![load(all.iter().map(|[gate, up, _]| vec![*gate, *up]).collect())?]
        } else {
            vec![load(matrices(0))?, load(matrices(1))?]
        };
        let [width, hidden] = outline.outputs.map(|outputs| outputs.all);
        let shared_gate = outline.shared.as_ref().and_then(|shared| shared.gate);
        Ok(Self {
            router: scores(machine, outline.router)?,
            bias: outline.router_bias.map(|bias| floats(machine, bias)).transpose()?,
            correction: outline.sigmoid.map(|(correction, _)| floats(machine, correction)).transpose()?,
            used: outline.used,
            normed: outline.normed,
            scale: outline.sigmoid.map_or(1.0, |(_, scale)| scale),
            inputs,
            down: load(matrices(2))?,
            gelu: outline.act == Gate::Gelu,
            clamped: outline.clamped,
            biases: outline.biases.as_ref().map(|biases| load_biases(machine, biases)).transpose()?,
            width,
            hidden,
            shared: outline.shared.is_some(),
            shared_gate: shared_gate.map(|gate| scores(machine, gate)).transpose()?,
            factors: outline.factors.map(|factors| floats(machine, factors)).transpose()?,
            beside: outline.beside.as_ref().map(|beside| GpuBeside::load(machine, beside)).transpose()?,
        })
    }

    /// Adds what experts make of rows in single precision to what is there, as it is or normed.
    pub fn add(&self, ops: &mut Ops, work: &mut ExpertScratch, place: ExpertRows) -> Result<(), GpuError> {
        let ExpertRows { hidden, normed, out, rows } = place;
        let Some(beside) = &self.beside else { return self.run(ops, work, (normed, normed), rows, out) };
        let (width, bytes) = (self.hidden, rows * self.hidden * 4);
        let [by, x] = [(&mut work.routed, &beside.router_norm), (&mut work.beside, &beside.norm)].map(|(to, norm)| {
            let (at, (weight, eps)) = (to.fit(bytes)?, norm.place());
            ops.norm(hidden, None, weight, eps, rows, width, GpuRows { at, kind: Kind::F32 }).map(|()| at)
        });
        let made = work.apart.fit(bytes)?;
        self.run(ops, work, (x?, by?), rows, made)?;
        ops.norm_columns(out, width, beside.mlp_post_norm.place(), width, rows)?;
        ops.norm_add(made, beside.post_norm.place(), rows, width, out, 1.0)
    }

    /// What experts make of rows in single precision at `x`, chosen by those at `by`, added to what is at `out` if there is one that
    /// all rows pass.
    fn run(
        &self,
        ops: &mut Ops,
        work: &mut ExpertScratch,
        (x, by): (u64, u64),
        rows: usize,
        out: u64,
    ) -> Result<(), GpuError> {
        let pairs = (NUMBERS / (2 * self.width + self.hidden).max(1)).min(PAIRS);
        let most = (pairs / self.used.max(1)).max(1);
        // As many each time, so that the last have no other kernels.
        let together = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        for first in (0..rows).step_by(together) {
            let from = (first * self.hidden * 4) as u64;
            self.run_some(ops, work, (x + from, by + from), together.min(rows - first), out + from)?;
        }
        Ok(())
    }

    fn run_some(
        &self,
        ops: &mut Ops,
        work: &mut ExpertScratch,
        (x, by): (u64, u64),
        rows: usize,
        out: u64,
    ) -> Result<(), GpuError> {
        let pairs = self.route(ops, work, by, rows)?;
        let (count, stride) = (pairs.count(), 2 * self.width);

        let inputs = work.inputs.fit(count * stride * 4)?;
        let mut list = Vec::with_capacity(self.inputs.len());
        let mut from = inputs;
        for matrices in &self.inputs {
            list.push((matrices, Out { at: from, stride }));
            from += matrices.rows as u64 * 4;
        }
        let x_rows = GpuRows { at: x, kind: Kind::F32 };
        ops.expert_products(x_rows, self.used, &pairs, &list)?;
        // Rounded rows take less than those in single precision.
        let gated = GpuRows { at: work.gated.fit(count * self.width * 4)?, kind: pairs.tiling.reads(self.down.form) };
        let [of_inputs, of_down] = self.biases.as_ref().map_or([0; 2], |biases| biases.each_ref().map(GpuMemory::at));
        match self.clamped {
            None => ops.gate(inputs, count, self.width, self.gelu, gated)?,
            Some(clamped) => ops.gate_clamped(inputs, &pairs, self.width, of_inputs, clamped, gated)?,
        }

        let made = work.made.fit(count * self.hidden * 4)?;
        ops.expert_products(gated, 1, &pairs, &[(&self.down, Out { at: made, stride: self.hidden })])?;
        let gates = match &self.shared_gate {
            Some(gate) => {
                let gates = work.gates.fit(rows * 4)?;
                ops.scores(x, rows, gate, gates)?;
                gates
            }
            None => 0,
        };
        ops.mix_experts(made, &pairs, self.hidden, (self.shared, gates), of_down, out)
    }

    /// Whether some matrices are in single precision.
    fn are_exact(&self) -> bool {
        self.inputs.iter().chain([&self.down]).any(|matrices| matrices.form == Form::F32)
    }

    /// The experts that rows pass.
    fn route(&self, ops: &Ops, work: &mut ExpertScratch, x: u64, rows: usize) -> Result<GpuPairs, GpuError> {
        let (experts, used) = (self.router.outs, self.used);
        let scores = work.scores.fit(rows * experts * 4)?;
        ops.scores(x, rows, &self.router, scores)?;
        let count = rows * used;
        let mut pairs = GpuPairs {
            rows,
            used,
            chosen: work.chosen.fit(count * 4)?,
            parts: work.parts.fit(count * 4)?,
            order: work.order.fit(count * 4)?,
            tiles: 0,
            tiling: Tiling::of(rows, used, experts, self.are_exact()),
            experts,
        };
        pairs.tiles = work.tiles.fit(pairs.tile_count() * 16)?;
        let at = |numbers: Option<&GpuMemory>| numbers.map_or(0, GpuMemory::at);
        let routing = ExpertRouting {
            bias: at(self.bias.as_ref()),
            correction: at(self.correction.as_ref()),
            normed: self.normed,
            scale: self.scale,
            factors: at(self.factors.as_ref()),
        };
        ops.route(scores, &routing, &pairs)?;
        Ok(pairs)
    }
}
