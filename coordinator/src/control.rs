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
mod adverts;
mod ballot;
mod calls;
mod config;
pub mod detector;
mod events;
mod lead;
mod leader_rank;
mod liveness;
mod member;
mod own;
mod plan_check;
mod planning;
mod reload;
mod settings;
mod swap;
mod swapping;
mod view;
mod voice;

pub use calls::Calls;
pub use config::ControlConfig;
pub use detector::Silence;
pub use events::{Action, Down, Event, Reject};
pub use liveness::digest_every;
pub use member::{Member, Presence};
pub use plan_check::Infeasible;
pub use planning::PlannerInput;

use crate::{
    Time,
    control::{
        adoption::Adoption, adverts::AdvertSchedule, ballot::Ballot, detector::Health, lead::PlanningTurn,
        leader_rank::LeaderRanks, member::Audience, own::Own, swapping::Swapping, view::Derived, voice::Voice,
    },
};
use std::collections::{BTreeMap, btree_map::Entry};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Endorsement, Epoch, Gossip, PeerId, Plan, PlanId, Signed, Term, Verified, limits};

/// A signed endorsement with its meaning.
type SignedEndorsement = (Endorsement, Signed<Gossip>);

/// How often everybody is looked at when nothing happens: what one peer said is told apart at once, what follows from
/// all of it can wait so long. So a message costs the same in a swarm of any size.
const LOOK: Duration = Duration::from_millis(250);

/// One peer's part in the control plane.
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    unix_start: Duration,
    now: Time,
    /// Boxed, so that finding one of a thousand reads few lines of memory.
    members: BTreeMap<PeerId, Box<Member>>,
    own: Own,
    ballot: Ballot,
    adoption: Adoption,
    turn: PlanningTurn,
    swapping: Swapping,
    /// What follows from the members and the plan, until they change.
    derived: Option<Derived>,
    /// What peers drew for their turns, and for listening.
    leader_ranks: (LeaderRanks, LeaderRanks),
    /// The epoch most members are in.
    common_epoch: Option<Epoch>,
    health: Health,
    next_look: Time,
    next_clearing: Time,
    next_heartbeat: Time,
    adverts: AdvertSchedule,
    voice: Voice,
    /// When this peer says the digest next, if that is for it to say.
    next_digest: Option<Time>,
    /// Last change of who is there.
    changed: Time,
}

impl Control {
    /// A peer at its start. `unix_now` is the wall clock, for epochs.
    #[must_use]
    pub fn new(config: ControlConfig, now: Time, unix_now: Duration) -> Self {
        Self {
            ballot: Ballot::new(config.endorsed),
            own: Own { settings: config.settings.clone(), ..Own::default() },
            config,
            unix_start: unix_now.saturating_sub(now),
            now,
            members: BTreeMap::new(),
            adoption: Adoption::default(),
            turn: PlanningTurn::default(),
            swapping: Swapping::default(),
            derived: None,
            leader_ranks: Default::default(),
            common_epoch: None,
            health: Health::default(),
            next_look: now,
            next_clearing: now,
            next_heartbeat: now,
            adverts: AdvertSchedule::new(now),
            voice: Voice::default(),
            next_digest: None,
            changed: now,
        }
    }

    /// One event, and what follows from it.
    pub fn on_event(&mut self, now: Time, event: Event) -> Vec<Action> {
        self.wake(now);
        let mut out = Vec::new();
        self.take(event, &mut out);
        if self.next_look <= now {
            self.next_look = now + LOOK;
            self.expire(&mut out);
            self.lead(&mut out);
            self.send_digest(&mut out);
        }
        self.speak(&mut out);
        out
    }

    /// Notes the time. If this process was not run for a while, that while says nothing about anybody.
    fn wake(&mut self, now: Time) {
        let due = self.deadline().unwrap_or(now);
        self.now = now;
        if let Some(slept) = self.health.woke(due, now) {
            self.members.values_mut().for_each(|m| m.excuse(slept, now));
            self.voice.slept(now);
        }
    }

