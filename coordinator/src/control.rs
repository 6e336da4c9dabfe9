//! Plan flow 3 to 5: membership, rotation, proposal, endorsement, adoption (DESIGN §4).
//!
//! Time is cut into epochs. In each, eligible peers are ranked by a hash everybody can compute; the first that is alive
//! is the coordinator, and proposes a plan whenever the adopted one no longer fits the swarm. A peer endorses at most
//! one plan per (epoch, term), after checking it against its own view. A plan that more than half of the peers it names,
//! and more than half of all living peers with devices, have endorsed takes effect, and its certificate convinces those
//! who come late. (The second half keeps a peer that sees only itself from planning for everybody.)
//!
//! The machine hears its own messages like everybody else's: the node feeds back what it publishes, signed.

mod adoption;
mod check;
mod member;

pub use check::Infeasible;
pub use member::Member;

use crate::{
    Time,
    planner::{self, Wish},
    trust::Offence,
};
use adoption::{Adopted, Proposal};
use member::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tsnode_protocol::{
    Advert, Endorsement, Epoch, Gossip, GroupId, Heartbeat, Load, PeerId, Plan, PlanId, Signed, SwarmId, Term, Verified,
};

/// Adverts of peers that count, by id.
pub type Members<'a> = BTreeMap<PeerId, &'a Advert>;

/// How long a peer that is heard may leave its advert unsaid before plans are made without it.
const ADVERT_PATIENCE: Duration = Duration::from_secs(5);
/// Between adverts when nobody is new: whoever missed them all hears them at last.
const ADVERT_EVERY: Duration = Duration::from_secs(60);
/// So many times as long a peer waits that is alone and has no plan.
const ALONE: u32 = 3;
/// How long two plans may stand side by side before a new one settles it.
const DISPUTE: Duration = Duration::from_secs(4);

/// How a peer takes part.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// This peer.
    pub me: PeerId,
    /// The swarm.
    pub swarm: SwarmId,
    /// Between heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a peer is taken for dead.
    pub dead_after: Duration,
    /// The same where the transport has lost its connection.
    pub dead_after_disconnect: Duration,
    /// Quiet after a change in membership before a plan is made: peers come in bunches.
    pub settle: Duration,
    /// How long a coordinator may leave a needed plan unmade before the next rank takes over.
    pub patience: Duration,
    /// Length of an epoch.
    pub epoch_length: Duration,
    /// Part by which a plan must be better to replace one that still fits, and may be worse by another's view.
    pub margin: f64,
    /// What a person asks of plans.
    pub wish: Wish,
    /// Peers known at once; more are refused.
    pub max_peers: usize,
    /// The last (epoch, term) this peer endorsed in an earlier life: a restart must not let it endorse twice.
    pub endorsed: Option<(Epoch, Term)>,
}

impl ControlConfig {
    /// The usual settings.
    #[must_use]
    pub fn new(me: PeerId, swarm: SwarmId) -> Self {
        Self {
            me,
            swarm,
            heartbeat: Duration::from_secs(1),
            dead_after: Duration::from_secs(3),
            dead_after_disconnect: Duration::from_millis(1500),
            settle: Duration::from_millis(800),
            patience: Duration::from_secs(2),
            epoch_length: Duration::from_secs(600),
            margin: 0.1,
            wish: Wish::default(),
            max_peers: 4096,
            endorsed: None,
        }
    }
}

/// What happens to a peer.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time [`Control::deadline`] asked for.
    Deadline,
    /// A message, verified; one's own too.
    Gossip(Verified<Gossip>),
    /// This peer's advert is new or has changed.
    Advertise(Advert),
    /// What runs here.
    Load {
        /// Its amount.
        load: Load,
        /// Groups led here that take requests.
        ready: Vec<GroupId>,
    },
    /// The transport has a connection to a peer.
    Connected(PeerId),
    /// The transport has lost its last connection to a peer.
    Disconnected(PeerId),
    /// A peer's own system says that its process is no more.
    Gone(PeerId),
    /// This peer leaves.
    Leave,
}

