//! Time, and everything in it: processes, what is on its way between them, and what is due.

use super::{
    cast,
    checks::{Checks, EXCUSE, GHOST},
    chronicle::{Chronicle, Note},
    liars::{self, Lie},
    memo::Memo,
    net::Net,
    process::{Held, Next, Process},
};
use crate::{
    Time,
    control::{Action, Down, Event, Reject},
    planner::{Planner, Scheduler},
    scheduler::dice::Dice,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, Epoch, Gossip, PeerId, Plan, PlanId, Term, Verified};

/// Wall clock at the beginning (s since 1970); the seed adds up to an epoch.
const UNIX: u64 = 1_800_000_000;
/// Peers before and after it that one is connected to, in a swarm of more than three times as many.
const NEIGHBOURS: usize = 4;
/// Messages kept for liars to say again.
const ARCHIVE: usize = 64;

/// What is due.
#[derive(Debug)]
enum Due {
    Message(u32, Arc<Verified<Gossip>>),
    Told(u32, Event),
    Start(usize),
    /// A process that was killed while it left.
    End(usize, u64),
    Written(usize, u64),
    GoesOn(usize, u64),
    IsGone(usize, Time),
    Lies(usize),
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
    /// What must hold.
    pub checks: Checks,
    /// What happened.
    pub chronicle: Chronicle,
    /// Messages of all kinds, a few of each.
    pub archive: Vec<Verified<Gossip>>,
    /// Messages refused, by who refused them.
    pub rejected: BTreeMap<usize, Vec<Reject>>,
    pub(super) last_proposed: (Epoch, Term, PlanId),
    /// Whether clocks may be wrong.
    pub(super) clocks_err: bool,
    /// Whether the world is to be at peace.
    pub(super) quiet_since: Option<Time>,
    net_troubled: Time,
    numbers: BTreeMap<PeerId, usize>,
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
            checks: Checks::default(),
            chronicle: Chronicle::default(),
            archive: Vec::new(),
            rejected: BTreeMap::new(),
            last_proposed: (Epoch(0), Term(0), PlanId([0; 16])),
            clocks_err: false,
            quiet_since: None,
            net_troubled: Time::ZERO,
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

    /// It starts at that time.
    pub fn start_at(&mut self, at: Time, n: usize) {
        self.put(at, Due::Start(n));
    }

    /// It starts, or starts again.
    pub fn start(&mut self, n: usize) {
        if self.peers[n].is_running() {
            return;
        }
        if self.clocks_err {
            let wrong = self.dice.below(10) < 3;
            self.peers[n].skew = if wrong { self.dice.below(7200) as i64 - 3600 } else { 0 };
        }
        let (now, unix, planner) = (self.now, self.unix + self.now, self.planner.clone());
        self.peers[n].start(now, unix, planner);
        self.checks.born(self.peers[n].id);
        self.note(Note::Started(n));
        let id = self.peers[n].id;
        for other in self.neighbours(n) {
            let at = now + Duration::from_millis(20 + self.dice.below(300) as u64);
            let there = self.peers[other].id;
            self.put(at, Due::Told(other as u32, Event::Connected(id)));
            self.put(at, Due::Told(n as u32, Event::Connected(there)));
        }
        if self.peers[n].lie.is_some() {
            self.put(now + liars::EVERY, Due::Lies(n));
        }
        self.run(n);
    }

    /// The process is killed: its system closes its connections, and says so to who asks.
    pub fn kill(&mut self, n: usize) {
        let id = self.peers[n].id;
        for other in self.neighbours(n) {
            let at = self.now + Duration::from_millis(5 + self.dice.below(40) as u64);
            self.put(at, Due::Told(other as u32, Event::Disconnected(id)));
            if self.dice.below(2) == 0 {
                let at = at + Duration::from_millis(self.dice.below(250) as u64);
                self.put(at, Due::Told(other as u32, Event::Gone(id)));
            }
        }
        self.end(n, "is killed");
    }

    /// The whole computer is gone at once: nobody is told.
    pub fn cut_power(&mut self, n: usize) {
        self.end(n, "has no power");
    }

