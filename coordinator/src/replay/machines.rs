//! Machines, requests and the links between machines, event by event. Which machine and which batch is the policies'
//! choice; how long it takes is the cost source's.

mod behind_steps;
mod changes;
mod contention;
mod cores;
mod kv_links;
mod replayed;
mod stages;
mod tasks;

pub use changes::OpeningMachine;
pub use contention::{Contention, ContentionCurve, Oversubscription};
pub use cores::SharedCores;
pub use kv_links::{Alike, KvLinks};
pub use replayed::{Arrival, Outcome, ReplayTrace, SoFar};

use super::{agenda::Agenda, iteration_cost::IterationCost, ring::ReplayRing, timeline::Timeline};
use crate::policy::{
    batching::{Answered, Batch, Batching, RequestNo, RequestPhase, Task},
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};
use behind_steps::{BehindSteps, Held};
use stages::Stages;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tasks::{answer, prompt};
use tsnode_protocol::Seconds;

/// Tries in a row, for each request, after which machines that wait for each other's memory are taken to wait forever.
const TRIES: usize = 100;
/// Events after which whoever watches is asked again whether to go on.
const LOOK: u64 = 1024;

/// A machine: a group, as replays and simulations run it.
#[derive(Debug)]
pub struct Machine {
    /// What it runs next.
    pub batching: Box<dyn Batching>,
    /// How long that takes.
    pub cost: Arc<dyn IterationCost>,
}

#[derive(Clone, Copy, Debug)]
enum ReplayEvent {
    Arrive(RequestNo),
    /// A machine's batch is done, unless it was cut meanwhile.
    Done(MachineNo, u64),
    /// A prompt comes out of the last stage.
    First(MachineNo, RequestNo),
    Send(RequestNo),
    Sent(RequestNo),
    /// A stage that chooses for itself has done what it ran.
    Stage(MachineNo, usize),
    /// Such a stage has got something to do.
    Next(MachineNo, usize),
    /// An idle machine has got something to do; what else comes at this time has come.
    Begin(MachineNo),
}

/// What a machine does now.
#[derive(Debug)]
enum State {
    Idle,
    /// One batch at a time.
    Runs(BatchRun),
    /// As many as are on their way.
    Ring(ReplayRing),
    /// One at each stage, which chooses for itself.
    Stages(Stages),
}

impl State {
    /// Of a machine with nothing to do.
    fn of(machine: &Machine) -> Self {
        let stages = machine.cost.stages();
        if stages > 1 && machine.batching.stages_choose() {
            return Self::Stages(Stages::new(stages));
        }
        ReplayRing::of(stages, machine.batching.at_once()).map_or(Self::Idle, Self::Ring)
    }
}

#[derive(Clone, Copy, Debug)]
struct BatchRun {
    batch: Batch,
    started: Seconds,
    step: Seconds,
    delay: Seconds,
    iterations: u32,
    cut: bool,
    number: u64,
    /// When it is over, at the speed that it has now: a part of its own where others run on the same processors.
    end: Seconds,
    speed: f64,
}

/// Requests on machines, event by event, by the policies that nodes run.
#[derive(Debug)]
pub struct Simulation {
    machines: Vec<Machine>,
    states: Vec<State>,
    busy: Vec<Seconds>,
    routing: Box<dyn Routing>,
    links: Box<dyn KvLinks>,
    agenda: Agenda<ReplayEvent>,
    traces: Vec<ReplayTrace>,
    /// Requests that have come and wait to be routed.
    held: VecDeque<RequestNo>,
    /// KV that each machine had no memory for and asks for when it has.
    parked: Vec<VecDeque<RequestNo>>,
    turned_away: usize,
    arrived: usize,
    /// Tries to send KV since anything else happened.
    tries: usize,
    batches: u64,
    ended: Vec<(RequestNo, RequestPhase)>,
    timeline: Option<Timeline>,
    cores: Option<SharedCores>,
    behind_steps: Option<BehindSteps>,
    /// What is left of requests that had to begin again elsewhere.
    resumed: BTreeMap<RequestNo, Asked>,
    now: Seconds,
    events: u64,
}