/// What a peer does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign, send to all, and feed back.
    Publish(Gossip),
    /// Write down that this epoch and term is endorsed, before anything that follows is sent.
    Remember(Epoch, Term),
    /// Follow this plan.
    Adopt(Plan),
    /// A message was refused.
    Reject {
        /// Its signer.
        peer: PeerId,
        /// Why.
        reason: Reject,
    },
    /// A peer is there.
    PeerUp(PeerId),
    /// A peer is gone.
    PeerDown {
        /// Which.
        peer: PeerId,
        /// How this was noticed.
        reason: Down,
    },
    /// Another peer plans now.
    CoordinatorChanged {
        /// Which; none while nobody is eligible.
        coordinator: Option<PeerId>,
        /// In which term.
        term: Term,
    },
}

/// Why a message was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reject {
    /// Its sequence is not above the last one's.
    Replay,
    /// More peers than are kept.
    TooManyPeers,
    /// A plan by a peer whose turn it is not.
    NotCoordinator,
    /// A second plan for an epoch and term.
    SecondPlan,
    /// Two plans for an epoch and term by one peer.
    Equivocation,
    /// A plan that cannot be carried out.
    Infeasible(Infeasible),
    /// A plan worth less than the present one.
    Worse,
    /// An epoch far from this peer's clock, or a term far from the last.
    WrongEpoch,
    /// A certificate whose parts do not fit or do not suffice.
    BadCertificate,
}

impl Reject {
    /// What the signer did that no honest peer does; most refusals come of different views.
    #[must_use]
    pub fn offence(&self) -> Option<Offence> {
        match self {
            Self::Equivocation => Some(Offence::SecondPlan),
            Self::BadCertificate => Some(Offence::FalseCertificate),
            _ => None,
        }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replay => f.write_str("replayed message"),
            Self::TooManyPeers => f.write_str("too many peers"),
            Self::NotCoordinator => f.write_str("plan out of turn"),
            Self::SecondPlan => f.write_str("second plan for a term"),
            Self::Equivocation => f.write_str("two plans for a term by one peer"),
            Self::Infeasible(why) => write!(f, "infeasible plan: {why}"),
            Self::Worse => f.write_str("plan worse than the present one"),
            Self::WrongEpoch => f.write_str("plan of a far epoch or term"),
            Self::BadCertificate => f.write_str("bad certificate"),
        }
    }
}

/// How a peer's going was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// It was silent for too long.
    Silent,
    /// Its process is no more.
    Gone,
    /// It said goodbye.
    Left,
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "silent for too long",
            Self::Gone => "its process has ended",
            Self::Left => "it left",
        })
    }
}

/// One peer's part in the control plane.
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    unix_start: Duration,
    now: Time,
    members: BTreeMap<PeerId, Member>,
    advert: Option<Advert>,
    load: Load,
    ready: Vec<GroupId>,
    leaving: bool,
    adopted: Option<Adopted>,
    proposals: BTreeMap<PlanId, Proposal>,
    /// The last (epoch, term) endorsed: only higher ones are.
    endorsed: Option<(Epoch, Term)>,
    /// The highest (epoch, term) heard of in a proposal.
    highest: (Epoch, Term),
    coordinator: Option<PeerId>,
    next_heartbeat: Time,
    next_advert: Option<Time>,
    /// Adverts are repeated quickly until then: newcomers may miss the first.
    adverts_until: Time,
    next_certificate: Time,
    /// Since when the adopted plan no longer fits.
    needed_since: Option<Time>,
    /// Last change of who is there.
    changed: Time,
    proposed_at: Option<Time>,
    /// What [`Control::wanted`] found, until what it looks at changes.
    draft: Option<Option<planner::Draft>>,
}

