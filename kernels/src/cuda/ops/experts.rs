//! Mixtures of experts as operations: which experts a row passes, and products of rows with the matrices of theirs
//! (`device/experts.cu`).

use super::{GpuRows, Kind, Ops, Out, blocks, whole};
use crate::cuda::{
    machine::{Arg, GpuError, GpuMemory},
    weights::{Form, GpuExpertMatrices},
};

/// Pairs that each expert has on average, from which they are multiplied on tensor cores. In tests few are many.
const MANY: usize = if cfg!(test) { 2 } else { 16 };

/// A matrix whose outputs decide something, in single precision.
#[derive(Debug)]
pub(crate) struct GpuScores {
    pub weight: GpuMemory,
    pub outs: usize,
    pub cols: usize,
}

/// How a row's scores become experts and parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertRouting {
    /// Added to scores; 0 where nothing is.
    pub bias: u64,
    /// Added to their sigmoids for choosing; 0 where chances are the softmax.
    pub correction: u64,
    /// Whether parts are divided by their sum.
    pub normed: bool,
    /// What they are multiplied by.
    pub scale: f32,
    /// The same expert by expert; 0 where all are alike.
    pub factors: u64,
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
    /// Pairs by expert, where each is not multiplied alone.
    pub order: u64,
    /// Pairs of one expert that are multiplied together; of the last tiles there may be none.
    pub tiles: u64,
    pub tiling: Tiling,
    /// Experts of the layer.
    pub experts: usize,
}

/// How many pairs of an expert are multiplied together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiling {
    /// Each alone: where hardly two are of one expert.
    Alone,
    /// A few, whose weights are read once. No number depends on whether they are alone.
    Few,
    /// As many as tensor cores take, by rows of 16 bits and weights that are widened to as many.
    Many,
}

impl Tiling {
    /// For so many rows at `used` of `experts` experts each; tensor cores would round weights in single precision.
    pub fn of(rows: usize, used: usize, experts: usize, are_exact: bool) -> Self {
        match rows * used {
            count if !are_exact && count >= MANY * experts => Self::Many,
            count if rows > 1 && 4 * count >= experts => Self::Few,
            _ => Self::Alone,
        }
    }

    /// Pairs of a tile, as `device/experts.cu` has them.
    fn each(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Few => 8,
            Self::Many => 64,
        }
    }

    /// What products with experts read. But for many pairs it is the same for any number, and so a row's sums do not depend on
    /// others.
    pub fn reads(self, form: Form) -> Kind {
        match (form, form.rounded()) {
            (Form::Bf16, _) => Kind::Bf16,
            _ if self == Self::Many => Kind::F16,
            (_, Some(block)) => Kind::rounded(block),
            _ => Kind::F32,
        }
    }
}

/// Rows of a step from which pairs are multiplied on tensor cores.
pub(crate) fn rows_of_many(used: usize, experts: usize) -> usize {
    (MANY * experts).div_ceil(used.max(1))
}

