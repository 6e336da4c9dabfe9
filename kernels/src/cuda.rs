//! Arithmetic on NVIDIA cards, with nothing but a driver installed. Written without a card: kernels compile, and run in an
//! emulator; none has run on a card yet (`docs/cuda.md`). A card is used only by who opens one.
//!
//! | file | what it holds |
//! |---|---|
//! | `device/*.cu` | the kernels, in CUDA C++ |
//! | `ptx/` | what they compile to (`scripts/cuda_kernels.sh`) |
//! | `machine.rs` | what is asked of a card: memory, copies, launches |
//! | `driver.rs` | a card, by the driver's library |
//! | `libraries.rs` | where NVIDIA's libraries are looked for |
//! | `emulator.rs` | the processor in place of a card, for tests |
//! | `weights.rs` | weights as they lie on a card |
//! | `ops.rs` | operations: which kernel, how many blocks |
//! | `stage.rs` | a stage's layers as operations |
//! | `step.rs` | what a card is told of a step |
//! | `recordings.rs` | which runs came up, and what was recorded of them |
//! | `probe.rs`, `nvml.rs` | what a card can do, measured and by its own word |
//! | `choose.rs` | tokens chosen there |
//! | `tiles.rs` | KV packed and unpacked there |

mod buffers;
mod choose;
mod driver;
#[cfg(test)]
mod emulator;
mod libraries;
mod machine;
mod nvml;
mod ops;
mod probe;
mod recordings;
mod stage;
mod step;
#[cfg(test)]
mod tests;
mod tiles;
mod weights;

pub(crate) use choose::Choice;
pub use driver::usable;
pub use libraries::{Libraries, Library};
pub use machine::CardError;
pub(crate) use machine::Queue;
pub use nvml::{CardFacts, PcieLink};
pub use probe::CardSpeeds;
pub(crate) use tiles::{CardTile, CardTurn};

use crate::{
    engine::{Slice, StageKey},
    models::Outline,
    pages::{Layout, PAGE_BYTES},
};
use buffers::Buffer;
use machine::{Machine, Memory};
use ops::Ops;
use recordings::Recordings;
use stage::{CardStage, Work};
use std::collections::BTreeMap;
use std::sync::Arc;
use step::{Step, StepInput, Wanted};
use tsnode_protocol::Token;

/// Of a card's free memory, what weights and pages leave for what is between kernels and for the driver.
const HEADROOM: usize = 1 << 30;
/// Rows of a step: what a grid has room for in its second and third direction, in which some kernels have their rows.
const MOST_ROWS: usize = 65_535;
/// Rows of a step from which recording saves nothing.
const RECORDED_ROWS: usize = 256;

/// A card with what is loaded on it.
#[derive(Debug)]
pub struct Card {
    // Stages and memory go before the machine they are on.
    stages: BTreeMap<StageKey, CardStage>,
    pages: Option<Memory>,
    work: Work,
    input: StepInput,
    ops: Ops,
    tiles: Buffer,
    tokens: Buffer,
    seen: Recordings<Recording>,
    /// Whether steps are recorded: until that fails once.
    records: bool,
    renewals: usize,
    machine: Arc<dyn Machine>,
}

/// What a card is by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardInfo {
    /// Vendor's name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Processors.
    pub processors: usize,
    /// Memory (bytes).
    pub memory_bytes: u64,
    /// Why products of many rows are not left to a library; none where they are.
    pub no_library: Option<String>,
    /// What the management library says.
    pub facts: CardFacts,
}

/// What a recorded run was of: the same launches with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Recording {
    stage: StageKey,
    step: Step,
    chooses: bool,
    embeds: bool,
}

/// What a card is to compute.
pub(crate) struct Job<'a> {
    pub stage: StageKey,
    pub batch: &'a [Slice],
    pub rows: CardInput<'a>,
    /// Rows that logits are wanted of.
    pub chosen: &'a [usize],
    /// How their tokens are chosen, if they are chosen there.
    pub choices: &'a [Choice],
    /// Pages of every layer and sequence, `most` each.
    pub tables: &'a [u32],
    /// A number that only these tables have had.
    pub edition: u64,
    pub most: usize,
    pub layout: Layout,
    /// Query heads that share one of keys and values.
    pub group: usize,
    /// Whether each layer is marked once its keys and values are stored.
    pub marks: bool,
}

