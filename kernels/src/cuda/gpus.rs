//! GPUs that hold stages together: each has its outputs of every matrix, its heads and pages for those, and all have whole
//! rows, as ranks of processors have ([`ranks`](crate::ranks)).
//!
//! One thread asks all of them in turns, a piece of a layer at a time; between two pieces every GPU copies the others'
//! columns beside its own, once those are computed, or takes them by NCCL ([`gathers`]). GPUs wait for each other by marks in
//! their queues, and nobody waits for a GPU before a step's results are wanted. Steps that come up again are recorded
//! ([`recording`]).
//!
//! Nothing is overwritten that another still copies from: a GPU writes where it wrote two pieces ago ([`GpuLayerPiece::ALL`]), and
//! when others offered what they computed since, they had been asked to copy that before. By the same a GPU that grows its
//! memory, which waits for all it was asked, gives none back that is copied from.

mod gathers;
mod recording;
mod tiles;

pub(in crate::cuda) use gathers::{Gathers, NcclTimeouts};
use recording::RanksRecordings;
pub(crate) use tiles::{TilePart, TilePlace};

use super::{
    ChosenToken, Columns, GatherWay, Gpu, GpuError, GpuInput, GpuJob, GpuKv, GpuLayerPiece, GpuPass, GpuStage,
    machine::{Machine, Rectangle},
    stage,
    step::GpuStep,
};
use crate::{
    engine::StageKey,
    models::Outline,
    pages::{PAGE_BYTES, PageLayout},
};
use std::sync::Arc;

/// Brings weights to GPUs, from any thread, while they compute.
#[derive(Clone, Debug)]
pub(crate) struct GpuCarrier(Vec<Arc<dyn Machine>>);

impl GpuCarrier {
    /// Copies a stage to the GPUs, a part of it to each, and waits until it is there; if one cannot take it none has it.
    pub fn carry<'a>(&self, parts: impl Iterator<Item = (Outline<'a>, PageLayout)>) -> Result<Vec<GpuStage>, GpuError> {
        let gpus = self.0.iter().zip(parts);
        gpus.map(|(machine, (outline, layout))| GpuStage::load(machine, &outline, &layout)).collect()
    }
}

/// One GPU, or several with a rank each.
#[derive(Debug)]
pub(crate) struct GpuRanks {
    each: Vec<Gpu>,
    /// Of the step at hand, by GPU; kept from step to step.
    steps: Vec<GpuStep>,
    columns: Vec<Columns>,
    gathers: Gathers,
    recordings: RanksRecordings,
    /// A GPU's part of a tile.
    packed: Vec<u8>,
}

impl GpuRanks {
    /// Of one GPU or more, with memory of so many pages on each.
    pub fn new(mut each: Vec<Gpu>, pages: impl Fn(usize) -> usize) -> Result<Self, GpuError> {
        if each.is_empty() {
            return Err(GpuError::Missing("no GPU".into()));
        }
        for (rank, gpu) in each.iter_mut().enumerate() {
            gpu.reserve(pages(rank) * PAGE_BYTES)?;
        }
        // Memory that pages leave is what NCCL may take.
        let machines: Vec<_> = each.iter().map(|gpu| gpu.machine.clone()).collect();
        let recordings = RanksRecordings::of(machines.clone());
        let gathers = Gathers::among(machines, NcclTimeouts::default())?;
        let (steps, columns, packed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { each, steps, columns, gathers, recordings, packed })
    }

    /// How they put their columns side by side; none where there is one GPU.
    pub fn gathers(&self) -> Option<&GatherWay> {
        self.gathers.way()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.each.len()
    }

    /// What brings weights to them.
    pub fn carrier(&self) -> GpuCarrier {
        GpuCarrier(self.each.iter().map(|gpu| gpu.machine.clone()).collect())
    }

    /// Takes a stage that was brought here, a part of it on each.
    pub fn put(&mut self, key: StageKey, parts: Vec<GpuStage>) {
        self.each.iter_mut().zip(parts).for_each(|(gpu, part)| gpu.put(key, part));
    }

    pub fn unload(&mut self, key: StageKey) {
        // What fails is an error of what is asked next.
        let _ = self.gathers.settle();
        // A recording runs on GPUs that it is not kept by.
        self.forget_recorded();
        self.each.iter_mut().for_each(|gpu| gpu.unload(key));
    }

    /// Computes a step; it is under way when this returns.
    pub fn start(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        if let ([only], [share]) = (self.each.as_mut_slice(), job.shares) {
            return only.start(job, share);
        }
        let started = self.start_together(job);
        if started.is_err() {
            self.come_to_rest();
        }
        started
    }

