//! Answers, whole or streamed, in the form of either kind of completion.

use super::{
    ApiError,
    calls::{BesideText, CallIds},
    ends::AnswerEnds,
    fingerprint,
    logprobs::{self, TokenNames},
    prompt_logprobs::PromptLogprobs,
    request::{Answer, CompletionRequest, TakenRequest},
    tools::Tools,
};
use crate::{
    gateway::Trace,
    text::{AnswerParser, AnswerPart, Detokeniser, Passed, StopStrings, TextModel, ToolFormat},
};
use axum::http::HeaderName;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tsnode_protocol::{ModelId, PromptCodec, PromptLogprob, RequestId, Sampled, Token, stream::End};

/// A request with this header is told what ran where.
pub(super) const TRACE: &str = "x-tsnode-trace";
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Which kind of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionKind {
    Chat,
    Text {
        /// The prompt comes first in the answer.
        echo: bool,
        /// Log-probabilities are asked for to choose by, and not shown.
        hides_logprobs: bool,
    },
}

/// What is known of an answer before its first token, for APIs that say so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerHead {
    /// Letters and digits that no other request has.
    pub id: String,
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    pub prompt_tokens: usize,
}

impl AnswerHead {
    pub fn of(taken: &TakenRequest, wanted: &CompletionRequest) -> Self {
        let (RequestId(id), model) = (taken.request, taken.model.card().name.clone());
        let prompt_tokens = taken.prompt_tokens(wanted.computed());
        Self { id: data_encoding::HEXLOWER.encode(&id), model, created: now(), prompt_tokens }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Tokens of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerTokens {
    pub all: usize,
    /// Of these, within thoughts; the marks around them are not.
    pub thoughts: usize,
}

impl std::iter::Sum for AnswerTokens {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self { all: sum.all + one.all, thoughts: sum.thoughts + one.thoughts })
    }
}

pub(super) fn usage(prompt: usize, cached: u32, AnswerTokens { all, thoughts }: AnswerTokens) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": all,
        "total_tokens": prompt + all,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": thoughts },
    })
}

pub(super) fn trace_json(trace: &Trace) -> Value {
    serde_json::to_value(trace).unwrap_or(Value::Null)
}

/// Some of an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub text: String,
    /// Thoughts and calls.
    pub beside: BesideText,
    pub tokens: Vec<Token>,
    pub logprobs: Vec<Value>,
    pub finish: Option<&'static str>,
    /// The stop string that ended it.
    pub stop: Option<String>,
}

impl Piece {
    pub fn extend(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.beside.extend(more.beside);
        self.tokens.extend(more.tokens);
        self.logprobs.extend(more.logprobs);
        self.finish = self.finish.or(more.finish);
        self.stop = self.stop.take().or(more.stop);
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.beside.is_empty() && self.tokens.is_empty() && self.finish.is_none()
    }
}

/// Turns one answer's tokens into text.
pub(super) struct AnswerWriter<'m> {
    model: &'m TextModel,
    detokeniser: Detokeniser<'m>,
    stops: StopStrings,
    parser: AnswerParser,
    /// How an answer ends by itself: it may have called.
    ended: &'static str,
    wanted: &'m CompletionRequest,
    stop_tokens: Vec<Token>,
    form: CompletionKind,
    logprobs: Option<u8>,
    /// Tokens so far.
    pub generated: AnswerTokens,
    /// The sum of their log-probabilities.
    likelihood: f64,
    /// Characters so far, for the offsets of the older form.
    offset: usize,
    /// The prompt, where it is to come first and has not yet.
    echo: Option<Vec<Token>>,
    /// What is said of its tokens, where the client wants that.
    of_prompt: Option<PromptLogprobs>,
    /// Alternatives in vLLM's field, where that is wanted.
    separate: Option<u8>,
    /// Tokens that came before all of that: the prompt is first.
    held: Vec<Sampled>,
    include_stop: bool,
    min_tokens: usize,
}

impl<'m> AnswerWriter<'m> {
    pub fn new(model: &'m TextModel, wanted: &'m CompletionRequest, form: CompletionKind, answer: &Answer) -> Self {
        let echo = matches!(form, CompletionKind::Text { echo: true, .. });
        let hides_logprobs = matches!(form, CompletionKind::Text { hides_logprobs: true, .. });
        let AnswerEnds { skip_special_tokens, include_stop, min_tokens, .. } = wanted.ends;
        let tools = wanted.tools.as_ref();
        let (parser, kept) = match form {
            CompletionKind::Chat => {
                let parser = model.parser(&answer.prompt, tools.map(Tools::callable), wanted.form());
                (parser, model.kept(tools.is_some()))
            }
            CompletionKind::Text { .. } => Default::default(),
        };
        Self {
            model,
            detokeniser: Detokeniser::new(model.tokenizer(), skip_special_tokens).keeping(kept),
            stops: StopStrings::new(wanted.stops.clone()).including(include_stop),
            parser,
            ended: "stop",
            wanted,
            stop_tokens: wanted.ends.tokens(model),
            form,
            logprobs: wanted.sampling.logprobs.filter(|_| !hides_logprobs),
            generated: AnswerTokens::default(),
            likelihood: 0.0,
            offset: 0,
            echo: echo.then(|| answer.prompt.clone()),
            of_prompt: wanted.sampling.prompt_logprobs.map(|_| PromptLogprobs::default()),
            separate: wanted.prompt_logprobs,
            held: Vec::new(),
            include_stop,
            min_tokens: min_tokens as usize,
        }
    }

