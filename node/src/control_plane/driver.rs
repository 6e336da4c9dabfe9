//! Plan flow 3 and 5: the loop where time, gossip and the control machine meet.

mod adverts;
mod broken_off;
mod offences;
mod snapshots;
mod taken_up;
mod waiting;

pub use waiting::Reasons;

use crate::{
    control_plane::{
        heartbeat_sender::HeartbeatSender,
        owner::{Owner, OwnerChange},
        planner_thread::PlannerThread,
        swarm::{SwarmEvent, SwarmHandle},
        twins,
    },
    data_plane::{
        heartbeats::Heartbeats,
        links::{GonePeers, Links},
        offences::OffenceReceiver,
        roster::{Adverts, ChosenPolicies},
    },
    faults::Faults,
    store::{HTTP_FILE, Store, invites::Invites, owner_token::TOKEN_FILE},
    view::{ModelTurns, SwarmView, Trouble},
    weights::Stocks,
    worker::{WorkerHandle, WorkerReport},
};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{
    changeover::{self, Changeover},
    control::{Action, Control, Event, Member},
    fallback::Fallback,
    gateway::View,
    lending::Lending,
    trust::Trust,
};
use tsnode_protocol::{
    Advert, EncoderCard, Epoch, Gossip, GroupId, Heartbeat, Invite, ModelCard, ModelId, ModelOrigin, PeerId, SeenSpeed,
    SettingKey, SettingValue, Signed, Term, Traffic, Verified,
};

/// How often what runs here is looked at, for heartbeats and the view.
const LOOK: Duration = Duration::from_millis(250);
/// Up to how many peers others are shown what is new at each look; and after so many looks they are in any swarm.
const EACH_LOOK: usize = 12;
const MOST_LOOKS: usize = 4;
/// A word through this peer's own queues that is so late is lost.
const ECHO_LOST: Duration = Duration::from_secs(30);
/// How often it is said who is there: well within the time after which somebody who is not heard of is looked for.
const PRESENT: Duration = Duration::from_secs(5);
/// Peers whose addresses are remembered, and how many of each.
const KNOWN: usize = 32;
const ADDRESSES: usize = 4;

/// What a peer lends from now on.
#[derive(Debug)]
pub struct NowLent {
    /// Its models.
    pub models: Vec<ModelCard>,
    /// The devices that compute it.
    pub devices: Vec<tsnode_protocol::Device>,
    /// Where they came from; what was said of others stays.
    pub origins: Vec<ModelOrigin>,
    /// Those of them for which the owner said how much memory there is.
    pub limited: BTreeSet<ModelId>,
}

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
    pub worker: WorkerHandle,
    /// Which plan is followed while one gives way to the next.
    pub changeover: Changeover,
    /// Groups that the worker was told to serve beside those of the plan.
    pub beside: BTreeSet<GroupId>,
    /// Models of which what is wanted is fetched.
    pub stocks: Stocks,
    /// Connections to others.
    pub data_plane: Links,
    /// Whose process it found gone.
    pub gone: GonePeers,
    /// Heartbeats that came straight here.
    pub heartbeats: mpsc::Receiver<Heartbeats>,
    /// Sends such.
    pub heartbeat_sender: HeartbeatSender,
    /// This peer's advert so far; addresses join it as they become known.
    pub advert: Advert,
    /// Models for which the owner said how much memory there is, by whichever setting.
    pub limited: BTreeSet<ModelId>,
    /// Encoders to lend, as long as anything is lent.
    pub encoders: Vec<EncoderCard>,
    /// Whether the model inside the program is lent, where the owner named none.
    pub fallback: Option<Fallback>,
    /// The model that its owner wants for requests that name none.
    pub default_model: Option<String>,
    /// What is known of why this peer waits.
    pub reasons: Reasons,
    /// Changes to the advert by others of this peer's tasks: measured links.
    pub links: mpsc::Receiver<Vec<tsnode_protocol::Link>>,
    /// The same: what this peer's clients have asked for of late.
    pub traffic: watch::Receiver<Vec<Traffic>>,
    /// What this peer's gateway saw of groups whose claims of speed are in doubt.
    pub seen_speeds: watch::Receiver<Vec<SeenSpeed>>,
    /// What this peer lends from now on, where that is another model than at its start.
    pub now_lent: mpsc::Receiver<NowLent>,
    /// Whether a client has asked for something while there was no plan.
    pub asked: watch::Receiver<bool>,
    /// The same: what is to be set for the swarm.
    pub settings: mpsc::Receiver<(SettingKey, SettingValue)>,
    /// What peers did that they should not, and who is cut off for it.
    pub offence_receiver: OffenceReceiver,
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
    /// What the plan has chosen of what members have left to measurement, for leaders.
    pub chosen: watch::Sender<ChosenPolicies>,
    /// Other peers on their way out, for leaders that have a stage of theirs.
    pub going: watch::Sender<Arc<BTreeSet<PeerId>>>,
    /// The swarm, for everyone who looks.
    pub view: watch::Sender<SwarmView>,
    /// The adverts that others were shown last, as they are known here.
    pub shown: Vec<(PeerId, Arc<Advert>)>,
    /// When the word was said that is under way through this peer's own queues.
    pub echo: Option<Instant>,
    /// The process's zero.
    pub started: Instant,
}