impl Control {
    /// A peer at its start. `unix_now` is the wall clock, for epochs.
    #[must_use]
    pub fn new(config: ControlConfig, now: Time, unix_now: Duration) -> Self {
        Self {
            endorsed: config.endorsed,
            config,
            unix_start: unix_now.saturating_sub(now),
            now,
            members: BTreeMap::new(),
            advert: None,
            load: Load::default(),
            ready: Vec::new(),
            leaving: false,
            adopted: None,
            proposals: BTreeMap::new(),
            highest: (Epoch(0), Term(0)),
            coordinator: None,
            next_heartbeat: now,
            next_advert: None,
            adverts_until: now,
            next_certificate: now,
            needed_since: None,
            changed: now,
            proposed_at: None,
            draft: None,
        }
    }

    /// One event, and what follows from it.
    pub fn on_event(&mut self, now: Time, event: Event) -> Vec<Action> {
        self.now = now;
        let mut out = Vec::new();
        match event {
            Event::Deadline => {}
            Event::Gossip(message) => self.hear(message, &mut out),
            Event::Advertise(advert) => {
                self.advert = Some(advert);
                self.next_advert = Some(now);
            }
            Event::Load { load, ready } => {
                if ready != self.ready {
                    // Gateways route by this: it does not wait for the next heartbeat.
                    self.next_heartbeat = now;
                }
                self.load = load;
                self.ready = ready;
            }
            Event::Connected(_) => self.newcomer(),
            Event::Disconnected(peer) => {
                if let Some(member) = self.members.get_mut(&peer) {
                    member.disconnected = true;
                }
            }
            Event::Gone(peer) => {
                if let Some(member) = self.members.get_mut(&peer) {
                    member.gone_at = Some(now);
                }
            }
            Event::Leave => {
                self.leaving = true;
                self.next_heartbeat = now;
            }
        }
        self.expire(&mut out);
        self.speak(&mut out);
        self.lead(&mut out);
        out
    }

