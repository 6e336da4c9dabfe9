//! A peer's device with several models on it, by that peer's plan and measured profiles: what a live one is held against. What forms
//! steps, whose turn it is, for how long the device is kept for its last user, and how many of the shared pages a model may take, the
//! nodes' own objects say; here they are driven by events in the order of their times.

use crate::live_plan::Resident;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    Time,
    policy::{
        batching::{Answered, Batch, RequestNo, RequestPhase, ServiceNo, Stepwise, Task},
        choice::MachineRoom,
        routing::Asked,
        sharing::{
            TurnOrder,
            arbiter::{DeviceWork, StepShare},
            device_use::ServiceUse,
            quotas::PageQuotas,
            turn_queue::{Next, TurnQueue},
        },
    },
    replay::machines::Arrival,
};
use tsnode_protocol::Seconds;

/// After which a model asks again for pages that it was refused, as batchers do.
const AGAIN: Duration = Duration::from_millis(100);

/// A device and the models that take turns on it.
#[derive(Debug)]
pub struct SharedPeer {
    models: Vec<Resident>,
    /// What goes by, of each model, from a step's end until its tokens are there and the next is formed: another may compute meanwhile.
    between: Vec<Seconds>,
    /// How much longer the device takes for each step of each model than its layers' profiles say.
    longer: Vec<Seconds>,
}

/// What came of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPeerRun {
    /// How long each took. Infinite is what never ended: its pages are more than its model's quota, or nobody has such a model.
    pub whole: Vec<Seconds>,
    /// What each model had of the device.
    pub used: Vec<ServiceUse>,
}

impl SharedPeer {
    /// Models in the order of their numbers, with what each of their steps takes beside the device; `None` unless that is said of each.
    #[must_use]
    pub fn new(models: Vec<Resident>, between: Vec<Seconds>) -> Option<Self> {
        let longer = vec![Seconds(0.0); models.len()];
        (!models.is_empty() && models.len() == between.len()).then_some(Self { models, between, longer })
    }

    /// The same, whose device takes so much longer for each step of each model, or less.
    #[must_use]
    pub fn taking_longer(mut self, each: &[Seconds]) -> Self {
        self.longer.iter_mut().zip(each).for_each(|(longer, more)| *longer = *more);
        self
    }

    /// What a request takes with nobody else there, in the steps in which it is then computed: a long prompt is cut into chunks here, too.
    /// However many pages it has.
    #[must_use]
    pub fn alone(&self, asked: Asked) -> Seconds {
        self.alone_counted(asked).0
    }

    /// The same, and what it has of the device.
    #[must_use]
    pub fn alone_counted(&self, asked: Asked) -> (Seconds, ServiceUse) {
        let n = usize::from(asked.service.0).min(self.models.len() - 1);
        let model = Resident { quota: u64::MAX, ..self.models[n].clone() };
        let device = Self { models: vec![model], between: vec![self.between[n]], longer: vec![self.longer[n]] };
        let asked = Asked { service: ServiceNo(0), ..asked };
        let SharedPeerRun { whole, used } =
            device.run_counted(TurnOrder::FirstCome, &[Arrival { at: Seconds(0.0), asked }]);
        (whole.into_iter().sum(), used.into_iter().sum())
    }

    /// Runs requests to their ends, steps of the models in this order; how long each took, as in [`SharedPeerRun`].
    #[must_use]
    pub fn run(&self, order: TurnOrder, arrivals: &[Arrival]) -> Vec<Seconds> {
        self.run_counted(order, arrivals).whole
    }

