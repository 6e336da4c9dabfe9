//! Gated delta rules, and gates of attention, as operations (`device/delta.cu`).

use super::{GpuRows, Ops, blocks, whole};
use crate::{
    cuda::{
        machine::{Arg, GpuError},
        step::GpuStep,
    },
    models::DeltaSizes,
    pages::StatePlaces,
};

/// Most channels of a head of keys: as many as there are kernels for.
const MOST_KEYS: usize = 128;
/// Columns of a head's matrix that a block has.
const COLUMNS: usize = 32;

/// A gated delta rule's sizes, which columns of a row are whose in what its matrices make of it, and where its states lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaShape {
    pub sizes: DeltaSizes,
    /// Numbers from a row to the next.
    pub stride: usize,
    /// Columns of the first group's query, key, values and gates, and of how its states turn and fade.
    pub query: usize,
    pub key: usize,
    pub value: usize,
    pub gate: usize,
    pub turn: usize,
    pub fade: usize,
    /// Columns from a group to the next: of queries and keys, of values and gates, of the last two.
    pub of_keys: usize,
    pub of_values: usize,
    pub of_turns: usize,
    pub places: StatePlaces,
}

/// Rows of a batch, and where their sequences have states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaRows {
    pub rows: usize,
    pub positions: u64,
    pub sequences: u64,
    /// First row of each sequence, and how many rows there are.
    pub firsts: u64,
    pub sequence_count: usize,
    pub memory: u64,
    /// Pages of each sequence's state, and how many those are.
    pub table: u64,
    pub pages: usize,
}

/// What is between the kernels: channels behind the convolution, by how much states fade and turn, what heads say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaParts {
    pub passed: u64,
    pub turned: u64,
    pub said: u64,
}

impl From<&GpuStep> for DeltaRows {
    fn from(step: &GpuStep) -> Self {
        Self {
            rows: step.rows,
            positions: step.positions,
            sequences: step.sequences,
            firsts: step.firsts,
            sequence_count: step.sequence_count,
            memory: step.memory,
            table: step.states,
            pages: step.state_pages,
        }
    }
}

impl DeltaShape {
    /// That of a layer whose states lie so, if kernels are written for it. With `by_group` matrices make what a group has side by side.
    pub fn of(sizes: DeltaSizes, by_group: bool, places: StatePlaces) -> Result<Self, GpuError> {
        let DeltaSizes { groups, shared, key_dim, value_dim, .. } = sizes;
        // Keys are read four numbers at a time, values eight.
        if key_dim > MOST_KEYS || !key_dim.is_multiple_of(4) || !value_dim.is_multiple_of(8) {
            let what = format!("a state of {key_dim} channels of keys by {value_dim} of values");
            return Err(GpuError::Unsupported(what));
        }
        let (values, heads) = (shared * value_dim, groups * shared);
        let turn = 2 * groups * (key_dim + values);
        let shape = Self {
            sizes,
            stride: turn + 2 * heads,
            query: 0,
            key: groups * key_dim,
            value: 2 * groups * key_dim,
            gate: groups * (2 * key_dim + values),
            turn,
            fade: turn + heads,
            of_keys: key_dim,
            of_values: values,
            of_turns: shared,
            places,
        };
        if !by_group {
            return Ok(shape);
        }
        let of_group = 2 * (key_dim + values);
        Ok(Self {
            key: key_dim,
            value: 2 * key_dim,
            gate: 2 * key_dim + values,
            fade: turn + shared,
            of_keys: of_group,
            of_values: of_group,
            of_turns: 2 * shared,
            ..shape
        })
    }

    /// Channels of all queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.sizes.groups * self.sizes.key_dim + self.values()
    }

    /// Heads of values.
    pub fn heads(&self) -> usize {
        self.sizes.groups * self.sizes.shared
    }

    /// Channels of all of them.
    pub fn values(&self) -> usize {
        self.heads() * self.sizes.value_dim
    }

    /// Columns of queries, keys and values, as kernels are told.
    fn columns(&self) -> [Arg; 6] {
        [self.stride, self.query, self.key, self.value, self.of_keys, self.of_values].map(whole)
    }
}

