//! Steps of several GPUs recorded as one CUDA graph and run again, so that a step is asked for once, not launch by launch and
//! GPU by GPU.
//!
//! The first GPU's compute queue begins. By waiting for its offer the others' queues are recorded with it; what GPUs offer and
//! wait for on the way becomes what the graph's work waits for. Before recording ends the first waits for all others, or the
//! driver refuses the graph. The graph runs in the first's queue: it waits for what the others were told of the step, and they
//! wait for it before they do anything else.
//!
//! Recorded are steps whose columns are copied straight from GPU to GPU, where a recorded gather gave what it should when the
//! GPUs were put together ([`Gathers::can_be_recorded`](super::Gathers)).

use super::GpuRanks;
use crate::{
    cuda::{
        Gpu, GpuError, GpuInput, GpuJob, RECORDED_ROWS,
        machine::{Machine, Recorded},
        recordings::Recordings,
        step::GpuStep,
    },
    engine::StageKey,
};
use std::sync::Arc;

/// GPUs whose work is recorded as one; the first begins and ends.
#[derive(Debug)]
pub(super) struct RecordedAsOne(Vec<Arc<dyn Machine>>);

impl RecordedAsOne {
    pub fn new(machines: Vec<Arc<dyn Machine>>) -> Self {
        Self(machines)
    }

    /// Records what all of them are asked for meanwhile, and does not run it; none where that is not done.
    pub fn record(&self, ask: impl FnOnce() -> Result<(), GpuError>) -> Result<Option<Recorded>, GpuError> {
        if !self.first().record()? {
            return Ok(None);
        }
        let asked = self.others_follow().and_then(|()| ask()).and_then(|()| self.first_follows());
        // Recording is ended also if something failed, or none of the GPUs would run anything any more.
        let recorded = self.first().recorded();
        if let (Err(_), Ok(part)) = (&asked, &recorded) {
            self.first().forget(*part);
        }
        asked?;
        recorded.map(Some)
    }

    /// Runs what was recorded once all have done what they were asked before. What they are asked next is behind it only after
    /// [`Self::others_follow`].
    pub fn replay(&self, recorded: Recorded) -> Result<(), GpuError> {
        self.first_follows()?;
        self.first().replay(recorded)
    }

    /// What the others are asked next waits for what the first was asked.
    pub fn others_follow(&self) -> Result<(), GpuError> {
        let offer = self.first().offer()?;
        self.0.iter().skip(1).try_for_each(|other| other.follow(offer))
    }

    /// What the first is asked next waits for what the others were asked.
    fn first_follows(&self) -> Result<(), GpuError> {
        self.0.iter().skip(1).try_for_each(|other| self.first().follow(other.offer()?))
    }

    pub fn forget(&self, recorded: Recorded) {
        self.first().forget(recorded);
    }

    fn first(&self) -> &Arc<dyn Machine> {
        &self.0[0]
    }
}

/// What a recorded run was of: the same launches and copies with the same arguments, on each GPU.
#[derive(Clone, Debug, PartialEq)]
struct RanksRecording {
    stage: StageKey,
    steps: Vec<GpuStep>,
    chooses: bool,
    embeds: bool,
}

/// Runs of several GPUs that came up, and what was recorded of them.
#[derive(Debug)]
pub(super) struct RanksRecordings {
    gpus: Arc<RecordedAsOne>,
    seen: Recordings<RanksRecording>,
    /// Whether runs are recorded: until that fails once.
    records: bool,
    /// How often memory had been taken anew when they came up.
    renewals: usize,
}

impl RanksRecordings {
    /// Of these GPUs.
    pub(super) fn of(gpus: Vec<Arc<dyn Machine>>) -> Self {
        let seen = Recordings::of(gpus.len());
        Self { gpus: Arc::new(RecordedAsOne::new(gpus)), seen, records: true, renewals: 0 }
    }
}

impl GpuRanks {
    /// Computes a step that all GPUs were told of, from a recording where it came up before.
    pub(super) fn run_or_replay(&mut self, job: &GpuJob<'_>) -> Result<(), GpuError> {
        if !self.is_worth_recording(job) {
            return self.run(job);
        }
        let recording = self.recording(job);
        let known = self.recordings.seen.find(&recording);
        if let Some(recorded) = known.filter(|_| self.all_renewals() == self.recordings.renewals) {
            if let Some(recorded) = recorded {
                self.recordings.gpus.replay(recorded)?;
                return self.recordings.gpus.others_follow();
            }
            if self.recordings.records && self.gathers.can_be_recorded() && self.record(job)? {
                return Ok(());
            }
            self.recordings.records = false;
        }
        self.run(job)?;
        if self.recordings.records {
            self.remember(recording);
        }
        Ok(())
    }

    fn is_worth_recording(&self, job: &GpuJob<'_>) -> bool {
        !job.marks && self.steps.iter().all(|step| step.rows <= RECORDED_ROWS && step.tiles_count == 0)
    }

    fn recording(&self, job: &GpuJob<'_>) -> RanksRecording {
        RanksRecording {
            stage: job.stage,
            steps: self.steps.clone(),
            chooses: !job.choices.is_empty(),
            embeds: matches!(job.rows, GpuInput::Tokens(tokens) if !tokens.is_empty()),
        }
    }

    /// Records a run that was just found, and runs it; `false` where that is not done or fails, and nothing has run: GPUs that
    /// fail at more than recording fail at the run as well. An error is of GPUs on which it may have run.
    fn record(&mut self, job: &GpuJob<'_>) -> Result<bool, GpuError> {
        let gpus = self.recordings.gpus.clone();
        let Ok(Some(recorded)) = gpus.record(|| self.run(job)) else { return Ok(false) };
        if gpus.replay(recorded).is_err() {
            gpus.forget(recorded);
            return Ok(false);
        }
        self.recordings.seen.was_recorded(recorded);
        gpus.others_follow()?;
        Ok(true)
    }

    fn all_renewals(&self) -> usize {
        self.each.iter().map(Gpu::all_renewals).sum()
    }

    fn remember(&mut self, recording: RanksRecording) {
        let renewals = self.all_renewals();
        if renewals != self.recordings.renewals {
            self.forget_recorded();
            self.recordings.renewals = renewals;
        }
        if let Some(recorded) = self.recordings.seen.came_up(recording) {
            self.recordings.gpus.forget(recorded);
        }
    }

    /// Forgets all that was recorded of several GPUs.
    pub(super) fn forget_recorded(&mut self) {
        self.recordings.seen.clear();
        if self.each.len() > 1 {
            self.each[0].machine.forget_recorded();
        }
    }
}
