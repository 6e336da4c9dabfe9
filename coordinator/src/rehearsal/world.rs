//! Time, and everything in it: processes, what is on its way between them, and what is due.

mod agreement;
mod lives;
mod witness;

use super::{
    cast,
    checks::Checks,
    chronicle::{Chronicle, Note},
    liars::{self, Lie},
    memo::Memo,
    net::Net,
    process::{Held, Next, Process},
    requests::{Item, Requests},
};
use crate::{
    Time,
    control::{Action, Event, Reject},
    planner::{Draft, Planner, Scheduler},
    scheduler::dice::Dice,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, Epoch, Gossip, Heartbeat, Life, Load, PeerId, PlanId, Term, Verified};

/// Wall clock at the beginning (s since 1970); the seed adds up to an epoch.
const UNIX: u64 = 1_800_000_000;
/// How long planners of a small swarm take at most.
const PLANNING: Duration = Duration::from_millis(50);
/// How long loading takes at most.
const LOADING: Duration = Duration::from_secs(3);
/// Messages kept for liars to say again.
const ARCHIVE: usize = 64;

/// What is due.
#[derive(Debug)]
enum Due {
    Message(u32, Arc<Verified<Gossip>>),
    /// Heartbeats that one peer sent to a few.
    Pulse(u32, PeerId, Arc<Vec<Verified<Gossip>>>),
    Connects(u32, PeerId),
    Disconnects(u32, PeerId),
    /// A system refuses connections to that peer's process.
    Refuses(u32, PeerId),
    Start(usize),
    /// A process that was killed while it left.
    End(usize, u64),
    Written(usize, u64),
    /// A process's planner has its answer.
    Planned(usize, Life, Option<Draft>),
    /// A process has loaded what it leads.
    Loaded(usize, Life),
    GoesOn(usize, u64),
    IsGone(usize, Time),
    Lies(usize),
    /// Of clients' requests.
    Request(Item),
}

/// A swarm and its surroundings.
#[derive(Debug)]
pub struct World {
    /// The time.
    pub now: Time,
    /// Everyone there ever was.
    pub peers: Vec<Process>,
    /// The network.
    pub net: Net,
    /// Where chance comes from.
    pub dice: Dice,
    /// How long planners take at most.
    pub planning: Duration,
    pace: Dice,
    /// What must hold.
    pub checks: Checks,
    /// What happened.
    pub chronicle: Chronicle,
    /// Messages of all kinds, a few of each.
    pub archive: Vec<Verified<Gossip>>,
    /// Messages refused, by who refused them.
    pub rejected: BTreeMap<usize, Vec<Reject>>,
    /// What clients ask for, if any do.
    pub(super) requests: Option<Box<Requests>>,
    pub(super) last_proposed: (Epoch, Term, PlanId),
    /// Whether clocks may be wrong.
    pub(super) clocks_err: bool,
    /// Whether the world is to be at peace.
    pub(super) quiet_since: Option<Time>,
    net_troubled: Time,
    /// When the network last was in parts.
    parted: Time,
    pub(super) numbers: BTreeMap<PeerId, usize>,
    due: BTreeMap<u64, Vec<Due>>,
    wakes: BTreeSet<(Time, usize)>,
    /// Adverts ever said: [`Memo`] names views by where they lie.
    adverts: Vec<Verified<Gossip>>,
    planner: Arc<dyn Planner>,
    unix: Duration,
    /// Counts what a process is held up by, so that an old end of it means nothing.
    holds: u64,
    holding: BTreeMap<usize, u64>,
}

