//! Prompt flow 3, 4 and 8: the first stage of a group. Its batcher decides; this task carries out.
//!
//! A group of one stage talks to its worker alone; a longer one first builds a ring through all its stages, and
//! builds it again whenever it breaks.

mod connected_ring;
mod gateways;
mod requests;

use super::{
    context::StageContext,
    going::Going,
    kv_receiver::KvReceiver,
    leader_client::{LeaderRequest, refuse_all, refusing},
    member::{LastRingError, RingStream},
    ring_events::from_ring,
    speculation_checks::SpeculationChecks,
    speculator::{DraftModel, SpeculatorOrder},
    stage::{Arrived, StageError},
};
use crate::data_plane::links::Attended;
use crate::data_plane::roster::Roster;
use connected_ring::{ConnectedRing, answer_of};
use gateways::{GatewayStream, ToClient, to_client};
use requests::{SequenceCommand, ServedRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, Event},
    policy::choice::Batches,
};
use tsnode_protocol::{
    Group, Load, PeerId, RequestId,
    stream::{DecodeEvent, NOT_UP, PLAN_CHANGED},
};

/// Requests waiting to be looked at by the leader; above it gateways wait.
pub(super) const REQUESTS: usize = 256;
/// What gateways of running sequences say, not yet looked at.
const WORDS: usize = 1024;
/// Pause before a ring is built again.
const RING_PAUSE: Duration = Duration::from_millis(300);
/// How often a drained group looks whether its last sequence has ended.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// What a leader tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LeaderReport {
    /// Takes requests.
    pub ready: bool,
    pub load: Load,
}

/// Everything a leader's task is given.
pub(super) struct LeaderSetup {
    pub group: Group,
    pub context: StageContext,
    pub kv_receiver: KvReceiver,
    pub roster: Roster,
    pub config: BatcherConfig,
    /// What proposes beside prompt lookup.
    pub draft: Option<DraftModel>,
    pub checks: Arc<SpeculationChecks>,
    pub requests: mpsc::Receiver<LeaderRequest>,
    pub rings: mpsc::Receiver<RingStream>,
    pub report: watch::Sender<LeaderReport>,
    /// The group is no longer served: take nothing new, finish what runs.
    pub retire: CancellationToken,
    /// Peers on their way out, or wanted back by their owners: once the plan no longer has a group with one of them, what runs
    /// there goes on elsewhere.
    pub going: Going,
    /// What is loaded next needs this stage's memory: what runs on a retired group goes on elsewhere.
    pub evict: CancellationToken,
    pub stop: CancellationToken,
}

/// What follows from one thing that happened: at most that a sequence ends and another begins.
type LeaderEvents = [Option<Event>; 2];

/// Leads the group until `stop`, or until it is retired and empty.
pub(super) async fn run(setup: LeaderSetup) {
    let stop = setup.stop.clone();
    let mut leader = Leader::new(setup);
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = leader.one_ring() => ended,
        };
        leader.report.send_modify(|r| r.ready = false);
        match ended {
            // Some may have been brought before the plan changed, and not been looked at.
            LeaderEnd::Drained => return refuse_all(&mut leader.requests, PLAN_CHANGED),
            LeaderEnd::Leaving(why) => return leader.broken(why.into()),
            LeaderEnd::Broken(why) => {
                let why = why.to_string();
                if leader.said.is_news(&why) {
                    tracing::info!(group = %leader.group.id, %why, "ring broke");
                }
                leader.broken(why);
                // The plan goes on without this group, and nothing runs here any more.
                if leader.retire.is_cancelled() {
                    return;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = refusing(&mut leader.requests, sleep(RING_PAUSE)) => {}
        }
    }
}

