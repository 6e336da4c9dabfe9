//! Other APIs than OpenAI's completions: their requests become completions, whose answers are told in their words.
//!
//! Each API is a pure pair: fields in, and a [`Teller`] of the answer out. What completions learn, the other APIs can say.

mod completion_part;
mod form;
mod stream_lines;

pub(super) use super::respond::AnswerHead;
pub(super) use completion_part::{CallPart, CompletionPart, Usage, call_id};
pub(super) use form::errors;

use super::{ApiError, ApiState, bodies::ReadBody, chat, complete, fields::Fields, naming, sse};
use axum::{
    Json,
    body::{Body, to_bytes},
    http::{HeaderMap, HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use stream_lines::{StreamLine, StreamLines};

/// The longest whole answer that is told in other words (bytes): a million tokens, and more.
const ANSWER_BYTES: usize = 64 << 20;
/// What says how an answer's body is to be read, which is another in other words.
const OF_THE_BODY: [header::HeaderName; 4] =
    [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CACHE_CONTROL, header::TRANSFER_ENCODING];

/// Which completion a request becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TranslatedKind {
    Chat,
    /// A prompt that no template renders.
    Text,
}

/// A request in the words of completions, and who tells its answer.
#[derive(Debug)]
pub(super) struct Translated<T> {
    pub kind: TranslatedKind,
    /// Fields of the completion.
    pub body: Value,
    pub stream: bool,
    pub teller: T,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StreamEvent {
    /// What kind of event, where the API names them.
    pub event: Option<&'static str>,
    pub data: Value,
}

/// How a stream's events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events, with an empty line or an event of this name while nothing comes.
    Events { ping: Option<&'static str> },
    /// A JSON object on each line.
    Lines,
}

/// Tells a completion in another API's words.
pub(super) trait Teller: Send + 'static {
    const FRAMING: Framing;

    /// What begins a stream.
    fn begin(&mut self, head: &AnswerHead) -> Vec<StreamEvent>;
    /// Some of the answer.
    fn add(&mut self, part: CompletionPart) -> Vec<StreamEvent>;
    /// What closes a stream, or nothing where that has failed.
    fn end(&mut self, usage: Usage) -> Vec<StreamEvent>;
    /// The answer broke off.
    fn fail(&mut self, error: &Value) -> Vec<StreamEvent>;
    /// The whole of an answer that is not streamed.
    fn whole(&mut self, head: &AnswerHead, answer: CompletionPart, usage: Usage) -> Value;
}

/// A value's field, which it no longer has; null where the value is no object.
pub(super) fn taken(value: &mut Value, name: &str) -> Value {
    value.get_mut(name).map(Value::take).unwrap_or_default()
}

/// Reads a request as `translate` does, has a completion answer it, and tells that.
pub(super) async fn answer<T: Teller>(
    state: &ApiState,
    headers: HeaderMap,
    body: Body,
    translate: impl FnOnce(Fields) -> Result<Translated<T>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let (asked, told) = read(state, &headers, body, translate).await?;
    conduct(state, &headers, asked, told).await
}

/// What is left of a translation when its fields are a completion's.
pub(super) struct Translation<T> {
    kind: TranslatedKind,
    stream: bool,
    pub teller: T,
}

/// Reads a request as `translate` does.
pub(super) async fn read<T: Send + 'static>(
    state: &ApiState,
    headers: &HeaderMap,
    body: Body,
    translate: impl FnOnce(Fields) -> Result<Translated<T>, ApiError> + Send + 'static,
) -> Result<(ReadBody, Translation<T>), ApiError> {
    let tokens = super::request::most_tokens(state);
    let parse = move |bytes: &[u8]| {
        let Translated { kind, mut body, stream, teller } = translate(Fields::foreign(bytes)?)?;
        if stream {
            body["stream"] = true.into();
            body["stream_options"] = serde_json::json!({ "include_usage": true });
        }
        let said = body.to_string();
        // Its values have been written: what takes their memory is gone before they are read again.
        drop(body);
        Ok((Fields::parse(said.as_bytes(), tokens)?, Translation { kind, stream, teller }))
    };
    // Events in other words have no ids to come back with.
    let mut named = headers.clone();
    named.remove(naming::LAST_EVENT);
    state.bodies.read_by(&named, body, parse).await
}

