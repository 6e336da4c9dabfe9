//! A step as a GPU is told of it: which rows are whose, where their pages are, which are computed as chunks.

use super::{
    buffers::Buffer,
    choose::RowChoice,
    machine::{GpuError, Machine, Queue},
};
use crate::engine::Slice;
use std::sync::Arc;
use tsnode_protocol::{KvDtype, Token};

/// Rows of a prompt from which attention is computed on tensor cores.
const CHUNK_FROM: u32 = 16;
/// Rows and heads of a tile of queries.
const TILE: usize = 64;
/// Tokens of a row that are worth a block of their own: the tile of `device/attend.cu`, whose parts are whole tiles.
const PART: usize = 64;
/// Parts that `device/attend.cu` has room to merge.
const MOST_PARTS: usize = 64;

/// What a GPU is told of a step; all that is on the GPU lies in one piece.
#[derive(Debug)]
pub(crate) struct StepInput {
    arena: Buffer,
    tables: Buffer,
    /// Edition of the tables that are on the GPU.
    held: Option<u64>,
    // Kept from step to step for their memory.
    bytes: Vec<u8>,
    singles: Vec<u32>,
    tiles: Vec<[u32; 4]>,
}

/// Where a step's parts lie on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuStep {
    pub rows: usize,
    pub tokens: u64,
    pub positions: u64,
    pub sequences: u64,
    /// Rows whose attention is computed one by one.
    pub singles: u64,
    pub singles_count: usize,
    /// Whether each row is of a sequence of its own: none sees what another one stores.
    pub alone: bool,
    /// Tiles of the others.
    pub tiles: u64,
    pub tiles_count: usize,
    /// Rows that logits are wanted of; none if of all, in their order.
    pub chosen: Option<u64>,
    pub chosen_rows: usize,
    pub choices: u64,
    /// The first row of each sequence of the batch, and one more: how many rows there are.
    pub firsts: u64,
    pub sequence_count: usize,
    /// The pool's memory.
    pub memory: u64,
    tables: u64,
    /// Pages of each sequence's state, and how many it has.
    pub states: u64,
    pub state_pages: usize,
    /// Pages of a sequence in a table, and numbers of a layer's table.
    pub most: usize,
    per_layer: usize,
    /// Tokens that a row sees at most, rounded up to a power of two.
    seen: usize,
}

/// How a step's rows are to be computed, and what for.
pub(crate) struct GpuStepInput<'a> {
    pub batch: &'a [Slice],
    /// Of the first stage.
    pub tokens: &'a [Token],
    /// Rows that logits are wanted of.
    pub chosen: &'a [usize],
    pub choices: &'a [RowChoice],
    /// Pages of every layer and sequence: `[layer][sequence][page]`, `most` each; then of every sequence's state.
    pub tables: &'a [u32],
    /// A number that only these tables have had.
    pub edition: u64,
    pub most: usize,
    /// Of a sequence.
    pub state_pages: usize,
    pub dtype: KvDtype,
    /// Query heads that share one of keys and values.
    pub group: usize,
    pub memory: u64,
}

impl StepInput {
    pub fn new(machine: &Arc<dyn Machine>) -> Self {
        let (arena, tables) = (Buffer::new(machine.clone()), Buffer::new(machine.clone()));
        let (bytes, singles, tiles) = (Vec::new(), Vec::new(), Vec::new());
        Self { arena, tables, held: None, bytes, singles, tiles }
    }

    /// See [`super::ops::Ops::renewals`].
    pub fn renewals(&self) -> usize {
        self.arena.renewals() + self.tables.renewals()
    }