impl World {
    /// Nobody yet; plans are the scheduler's.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::planned_by(Scheduler, seed)
    }

    /// Nobody yet, and who is to plan.
    #[must_use]
    pub fn planned_by(planner: impl Planner + 'static, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let unix = Duration::from_secs(UNIX + dice.below(600) as u64);
        Self {
            now: Time::from_millis(1),
            peers: Vec::new(),
            net: Net::default(),
            dice,
            planning: PLANNING,
            pace: Dice::new(seed ^ 0x70_6c_61_6e),
            checks: Checks::default(),
            chronicle: Chronicle::default(),
            archive: Vec::new(),
            rejected: BTreeMap::new(),
            requests: None,
            last_proposed: (Epoch(0), Term(0), PlanId([0; 16])),
            clocks_err: false,
            quiet_since: None,
            net_troubled: Time::ZERO,
            parted: Time::ZERO,
            numbers: BTreeMap::new(),
            due: BTreeMap::new(),
            wakes: BTreeSet::new(),
            adverts: Vec::new(),
            planner: Arc::new(Memo::new(planner)),
            unix,
            holds: 0,
            holding: BTreeMap::new(),
        }
    }

    /// The same with so many peers that lend a device each, started at once.
    #[must_use]
    pub fn of(peers: usize, seed: u64) -> Self {
        let mut world = Self::new(seed);
        for n in 0..peers {
            let n = world.add(cast::advert(n));
            world.start(n);
        }
        world
    }

    /// One more peer, not yet running.
    pub fn add(&mut self, advert: Advert) -> usize {
        let n = self.peers.len();
        let process = Process::new(n, advert);
        self.numbers.insert(process.id, n);
        self.peers.push(process);
        n
    }

    /// Something happens to a peer.
    pub fn tell(&mut self, n: usize, event: Event) {
        if self.peers[n].is_running() {
            self.peers[n].take(event);
            self.run(n);
        }
    }

    /// A peer says something that its machine did not decide.
    pub fn say(&mut self, n: usize, gossip: Gossip) {
        self.publish(n, gossip, None);
        self.run(n);
    }

    fn run(&mut self, n: usize) {
        while let Next::Act(action) = self.peers[n].next(self.now) {
            self.act(n, action);
        }
        self.reschedule(n);
    }

    fn reschedule(&mut self, n: usize) {
        let peer = &mut self.peers[n];
        let wake = peer.control().filter(|_| peer.held == Held::No).and_then(|c| c.deadline());
        if wake != peer.wake {
            if let Some(old) = peer.wake {
                self.wakes.remove(&(old, n));
            }
            self.wakes.extend(wake.map(|at| (at, n)));
            peer.wake = wake;
        }
    }

    fn act(&mut self, n: usize, action: Action) {
        let id = self.peers[n].id;
        match action {
            Action::Publish(gossip) => match self.peers[n].lie {
                None => self.publish(n, gossip, None),
                Some(lie) => self.twisted(lie, gossip).into_iter().for_each(|(g, half)| self.publish(n, g, half)),
            },
            Action::Pulse { to, own, heard } => self.pulse(n, &to, own, heard),
            Action::Remember(epoch, term) => match self.peers[n].disk.latency {
                Duration::ZERO => self.peers[n].disk.endorsed = Some((epoch, term)),
                latency => {
                    self.peers[n].troubled = self.now;
                    self.hold(n, Held::Writing(epoch, term), latency);
                }
            },
            Action::Adopt(plan) => {
                self.chronicle.adopted(self.now, plan.id(), plan.epoch, plan.term);
                if self.peers[n].lie.is_none() {
                    self.checks.a_plan_takes_effect_by_majority_and_terms_rise(self.now, id, &plan);
                }
                self.put_request(self.now, Item::Adopted((n, self.peers[n].life), plan));
                let late = LOADING.mul_f64(self.pace.unit());
                self.put(self.now + late, Due::Loaded(n, self.peers[n].life));
            }
            Action::AskPlanner(question) => {
                let draft = question.answer(&*self.planner);
                let late = self.planning.mul_f64(self.pace.unit());
                self.put(self.now + late, Due::Planned(n, self.peers[n].life, draft));
            }
            Action::Reject { peer, reason } => self.refused(n, peer, reason),
            Action::PeerDown { peer, reason } => {
                self.put_request(self.now, Item::Forgets((n, self.peers[n].life), peer));
                self.gave_up(n, peer, reason);
            }
            Action::PeerMoved(peer) => self.put_request(self.now, Item::Forgets((n, self.peers[n].life), peer)),
            Action::PeerUp(_) | Action::PeerSuspect(_) | Action::CoordinatorChanged { .. } => {}
        }
    }

    fn publish(&mut self, n: usize, gossip: Gossip, half: Option<usize>) {
        let honest = self.peers[n].lie.is_none();
        let id = self.peers[n].id;
        match &gossip {
            Gossip::Endorsement(e) => {
                self.checks.endorsed_by(e.plan, id);
                if honest {
                    self.checks.nobody_endorses_twice(self.now, id, (e.epoch, e.term), e.plan);
                }
            }
            Gossip::Plan(plan) => {
                self.last_proposed = (plan.epoch, plan.term, plan.id());
                self.note(Note::Proposed(n, plan.epoch, plan.term, plan.id(), plan.reason.clone()));
            }
            _ => {}
        }
        // A message that others would refuse is not sent.
        let Ok(message) = self.peers[n].seal(gossip) else { return };
        if matches!(message.message(), Gossip::Advert(_)) {
            self.adverts.push(message.clone());
        }
        self.peers[n].hear_self(message.clone());
        // Now and then it is lost on its first steps, for everybody.
        if self.net.lost == 0.0 || self.dice.unit() > self.net.lost / 2.0 {
            self.spread(n, &message, half);
        }
    }

    /// Sends heartbeats to a few peers.
    fn pulse(&mut self, n: usize, to: &[PeerId], own: Option<Heartbeat>, mut heard: Vec<Verified<Gossip>>) {
        let id = self.peers[n].id;
        if self.peers[n].lie == Some(Lie::Deaf) {
            heard.clear();
        }
        if let Some(own) = own.and_then(|own| self.peers[n].seal(Gossip::Heartbeat(own)).ok()) {
            self.peers[n].pulse_self(own.clone());
            heard.insert(0, own);
        }
        let bytes: u64 = heard.iter().map(|word| word.proof().to_bytes().len() as u64).sum();
        let words = Arc::new(heard);
        for to in to.iter().filter_map(|to| self.number(*to)).collect::<Vec<_>>() {
            let said = self.checks.figures.said.entry("pulse").or_default();
            (said.0, said.1) = (said.0 + 1, said.1 + bytes);
            if !self.peers[to].is_running() {
                continue;
            }
            for late in self.net.deliveries(n, to, &mut self.dice).into_iter().flatten() {
                let straight = self.checks.figures.straight.entry(to).or_default();
                *straight += bytes;
                self.put(self.now + late, Due::Pulse(to as u32, id, words.clone()));
            }
        }
    }

    /// Sends a message to everybody, or to every second peer.
    pub fn spread(&mut self, from: usize, message: &Verified<Gossip>, half: Option<usize>) {
        let bytes = message.proof().to_bytes().len() as u64;
        let said = self.checks.figures.said.entry(message.message().kind()).or_default();
        (said.0, said.1) = (said.0 + 1, said.1 + bytes);
        if self.archive.len() < ARCHIVE || self.dice.below(50) == 0 {
            let place = self.dice.below(ARCHIVE);
            match self.archive.get_mut(place) {
                Some(old) => *old = message.clone(),
                None => self.archive.push(message.clone()),
            }
        }
        let message = Arc::new(message.clone());
        for to in 0..self.peers.len() {
            if to == from || !self.peers[to].is_running() || half.is_some_and(|h| to % 2 != h) {
                continue;
            }
            for late in self.net.deliveries(from, to, &mut self.dice).into_iter().flatten() {
                self.checks.figures.heard += 1;
                self.checks.figures.heard_bytes += bytes;
                self.put(self.now + late, Due::Message(to as u32, message.clone()));
            }
        }
    }

    fn put(&mut self, at: Time, due: Due) {
        self.due.entry(at.as_millis() as u64).or_default().push(due);
    }

    /// Requests only: without them nothing is put there.
    pub(super) fn put_request(&mut self, at: Time, item: Item) {
        if self.requests.is_some() {
            self.put(at, Due::Request(item));
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        while self.checks.broken.is_none() {
            let arrival = self.due.first_key_value().map(|(ms, _)| Time::from_millis(*ms));
            let wake = self.wakes.first().copied();
            let next = [arrival, wake.map(|w| w.0)].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let Some((_, all)) = self.due.pop_first() else { continue };
                all.into_iter().for_each(|due| self.happens(due));
            } else if let Some((_, n)) = wake {
                self.tell(n, Event::Deadline);
            }
        }
        self.now = self.now.max(end);
    }

    fn happens(&mut self, due: Due) {
        match due {
            Due::Message(to, message) => {
                let to = to as usize;
                if self.peers[to].is_running() {
                    let message = Arc::unwrap_or_clone(message);
                    self.tell(to, Event::Gossip(message));
                }
            }
            Due::Pulse(to, from, words) => {
                self.tell(to as usize, Event::Pulse { from, words: Arc::unwrap_or_clone(words) });
            }
            // A system refuses connections to a process that is no more, not to one that is there again.
            Due::Refuses(_, id) if self.number(id).is_some_and(|n| self.peers[n].is_running()) => {}
            Due::Refuses(to, id) => self.tell(to as usize, Event::Gone(id)),
            Due::Connects(to, id) => self.tell(to as usize, Event::Connected(id)),
            Due::Disconnects(to, id) => self.tell(to as usize, Event::Disconnected(id)),
            Due::Start(n) => self.start(n),
            Due::End(n, life) if u64::from(self.peers[n].life.0) == life && self.peers[n].is_running() => self.kill(n),
            Due::Written(n, hold) if self.holding.get(&n) == Some(&hold) => {
                if let Held::Writing(epoch, term) = self.peers[n].held {
                    self.peers[n].disk.endorsed = Some((epoch, term));
                    (self.peers[n].held, self.peers[n].troubled) = (Held::No, self.now);
                    self.run(n);
                }
            }
            Due::GoesOn(n, hold) if self.holding.get(&n) == Some(&hold) && self.peers[n].held == Held::Paused => {
                let timer_first = self.dice.below(2) == 0;
                self.peers[n].go_on(self.now, timer_first);
                self.note(Note::WentOn(n));
                self.run(n);
            }
            Due::Planned(n, life, draft) if self.peers[n].life == life => self.tell(n, Event::Planned(draft)),
            Due::Loaded(n, life) if self.peers[n].life == life => {
                let (running, ready) = (self.pace.below(4) as u32, self.peers[n].led());
                match self.requests {
                    Some(_) => self.request(Item::Loaded((n, life), ready)),
                    None => {
                        let load = Load { running, ..Load::default() };
                        self.tell(n, Event::Load { load, ready });
                    }
                }
            }
            Due::Request(item) => self.request(item),
            Due::IsGone(n, since) => self.look_for_ghost(n, since),
            Due::Lies(n) => {
                if let Some(lie) =
                    self.peers[n].lie.filter(|_| self.peers[n].is_running() && self.quiet_since.is_none())
                {
                    self.lie(n, lie);
                    self.run(n);
                    let again = liars::EVERY.mul_f64(0.3 + self.dice.unit());
                    self.put(self.now + again, Due::Lies(n));
                }
            }
            Due::End(..) | Due::Written(..) | Due::GoesOn(..) | Due::Planned(..) | Due::Loaded(..) => {}
        }
    }

    pub(super) fn net_troubled(&mut self) {
        self.net_troubled = self.now;
        if !self.net.sides.is_empty() {
            self.parted = self.now;
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        self.chronicle.note(self.now, note);
    }

    /// Everybody who runs and does not lie.
    pub fn honest(&self) -> impl Iterator<Item = &Process> {
        self.peers.iter().filter(|p| p.is_running() && p.lie.is_none())
    }

    /// Ids of those who lie.
    #[must_use]
    pub fn liars(&self) -> BTreeSet<PeerId> {
        self.peers.iter().filter(|p| p.lie.is_some()).map(|p| p.id).collect()
    }

    /// A peer lies from its next start on.
    pub fn make_liar(&mut self, n: usize, lie: Lie) {
        self.peers[n].lie = Some(lie);
        self.note(Note::Trouble(format!("p{n} is a liar: {lie:?}")));
    }

    /// The number of a peer.
    #[must_use]
    pub fn number(&self, id: PeerId) -> Option<usize> {
        self.numbers.get(&id).copied()
    }

    /// Forgets what was said and heard so far.
    pub fn forget_bytes(&mut self) {
        let figures = &mut self.checks.figures;
        figures.said.clear();
        figures.straight.clear();
        (figures.heard, figures.heard_bytes) = (0, 0);
    }
}
