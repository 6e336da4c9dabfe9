//! Plan flow 3 and 5: the loop where time, gossip and the control machine meet.

use crate::{
    control_plane::{
        heartbeat_sender::HeartbeatSender,
        owner::{Owner, Turn},
        planner_thread::PlannerThread,
        swarm::{Ban, SwarmEvent, SwarmHandle},
        twins,
    },
    data_plane::{
        heartbeats::Heartbeats,
        links::{Gone, Links},
        offences::OffenceReceiver,
        roster::Adverts,
    },
    faults::Faults,
    store::{HTTP_FILE, INVITE_FILE, Store, invites::Invites, local::TOKEN_FILE},
    view::{CutOffView, PeerView, Readiness, SwarmView, Trouble},
    worker::{Host, HostReport},
};
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{
    changeover::{self, Changeover},
    control::{Action, Control, Event, Member},
    default_model::default_model,
    fallback::Fallback,
    gateway::View,
    lending::Lending,
    planner::live::{Shortfall, shortfalls},
    trust::{CutOff, Offence, Trust},
    waiting::{self, NotReady, Scene, Seen, Stage},
};
use tsnode_protocol::{
    Advert, EncoderCard, Epoch, Gossip, Group, GroupId, Heartbeat, Invite, Load, ModelCard, ModelId, PeerId, Plan,
    Signed, Term, Traffic, Verified, codec,
};

/// How often what runs here is looked at, for heartbeats and the view.
const LOOK: Duration = Duration::from_millis(250);
/// How often it is said who is there: well within the time after which somebody who is not heard of is looked for.
const PRESENT: Duration = Duration::from_secs(5);
/// Peers whose addresses are remembered, and how many of each.
const KNOWN: usize = 32;
const ADDRESSES: usize = 4;

/// Everything the loop works with.
pub struct Driver {
    /// Membership, election, adoption.
    pub control: Control,
    /// Makes its plans.
    pub planner_thread: PlannerThread,
    /// The control plane.
    pub swarm: SwarmHandle,
    /// What it says.
    pub events: mpsc::Receiver<SwarmEvent>,
    /// What serves here.
    pub host: Host,
    /// Which plan is followed while one gives way to the next.
    pub changeover: Changeover,
    /// Groups that the host was told to serve beside those of the plan.
    pub beside: BTreeSet<GroupId>,
    /// Connections to others.
    pub data_plane: Links,
    /// Whose process it found gone.
    pub gone: Gone,
    /// Heartbeats that came straight here.
    pub heartbeats: mpsc::Receiver<Heartbeats>,
    /// Sends such.
    pub heartbeat_sender: HeartbeatSender,
    /// This peer's advert so far; addresses join it as they become known.
    pub advert: Advert,
    /// Encoders to lend, as long as anything is lent.
    pub encoders: Vec<EncoderCard>,
    /// Whether the model inside the program is lent, where the owner named none.
    pub fallback: Option<Fallback>,
    /// What is known of why this peer waits.
    pub reasons: Reasons,
    /// Changes to the advert by others of this peer's tasks: measured links.
    pub links: mpsc::Receiver<Vec<tsnode_protocol::Link>>,
    /// The same: what this peer's clients have asked for of late.
    pub traffic: watch::Receiver<Vec<Traffic>>,
    /// Whether a client has asked for something while there was no plan.
    pub asked: watch::Receiver<bool>,
    /// What peers did that they should not, and who is cut off for it.
    pub bench: OffenceReceiver,
    /// What is held against everybody.
    pub trust: Trust,
    /// Port of the data plane, at every address of the control plane.
    pub data_port: u16,
    /// What is broken here on purpose, where a testnet may.
    pub faults: Option<watch::Receiver<Faults>>,
    /// What the gateway routes by.
    pub routes: watch::Sender<View>,
    /// The swarm this peer is in; addresses join it as they become known.
    pub invite: Invite,
    /// What newcomers may come with.
    pub invites: Invites,
    /// What the owner of this machine wants.
    pub owner: Owner,
    /// When another process with this peer's identity was here last.
    pub twin_seen: Option<Instant>,
    /// What is remembered.
    pub store: Store,
    /// How many times faster than it is this peer says it is.
    pub boast: Option<f64>,
    /// Whether its owner was told that it is slower than it was measured.
    pub is_slow: bool,
    /// Whom this peer says it has cut off.
    pub accused: Vec<PeerId>,
    /// The highest epoch and term that the disk knows of.
    pub remembered: Option<(Epoch, Term)>,
    /// Where others are, as it is remembered.
    pub known: Vec<String>,
    /// Who is where, for everyone who dials.
    pub roster: watch::Sender<Adverts>,
    /// Other peers on their way out, for leaders that have a stage of theirs.
    pub going: watch::Sender<Arc<BTreeSet<PeerId>>>,
    /// The swarm, for everyone who looks.
    pub view: watch::Sender<SwarmView>,
    /// The process's zero.
    pub started: Instant,
}

