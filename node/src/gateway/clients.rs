//! Prompt flow 2 and 9: the clients of the gateway's loop, which of their lines count, and what they are told.

use super::{Accepted, Reply, SeenAnswer, SubmitError, spot_checks::Examiner};
use crate::response_log::Recalled;
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tsnode_coordinator::{
    gate::Overrule,
    gateway::{Action, Event},
};
use tsnode_protocol::{
    ModelId, PromptCodec, RequestId, Token,
    response_log::Fingerprint,
    stream::{DecodeOrder, End, Generation},
};

/// A request as this loop holds it.
pub(super) struct Client {
    /// Tells it from an earlier one of the same name.
    pub line: DecodeLineNo,
    /// What it has from another gateway, until it is told so.
    pub given: Option<Recalled>,
    /// Until the request is routed.
    pub answer: Option<oneshot::Sender<Result<Accepted, SubmitError>>>,
    pub replies: mpsc::Sender<Reply>,
    /// Taken when the request is accepted.
    pub reader: Option<mpsc::Receiver<Reply>>,
    /// Cancelled by the client.
    pub enough: CancellationToken,
    pub decode: Option<DecodeLine>,
    pub prefill: Option<PrefillLine>,
    /// Ends the task that waits for the client to go.
    pub _over: DropGuard,
}

/// Tells a request's lines apart: what was said on one that has been hung up on no longer counts.
pub(super) type DecodeLineNo = u64;

/// The line to the leader that decodes.
pub(super) struct DecodeLine {
    pub line: DecodeLineNo,
    pub orders: mpsc::Sender<DecodeOrder>,
    pub end: CancellationToken,
}

/// The line to the leader that prefills.
pub(super) struct PrefillLine {
    pub line: DecodeLineNo,
    pub end: CancellationToken,
}

/// Something that happened, and on which line.
pub(super) struct LineEvent {
    pub line: DecodeLineNo,
    pub event: Event,
}

/// A request that may have been begun at another gateway, once that is known.
pub(super) struct Looked {
    pub line: DecodeLineNo,
    pub asked: SubmittedRequest,
    pub recalled: Option<Recalled>,
}

/// What a client asks for.
pub(super) struct SubmittedRequest {
    pub request: RequestId,
    pub model: ModelId,
    pub prompt: Vec<Token>,
    pub generation: Generation,
    pub overrule: Option<Overrule>,
    pub codec: Option<PromptCodec>,
}

impl SubmittedRequest {
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.model, &self.prompt, &self.generation)
    }
}

impl Drop for DecodeLine {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// The loop's own state beside the machine's.
pub(super) struct ClientTable {
    pub clients: BTreeMap<RequestId, Client>,
    /// Those of them that do not take what they are told: the machine is to hear of it before anything else.
    pub to_cancel: Vec<RequestId>,
    pub heard: mpsc::Sender<LineEvent>,
    pub looked: mpsc::Sender<Looked>,
    pub examiner: Examiner,
    pub lines: DecodeLineNo,
}

impl ClientTable {
    pub fn new_line(&mut self) -> DecodeLineNo {
        self.lines += 1;
        self.lines
    }

    /// Requests whose clients went before anything was accepted for them.
    pub fn left_early(&self) -> Vec<RequestId> {
        let has_left = |client: &Client| client.answer.as_ref().is_some_and(|answer| answer.is_closed());
        self.clients.iter().filter(|(_, client)| has_left(client)).map(|(request, _)| *request).collect()
    }

