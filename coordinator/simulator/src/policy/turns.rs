//! Several models on one machine as peers run them: each forms its steps for itself, of chunks of prompts and answers, and has
//! memory of its own; an arbiter says whose step is computed next. Both are the nodes' own objects.

use std::collections::BTreeMap;
use tsnode_coordinator::policy::{
    batching::{Batch, Batching, RequestNo, RequestPhase, Seen, ServiceNo, Stepwise, Task},
    sharing::arbiter::{Arbitration, DeviceWork, StepShare},
};
use tsnode_protocol::Seconds;

/// A model's batcher.
#[derive(Debug)]
struct ModelBatcher {
    batching: Box<dyn Stepwise>,
    /// Its step that waits or runs, and what starts with that.
    step: Option<Batch>,
    starting: Vec<(RequestNo, RequestPhase)>,
}

/// The policy and its machine's state.
#[derive(Debug)]
pub struct TurnBatching {
    models: Vec<ModelBatcher>,
    arbiter: Box<dyn Arbitration<RequestNo>>,
    /// Whose requests are which.
    services: BTreeMap<RequestNo, ServiceNo>,
    running: Option<ServiceNo>,
}

impl TurnBatching {
    /// An idle machine whose models form their steps so, in order of their numbers.
    #[must_use]
    pub fn new(arbiter: Box<dyn Arbitration<RequestNo>>, models: Vec<Box<dyn Stepwise>>) -> Self {
        let model = |batching| ModelBatcher { batching, step: None, starting: Vec::new() };
        Self { models: models.into_iter().map(model).collect(), arbiter, services: BTreeMap::new(), running: None }
    }

    fn model(&mut self, service: ServiceNo) -> Option<&mut ModelBatcher> {
        self.models.get_mut(usize::from(service.0))
    }

    fn running(&mut self) -> Option<&mut ModelBatcher> {
        let service = self.running?;
        self.model(service)
    }

    /// Models whose last step is over form another, and ask for a turn.
    fn form(&mut self) {
        for (n, model) in self.models.iter_mut().enumerate().filter(|(_, model)| model.step.is_none()) {
            let batch = model.batching.select();
            if batch.is_empty() {
                continue;
            }
            let service = ServiceNo(n as u16);
            model.step = Some(Batch { service, ..batch });
            model.starting.clear();
            model.batching.chosen(&mut |request, part| model.starting.push((request, part)));
            let mut shares = Vec::new();
            model.batching.members(&mut |m| {
                let prompt_tokens = if m.part == RequestPhase::Prompt { m.tokens } else { 0 };
                shares.push(StepShare { request: m.request, prompt_tokens });
            });
            self.arbiter.asks(service, DeviceWork::Step(shares));
        }
    }
}

impl Batching for TurnBatching {
    fn add(&mut self, task: Task) -> bool {
        self.services.insert(task.request, task.service);
        if task.part == RequestPhase::Prompt {
            self.arbiter.enters(task.service, task.request, task.tokens);
        }
        if let Some(model) = self.model(task.service) {
            model.batching.add(task);
        }
        false
    }

    fn queues_ahead(&self) -> bool {
        false
    }

    fn has_room(&self, _: u64) -> bool {
        true
    }

    /// Each model's KV is on one machine, from its prompt to its end.
    fn reserve(&mut self, _: RequestNo, _: u64) -> bool {
        false
    }

    fn release(&mut self, request: RequestNo) -> u64 {
        let Some(service) = self.services.remove(&request) else { return 0 };
        self.arbiter.leaves(service, request);
        self.model(service).map_or(0, |model| model.batching.release(request))
    }

    fn select(&mut self) -> Batch {
        self.form();
        self.running = self.arbiter.next();
        self.running().and_then(|model| model.step).unwrap_or_default()
    }

    fn chosen(&self, starting: &mut dyn FnMut(RequestNo, RequestPhase)) {
        let model = self.running.and_then(|service| self.models.get(usize::from(service.0)));
        model.into_iter().flat_map(|model| &model.starting).for_each(|&(request, part)| starting(request, part));
    }

    fn took(&mut self, time: Seconds) {
        self.arbiter.over(time);
    }

    fn ran(&mut self, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        if let Some(model) = self.running() {
            model.step = None;
            model.batching.ran(iterations, ended);
        }
        self.running = None;
    }

    fn seen(&self) -> Seen {
        self.models.iter().map(|model| model.batching.seen()).fold(Seen::default(), |sum, seen| Seen {
            waiting: sum.waiting + seen.waiting,
            running: sum.running + seen.running,
            pending_tokens: sum.pending_tokens.saturating_add(seen.pending_tokens),
            answers: sum.answers + seen.answers,
            context: sum.context + seen.context,
            held: sum.held + seen.held,
            // Of each model's own.
            room: 0,
            step: 0,
        })
    }

    fn first_waiting(&self) -> Option<u64> {
        self.models.iter().find_map(|model| model.batching.first_waiting())
    }

    fn has_places(&self) -> bool {
        false
    }
}
