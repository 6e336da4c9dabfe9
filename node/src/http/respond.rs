//! Answers, whole or streamed, in the form of either kind of completion.

use super::{
    ApiError, ApiState, fingerprint, logprobs,
    request::{Answer, Taken, Wanted},
    sse,
};
use crate::{
    gateway::{Reply, Trace},
    text::{Detokeniser, Passed, StopStrings, TextModel},
};
use axum::{
    Json,
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tsnode_protocol::{KvCodec, ModelId, PeerId, RequestId, Sampled, Token, stream::End};

/// A request with this header is told what ran where.
pub(super) const TRACE: &str = "x-tsnode-trace";
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PREFILL: HeaderName = HeaderName::from_static("x-tsnode-prefill");
const DECODE: HeaderName = HeaderName::from_static("x-tsnode-decode");

/// Which kind of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Text {
        /// The prompt comes first in the answer.
        echo: bool,
    },
}

/// Answers as asked.
pub(super) async fn answer(state: &ApiState, taken: Taken, wanted: Wanted, form: Form) -> Response {
    let headers = headers(&taken);
    let head = Head::of(&taken, &wanted);
    let mut response = if wanted.delivery.stream {
        sse::stream(state.clone(), taken, wanted, form)
    } else {
        match whole(state, taken, &wanted, form).await {
            Ok(body) => Json(body).into_response(),
            Err(error) => error.into_response(),
        }
    };
    response.headers_mut().extend(headers);
    response.extensions_mut().insert(head);
    response
}

/// What is known of an answer before its first token, for APIs that say so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Letters and digits that no other request has.
    pub id: String,
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    pub prompt_tokens: usize,
}

impl Head {
    fn of(taken: &Taken, wanted: &Wanted) -> Self {
        let (RequestId(id), model) = (taken.request, taken.model.card().name.clone());
        let prompt_tokens = taken.prompt_tokens(wanted.answers);
        Self { id: data_encoding::HEXLOWER.encode(&id), model, created: now(), prompt_tokens }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn headers(taken: &Taken) -> HeaderMap {
    let value = |text: String| HeaderValue::from_str(&text).ok();
    let peer = |p: Option<PeerId>| value(p.map(|p| p.to_string()).unwrap_or_default());
    let named = [
        (REQUEST_ID, value(taken.request.to_string())),
        (PREFILL, peer(taken.prefill())),
        (DECODE, peer(taken.decode())),
    ];
    named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

async fn whole(state: &ApiState, taken: Taken, wanted: &Wanted, form: Form) -> Result<Value, ApiError> {
    let frame = Frame::new(&taken, form, false);
    let prompt_tokens = taken.prompt_tokens(wanted.answers);
    let (mut choices, mut completion_tokens, mut cached, mut trace) = (Vec::new(), 0, 0, None);
    let (mut codecs, mut stats) = (vec![None; taken.answers.len()], taken.stats);
    for (index, mut answer) in taken.answers.into_iter().enumerate() {
        let mut writer = Writer::new(&taken.model, wanted, form, &answer);
        let mut piece = Piece::default();
        while let Some(reply) = answer.next().await {
            match reply {
                Reply::Settled(codec) => codecs[index] = Some(codec),
                Reply::Token { sampled, .. } => {
                    // Those after the first are read when it has ended: of when they came nothing is known.
                    if index == 0 {
                        stats.token(index)
                    } else {
                        stats.token_at_hand(index)
                    }
                    piece.extend(writer.token(sampled));
                }
                Reply::Trace(one) => {
                    stats.trace(index, &one);
                    state.traces.note(&one);
                    cached += one.cached_tokens;
                    trace = trace.or(Some(one));
                }
                Reply::End(end) => piece.extend(writer.end(end).inspect_err(|_| stats.failed())?),
                Reply::Cancelled => return Err(ApiError::Cancelled),
            }
            if piece.finish.is_some() {
                break;
            }
        }
        let Some(finish) = piece.finish else {
            stats.failed();
            return Err(ApiError::Failed("the answer broke off".into()));
        };
        stats.choice_finished(finish);
        completion_tokens += writer.generated;
        choices.push(frame.whole(index, piece, wanted, &answer.prompt));
    }
    stats.finished();
    let mut body = frame.envelope(choices, codecs);
    body.insert("usage".into(), usage(prompt_tokens, cached, completion_tokens));
    if let Some(trace) = trace.filter(|_| wanted.trace) {
        body.insert("tsnode".into(), trace_json(&trace));
    }
    Ok(Value::Object(body))
}

pub(super) fn usage(prompt: usize, cached: u32, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

pub(super) fn trace_json(trace: &Trace) -> Value {
    serde_json::to_value(trace).unwrap_or(Value::Null)
}

/// Some of an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub text: String,
    pub tokens: Vec<Token>,
    pub logprobs: Vec<Value>,
    pub finish: Option<&'static str>,
    /// The stop string that ended it.
    pub stop: Option<String>,
}

impl Piece {
    fn extend(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.tokens.extend(more.tokens);
        self.logprobs.extend(more.logprobs);
        self.finish = self.finish.or(more.finish);
        self.stop = self.stop.take().or(more.stop);
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty() && self.finish.is_none()
    }
}

/// Turns one answer's tokens into text.
pub(super) struct Writer<'m> {
    detokeniser: Detokeniser<'m>,
    stops: StopStrings,
    stop_tokens: Vec<Token>,
    form: Form,
    logprobs: bool,
    /// Tokens so far.
    pub generated: usize,
    /// Characters so far, for the offsets of the older form.
    offset: usize,
    echo: Option<String>,
}

impl<'m> Writer<'m> {
    pub fn new(model: &'m TextModel, wanted: &Wanted, form: Form, answer: &Answer) -> Self {
        let mut detokeniser = Detokeniser::new(model.tokenizer(), true);
        // The answer goes on where the prompt ends, with the space between them, say.
        let echo = matches!(form, Form::Text { echo: true });
        let echo = echo.then(|| answer.prompt.iter().map(|token| detokeniser.push(*token)).collect::<String>());
        Self {
            detokeniser,
            stops: StopStrings::new(wanted.stops.clone()),
            stop_tokens: if wanted.ignore_eos { Vec::new() } else { model.stop_tokens().to_vec() },
            form,
            logprobs: wanted.sampling.logprobs.is_some(),
            generated: 0,
            offset: 0,
            echo,
        }
    }

    /// What a token adds. A stop token ends the answer and is no part of its text.
    pub fn token(&mut self, sampled: Sampled) -> Piece {
        self.generated += 1;
        let mut piece = Piece { text: self.echo.take().unwrap_or_default(), ..Piece::default() };
        if self.logprobs {
            piece.logprobs.push(self.logprob(&sampled));
        }
        piece.tokens.push(sampled.token);
        if self.stop_tokens.contains(&sampled.token) {
            return piece;
        }
        let text = self.detokeniser.push(sampled.token);
        self.offset += text.chars().count();
        match self.stops.push(&text) {
            Passed::On(text) => piece.text.push_str(&text),
            Passed::Stopped(text) => {
                piece.text.push_str(&text);
                piece.finish = Some("stop");
                piece.stop = self.stops.found().map(str::to_owned);
            }
        }
        piece
    }

    /// What is left at the end.
    pub fn end(&mut self, end: End) -> Result<Piece, ApiError> {
        let finish = match end {
            End::Stop => "stop",
            End::Length => "length",
            End::Failed(why) => return Err(ApiError::Failed(why)),
        };
        let rest = self.detokeniser.finish();
        let mut piece = Piece { text: self.echo.take().unwrap_or_default(), finish: Some(finish), ..Piece::default() };
        match self.stops.push(&rest) {
            Passed::On(text) => {
                piece.text.push_str(&text);
                piece.text.push_str(&self.stops.finish());
            }
            Passed::Stopped(text) => {
                piece.text.push_str(&text);
                piece.finish = Some("stop");
                piece.stop = self.stops.found().map(str::to_owned);
            }
        }
        Ok(piece)
    }

    fn logprob(&self, sampled: &Sampled) -> Value {
        match self.form {
            Form::Chat => logprobs::chat(&self.detokeniser, sampled),
            Form::Text { .. } => logprobs::older(&self.detokeniser, sampled, self.offset),
        }
    }
}

/// What all parts of one response have in common.
pub(super) struct Frame {
    id: String,
    created: u64,
    model: String,
    model_id: ModelId,
    form: Form,
    object: &'static str,
}

impl Frame {
    pub fn new(taken: &Taken, form: Form, stream: bool) -> Self {
        let (prefix, object) = match (form, stream) {
            (Form::Chat, false) => ("chatcmpl", "chat.completion"),
            (Form::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (Form::Text { .. }, _) => ("cmpl", "text_completion"),
        };
        let RequestId(id) = taken.request;
        Self {
            id: format!("{prefix}-{}", data_encoding::HEXLOWER.encode(&id)),
            created: now(),
            model: taken.model.card().name.clone(),
            model_id: taken.model.card().id,
            form,
            object,
        }
    }

    /// With what answers' KV went through.
    pub fn envelope(
        &self,
        choices: Vec<Value>,
        codecs: impl IntoIterator<Item = Option<KvCodec>>,
    ) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), json!(self.id));
        map.insert("object".into(), json!(self.object));
        map.insert("created".into(), json!(self.created));
        map.insert("model".into(), json!(self.model));
        map.insert("system_fingerprint".into(), fingerprint::of(self.model_id, codecs));
        map.insert("choices".into(), Value::Array(choices));
        map
    }