/// Has a completion answer what was read, and tells that.
pub(super) async fn conduct<T: Teller>(
    state: &ApiState,
    headers: &HeaderMap,
    asked: ReadBody,
    told: Translation<T>,
) -> Result<Response, ApiError> {
    let Translation { kind, stream, mut teller } = told;
    let answered = match kind {
        TranslatedKind::Chat => chat::answer(state, headers, asked).await?,
        TranslatedKind::Text => complete::answer(state, headers, asked, complete::Unsaid::Context).await?,
    };
    if !answered.status().is_success() {
        return Ok(answered);
    }
    let (parts, body) = answered.into_parts();
    let head = parts.extensions.get::<AnswerHead>().cloned().unwrap_or_default();
    let mut response = if stream {
        streamed(body, &head, teller)
    } else {
        let bytes = to_bytes(body, ANSWER_BYTES).await.map_err(|error| ApiError::Failed(error.to_string()))?;
        let whole: Value = serde_json::from_slice(&bytes).map_err(|error| ApiError::Failed(error.to_string()))?;
        Json(teller.whole(&head, CompletionPart::of(&whole), Usage::of(&whole))).into_response()
    };
    let kept = parts.headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
    response.headers_mut().extend(kept.filter(|(name, _)| !OF_THE_BODY.contains(name)));
    Ok(response)
}

fn streamed<T: Teller>(body: Body, head: &AnswerHead, mut teller: T) -> Response {
    let said = teller.begin(head).into();
    let said = Telling { lines: StreamLines::of(body), teller, usage: Usage::default(), is_over: false, said };
    let said = stream::unfold(said, |mut telling| async { Some((telling.next().await?, telling)) });
    match T::FRAMING {
        Framing::Events { ping } => events(said, ping),
        Framing::Lines => {
            let lines = said.map(|said| Ok::<_, Infallible>(format!("{}\n", said.data)));
            let kind = HeaderValue::from_static("application/x-ndjson");
            ([(header::CONTENT_TYPE, kind)], Body::from_stream(lines)).into_response()
        }
    }
}

fn events(said: impl Stream<Item = StreamEvent> + Send + 'static, ping: Option<&'static str>) -> Response {
    let events = said.map(|StreamEvent { event, data }| {
        let one = Event::default().data(data.to_string());
        Ok::<_, Infallible>(event.map_or(one.clone(), |name| one.event(name)))
    });
    let keep = KeepAlive::new().interval(sse::KEEP_AWAKE);
    let keep = match ping {
        Some(name) => keep.event(Event::default().event(name).data(format!(r#"{{"type":"{name}"}}"#))),
        // An empty line: many read streams line by line, and know no comments.
        None => keep.event(Event::default()),
    };
    Sse::new(events).keep_alive(keep).into_response()
}

/// A completion's stream as it is told in other words.
struct Telling<T> {
    lines: StreamLines,
    teller: T,
    usage: Usage,
    is_over: bool,
    /// What has been made of the last line, or of the beginning, and not been sent.
    said: VecDeque<StreamEvent>,
}

impl<T: Teller> Telling<T> {
    async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Some(said);
            }
            if self.is_over {
                return None;
            }
            let said = match self.lines.next().await {
                Some(StreamLine::Data(data)) if data["error"].is_null() => {
                    self.usage = Usage::in_stream(&data).unwrap_or(self.usage);
                    self.teller.add(CompletionPart::of(&data))
                }
                Some(StreamLine::Data(data)) => self.fail(&data["error"]),
                Some(StreamLine::Done) => {
                    self.is_over = true;
                    self.teller.end(self.usage)
                }
                None => self.fail(&ApiError::Failed("the answer broke off".into()).body()["error"]),
            };
            self.said.extend(said);
        }
    }

    fn fail(&mut self, error: &Value) -> Vec<StreamEvent> {
        self.is_over = true;
        self.teller.fail(error)
    }
}