impl Ops {
    /// Channels of all groups behind the convolution, and by how much their states fade and turn, of rows of which matrices made what
    /// is at `x`. `weights` are those of the convolution, how fast states fade, and what is added before.
    pub fn delta_pass(
        &self,
        x: u64,
        shape: &DeltaShape,
        weights: [u64; 3],
        batch: &DeltaRows,
        parts: &DeltaParts,
    ) -> Result<(), GpuError> {
        let DeltaShape { turn, fade, of_turns, places, .. } = *shape;
        let DeltaSizes { groups, shared, key_dim, value_dim, kernel } = shape.sizes;
        let args = [
            [x.into()].as_slice(),
            &shape.columns(),
            &[turn, fade, of_turns, shared, key_dim, value_dim, kernel].map(whole),
            &weights.map(Arg::from),
            &[batch.positions, batch.sequences, batch.memory, batch.table].map(Arg::from),
            &[batch.pages, places.tail_page, places.tails].map(whole),
            &[parts.passed, parts.turned].map(Arg::from),
        ]
        .concat();
        self.run("delta", "delta_pass", [batch.rows as u32, groups as u32, 1], 128, &args)
    }

    /// What heads say for rows, which change their sequences' states in their order.
    pub fn delta_rule(
        &self,
        x: u64,
        shape: &DeltaShape,
        batch: &DeltaRows,
        parts: &DeltaParts,
    ) -> Result<(), GpuError> {
        let DeltaSizes { shared, key_dim, value_dim, kernel, .. } = shape.sizes;
        let StatePlaces { tail_page, tails, matrix_page, matrices } = shape.places;
        let args = [
            [parts.passed, parts.turned, x].map(Arg::from).as_slice(),
            &shape.columns(),
            &[shared, key_dim, value_dim, kernel].map(whole),
            &[batch.firsts, batch.positions, batch.memory, batch.table].map(Arg::from),
            &[batch.pages, tail_page, tails, matrix_page, matrices].map(whole),
            &[parts.said.into()],
        ]
        .concat();
        // The last has the tails.
        let across = blocks(value_dim, COLUMNS) + 1;
        let grid = [across, shape.heads() as u32, batch.sequence_count as u32];
        self.run("delta", rule_kernel(key_dim), grid, 128, &args)
    }

    /// What heads say, normed by `norm`'s weights and epsilon, times their gates, which are in what matrices made of rows at `x`.
    pub fn delta_norm(
        &self,
        (said, x): (u64, u64),
        shape: &DeltaShape,
        (weight, eps): (u64, f32),
        rows: usize,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let (values, value_dim) = (shape.values(), shape.sizes.value_dim);
        let in_group = shape.sizes.shared * value_dim;
        let args = [
            said.into(),
            whole(values),
            whole(value_dim),
            weight.into(),
            eps.into(),
            x.into(),
            whole(shape.stride),
            whole(shape.gate),
            whole(shape.of_values),
            whole(in_group),
            out.at.into(),
            Arg::Whole(out.kind as u32),
        ];
        self.run("delta", "delta_norm", [rows as u32, blocks(values, 8 * 256), 1], 256, &args)
    }

    /// What attention mixed of rows, times what its gates let through, of which rows lie `stride` numbers apart.
    pub fn open_gates(
        &self,
        mixed: u64,
        (rows, width): (usize, usize),
        (gates, stride): (u64, usize),
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let args =
            [mixed.into(), whole(width), gates.into(), whole(stride), out.at.into(), Arg::Whole(out.kind as u32)];
        self.run("delta", "open_gates", [rows as u32, blocks(width, 8 * 128), 1], 128, &args)
    }
}

/// The kernel that has room for so many channels of keys.
fn rule_kernel(key_dim: usize) -> &'static str {
    match key_dim {
        0..=32 => "delta_rule_32",
        33..=64 => "delta_rule_64",
        _ => "delta_rule_128",
    }
}
