//! Prompt flow 2 and 9: the loop where clients, streams and the gateway machine meet.

use super::{Accepted, Prompt, Reply, Submission, SubmitError};
use crate::{
    links::Links,
    roster::Roster,
    serving::{
        client::{LeaderRequest, ORDERS, event_room, follow_decode},
        host::Host,
    },
};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tsnode_coordinator::gateway::{Action, Event, Gateway as Machine, View};
use tsnode_protocol::{
    PeerId, RequestId,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, End, Opening, PrefillEvent, PrefillRequest},
};

/// What streams and clients say, not yet looked at; above it streams wait.
const HEARD: usize = 4096;

/// What the loop works with.
pub struct Drive {
    /// Routes and owns requests.
    pub machine: Machine,
    /// This peer.
    pub me: PeerId,
    /// Leaders on this peer.
    pub host: Host,
    /// Leaders on others.
    pub links: Links,
    /// Where others are.
    pub roster: Roster,
    /// What the machine routes by.
    pub view: watch::Receiver<View>,
    /// Requests from HTTP.
    pub submissions: mpsc::Receiver<Submission>,
    /// How many of them have not ended.
    pub open: watch::Sender<usize>,
    /// Owner of the tasks that follow streams.
    pub tasks: TaskTracker,
    /// The process's zero.
    pub started: Instant,
}

/// A request as this loop holds it.
struct Client {
    /// Until the request is routed.
    answer: Option<oneshot::Sender<Result<Accepted, SubmitError>>>,
    replies: mpsc::Sender<Reply>,
    /// Taken when the request is accepted.
    reader: Option<mpsc::Receiver<Reply>>,
    decode: Option<DecodeLine>,
    prefill: Option<PrefillLine>,
    /// Ends the task that waits for the client to go.
    _over: DropGuard,
}

/// Tells a request's lines apart: what was said on one that has been hung up on no longer counts.
type LineNo = u64;

/// The line to the leader that decodes.
struct DecodeLine {
    line: LineNo,
    orders: mpsc::Sender<DecodeOrder>,
    end: CancellationToken,
}

/// The line to the leader that prefills.
struct PrefillLine {
    line: LineNo,
    end: CancellationToken,
}

/// Something that happened, and on which line.
struct Heard {
    line: Option<LineNo>,
    event: Event,
}

impl Drop for DecodeLine {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// The loop's own state beside the machine's.
struct Desk {
    clients: BTreeMap<RequestId, Client>,
    heard: mpsc::Sender<Heard>,
    lines: LineNo,
}

impl Desk {
    fn new_line(&mut self) -> LineNo {
        self.lines += 1;
        self.lines
    }

