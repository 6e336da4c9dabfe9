//! Arithmetic on NVIDIA GPUs, with nothing but a driver installed. What was measured on one, and what was not,
//! is in `docs/design/gpus.md`. A GPU is used only by who opens one.
//!
//! | file | what it holds |
//! |---|---|
//! | `device/*.cu` | the kernels, in CUDA C++ |
//! | `ptx/` | what they compile to (`scripts/cuda_kernels.sh`) |
//! | `machine.rs` | what is asked of a GPU: memory, copies, launches |
//! | `driver_api.rs` | a GPU, by the driver's library |
//! | `jit.rs` | kernels compiled for the very GPU, where they are faster |
//! | `libraries.rs` | where NVIDIA's libraries are looked for |
//! | `emulator.rs` | the processor in place of a GPU, for tests |
//! | `weights.rs` | weights as they lie on a GPU |
//! | `ops.rs` | operations: which kernel, how many blocks |
//! | `mmq.rs` | how products of rounded rows with quantised weights are cut |
//! | `stage.rs` | a stage's layers as operations |
//! | `step.rs` | what a GPU is told of a step |
//! | `recordings.rs` | which runs came up, and what was recorded of them |
//! | `probe.rs`, `nvml.rs` | what a GPU can do, measured and by its own word |
//! | `choose.rs` | tokens chosen there |
//! | `tiles.rs` | KV packed and unpacked there |
//! | `gpus.rs` | several GPUs that hold stages together |
//! | `gather_way.rs` | the ways of putting columns side by side, and why one was taken |
//! | `gpus/gathers.rs` | how they put columns side by side: by copies, or by NCCL |
//! | `gpus/recording.rs` | their steps recorded as one |
//! | `columns.rs` | what each of them computes of a row, and where |

mod buffers;
mod choose;
mod columns;
mod driver_api;
#[cfg(test)]
mod emulator;
mod gather_way;
mod gpus;
mod jit;
mod libraries;
mod machine;
mod mmq;
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

pub(crate) use choose::{ChosenToken, RowChoice};
pub use driver_api::usable;
pub use gather_way::{GatherWay, NoNccl, TimedGather};
pub(crate) use gpus::{GpuCarrier, GpuRanks, TilePart, TilePlace};
pub use jit::{CacheState, KernelCache, Kernels, LaunchOverlap, NotCompiled, TimedFile, TimedKernels};
pub use libraries::{Libraries, Library};
pub use machine::GpuError;
pub(crate) use machine::Queue;
pub use nvml::{GpuFacts, PcieLink};
pub use probe::GpuSpeeds;
pub(crate) use stage::{EXPERTS_TOGETHER, GpuStage};
pub(crate) use tiles::PackingSeconds;
use tiles::{GpuTile, GpuTurn};
pub(crate) use weights::{bytes_on_gpu, expert_bytes_on_gpu};

use crate::{
    engine::{Slice, StageKey},
    pages::{PAGE_BYTES, PageLayout},
};
use buffers::Buffer;
use columns::Columns;
use machine::{GpuMemory, Machine};
use ops::Ops;
use recordings::Recordings;
use stage::{GpuLayerPiece, GpuPass, GpuScratch};
use std::collections::BTreeMap;
use std::sync::Arc;
use step::{GpuStep, GpuStepInput, StepInput};
use tsnode_protocol::{Experts, Token};

/// Of a GPU's free memory, what weights and pages leave for what is between kernels and for the driver.
const HEADROOM: usize = 1 << 30;
/// Rows of a step: what a grid has room for in its second and third direction, in which some kernels have their rows.
const MOST_ROWS: usize = 65_535;
/// Rows of a step from which recording saves nothing.
const RECORDED_ROWS: usize = 256;

/// Rows of a step from which kernels of many rows compute all of it, also what experts make of them.
pub(crate) fn many_rows(experts: Option<Experts>) -> usize {
    let routed = experts.map_or(0, |experts| ops::rows_of_many(experts.used as usize, experts.count as usize));
    routed.max(mmq::ROUNDED + 1)
}