impl Simulation {
    /// Machines with nothing to do.
    #[must_use]
    pub fn new(machines: Vec<Machine>, routing: Box<dyn Routing>, links: Box<dyn KvLinks>) -> Self {
        let n = machines.len();
        Self {
            states: machines.iter().map(State::of).collect(),
            machines,
            busy: vec![Seconds(0.0); n],
            routing,
            links,
            agenda: Agenda::default(),
            traces: Vec::new(),
            held: VecDeque::new(),
            parked: vec![VecDeque::new(); n],
            turned_away: 0,
            arrived: 0,
            tries: 0,
            batches: 0,
            ended: Vec::new(),
            timeline: None,
            cores: None,
            behind_steps: None,
            resumed: BTreeMap::new(),
            now: Seconds(0.0),
            events: 0,
        }
    }

    /// The same, which also records what machines do when.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.timeline = Some(Timeline::new(self.machines.len()));
        self
    }

    /// Runs these requests, in order of arrival, to their ends; where memory is so tight that machines wait for each other
    /// forever, what waits never ends. `stop` hears now and then how many have come, and may end
    /// it with what there is.
    pub fn run(self, arrivals: &[Arrival], stop: &dyn Fn(usize) -> bool) -> Outcome {
        self.run_until(arrivals, &|so_far| stop(so_far.arrived))
    }

    /// The same, ended by whoever sees what has become of the requests so far.
    pub fn run_until(mut self, arrivals: &[Arrival], stop: &dyn Fn(SoFar<'_>) -> bool) -> Outcome {
        self.put_down(arrivals);
        while let Some((at, what)) = self.agenda.pop() {
            (self.now, self.events) = (at, self.events + 1);
            let so_far = SoFar { now: at, arrived: self.arrived, traces: &self.traces };
            if (self.events.is_multiple_of(LOOK) && stop(so_far)) || !self.happens(what) {
                break;
            }
        }
        self.outcome()
    }

    fn put_down(&mut self, arrivals: &[Arrival]) {
        let never = Seconds(f64::INFINITY);
        let trace = |a: &Arrival| ReplayTrace {
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
            self.agenda.at(first.at, ReplayEvent::Arrive(RequestNo(0)));
        }
    }

    /// `false` if nothing but tries will ever happen again.
    fn happens(&mut self, what: ReplayEvent) -> bool {
        let now = self.now;
        self.tries = if matches!(what, ReplayEvent::Send(_)) { self.tries + 1 } else { 0 };
        if self.tries > TRIES * self.traces.len() {
            return false;
        }
        self.routing.at(now);
        match what {
            ReplayEvent::Arrive(request) => self.arrive(request),
            ReplayEvent::Done(machine, number) => self.done(machine, number, now),
            ReplayEvent::First(machine, request) => self.prompt_ended(machine, request, now),
            ReplayEvent::Send(request) => self.send(request, now),
            ReplayEvent::Sent(request) => self.sent(request, now),
            ReplayEvent::Stage(machine, place) => self.stage_done(machine, place, now),
            ReplayEvent::Next(machine, place) => self.begin_stage(machine, place, now),
            ReplayEvent::Begin(machine) => self.begin(machine, now),
        }
        self.route(now);
        true
    }

    fn outcome(self) -> Outcome {
        let end = self.now;
        let busy = self.busy.iter().map(|b| if end.0 > 0.0 { *b / end } else { 0.0 }).collect();
        let Self { traces, turned_away, arrived, batches: runs, events, timeline, .. } = self;
        Outcome { traces, busy, turned_away, arrived, runs, events, end, timeline }
    }

    fn arrive(&mut self, request: RequestNo) {
        let next = RequestNo(request.0 + 1);
        if let Some(trace) = self.traces.get(next.0 as usize) {
            self.agenda.at(trace.arrival.at, ReplayEvent::Arrive(next));
        }
        self.arrived += 1;
        self.held.push_back(request);
    }

    /// Routes what has come, in order, as far as the routing lets it.
    fn route(&mut self, now: Seconds) {
        while let Some(&request) = self.held.front() {
            let (asked, machines, behind) = (self.asked(request), &self.machines, self.behind_steps.as_ref());
            let seen = |m: MachineNo| {
                let seen = machines[m.0 as usize].batching.seen();
                behind.map_or(seen, |behind| behind.beside(m, seen))
            };
            if self.routing.holds(asked, &seen) {
                return;
            }
            self.held.pop_front();
            match self.routing.route(asked, &seen) {
                Some(route) => self.start(request, route, now),
                None => self.turned_away += 1,
            }
        }
    }

    /// A request goes its way.
    fn start(&mut self, request: RequestNo, route: RoutingDecision, now: Seconds) {
        self.traces[request.0 as usize].route = Some(route);
        if route.prompt == route.answer || !self.is_held(route.answer, Held::Prompt(request)) {
            self.open_prompt(request, route, now);
        }
    }

    /// A prompt comes to where it is computed.
    fn open_prompt(&mut self, request: RequestNo, route: RoutingDecision, now: Seconds) {
        let asked = self.asked(request);
        let here = route.prompt == route.answer && route.split.is_none() && asked.answer > 1;
        let answered = if here { Answered::Here } else { Answered::Elsewhere };
        let task = match route.split {
            Some(first) => Task { tokens: first, memory: u64::from(first), ..prompt(request, asked, answered) },
            None => prompt(request, asked, answered),
        };
        self.add(route.prompt, task, now);
        let ahead = self.machines[route.answer.0 as usize].batching.queues_ahead();
        if route.prompt == route.answer && asked.answer > 1 && ahead {
            self.add(route.answer, answer(request, asked), now);
        }
    }

    fn asked(&self, request: RequestNo) -> Asked {
        self.resumed.get(&request).copied().unwrap_or(self.traces[request.0 as usize].arrival.asked)
    }

    /// A task comes to a machine: an idle one begins, a busy one may be cut short.
    fn add(&mut self, machine: MachineNo, task: Task, now: Seconds) {
        let m = machine.0 as usize;
        let cut = self.machines[m].batching.add(task);
        if self.takes(machine, now) {
            if self.machines[m].batching.has_room(task.memory) {
                self.agenda.at(now, ReplayEvent::Begin(machine));
            }
        } else if cut {
            self.cut(machine, now);
        }
    }

    /// Whether a machine could begin a batch.
    fn takes(&self, machine: MachineNo, now: Seconds) -> bool {
        match &self.states[machine.0 as usize] {
            State::Idle => true,
            State::Runs(_) => false,
            State::Stages(stages) => stages.takes(),
            State::Ring(ring) => ring.takes(now, self.machines[machine.0 as usize].batching.at_once()),
        }
    }

    /// Begins the next batch, where the machine can.
    fn begin(&mut self, machine: MachineNo, now: Seconds) {
        if !self.takes(machine, now) {
            return;
        }
        let m = machine.0 as usize;
        if matches!(self.states[m], State::Stages(_)) {
            return self.begin_stage(machine, 0, now);
        }
        let batch = self.machines[m].batching.select();
        if batch.is_empty() {
            if self.machines[m].batching.seen().is_idle() {
                self.routing.idle(machine);
            }
            return;
        }
        let done = self.set_off(machine, batch, now);
        let (traces, timeline) = (&mut self.traces, &mut self.timeline);
        self.machines[m].batching.chosen(&mut |request, part| {
            let trace = &mut traces[request.0 as usize];
            match (part, trace.route) {
                (RequestPhase::Answer, _) => {
                    trace.answer_start = now;
                    if let Some(timeline) = timeline {
                        timeline.begins(machine, done - trace.first);
                    }
                }
                // The rest of a prompt that began elsewhere.
                (RequestPhase::Prompt, Some(route)) if machine != route.prompt => {}
                (RequestPhase::Prompt, _) => trace.prompt_start = now,
            }
        });
    }

    /// Puts down when a batch is done; when its prompts come out.
    fn set_off(&mut self, machine: MachineNo, batch: Batch, now: Seconds) -> Seconds {
        self.batches += 1;
        let (m, number) = (machine.0 as usize, self.batches);
        let cost = &self.machines[m].cost;
        if let State::Ring(ring) = &mut self.states[m] {
            let leaves = ring.enter(cost.as_ref(), &batch, now);
            self.agenda.at(leaves.first, ReplayEvent::Begin(machine));
            self.agenda.at(leaves.last, ReplayEvent::Done(machine, number));
            return leaves.last;
        }
        let (step, delay, iterations) = (cost.iteration(&batch), cost.delay(&batch), batch.iterations);
        let end = now + step * f64::from(iterations);
        let run = BatchRun { batch, started: now, step, delay, iterations, cut: false, number, end, speed: 1.0 };
        self.states[m] = State::Runs(run);
        self.agenda.at(end, ReplayEvent::Done(machine, number));
        self.shared_anew(m, now);
        match &self.states[m] {
            State::Runs(run) => now + run.step + delay,
            State::Idle | State::Ring(_) | State::Stages(_) => now + step + delay,
        }
    }

    /// Ends a run of iterations at the next boundary.
    fn cut(&mut self, machine: MachineNo, now: Seconds) {
        let State::Runs(run) = &mut self.states[machine.0 as usize] else { return };
        if run.cut || run.batch.prompts > 0 {
            return;
        }
        let done = ((now - run.started) / run.step).floor() as u32 + 1;
        if done >= run.iterations {
            return;
        }
        (run.cut, run.iterations, run.end) = (true, done, run.started + run.step * f64::from(done));
        self.agenda.at(run.end, ReplayEvent::Done(machine, run.number));
    }

    fn done(&mut self, machine: MachineNo, number: u64, now: Seconds) {
        let m = machine.0 as usize;
        let (iterations, busy, delay) = match &mut self.states[m] {
            State::Ring(ring) => {
                let Some(passed) = ring.leave() else { return };
                if let Some(timeline) = &mut self.timeline {
                    timeline.passed(machine, &passed, now);
                }
                (1, passed.busy, Seconds(0.0))
            }
            State::Runs(run) if run.number == number => {
                if let Some(timeline) = &mut self.timeline {
                    timeline.ran(machine, &run.batch, run.iterations, run.started, run.step);
                }
                (run.iterations, now - run.started, run.delay)
            }
            // A run that was cut ended before the event it had put down.
            State::Runs(_) | State::Idle | State::Stages(_) => return,
        };
        self.busy[m] += busy;
        let mut ended = std::mem::take(&mut self.ended);
        ended.clear();
        self.machines[m].batching.took(busy);
        self.machines[m].batching.ran(iterations, &mut ended);
        for (request, part) in ended.drain(..) {
            match part {
                RequestPhase::Prompt if delay > Seconds(0.0) => {
                    self.agenda.at(now + delay, ReplayEvent::First(machine, request));
                }
                RequestPhase::Prompt => self.prompt_ended(machine, request, now),
                RequestPhase::Answer => self.ended(machine, request, now),
            }
        }
        self.ended = ended;
        if let State::Runs(run) = &self.states[m] {
            // One that has just opened ran nothing.
            self.states[m] = if run.batch.is_empty() { State::of(&self.machines[m]) } else { State::Idle };
            self.shared_anew(m, now);
        }
        while let Some(request) = self.parked[m].pop_front() {
            if !self.offer(machine, request, now) {
                self.parked[m].push_front(request);
                break;
            }
        }
        self.begin(machine, now);
        self.step_over(machine, now);
    }

    fn prompt_ended(&mut self, machine: MachineNo, request: RequestNo, now: Seconds) {
        let asked = self.asked(request);
        let route = self.traces[request.0 as usize].route;
        if route.is_none_or(|r| r.prompt != machine && (r.split.is_none() || r.answer != machine)) {
            // It had to begin again elsewhere meanwhile.
            return;
        }
        self.routing.prompt_done(machine, asked);
        if route.is_some_and(|r| r.split.is_some() && r.prompt == machine) {
            self.lands(request, now);
            return self.send(request, now);
        }
        let first = &mut self.traces[request.0 as usize].first;
        *first = first.min(now);
        if asked.answer <= 1 {
            return self.ended(machine, request, now);
        }
        if route.is_some_and(|r| r.answer != machine) {
            self.lands(request, now);
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
}
