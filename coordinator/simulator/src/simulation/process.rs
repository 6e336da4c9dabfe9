//! One process: the machine it runs, its disk, its clock, and what waits for it while it is held up.

use super::cast::SWARM;
use crate::simulation::byzantine::Lie;
use ed25519_dalek::SigningKey;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    Time,
    control::{Action, Control, ControlConfig, Event},
    planner::Planner,
    settings::SwarmSettings,
};
use tsnode_protocol::{
    Advert, Epoch, Gossip, GroupId, Life, PeerId, SwarmSetting, Term, Verified, envelope::EnvelopeError,
};

/// What survives the process.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The last life that was begun.
    pub life: Option<Life>,
    /// The last (epoch, term) endorsed.
    pub endorsed: Option<(Epoch, Term)>,
    /// What members had set for the swarm.
    pub settings: Vec<SwarmSetting>,
    /// How long writing takes.
    pub latency: Duration,
}

/// Why a process does nothing though it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It runs.
    No,
    /// It was stopped; its connections stay open.
    Paused,
    /// It waits for its disk to have this.
    Writing(Epoch, Term),
}

/// One peer's process, running or not.
#[derive(Debug)]
pub struct SimulatedProcess {
    /// Who it is.
    pub id: PeerId,
    /// What it lends.
    pub advert: Advert,
    /// What survives it.
    pub disk: Disk,
    /// How far its wall clock is off (s).
    pub skew: i64,
    /// What it lies about, if it lies.
    pub lie: Option<Lie>,
    /// It has said that it leaves.
    pub leaving: bool,
    /// When it began, or ended.
    pub since: Time,
    /// When something last went wrong with it or its connections.
    pub disturbed: Time,
    /// Whether it is held up.
    pub held: Held,
    pub(super) life: Life,
    /// When it is to be woken; kept in the world's agenda.
    pub(super) wake: Option<Time>,
    key: SigningKey,
    control: Option<Control>,
    sequence: u64,
    inbox: VecDeque<Event>,
    own: VecDeque<Event>,
    doing: VecDeque<Action>,
}

impl SimulatedProcess {
    pub(super) fn new(number: usize, advert: Advert) -> Self {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let key = SigningKey::from_bytes(&seed);
        Self {
            id: PeerId(key.verifying_key().to_bytes()),
            advert,
            disk: Disk::default(),
            skew: 0,
            lie: None,
            leaving: false,
            since: Time::ZERO,
            disturbed: Time::ZERO,
            held: Held::No,
            life: Life::default(),
            wake: None,
            key,
            control: None,
            sequence: 0,
            inbox: VecDeque::new(),
            own: VecDeque::new(),
            doing: VecDeque::new(),
        }
    }

    /// Its machine, while it runs.
    #[must_use]
    pub fn control(&self) -> Option<&Control> {
        self.control.as_ref()
    }

    /// Whether there is a process, held up or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.control.is_some()
    }

    /// Whether it lends devices.
    #[must_use]
    pub fn lends(&self) -> bool {
        !self.advert.devices.is_empty()
    }

    /// The groups of its plan that it leads.
    pub(super) fn led(&self) -> Vec<GroupId> {
        let groups = self.control().and_then(|c| c.plan()).map_or(&[][..], |p| &p.groups);
        groups.iter().filter(|g| g.leader() == Some(self.id)).map(|g| g.id).collect()
    }

    /// Starts with what the disk has.
    pub(super) fn start(&mut self, now: Time, unix: Duration, planner: Arc<dyn Planner>) {
        let unix = Duration::from_secs(unix.as_secs().saturating_add_signed(self.skew));
        self.life = Life::after(self.disk.life, unix.as_secs());
        self.disk.life = Some(self.life);
        self.sequence = self.life.sequence();
        let mut settings = SwarmSettings::default();
        settings.take_in(&self.disk.settings);
        let endorsed = self.disk.endorsed;
        let config = ControlConfig { endorsed, settings, planner, ..ControlConfig::new(self.id, SWARM) };
        self.control = Some(Control::new(config, now, unix));
        (self.since, self.disturbed, self.leaving) = (now, now, false);
        self.inbox.push_back(Event::Advertise(self.advert.clone()));
    }

    /// Ends without another word.
    pub(super) fn end(&mut self, now: Time) {
        self.control = None;
        (self.since, self.disturbed, self.held) = (now, now, Held::No);
        self.inbox.clear();
        self.own.clear();
        self.doing.clear();
    }

    pub(super) fn take(&mut self, event: Event) {
        self.inbox.push_back(event);
    }

    /// It goes on after it was stopped: the timer may ring before what waits is read.
    pub(super) fn go_on(&mut self, now: Time, timer_first: bool) {
        (self.held, self.disturbed) = (Held::No, now);
        if timer_first {
            self.inbox.push_front(Event::Deadline);
        }
    }

    /// What it does next. As the node's loop has it: what was decided is done in order, then what the peer said itself is heard,
    /// then others.
    pub(super) fn next(&mut self, now: Time) -> Option<Action> {
        while self.held == Held::No {
            if let Some(action) = self.doing.pop_front() {
                return Some(action);
            }
            let (Some(event), Some(control)) =
                (self.own.pop_front().or_else(|| self.inbox.pop_front()), &mut self.control)
            else {
                break;
            };
            self.doing.extend(control.on_event(now, event));
        }
        None
    }

    pub(super) fn hear_self(&mut self, message: Verified<Gossip>) {
        self.own.push_back(Event::Gossip(message));
    }

    pub(super) fn heartbeats_to_self(&mut self, word: Verified<Gossip>) {
        self.own.push_back(Event::Heartbeats { from: self.id, words: vec![word] });
    }

    /// Signs what it says with its next sequence.
    ///
    /// # Errors
    /// When others would refuse it.
    pub fn seal(&mut self, gossip: Gossip) -> Result<Verified<Gossip>, EnvelopeError> {
        self.sequence += 1;
        Verified::seal(&self.key, SWARM, self.sequence, gossip)
    }

    /// Sequences go on from here.
    pub(super) fn jump(&mut self, by: i64) {
        self.sequence = self.sequence.saturating_add_signed(by);
    }
}
