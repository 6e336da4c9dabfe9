//! Prompt flow 3, 4 and 8: the first stage of a group. Its batcher decides; this task carries out.
//!
//! A group of one stage talks to its worker alone; a longer one first builds a ring through all its stages, and
//! builds it again whenever it breaks.

use super::{
    context::StageContext,
    going::Going,
    kv_receiver::KvReceiver,
    leader_client::{FOREIGN, LeaderRequest, order_is_within, refuse_all, refusing},
    member::{LastRingError, RingStream, dropped, open_onward},
    ring_events::from_ring,
    speculation_checks::SpeculationChecks,
    speculator::{DraftModel, Speculator, SpeculatorGone, SpeculatorOrder},
    stage::{Arrived, Downstream, FRAMES, StageError, Worker},
};
use crate::data_plane::links::{Attended, FrameReceiver, Stream};
use crate::data_plane::roster::Roster;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{
    batcher::{Action, Batcher, BatcherConfig, Event, NewSequence, SequenceKind},
    policy::choice::Batches,
};
use tsnode_protocol::{
    Group, KvCodec, Load, PeerId, PromptCodec, RequestId, RingId, Token,
    ring::{KvExport, RingFrame, RingHello},
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, NOT_UP, PLAN_CHANGED, PrefillEvent},
};

/// Requests waiting to be looked at by the leader; above it gateways wait.
pub(super) const REQUESTS: usize = 256;
/// What gateways of running sequences say, not yet looked at.
const WORDS: usize = 1024;
/// How long a ring may take to come round once.
const RING_PATIENCE: Duration = Duration::from_secs(5);
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

/// What a gateway says of a running sequence.
enum SequenceCommand {
    Order(RequestTurn, DecodeOrder),
    Gone(RequestTurn),
}

/// A request as it came: the same one may come again after its gateway has hung up, and before that is heard of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RequestTurn {
    request: RequestId,
    nth: u64,
}

/// What follows from one thing that happened: at most that a sequence ends and another begins.
type LeaderEvents = [Option<Event>; 2];

/// What a gateway knows of a sequence beside its prompt.
struct AnsweredSoFar {
    answered: Vec<Token>,
    codec: PromptCodec,
}

/// The way back to a sequence's gateway.
enum GatewayStream {
    Decode(mpsc::Sender<DecodeEvent>),
    Prefill(mpsc::Sender<PrefillEvent>),
}

/// A request that was taken.
struct ServedRequest {
    turn: RequestTurn,
    /// Who asked, and alone may ask for it again.
    gateway: PeerId,
    client: GatewayStream,
}

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

/// A ring that has come round.
struct ConnectedRing {
    worker: mpsc::Sender<Arrived>,
    /// Knows this ring's sequences only.
    speculator: Option<Speculator>,
    back: mpsc::Receiver<RingFrame>,
    /// Resolves when the ring breaks.
    end: tokio::task::JoinHandle<StageError>,
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

    async fn build(&mut self) -> Result<ConnectedRing, StageError> {
        let (worker, arrived) = mpsc::channel(FRAMES);
        let (to_leader, back) = mpsc::channel(FRAMES);
        if self.group.stages.len() == 1 {
            let work =
                Worker::run(self.context.clone(), self.kv_receiver.clone(), Downstream::Leader(to_leader), arrived);
            return Ok(ConnectedRing {
                worker,
                speculator: self.speculator(),
                back,
                end: crate::tasks::spawn("stage", work),
            });
        }
        let hello = RingHello {
            group: self.group.id,
            ring: RingId(crate::random_bytes()),
            model: self.group.model,
            stages: self.group.stages.clone(),
            position: 0,
        };
        let onward = open_onward(&self.group, &self.context, &self.roster, &hello);
        let Stream { sender, receiver: mut onward } = refusing(&mut self.requests, onward).await?;
        let (rings, retire) = (&mut self.rings, &self.retire);
        let come = async {
            tokio::select! {
                closing = timeout(RING_PATIENCE, come_round(rings, hello.ring)) => closing
                    .unwrap_or_else(|_| Err(StageError::Protocol("the ring did not come round in time".into()))),
                why = dropped(&mut onward) => Err(why),
                () = retire.cancelled() => Err(StageError::Protocol(PLAN_CHANGED.into())),
            }
        };
        let closing = refusing(&mut self.requests, come).await?;
        // A task of its own: whatever breaks first, the worker runs on until it has given its pages back.
        let work = crate::tasks::spawn(
            "stage",
            Worker::run(self.context.clone(), self.kv_receiver.clone(), Downstream::Stream(sender), arrived),
        );
        let end = crate::tasks::spawn("ring's end", async move {
            let Stream { sender: _keep, receiver } = closing;
            tokio::select! {
                why = work => why.unwrap_or(StageError::Upstream),
                why = read_back(receiver, to_leader) => why,
                why = dropped(&mut onward) => why,
            }
        });
        Ok(ConnectedRing { worker, speculator: self.speculator(), back, end })
    }

