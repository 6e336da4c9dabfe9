//! Machines, requests and the links between machines, event by event. Which machine and which batch is the policies'
//! choice; how long it takes is the cost source's.

use super::{agenda::Agenda, cost::IterationCost};
use crate::policy::{
    batching::{Batch, Batching, Part, RequestNo, Seen, Task},
    routing::{Asked, MachineNo, Route, Routing},
};
use std::sync::Arc;
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// Between two tries to send KV to a machine without room.
const TRY_AGAIN: Seconds = Seconds(1.0);
/// Tries in a row, for each request, after which machines that wait for each other's memory are taken to wait forever.
const TRIES: usize = 100;

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// What it runs next.
    pub batching: Box<dyn Batching>,
    /// How long that takes.
    pub cost: Arc<dyn IterationCost>,
}

/// A request that comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When.
    pub at: Seconds,
    /// Its lengths.
    pub asked: Asked,
}

/// When what happened to a request; infinite where it never did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trace {
    /// Its arrival.
    pub arrival: Arrival,
    /// Where it went; nowhere, if it was turned away.
    pub route: Option<Route>,
    /// Its prompt began.
    pub prompt_start: Seconds,
    /// Its prompt was done: the first token.
    pub first: Seconds,
    /// Its answer's first iteration began.
    pub answer_start: Seconds,
    /// Its last token.
    pub end: Seconds,
    /// What its KV takes after the prompt is done.
    pub sending: Seconds,
}

/// How KV gets from machine to machine.
pub trait Links: std::fmt::Debug + Send {
    /// When KV of a prompt that is computed from `start` to `done` has come to the other machine.
    fn land(&mut self, route: Route, prompt: Tokens, start: Seconds, done: Seconds) -> Seconds;
}

/// Every pair alike, any number of transfers at once, each beginning when its prompt is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alike {
    /// For each token of a prompt.
    pub per_token: SecondsPerToken,
}

impl Links for Alike {
    fn land(&mut self, _: Route, prompt: Tokens, _: Seconds, done: Seconds) -> Seconds {
        done + self.per_token * prompt
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Arrive(RequestNo),
    /// A machine's batch is done, unless it was cut meanwhile.
    Done(MachineNo, u64),
    /// A prompt comes out of the last stage.
    First(MachineNo, RequestNo),
    Send(RequestNo),
    Sent(RequestNo),
    /// An idle machine has got something to do; what else comes at this time has come.
    Begin(MachineNo),
}

/// What a machine does now.
#[derive(Clone, Copy, Debug)]
struct Run {
    batch: Batch,
    started: Seconds,
    step: Seconds,
    delay: Seconds,
    iterations: u32,
    cut: bool,
    number: u64,
}

/// What came of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every request, in order.
    pub traces: Vec<Trace>,
    /// Part of the time each machine was busy, until the last event.
    pub busy: Vec<f64>,
    /// Requests that no route took.
    pub turned_away: usize,
    /// Requests that had come when the simulation ended.
    pub arrived: usize,
    /// Batches begun.
    pub runs: u64,
    /// Events.
    pub events: u64,
    /// The last event.
    pub end: Seconds,
}

/// A simulation.
#[derive(Debug)]
pub struct Simulation {
    machines: Vec<Machine>,
    runs: Vec<Option<Run>>,
    busy: Vec<Seconds>,
    routing: Box<dyn Routing>,
    links: Box<dyn Links>,
    agenda: Agenda<What>,
    traces: Vec<Trace>,
    turned_away: usize,
    arrived: usize,
    /// Tries to send KV since anything else happened.
    tries: usize,
    batches: u64,
    ended: Vec<(RequestNo, Part)>,
}

impl Simulation {
    /// Machines with nothing to do.
    #[must_use]
    pub fn new(machines: Vec<Machine>, routing: Box<dyn Routing>, links: Box<dyn Links>) -> Self {
        let n = machines.len();
        Self {
            machines,
            runs: vec![None; n],
            busy: vec![Seconds(0.0); n],
            routing,
            links,
            agenda: Agenda::default(),
            traces: Vec::new(),
            turned_away: 0,
            arrived: 0,
            tries: 0,
            batches: 0,
            ended: Vec::new(),
        }
    }