    /// The same, and what each model had of the device.
    #[must_use]
    pub fn run_counted(&self, order: TurnOrder, arrivals: &[Arrival]) -> SharedPeerRun {
        let mut driver = SimulationLoop::new(self, order, arrivals);
        while let Some(((now, _), event)) = driver.agenda.pop_first() {
            driver.happens(now, event);
            driver.give(now);
        }
        let used = (0..self.models.len()).map(|n| driver.queue.used(ServiceNo(n as u16))).collect();
        let end = |end: Option<Time>| end.map_or(f64::INFINITY, |end| end.as_secs_f64());
        let whole = arrivals.iter().zip(driver.ends).map(|(arrival, ended)| Seconds(end(ended) - arrival.at.0));
        SharedPeerRun { whole: whole.collect(), used }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives(RequestNo),
    /// The device has computed a step.
    Over(ServiceNo),
    /// What it computed has gone through its model's batcher.
    Handled(ServiceNo),
    /// A model asks again for pages.
    Again(ServiceNo),
    /// The device is kept no longer.
    Look,
}

/// What a model's next step is at.
#[derive(Clone, Copy, Debug)]
enum State {
    /// There is none.
    Idle,
    /// It waits for its turn.
    Asks(Batch),
    /// The device computes it, for so long.
    Computes(Seconds),
    /// It is computed.
    Handles,
}

struct SimulatedModel<'a> {
    resident: &'a Resident,
    between: Duration,
    longer: Seconds,
    batching: Box<dyn Stepwise>,
    state: State,
    /// When its last step was formed.
    formed: Option<Time>,
    /// Requests without pages, in order.
    waiting: VecDeque<RequestNo>,
    asks_again: bool,
    /// Pages of its requests.
    used: u64,
}

struct SimulationLoop<'a> {
    arrivals: &'a [Arrival],
    ends: Vec<Option<Time>>,
    models: Vec<SimulatedModel<'a>>,
    queue: TurnQueue<RequestNo>,
    quotas: PageQuotas,
    /// By their times; of the same time in the order in which they were put down.
    agenda: BTreeMap<(Time, u64), Event>,
    put_down: u64,
}

fn duration(seconds: Seconds) -> Duration {
    Duration::try_from_secs_f64(seconds.0).unwrap_or_default()
}