    /// Copies a step to the GPU.
    pub fn send(&mut self, machine: &Arc<dyn Machine>, wanted: &GpuStepInput<'_>) -> Result<GpuStep, GpuError> {
        let GpuStepInput { batch, chosen, .. } = *wanted;
        let positions = || batch.iter().flat_map(|slice| slice.start..slice.start + slice.len);
        let owner = |(i, slice): (usize, &Slice)| std::iter::repeat_n(i as u32, slice.len as usize);
        self.split(wanted);
        let rows = batch.iter().map(|slice| slice.len as usize).sum();
        let all = chosen.len() == rows && chosen.iter().enumerate().all(|(i, row)| i == *row);
        let chosen_rows = if all { &[] } else { chosen };

        self.bytes.clear();
        let places = [
            put_all(&mut self.bytes, wanted.tokens.iter().map(|token| token.0)),
            put_all(&mut self.bytes, positions()),
            put_all(&mut self.bytes, batch.iter().enumerate().flat_map(owner)),
            put(&mut self.bytes, bytemuck::cast_slice(&self.singles)),
            put(&mut self.bytes, bytemuck::cast_slice(&self.tiles)),
            put_all(&mut self.bytes, chosen_rows.iter().map(|row| *row as u32)),
            put(&mut self.bytes, bytemuck::cast_slice(wanted.choices)),
            put_all(&mut self.bytes, firsts(batch)),
        ];
        let arena = self.arena.fit(self.bytes.len())?;
        machine.upload(Queue::Compute, arena, &self.bytes)?;
        self.send_tables(machine, wanted)?;
        let [tokens, positions_at, sequences, singles_at, tiles_at, chosen_at, choices, firsts] =
            places.map(|place| arena + place);
        let of_states = wanted.state_pages * batch.len();
        Ok(GpuStep {
            rows,
            tokens,
            positions: positions_at,
            sequences,
            singles: singles_at,
            singles_count: self.singles.len(),
            alone: batch.iter().all(|slice| slice.len == 1),
            tiles: tiles_at,
            tiles_count: self.tiles.len(),
            chosen: if all { None } else { Some(chosen_at) },
            chosen_rows: chosen.len(),
            choices,
            firsts,
            sequence_count: batch.len(),
            memory: wanted.memory,
            tables: self.tables.at(),
            states: self.tables.at() + (wanted.tables.len().saturating_sub(of_states) * 4) as u64,
            state_pages: wanted.state_pages,
            most: wanted.most,
            per_layer: wanted.most * batch.len(),
            seen: positions().max().map_or(1, |last| (last as usize + 1).next_power_of_two()),
        })
    }

    /// Copies page tables to the GPU, where it has others.
    fn send_tables(&mut self, machine: &Arc<dyn Machine>, wanted: &GpuStepInput<'_>) -> Result<(), GpuError> {
        if self.held == Some(wanted.edition) {
            return Ok(());
        }
        // What is there when copying fails is neither.
        self.held = None;
        let at = self.tables.fit(wanted.tables.len() * 4)?;
        machine.upload(Queue::Compute, at, bytemuck::cast_slice(wanted.tables))?;
        self.held = Some(wanted.edition);
        Ok(())
    }

    /// Rows that are computed one by one, and tiles of the others: sequence, row, position, tokens.
    fn split(&mut self, wanted: &GpuStepInput<'_>) {
        let Self { singles, tiles, .. } = self;
        singles.clear();
        tiles.clear();
        let (mut row, each) = (0, (TILE / wanted.group.max(1)) as u32);
        // Tensor cores would round keys and values in single precision, and a tile must hold a row's heads.
        let tiled = wanted.dtype != KvDtype::F32 && each > 0;
        for (sequence, slice) in wanted.batch.iter().enumerate() {
            if tiled && slice.len >= CHUNK_FROM {
                for from in (0..slice.len).step_by(each as usize) {
                    tiles.push([sequence as u32, row + from, slice.start + from, each.min(slice.len - from)]);
                }
            } else {
                singles.extend(row..row + slice.len);
            }
            row += slice.len;
        }
        // Those that see most first: the last blocks to start are short.
        tiles.sort_by_key(|[_, _, position, _]| std::cmp::Reverse(*position));
    }
}

/// The first row of each slice, and behind the last how many there are.
fn firsts(batch: &[Slice]) -> impl Iterator<Item = u32> {
    let ends = batch.iter().scan(0, |end, slice| {
        *end += slice.len;
        Some(*end)
    });
    std::iter::once(0).chain(ends)
}

/// Puts bytes where 16 of them can be read at a time, and says where.
fn put(to: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    let at = to.len();
    to.extend_from_slice(bytes);
    to.resize(to.len().next_multiple_of(16), 0);
    at as u64
}

/// The same for numbers.
fn put_all(to: &mut Vec<u8>, numbers: impl Iterator<Item = u32>) -> u64 {
    let at = to.len();
    numbers.for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
    to.resize(to.len().next_multiple_of(16), 0);
    at as u64
}

impl GpuStep {
    /// A layer's table of pages.
    pub fn table(&self, layer: usize) -> u64 {
        self.tables + (layer * self.per_layer * 4) as u64
    }

    /// Parts that a row's tokens are cut into, so that all processors have work: `across` blocks there are for each row.
    pub fn parts_for(&self, window: Option<usize>, across: usize, processors: usize) -> usize {
        self.parts_of(self.singles_count, window, across, processors)
    }

    /// The same where so many rows are attended one by one.
    pub fn parts_of(&self, rows: usize, window: Option<usize>, across: usize, processors: usize) -> usize {
        let seen = window.map_or(self.seen, |window| self.seen.min(window));
        let wanted = (2 * processors).div_ceil(across * rows.max(1)).next_power_of_two();
        wanted.min(seen.div_ceil(PART)).clamp(1, MOST_PARTS)
    }
}
