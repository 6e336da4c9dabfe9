//! Requests in a scenario: gateways as the node runs them, a model of the hosts they ask, clients who count tokens.
//!
//! | question | where |
//! |---|---|
//! | who asks when, and whether what they get is right | `clients` |
//! | one process's gateway, and which plan it follows | `frontend` |
//! | what a leader does for those who ask it | `host` |
//! | when what gateways and leaders say to each other arrives | `lines` |
//! | their place in a scenario, and its end | `scenario` |
//! | how they fared | `tally` |
//!
//! Chance has a stream of its own here: without clients a seed's scenario is what it was. Groups compute prompts themselves; one
//! that is asked to prefill for another breaks off.

mod clients;
mod frontend;
mod host;
mod lines;
mod scenario;

pub use super::tally::ScenarioTally;

use super::{
    Violation,
    net::SimulatedNetwork,
    process::{Held, SimulatedProcess},
};
use crate::simulation::requests::{
    clients::SimulatedClient,
    frontend::Frontend,
    lines::{LeaderEvent, LineNo, RequestLine, Up},
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{Time, control::Event, rng::Rng};
use tsnode_protocol::{GroupId, Life, PeerId, Plan, RequestId, Token};

/// How often every process looks which plan it follows, as in the node.
const LOOK: Duration = Duration::from_millis(250);

/// Faults put in on purpose: the checks are to find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Hosts that go on with an answer give other tokens than it would have had.
    Changed,
    /// Gateways do not hang up on whom they leave.
    HoldsOn,
    /// Gateways do not tell clients that their answer is complete.
    NoEnd,
}

/// Somewhere a process was, in one of its lives.
type ProcessLife = (usize, Life);

/// What is due.
#[derive(Debug)]
pub(super) enum Item {
    /// A client comes.
    Asks,
    /// It comes back.
    Returns(RequestId),
    /// It goes.
    Goes(RequestId),
    /// All look which plan they follow, and what has become of connections.
    Look,
    /// A plan has taken effect there.
    Adopted(ProcessLife, Arc<Plan>),
    /// These are loaded there.
    Loaded(ProcessLife, Vec<GroupId>),
    /// Its system closed its connections.
    Killed(ProcessLife),
    /// It closes its connections to that peer.
    Forgets(ProcessLife, PeerId),
    /// A gateway wanted to be woken.
    Wake(ProcessLife),
    /// A gateway says something to a leader.
    Up(LineNo, Up),
    /// A leader says something to a gateway.
    Down(LineNo, LeaderEvent),
    /// A line ended at its gateway.
    Lost(ProcessLife, LineNo, RequestId, &'static str),
    /// A line ended at its leader.
    Dropped(ProcessLife, LineNo),
    /// Nobody prefills for others here.
    NoPrefill(ProcessLife, RequestId),
    /// A leader has a token.
    Step(ProcessLife, LineNo),
}

/// What follows.
#[derive(Debug)]
pub(super) enum Effect {
    At(Time, Item),
    Tell(usize, Event),
}

/// What surrounds the requests.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    now: Time,
    peers: &'a [SimulatedProcess],
    net: &'a SimulatedNetwork,
    numbers: &'a BTreeMap<PeerId, usize>,
}

impl Surroundings<'_> {
    fn place(&self, n: usize) -> ProcessLife {
        (n, self.peers[n].life)
    }

    /// Whether that life is not over.
    fn lives(&self, (n, life): ProcessLife) -> bool {
        self.peers[n].is_running() && self.peers[n].life == life
    }

    fn is_stopped(&self, n: usize) -> bool {
        self.peers[n].held == Held::Paused
    }

    /// Whether anything comes through between two processes now.
    fn reaches(&self, a: ProcessLife, b: ProcessLife) -> bool {
        a == b || (self.lives(b) && self.lives(a) && !self.net.is_cut(a.0, b.0) && !self.net.is_cut(b.0, a.0))
    }
}

/// All requests of a scenario.
#[derive(Debug)]
pub(super) struct Requests {
    rng: Rng,
    /// Clients a second.
    rate: f64,
    /// All agree, and nothing goes wrong any more.
    is_calm: bool,
    planted: Option<Planted>,
    frontends: BTreeMap<usize, Frontend>,
    /// What waits for a process that is stopped.
    waiting: BTreeMap<usize, VecDeque<Item>>,
    clients: BTreeMap<RequestId, SimulatedClient>,
    lines: BTreeMap<LineNo, RequestLine>,
    last_line: LineNo,
    tally: ScenarioTally,
    out: Vec<Effect>,
    broken: Option<Violation>,
}