    /// When to wake if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let propose = self.needed_since.map(|since| self.my_turn_at(since));
        [Some(self.next_heartbeat), self.next_advert, propose].into_iter().flatten().filter(|at| *at > self.now).min()
    }

    /// The epoch by this peer's clock, or a later one that a plan has brought.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        let by_clock = (self.unix_start + self.now).as_secs() / self.config.epoch_length.as_secs().max(1);
        Epoch(by_clock.max(self.adopted.as_ref().map_or(0, |a| a.plan.epoch.0)))
    }

    /// The term of the adopted plan.
    #[must_use]
    pub fn term(&self) -> Term {
        self.adopted.as_ref().map_or(Term(0), |a| a.plan.term)
    }

    /// Who plans now.
    #[must_use]
    pub fn coordinator(&self) -> Option<PeerId> {
        self.coordinator
    }

    /// This peer.
    #[must_use]
    pub fn me(&self) -> PeerId {
        self.config.me
    }

    /// The adopted plan.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.adopted.as_ref().map(|a| &a.plan)
    }

    /// Its name.
    #[must_use]
    pub fn plan_id(&self) -> Option<PlanId> {
        self.adopted.as_ref().map(|a| a.id)
    }

    /// Everyone who is there, this peer included once it has heard itself.
    pub fn members(&self) -> impl Iterator<Item = (&PeerId, &Member)> {
        self.members.iter().filter(|(_, m)| m.alive)
    }

    /// Groups whose leaders say that they take requests, with the leaders' load.
    #[must_use]
    pub fn ready(&self) -> BTreeMap<GroupId, Load> {
        let mut up = BTreeMap::new();
        for (_, member) in self.members().filter(|(_, m)| !m.heartbeat.leaving) {
            up.extend(member.heartbeat.ready.iter().map(|g| (*g, member.heartbeat.load)));
        }
        up
    }

    fn hear(&mut self, message: Verified<Gossip>, out: &mut Vec<Action>) {
        let (signer, sequence) = (message.signer(), message.sequence());
        let kind = Kind::of(message.message());
        let is_new = !self.members.contains_key(&signer);
        if is_new && self.members.len() >= self.config.max_peers {
            return out.push(Action::Reject { peer: signer, reason: Reject::TooManyPeers });
        }
        let member = self.members.entry(signer).or_insert_with(|| Member::new(self.now));
        if !member.advance(kind, sequence) {
            return out.push(Action::Reject { peer: signer, reason: Reject::Replay });
        }
        member.heard(self.now);
        if is_new && signer != self.config.me {
            self.newcomer();
        }
        let (gossip, proof) = message.into_parts();
        match gossip {
            Gossip::Advert(advert) => self.hear_advert(signer, advert),
            Gossip::Heartbeat(heartbeat) => self.hear_heartbeat(signer, heartbeat),
            Gossip::Plan(plan) => self.hear_plan(signer, plan, proof, out),
            Gossip::Endorsement(endorsement) => self.hear_endorsement(signer, endorsement, proof, out),
            Gossip::Certificate(certificate) => self.hear_certificate(signer, certificate, out),
        }
        self.revive(signer, out);
    }

    fn hear_advert(&mut self, signer: PeerId, advert: Advert) {
        let Some(member) = self.members.get_mut(&signer) else { return };
        if member.advert.as_ref() != Some(&advert) {
            // A measured link is no reason to wait; a device that comes or goes is.
            let moved = member.advert.as_ref().is_none_or(|a| a.devices != advert.devices || a.models != advert.models);
            member.advert = Some(advert);
            self.draft = None;
            if moved {
                self.changed = self.now;
            }
        }
    }

    fn hear_heartbeat(&mut self, signer: PeerId, heartbeat: Heartbeat) {
        let behind = heartbeat.plan != self.plan_id();
        let Some(member) = self.members.get_mut(&signer) else { return };
        if heartbeat.leaving != member.heartbeat.leaving {
            self.draft = None;
            self.changed = self.now;
        }
        if !behind {
            member.behind_since = None;
        } else if member.behind_since.is_none() {
            member.behind_since = Some(self.now);
        }
        member.heartbeat = heartbeat;
        if behind && signer != self.config.me {
            // It may have started again, too soon to have been missed, and lack the adverts it would judge us by.
            self.advertise_within(Duration::from_secs(1));
        }
    }

    /// A peer with an advert and a fresh word is there.
    fn revive(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(&peer) else { return };
        if !member.alive && !member.is_gone() && member.advert.is_some() {
            member.alive = true;
            self.draft = None;
            self.changed = self.now;
            out.push(Action::PeerUp(peer));
            if peer != self.config.me {
                // It may have been here before, and forgotten us.
                self.newcomer();
            }
        }
    }

    fn newcomer(&mut self) {
        self.adverts_until = self.now + Duration::from_secs(4);
        self.advertise_within(Duration::from_millis(200));
    }

    fn advertise_within(&mut self, span: Duration) {
        let soon = self.now + span;
        self.next_advert = Some(self.next_advert.map_or(soon, |at| at.min(soon)));
    }

    fn expire(&mut self, out: &mut Vec<Action>) {
        let (now, config) = (self.now, &self.config);
        for (peer, member) in self.members.iter_mut().filter(|(peer, m)| m.alive && **peer != config.me) {
            let left = member.heartbeat.leaving && member.disconnected;
            if left || member.is_gone() || now >= member.last_heard + member.patience(config) {
                member.alive = false;
                self.draft = None;
                self.changed = now;
                let reason = match member.is_gone() {
                    _ if member.heartbeat.leaving => Down::Left,
                    true => Down::Gone,
                    false => Down::Silent,
                };
                out.push(Action::PeerDown { peer: *peer, reason });
            }
        }
        // The dead are remembered for their sequences, but not forever.
        let forget = config.dead_after * 200;
        self.members.retain(|_, m| m.alive || now < m.last_heard + forget);
    }

    fn speak(&mut self, out: &mut Vec<Action>) {
        if let Some(advert) = self.advert.clone().filter(|_| self.next_advert.is_some_and(|at| at <= self.now)) {
            let again = self.now + Duration::from_secs(1);
            self.next_advert = Some(if again <= self.adverts_until { again } else { self.now + ADVERT_EVERY });
            out.push(Action::Publish(Gossip::Advert(advert)));
        }
        if self.advert.is_some() && self.next_heartbeat <= self.now {
            self.next_heartbeat = self.now + self.config.heartbeat;
            out.push(Action::Publish(Gossip::Heartbeat(Heartbeat {
                epoch: self.epoch(),
                term: self.term(),
                plan: self.plan_id(),
                ready: self.ready.clone(),
                load: self.load,
                leaving: self.leaving,
            })));
        }
    }

    /// Finds out whose turn it is; proposes if it is this peer's and a plan is needed.
    fn lead(&mut self, out: &mut Vec<Action>) {
        let ranks = self.ranks(self.epoch());
        let first = ranks.first().copied();
        if first != self.coordinator {
            self.coordinator = first;
            out.push(Action::CoordinatorChanged { coordinator: first, term: self.term() });
        }
        self.retry_proposals(out);
        if self.now < self.changed + self.settle() || self.advert.is_none() || self.awaits_adverts() {
            return;
        }
        let disputed = self.is_disputed();
        let settled = matches!(self.draft, Some(None));
        let pressing = disputed || (!settled && self.is_pressing());
        if !pressing && (settled || first != Some(self.config.me)) {
            self.needed_since = None;
            self.proposed_at = None;
            return self.convince(&ranks, out);
        }
        let turn = pressing.then(|| *self.needed_since.get_or_insert(self.now)).map(|since| self.my_turn_at(since));
        let waiting = self.proposed_at.is_some_and(|at| self.now < at + self.config.patience);
        let may = ranks.contains(&self.config.me) && !self.leaving;
        if turn.is_some_and(|at| self.now < at) || waiting || !may {
            return;
        }
        // Searching is work: only whose turn it is does it.
        if self.draft.is_none() {
            self.draft = Some(self.wanted());
        }
        let again = || disputed.then(|| planner::plan(&self.planned_members(), &self.config.wish));
        match self.draft.clone().flatten().or_else(again).filter(|d| !d.groups.is_empty()) {
            Some(draft) => {
                self.proposed_at = Some(self.now);
                let plan = self.number(draft);
                out.push(Action::Publish(Gossip::Plan(plan)));
            }
            None => self.convince(&ranks, out),
        }
    }

    /// Whether a plan is needed that anybody can see: there is none, it does not fit any more, or a peer has no part in it.
    fn is_pressing(&self) -> bool {
        let Some(adopted) = &self.adopted else { return !self.electorate().is_empty() };
        check::feasible(&adopted.plan, &self.planned_members()).is_err()
            || self.electorate().iter().any(|peer| !adopted.peers.contains(peer))
    }

    /// Quiet to wait for. Who starts alone has most likely company on its way: a plan made just before it comes would be
    /// one of two in its term, and seconds go by until that is settled.
    fn settle(&self) -> Duration {
        let lends = self.advert.as_ref().is_some_and(|a| !a.devices.is_empty());
        let alone = lends && self.adopted.is_none() && self.members().count() < 2;
        if alone { self.config.settle * ALONE } else { self.config.settle }
    }

    /// Somebody is there whose advert is still on its way: a plan made now would leave it out.
    fn awaits_adverts(&self) -> bool {
        let new = |m: &Member| m.advert.is_none() && self.now < m.first_heard + ADVERT_PATIENCE;
        self.members.values().any(new)
    }

    /// Somebody follows another plan of this term or a later one, and no certificate has settled it.
    fn is_disputed(&self) -> bool {
        let astray = |m: &Member| {
            let for_long = m.behind_since.is_some_and(|since| self.now > since + DISPUTE);
            for_long && m.heartbeat.plan.is_some() && m.heartbeat.term >= self.term()
        };
        self.members().any(|(_, m)| astray(m))
    }

    /// Living peers with devices: those a plan is made of, and who decide on it.
    fn electorate(&self) -> BTreeSet<PeerId> {
        let has_devices = |a: &Advert| !a.devices.is_empty();
        self.planned_members().into_iter().filter(|(_, a)| has_devices(a)).map(|(peer, _)| peer).collect()
    }

    /// When this peer may propose: at once for the first rank, later by its rank for the others.
    fn my_turn_at(&self, since: Time) -> Time {
        let ranks = self.ranks(self.epoch());
        let rank = ranks.iter().position(|p| *p == self.config.me).unwrap_or(ranks.len()) as u32;
        since + self.config.patience * rank
    }

    /// Eligible peers in the order of their turns.
    fn ranks(&self, epoch: Epoch) -> Vec<PeerId> {
        let last = self.plan_id();
        let mut ranks: Vec<(blake3::Hash, PeerId)> = self
            .members()
            .filter(|(_, m)| m.is_eligible())
            .map(|(peer, _)| (rank_hash(self.config.swarm, epoch, last, *peer), *peer))
            .collect();
        ranks.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        ranks.into_iter().map(|(_, peer)| peer).collect()
    }

    /// The draft that should replace the adopted plan, if one should.
    fn wanted(&self) -> Option<planner::Draft> {
        let members = self.planned_members();
        let fits = |plan: &Plan| check::feasible(plan, &members).is_ok();
        // After a loss, what stands goes on at once; what else could be done is looked for when that is in force.
        let stands = self.adopted.as_ref().filter(|a| !fits(&a.plan));
        if let Some(draft) = stands.and_then(|a| planner::flip(&a.plan, &members, &self.config.wish)) {
            return Some(draft);
        }
        let draft = planner::plan(&members, &self.config.wish);
        if draft.groups.is_empty() {
            return None;
        }
        let Some(adopted) = &self.adopted else { return Some(draft) };
        if draft.groups == adopted.plan.groups && draft.routes == adopted.plan.routes {
            return None;
        }
        let idle = draft.groups.iter().flat_map(|g| &g.stages).any(|s| !adopted.peers.contains(&s.peer));
        let better = || {
            let next = Plan { groups: draft.groups.clone(), routes: draft.routes.clone(), ..adopted.plan.clone() };
            let worth = |plan| planner::value(plan, &members, &self.config.wish);
            worth(&next) > worth(&adopted.plan) * (1.0 + self.config.margin)
        };
        (!fits(&adopted.plan) || idle || better()).then_some(draft)
    }

    /// Adverts of those who are there to stay.
    fn planned_members(&self) -> Members<'_> {
        self.members()
            .filter(|(_, m)| !m.heartbeat.leaving)
            .filter_map(|(peer, m)| Some((*peer, m.advert.as_ref()?)))
            .collect()
    }

    /// A draft becomes a plan of the next free term.
    fn number(&self, draft: planner::Draft) -> Plan {
        let epoch = self.epoch();
        let seen = |at: (Epoch, Term)| (at.0 == epoch).then_some(at.1.0);
        let adopted = self.adopted.as_ref().map(|a| (a.plan.epoch, a.plan.term));
        let last = [seen(self.highest), adopted.and_then(seen), self.endorsed.and_then(seen)];
        let term = Term(last.into_iter().flatten().max().map_or(0, |t| t.saturating_add(1)));
        Plan { epoch, term, parent: self.plan_id(), groups: draft.groups, routes: draft.routes, reason: draft.reason }
    }
}

fn rank_hash(swarm: SwarmId, epoch: Epoch, last: Option<PlanId>, peer: PeerId) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tsnode rank v1").update(&swarm.0).update(&epoch.0.to_le_bytes());
    if let Some(plan) = last {
        hasher.update(&plan.0);
    }
    hasher.update(&peer.0);
    hasher.finalize()
}

/// A signed endorsement with its meaning.
type SignedEndorsement = (Endorsement, Signed<Gossip>);