enum LeaderEnd {
    Drained,
    /// What runs is for others to go on with.
    Leaving(&'static str),
    Broken(StageError),
}

struct Leader {
    group: Group,
    context: StageContext,
    kv_receiver: KvReceiver,
    roster: Roster,
    /// How its steps are formed.
    batches: Batches,
    batcher: Batcher,
    draft: Option<DraftModel>,
    checks: Arc<SpeculationChecks>,
    clients: BTreeMap<RequestId, ServedRequest>,
    turns: u64,
    requests: mpsc::Receiver<LeaderRequest>,
    rings: mpsc::Receiver<RingStream>,
    words: mpsc::Receiver<SequenceCommand>,
    speak: mpsc::Sender<SequenceCommand>,
    report: watch::Sender<LeaderReport>,
    retire: CancellationToken,
    going: Going,
    evict: CancellationToken,
    /// Of rings that broke.
    said: LastRingError,
    started: Instant,
}

impl Leader {
    fn new(setup: LeaderSetup) -> Self {
        let (speak, words) = mpsc::channel(WORDS);
        Self {
            batches: setup.config.batches,
            batcher: Batcher::new(setup.config),
            draft: setup.draft,
            checks: setup.checks,
            group: setup.group,
            context: setup.context,
            kv_receiver: setup.kv_receiver,
            roster: setup.roster,
            clients: BTreeMap::new(),
            turns: 0,
            requests: setup.requests,
            rings: setup.rings,
            words,
            speak,
            report: setup.report,
            retire: setup.retire,
            going: setup.going,
            evict: setup.evict,
            said: LastRingError::default(),
            started: Instant::now(),
        }
    }

    /// Builds a ring and works with it until it breaks or the group is drained.
    async fn one_ring(&mut self) -> LeaderEnd {
        let mut ring = match self.build().await {
            Ok(ring) => ring,
            Err(error) => return LeaderEnd::Broken(error),
        };
        self.said.forget();
        tracing::info!(group = %self.group.id, phase = %self.group.phase, stages = self.group.stages.len(), "group is up");
        // What was said before this ring was there has not been looked at.
        let mut roster = self.roster.clone();
        let mut unresponsive = self.context.links.unresponsive();
        let mut attended = Vec::new();
        loop {
            self.tell();
            self.attend(&mut attended);
            if let Some(peer) = self.unresponsive_one(&unresponsive.borrow_and_update()) {
                return LeaderEnd::Broken(StageError::Protocol(format!("{peer} gives no sign of life")));
            }
            if self.retire.is_cancelled() && self.clients.is_empty() {
                return LeaderEnd::Drained;
            }
            if self.retire.is_cancelled() && self.going.has_of(&self.group) {
                return LeaderEnd::Leaving("a peer of it lends no longer");
            }
            if self.retire.is_cancelled() && self.evict.is_cancelled() {
                return LeaderEnd::Leaving("its memory is needed");
            }
            let wake = self.batcher.deadline().map(|at| self.started + at);
            let retiring = self.retire.is_cancelled();
            let events: LeaderEvents = tokio::select! {
                biased;
                frame = ring.back.recv() => match frame {
                    Some(frame) => [from_ring(frame, self.busy()), None],
                    None => return LeaderEnd::Broken((&mut ring.end).await.unwrap_or(StageError::Upstream)),
                },
                why = &mut ring.end => return LeaderEnd::Broken(why.unwrap_or(StageError::Upstream)),
                drafted = answer_of(&mut ring.speculator) => match drafted {
                    Ok(event) => [Some(event), None],
                    Err(gone) => return LeaderEnd::Broken(gone.into()),
                },
                Ok(()) = unresponsive.changed() => LeaderEvents::default(),
                true = roster.changed() => [self.batching(), None],
                Some(word) = self.words.recv() => [self.hear(word), None],
                Some(request) = self.requests.recv() => self.take(request, retiring),
                () = sleep_until(wake.unwrap_or_else(far)), if wake.is_some() => [Some(Event::Deadline), None],
                () = sleep(DRAIN_LOOK), if retiring => LeaderEvents::default(),
                () = self.retire.cancelled(), if !retiring => LeaderEvents::default(),
            };
            for event in events.into_iter().flatten() {
                let actions = self.batcher.on_event(self.started.elapsed(), event);
                // The stage is told last: of tasks that are woken here the last one runs first, and the device waits for this one.
                let (frames, others): (Vec<Action>, Vec<Action>) =
                    actions.into_iter().partition(|action| matches!(action, Action::Ring(_)));
                for action in others.into_iter().chain(frames) {
                    if let Err(error) = self.act(action, &ring) {
                        return LeaderEnd::Broken(error);
                    }
                }
                self.checks.add(self.batcher.take_checked());
            }
        }
    }