    /// What was said, unless that line has been hung up on meanwhile.
    fn still_counts(&self, heard: Heard) -> Option<Event> {
        let Some(line) = heard.line else { return Some(heard.event) };
        let open = match &heard.event {
            Event::Decode { request, .. } | Event::DecodeLost { request, .. } => {
                self.clients.get(request).and_then(|c| c.decode.as_ref()).map(|l| l.line)
            }
            Event::Prefill { request, .. } | Event::PrefillLost { request, .. } => {
                self.clients.get(request).and_then(|c| c.prefill.as_ref()).map(|l| l.line)
            }
            _ => None,
        };
        (open == Some(line)).then_some(heard.event)
    }
}

impl Drive {
    /// Serves requests until `stop`; what runs then ends with a stated error.
    pub async fn run(mut self, stop: CancellationToken) {
        let (heard, mut ear) = mpsc::channel(HEARD);
        let mut desk = Desk { clients: BTreeMap::new(), heard, lines: 0 };
        loop {
            let wake = self.machine.deadline().map(|at| self.started + at);
            let event = tokio::select! {
                () = stop.cancelled() => return,
                Some(heard) = ear.recv() => match desk.still_counts(heard) {
                    Some(event) => event,
                    None => continue,
                },
                submission = self.submissions.recv() => match submission {
                    Some(submission) => self.submitted(submission, &mut desk),
                    None => return,
                },
                changed = self.view.changed() => match changed {
                    Ok(()) => Event::View(self.view.borrow_and_update().clone()),
                    Err(_) => return,
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Event::Deadline,
            };
            let now = self.started.elapsed();
            for action in self.machine.on_event(now, event) {
                self.act(action, &mut desk);
            }
            let open = self.machine.open_requests();
            self.open.send_if_modified(|known| std::mem::replace(known, open) != open);
        }
    }

    fn submitted(&self, submission: Submission, desk: &mut Desk) -> Event {
        let Submission { prompt: Prompt { request, model, prompt, generation }, answer } = submission;
        // Room for the whole answer: a client that reads slowly holds nobody up.
        let (replies, reader) = mpsc::channel(event_room(generation.max_new_tokens));
        let (gone, heard, over) = (replies.clone(), desk.heard.clone(), CancellationToken::new());
        let ended = over.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                // The loop being gone, nothing is left to cancel.
                () = gone.closed() => drop(heard.send(Heard { line: None, event: Event::Cancel { request } }).await),
            }
        });
        let client = Client {
            answer: Some(answer),
            replies,
            reader: Some(reader),
            decode: None,
            prefill: None,
            _over: over.drop_guard(),
        };
        desk.clients.insert(request, client);
        Event::Submit { request, model, prompt, generation }
    }

    fn act(&self, action: Action, desk: &mut Desk) {
        match action {
            Action::OpenDecode { request, leader, open } => self.open_decode(request, leader, open, desk),
            Action::OpenPrefill { request, leader, open } => self.open_prefill(request, leader, open, desk),
            Action::Order { request, order } => {
                if let Some(line) = desk.clients.get(&request).and_then(|c| c.decode.as_ref()) {
                    // At most three orders in a request's life: the queue has room, or the line is lost already.
                    let _ = line.orders.try_send(order);
                }
            }
            Action::CloseDecode { request } => {
                if let Some(client) = desk.clients.get_mut(&request) {
                    client.decode = None;
                }
            }
            Action::ClosePrefill { request } => {
                if let Some(line) = desk.clients.get_mut(&request).and_then(|c| c.prefill.take()) {
                    line.end.cancel();
                }
            }
            other => tell(other, desk),
        }
    }

    fn open_decode(&self, request: RequestId, leader: PeerId, open: DecodeRequest, desk: &mut Desk) {
        let line = desk.new_line();
        let Some(client) = desk.clients.get_mut(&request) else { return };
        let (orders, obey) = mpsc::channel(ORDERS);
        let (events, mut told) = mpsc::channel(event_room(open.generation.max_new_tokens));
        let end = CancellationToken::new();
        client.decode = Some(DecodeLine { line, orders, end: end.clone() });
        let heard = desk.heard.clone();
        let reach = self.reach(leader, open, obey, events);
        self.tasks.spawn(async move {
            let follow = async {
                let mut over = false;
                let relay = async {
                    while let Some(event) = told.recv().await {
                        over |= matches!(event, DecodeEvent::End(_) | DecodeEvent::Refused(_));
                        if heard
                            .send(Heard { line: Some(line), event: Event::Decode { request, event } })
                            .await
                            .is_err()
                        {
                            return;
                        }
                    }
                };
                let (reached, ()) = tokio::join!(reach, relay);
                if !over {
                    let reason = reached.err().unwrap_or_else(|| "the stream ended early".into());
                    // The loop being gone, nobody waits for this.
                    let event = Event::DecodeLost { request, reason };
                    let _ = heard.send(Heard { line: Some(line), event }).await;
                }
            };
            tokio::select! {
                () = end.cancelled() => {}
                () = follow => {}
            }
        });
    }

    /// Brings the request to its leader and follows it there, in this process or over a stream.
    fn reach(
        &self,
        leader: PeerId,
        open: DecodeRequest,
        orders: mpsc::Receiver<DecodeOrder>,
        events: mpsc::Sender<DecodeEvent>,
    ) -> impl Future<Output = Result<(), String>> + use<> {
        let (here, host, links, roster) =
            (leader == self.me, self.host.clone(), self.links.clone(), self.roster.clone());
        async move {
            if here {
                let group = open.group;
                let request = LeaderRequest::Decode { request: open, orders, events };
                return host.serve(group, request).await.map_err(|e| e.to_string());
            }
            let addresses = roster.data_addresses(leader);
            let stream = links.open(leader, &addresses, &Opening::Decode(open)).await.map_err(|e| e.to_string())?;
            follow_decode(stream, orders, events).await.map_err(|e| e.to_string())
        }
    }

    fn open_prefill(&self, request: RequestId, leader: PeerId, open: PrefillRequest, desk: &mut Desk) {
        let line = desk.new_line();
        let Some(client) = desk.clients.get_mut(&request) else { return };
        let end = CancellationToken::new();
        if let Some(before) = client.prefill.replace(PrefillLine { line, end: end.clone() }) {
            before.end.cancel();
        }
        let (heard, here) = (desk.heard.clone(), leader == self.me);
        let (host, links, roster) = (self.host.clone(), self.links.clone(), self.roster.clone());
        self.tasks.spawn(async move {
            let (events, mut told) = mpsc::channel(ORDERS);
            let reach = async move {
                if here {
                    let group = open.group;
                    let asked = LeaderRequest::Prefill { request: open, events };
                    return host.serve(group, asked).await.map_err(|e| e.to_string());
                }
                follow_prefill(leader, open, &links, &roster, events).await
            };
            let relay = async {
                let mut over = false;
                while let Some(event) = told.recv().await {
                    over |= matches!(event, PrefillEvent::KvSent { .. } | PrefillEvent::Failed(_));
                    if heard.send(Heard { line: Some(line), event: Event::Prefill { request, event } }).await.is_err() {
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
                    let _ = heard.send(Heard { line: Some(line), event }).await;
                },
            }
        });
    }
}