/// A GPU with what is loaded on it.
#[derive(Debug)]
pub struct Gpu {
    // Stages and memory go before the machine they are on.
    stages: BTreeMap<StageKey, GpuStage>,
    pages: Option<GpuMemory>,
    work: GpuScratch,
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

/// What a GPU is by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuInfo {
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
    pub facts: GpuFacts,
    /// How its kernels were made.
    pub kernels: Kernels,
}

/// What a recorded run was of: the same launches with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Recording {
    stage: StageKey,
    step: GpuStep,
    chooses: bool,
    embeds: bool,
}

/// What a GPU is to compute.
pub(crate) struct GpuJob<'a> {
    pub stage: StageKey,
    pub batch: &'a [Slice],
    pub rows: GpuInput<'a>,
    /// Rows that logits are wanted of.
    pub chosen: &'a [usize],
    /// How their tokens are chosen, if they are chosen there.
    pub choices: &'a [RowChoice],
    /// By GPU.
    pub shares: &'a [GpuKv<'a>],
    /// Query heads that share one of keys and values.
    pub group: usize,
    /// Whether each layer is marked once its keys and values are stored.
    pub marks: bool,
}

/// Where a GPU has the keys and values of a step.
pub(crate) struct GpuKv<'a> {
    /// Pages of every layer and sequence, `most` each, then of every sequence's state.
    pub tables: &'a [u32],
    /// A number that only these tables of this GPU have had.
    pub edition: u64,
    pub most: usize,
    /// Of a sequence.
    pub state_pages: usize,
    pub layout: PageLayout,
}