    /// What is said of the prompt's tokens, and what waited for it.
    pub fn prompt_logprobs(&mut self, more: Vec<PromptLogprob>) -> Piece {
        if let Some(of_prompt) = &mut self.of_prompt {
            of_prompt.extend(more);
        }
        let mut piece = Piece::default();
        if self.waits() {
            return piece;
        }
        for sampled in std::mem::take(&mut self.held) {
            piece.extend(self.token(sampled));
            if piece.finish.is_some() {
                // A stop string: what follows it in another gateway's answer is not this one's.
                break;
            }
        }
        piece
    }

    /// The client has the prompt already, if it was to get it: nothing waits for what is said of its tokens.
    pub fn goes_on(&mut self) {
        (self.of_prompt, self.separate) = (None, None);
    }

    /// Whether what is said of the prompt's tokens comes first, and is not all there.
    pub fn waits(&self) -> bool {
        let prompt = self.echo.as_ref().filter(|_| self.logprobs.is_some());
        prompt.zip(self.of_prompt.as_ref()).is_some_and(|(prompt, known)| !known.is_whole(prompt.len()))
    }

    /// How likely the answer is by token (nats): long ones are not held to be worse.
    pub fn likelihood(&self) -> f64 {
        self.likelihood / self.generated.all.max(1) as f64
    }

    /// vLLM's field, where it is wanted.
    pub fn in_vllms_form(&self, prompt: &[Token]) -> Option<Value> {
        let (n, known) = (self.separate?, self.of_prompt.as_ref()?);
        Some(known.in_vllms_form(prompt, n, self.model))
    }

    /// The prompt, where it is to come first. The answer goes on where it ends, with the space between them, say.
    fn open(&mut self) -> Piece {
        let mut piece = Piece::default();
        let Some(prompt) = self.echo.take() else { return piece };
        let entries: Vec<Option<Sampled>> = match (self.logprobs, &self.of_prompt) {
            (Some(n), Some(known)) => known.as_chosen(&prompt, n).collect(),
            _ => Vec::new(),
        };
        let mut entries = entries.into_iter();
        for token in prompt {
            piece.logprobs.extend(entries.next().map(|sampled| match sampled {
                Some(sampled) => self.logprob(&sampled),
                None => self.first_logprob(token),
            }));
            let text = self.detokeniser.push(token);
            self.offset += text.chars().count();
            piece.text.push_str(&text);
        }
        piece
    }

    /// What a token adds. A stop token ends the answer and is no part of its text, unless it is asked for.
    pub fn token(&mut self, sampled: Sampled) -> Piece {
        if self.waits() {
            self.held.push(sampled);
            return Piece::default();
        }
        let mut piece = self.open();
        let was_thinking = self.parser.is_thinking();
        self.read(&sampled, &mut piece);
        self.generated.thoughts += usize::from(was_thinking && self.parser.is_thinking());
        piece
    }

    fn read(&mut self, sampled: &Sampled, piece: &mut Piece) {
        self.generated.all += 1;
        self.likelihood += f64::from(sampled.logprob.unwrap_or(f32::MIN));
        if self.logprobs.is_some() {
            piece.logprobs.push(self.logprob(sampled));
        }
        piece.tokens.push(sampled.token);
        if self.stop_tokens.contains(&sampled.token) && !self.include_stop {
            return;
        }
        let text = self.detokeniser.push(sampled.token);
        self.offset += text.chars().count();
        if self.generated.all <= self.min_tokens {
            // Nothing ends so short an answer, nor does what begins in it.
            return self.said(&text, piece);
        }
        match self.stops.push(&text) {
            Passed::On(text) => self.said(&text, piece),
            Passed::Stopped(text) => self.stopped(&text, piece),
        }
    }

    /// What is behind the parser of a piece of text.
    fn said(&mut self, text: &str, piece: &mut Piece) {
        let said = self.parser.push(text);
        self.sort(said, piece);
    }

    fn sort(&mut self, said: Vec<AnswerPart>, piece: &mut Piece) {
        let mut beside = BesideText::default();
        beside.sort(said, &mut piece.text);
        if let Some(tools) = self.wanted.tools.as_ref().filter(|_| !beside.calls.is_empty()) {
            if !tools.may_call_several() {
                beside.calls.retain(|call| call.index == 0);
            }
            if !tools.is_named() {
                self.ended = "tool_calls";
            }
        }
        if !self.wanted.include_reasoning {
            beside.reasoning.clear();
        }
        piece.beside.extend(beside);
    }