/// What is known of why a peer waits, beside what the control machine knows.
#[derive(Default)]
pub struct Reasons {
    /// Addresses of others that it started with.
    addresses: usize,
    /// The protocol of somebody it could not talk to.
    version: Option<u16>,
    /// Which models what is lent cannot hold, by these adverts.
    short: (Adverts, Vec<Shortfall>),
}

impl Reasons {
    /// Of a peer that starts with so many addresses of others.
    #[must_use]
    pub fn new(addresses: usize) -> Self {
        Self { addresses, ..Self::default() }
    }
}

impl Driver {
    /// Drives until `stop`; then says that it leaves, and goes on until `drained`.
    pub async fn run(mut self, stop: CancellationToken, drained: impl Future<Output = ()>) {
        let mut drained = std::pin::pin!(drained);
        let mut leaving = false;
        let mut due = false;
        let mut look = interval(LOOK);
        let mut present = interval(PRESENT);
        present.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.apply_command().await;
        self.step(Event::Advertise(self.said())).await;
        loop {
            let wake = self.control.deadline().map(|at| self.started + at);
            let event = tokio::select! {
                () = stop.cancelled(), if !leaving => {
                    leaving = true;
                    self.owner.leaves();
                    tracing::info!("leaving: what runs here may end");
                    Some(Event::Leave)
                }
                () = &mut drained, if leaving => break,
                () = sleep_until(wake.unwrap_or_else(|| Instant::now() + LOOK)), if wake.is_some() => Some(Event::Deadline),
                event = self.events.recv() => match event {
                    Some(event) => self.heard(event),
                    None => break,
                },
                Some(draft) = self.planner_thread.answer() => Some(Event::Planned(draft)),
                Some(peer) = self.gone.recv() => Some(Event::Gone(peer)),
                Some((from, words)) = self.heartbeats.recv() => Some(Event::Heartbeats { from, words }),
                Some((peer, offence)) = self.bench.offences.recv() => {
                    due |= self.judge(peer, offence);
                    None
                }
                Some(links) = self.links.recv() => self.advertise(|advert| advert.links = links),
                Ok(()) = self.traffic.changed() => {
                    let traffic = self.traffic.borrow_and_update().clone();
                    self.advertise(|advert| advert.traffic = traffic)
                }
                Ok(()) = self.asked.changed() => Some(Event::Asked),
                _ = present.tick() => {
                    self.vouch();
                    None
                }
                _ = look.tick() => {
                    due = true;
                    self.forgive();
                    self.forget_twin();
                    let turns = [self.apply_command().await, self.fall_back(), self.invite(), self.lie(), self.accuse()];
                    for event in turns.into_iter().flatten() {
                        self.step(event).await;
                    }
                    self.look().await
                }
            };
            if let Some(event) = event {
                due |= self.step(event).await;
            }
            if std::mem::take(&mut due) {
                self.remember();
                self.change_over().await;
                self.show(leaving);
            }
        }
        self.store.remove_file(HTTP_FILE);
        self.store.remove_file(TOKEN_FILE);
    }