impl Driver {
    /// Drives until `stop`; then says that it leaves, and goes on until `drained`.
    pub async fn run(mut self, stop: CancellationToken, drained: impl Future<Output = ()>) {
        let mut drained = std::pin::pin!(drained);
        let mut leaving = false;
        let (mut due, mut looks) = (false, 0);
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
                Some(peer) = self.gone.recv() => {
                    // Connections over QUIC outlive its process, and who starts again is another one's neighbour.
                    if let Err(error) = self.swarm.disconnect(peer) {
                        tracing::debug!(%peer, %error, "connections of a process that has ended stay open");
                    }
                    Some(Event::Gone(peer))
                }
                Some((from, words)) = self.heartbeats.recv() => Some(Event::Heartbeats { from, words }),
                Some((peer, offence)) = self.offence_receiver.offences.recv() => {
                    due |= self.judge(peer, offence);
                    None
                }
                Some(links) = self.links.recv() => self.advertise(|advert| advert.links = links),
                Ok(()) = self.traffic.changed() => {
                    let traffic = self.traffic.borrow_and_update().clone();
                    self.advertise(|advert| advert.traffic = traffic)
                }
                Ok(()) = self.seen_speeds.changed() => {
                    let seen = self.seen_speeds.borrow_and_update().clone();
                    Some(Event::SeenSpeeds(seen))
                }
                Ok(()) = self.asked.changed() => Some(Event::Asked),
                Some((key, value)) = self.settings.recv() => Some(Event::Set { key, value }),
                Some(now) = self.now_lent.recv() => self.lend(now).await,
                _ = present.tick() => {
                    self.vouch();
                    None
                }
                _ = look.tick() => {
                    looks += 1;
                    due |= looks >= self.looks_a_show();
                    self.forgive();
                    self.forget_twin();
                    let turns = [
                        self.listen_to_itself(),
                        self.apply_command().await,
                        self.fall_back(),
                        self.hold(),
                        self.invite(),
                        self.lie(),
                        self.accuse(),
                    ];
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
                looks = 0;
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
            SwarmEvent::BrokeOff { peer, host } => {
                self.broke_off(peer, host);
                None
            }
            SwarmEvent::Echo(said) => {
                self.echo = self.echo.filter(|under_way| *under_way != said);
                Some(Event::CameThrough(said.elapsed()))
            }
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

    /// After how many looks at what runs here others are shown what is new where nothing else was a reason to: what is shown is made of
    /// all peers, whoever watches takes all of it in, and of many peers each says something seldomer.
    fn looks_a_show(&self) -> usize {
        (self.roster.borrow().len() / EACH_LOOK).clamp(1, MOST_LOOKS)
    }

    /// Puts a word behind all that is to be heard here, or says how late the last one is already: where more comes than is taken in,
    /// others seem silent who are not.
    fn listen_to_itself(&mut self) -> Option<Event> {
        if let Some(late) = self.echo.map(|said| said.elapsed()).filter(|late| *late < ECHO_LOST) {
            return (late > LOOK).then_some(Event::CameThrough(late));
        }
        let now = Instant::now();
        self.echo = self.swarm.echo(now).is_ok().then_some(now);
        None
    }

    /// Lends a model that came later than this peer started, in the place of the one inside the program, or the same within other limits.
    async fn lend(&mut self, NowLent { models, devices, origins, limited }: NowLent) -> Option<Event> {
        self.fallback = None;
        self.limited = limited;
        self.owner.set_devices(devices.clone());
        let devices = if self.owner.lending() == Lending::Lends { devices } else { Vec::new() };
        // Where another model comes, there is another plan before long.
        if models.iter().all(|model| self.advert.models.contains(model)) {
            self.take_up_again(&devices).await?;
        }
        // As it is with them: what is not here must not look as if it were.
        let partial = self.stocks.partial();
        self.advertise(|advert| {
            (advert.models, advert.partial, advert.devices) = (models, partial, devices);
            advert.origins.retain(|said| origins.iter().all(|origin| origin.model != said.model));
            advert.origins.extend(origins);
        })
    }

    /// Another process with this peer's identity looks for it all the time; one that does no more has ended.
    fn forget_twin(&mut self) {
        if self.twin_seen.is_some_and(|at| at.elapsed() > twins::REMEMBERED) {
            self.twin_seen = None;
            self.view.send_modify(|v| v.troubles.retain(|t| *t != Trouble::Twin { at: None }));
        }
    }

    async fn look(&mut self) -> Option<Event> {
        let WorkerReport {
            ready,
            load,
            loading,
            weights,
            in_use,
            out_of_kv_pages,
            lost,
            kv_refused,
            drafts,
            weights_given,
            used,
            held: _,
            talks: _,
        } = self.worker.report().await.ok()?;
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
            view.guesses = drafts;
            // It changes with every step, and is news to nobody.
            view.turns = used.into_iter().map(|(model, used)| ModelTurns { model, used }).collect();
            let given = std::mem::replace(&mut view.weights_given, weights_given) != weights_given;
            given | refused | read | held | checked | (std::mem::replace(&mut view.loading, loading) != loading)
        });
        Some(Event::Load { load, ready })
    }

