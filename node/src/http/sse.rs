//! Streamed answers: server-sent events, ended by `[DONE]`, kept awake by empty lines.
//!
//! Many clients read streams line by line, and take each that is not empty for `data: …`: other fields come only to who
//! asks for them ([`super::naming`]), and comments to nobody.

use super::{
    ApiError, ApiState,
    request::{Answer, CompletionRequest, TakenRequest},
    respond::{self, AnswerWriter, CompletionKind, Frame, Piece},
};
use crate::gateway::{Reply, SeenAnswer};
use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{PromptCodec, Token};

/// Events a slow client has not read; above it the answer waits.
const EVENTS: usize = 64;
/// Silence after which an empty line is sent, so that nobody on the way takes the connection for dead. Proxies wait a
/// minute.
pub(super) const KEEP_AWAKE: Duration = Duration::from_secs(15);

type Events = mpsc::Sender<Result<Event, Infallible>>;

/// A client that hung up: its answers are dropped, which frees their pages.
struct ClientGone;

/// How far an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerState {
    Open,
    /// A stop string has ended it. What it took is to come.
    Stopped,
    Over,
}

pub(super) fn stream(
    state: ApiState,
    taken: TakenRequest,
    wanted: CompletionRequest,
    form: CompletionKind,
) -> Response {
    let (events, receiver) = mpsc::channel(EVENTS);
    crate::tasks::spawn("streamed answer", async move {
        // A client that has gone is counted by what it leaves behind.
        let _ = write(&state, taken, &wanted, form, &events).await;
    });
    kept_awake(receiver, KEEP_AWAKE)
}

pub(super) fn kept_awake(events: mpsc::Receiver<Result<Event, Infallible>>, silence: Duration) -> Response {
    // An event without a field is an empty line, which ends nothing.
    let keep = KeepAlive::new().interval(silence).event(Event::default());
    Sse::new(ReceiverStream::new(events)).keep_alive(keep).into_response()
}

async fn write(
    state: &ApiState,
    taken: TakenRequest,
    wanted: &CompletionRequest,
    form: CompletionKind,
    events: &Events,
) -> Result<(), ClientGone> {
    let frame = Frame::new(&taken, form, true);
    let prompt_tokens = taken.prompt_tokens(wanted.computed());
    let (model, answers, mut stats) = (taken.model, taken.answers, taken.stats);
    let mut writers: Vec<AnswerWriter<'_>> =
        answers.iter().map(|a| AnswerWriter::new(&model, wanted, form, a)).collect();
    let MergedAnswers { prompts, enough, mut replies } = merge(answers);
    let seen: Vec<SeenAnswer> = (0..prompts.len()).map(|index| wanted.naming.seen(index)).collect();
    let mut codecs: Vec<Option<PromptCodec>> = seen.iter().map(|seen| seen.codec).collect();
    let mut begun: Vec<bool> = seen.iter().map(|seen| seen.tokens > 0).collect();
    writers.iter_mut().zip(&begun).filter(|(_, begun)| **begun).for_each(|(writer, _)| writer.goes_on());
    let mut states = vec![AnswerState::Open; prompts.len()];
    let (mut cached, mut trace) = (0, None);
    while states.iter().any(|state| *state != AnswerState::Over) {
        // While nothing is generated a client may hang up, too.
        let next = tokio::select! {
            next = replies.recv() => next,
            () = events.closed() => return Err(ClientGone),
        };
        let Some((index, reply)) = next else { break };
        let is_open = states[index] == AnswerState::Open;
        let mut is_known = false;
        let piece = match reply {
            Reply::Trace(one) => {
                stats.trace(index, &one);
                state.history.note(&one);
                cached += wanted.cached_tokens(index, &one);
                trace = trace.or(Some(one));
                if !is_open {
                    states[index] = AnswerState::Over;
                }
                continue;
            }
            Reply::End(_) | Reply::Cancelled if !is_open => {
                states[index] = AnswerState::Over;
                continue;
            }
            // It came before its group knew.
            _ if !is_open => continue,
            Reply::Settled(codec) => {
                codecs[index] = Some(codec);
                continue;
            }
            Reply::PromptLogprobs(more) => {
                let piece = writers[index].prompt_logprobs(more);
                if piece.is_empty() {
                    continue;
                }
                piece
            }
            Reply::Token { sampled, .. } => {
                let piece = writers[index].token(sampled);
                if writers[index].waits() {
                    continue;
                }
                // The client has it from before it came back.
                is_known = writers[index].generated.all <= seen[index].tokens;
                if !is_known {
                    stats.token(index);
                }
                piece
            }
            Reply::Cancelled => return fail(ApiError::Cancelled, events).await,
            Reply::End(end) => match writers[index].end(end) {
                Ok(piece) => {
                    states[index] = AnswerState::Over;
                    piece
                }
                Err(error) => {
                    stats.failed();
                    return fail(error, events).await;
                }
            },
        };
        if let Some(finish) = piece.finish {
            stats.choice_finished(finish);
            if states[index] == AnswerState::Open {
                states[index] = AnswerState::Stopped;
                enough[index].cancel();
            }
        }
        if is_known || piece.is_empty() && begun[index] {
            continue;
        }
        let first = (!std::mem::replace(&mut begun[index], true)).then_some(prompts[index].as_slice());
        let mut body = part(&frame, (index, codecs[index]), &piece, wanted, first);
        if wanted.delivery.continuous_usage {
            let generated = writers.iter().map(|w| w.generated).sum();
            body["usage"] = respond::usage(prompt_tokens, cached, generated);
        }
        let seen = writers.iter().zip(&codecs).map(|(w, codec)| SeenAnswer { tokens: w.generated.all, codec: *codec });
        let event = Event::default();
        let event = if wanted.naming.reads_ids { event.id(wanted.naming.event(seen)) } else { event };
        send(event, body, events).await?;
    }
    if states.contains(&AnswerState::Open) {
        stats.failed();
        return fail(ApiError::Failed("the answer broke off".into()), events).await;
    }
    stats.finished();
    let generated = writers.iter().map(|w| w.generated).sum();
    let usage = wanted.delivery.include_usage.then(|| respond::usage(prompt_tokens, cached, generated));
    let trace = trace.filter(|_| wanted.trace).map(|t| respond::trace_json(&t));
    last(&frame, codecs, usage, trace, events).await
}