    fn heard(&mut self, event: SwarmEvent) -> Option<Event> {
        match event {
            SwarmEvent::Gossip(message) => Some(Event::Gossip(message)),
            SwarmEvent::Connected(peer) => Some(Event::Connected(peer)),
            SwarmEvent::Disconnected(peer) => Some(Event::Disconnected(peer)),
            SwarmEvent::Listening(addresses) => self.listening(addresses),
            SwarmEvent::Reachable(reachable) => self.advertise(|advert| advert.reachable = reachable),
            SwarmEvent::Offence { peer, offence } => {
                self.judge(peer, offence);
                None
            }
            SwarmEvent::OtherVersion { theirs } => {
                self.reasons.version = Some(theirs);
                None
            }
            SwarmEvent::Twin => {
                if self.twin_seen.replace(Instant::now()).is_none() {
                    tracing::error!("another process has come with this peer's identity");
                    self.view.send_modify(|v| v.troubles.push(Trouble::Twin { at: None }));
                }
                None
            }
            SwarmEvent::Rejected { peer, reason } => {
                // Counted and shown; what it is that was kept out is not this peer's owner's to mend.
                tracing::info!(peer = ?peer, reason, "refused");
                self.view.send_modify(|v| *v.rejected.entry(reason).or_default() += 1);
                None
            }
        }
    }

    /// Counts an offence; says whether somebody is cut off for it.
    fn judge(&mut self, peer: PeerId, offence: Offence) -> bool {
        if peer == self.control.me() {
            // A peer cannot do without itself; others judge it as they must.
            return self.doubts_itself(offence);
        }
        let Some(cut) = self.trust.offends(self.started.elapsed(), peer, offence) else { return false };
        tracing::warn!(%peer, reason = %cut.reason, offences = cut.offences, "cut off");
        self.data_plane.forget(peer);
        if let Err(error) = self.swarm.ban(peer, Ban::Offence) {
            tracing::warn!(%peer, %error, "still connected");
        }
        self.tell_guards();
        true
    }

    /// This peer's own groups do not do what they should: says what its owner can know of why.
    fn doubts_itself(&mut self, offence: Offence) -> bool {
        if let Offence::FalseSpeed { .. } = offence {
            if std::mem::replace(&mut self.is_slow, true) {
                return false;
            }
            // Not the memory, nor the model: tokens are right, and late.
            let advice = "this peer is slower than it was measured: other programs may have its processors, or they are throttled; \
                          give it fewer threads, or start it again to measure anew";
            tracing::warn!(%offence, "{advice}");
        } else {
            tracing::error!(%offence, "other peers compute something else than this one: check its memory and its model");
        }
        false
    }

    /// Gives those another chance whose time is over.
    fn forgive(&mut self) {
        let forgiven = self.trust.forgive(self.started.elapsed());
        for peer in &forgiven {
            tracing::info!(%peer, "no longer cut off");
            if let Err(error) = self.swarm.allow(*peer, Ban::Offence) {
                tracing::warn!(%peer, %error, "still banned");
            }
        }
        if !forgiven.is_empty() {
            self.tell_guards();
        }
    }

    /// Says whom it has cut off, when that has changed.
    fn accuse(&mut self) -> Option<Event> {
        let cut_off: Vec<PeerId> = self.trust.cut_off().map(|(peer, _)| peer).collect();
        (cut_off != self.accused).then(|| {
            self.accused.clone_from(&cut_off);
            Event::CutOff(cut_off)
        })
    }

    fn tell_guards(&self) {
        self.bench.cut_off.send_replace(Arc::new(self.trust.cut_off().map(|(peer, _)| peer).collect()));
    }

    /// Addresses are known: the invite can be written, and the advert says where the data plane is.
    fn listening(&mut self, addresses: Vec<String>) -> Option<Event> {
        self.invite.addresses = addresses.clone();
        let text = self.invite.to_string();
        if let Err(error) = self.store.write_file(INVITE_FILE, &format!("{text}\n")) {
            tracing::warn!(%error, "invite not written");
        }
        let data = data_addresses(&addresses, self.data_port);
        self.data_plane.listens_at(&data);
        self.advertise(|advert| {
            advert.addresses = addresses;
            advert.data_addresses = data;
        })
    }