    fn speculator(&self) -> Option<Speculator> {
        let StageContext { compute, shape, tasks, .. } = &self.context;
        self.draft.clone().map(|draft| Speculator::start(draft, compute.clone(), shape.vocab, tasks))
    }

    fn take(&mut self, request: LeaderRequest, retiring: bool) -> LeaderEvents {
        let id = request.request();
        if retiring {
            request.refuse(PLAN_CHANGED);
            return LeaderEvents::default();
        }
        if !request.is_within(self.context.shape.vocab) {
            request.refuse(FOREIGN);
            return LeaderEvents::default();
        }
        // Its gateway's stream being open is what shows that somebody still wants it. A gateway that dies or stops loses its
        // streams within seconds; until then its client, who has come back at another one, is served elsewhere, or asks again.
        if self.clients.get(&id).is_some_and(|before| before.gateway != request.gateway()) {
            tracing::debug!(request = %id, gateway = %request.gateway(), "runs here for another gateway: refused");
            request.refuse("another gateway has this request here");
            return LeaderEvents::default();
        }
        let gateway = request.gateway();
        // One that comes again has been given up by its gateway, which is not heard of yet.
        let before = self.clients.remove(&id).map(|_| Event::Cancel { request: id });
        self.turns += 1;
        let turn = RequestTurn { request: id, nth: self.turns };
        let speak = self.speak.clone();
        let (sequence, client) = match request {
            LeaderRequest::Decode { request, mut orders, events, .. } => {
                crate::tasks::spawn("gateway's orders", async move {
                    while let Some(order) = orders.recv().await {
                        if speak.send(SequenceCommand::Order(turn, order)).await.is_err() {
                            return;
                        }
                    }
                    let _ = speak.send(SequenceCommand::Gone(turn)).await;
                });
                let kind = if request.await_kv { SequenceKind::AwaitKv } else { SequenceKind::Local };
                let DecodeRequest { prompt, answered, generation, codec, .. } = request;
                let known = AnsweredSoFar { answered, codec };
                (self.sequence(id, prompt, known, generation, kind), GatewayStream::Decode(events))
            }
            LeaderRequest::Prefill { request, events, .. } => {
                let watched = events.clone();
                crate::tasks::spawn("gateway's end", async move {
                    watched.closed().await;
                    let _ = speak.send(SequenceCommand::Gone(turn)).await;
                });
                let export = KvExport { targets: request.targets, codec: request.codec, pace: request.pace };
                let kind = SequenceKind::Export(export);
                // What is packed are copies: here the prompt's KV stays as it is.
                let known = AnsweredSoFar { answered: Vec::new(), codec: KvCodec::Raw.into() };
                (self.sequence(id, request.prompt, known, request.generation, kind), GatewayStream::Prefill(events))
            }
        };
        self.clients.insert(id, ServedRequest { turn, gateway, client });
        [before, Some(Event::Submit(sequence))]
    }

    fn sequence(
        &self,
        request: RequestId,
        prompt: Vec<Token>,
        known: AnsweredSoFar,
        generation: tsnode_protocol::stream::Generation,
        kind: SequenceKind,
    ) -> NewSequence {
        let room = match kind {
            // Only the prompt's KV lives on the prefill side.
            SequenceKind::Export(_) => prompt.len() as u32,
            _ => (prompt.len() as u32).saturating_add(generation.max_new_tokens),
        };
        let AnsweredSoFar { answered, codec } = known;
        let max_tokens = room.min(self.context.shape.context);
        NewSequence { request, max_tokens, prompt, answered, codec, generation, kind }
    }