    /// Runs these requests, in order of arrival, to their ends; where memory is so tight that machines wait for each other
    /// forever, what waits never ends. `stop` hears now and then how many have come, and may end
    /// it with what there is.
    pub fn run(mut self, arrivals: &[Arrival], stop: &dyn Fn(usize) -> bool) -> Outcome {
        let never = Seconds(f64::INFINITY);
        let trace = |a: &Arrival| Trace {
            arrival: *a,
            route: None,
            prompt_start: never,
            first: never,
            answer_start: never,
            end: never,
            sending: Seconds(0.0),
        };
        self.traces = arrivals.iter().map(trace).collect();
        if let Some(first) = arrivals.first() {
            self.agenda.at(first.at, What::Arrive(RequestNo(0)));
        }
        let (mut now, mut events) = (Seconds(0.0), 0);
        while let Some((at, what)) = self.agenda.pop() {
            (now, events) = (at, events + 1);
            if events % 4096 == 0 && stop(self.arrived) {
                break;
            }
            self.tries = if matches!(what, What::Send(_)) { self.tries + 1 } else { 0 };
            if self.tries > TRIES * self.traces.len() {
                break;
            }
            self.routing.at(now);
            match what {
                What::Arrive(request) => self.arrive(request, now),
                What::Done(machine, number) => self.done(machine, number, now),
                What::First(machine, request) => self.prompt_ended(machine, request, now),
                What::Send(request) => self.send(request, now),
                What::Sent(request) => self.sent(request, now),
                What::Begin(machine) if self.runs[machine.0 as usize].is_none() => self.begin(machine, now),
                What::Begin(_) => {}
            }
        }
        let busy = self.busy.iter().map(|b| if now.0 > 0.0 { *b / now } else { 0.0 }).collect();
        let Self { traces, turned_away, arrived, batches: runs, .. } = self;
        Outcome { traces, busy, turned_away, arrived, runs, events, end: now }
    }

    fn arrive(&mut self, request: RequestNo, now: Seconds) {
        let next = RequestNo(request.0 + 1);
        if let Some(trace) = self.traces.get(next.0 as usize) {
            self.agenda.at(trace.arrival.at, What::Arrive(next));
        }
        let asked = self.asked(request);
        let machines = &self.machines;
        self.arrived += 1;
        let Some(route) = self.routing.route(asked, &|m| machines[m.0 as usize].batching.seen()) else {
            self.turned_away += 1;
            return;
        };
        self.traces[request.0 as usize].route = Some(route);
        let task = prompt(request, asked);
        self.add(route.prompt, task, now);
        let ahead = self.machines[route.answer.0 as usize].batching.queues_ahead();
        if route.prompt == route.answer && asked.answer > 1 && ahead {
            self.add(route.answer, answer(request, asked), now);
        }
    }

    fn asked(&self, request: RequestNo) -> Asked {
        self.traces[request.0 as usize].arrival.asked
    }

    /// A task comes to a machine: an idle one begins, a busy one may be cut short.
    fn add(&mut self, machine: MachineNo, task: Task, now: Seconds) {
        let m = machine.0 as usize;
        let cut = self.machines[m].batching.add(task);
        if self.runs[m].is_none() {
            if self.machines[m].batching.has_room(task.memory) {
                self.agenda.at(now, What::Begin(machine));
            }
        } else if cut {
            self.cut(machine, now);
        }
    }

    /// Begins the next batch of an idle machine.
    fn begin(&mut self, machine: MachineNo, now: Seconds) {
        let m = machine.0 as usize;
        let batch = self.machines[m].batching.select();
        if batch.is_empty() {
            if self.machines[m].batching.seen() == Seen::default() {
                self.routing.idle(machine);
            }
            return;
        }
        self.batches += 1;
        let cost = &self.machines[m].cost;
        let (step, delay) = (cost.iteration(&batch), cost.delay(&batch));
        let (iterations, number) = (batch.iterations, self.batches);
        self.runs[m] = Some(Run { batch, started: now, step, delay, iterations, cut: false, number });
        self.agenda.at(now + step * f64::from(iterations), What::Done(machine, number));
        let (traces, links) = (&mut self.traces, &mut self.links);
        self.machines[m].batching.chosen(&mut |request, part| {
            let trace = &mut traces[request.0 as usize];
            match (part, trace.route) {
                (Part::Answer, _) => trace.answer_start = now,
                (Part::Prompt, Some(route)) if route.prompt != route.answer => {
                    let (done, prompt) = (now + step + delay, Tokens(f64::from(trace.arrival.asked.prompt)));
                    trace.prompt_start = now;
                    trace.sending = links.land(route, prompt, now, done) - done;
                }
                (Part::Prompt, _) => trace.prompt_start = now,
            }
        });
    }