    fn advertise(&mut self, change: impl FnOnce(&mut Advert)) -> Option<Event> {
        let before = self.advert.clone();
        change(&mut self.advert);
        (self.advert != before).then(|| Event::Advertise(self.said()))
    }

    /// The advert as others hear it.
    fn said(&self) -> Advert {
        let mut advert = self.advert.clone();
        if self.fallback.as_ref().is_some_and(|fallback| !fallback.lends()) {
            (advert.models, advert.devices) = (Vec::new(), Vec::new());
        }
        match &self.faults {
            Some(faults) => faults.borrow().boasted(advert),
            None => advert,
        }
    }

    /// Lends the model inside the program only where no other is served.
    fn fall_back(&mut self) -> Option<Event> {
        let (now, me) = (self.started.elapsed(), self.control.me());
        let others = self.control.members().filter(|(peer, _)| **peer != me).filter_map(|(_, m)| m.advert.as_deref());
        let fallback = self.fallback.as_mut()?;
        let (changed, lends) = (fallback.look(now, others), fallback.lends());
        changed.then(|| {
            tracing::info!(lends, "the embedded model is lent only where no other is served");
            Event::Advertise(self.said())
        })
    }

    /// Another process with this peer's identity looks for it all the time; one that does no more has ended.
    fn forget_twin(&mut self) {
        if self.twin_seen.is_some_and(|at| at.elapsed() > twins::REMEMBERED) {
            self.twin_seen = None;
            self.view.send_modify(|v| v.troubles.retain(|t| *t != Trouble::Twin { at: None }));
        }
    }

    /// Says which invites are out, when that has changed.
    fn invite(&mut self) -> Option<Event> {
        let notices = self.invites.notices();
        self.advertise(|advert| advert.invites = notices)
    }

    /// Says its advert anew where a testnet has it say something else.
    fn lie(&mut self) -> Option<Event> {
        let boast = self.faults.as_mut()?.borrow_and_update().boast;
        (std::mem::replace(&mut self.boast, boast) != boast).then(|| Event::Advertise(self.said()))
    }

    async fn look(&mut self) -> Option<Event> {
        let HostReport {
            ready,
            load,
            loading,
            weights,
            in_use,
            out_of_kv_pages,
            lost,
            kv_refused,
            drafts,
            held: _,
            talks: _,
        } = self.host.report().await.ok()?;
        if let Some(devices) = self.owner.lose(&lost)
            && let Some(event) = self.advertise(|advert| advert.devices = devices)
        {
            self.step(event).await;
        }
        if out_of_kv_pages {
            self.changeover.make_room();
        }
        self.view.send_if_modified(|view| {
            let refused = kv_refused.values().sum::<u64>() != view.kv_refused.values().sum::<u64>();
            view.kv_refused = kv_refused.into_iter().map(|(why, n)| (why.to_owned(), n)).collect();
            let read = std::mem::replace(&mut view.weights, weights) != weights;
            let held = std::mem::replace(&mut view.in_use, in_use) != in_use;
            let checked = std::mem::replace(&mut view.drafts, drafts) != drafts;
            refused | read | held | checked | (std::mem::replace(&mut view.loading, loading) != loading)
        });
        Some(Event::Load { load, ready })
    }

    /// Lends what the owner wants lent.
    async fn apply_command(&mut self) -> Option<Event> {
        match self.owner.look(Instant::now())? {
            Turn::Lend(devices) => {
                // A host that has rested takes its part in the plan up again, should it still have one.
                if let Some(plan) = self.control.plan().filter(|_| !devices.is_empty()) {
                    self.host.adopt(Arc::new(plan.clone()), self.beside.clone()).await.ok()?;
                }
                let encoders = if self.owner.lending() == Lending::Lends { self.encoders.clone() } else { Vec::new() };
                self.advertise(|advert| (advert.devices, advert.encoders) = (devices, encoders))
            }
            Turn::Rest => {
                self.host.rest().await.ok()?;
                None
            }
        }
    }