    fn take(&mut self, event: Event, out: &mut Vec<Action>) {
        let now = self.now;
        match event {
            Event::Deadline => {}
            Event::Gossip(message) => self.on_gossip(message, Audience::ToAll, out),
            Event::Heartbeats { from, words } => self.hear_heartbeats(from, words, out),
            Event::Advertise(advert) => {
                self.own.advert = Some(Arc::new(advert));
                self.adverts.changed(now);
                self.correct_sizes();
            }
            Event::Load { load, ready } => {
                self.own.load = load;
                self.own.ready = ready;
            }
            Event::CutOff(mut peers) => {
                peers.truncate(limits::CUT_OFF);
                self.own.cut_off = peers;
            }
            Event::SeenSpeeds(mut seen) => {
                seen.truncate(limits::SEEN_SPEEDS);
                self.own.seen_speeds = seen;
            }
            Event::CameThrough(took) => self.health.came_through(took),
            // Who was here all along has heard what others are, over whomever; what it missed shows in the digest, where there is one.
            Event::Connected(peer) => {
                let is_few = self.members.len() <= voice::LISTENERS;
                if is_few || self.members.get(&peer).is_none_or(|m| !m.has_settled(now)) {
                    self.newcomer();
                }
            }
            Event::Disconnected(peer) => {
                if let Some(member) = self.members.get_mut(&peer) {
                    member.disconnected = true;
                    self.next_look = now;
                }
            }
            Event::Gone(peer) => {
                if let Some(member) = self.members.get_mut(&peer) {
                    member.gone_at = Some(now);
                    self.next_look = now;
                }
            }
            Event::Planned(draft) => self.planned_this(draft),
            Event::Asked => {
                self.own.asked = true;
                self.next_look = now;
            }
            Event::Set { key, value } => self.set(key, value, out),
            Event::Leave => {
                self.own.leaving = true;
            }
        }
    }

    /// When to wake if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let speaks = self.own.advert.as_ref().map(|_| self.next_heartbeat);
        let answers = self.voice.deadline().filter(|_| self.own.advert.is_some());
        [Some(self.next_look), speaks, self.adverts.deadline(), answers].into_iter().flatten().min()
    }

    /// The term of the adopted plan.
    #[must_use]
    pub fn term(&self) -> Term {
        self.adoption.adopted.as_ref().map_or(Term(0), |a| a.plan.term)
    }

    /// Who plans now.
    #[must_use]
    pub fn coordinator(&self) -> Option<PeerId> {
        self.turn.coordinator
    }

    /// The id of this peer.
    #[must_use]
    pub fn me(&self) -> PeerId {
        self.config.me
    }

    /// The adopted plan.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.adoption.adopted.as_ref().map(|a| &*a.plan)
    }

    /// Hash of the adopted plan.
    #[must_use]
    pub fn plan_id(&self) -> Option<PlanId> {
        self.adoption.adopted.as_ref().map(|a| a.id)
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn on_gossip(&mut self, message: Verified<Gossip>, way: Audience, out: &mut Vec<Action>) {
        let (signer, sequence) = (message.signer(), message.sequence());
        let kind = member::MessageKind::of(message.message());
        let (now, me) = (self.now, self.config.me);
        let is_full = self.members.len() >= self.config.max_peers;
        let (member, is_new) = match self.members.entry(signer) {
            Entry::Occupied(known) => (known.into_mut(), false),
            Entry::Vacant(_) if is_full => {
                return out.push(Action::Reject { peer: signer, reason: Reject::TooManyPeers });
            }
            Entry::Vacant(place) => (place.insert(Box::new(Member::new(now, self.config.heartbeat))), true),
        };
        let life = member.sequences.life();
        if let (Gossip::Heartbeat(heartbeat), Audience::ToAll) = (message.message(), way)
            && member.was_overtaken(sequence, heartbeat)
        {
            return;
        }
        if !member.advance(now, kind, sequence) {
            return out.push(Action::Reject { peer: signer, reason: Reject::Replay });
        }
        member.heard(now, kind, way);
        let (is_reborn, was_alive) = (member.sequences.life() != life, member.is_there());
        if (is_new || is_reborn) && signer != me {
            self.newcomer();
        }
        if is_reborn && !is_new && signer != me {
            out.push(Action::PeerMoved(signer));
        }
        let (gossip, proof) = message.into_parts();
        match gossip {
            Gossip::Advert(advert) => self.hear_advert(signer, advert, out),
            Gossip::Heartbeat(heartbeat) => self.hear_heartbeat(signer, heartbeat, way),
            Gossip::Plan(plan) => self.hear_plan(signer, plan, proof, out),
            Gossip::Endorsement(endorsement) => self.hear_endorsement(signer, endorsement, proof, out),
            Gossip::Certificate(certificate) => self.hear_certificate(signer, certificate, out),
            Gossip::Call(call) => self.hear_call(signer, &call, out),
            Gossip::LivenessDigest(digest) => self.on_digest(signer, &digest, out),
        }
        if !was_alive {
            self.revive(signer, out);
        }
    }

    fn newcomer(&mut self) {
        self.adverts.newcomer(self.now, self.members.len());
    }

    fn advertise_within(&mut self, span: Duration) {
        self.adverts.within(span, self.now, self.members.len());
    }

    fn speak(&mut self, out: &mut Vec<Action>) {
        if self.adverts.is_due(self.now)
            && let Some(advert) = self.own_advert()
        {
            self.adverts.said(self.now, self.members.len());
            // What it follows and how it is goes with what it is.
            self.voice.advertised = Some(self.now);
            self.voice.answer(self.now);
            out.push(Action::Publish(Gossip::Advert(advert)));
        }
        self.beat(out);
    }
}