/// What enters a stage.
#[derive(Clone, Copy)]
pub(crate) enum CardInput<'a> {
    Tokens(&'a [Token]),
    Hidden(&'a [f32]),
}

impl Card {
    /// The card of this number among those that `CUDA_VISIBLE_DEVICES` leaves.
    ///
    /// # Errors
    /// When there is no driver, no such card, or it does not start.
    pub fn open(ordinal: u16) -> Result<Self, CardError> {
        Ok(Self::on(driver::open(ordinal)?))
    }

    /// On a machine.
    pub(crate) fn on(machine: Arc<dyn Machine>) -> Self {
        let buffer = || Buffer::new(machine.clone());
        Self {
            stages: BTreeMap::new(),
            pages: None,
            work: Work::new(&machine),
            input: StepInput::new(&machine),
            ops: Ops::new(machine.clone()),
            tiles: buffer(),
            tokens: buffer(),
            seen: Recordings::default(),
            records: true,
            renewals: 0,
            machine,
        }
    }

    /// What the card is by the driver and the management library.
    #[must_use]
    pub fn about(&self) -> CardInfo {
        self.machine.about()
    }

    /// Memory for pages (bytes) if weights take so much: what is free, less headroom.
    ///
    /// # Errors
    /// When the card does not answer.
    pub fn pool_bytes(&self, weights: u64) -> Result<usize, CardError> {
        let free = self.machine.free_bytes()?;
        Ok(free.saturating_sub(HEADROOM + free / 16).saturating_sub(weights as usize))
    }

    /// Takes memory for pages.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), CardError> {
        self.pages = Some(Memory::take(&self.machine, bytes / PAGE_BYTES * PAGE_BYTES)?);
        Ok(())
    }

    pub(crate) fn load(&mut self, key: StageKey, outline: &Outline<'_>, layout: &Layout) -> Result<(), CardError> {
        let stage = CardStage::load(&self.machine, outline, layout)?;
        self.stages.insert(key, stage);
        Ok(())
    }

    /// How the keys of a stage's layer turn.
    pub(crate) fn turn(&self, key: StageKey, layer: usize) -> Option<CardTurn> {
        self.stages.get(&key).and_then(|stage| stage.turn(layer))
    }

    pub(crate) fn unload(&mut self, key: StageKey) {
        // Memory that a card fails to free is lost with the card.
        let _ = self.machine.finish();
        self.forget_recorded();
        self.stages.remove(&key);
    }

    /// Copies pages, before anything else is written.
    pub(crate) fn copy_pages(&mut self, copies: &[(u32, u32)]) -> Result<(), CardError> {
        let at = |page: u32| self.pool() + u64::from(page) * PAGE_BYTES as u64;
        copies.iter().try_for_each(|(from, to)| self.machine.copy(at(*from), at(*to), PAGE_BYTES))
    }

    /// Computes a step; it is under way when this returns.
    pub(crate) fn start(&mut self, job: &Job<'_>) -> Result<(), CardError> {
        stage(&self.stages, job.stage)?;
        check_rows(job)?;
        let tokens = match job.rows {
            CardInput::Tokens(tokens) => tokens,
            CardInput::Hidden(_) => &[],
        };
        let wanted = Wanted {
            batch: job.batch,
            tokens,
            chosen: job.chosen,
            choices: job.choices,
            tables: job.tables,
            edition: job.edition,
            most: job.most,
            dtype: job.layout.dtype,
            group: job.group,
            memory: self.pages.as_ref().map_or(0, Memory::at),
        };
        let step = self.input.send(&self.machine, &wanted)?;
        if let CardInput::Hidden(rows) = job.rows {
            let at = self.work.hidden.fit(rows.len() * 4)?;
            self.machine.upload(Queue::Compute, at, bytemuck::cast_slice(rows))?;
        }
        let (chooses, embeds) = (!job.choices.is_empty(), !tokens.is_empty());
        let recording = Recording { stage: job.stage, step, chooses, embeds };
        let worth_it = step.rows <= RECORDED_ROWS && step.tiles_count == 0 && !job.marks;
        let known = if worth_it { self.seen.find(&recording) } else { None };
        if let Some(recorded) = known.filter(|_| self.all_renewals() == self.renewals) {
            if let Some(recorded) = recorded {
                return self.machine.replay(recorded);
            }
            // A card that fails at more than recording fails below as well.
            if self.records && self.record(recording, job).unwrap_or(false) {
                return Ok(());
            }
            self.records = false;
        }
        let parts = Parts { ops: &mut self.ops, work: &mut self.work, tokens: &mut self.tokens };
        run(stage(&self.stages, job.stage)?, parts, &step, job, recording)?;
        if worth_it && self.records {
            self.remember(recording);
        }
        Ok(())
    }

    /// Records a run that was just found, and runs it; where that is not done or fails, nothing has run.
    fn record(&mut self, recording: Recording, job: &Job<'_>) -> Result<bool, CardError> {
        let stage = stage(&self.stages, job.stage)?;
        if !self.machine.record()? {
            return Ok(false);
        }
        let parts = Parts { ops: &mut self.ops, work: &mut self.work, tokens: &mut self.tokens };
        let ran = run(stage, parts, &recording.step, job, recording);
        // Recording is ended also if something failed, or nothing would run any more.
        let recorded = self.machine.recorded();
        ran?;
        let recorded = recorded?;
        self.machine.replay(recorded)?;
        self.seen.was_recorded(recorded);
        Ok(true)
    }

    fn all_renewals(&self) -> usize {
        self.ops.renewals() + self.work.renewals() + self.input.renewals() + self.tokens.renewals()
    }

    fn remember(&mut self, recording: Recording) {
        if self.all_renewals() != self.renewals {
            self.forget_recorded();
            self.renewals = self.all_renewals();
        }
        if let Some(recorded) = self.seen.came_up(recording) {
            self.machine.forget(recorded);
        }
    }

    fn forget_recorded(&mut self) {
        self.seen.clear();
        self.machine.forget_recorded();
    }

    /// Waits for a step's logits, `[row][vocab]`.
    pub(crate) fn logits(&mut self, job: &Job<'_>, out: &mut Vec<f32>) -> Result<(), CardError> {
        let vocab = self.stages.get(&job.stage).map_or(0, CardStage::vocab);
        out.resize(job.chosen.len() * vocab, 0.0);
        self.machine.download(Queue::Compute, self.work.logits.at(), bytemuck::cast_slice_mut(out))
    }

    /// Waits for a step's rows, for the next stage.
    pub(crate) fn hidden(&mut self, job: &Job<'_>, rows: usize, out: &mut Vec<f32>) -> Result<(), CardError> {
        let width = self.stages.get(&job.stage).map_or(0, |stage| stage.width);
        out.resize(rows * width, 0.0);
        self.machine.download(Queue::Compute, self.work.hidden.at(), bytemuck::cast_slice_mut(out))
    }

    /// Waits for the tokens chosen.
    pub(crate) fn tokens(&mut self, job: &Job<'_>) -> Result<Vec<Token>, CardError> {
        let mut out = vec![0u32; job.chosen.len()];
        self.machine.download(Queue::Compute, self.tokens.at(), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out.into_iter().map(Token).collect())
    }

    /// Has what leaves wait until a layer's keys and values are stored.
    pub(crate) fn wait_for_layer(&self, layer: usize) -> Result<(), CardError> {
        self.machine.wait_for(layer)
    }

    fn pool(&self) -> u64 {
        self.pages.as_ref().map_or(0, Memory::at)
    }
}