impl GpuPairs {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.rows * self.used
    }

    /// As many tiles as there are at most, whichever experts are chosen.
    pub fn tile_count(&self) -> usize {
        match self.tiling {
            Tiling::Alone => self.count(),
            tiling => self.count().div_ceil(tiling.each()) + self.experts.min(self.count()),
        }
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
    pub fn route(&self, scores: u64, routing: &ExpertRouting, pairs: &GpuPairs) -> Result<(), GpuError> {
        let alone = pairs.tiling == Tiling::Alone;
        let args = [
            scores.into(),
            routing.bias.into(),
            routing.correction.into(),
            whole(pairs.experts),
            whole(pairs.used),
            Arg::Whole(u32::from(routing.normed)),
            routing.scale.into(),
            routing.factors.into(),
            pairs.chosen.into(),
            pairs.parts.into(),
            Arg::Wide(if alone { pairs.tiles } else { 0 }),
        ];
        self.run("experts", "route", [pairs.rows as u32, 1, 1], 32, &args)?;
        if alone {
            return Ok(());
        }
        let args = [
            pairs.chosen.into(),
            whole(pairs.count()),
            whole(pairs.experts),
            whole(pairs.tiling.each()),
            pairs.order.into(),
            pairs.tiles.into(),
            whole(pairs.tile_count()),
        ];
        self.run("experts", "by_expert", [pairs.experts as u32, 1, 1], 256, &args)
    }

    /// Products of each pair with its expert's matrices. `input` has a row for `of_row` pairs that follow each other, of the kind
    /// that experts read ([`Tiling::reads`]) or in single precision.
    pub fn expert_products(
        &mut self,
        input: GpuRows,
        of_row: usize,
        pairs: &GpuPairs,
        list: &[(&GpuExpertMatrices, Out)],
    ) -> Result<(), GpuError> {
        // What was rounded or narrowed for one serves the next.
        let (mut rounded, mut narrowed) = (None, None);
        for (w, out) in list {
            let (mut at, numbers) = (input.at, pairs.count() / of_row * w.cols);
            let wanted = pairs.tiling.reads(w.form);
            let differs = input.kind != wanted;
            let block = w.form.rounded().filter(|block| wanted == Kind::rounded(*block));
            if let Some(block) = block.filter(|_| differs) {
                if rounded != Some(block) {
                    self.round(input.at, numbers, block)?;
                    rounded = Some(block);
                }
                at = self.rounded.at();
            } else if differs {
                if narrowed != Some(wanted) {
                    self.narrow(input.at, numbers, wanted)?;
                    narrowed = Some(wanted);
                }
                at = self.narrowed.at();
            }
            match pairs.tiling {
                Tiling::Many => self.large_tiles(at, of_row, pairs, w, *out)?,
                Tiling::Alone | Tiling::Few => self.small_tiles((at, numbers), of_row, pairs, w, *out)?,
            }
        }
        Ok(())
    }

    fn large_tiles(
        &self,
        x: u64,
        of_row: usize,
        pairs: &GpuPairs,
        w: &GpuExpertMatrices,
        out: Out,
    ) -> Result<(), GpuError> {
        let args = [
            x.into(),
            whole(of_row),
            pairs.order.into(),
            pairs.tiles.into(),
            (&w.memory).into(),
            Arg::Wide(w.every as u64),
            whole(w.rows),
            whole(w.cols),
            out.at.into(),
            whole(out.stride),
        ];
        let grid = [blocks(w.rows, 128), pairs.tile_count() as u32, 1];
        self.run("experts", large_kernel(w.form), grid, 256, &args)
    }

    fn small_tiles(
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
            Form::Q4_0 | Form::Mxfp4 | Form::Q4K | Form::Q6K => (w.cols / 32).div_ceil(32),
        };
        let alone = pairs.tiling == Tiling::Alone;
        // As for one row, however many there are.
        let split = self.split(w.rows.div_ceil(2) * pairs.used, steps);
        // Scales of rounded rows lie behind them.
        let parts = [Arg::Wide(x), Arg::Wide(x + numbers.next_multiple_of(16) as u64)];
        let rows = if w.form.rounded().is_some() { parts.as_slice() } else { &parts[..1] };
        let rest = [
            whole(of_row),
            Arg::Wide(if alone { 0 } else { pairs.order }),
            pairs.tiles.into(),
            (&w.memory).into(),
            Arg::Wide(w.every as u64),
            whole(w.rows),
            whole(w.cols),
            whole(split),
            out.at.into(),
            whole(out.stride),
        ];
        let grid = [blocks(w.rows.div_ceil(2), 8 / split), pairs.tile_count() as u32, 1];
        self.run("experts", product_kernel(w.form, alone), grid, 256, &[rows, &rest].concat())
    }

    /// Adds up what the experts of each row made, `[pair][width]`, each with its expert's bias where there is one. With `shared` it
    /// is added to what `out` has, of which as much counts as the sigmoid of the row's number at `gates` says, or all where that
    /// is 0.
    pub fn mix_experts(
        &self,
        made: u64,
        pairs: &GpuPairs,
        width: usize,
        (shared, gates): (bool, u64),
        bias: u64,
        out: u64,
    ) -> Result<(), GpuError> {
        let args = [
            made.into(),
            pairs.parts.into(),
            whole(pairs.used),
            whole(width),
            Arg::Whole(u32::from(shared)),
            gates.into(),
            pairs.chosen.into(),
            bias.into(),
            out.into(),
        ];
        self.run("experts", "mix_experts", [pairs.rows as u32, blocks(width, 4 * 256), 1], 256, &args)
    }

    /// The RMS norm of `width` columns of rows that lie `stride` numbers apart, times `weight`, in their place.
    pub fn norm_columns(
        &self,
        x: u64,
        stride: usize,
        (weight, eps): (u64, f32),
        width: usize,
        rows: usize,
    ) -> Result<(), GpuError> {
        let args = [x.into(), whole(stride), weight.into(), eps.into(), whole(width)];
        self.run("experts", "norm_columns", [rows as u32, 1, 1], 256, &args)
    }
}

fn large_kernel(form: Form) -> &'static str {
    match form {
        Form::Bf16 => "large_bf16",
        Form::Q4_0 => "large_q4_0",
        Form::Mxfp4 => "large_mxfp4",
        Form::Q8_0 => "large_q8_0",
        Form::Q4K => "large_q4_k",
        Form::Q6K => "large_q6_k",
        // Weights in single precision have no such tiles.
        Form::F16 | Form::F32 => "large_f16",
    }
}

fn product_kernel(form: Form, alone: bool) -> &'static str {
    match (form, alone) {
        (Form::F32, true) => "one_f32",
        (Form::F16, true) => "one_f16",
        (Form::Bf16, true) => "one_bf16",
        (Form::Q4_0, true) => "one_q4_0",
        (Form::Mxfp4, true) => "one_mxfp4",
        (Form::Q8_0, true) => "one_q8_0",
        (Form::Q4K, true) => "one_q4_k",
        (Form::Q6K, true) => "one_q6_k",
        (Form::F32, false) => "tile_f32",
        (Form::F16, false) => "tile_f16",
        (Form::Bf16, false) => "tile_bf16",
        (Form::Q4_0, false) => "tile_q4_0",
        (Form::Mxfp4, false) => "tile_mxfp4",
        (Form::Q8_0, false) => "tile_q8_0",
        (Form::Q4K, false) => "tile_q4_k",
        (Form::Q6K, false) => "tile_q6_k",
    }
}