    /// One event through the machine, and what follows from it. Says whether others should see it at once.
    async fn step(&mut self, event: Event) -> bool {
        let mut visible = false;
        // In the order they were said: sequences only grow.
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.control.on_event(self.started.elapsed(), event) {
                visible |= !is_private(&action);
                match action {
                    Action::Publish(gossip) if !self.is_remembered(&gossip) => {
                        tracing::warn!(kind = gossip.kind(), "not said: the disk could not remember it");
                    }
                    Action::Publish(gossip) => events.extend(self.publish(&gossip)),
                    Action::Heartbeats { to, own, heard } => events.extend(self.heartbeat(&to, own, &heard)),
                    Action::AskPlanner(question) => self.planner_thread.ask(question),
                    Action::Remember(epoch, term) => {
                        if self.store.set_endorsed(epoch, term) {
                            self.remembered = Some((epoch, term));
                        }
                    }
                    Action::Adopt(plan) => {
                        tracing::info!(plan = %plan.id(), epoch = plan.epoch.0, term = plan.term.0, reason = plan.reason, "plan adopted");
                        let (up, staying, now) = (self.control.said_ready(), self.staying(), self.started.elapsed());
                        let scene = changeover::Scene { up: &up, staying: &staying };
                        self.changeover.adopt(now, plan.clone(), scene);
                        self.beside = self.changeover.standing().clone();
                        if self.host.adopt(plan, self.beside.clone()).await.is_err() {
                            return visible;
                        }
                    }
                    Action::Reject { peer, reason } => {
                        tracing::debug!(%peer, %reason, "message refused");
                        self.view.send_modify(|v| *v.rejected.entry(reason.to_string()).or_default() += 1);
                        if let Some(offence) = reason.offence() {
                            visible |= self.judge(peer, offence);
                        }
                    }
                    Action::PeerUp(peer) => tracing::info!(%peer, "peer joined"),
                    Action::PeerSuspect(peer) => tracing::debug!(%peer, "peer late: nothing new for it"),
                    Action::PeerDown { peer, reason } => {
                        tracing::info!(%peer, %reason, "peer gone");
                        self.data_plane.forget(peer);
                    }
                    Action::PeerMoved(peer) => {
                        tracing::debug!(%peer, "peer started anew, or moved");
                        self.data_plane.forget(peer);
                    }
                    Action::CoordinatorChanged { coordinator, term } => {
                        tracing::info!(coordinator = ?coordinator, term = term.0, "coordinator changed");
                    }
                }
            }
        }
        visible
    }

    /// Follows the adopted plan as soon as its groups are up; tells the host which others to keep until then.
    async fn change_over(&mut self) {
        let (up, staying) = (self.control.said_ready(), self.staying());
        self.changeover.look(self.started.elapsed(), changeover::Scene { up: &up, staying: &staying });
        let standing = self.changeover.standing();
        if *standing != self.beside {
            self.beside.clone_from(standing);
            // The host being gone, the process ends.
            let _ = self.host.keep(standing.clone()).await;
        }
    }

    /// Peers whose devices this one counts on.
    fn staying(&self) -> BTreeSet<PeerId> {
        let mut staying = self.control.staying();
        staying.retain(|peer| !self.trust.is_cut_off(*peer));
        staying
    }

    /// Remembers where others are, for when this peer starts again and whoever invited it is gone.
    fn remember(&mut self) {
        let me = self.invite.addresses.clone();
        let of =
            |(_, m): (&PeerId, &Member)| Some(m.advert.as_ref()?.addresses.iter().take(ADDRESSES).cloned().collect());
        let known: Vec<Vec<String>> = self
            .control
            .members()
            .filter_map(of)
            .filter(|a: &Vec<_>| !a.iter().all(|a| me.contains(a)))
            .take(KNOWN)
            .collect();
        let known = known.concat();
        // Those of before are worth more than nothing.
        if !known.is_empty() && known != self.known {
            self.store.set_known(self.invite.swarm, &known);
            self.known = known;
        }
    }

    /// Whether this peer, should it start again, would know that it has said this: it says nothing else for that term then.
    fn is_remembered(&self, gossip: &Gossip) -> bool {
        let at = match gossip {
            Gossip::Plan(plan) => (plan.epoch, plan.term),
            Gossip::Endorsement(endorsement) => (endorsement.epoch, endorsement.term),
            _ => return true,
        };
        self.remembered.is_some_and(|last| at <= last)
    }

    /// Replaces the snapshots others look at, where they have changed.
    fn show(&mut self, leaving: bool) {
        self.add_up();

        let (control, now) = (&self.control, self.started.elapsed());
        let adverts: BTreeMap<PeerId, Advert> =
            control.members().filter_map(|(peer, m)| Some((*peer, (**m.advert.as_ref()?).clone()))).collect();
        let me = control.me();
        self.invites.heard(adverts.iter().filter(|(peer, _)| **peer != me).map(|(peer, a)| (*peer, &a.invites[..])));
        let going = control.going();
        self.going.send_if_modified(|old| {
            let changed = **old != going;
            if changed {
                *old = Arc::new(going);
            }
            changed
        });
        let followed = self.changeover.routed();
        let up = control.ready_of(followed.map_or(&[][..], |plan| &plan.groups));
        let (up, reachable) = self.served(up, &adverts);
        let (plan, barred) = (control.plan(), self.trust.barred(now));
        self.roster.send_if_modified(|old| {
            let changed = **old != adverts;
            if changed {
                *old = Arc::new(adverts.clone());
            }
            changed
        });
        self.routes.send_if_modified(|old| {
            let same_plan = old.plan.as_ref() == followed;
            let changed = !same_plan || old.up != up || old.adverts != reachable || *old.barred != barred;
            if changed {
                *old = View { plan: followed.cloned(), up: up.clone(), adverts: reachable, barred: Arc::new(barred) };
            }
            changed
        });
        let peer = |(peer, m): (&PeerId, &Member)| {
            Some(PeerView {
                id: *peer,
                advert: (**m.advert.as_ref()?).clone(),
                load: m.heartbeat.load,
                groups: m.heartbeat.ready.clone(),
                silent_for: now.saturating_sub(m.last_heard).as_secs_f64(),
                plan: m.heartbeat.plan,
                leaving: m.heartbeat.leaving,
            })
        };
        let mut models: BTreeMap<_, ModelCard> = BTreeMap::new();
        for card in adverts.values().flat_map(|a| &a.models) {
            models.entry((card.name.clone(), card.id)).or_insert_with(|| card.clone());
        }
        let mut encoders: BTreeMap<_, EncoderCard> = BTreeMap::new();
        for card in adverts.values().flat_map(|a| &a.encoders) {
            encoders.entry((card.name.clone(), card.id)).or_insert_with(|| card.clone());
        }
        let name = |peer: PeerId| adverts.get(&peer).map(|a| a.name.clone()).unwrap_or_default();
        let cut_off = |(id, cut): (PeerId, &CutOff)| CutOffView {
            id,
            name: name(id),
            reason: cut.reason.to_string(),
            offences: cut.offences,
            seconds_left: cut.until.saturating_sub(now).as_secs_f64(),
        };
        let cut_off = self.trust.cut_off().map(cut_off).collect();
        let ages = self.data_plane.measured().into_iter().map(|m| (m.link.to, m.age.as_secs_f64())).collect();
        let followed = followed.map(|plan| &**plan);
        let readiness = readiness(control, followed, &up, leaving);
        let yields = self.fallback.as_ref().is_some_and(Fallback::yields) && self.owner.lending() == Lending::Lends;
        let lending = if yields { Lending::OtherModel } else { self.owner.lending() };
        let default = default_model(adverts.values()).map(|card| card.id);
        let short = self.reasons.short.1.clone();
        let waiting = self.waits(&readiness, lending);
        let spot_checks = self.bench.spot_checked();
        self.view.send_modify(|view| {
            view.spot_checks = spot_checks;
            view.readiness = readiness;
            view.waiting = waiting;
            view.lending = lending;
            view.epoch = control.epoch();
            view.term = control.term();
            view.coordinator = control.coordinator();
            view.plan_id = control.plan_id();
            if view.plan.as_ref() != plan {
                view.plan = plan.cloned();
            }
            view.ready_groups = up.keys().copied().collect();
            view.peers = control.members().filter_map(peer).collect();
            view.link_ages = ages;
            view.cut_off = cut_off;
            view.models = models.into_values().collect();
            view.encoders = encoders.into_values().collect();
            view.default_model = default;
            view.short = short;
            view.addresses.clone_from(&self.invite.addresses);
        });
    }

    /// Finds out which models what is lent cannot hold, where one of them has no part in the plan and adverts have changed.
    fn add_up(&mut self) {
        let adverts = self.roster.borrow().clone();
        if Arc::ptr_eq(&adverts, &self.reasons.short.0) {
            return;
        }
        // A group with somebody in it who has left serves nobody.
        let is_there = |group: &&Group| group.stages.iter().all(|s| adverts.contains_key(&s.peer));
        let groups = self.control.plan().into_iter().flat_map(|plan| &plan.groups);
        let planned: BTreeSet<ModelId> = groups.filter(is_there).map(|group| group.model).collect();
        let lent = |a: &&Advert| !a.devices.is_empty();
        let lent = adverts.values().filter(lent).filter_map(|a| a.models.first());
        let short = if lent.map(|card| card.id).all(|id| planned.contains(&id)) {
            Vec::new()
        } else {
            shortfalls(&adverts.iter().map(|(peer, advert)| (*peer, advert)).collect())
        };
        self.reasons.short = (adverts, short);
    }

    /// Why no requests are taken here.
    fn waits(&self, readiness: &Readiness, lending: Lending) -> Option<NotReady> {
        let (control, me, now) = (&self.control, self.control.me(), self.started.elapsed());
        let stage = match readiness {
            Readiness::Probing => Stage::Probing,
            Readiness::Joining | Readiness::Planning => Stage::Planless,
            Readiness::Loading => Stage::Planned,
            Readiness::Ready => return None,
            Readiness::Leaving => Stage::Leaving,
        };
        let lends = |m: &Member| m.advert.as_ref().is_some_and(|a| !a.devices.is_empty() && !a.models.is_empty());
        let seen = |(peer, m): (&PeerId, &Member)| Seen {
            name: m.advert.as_ref().map_or_else(|| peer.short(), |a| a.name.clone()),
            lends: lends(m),
            clock: control.clock_ahead(m),
            silent: now.saturating_sub(m.last_heard),
            plans: control.coordinator() == Some(*peer),
        };
        let others: Vec<Seen> = control.members().filter(|(peer, _)| **peer != me).map(seen).collect();
        let lent = control.members().filter(|(_, m)| lends(m)).filter_map(|(_, m)| m.advert.as_ref()?.models.first());
        let scene = Scene {
            stage,
            lending,
            opens: self.owner.opens(),
            lends: control.members().any(|(peer, m)| *peer == me && lends(m)),
            plans: control.coordinator() == Some(me),
            others: &others,
            addresses: self.reasons.addresses,
            versions: self.reasons.version.map(|theirs| (theirs, codec::VERSION)),
            short: &self.reasons.short.1,
            models: lent.map(|card| card.id).collect::<BTreeSet<_>>().len(),
        };
        waiting::why(&scene)
    }

    /// What requests may be routed to: nothing that a peer has a part in which is cut off.
    fn served(
        &self,
        mut up: BTreeMap<GroupId, Load>,
        adverts: &BTreeMap<PeerId, Advert>,
    ) -> (BTreeMap<GroupId, Load>, Adverts) {
        let known = self.roster.borrow().clone();
        let known = if *known == *adverts { known } else { Arc::new(adverts.clone()) };
        if self.trust.cut_off().next().is_none() {
            return (up, known);
        }
        let plans = || self.changeover.routed().map(|plan| &**plan).into_iter().chain(self.control.plan());
        let group = |id: &GroupId| plans().find_map(|plan| plan.group(*id));
        let is_sound =
            |id: &GroupId| group(id).is_some_and(|g| !g.stages.iter().any(|s| self.trust.is_cut_off(s.peer)));
        up.retain(|id, _| is_sound(id));
        let mut reachable = (*known).clone();
        reachable.retain(|peer, _| !self.trust.is_cut_off(*peer));
        (up, Arc::new(reachable))
    }

    /// Sends heartbeats to a few peers, its own among them, and hears that like they do.
    fn heartbeat(&self, to: &[PeerId], own: Option<Heartbeat>, heard: &[Verified<Gossip>]) -> Option<Event> {
        let own = own.map(|own| self.swarm.seal(&Gossip::Heartbeat(own))).transpose();
        let own = own.inspect_err(|error| tracing::warn!(%error, "no heartbeat")).ok()?;
        let words: Vec<Signed<Gossip>> = own.iter().chain(heard).map(|word| word.proof().clone()).collect();
        let roster = self.roster.borrow().clone();
        for peer in to.iter().filter(|_| !words.is_empty()) {
            if let Some(advert) = roster.get(peer) {
                self.heartbeat_sender.tell(*peer, advert.data_addresses.clone(), words.clone());
            }
        }
        Some(Event::Heartbeats { from: self.control.me(), words: vec![own?] })
    }

    /// Tells those who look for peers whom nobody needs to look for.
    fn vouch(&self) {
        let there = self.control.members().map(|(peer, _)| *peer).collect();
        if let Err(error) = self.swarm.present(there) {
            tracing::debug!(%error, "not said who is there");
        }
    }

    /// Says it to the swarm, and hears it like everybody else.
    fn publish(&self, gossip: &Gossip) -> Option<Event> {
        match self.swarm.publish(gossip) {
            Ok(own) => Some(Event::Gossip(own)),
            Err(error) => {
                tracing::warn!(kind = gossip.kind(), %error, "not published");
                None
            }
        }
    }
}