    /// Lends what the owner wants lent.
    async fn apply_command(&mut self) -> Option<Event> {
        match self.owner.look(Instant::now())? {
            OwnerChange::Lend(devices) => {
                self.take_up_again(&devices).await?;
                let encoders = if self.owner.lending() == Lending::Lends { self.encoders.clone() } else { Vec::new() };
                self.advertise(|advert| (advert.devices, advert.encoders) = (devices, encoders))
            }
            OwnerChange::Rest => {
                self.worker.rest().await.ok()?;
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
                        let view = changeover::ChangeoverView { up: &up, staying: &staying };
                        self.changeover.adopt(now, plan.clone(), view);
                        let takes = self.fetching_for(&plan);
                        self.changeover.waits_for_weights(now, takes);
                        self.beside = self.changeover.standing().clone();
                        let plan = self.within_limits(plan, &self.advert.devices);
                        if self.worker.adopt(plan, self.beside.clone()).await.is_err() {
                            return visible;
                        }
                    }
                    Action::Settings(settings) => {
                        tracing::info!(settings = settings.len(), "what members have set for the swarm has changed");
                        self.store.set_settings(self.invite.swarm, &settings);
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

    /// Follows the adopted plan as soon as its groups are up; tells the worker which others to keep until then.
    async fn change_over(&mut self) {
        let (up, staying) = (self.control.said_ready(), self.staying());
        self.changeover.look(self.started.elapsed(), changeover::ChangeoverView { up: &up, staying: &staying });
        let standing = self.changeover.standing();
        if *standing != self.beside {
            self.beside.clone_from(standing);
            // The worker being gone, the process ends.
            let _ = self.worker.keep(standing.clone()).await;
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