    /// What one still copies from another of a step that failed must not be written by the next.
    fn come_to_rest(&mut self) {
        let _ = self.gathers.settle();
        // A GPU that is lost copies nothing any more.
        self.each.iter().for_each(|gpu| drop(gpu.machine.finish()));
    }

    fn start_together(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        self.steps.clear();
        for (gpu, share) in self.each.iter_mut().zip(job.shares) {
            self.steps.push(gpu.send(job, share)?);
        }
        // Rows enter the first GPU, which has the table of tokens.
        self.each[0].take_rows(job)?;
        self.run_or_replay(job)
    }

    /// Asks all GPUs for all of a step.
    fn run(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        self.enter(job)?;
        for layer in 0..stage(&self.each[0].stages, job.stage)?.layers() {
            for piece in GpuLayerPiece::ALL {
                self.columns.clear();
                for ((gpu, share), step) in self.each.iter_mut().zip(job.shares).zip(&self.steps) {
                    self.columns.push(gpu.piece(job, share, step, layer, piece)?);
                }
                self.gathers.put_side_by_side(&self.columns)?;
            }
        }
        for (gpu, step) in self.each.iter_mut().zip(&self.steps) {
            gpu.end(job.stage, step)?;
        }
        self.head(job)
    }

    /// Rows go from the first GPU to the others.
    fn enter(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        let Some((first, others)) = self.each.split_first_mut() else { return Ok(()) };
        if matches!(job.rows, GpuInput::Tokens(_)) {
            first.embed(job.stage, &self.steps[0])?;
        }
        let width = self.steps[0].rows * stage(&first.stages, job.stage)?.width * 4;
        let (offer, from) = (first.machine.offer()?, first.work.hidden.at());
        for other in others {
            let to = other.work.hidden.fit(width)?;
            let rows = Rectangle { from, from_pitch: width, to, to_pitch: width, width, rows: 1 };
            other.machine.fetch(offer, rows)?;
        }
        Ok(())
    }

    /// Logits of all GPUs, side by side on the first, which chooses tokens by them.
    fn head(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        self.columns.clear();
        for (gpu, step) in self.each.iter_mut().zip(&self.steps) {
            self.columns.extend(gpu.head(job.stage, step)?);
        }
        if self.columns.is_empty() {
            return Ok(());
        }
        self.gathers.put_on_first(&self.columns)?;
        if job.choices.is_empty() { Ok(()) } else { self.each[0].choose(job.stage, &self.steps[0]) }
    }

    /// Waits for a step's logits, `[row][vocab]`.
    pub fn logits(&mut self, job: &GpuJob<'_>, out: &mut Vec<f32>) -> Result<(), GpuError> {
        self.others_are_done()?;
        self.each[0].logits(job, out)
    }

    /// Waits for a step's rows, for the next stage.
    pub fn hidden(&mut self, job: &GpuJob<'_>, rows: usize, out: &mut Vec<f32>) -> Result<(), GpuError> {
        self.others_are_done()?;
        self.each[0].hidden(job, rows, out)
    }

    /// Waits for the tokens chosen.
    pub fn tokens(&mut self, job: &GpuJob<'_>) -> Result<Vec<ChosenToken>, GpuError> {
        self.others_are_done()?;
        self.each[0].tokens(job)
    }

    /// Waits for all GPUs but the first: what it has of one that was lost meanwhile is no result.
    fn others_are_done(&mut self) -> Result<(), GpuError> {
        self.gathers.settle()?;
        self.each.iter().skip(1).try_for_each(|gpu| gpu.machine.finish())
    }

    /// Whether all of them still do what they are asked for.
    pub fn check(&self) -> Result<(), GpuError> {
        self.each.iter().try_for_each(Gpu::check)
    }

    /// Has what leaves wait until a layer's keys and values are stored.
    pub fn wait_for_layer(&self, layer: usize) -> Result<(), GpuError> {
        self.each.iter().try_for_each(|gpu| gpu.wait_for_layer(layer))
    }
}

impl Gpu {
    fn piece(
        &mut self,
        job: &GpuJob<'_>,
        share: &GpuKv<'_>,
        step: &GpuStep,
        layer: usize,
        piece: GpuLayerPiece,
    ) -> Result<Columns, GpuError> {
        let pass = GpuPass { step, layout: share.layout, marks: job.marks };
        stage(&self.stages, job.stage)?.piece(&mut self.ops, &mut self.work, pass, layer, piece)
    }

    fn end(&mut self, key: StageKey, step: &GpuStep) -> Result<(), GpuError> {
        stage(&self.stages, key)?.end(&mut self.ops, &mut self.work, step)
    }
}

impl Drop for GpuRanks {
    fn drop(&mut self) {
        // The memory of one goes while another may still copy from it.
        if self.each.len() > 1 {
            self.come_to_rest();
            // Before one of the GPUs that they are of.
            self.forget_recorded();
        }
    }
}