impl Requests {
    fn new(seed: u64, rate: f64, planted: Option<Planted>) -> Self {
        Self {
            rng: Rng::new(seed ^ 0x72_65_71_75_65_73_74),
            rate,
            is_calm: false,
            planted,
            frontends: BTreeMap::new(),
            waiting: BTreeMap::new(),
            clients: BTreeMap::new(),
            lines: BTreeMap::new(),
            last_line: 0,
            tally: ScenarioTally::default(),
            out: Vec::new(),
            broken: None,
        }
    }

    fn at(&mut self, at: Time, item: Item) {
        self.out.push(Effect::At(at, item));
    }

    fn break_off(&mut self, at: Time, sentence: &'static str, what: String) {
        self.broken.get_or_insert(Violation { at, sentence, what });
    }

    /// The process that something happens to.
    fn place_of(&self, item: &Item) -> Option<ProcessLife> {
        match item {
            Item::Asks | Item::Returns(_) | Item::Goes(_) | Item::Look | Item::Killed(_) => None,
            Item::Adopted(place, _)
            | Item::Loaded(place, _)
            | Item::Forgets(place, _)
            | Item::Wake(place)
            | Item::Lost(place, ..)
            | Item::Dropped(place, _)
            | Item::NoPrefill(place, _)
            | Item::Step(place, _) => Some(*place),
            Item::Up(line, _) => self.lines.get(line).map(|l| l.leader),
            Item::Down(line, _) => self.lines.get(line).map(|l| l.gateway),
        }
    }

    /// Something is due; who is stopped hears of it when it goes on.
    fn happens(&mut self, around: Surroundings<'_>, item: Item) {
        match self.place_of(&item) {
            Some(place) if around.lives(place) => {
                self.waiting.entry(place.0).or_default().push_back(item);
                self.catch_up(around, place.0);
            }
            // It is no more.
            Some(_) => {}
            None => self.handle(around, item),
        }
    }

    fn catch_up(&mut self, around: Surroundings<'_>, n: usize) {
        while !around.is_stopped(n) {
            let Some(item) = self.waiting.get_mut(&n).and_then(VecDeque::pop_front) else { break };
            if self.place_of(&item).is_some_and(|place| around.lives(place)) {
                self.handle(around, item);
            }
        }
    }

    fn handle(&mut self, around: Surroundings<'_>, item: Item) {
        match item {
            Item::Asks => self.somebody_asks(around),
            Item::Returns(request) => self.comes_back(around, request),
            Item::Goes(request) => self.goes(around, request),
            Item::Look => self.look(around),
            Item::Adopted(place, plan) => self.adopt(around, place, plan),
            Item::Loaded(place, groups) => self.loaded(around, place, groups),
            Item::Killed(place) => self.hang_up_for(around, place),
            Item::Forgets(place, peer) => self.forget(around, place, peer),
            Item::Wake(place) => self.woken(around, place),
            Item::Up(line, said) => self.asked(around, line, said),
            Item::Down(line, event) => self.answered(around, line, event),
            Item::Lost(place, line, request, why) => self.lost(around, place, line, request, why),
            Item::Dropped(place, line) => self.dropped(around, place, line),
            Item::NoPrefill(place, request) => self.no_prefill(around, place, request),
            Item::Step(place, line) => self.step(around, place, line),
        }
    }

    fn look(&mut self, around: Surroundings<'_>) {
        self.sweep(around);
        self.frontends.retain(|n, frontend| around.lives((*n, frontend.life)));
        for n in 0..around.peers.len() {
            if around.peers[n].is_running() && !around.is_stopped(n) {
                self.catch_up(around, n);
                self.look_at(around, n);
            }
        }
        self.miss_gateways(around);
        self.at(around.now + LOOK, Item::Look);
    }
}

/// What an undisturbed run answers.
fn token(request: RequestId, index: u32) -> Token {
    let seed = u64::from_le_bytes(std::array::from_fn(|i| request.0[i]));
    Token((Rng::new(seed ^ (u64::from(index) << 32)).bits() % 4096) as u32)
}
