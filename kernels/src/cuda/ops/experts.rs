//! Mixtures of experts as operations: which experts a row passes, and products of rows with the matrices of theirs
//! (`device/experts.cu`).

use super::{GpuRows, Kind, Ops, Out, blocks, rounded_parts, whole};
use crate::cuda::{
    machine::{Arg, GpuError, GpuMemory},
    weights::{Form, GpuExpertMatrices},
};

/// Pairs of a tile, as `device/experts.cu` has them.
const TILE: usize = 8;

/// A matrix whose outputs decide something, in single precision.
#[derive(Debug)]
pub(crate) struct GpuScores {
    pub weight: GpuMemory,
    pub outs: usize,
    pub cols: usize,
}

/// How a row's scores become experts and parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routing {
    pub experts: usize,
    pub used: usize,
    /// Added to scores; 0 where nothing is.
    pub bias: u64,
    /// Added to their sigmoids for choosing; 0 where chances are the softmax.
    pub correction: u64,
    /// Whether parts are divided by their sum.
    pub normed: bool,
    /// What they are multiplied by.
    pub scale: f32,
}

/// Rows at experts that they pass, numbered row by row, and where it is said which those are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuPairs {
    pub rows: usize,
    /// Of a row.
    pub used: usize,
    /// The expert of each, and how much of what it makes counts.
    pub chosen: u64,
    pub parts: u64,
    /// Pairs by expert; 0 where each is multiplied alone.
    pub order: u64,
    /// Pairs of one expert that are multiplied together; of the last tiles there may be none.
    pub tiles: u64,
    pub tile_count: usize,
}

impl GpuPairs {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.rows * self.used
    }

    /// Whether so many are put in the order of their experts: where each is multiplied alone, weights are read once for each.
    /// No number depends on that.
    pub fn are_ordered(rows: usize, used: usize, experts: usize) -> bool {
        rows > 1 && 4 * rows * used >= experts
    }

    /// As many tiles as there are at most, whichever experts are chosen.
    pub fn most_tiles(count: usize, ordered: bool, experts: usize) -> usize {
        if ordered { count.div_ceil(TILE) + experts.min(count) } else { count }
    }
}

/// What products with experts read, however many rows there are: so a row's sums do not depend on others.
pub(crate) fn kind_of_experts(form: Form) -> Kind {
    match (form, form.rounded()) {
        (Form::Bf16, _) => Kind::Bf16,
        (_, Some(block)) => Kind::rounded(block),
        _ => Kind::F32,
    }
}

impl Ops {
    /// What rows in single precision score, `[row][output]`.
    pub fn scores(&self, x: u64, rows: usize, w: &GpuScores, out: u64) -> Result<(), GpuError> {
        let grid = [blocks(w.outs, 8), blocks(rows, 8), 1];
        let args = [x.into(), whole(rows), (&w.weight).into(), whole(w.outs), whole(w.cols), out.into()];
        self.run("experts", "router", grid, 256, &args)
    }

    /// Writes which experts rows pass by their scores, and the tiles of that.
    pub fn route(&self, scores: u64, routing: &Routing, pairs: &GpuPairs) -> Result<(), GpuError> {
        let ordered = pairs.order != 0;
        let args = [
            scores.into(),
            routing.bias.into(),
            routing.correction.into(),
            whole(routing.experts),
            whole(routing.used),
            Arg::Whole(u32::from(routing.normed)),
            routing.scale.into(),
            pairs.chosen.into(),
            pairs.parts.into(),
            Arg::Wide(if ordered { 0 } else { pairs.tiles }),
        ];
        self.run("experts", "route", [pairs.rows as u32, 1, 1], 32, &args)?;
        if !ordered {
            return Ok(());
        }
        let places = [pairs.order.into(), pairs.tiles.into(), whole(pairs.tile_count)];
        let args = [[pairs.chosen.into(), whole(pairs.count()), whole(routing.experts)], places].concat();
        self.run("experts", "by_expert", [routing.experts as u32, 1, 1], 256, &args)
    }