    fn hear(&mut self, word: SequenceCommand) -> Option<Event> {
        let (SequenceCommand::Order(turn, _) | SequenceCommand::Gone(turn)) = word;
        let request = turn.request;
        self.clients.get(&request).filter(|served| served.turn == turn)?;
        Some(match word {
            // Gateways pass on what a prefill group's leader has told them.
            SequenceCommand::Order(_, order) if !order_is_within(&order, self.context.shape.vocab) => {
                self.answer(Action::End { request, end: tsnode_protocol::stream::End::Failed(FOREIGN.into()) });
                Event::Cancel { request }
            }
            SequenceCommand::Order(_, DecodeOrder::Begin(first)) => Event::Begin { request, first },
            SequenceCommand::Order(_, DecodeOrder::PrefillHere { first }) => Event::PrefillHere { request, first },
            SequenceCommand::Gone(_) => {
                self.clients.remove(&request);
                Event::Cancel { request }
            }
        })
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

enum ToClient {
    Decode(DecodeEvent),
    Prefill(PrefillEvent),
    /// The same to either kind.
    Failed(String),
    /// It is not taken, whichever kind it is.
    Refused(String),
}

impl GatewayStream {
    fn tell(&self, event: ToClient) {
        match (self, event) {
            (Self::Decode(events), ToClient::Decode(event)) => drop(events.try_send(event)),
            (Self::Decode(events), ToClient::Failed(why)) => {
                drop(events.try_send(DecodeEvent::End(tsnode_protocol::stream::End::Failed(why))));
            }
            (Self::Decode(events), ToClient::Refused(why)) => drop(events.try_send(DecodeEvent::Refused(why))),
            (Self::Prefill(events), ToClient::Prefill(event)) => drop(events.try_send(event)),
            // Its channel stays open for whoever waits for the gateway's end: nothing else would say that nothing comes.
            (Self::Prefill(events), ToClient::Failed(why) | ToClient::Refused(why)) => {
                drop(events.try_send(PrefillEvent::Failed(why)));
            }
            (Self::Decode(_), ToClient::Prefill(_)) | (Self::Prefill(_), ToClient::Decode(_)) => {}
        }
    }
}

impl ConnectedRing {
    fn ask(&self, order: SpeculatorOrder) -> Result<(), SpeculatorGone> {
        self.speculator.as_ref().ok_or(SpeculatorGone)?.order(order)
    }
}

/// What a ring's speculator says, if there is one.
async fn answer_of(speculator: &mut Option<Speculator>) -> Result<Event, SpeculatorGone> {
    match speculator {
        Some(speculator) => speculator.answer().await,
        None => std::future::pending().await,
    }
}

/// What a gateway is told of an action, and whether it is the last it hears.
#[deny(clippy::wildcard_enum_match_arm)]
fn to_client(action: Action) -> Option<(RequestId, ToClient, bool)> {
    use tsnode_protocol::stream::End;
    Some(match action {
        Action::Ring(_) | Action::Propose { .. } | Action::NoDrafts { .. } => return None,
        Action::Granted { request, cached } => (request, ToClient::Decode(DecodeEvent::Granted { cached }), false),
        Action::Refused { request, reason } => (request, ToClient::Refused(reason), true),
        Action::KvArrived { request, after, deliveries } => {
            (request, ToClient::Decode(DecodeEvent::KvArrived { after, deliveries }), false)
        }
        Action::Computed { request, computed } => (request, ToClient::Decode(DecodeEvent::Computed(computed)), false),
        Action::PromptLogprobs { request, from, logprobs } => {
            (request, ToClient::Decode(DecodeEvent::PromptLogprobs { from, logprobs }), false)
        }
        Action::KvFailed { request, reason } => (request, ToClient::Decode(DecodeEvent::KvFailed(reason)), false),
        Action::Token { request, index, sampled } => {
            (request, ToClient::Decode(DecodeEvent::Token { index, sampled }), false)
        }
        Action::First { request, sampled, computed, cached } => {
            (request, ToClient::Prefill(PrefillEvent::First { sampled, computed, cached }), false)
        }
        Action::KvSent { request, bytes, after } => {
            (request, ToClient::Prefill(PrefillEvent::KvSent { bytes, after }), true)
        }
        Action::End { request, end: End::Failed(why) } => (request, ToClient::Failed(why), true),
        Action::End { request, end } => (request, ToClient::Decode(DecodeEvent::End(end)), true),
    })
}

/// Waits until the last stage's stream of this very ring arrives.
async fn come_round(rings: &mut mpsc::Receiver<RingStream>, ring: RingId) -> Result<Stream, StageError> {
    while let Some(arrived) = rings.recv().await {
        if arrived.hello.ring == ring {
            return Ok(arrived.stream);
        }
    }
    Err(StageError::Upstream)
}

/// Frames of the last stage, to the leader.
async fn read_back(mut stream: FrameReceiver, leader: mpsc::Sender<RingFrame>) -> StageError {
    loop {
        match stream.recv::<RingFrame>().await {
            Ok(Some(mut frame)) => {
                if let Err(error) = frame.check() {
                    return stream.refuse(error).into();
                }
                frame.shorten_reason();
                if leader.send(frame).await.is_err() {
                    return StageError::Upstream;
                }
            }
            Ok(None) => return StageError::Upstream,
            Err(error) => return error.into(),
        }
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_for_another_group_that_is_not_taken_fails_at_once() {
        let (events, mut told) = mpsc::channel(1);
        let refused = Action::Refused { request: RequestId([1; 16]), reason: "no pages".into() };
        let Some((_, said, last)) = to_client(refused) else { panic!("its gateway is to hear of it") };
        GatewayStream::Prefill(events.clone()).tell(said);
        assert!(last, "and of nothing after it");
        assert!(matches!(told.try_recv(), Ok(PrefillEvent::Failed(why)) if why == "no pages"));
    }
}