    fn end(&mut self, n: usize, how: &'static str) {
        if let Held::Writing(epoch, term) = self.peers[n].held
            && self.dice.below(2) == 0
        {
            self.peers[n].disk.endorsed = Some((epoch, term));
        }
        let now = self.now;
        self.peers[n].end(now);
        self.reschedule(n);
        self.note(Note::Ended(n, how));
        self.put(now + GHOST, Due::IsGone(n, now));
    }

    /// It says that it leaves, and ends soon after.
    pub fn leave(&mut self, n: usize) {
        if !self.peers[n].leaving {
            self.peers[n].leaving = true;
            self.note(Note::Trouble(format!("p{n} leaves")));
            self.tell(n, Event::Leave);
            let (after, life) = (Duration::from_millis(1000 + self.dice.below(3000) as u64), self.peers[n].life.0);
            self.put(self.now + after, Due::End(n, u64::from(life)));
        }
    }

    /// It is stopped for so long.
    pub fn pause(&mut self, n: usize, span: Duration) {
        self.note(Note::Paused(n, span));
        self.peers[n].troubled = self.now;
        self.hold(n, Held::Paused, span);
    }

    fn hold(&mut self, n: usize, held: Held, span: Duration) {
        self.holds += 1;
        self.peers[n].held = held;
        self.holding.insert(n, self.holds);
        let due = match held {
            Held::Writing(..) => Due::Written(n, self.holds),
            _ => Due::GoesOn(n, self.holds),
        };
        self.put(self.now + span, due);
        self.reschedule(n);
    }