/// All answers' replies in one queue, each with the answer's number.
struct MergedAnswers {
    prompts: Vec<Vec<Token>>,
    /// Cancelled where an answer's client wants no more of it.
    enough: Vec<CancellationToken>,
    replies: mpsc::Receiver<(usize, Reply)>,
}

fn merge(answers: Vec<Answer>) -> MergedAnswers {
    let (sender, replies) = mpsc::channel(EVENTS);
    let (mut prompts, mut enough) = (Vec::new(), Vec::new());
    for (index, mut answer) in answers.into_iter().enumerate() {
        prompts.push(std::mem::take(&mut answer.prompt));
        enough.push(answer.accepted.enough.clone());
        let sender = sender.clone();
        crate::tasks::spawn("answer", async move {
            loop {
                let reply = tokio::select! {
                    reply = answer.next() => reply,
                    () = sender.closed() => return,
                };
                let Some(reply) = reply else { return };
                if sender.send((index, reply)).await.is_err() {
                    return;
                }
            }
        });
    }
    MergedAnswers { prompts, enough, replies }
}

/// Some of the answer with that number, whose KV went through that.
fn part(
    frame: &Frame,
    (index, codec): (usize, Option<PromptCodec>),
    piece: &Piece,
    wanted: &CompletionRequest,
    first: Option<&[Token]>,
) -> Value {
    let mut body = frame.envelope(vec![frame.part(index, piece, wanted, first)], [codec]);
    if wanted.delivery.include_usage {
        body.insert("usage".into(), Value::Null);
    }
    Value::Object(body)
}

/// What closes a stream: usage and trace, where asked for, and `[DONE]`.
async fn last(
    frame: &Frame,
    codecs: Vec<Option<PromptCodec>>,
    usage: Option<Value>,
    trace: Option<Value>,
    events: &Events,
) -> Result<(), ClientGone> {
    if usage.is_some() || trace.is_some() {
        let mut body = frame.envelope(Vec::new(), codecs);
        body.insert("usage".into(), json!(usage));
        if let Some(trace) = trace {
            body.insert("tsnode".into(), trace);
        }
        send(Event::default(), Value::Object(body), events).await?;
    }
    done(events).await
}

async fn fail(error: ApiError, events: &Events) -> Result<(), ClientGone> {
    send(Event::default(), error.body(), events).await?;
    done(events).await
}

async fn done(events: &Events) -> Result<(), ClientGone> {
    events.send(Ok(Event::default().data("[DONE]"))).await.map_err(|_| ClientGone)
}

async fn send(event: Event, body: Value, events: &Events) -> Result<(), ClientGone> {
    events.send(Ok(event.data(body.to_string()))).await.map_err(|_| ClientGone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;

    /// A comment would be taken for data by those who cut six letters off every line that is not empty.
    #[tokio::test]
    async fn a_long_silence_is_broken_by_empty_lines() {
        let (events, receiver) = mpsc::channel(1);
        events.send(Ok(Event::default().data("x"))).await.unwrap();
        let mut body = kept_awake(receiver, Duration::from_millis(5)).into_body().into_data_stream();
        let mut text = String::new();
        while text.len() < 12 {
            text += std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap();
        }
        assert_eq!(text, "data: x\n\n\n\n\n");
    }
}