/// Whether what others see is the same after it.
fn is_private(action: &Action) -> bool {
    matches!(
        action,
        Action::Publish(_)
            | Action::Heartbeats { .. }
            | Action::AskPlanner(_)
            | Action::Remember(..)
            | Action::Reject { .. }
    )
}

/// How far this peer is, by what it knows of the swarm.
fn readiness(control: &Control, followed: Option<&Plan>, up: &BTreeMap<GroupId, Load>, leaving: bool) -> Readiness {
    if leaving {
        return Readiness::Leaving;
    }
    match followed {
        None if control.members().count() < 2 => Readiness::Joining,
        None => Readiness::Planning,
        Some(plan) if plan.groups.iter().any(|g| up.contains_key(&g.id)) => Readiness::Ready,
        Some(_) => Readiness::Loading,
    }
}

/// The data plane's place at every IP address the control plane has.
fn data_addresses(addresses: &[String], port: u16) -> Vec<SocketAddr> {
    let ip = |text: &String| {
        let address: Multiaddr = text.parse().ok()?;
        if address.iter().any(|part| part == Protocol::P2pCircuit) {
            // That is its relay's.
            return None;
        }
        address.iter().find_map(|part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
            Protocol::Ip6(ip) => Some(IpAddr::V6(ip)),
            _ => None,
        })
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in addresses.iter().filter_map(ip) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    // The host's own address helps nobody elsewhere, unless there is no other.
    if ips.iter().any(|ip| !ip.is_loopback()) {
        ips.retain(|ip| !ip.is_loopback());
    }
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}
