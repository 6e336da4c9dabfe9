//! Prompt flow 2 and 9: the loop where clients, streams and the gateway machine meet.

use super::{
    PreparedRequest, Reply, SUBMISSIONS, Submission,
    clients::{
        Client, ClientTable, DecodeLine, LineEvent, Looked, PrefillLine, SubmittedRequest, believed, finish, reply,
        tell,
    },
    leader_reach::LeaderReach,
    sleep_watch::{SleepWatch, TURN},
    spot_checks::Examiner,
};
use crate::{
    data_plane::{links::Links, offences::OffenceReporter, roster::Roster},
    history::History,
    response_log::ResponseLog,
    worker::{
        WorkerHandle,
        leader_client::{ORDERS, event_room},
    },
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::{
    gateway::{Action, Begun, Event, Gateway, Trace, View},
    spot_check::SpotChecks,
};
use tsnode_protocol::{
    PeerId, RequestId, SeenSpeed, Traffic,
    stream::{DecodeEvent, DecodeRequest, PrefillEvent, PrefillRequest},
};

/// What streams and clients say, not yet looked at; above it streams wait.
const HEARD: usize = 4096;

/// What the loop works with.
pub struct Drive {
    /// Routes and owns requests.
    pub machine: Gateway,
    /// This peer.
    pub me: PeerId,
    /// Leaders on this peer.
    pub worker: WorkerHandle,
    /// Leaders on others.
    pub links: Links,
    /// Where others are.
    pub roster: Roster,
    /// What the machine routes by.
    pub view: watch::Receiver<View>,
    /// Requests from HTTP.
    pub submissions: mpsc::Receiver<Submission>,
    /// What clients got, for when they come back elsewhere.
    pub response_log: ResponseLog,
    /// Where it is counted what others compute for them.
    pub history: History,
    /// How many of them have not ended.
    pub open: watch::Sender<usize>,
    /// What clients have asked for of late, for this peer's advert.
    pub traffic: watch::Sender<Vec<Traffic>>,
    /// What was seen of groups whose claims of speed are in doubt, for this peer's heartbeats.
    pub seen_speeds: watch::Sender<Vec<SeenSpeed>>,
    /// Is told of those who answer wrongly.
    pub offence_reporter: OffenceReporter,
    /// Whether that is looked for.
    pub spot_checks: SpotChecks,
    /// Owner of the tasks that follow streams.
    pub tasks: TaskTracker,
    /// The process's zero.
    pub started: Instant,
}

impl Drive {
    fn reach(&self) -> LeaderReach {
        LeaderReach { me: self.me, worker: self.worker.clone(), links: self.links.clone(), roster: self.roster.clone() }
    }

    /// Serves requests until `stop`; what runs then ends with a stated error.
    pub async fn run(mut self, stop: CancellationToken) {
        let (heard, mut ear) = mpsc::channel(HEARD);
        let (looked, mut found) = mpsc::channel(SUBMISSIONS);
        let (examiner, mut examined) =
            Examiner::new(self.spot_checks, self.offence_reporter.clone(), self.tasks.clone());
        let mut unresponsive = self.links.unresponsive();
        let mut clients =
            ClientTable { clients: BTreeMap::new(), to_cancel: Vec::new(), heard, looked, examiner, lines: 0 };
        let (mut turns, mut sleep_watch) = (interval(TURN), SleepWatch::new(Instant::now(), SystemTime::now()));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wake = self.machine.deadline().map(|at| self.started + at);
            let event = tokio::select! {
                () = stop.cancelled() => return,
                Some(heard) = ear.recv() => clients.still_counts(heard),
                Some(looked) = found.recv() => self.begun(looked, &mut clients),
                Some(answer) = examined.recv() => {
                    clients.examiner.said(&self.view.borrow(), answer, &self.reach());
                    None
                }
                submission = self.submissions.recv() => match submission {
                    Some(submission) => self.submitted(submission, &mut clients),
                    None => return,
                },
                changed = self.view.changed() => match changed {
                    Ok(()) => Some(Event::View(self.view.borrow_and_update().clone())),
                    Err(_) => return,
                },
                Ok(()) = unresponsive.changed() => {
                    let peers = BTreeSet::clone(&unresponsive.borrow_and_update());
                    Some(Event::Unresponsive { peers })
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Some(Event::Deadline),
                _ = turns.tick(), if self.machine.open_requests() > 0 => None,
            };
            if sleep_watch.turn(Instant::now(), SystemTime::now()) && self.machine.open_requests() > 0 {
                tracing::info!("this process was not run for a while: what breaks off now may be its own doing");
                self.step(Event::Woke, &mut clients);
            }
            let is_view = matches!(event, Some(Event::View(_)));
            if let Some(event) = event {
                self.step(event, &mut clients);
            }
            if is_view {
                // A request may wait for minutes, for its model to be loaded: whose client has gone asks for nothing.
                for request in clients.left_early() {
                    self.step(Event::Cancel { request }, &mut clients);
                }
                // Claims are looked at when the view changes, and not with every token.
                let seen = self.machine.seen_speeds();
                self.seen_speeds.send_if_modified(|known| {
                    let changed = *known != seen;
                    *known = seen;
                    changed
                });
            }
            let open = self.machine.open_requests();
            self.open.send_if_modified(|known| std::mem::replace(known, open) != open);
            let traffic = self.machine.traffic(self.started.elapsed());
            self.traffic.send_if_modified(|known| {
                let changed = *known != traffic;
                *known = traffic;
                changed
            });
        }
    }

    /// One event through the machine, and what follows from it. Of a client that does not take what it is told the request is
    /// cancelled: nobody else says so any more, and the machine would have it for ever, and take its groups for stalled.
    fn step(&mut self, event: Event, clients: &mut ClientTable) {
        let cancelled = if let Event::Cancel { request } = &event { Some(*request) } else { None };
        for action in self.machine.on_event(self.started.elapsed(), event) {
            self.act(action, clients);
        }
        if let Some(request) = cancelled.filter(|request| clients.clients.remove(request).is_some()) {
            self.response_log.end(request);
        }
        for request in std::mem::take(&mut clients.to_cancel) {
            self.step(Event::Cancel { request }, clients);
        }
    }

    /// Takes a request in, or first asks whether its client was served elsewhere before.
    fn submitted(&mut self, submission: Submission, clients: &mut ClientTable) -> Option<Event> {
        let Submission { prompt, answer } = submission;
        let PreparedRequest { request, model, prompt, generation, comes_back, seen, overrule, codec } = prompt;
        if clients.clients.contains_key(&request) {
            // Its client has lost the connection that it had here, and this is not known yet.
            self.step(Event::Cancel { request }, clients);
        }
        self.history.begins(request);
        let line = clients.new_line();
        // Room for the whole answer: a client that reads slowly holds nobody up.
        let (replies, reader) = mpsc::channel(event_room(generation.max_new_tokens));
        let (gone, heard, over) = (replies.clone(), clients.heard.clone(), CancellationToken::new());
        let (ended, enough) = (over.clone(), CancellationToken::new());
        let has_enough = enough.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => return,
                () = gone.closed() => {}
                () = has_enough.cancelled() => {}
            }
            // The loop being gone, nothing is left to cancel.
            let _ = heard.send(LineEvent { line, event: Event::Cancel { request } }).await;
        });
        let client = Client {
            line,
            given: None,
            answer: Some(answer),
            replies,
            reader: Some(reader),
            enough,
            decode: None,
            prefill: None,
            _over: over.drop_guard(),
        };
        clients.clients.insert(request, client);
        let asked = SubmittedRequest { request, model, prompt, generation, overrule, codec };
        if !comes_back {
            return self.begun(Looked { line, asked, recalled: None }, clients);
        }
        let (response_log, looked) = (self.response_log.clone(), clients.looked.clone());
        self.tasks.spawn(async move {
            let recalled = response_log.recall(request, asked.fingerprint(), seen.tokens).await;
            // The loop being gone, nobody waits for this.
            let _ = looked.send(Looked { line, asked, recalled: believed(recalled, seen) }).await;
        });
        None
    }

    /// It is known what the client has; it is served from there on.
    fn begun(&self, looked: Looked, clients: &mut ClientTable) -> Option<Event> {
        let Looked { line, asked, recalled } = looked;
        let fingerprint = asked.fingerprint();
        let SubmittedRequest { request, model, prompt, generation, overrule, codec } = asked;
        let client = clients.clients.get_mut(&request).filter(|c| c.line == line)?;
        let begun = recalled.as_ref().map(|r| Begun {
            codec: r.codec,
            holder: r.holder,
            answer: r.answer.iter().map(|s| s.token).collect(),
        });
        client.given = recalled.clone();
        self.response_log.begin(request, fingerprint, recalled);
        Some(Event::Submit { request, model, prompt, generation, begun, overrule, codec })
    }

    fn act(&self, action: Action, clients: &mut ClientTable) {
        match action {
            Action::OpenDecode { request, leader, open } => self.open_decode(request, leader, open, clients),
            Action::OpenPrefill { request, leader, open } => self.open_prefill(request, leader, open, clients),
            Action::Order { request, order } => {
                if let Some(line) = clients.clients.get(&request).and_then(|c| c.decode.as_ref()) {
                    // At most three orders in a request's life: the queue has room, or the line is lost already.
                    let _ = line.orders.try_send(order);
                }
            }
            Action::CloseDecode { request } => {
                if let Some(client) = clients.clients.get_mut(&request) {
                    client.decode = None;
                }
            }
            Action::ClosePrefill { request } => {
                if let Some(line) = clients.clients.get_mut(&request).and_then(|c| c.prefill.take()) {
                    line.end.cancel();
                }
            }
            Action::Served(served) => clients.examiner.ended(&self.view.borrow(), served, &self.reach()),
            Action::Blame { peer, offence } => {
                tracing::debug!(%peer, %offence, "slower than its advert says");
                self.offence_reporter.blame(peer, offence);
            }
            Action::Settled { request, codec, holder } => {
                self.response_log.settled(request, codec, holder);
                reply(clients, request, Reply::Settled(codec));
            }
            Action::PromptLogprobs { request, logprobs } => {
                reply(clients, request, Reply::PromptLogprobs(logprobs));
            }
            Action::Token { request, index, sampled } => {
                // Never more than the client is sent.
                if reply(clients, request, Reply::Token { index, sampled: sampled.clone() }) {
                    self.response_log.token(request, sampled);
                }
            }
            Action::Trace(ref trace) | Action::HungUp(ref trace) => {
                self.count(trace);
                tell(action, clients);
            }
            Action::Unserved { request, .. } => {
                self.response_log.end(request);
                tell(action, clients);
            }
            Action::End { request, end } => {
                self.response_log.end(request);
                finish(clients, request, end);
            }
            other => tell(other, clients),
        }
    }

    /// What others have computed for a client of this gateway.
    fn count(&self, trace: &Trace) {
        let view = self.view.borrow();
        let mut models = view.adverts.values().flat_map(|advert| &advert.models);
        let name = models.find(|card| card.id == trace.model).map_or("", |card| card.name.as_str());
        self.history.ended(self.me, name, trace);
    }

    fn open_decode(&self, request: RequestId, leader: PeerId, open: DecodeRequest, clients: &mut ClientTable) {
        let line = clients.new_line();
        let Some(client) = clients.clients.get_mut(&request) else { return };
        let (orders, apply_command) = mpsc::channel(ORDERS);
        let (events, mut told) = mpsc::channel(event_room(open.generation.max_new_tokens));
        let end = CancellationToken::new();
        client.decode = Some(DecodeLine { line, orders, end: end.clone() });
        let heard = clients.heard.clone();
        let reach = self.reach().decode(leader, open, apply_command, events);
        self.tasks.spawn(async move {
            let follow = async {
                let mut over = false;
                let relay = async {
                    while let Some(event) = told.recv().await {
                        over |= matches!(event, DecodeEvent::End(_) | DecodeEvent::Refused(_));
                        if heard.send(LineEvent { line, event: Event::Decode { request, event } }).await.is_err() {
                            return;
                        }
                    }
                };
                let (reached, ()) = tokio::join!(reach, relay);
                if !over {
                    let reason = reached.err().unwrap_or_else(|| "the stream ended early".into());
                    // The loop being gone, nobody waits for this.
                    let event = Event::DecodeLost { request, reason };
                    let _ = heard.send(LineEvent { line, event }).await;
                }
            };
            tokio::select! {
                () = end.cancelled() => {}
                () = follow => {}
            }
        });
    }

    fn open_prefill(&self, request: RequestId, leader: PeerId, open: PrefillRequest, clients: &mut ClientTable) {
        let line = clients.new_line();
        let Some(client) = clients.clients.get_mut(&request) else { return };
        let end = CancellationToken::new();
        if let Some(before) = client.prefill.replace(PrefillLine { line, end: end.clone() }) {
            before.end.cancel();
        }
        let (heard, reach) = (clients.heard.clone(), self.reach());
        self.tasks.spawn(async move {
            let (events, mut told) = mpsc::channel(ORDERS);
            let reach = reach.prefill(leader, open, events);
            let relay = async {
                let mut over = false;
                while let Some(event) = told.recv().await {
                    over |= matches!(event, PrefillEvent::KvSent { .. } | PrefillEvent::Failed(_));
                    if heard.send(LineEvent { line, event: Event::Prefill { request, event } }).await.is_err() {
                        return true;
                    }
                }
                over
            };
            tokio::select! {
                () = end.cancelled() => {}
                (reached, over) = async { tokio::join!(reach, relay) } => if !over {
                    let reason = reached.err().unwrap_or_else(|| "the stream ended early".into());
                    let event = Event::PrefillLost { request, reason };
                    let _ = heard.send(LineEvent { line, event }).await;
                },
            }
        });
    }
}
