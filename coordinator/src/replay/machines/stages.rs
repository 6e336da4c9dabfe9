//! Machines whose stages choose for themselves: each has queues of its own, runs what its policy takes from them, and hands it
//! to the next (DistServe's simulator). Batches overtake each other, and are put together anew, at every stage.

use super::{Batch, MachineNo, ReplayEvent, RequestPhase, Seconds, Simulation, State};
use crate::policy::batching::StageNo;

/// The stages of a machine and what they run.
#[derive(Debug)]
pub(super) struct Stages(Vec<Option<(Batch, Seconds)>>);

impl Stages {
    /// Of a machine with nothing to do.
    pub(super) fn new(stages: usize) -> Self {
        Self(vec![None; stages])
    }

    /// Whether the first could begin.
    pub(super) fn takes(&self) -> bool {
        self.0.first().is_some_and(Option::is_none)
    }
}

impl Simulation {
    /// A stage begins what comes next, if it runs nothing and there is something. What of it sets off is told of the first.
    pub(super) fn begin_stage(&mut self, machine: MachineNo, place: usize, now: Seconds) {
        let m = machine.0 as usize;
        let State::Stages(stages) = &mut self.states[m] else { return };
        let of = stages.0.len();
        let Some(free) = stages.0.get_mut(place).filter(|stage| stage.is_none()) else { return };
        let batch = self.machines[m].batching.select_at(StageNo { place, of });
        if batch.is_empty() {
            return;
        }
        *free = Some((batch, now));
        self.batches += u64::from(place == 0);
        self.agenda.at(now + self.machines[m].cost.stage(place, &batch), ReplayEvent::Stage(machine, place));
        if place > 0 {
            return;
        }
        let traces = &mut self.traces;
        self.machines[m].batching.chosen(&mut |request, part| {
            let trace = &mut traces[request.0 as usize];
            match part {
                RequestPhase::Answer => trace.answer_start = now,
                RequestPhase::Prompt => trace.prompt_start = now,
            }
        });
    }

    /// A stage has done what it ran: it goes on before the next one does.
    pub(super) fn stage_done(&mut self, machine: MachineNo, place: usize, now: Seconds) {
        let m = machine.0 as usize;
        let State::Stages(stages) = &mut self.states[m] else { return };
        let stage = StageNo { place, of: stages.0.len() };
        let Some((batch, began)) = stages.0.get_mut(place).and_then(Option::take) else { return };
        self.busy[m] += (now - began) / stage.of as f64;
        let mut ended = Vec::new();
        self.machines[m].batching.ran_at(stage, &mut ended);
        if let (true, Some(timeline)) = (stage.is_last(), &mut self.timeline) {
            timeline.ran(machine, &batch, 1, began, now - began);
        }
        for (request, part) in ended {
            match part {
                RequestPhase::Prompt => self.prompt_ended(machine, request, now),
                RequestPhase::Answer => self.ended(machine, request, now),
            }
        }
        self.begin_stage(machine, place, now);
        self.agenda.at(now, ReplayEvent::Next(machine, (place + 1) % stage.of));
    }
}