impl<'a> SimulationLoop<'a> {
    fn new(peer: &'a SharedPeer, order: TurnOrder, arrivals: &'a [Arrival]) -> Self {
        let model = |((resident, between), longer): ((&'a Resident, &Seconds), &Seconds)| {
            // Pages are granted before a request comes to its policy, which need not count KV.
            let room = MachineRoom { places: resident.places, tokens: u64::MAX, stages: 1 };
            let batching = resident.batches.batching(room);
            let (state, between, waiting) = (State::Idle, duration(*between), VecDeque::new());
            let (longer, formed) = (*longer, None);
            SimulatedModel { resident, between, longer, batching, state, formed, waiting, asks_again: false, used: 0 }
        };
        let mut driver = Self {
            arrivals,
            ends: vec![None; arrivals.len()],
            models: peer.models.iter().zip(&peer.between).zip(&peer.longer).map(model).collect(),
            queue: TurnQueue::new(order.arbiter()),
            quotas: PageQuotas::new(peer.models.iter().map(|resident| resident.quota)),
            agenda: BTreeMap::new(),
            put_down: 0,
        };
        for (n, arrival) in arrivals.iter().enumerate() {
            driver.at(duration(arrival.at), Event::Arrives(RequestNo(n as u32)));
        }
        driver
    }

    fn at(&mut self, time: Time, event: Event) {
        self.agenda.insert((time, self.put_down), event);
        self.put_down += 1;
    }

    fn asked(&self, request: RequestNo) -> Asked {
        self.arrivals[request.0 as usize].asked
    }

    /// Pages that a request has from its prompt's beginning to its end. Batchers reserve those of an answer's first 256 tokens with
    /// its prompt, and others ahead of need.
    fn pages(&self, request: RequestNo) -> u64 {
        let Asked { service, prompt, answer } = self.asked(request);
        let tokens = u64::from(prompt) + u64::from(answer);
        self.models[usize::from(service.0)].resident.pages.of(tokens)
    }

    fn happens(&mut self, now: Time, event: Event) {
        let service = match event {
            Event::Arrives(request) => {
                let service = self.asked(request).service;
                let is_known = usize::from(service.0) < self.models.len();
                if !is_known || self.pages(request) > self.quotas.quota(service) {
                    return;
                }
                self.models[usize::from(service.0)].waiting.push_back(request);
                service
            }
            Event::Over(service) => return self.over(now, service),
            Event::Handled(service) => {
                // Whoever came meanwhile has pages before the next step is formed.
                self.handled(now, service);
                service
            }
            Event::Again(service) => {
                self.models[usize::from(service.0)].asks_again = false;
                service
            }
            Event::Look => return,
        };
        self.admit(now, service);
        self.form(now, service);
    }

    /// Gives pages to those who wait for them, first come first. A stage takes what its leader says one after the other: behind a
    /// step that waits for its turn or is computed nobody gets any, but for those who came when it was formed.
    fn admit(&mut self, now: Time, service: ServiceNo) {
        let n = usize::from(service.0);
        let model = &self.models[n];
        if !matches!(model.state, State::Idle) && model.formed != Some(now) {
            return;
        }
        while let Some(&request) = self.models[n].waiting.front() {
            let pages = self.pages(request);
            if !self.quotas.asks(now, service, pages) {
                if !std::mem::replace(&mut self.models[n].asks_again, true) {
                    self.at(now + AGAIN, Event::Again(service));
                }
                return;
            }
            self.quotas.took(service, pages);
            let asked = self.asked(request);
            self.queue.enters(service, request, asked.prompt);
            let model = &mut self.models[n];
            model.used += pages;
            model.waiting.pop_front();
            let (part, memory) = (RequestPhase::Prompt, asked.prompt_memory());
            // However short the answer is, as nodes say it: beside answers prompts are cut into other chunks than where there are none.
            let answered = Answered::Here;
            model.batching.add(Task { request, part, service, tokens: asked.prompt, before: 0, memory, answered });
        }
    }

    /// Forms a model's next step, unless there is one, and asks for its turn.
    fn form(&mut self, now: Time, service: ServiceNo) {
        let model = &mut self.models[usize::from(service.0)];
        if !matches!(model.state, State::Idle) {
            return;
        }
        let batch = model.batching.select();
        if batch.is_empty() {
            return;
        }
        (model.state, model.formed) = (State::Asks(batch), Some(now));
        let mut shares = Vec::new();
        model.batching.members(&mut |member| {
            let prompt_tokens = if member.part == RequestPhase::Prompt { member.tokens } else { 0 };
            shares.push(StepShare { request: member.request, prompt_tokens });
        });
        self.queue.asks(now, service, DeviceWork::Step(shares));
    }

    /// Gives the device to whoever's turn it is, where nobody computes.
    fn give(&mut self, now: Time) {
        if !self.queue.is_free() {
            return;
        }
        match self.queue.next(now) {
            Next::Turn(service) => {
                let model = &mut self.models[usize::from(service.0)];
                let State::Asks(batch) = model.state else { return };
                let took = (model.resident.cost.iteration(&batch) + model.longer).max(Seconds(0.0));
                model.state = State::Computes(took);
                self.at(now + duration(took), Event::Over(service));
            }
            Next::Kept(until) => self.at(until, Event::Look),
            Next::Nobody => {}
        }
    }

    fn over(&mut self, now: Time, service: ServiceNo) {
        let model = &mut self.models[usize::from(service.0)];
        let State::Computes(took) = model.state else { return };
        model.state = State::Handles;
        let handled = now + model.between;
        self.queue.over(now, took);
        self.at(handled, Event::Handled(service));
    }

    /// Prompts that are done go on as answers; what has ended gives its pages back.
    fn handled(&mut self, now: Time, service: ServiceNo) {
        let n = usize::from(service.0);
        let mut done = Vec::new();
        self.models[n].state = State::Idle;
        self.models[n].batching.ran(1, &mut done);
        for (request, part) in done {
            let asked = self.asked(request);
            if part == RequestPhase::Answer || asked.answer <= 1 {
                self.end(now, request);
                continue;
            }
            let (part, tokens, memory) = (RequestPhase::Answer, asked.answer - 1, asked.answer_memory());
            let task = Task { request, part, service, tokens, before: 0, memory, answered: Answered::Here };
            self.models[n].batching.add(task);
        }
    }

    fn end(&mut self, now: Time, request: RequestNo) {
        let (service, pages) = (self.asked(request).service, self.pages(request));
        let model = &mut self.models[usize::from(service.0)];
        model.batching.release(request);
        model.used = model.used.saturating_sub(pages);
        self.quotas.uses(service, model.used);
        self.queue.leaves(service, request);
        self.ends[request.0 as usize] = Some(now);
    }
}