    /// A stop string ends the answer behind this text.
    fn stopped(&mut self, text: &str, piece: &mut Piece) {
        self.said(text, piece);
        let rest = self.parser.finish();
        self.sort(rest, piece);
        // As one that ends by itself: what it calls is to be called.
        piece.finish = Some(self.ended);
        piece.stop = self.stops.found().map(str::to_owned);
    }

    /// What is left at the end.
    pub fn end(&mut self, end: End) -> Result<Piece, ApiError> {
        let finish = match end {
            End::Stop => "stop",
            End::Length => "length",
            End::Failed(why) => return Err(ApiError::Failed(why)),
        };
        let mut piece = self.open();
        piece.finish = Some(finish);
        let rest = self.detokeniser.finish();
        match self.stops.push(&rest) {
            Passed::On(text) => {
                let text = text + &self.stops.finish();
                self.said(&text, &mut piece);
                let rest = self.parser.finish();
                self.sort(rest, &mut piece);
                if finish == "stop" {
                    piece.finish = Some(self.ended);
                }
            }
            Passed::Stopped(text) => self.stopped(&text, &mut piece),
        }
        Ok(piece)
    }

    /// Of a token that follows nothing, in the older form.
    fn first_logprob(&self, token: Token) -> Value {
        let text = match self.wanted.delivery.names {
            TokenNames::Texts => self.detokeniser.token_text(token).text,
            TokenNames::Ids => logprobs::by_id(token),
        };
        json!({ "token": text, "logprob": null, "top": null, "offset": self.offset })
    }

    fn logprob(&self, sampled: &Sampled) -> Value {
        let names = self.wanted.delivery.names;
        match self.form {
            CompletionKind::Chat => logprobs::chat(&self.detokeniser, sampled, names),
            CompletionKind::Text { .. } => logprobs::older(&self.detokeniser, sampled, self.offset, names),
        }
    }
}

/// What all parts of one response have in common.
pub(super) struct Frame {
    id: String,
    created: u64,
    model: String,
    model_id: ModelId,
    request: RequestId,
    has_short_ids: bool,
    form: CompletionKind,
    object: &'static str,
}

impl Frame {
    pub fn new(taken: &TakenRequest, form: CompletionKind, stream: bool) -> Self {
        let (prefix, object) = match (form, stream) {
            (CompletionKind::Chat, false) => ("chatcmpl", "chat.completion"),
            (CompletionKind::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (CompletionKind::Text { .. }, _) => ("cmpl", "text_completion"),
        };
        let RequestId(id) = taken.request;
        Self {
            id: format!("{prefix}-{}", data_encoding::HEXLOWER.encode(&id)),
            created: now(),
            model: taken.model.card().name.clone(),
            model_id: taken.model.card().id,
            request: taken.request,
            has_short_ids: taken.model.tool_format() == ToolFormat::Mistral,
            form,
            object,
        }
    }

    /// With what answers' KV went through.
    pub fn envelope(
        &self,
        choices: Vec<Value>,
        codecs: impl IntoIterator<Item = Option<PromptCodec>>,
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

    pub fn whole(&self, index: usize, piece: Piece, wanted: &CompletionRequest, prompt: &[Token]) -> Value {
        let mut choice = self.choice(index, &piece, wanted, Some(prompt));
        if self.form == CompletionKind::Chat {
            choice["message"] = json!({ "role": "assistant", "content": piece.text, "refusal": null });
            piece.beside.whole(&mut choice["message"], self.call_ids(index));
        } else {
            choice["text"] = json!(piece.text);
        }
        choice
    }

    /// A part of a streamed answer; the first one says who speaks.
    pub fn part(&self, index: usize, piece: &Piece, wanted: &CompletionRequest, first: Option<&[Token]>) -> Value {
        let mut choice = self.choice(index, piece, wanted, first);
        if self.form == CompletionKind::Chat {
            let mut delta = Map::new();
            if first.is_some() {
                delta.insert("role".into(), json!("assistant"));
            }
            if !piece.text.is_empty() || first.is_some() {
                delta.insert("content".into(), json!(piece.text));
            }
            piece.beside.delta(&mut delta, self.call_ids(index));
            choice["delta"] = Value::Object(delta);
        } else {
            choice["text"] = json!(piece.text);
        }
        choice
    }

    fn call_ids(&self, choice: usize) -> CallIds {
        CallIds { request: self.request, choice, is_short: self.has_short_ids }
    }

    fn choice(&self, index: usize, piece: &Piece, wanted: &CompletionRequest, prompt: Option<&[Token]>) -> Value {
        let mut choice = json!({ "index": index, "finish_reason": piece.finish, "logprobs": null });
        // As vLLM says it.
        choice["stop_reason"] = json!(piece.stop);
        if wanted.sampling.logprobs.is_some() && !piece.logprobs.is_empty() {
            choice["logprobs"] = match self.form {
                CompletionKind::Chat => json!({ "content": piece.logprobs, "refusal": null }),
                CompletionKind::Text { .. } => logprobs::columns(&piece.logprobs),
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