    /// Those a peer is connected to.
    fn neighbours(&self, n: usize) -> Vec<usize> {
        let (all, reach) = (self.peers.len(), NEIGHBOURS);
        let near =
            |other: usize| all <= 3 * reach || (other + all - n) % all <= reach || (n + all - other) % all <= reach;
        (0..all).filter(|other| *other != n && near(*other) && self.peers[*other].is_running()).collect()
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
            }
            Action::Reject { peer, reason } => self.refused(n, peer, reason),
            Action::PeerDown { peer, reason } => self.gave_up(n, peer, reason),
            Action::PeerUp(_) | Action::PeerSuspect(_) | Action::CoordinatorChanged { .. } => {}
        }
    }

    fn refused(&mut self, n: usize, peer: PeerId, reason: Reject) {
        let honest = self.numbers.get(&peer).is_some_and(|p| self.peers[*p].lie.is_none());
        if honest && reason != Reject::Replay && self.peers[n].lie.is_none() {
            *self.checks.figures.refused.entry(reason.clone()).or_default() += 1;
            if reason.is_lie() {
                self.checks.honest_peers_are_not_cut_off(self.now, peer, &reason);
            }
        }
        self.rejected.entry(n).or_default().push(reason);
    }

    fn has_liars(&self) -> bool {
        self.peers.iter().any(|p| p.lie.is_some())
    }

    fn gave_up(&mut self, viewer: usize, peer: PeerId, reason: Down) {
        let Some(&other) = self.numbers.get(&peer) else { return };
        if self.peers[viewer].lie.is_some() || self.peers[other].lie.is_some() {
            return;
        }
        if !self.peers[other].is_running() {
            let after = self.now.saturating_sub(self.peers[other].since).as_secs_f64();
            let figures = &mut self.checks.figures;
            match reason {
                Down::Silent => figures.noticed_by_silence.push(after),
                Down::Gone | Down::Left => figures.noticed_at_once.push(after),
            }
        } else if reason != Down::Left {
            let recent = |at: Time| self.now < at + EXCUSE && at > Time::ZERO;
            let excused = [viewer, other].iter().any(|n| {
                let p = &self.peers[*n];
                recent(p.troubled) || p.held != Held::No
            });
            let cut = self.net.lost > 0.0 || self.net.is_cut(other, viewer);
            if excused || cut || recent(self.net_troubled) {
                self.checks.figures.excused_deaths += 1;
            } else {
                self.checks.figures.false_deaths += 1;
                self.checks.the_living_are_not_buried(self.now, other, viewer);
            }
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
        self.spread(n, &message, half);
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
            // A system refuses connections to a process that is no more, not to one that is there again.
            Due::Told(_, Event::Gone(id)) if self.number(id).is_some_and(|n| self.peers[n].is_running()) => {}
            Due::Told(to, event) => self.tell(to as usize, event),
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
            Due::End(..) | Due::Written(..) | Due::GoesOn(..) => {}
        }
    }

    fn look_for_ghost(&mut self, n: usize, since: Time) {
        let dead = &self.peers[n];
        if dead.is_running() || dead.since != since {
            return;
        }
        let sees = |viewer: &Process| {
            let rested = viewer.held == Held::No && self.now >= viewer.troubled + GHOST && viewer.lie.is_none();
            rested && viewer.control().is_some_and(|c| c.members().any(|(id, _)| *id == dead.id))
        };
        // A liar that says again what some had not heard keeps the dead alive for them, for as long as it has more of it.
        let echoes = self.peers.iter().any(|p| p.lie == Some(Lie::Replay));
        if echoes {
            return;
        }
        if let Some(viewer) = self.peers.iter().position(sees) {
            self.checks.no_ghosts(self.now, n, viewer);
        }
    }

    pub(super) fn net_troubled(&mut self) {
        self.net_troubled = self.now;
    }

    pub(super) fn note(&mut self, note: Note) {
        self.chronicle.note(self.now, note);
    }

    /// Everybody who runs and does not lie.
    pub fn honest(&self) -> impl Iterator<Item = &Process> {
        self.peers.iter().filter(|p| p.is_running() && p.lie.is_none())
    }

    /// The plan that all honest peers follow.
    ///
    /// # Errors
    /// Says who does not.
    pub fn common_plan(&self) -> Result<&Plan, String> {
        let mut plans = self.honest().map(|p| (p, p.control().and_then(|c| c.plan())));
        let first = plans.next().and_then(|(_, plan)| plan).ok_or("a peer has no plan")?;
        match plans.find(|(_, plan)| *plan != Some(first)) {
            Some((p, Some(other))) => {
                let of = |p: &Plan| format!("{:.10} (epoch {} term {})", p.id(), p.epoch.0, p.term.0);
                Err(format!("{} follows {} and others {}", p.advert.name, of(other), of(first)))
            }
            Some((p, None)) => Err(format!("{} has no plan", p.advert.name)),
            None => Ok(first),
        }
    }

    /// Whether all honest peers follow one plan, which serves exactly the living, see each other and nobody else, and
    /// agree who plans next.
    ///
    /// # Errors
    /// Says what is not so.
    pub fn agreement(&self) -> Result<(), String> {
        let served = self.common_plan()?.peers();
        let name = |id: &PeerId| self.numbers.get(id).map_or_else(|| id.short(), |n| format!("p{n}"));
        let living: BTreeSet<PeerId> = self.honest().map(|p| p.id).collect();
        let running: BTreeSet<PeerId> = self.peers.iter().filter(|p| p.is_running()).map(|p| p.id).collect();
        if let Some(lost) = self.honest().filter(|p| p.lends()).find(|p| !served.contains(&p.id)) {
            return Err(format!("the plan leaves out {}", lost.advert.name));
        }
        if let Some(dead) = served.difference(&running).next() {
            return Err(format!("the plan names {}, which is gone", name(dead)));
        }
        let mut planners = BTreeSet::new();
        for (peer, control) in self.honest().filter_map(|p| Some((p, p.control()?))) {
            let seen: BTreeSet<PeerId> = control.members().map(|(id, _)| *id).collect();
            if let Some(lost) = living.difference(&seen).next() {
                return Err(format!("{} does not see {}", peer.advert.name, name(lost)));
            }
            if let Some(ghost) = seen.difference(&running).next() {
                return Err(format!("{} sees {}, which is gone", peer.advert.name, name(ghost)));
            }
            planners.insert(control.coordinator());
        }
        // Who lies may be seen by some and not by others.
        if planners.len() > 1 && !self.has_liars() {
            return Err(format!("{} peers are taken for the coordinator", planners.len()));
        }
        Ok(())
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
        (figures.heard, figures.heard_bytes) = (0, 0);
    }
}
