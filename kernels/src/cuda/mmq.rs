//! How products of rounded rows with quantised weights are cut over a GPU (`device/mmq.cu`): columns into parts by the matrix's size
//! alone, so that a row's sums are the same whatever rows are beside it; parts over warps and blocks by how many rows there are.

use super::weights::{Form, GpuMatrix};

/// Rows at most.
pub(super) const ROUNDED: usize = 8 * TILE;
/// Rows of a tile: what tensor cores take at a time, by as many outputs as a warp has.
const TILE: usize = 8;
const OUTS: usize = 16;
/// Warps of a block, and parts of columns, at most.
const WARPS: usize = 8;
/// Outputs from which there are warps enough for every GPU with each output's columns whole: more than seven for each of an
/// H200's processors. Parts of many outputs and rows would be more bytes than the weights.
const WHOLE_FROM: usize = 16 << 10;

/// Rows up to which every warp reads rows itself, from the first-level cache, and weights alone are in shared memory.
const FEW: usize = 4;
/// Steps of weights that are in shared memory then; two where rows are there too.
const STAGES: usize = 3;

/// A form's step, as `device/mmq.cu` has it in shared memory.
struct Staged {
    columns: usize,
    /// Of an output's weights, and from one row to the next (bytes).
    weights: usize,
    x_apart: usize,
    /// Of a row's sums (bytes).
    halves: usize,
}

impl Staged {
    fn of(form: Form) -> Self {
        let [columns, weights, x_apart, halves] = match form {
            Form::Q4_0 => [256, 128, 272, 0],
            Form::Q8_0 => [128, 128, 160, 0],
            Form::Q4K => [256, 144, 288, 16],
            _ => [256, 208, 272, 0],
        };
        Self { columns, weights, x_apart, halves }
    }
}

/// How rows are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MmqRows {
    /// One, whose parts of a block are where other rows would be.
    One,
    /// Up to [`FEW`].
    Few,
    /// Tiles of eight, which warps share in shared memory.
    Tiles,
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MmqCut {
    /// Parts that columns are cut into.
    pub parts: usize,
    /// Parts of a block, a warp each; the others are other blocks'.
    pub here: usize,
    /// Sixteens of outputs of a block.
    pub sixteens: usize,
    /// How rows are multiplied.
    pub rows: MmqRows,
    /// Tiles of rows.
    pub tiles: usize,
    /// Shared memory of a block (bytes).
    pub shared: usize,
}

impl MmqCut {
    /// Of `rows` rows, on a GPU of so many processors.
    pub fn of(w: &GpuMatrix, rows: usize, processors: usize) -> Self {
        let staged = Staged::of(w.form);
        let steps = w.cols.div_ceil(staged.columns);
        let parts = if w.all >= WHOLE_FROM { 1 } else { steps.next_power_of_two().min(WARPS) };
        let tiles = rows.div_ceil(TILE).next_power_of_two();
        // As many tiles as parts fit a block's shared memory on every GPU: eight of both together.
        let here = parts.min(WARPS / tiles);
        // Outputs that share rows in shared memory, unless processors would have nothing to do.
        let groups = w.rows.div_ceil(OUTS);
        let mut sixteens = match rows {
            // Blocks without parts are small where they read few rows: then processors share them evenly.
            ..=FEW if parts == 1 => 2,
            ..=16 if parts == 1 => 4,
            _ => WARPS / here,
        };
        while sixteens > 1 && groups.div_ceil(sixteens) * (parts / here) < processors {
            sixteens /= 2;
        }
        let kept = if tiles == 1 { rows } else { tiles * TILE };
        let scales = staged.columns / w.form.rounded().unwrap_or(staged.columns);
        let rows_bytes = kept * (staged.x_apart + staged.halves) + (kept * scales).next_multiple_of(4) * 4;
        let weights = sixteens * here * OUTS * staged.weights;
        let rows = match (rows, w.form) {
            (1, Form::Q4K | Form::Q6K) => MmqRows::One,
            (..=FEW, _) => MmqRows::Few,
            _ => MmqRows::Tiles,
        };
        let shared = match rows {
            MmqRows::One | MmqRows::Few => STAGES.min(steps.div_ceil(parts)) * weights,
            MmqRows::Tiles => 2 * (weights + here * rows_bytes),
        };
        Self { parts, here, sixteens, rows, tiles, shared }
    }

    /// Blocks that have parts of the same outputs.
    pub fn across(self) -> usize {
        self.parts / self.here
    }

    /// Blocks for so many outputs. Of several GPUs one may have none: a grid has a block all the same.
    pub fn grid(self, outs: usize) -> [u32; 3] {
        [outs.div_ceil(OUTS * self.sixteens).max(1) as u32, self.across() as u32, 1]
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        (32 * self.sixteens * self.here) as u32
    }

    /// The kernel.
    pub fn kernel(self, form: Form) -> &'static str {
        let [few, of_tiles @ ..]: [&'static str; 5] = match form {
            Form::Q4_0 => ["mmq_q4_0_few", "mmq_q4_0_1", "mmq_q4_0_2", "mmq_q4_0_4", "mmq_q4_0_8"],
            Form::Q8_0 => ["mmq_q8_0_few", "mmq_q8_0_1", "mmq_q8_0_2", "mmq_q8_0_4", "mmq_q8_0_8"],
            Form::Q4K => ["mmq_q4_k_few", "mmq_q4_k_1", "mmq_q4_k_2", "mmq_q4_k_4", "mmq_q4_k_8"],
            _ => ["mmq_q6_k_few", "mmq_q6_k_1", "mmq_q6_k_2", "mmq_q6_k_4", "mmq_q6_k_8"],
        };
        match (self.rows, form) {
            (MmqRows::One, Form::Q4K) => "mmq_q4_k_row",
            (MmqRows::One, _) => "mmq_q6_k_row",
            (MmqRows::Few, _) => few,
            (MmqRows::Tiles, _) => of_tiles[self.tiles.ilog2().min(3) as usize],
        }
    }
}