    /// How steps are to be formed by what members have set, or the plan has chosen for them, if that is news.
    fn batching(&mut self) -> Option<Event> {
        let batches = self.batches.by(self.roster.batch_policy(self.group.model));
        if batches == self.batches {
            return None;
        }
        tracing::info!(group = %self.group.id, ?batches, "steps are formed otherwise, as members have set or left to the plan");
        self.batches = batches;
        Some(Event::BatchBy(batches))
    }

    /// Something is expected of the other stages while anything runs here.
    fn attend(&self, attended: &mut Vec<Attended>) {
        if self.clients.is_empty() {
            attended.clear();
        } else if attended.is_empty() {
            attended.extend(self.others().map(|peer| self.context.links.attend(peer)));
        }
    }

    /// One of the other stages that gives no sign of life while anything runs here.
    fn unresponsive_one(&self, unresponsive: &BTreeSet<PeerId>) -> Option<PeerId> {
        self.others().find(|peer| unresponsive.contains(peer)).filter(|_| !self.clients.is_empty())
    }

    /// How long the group has computed, as far as this peer knows: of several stages on GPUs its own is a part, and which part is
    /// not known. Then a step counts from setting off to coming round.
    fn busy(&self) -> Option<Duration> {
        let compute = &self.context.compute;
        (self.group.stages.len() == 1 || !compute.is_on_gpu()).then(|| compute.busy())
    }

    fn others(&self) -> impl Iterator<Item = PeerId> {
        self.group.stages.iter().map(|stage| stage.peer).filter(|peer| *peer != self.context.me)
    }

    fn act(&mut self, action: Action, ring: &ConnectedRing) -> Result<(), StageError> {
        match action {
            Action::Ring(frame) => ring
                .worker
                .try_send(Arrived::from(frame))
                .map_err(|_| StageError::Protocol("this stage no longer takes frames".into())),
            Action::Propose { step, wanted } => Ok(ring.ask(SpeculatorOrder::Propose { step, wanted })?),
            Action::NoDrafts { request } => Ok(ring.ask(SpeculatorOrder::Forget(request))?),
            other => {
                self.answer(other);
                Ok(())
            }
        }
    }

    /// Tells the gateway. One that does not listen is heard of through its closed channel.
    fn answer(&mut self, action: Action) {
        let Some((request, mut event, last)) = to_client(action) else { return };
        if let ToClient::Decode(DecodeEvent::Token { sampled, .. }) = &mut event
            && self.context.links.spoils_token()
        {
            sampled.token.0 ^= 1;
        }
        if let Some(served) = self.clients.get(&request) {
            served.client.tell(event);
        }
        if last {
            self.clients.remove(&request);
        }
    }

    fn broken(&mut self, reason: String) {
        for action in self.batcher.on_event(self.started.elapsed(), Event::RingBroken { reason }) {
            self.answer(match action {
                // It only waited: its gateway asks again, as one does that comes now.
                Action::Refused { request, .. } => Action::Refused { request, reason: NOT_UP.into() },
                other => other,
            });
        }
        self.clients.clear();
        // Gateways that have not heard of it yet are not to wait for a ring that may never come round.
        refuse_all(&mut self.requests, NOT_UP);
    }

    fn tell(&self) {
        let load = self.batcher.load();
        self.report.send_if_modified(|report| {
            let now = LeaderReport { ready: !self.retire.is_cancelled(), load };
            let changed = *report != now;
            *report = now;
            changed
        });
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}