/// What enters a stage.
#[derive(Clone, Copy)]
pub(crate) enum GpuInput<'a> {
    Tokens(&'a [Token]),
    Hidden(&'a [f32]),
}

impl Gpu {
    /// The GPU of this number among those that `CUDA_VISIBLE_DEVICES` leaves, with kernels compiled ahead.
    ///
    /// # Errors
    /// When there is no driver, no such GPU, or it does not start.
    pub fn open(ordinal: u16) -> Result<Self, GpuError> {
        Ok(Self::on(driver_api::open(ordinal)?))
    }

    /// The same, with kernels compiled for this very GPU where NVRTC is found and they are faster. The first time that takes
    /// seconds; what was chosen is kept, and holds until the GPU, the driver, NVRTC or the kernels change.
    /// [`GpuInfo::kernels`] says what was chosen, and why.
    ///
    /// # Errors
    /// As [`Gpu::open`]: what fails while kernels are chosen is no error, and they are compiled ahead then.
    pub fn open_with(ordinal: u16, cache: &KernelCache) -> Result<Self, GpuError> {
        let nvrtc = jit::Nvrtc::find();
        let compiler = nvrtc.as_ref().map(|nvrtc| nvrtc as &dyn jit::KernelCompiler).map_err(Clone::clone);
        Ok(Self::on(driver_api::open_with(ordinal, compiler, cache)?))
    }

    /// On a machine.
    pub(crate) fn on(machine: Arc<dyn Machine>) -> Self {
        let buffer = || Buffer::new(machine.clone());
        Self {
            stages: BTreeMap::new(),
            pages: None,
            work: GpuScratch::new(&machine),
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

    /// What the GPU is by the driver and the management library.
    #[must_use]
    pub fn about(&self) -> GpuInfo {
        self.machine.about()
    }

    /// Memory for pages (bytes) if weights take so much: what is free, less headroom.
    ///
    /// # Errors
    /// When the GPU does not answer.
    pub fn pool_bytes(&self, weights: u64) -> Result<usize, GpuError> {
        let free = self.machine.free_bytes()?;
        Ok(free.saturating_sub(HEADROOM + free / 16).saturating_sub(weights as usize))
    }

    /// Waits for all that the GPU was asked for, and asks it something: a GPU that is lost, or in whose memory something could
    /// not be corrected, answers with that from then on.
    ///
    /// # Errors
    /// When it does not answer as it should.
    pub fn check(&self) -> Result<(), GpuError> {
        self.machine.finish()?;
        self.machine.free_bytes().map(|_| ())
    }

    /// Memory for the pages of several GPUs (bytes), by what weights take on each: [`Engine::on_gpus`] shares it out
    /// alike, so the GPU that has least says how much.
    ///
    /// [`Engine::on_gpus`]: crate::engine::Engine::on_gpus
    ///
    /// # Errors
    /// When a GPU does not answer.
    pub fn pool_bytes_of_all(gpus: &[Self], weights: &[u64]) -> Result<usize, GpuError> {
        let mut least = usize::MAX;
        for (gpu, weights) in gpus.iter().zip(weights) {
            least = least.min(gpu.pool_bytes(*weights)?);
        }
        Ok(if gpus.is_empty() { 0 } else { least.saturating_mul(gpus.len()) })
    }

    /// Takes memory for pages.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), GpuError> {
        self.pages = Some(GpuMemory::take(&self.machine, bytes / PAGE_BYTES * PAGE_BYTES)?);
        Ok(())
    }

    /// Takes a stage that was brought here.
    pub(crate) fn put(&mut self, key: StageKey, stage: GpuStage) {
        self.stages.insert(key, stage);
    }

    /// How the keys of a stage's layer turn.
    pub(crate) fn turn(&self, key: StageKey, layer: usize) -> Option<GpuTurn> {
        self.stages.get(&key).and_then(|stage| stage.turn(layer))
    }

    pub(crate) fn unload(&mut self, key: StageKey) {
        // Memory that a GPU fails to free is lost with the GPU.
        let _ = self.machine.finish();
        self.forget_recorded();
        self.stages.remove(&key);
    }

    /// Copies pages, before anything else is written.
    pub(crate) fn copy_pages(&mut self, copies: &[(u32, u32)]) -> Result<(), GpuError> {
        let at = |page: u32| self.pool() + u64::from(page) * PAGE_BYTES as u64;
        // A state is many pages, which mostly lie together in both places: what does not overlap goes at once.
        for run in copies.chunk_by(|a, b| (b.0 + 1, b.1 + 1) == *a) {
            let apart = run[0].0.abs_diff(run[0].1).max(1);
            for some in run.chunks(apart as usize) {
                let (from, to) = some[some.len() - 1];
                self.machine.copy(at(from), at(to), some.len() * PAGE_BYTES)?;
            }
        }
        Ok(())
    }

    /// Computes a step; it is under way when this returns.
    pub(crate) fn start(&mut self, job: &GpuJob<'_>, share: &GpuKv<'_>) -> Result<(), GpuError> {
        stage(&self.stages, job.stage)?;
        let step = self.send(job, share)?;
        self.take_rows(job)?;
        let recording = Recording {
            stage: job.stage,
            step,
            chooses: !job.choices.is_empty(),
            embeds: matches!(job.rows, GpuInput::Tokens(tokens) if !tokens.is_empty()),
        };
        let worth_it = step.rows <= RECORDED_ROWS && step.tiles_count == 0 && !job.marks;
        let known = if worth_it { self.seen.find(&recording) } else { None };
        if let Some(recorded) = known.filter(|_| self.all_renewals() == self.renewals) {
            if let Some(recorded) = recorded {
                return self.machine.replay(recorded);
            }
            // A GPU that fails at more than recording fails below as well.
            if self.records && self.record(recording, job, share).unwrap_or(false) {
                return Ok(());
            }
            self.records = false;
        }
        self.run(&step, job, share, recording)?;
        if worth_it && self.records {
            self.remember(recording);
        }
        Ok(())
    }

    /// Tells the GPU of a step.
    fn send(&mut self, job: &GpuJob<'_>, share: &GpuKv<'_>) -> Result<GpuStep, GpuError> {
        check_rows(job)?;
        let tokens = match job.rows {
            GpuInput::Tokens(tokens) => tokens,
            GpuInput::Hidden(_) => &[],
        };
        let wanted = GpuStepInput {
            batch: job.batch,
            tokens,
            chosen: job.chosen,
            choices: job.choices,
            tables: share.tables,
            edition: share.edition,
            most: share.most,
            state_pages: share.state_pages,
            dtype: share.layout.dtype,
            group: job.group,
            memory: self.pool(),
        };
        self.input.send(&self.machine, &wanted)
    }

    /// Copies rows of the stage before to the GPU, if such enter.
    fn take_rows(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        let GpuInput::Hidden(rows) = job.rows else { return Ok(()) };
        let at = self.work.hidden.fit(rows.len() * 4)?;
        self.machine.upload(Queue::Compute, at, bytemuck::cast_slice(rows))
    }

    /// Records a run that was just found, and runs it; where that is not done or fails, nothing has run.
    fn record(&mut self, recording: Recording, job: &GpuJob<'_>, share: &GpuKv<'_>) -> Result<bool, GpuError> {
        if !self.machine.record()? {
            return Ok(false);
        }
        let ran = self.run(&recording.step, job, share, recording);
        // Recording is ended also if something failed, or nothing would run any more.
        let recorded = self.machine.recorded();
        ran?;
        let recorded = recorded?;
        self.machine.replay(recorded)?;
        self.seen.was_recorded(recorded);
        Ok(true)
    }

    /// Launches all of a step.
    fn run(&mut self, step: &GpuStep, job: &GpuJob<'_>, share: &GpuKv, recording: Recording) -> Result<(), GpuError> {
        if recording.embeds {
            self.embed(job.stage, step)?;
        }
        let pass = GpuPass { step, layout: share.layout, marks: job.marks };
        stage(&self.stages, job.stage)?.run(&mut self.ops, &mut self.work, pass)?;
        self.head(job.stage, step)?;
        if recording.chooses { self.choose(job.stage, step) } else { Ok(()) }
    }

    fn embed(&mut self, key: StageKey, step: &GpuStep) -> Result<(), GpuError> {
        stage(&self.stages, key)?.embed(&self.ops, &mut self.work, step)
    }

    /// The GPU's columns of logits.
    fn head(&mut self, key: StageKey, step: &GpuStep) -> Result<Option<Columns>, GpuError> {
        stage(&self.stages, key)?.logits(&mut self.ops, &mut self.work, step)
    }

    /// Chooses tokens by logits of which the GPU has all.
    fn choose(&mut self, key: StageKey, step: &GpuStep) -> Result<(), GpuError> {
        let vocab = stage(&self.stages, key)?.vocab();
        let out = self.tokens.fit(step.chosen_rows * size_of::<ChosenToken>())?;
        self.ops.choose(self.work.logits.at(), step.chosen_rows, vocab, step.choices, out)
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
    pub(crate) fn logits(&mut self, job: &GpuJob<'_>, out: &mut Vec<f32>) -> Result<(), GpuError> {
        let vocab = self.stages.get(&job.stage).map_or(0, GpuStage::vocab);
        out.resize(job.chosen.len() * vocab, 0.0);
        self.machine.download(Queue::Compute, self.work.logits.at(), bytemuck::cast_slice_mut(out))
    }

    /// Waits for a step's rows, for the next stage.
    pub(crate) fn hidden(&mut self, job: &GpuJob<'_>, rows: usize, out: &mut Vec<f32>) -> Result<(), GpuError> {
        let width = self.stages.get(&job.stage).map_or(0, |stage| stage.width);
        out.resize(rows * width, 0.0);
        self.machine.download(Queue::Compute, self.work.hidden.at(), bytemuck::cast_slice_mut(out))
    }

    /// Waits for the tokens chosen.
    pub(crate) fn tokens(&mut self, job: &GpuJob<'_>) -> Result<Vec<ChosenToken>, GpuError> {
        let mut out = vec![ChosenToken::default(); job.chosen.len()];
        self.machine.download(Queue::Compute, self.tokens.at(), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Has what leaves wait until a layer's keys and values are stored.
    pub(crate) fn wait_for_layer(&self, layer: usize) -> Result<(), GpuError> {
        self.machine.wait_for(layer)
    }

    fn pool(&self) -> u64 {
        self.pages.as_ref().map_or(0, GpuMemory::at)
    }
}

fn stage(stages: &BTreeMap<StageKey, GpuStage>, key: StageKey) -> Result<&GpuStage, GpuError> {
    stages.get(&key).ok_or_else(|| GpuError::Unsupported("a stage not loaded".into()))
}

/// Refuses a step that a GPU would refuse to launch, and not in words.
fn check_rows(job: &GpuJob<'_>) -> Result<(), GpuError> {
    let (rows, most) = (job.batch.iter().map(|slice| slice.len as usize).sum(), MOST_ROWS);
    if rows <= most { Ok(()) } else { Err(GpuError::Rows { rows, most }) }
}