    fn whole(&self, index: usize, piece: Piece, wanted: &Wanted, prompt: &[Token]) -> Value {
        let mut choice = self.choice(index, &piece, wanted, Some(prompt));
        if self.form == Form::Chat {
            choice["message"] = json!({ "role": "assistant", "content": piece.text, "refusal": null });
        } else {
            choice["text"] = json!(piece.text);
        }
        choice
    }

    /// A part of a streamed answer; the first one says who speaks.
    pub fn part(&self, index: usize, piece: &Piece, wanted: &Wanted, first: Option<&[Token]>) -> Value {
        let mut choice = self.choice(index, piece, wanted, first);
        if self.form == Form::Chat {
            let mut delta = Map::new();
            if first.is_some() {
                delta.insert("role".into(), json!("assistant"));
            }
            if !piece.text.is_empty() || first.is_some() {
                delta.insert("content".into(), json!(piece.text));
            }
            choice["delta"] = Value::Object(delta);
        } else {
            choice["text"] = json!(piece.text);
        }
        choice
    }

    fn choice(&self, index: usize, piece: &Piece, wanted: &Wanted, prompt: Option<&[Token]>) -> Value {
        let mut choice = json!({ "index": index, "finish_reason": piece.finish, "logprobs": null });
        // As vLLM says it.
        choice["stop_reason"] = json!(piece.stop);
        if wanted.sampling.logprobs.is_some() && !piece.logprobs.is_empty() {
            choice["logprobs"] = match self.form {
                Form::Chat => json!({ "content": piece.logprobs, "refusal": null }),
                Form::Text { .. } => logprobs::columns(&piece.logprobs),
            };
        }
        if wanted.delivery.token_ids {
            choice["token_ids"] = json!(piece.tokens);
            if let Some(prompt) = prompt {
                choice["prompt_token_ids"] = json!(prompt);
            }
        }
        choice
    }
}