    /// Ends a run of iterations at the next boundary.
    fn cut(&mut self, machine: MachineNo, now: Seconds) {
        let Some(run) = self.runs[machine.0 as usize].as_mut() else { return };
        if run.cut || run.batch.prompts > 0 {
            return;
        }
        let done = ((now - run.started) / run.step).floor() as u32 + 1;
        if done >= run.iterations {
            return;
        }
        (run.cut, run.iterations) = (true, done);
        self.agenda.at(run.started + run.step * f64::from(done), What::Done(machine, run.number));
    }

    fn done(&mut self, machine: MachineNo, number: u64, now: Seconds) {
        let m = machine.0 as usize;
        // A run that was cut ended before the event it had put down.
        let Some(run) = self.runs[m].filter(|r| r.number == number) else { return };
        self.busy[m] += now - run.started;
        let mut ended = std::mem::take(&mut self.ended);
        ended.clear();
        self.machines[m].batching.ran(run.iterations, &mut ended);
        for (request, part) in ended.drain(..) {
            match part {
                Part::Prompt if run.delay > Seconds(0.0) => {
                    self.agenda.at(now + run.delay, What::First(machine, request));
                }
                Part::Prompt => self.prompt_ended(machine, request, now),
                Part::Answer => self.ended(machine, request, now),
            }
        }
        self.ended = ended;
        self.runs[m] = None;
        self.begin(machine, now);
    }

    fn prompt_ended(&mut self, machine: MachineNo, request: RequestNo, now: Seconds) {
        let asked = self.asked(request);
        self.routing.prompt_done(machine, asked);
        self.traces[request.0 as usize].first = now;
        if asked.answer <= 1 {
            return self.ended(machine, request, now);
        }
        if self.traces[request.0 as usize].route.is_some_and(|r| r.answer != machine) {
            self.send(request, now);
        } else if !self.machines[machine.0 as usize].batching.queues_ahead() {
            self.add(machine, answer(request, asked), now);
        }
    }

    fn ended(&mut self, machine: MachineNo, request: RequestNo, now: Seconds) {
        let asked = self.asked(request);
        let m = machine.0 as usize;
        self.traces[request.0 as usize].end = now;
        let memory = self.machines[m].batching.release(request);
        self.routing.freed(machine, memory);
        if let Some(route) = self.traces[request.0 as usize].route {
            self.routing.answer_done(route.answer, asked);
        }
    }

    fn send(&mut self, request: RequestNo, now: Seconds) {
        let (asked, trace) = (self.asked(request), &self.traces[request.0 as usize]);
        let Some(Route { answer, .. }) = trace.route else { return };
        if self.machines[answer.0 as usize].batching.reserve(request, asked.prompt_memory()) {
            self.agenda.at(now + trace.sending, What::Sent(request));
        } else {
            self.agenda.at(now + TRY_AGAIN, What::Send(request));
        }
    }

    /// KV is where the answer is generated: the sender has room again.
    fn sent(&mut self, request: RequestNo, now: Seconds) {
        let asked = self.asked(request);
        let Some(route) = self.traces[request.0 as usize].route else { return };
        let from = route.prompt.0 as usize;
        let memory = self.machines[from].batching.release(request);
        self.routing.freed(route.prompt, memory);
        self.add(route.answer, answer(request, asked), now);
        let batching = &self.machines[from].batching;
        let Some(first) = batching.first_waiting() else { return };
        if self.runs[from].is_none() {
            if batching.has_room(first) {
                self.begin(route.prompt, now);
            }
        } else if batching.has_places() {
            self.cut(route.prompt, now);
        }
    }
}

fn prompt(request: RequestNo, asked: Asked) -> Task {
    let (tokens, memory) = (asked.prompt, asked.prompt_memory());
    Task { request, part: Part::Prompt, service: asked.service, tokens, memory }
}

fn answer(request: RequestNo, asked: Asked) -> Task {
    let (tokens, memory) = (asked.answer - 1, asked.answer_memory());
    Task { request, part: Part::Answer, service: asked.service, tokens, memory }
}