    /// Products of each pair with its expert's matrices. `input` has a row for `of_row` pairs that follow each other, of the kind
    /// that experts read ([`kind_of_experts`]) or in single precision.
    pub fn expert_products(
        &mut self,
        input: GpuRows,
        of_row: usize,
        pairs: &GpuPairs,
        list: &[(&GpuExpertMatrices, Out)],
    ) -> Result<(), GpuError> {
        // What was rounded or narrowed for one serves the next.
        let (mut rounded, mut narrowed) = (None, false);
        for (w, out) in list {
            let (mut at, numbers) = (input.at, pairs.count() / of_row * w.cols);
            let differs = input.kind != kind_of_experts(w.form);
            if let Some(block) = w.form.rounded().filter(|_| differs) {
                if rounded != Some(block) {
                    self.round(input.at, numbers, block)?;
                    rounded = Some(block);
                }
                at = self.rounded.at();
            } else if differs {
                if !narrowed {
                    self.narrow(input.at, numbers, Kind::Bf16)?;
                    narrowed = true;
                }
                at = self.narrowed.at();
            }
            self.expert_product((at, numbers), of_row, pairs, w, *out)?;
        }
        Ok(())
    }

    fn expert_product(
        &self,
        (x, numbers): (u64, usize),
        of_row: usize,
        pairs: &GpuPairs,
        w: &GpuExpertMatrices,
        out: Out,
    ) -> Result<(), GpuError> {
        let steps = match w.form {
            Form::F32 | Form::F16 | Form::Bf16 => w.cols.div_ceil(512),
            Form::Q8_0 => (w.cols / 16).div_ceil(32),
            Form::Q4_0 | Form::Q4K | Form::Q6K => (w.cols / 32).div_ceil(32),
        };
        // As for one row, however many there are.
        let split = self.split(w.rows.div_ceil(2) * pairs.used, steps);
        let parts = rounded_parts(x, numbers);
        let rows = if w.form.rounded().is_some() { parts.as_slice() } else { &parts[..1] };
        let rest = [
            whole(of_row),
            pairs.order.into(),
            pairs.tiles.into(),
            (&w.memory).into(),
            Arg::Wide(w.every as u64),
            whole(w.rows),
            whole(w.cols),
            whole(split),
            out.at.into(),
            whole(out.stride),
        ];
        let grid = [blocks(w.rows.div_ceil(2), 8 / split), pairs.tile_count as u32, 1];
        self.run("experts", product_kernel(w.form, pairs.order != 0), grid, 256, &[rows, &rest].concat())
    }

    /// Adds up what the experts of each row made, `[pair][width]`. With `shared` it is added to what `out` has, of which as much
    /// counts as the sigmoid of the row's number at `gates` says, or all where that is 0.
    pub fn mix_experts(
        &self,
        made: u64,
        pairs: &GpuPairs,
        width: usize,
        (shared, gates): (bool, u64),
        out: u64,
    ) -> Result<(), GpuError> {
        let args = [
            made.into(),
            pairs.parts.into(),
            whole(pairs.used),
            whole(width),
            Arg::Whole(u32::from(shared)),
            gates.into(),
            out.into(),
        ];
        self.run("experts", "mix_experts", [pairs.rows as u32, blocks(width, 4 * 256), 1], 256, &args)
    }
}

fn product_kernel(form: Form, ordered: bool) -> &'static str {
    match (form, ordered) {
        (Form::F32, false) => "one_f32",
        (Form::F16, false) => "one_f16",
        (Form::Bf16, false) => "one_bf16",
        (Form::Q4_0, false) => "one_q4_0",
        (Form::Q8_0, false) => "one_q8_0",
        (Form::Q4K, false) => "one_q4_k",
        (Form::Q6K, false) => "one_q6_k",
        (Form::F32, true) => "tile_f32",
        (Form::F16, true) => "tile_f16",
        (Form::Bf16, true) => "tile_bf16",
        (Form::Q4_0, true) => "tile_q4_0",
        (Form::Q8_0, true) => "tile_q8_0",
        (Form::Q4K, true) => "tile_q4_k",
        (Form::Q6K, true) => "tile_q6_k",
    }
}