    /// What was said, unless that line has been hung up on meanwhile.
    pub fn still_counts(&self, heard: LineEvent) -> Option<Event> {
        let open = match &heard.event {
            Event::Cancel { request } => self.clients.get(request).map(|c| c.line),
            Event::Decode { request, .. } | Event::DecodeLost { request, .. } => {
                self.clients.get(request).and_then(|c| c.decode.as_ref()).map(|l| l.line)
            }
            Event::Prefill { request, .. } | Event::PrefillLost { request, .. } => {
                self.clients.get(request).and_then(|c| c.prefill.as_ref()).map(|l| l.line)
            }
            _ => None,
        };
        (open == Some(heard.line)).then_some(heard.event)
    }
}

/// Passes on what the machine says to the client. One that does not read fills its queue, and its request is cancelled.
pub(super) fn tell(action: Action, clients: &mut ClientTable) {
    match action {
        Action::Accepted { request, prefill, decode } => {
            let Some(client) = clients.clients.get_mut(&request) else { return };
            if let (Some(answer), Some(replies)) = (client.answer.take(), client.reader.take()) {
                // A client that has gone drops the replies, which cancels the request.
                let _ = answer.send(Ok(Accepted { prefill, decode, replies, enough: client.enough.clone() }));
                let Some(given) = client.given.take() else { return };
                // There is room for the whole answer.
                let _ = client.replies.try_send(Reply::Settled(given.codec));
                for (index, sampled) in (0..).zip(given.answer) {
                    let _ = client.replies.try_send(Reply::Token { index, sampled });
                }
            }
        }
        Action::Unserved { request, reason, retry_after } => {
            if let Some(answer) = clients.clients.remove(&request).and_then(|c| c.answer) {
                let _ = answer.send(Err(SubmitError::Unserved { reason, retry_after }));
            }
        }
        Action::Trace(trace) => drop(reply(clients, trace.request, Reply::Trace(trace))),
        Action::HungUp(trace) => {
            if let Some(client) = clients.clients.get(&trace.request) {
                // Who has enough still listens; who has gone does not.
                let _ = client.replies.try_send(Reply::Trace(trace));
            }
        }
        _ => {}
    }
}

/// What its client is to go on with. The client knows what its tokens rest on: a response log that says otherwise is of another
/// attempt, and without any the answer is computed again in that way, and is the same.
pub(super) fn believed(recalled: Option<Recalled>, seen: SeenAnswer) -> Option<Recalled> {
    let Some(codec) = seen.codec.filter(|_| seen.tokens > 0) else { return recalled };
    let fits = |said: &Recalled| said.codec == codec;
    Some(recalled.filter(fits).unwrap_or(Recalled { codec, ..Recalled::default() }))
}

/// Whether the client is there to get it. Of one that is not, whatever comes first, what is said to it or that it has gone, the
/// machine hears, which has its request still.
pub(super) fn reply(clients: &mut ClientTable, request: RequestId, reply: Reply) -> bool {
    if clients.to_cancel.contains(&request) {
        return false;
    }
    let Some(client) = clients.clients.get(&request) else { return false };
    let sent = client.replies.try_send(reply).is_ok();
    if !sent {
        tracing::debug!(%request, "the client does not read: request dropped");
        clients.to_cancel.push(request);
    }
    sent
}

pub(super) fn finish(clients: &mut ClientTable, request: RequestId, end: End) {
    if let Some(client) = clients.clients.remove(&request) {
        // Whoever does not listen any more has cancelled already.
        let _ = client.replies.try_send(Reply::End(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::offences::OffenceReporter;
    use tokio_util::task::TaskTracker;
    use tsnode_coordinator::spot_check::SpotChecks;
    use tsnode_protocol::{KvCodec, Sampled};

    #[test]
    fn a_client_knows_better_than_a_response_log_what_its_tokens_rest_on() {
        let sampled = Sampled { token: Token(7), logprob: None, top: vec![] };
        let response_log = Recalled { codec: KvCodec::Int4.into(), holder: None, answer: vec![sampled] };
        let seen = |tokens, codec: Option<KvCodec>| SeenAnswer { tokens, codec: codec.map(Into::into) };
        let nothing = |codec: KvCodec| Some(Recalled { codec: codec.into(), ..Recalled::default() });
        let known = Some(response_log);
        assert_eq!(believed(known.clone(), seen(3, Some(KvCodec::Int4))), known);
        assert_eq!(believed(known.clone(), seen(3, Some(KvCodec::Raw))), nothing(KvCodec::Raw));
        assert_eq!(believed(None, seen(3, Some(KvCodec::Int4))), nothing(KvCodec::Int4));
        // Of a prompt that was parted elsewhere other tokens follow.
        let parted = PromptCodec::of_first(KvCodec::Int4, 64, 100);
        let other = Some(Recalled { codec: parted, ..Recalled::default() });
        assert_eq!(believed(known.clone(), SeenAnswer { tokens: 3, codec: Some(parted) }), other);
        // Who has no tokens, or an id of an earlier version, leaves it to the response log.
        assert_eq!(believed(known.clone(), seen(0, Some(KvCodec::Raw))), known);
        assert_eq!(believed(known.clone(), seen(3, None)), known);
        assert_eq!(believed(None, seen(0, None)), None);
    }

    /// A token may be on its way to a client that has just gone, and one that does not read has no room for it.
    #[test]
    fn who_does_not_take_a_token_is_cancelled_once_and_told_nothing_more() {
        for has_gone in [false, true] {
            let (request, line) = (RequestId([1; 16]), 7);
            let (replies, mut reader) = mpsc::channel(1);
            let client = Client {
                line,
                given: None,
                answer: None,
                replies,
                reader: None,
                decode: None,
                prefill: None,
                enough: CancellationToken::new(),
                _over: CancellationToken::new().drop_guard(),
            };
            let (heard, _ear) = mpsc::channel(1);
            let (looked, _found) = mpsc::channel(1);
            let (examiner, _examined) =
                Examiner::new(SpotChecks::Never, OffenceReporter::channel().0, TaskTracker::new());
            let mut table = ClientTable {
                clients: [(request, client)].into(),
                to_cancel: vec![],
                heard,
                looked,
                examiner,
                lines: line,
            };
            let token = |index| {
                let sampled = Sampled { token: Token(7), logprob: None, top: vec![] };
                Reply::Token { index, sampled }
            };
            if has_gone {
                reader.close();
            } else {
                assert!(reply(&mut table, request, token(0)));
            }
            assert!(!reply(&mut table, request, token(1)));
            assert_eq!(reader.try_recv().is_ok(), !has_gone);
            assert!(!reply(&mut table, request, token(2)), "tokens without a gap, or none");
            assert_eq!(table.to_cancel, [request]);
            // That it has gone may be heard as well: the machine is told whichever comes first.
            let gone = LineEvent { line, event: Event::Cancel { request } };
            assert_eq!(table.still_counts(gone), Some(Event::Cancel { request }));
        }
    }
}
