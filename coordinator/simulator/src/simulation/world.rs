//! Time, and everything in it: processes, what is on its way between them, and what is due.

mod agenda;
mod agreement;
mod lies;
mod lives;
mod witness;
mod words;

use super::{
    chronicle::{Chronicle, Note},
    invariants::InvariantChecks,
    memo::Memo,
    net::SimulatedNetwork,
    process::{Held, SimulatedProcess},
    requests::{Item, Requests},
};
use crate::simulation::byzantine::Lie;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    Time,
    control::{Action, Event, Reject},
    planner::{PlanDraft, Planner, Scheduler},
    rng::Rng,
    sample,
};
use tsnode_protocol::{Advert, Epoch, Gossip, Life, PeerId, PlanId, Term, Verified};

/// Wall clock at the beginning (s since 1970); the seed adds up to an epoch.
const UNIX: u64 = 1_800_000_000;
/// How long planners of a small swarm take at most.
const PLANNING: Duration = Duration::from_millis(50);
/// How long loading takes at most.
const LOADING: Duration = Duration::from_secs(3);
/// Messages kept for byzantine peers to say again.
const ARCHIVE: usize = 64;

/// What is due.
#[derive(Debug)]
enum Due {
    Message(u32, Arc<Verified<Gossip>>),
    /// Heartbeats that one peer sent to a few.
    Heartbeats(u32, PeerId, Arc<Vec<Verified<Gossip>>>),
    Connects(u32, PeerId),
    Disconnects(u32, PeerId),
    /// A system refuses connections to that peer's process.
    Refuses(u32, PeerId),
    Start(usize),
    /// A process that was killed while it left.
    End(usize, u64),
    Written(usize, u64),
    /// A process's planner has its answer.
    Planned(usize, Life, Option<PlanDraft>),
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
    pub peers: Vec<SimulatedProcess>,
    /// The network.
    pub net: SimulatedNetwork,
    /// Where chance comes from.
    pub rng: Rng,
    /// How long planners take at most.
    pub planning: Duration,
    pace: Rng,
    /// What must hold.
    pub checks: InvariantChecks,
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
    net_disturbed: Time,
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
        let mut rng = Rng::new(seed);
        let unix = Duration::from_secs(UNIX + rng.below(600) as u64);
        Self {
            now: Time::from_millis(1),
            peers: Vec::new(),
            net: SimulatedNetwork::default(),
            rng,
            planning: PLANNING,
            pace: Rng::new(seed ^ 0x70_6c_61_6e),
            checks: InvariantChecks::default(),
            chronicle: Chronicle::default(),
            archive: Vec::new(),
            rejected: BTreeMap::new(),
            requests: None,
            last_proposed: (Epoch(0), Term(0), PlanId([0; 16])),
            clocks_err: false,
            quiet_since: None,
            net_disturbed: Time::ZERO,
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
            let n = world.add(sample::advert(n));
            world.start(n);
        }
        world
    }

    /// One more peer, not yet running.
    pub fn add(&mut self, advert: Advert) -> usize {
        let n = self.peers.len();
        let process = SimulatedProcess::new(n, advert);
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
        while let Some(action) = self.peers[n].next(self.now) {
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
            Action::Heartbeats { to, own, heard } => self.send_heartbeats(n, &to, own, heard),
            Action::Settings(settings) => self.peers[n].disk.settings = settings,
            Action::Remember(epoch, term) => match self.peers[n].disk.latency {
                Duration::ZERO => self.peers[n].disk.endorsed = Some((epoch, term)),
                latency => {
                    self.peers[n].disturbed = self.now;
                    self.hold(n, Held::Writing(epoch, term), latency);
                }
            },
            Action::Adopt(plan) => {
                self.chronicle.adopted(self.now, plan.id(), plan.epoch, plan.term);
                if self.peers[n].lie.is_none() {
                    self.checks.a_plan_takes_effect_by_majority_and_terms_rise(self.now, id, &plan);
                    self.adopts(n, &plan);
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

    pub(super) fn net_disturbed(&mut self) {
        self.net_disturbed = self.now;
        if !self.net.sides.is_empty() {
            self.parted = self.now;
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        self.chronicle.note(self.now, note);
    }

    /// Everybody who runs and does not lie.
    pub fn honest(&self) -> impl Iterator<Item = &SimulatedProcess> {
        self.peers.iter().filter(|p| p.is_running() && p.lie.is_none())
    }

    /// Ids of those who lie.
    #[must_use]
    pub fn byzantine(&self) -> BTreeSet<PeerId> {
        self.peers.iter().filter(|p| p.lie.is_some()).map(|p| p.id).collect()
    }

    /// A peer lies from its next start on.
    pub fn make_byzantine(&mut self, n: usize, lie: Lie) {
        self.peers[n].lie = Some(lie);
        self.note(Note::Fault(format!("p{n} is byzantine: {lie:?}")));
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