/// What a run writes.
struct Parts<'a> {
    ops: &'a mut Ops,
    work: &'a mut Work,
    tokens: &'a mut Buffer,
}

fn stage(stages: &BTreeMap<StageKey, CardStage>, key: StageKey) -> Result<&CardStage, CardError> {
    stages.get(&key).ok_or_else(|| CardError::Unsupported("a stage not loaded".into()))
}

/// Refuses a step that a card would refuse to launch, and not in words.
fn check_rows(job: &Job<'_>) -> Result<(), CardError> {
    let (rows, most) = (job.batch.iter().map(|slice| slice.len as usize).sum(), MOST_ROWS);
    if rows <= most { Ok(()) } else { Err(CardError::Rows { rows, most }) }
}

/// Launches all of a step.
fn run(stage: &CardStage, parts: Parts<'_>, step: &Step, job: &Job<'_>, recording: Recording) -> Result<(), CardError> {
    let Parts { ops, work, tokens } = parts;
    if recording.embeds {
        stage.embed(ops, work, step)?;
    }
    stage.layers(ops, work, step, job.layout, job.marks)?;
    stage.logits(ops, work, step)?;
    if recording.chooses {
        let out = tokens.fit(step.chosen_rows * 4)?;
        ops.choose(work.logits.at(), step.chosen_rows, stage.vocab(), step.choices, out)?;
    }
    Ok(())
}