async fn follow_prefill(
    leader: PeerId,
    open: PrefillRequest,
    links: &Links,
    roster: &Roster,
    events: mpsc::Sender<PrefillEvent>,
) -> Result<(), String> {
    let addresses = roster.data_addresses(leader);
    let mut stream = links.open(leader, &addresses, &Opening::Prefill(open)).await.map_err(|e| e.to_string())?;
    while let Some(event) = stream.receiver.recv::<PrefillEvent>().await.map_err(|e| e.to_string())? {
        let last = matches!(event, PrefillEvent::KvSent { .. } | PrefillEvent::Failed(_));
        if events.send(event).await.is_err() || last {
            break;
        }
    }
    Ok(())
}

/// Passes on what the machine says to the client. A client that does not read fills its queue and is cancelled by
/// dropping it.
fn tell(action: Action, desk: &mut Desk) {
    match action {
        Action::Accepted { request, prefill, decode } => {
            let Some(client) = desk.clients.get_mut(&request) else { return };
            if let (Some(answer), Some(replies)) = (client.answer.take(), client.reader.take()) {
                // A client that has gone drops the replies, which cancels the request.
                let _ = answer.send(Ok(Accepted { prefill, decode, replies }));
            }
        }
        Action::Unserved { request, reason, retry_after } => {
            if let Some(answer) = desk.clients.remove(&request).and_then(|c| c.answer) {
                let _ = answer.send(Err(SubmitError::Unserved { reason, retry_after }));
            }
        }
        Action::Token { request, index, sampled } => reply(desk, request, Reply::Token { index, sampled }),
        Action::Trace(trace) => reply(desk, trace.request, Reply::Trace(Box::new(trace))),
        Action::End { request, end } => finish(desk, request, end),
        _ => {}
    }
}

fn reply(desk: &mut Desk, request: RequestId, reply: Reply) {
    let Some(client) = desk.clients.get(&request) else { return };
    if client.replies.try_send(reply).is_err() {
        tracing::debug!(%request, "the client does not read: request dropped");
        desk.clients.remove(&request);
    }
}

fn finish(desk: &mut Desk, request: RequestId, end: End) {
    if let Some(client) = desk.clients.remove(&request) {
        // Whoever does not listen any more has cancelled already.
        let _ = client.replies.try_send(Reply::End(end));
    }
}
