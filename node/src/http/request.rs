//! A completion request once its fields are read: one or more prompts, each answered one or more times.

use super::{
    ApiError, ApiState,
    ends::AnswerEnds,
    fields::{Fields, SUBMISSIONS},
    fingerprint,
    metrics::{JudgedRequest, RequestStats},
    naming::Naming,
    params::StreamOptions,
    running::{Progress, RunningTicket},
    seeds::Seeds,
    tolerance::Ignored,
    tools::Tools,
};
use crate::{
    gateway::{Accepted, PreparedRequest, Reply, SubmitError, Trace},
    text::TextModel,
    view::{Readiness, SwarmView},
};
use axum::http::HeaderMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{gate::Overrule, settings::SwarmSettings, waiting::NotReady};
use tsnode_protocol::{
    Grammar, ModelId, PeerId, PromptCodec, RequestClass, RequestId, Sampling, Token, kv::KvPace, limits,
    stream::Generation,
};

/// A request with this header is computed where it says, whatever the cost gate would choose.
pub(super) const KV: &str = "x-tsnode-kv";

/// What a client wants of every prompt.
#[derive(Clone, Debug)]
pub(super) struct CompletionRequest {
    pub sampling: Sampling,
    /// Of each answer; `sampling` has the first one's.
    pub seeds: Seeds,
    pub max_tokens: Option<u32>,
    /// Without a number, an answer may fill the context (chat) rather than end after 16 tokens (completions).
    pub fill_context: bool,
    pub ends: AnswerEnds,
    /// vLLM's field: alternatives beside each of the prompt's tokens, in a field of their own.
    pub prompt_logprobs: Option<u8>,
    pub stops: Vec<String>,
    pub answers: u64,
    /// So many are computed for that, where it is more.
    pub best_of: Option<u64>,
    pub delivery: StreamOptions,
    /// Tools that answers may call.
    pub tools: Option<Tools>,
    /// What the model thought is answered, too.
    pub include_reasoning: bool,
    /// The client asked to be told what ran where.
    pub trace: bool,
    /// Where the prompt is to be computed, if the client says so.
    pub overrule: Option<Overrule>,
    /// What the prompt's KV is to go through, if the client says so.
    pub codec: Option<PromptCodec>,
    /// For whom it is: what gives way to what, and which targets it is held against.
    pub class: RequestClass,
    pub naming: Naming,
    /// What of the request did nothing.
    pub ignored: Ignored,
}

impl CompletionRequest {
    /// Answers that are computed to each prompt.
    pub fn computed(&self) -> u64 {
        self.best_of.unwrap_or(self.answers)
    }

    /// Tokens of an answer's prompt that the prefix cache had. A prompt counts once, as its first answer found it: what that
    /// computed the others have from the cache.
    pub fn cached_tokens(&self, answer: usize, trace: &Trace) -> u32 {
        let is_first = answer.is_multiple_of(self.computed() as usize);
        if is_first { trace.cached_tokens } else { 0 }
    }

    /// What the client says that answers are; that they call tools is none.
    pub fn form(&self) -> Option<&Grammar> {
        let calls = self.tools.as_ref().is_some_and(Tools::must_call);
        let constraint = self.sampling.constraint.as_ref().filter(|_| !calls);
        constraint.map(|constraint| &constraint.grammar)
    }

    /// What clients call the field that the prompt is in.
    pub fn prompt_field(&self) -> &'static str {
        if self.fill_context { "messages" } else { "prompt" }
    }
}

/// One answer under way.
pub(super) struct Answer {
    pub prompt: Vec<Token>,
    pub accepted: Accepted,
    pub cancelled: CancellationToken,
    pub progress: Arc<Progress>,
}

impl Answer {
    /// What comes next of it.
    pub async fn next(&mut self) -> Option<Reply> {
        let reply = tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Some(Reply::Cancelled),
            reply = self.accepted.replies.recv() => reply,
        };
        if matches!(reply, Some(Reply::Token { .. })) {
            self.progress.token();
        }
        reply
    }

    /// It has ended for its client, who wants to hear no more than what it took.
    pub fn has_enough(&self) {
        self.accepted.enough.cancel();
    }
}

/// A request that has been taken.
pub(super) struct TakenRequest {
    pub request: RequestId,
    pub model: Arc<TextModel>,
    pub answers: Vec<Answer>,
    /// Is told of what comes.
    pub stats: RequestStats,
    /// While it is held the owner may cancel the request.
    pub _ticket: RunningTicket,
}

impl TakenRequest {
    pub fn prefill(&self) -> Option<PeerId> {
        self.answers.first().map(|a| a.accepted.prefill)
    }

    pub fn decode(&self) -> Option<PeerId> {
        self.answers.first().map(|a| a.accepted.decode)
    }

    pub fn prompt_tokens(&self, answers_each: u64) -> usize {
        self.answers.iter().step_by(answers_each.max(1) as usize).map(|a| a.prompt.len()).sum()
    }
}

/// What a request is held against: targets as they are when it comes.
fn judged(state: &ApiState, model: &TextModel, wanted: &CompletionRequest) -> JudgedRequest {
    let mut settings = SwarmSettings::default();
    settings.take_in(&state.view.borrow().settings);
    let targets = settings.targets(model.card().id, wanted.class).map(|(targets, _)| targets);
    JudgedRequest { class: wanted.class, targets }
}

/// For whom a request says it is: OpenAI's tier for what may take longer, or vLLM's priority, of which more is later.
pub(super) fn class(fields: &mut Fields) -> Result<RequestClass, ApiError> {
    let tier = fields.text("service_tier")?;
    let priority = match fields.take("priority") {
        None => 0,
        Some(value) => {
            value.as_i64().ok_or_else(|| ApiError::param("priority", "'priority' must be a whole number"))?
        }
    };
    let is_batch = tier.as_deref() == Some("flex") || priority > 0;
    Ok(if is_batch { RequestClass::Batch } else { RequestClass::Interactive })
}

/// Where the client says its prompt is to be computed.
pub(super) fn overrule(headers: &HeaderMap) -> Result<Option<Overrule>, ApiError> {
    let Some(value) = headers.get(KV) else { return Ok(None) };
    match value.as_bytes() {
        b"in-place" => Ok(Some(Overrule::InPlace)),
        b"sent" => Ok(Some(Overrule::Sent(None))),
        b"layers" => Ok(Some(Overrule::Sent(Some(KvPace::Layers)))),
        b"whole" => Ok(Some(Overrule::Sent(Some(KvPace::Whole)))),
        _ => Err(ApiError::param(KV, format!("'{KV}' must be in-place, sent, layers or whole"))),
    }
}

/// Refuses until the peer can do anything at all, and says how far it is.
pub(super) fn ready(state: &ApiState) -> Result<(), ApiError> {
    let (readiness, reason) = {
        let view = state.view.borrow();
        (view.readiness.clone(), view.why_not().filter(|_| !view.takes_requests()))
    };
    if matches!(readiness, Readiness::Joining | Readiness::Planning) {
        state.controls.asked.send_if_modified(|asked| !std::mem::replace(asked, true));
    }
    let Some(reason) = reason else { return Ok(()) };
    Err(ApiError::Unserved { reason: format!("this peer is not ready: {reason}"), retry_after: Duration::from_secs(1) })
}

/// Tokens of the longest prompt that any model here takes.
pub(super) fn most_tokens(state: &ApiState) -> usize {
    let longest = state.view.borrow().models.iter().map(|model| model.shape.context).max();
    longest.unwrap_or(limits::SEQUENCE_TOKENS).min(limits::SEQUENCE_TOKENS) as usize
}

/// Says why, where the plan in force has no group for the model since what is lent cannot hold it.
fn unserved(view: &SwarmView, model: ModelId, error: SubmitError) -> ApiError {
    let is_planned = view.plan.iter().flat_map(|plan| &plan.groups).any(|group| group.model == model);
    let short = view.short.iter().find(|short| short.id == model && !is_planned);
    match (short, error) {
        (Some(short), SubmitError::Unserved { retry_after, .. }) => {
            ApiError::Unserved { reason: NotReady::from(short).to_string(), retry_after }
        }
        (_, error) => error.into(),
    }
}

/// Refuses more answers than there may be at once.
pub(super) fn too_many() -> ApiError {
    ApiError::param("prompt", format!("from 1 to {SUBMISSIONS} answers can be asked for at once"))
}

/// Whoever comes back with tokens that rest on one packing cannot go on with another.
fn goes_on_as_it_began(wanted: &CompletionRequest, answers: usize) -> Result<(), ApiError> {
    let Some(codec) = wanted.codec else { return Ok(()) };
    let mut seen = (0..answers).map(|index| wanted.naming.seen(index)).filter(|seen| seen.tokens > 0);
    let Some(began) = seen.find_map(|seen| seen.codec.filter(|began| *began != codec.basis())) else { return Ok(()) };
    let (asked, began) = (fingerprint::name(codec), fingerprint::name(began));
    Err(ApiError::param(
        "kv_codec",
        format!("'kv_codec' is {asked}, and the answer that this goes on with began as {began}"),
    ))
}

/// The prompt without its first tokens, if there are more than are to be kept.
pub(super) fn truncated(
    prompt: Vec<Token>,
    keep: Option<i64>,
    wanted: &CompletionRequest,
    model: &TextModel,
) -> Vec<Token> {
    let Some(keep) = keep else { return prompt };
    let context = model.card().shape.context;
    let room = context.saturating_sub(wanted.max_tokens.unwrap_or(if wanted.fill_context { 1 } else { 16 }));
    let keep = usize::try_from(keep).unwrap_or(room.max(1) as usize);
    let first = prompt.len().saturating_sub(keep);
    prompt.into_iter().skip(first).collect()
}

/// What to generate after a prompt of `prompt` tokens.
fn generation(wanted: &CompletionRequest, model: &TextModel, prompt: &[Token]) -> Result<Generation, ApiError> {
    let (context, vocab) = (model.card().shape.context, model.card().shape.vocab);
    if prompt.is_empty() {
        return Err(ApiError::param("prompt", "the prompt has no tokens"));
    }
    if let Some(stray) = prompt.iter().find(|t| t.0 >= vocab) {
        return Err(ApiError::param("prompt", format!("token id {} is outside the vocabulary of {vocab}", stray.0)));
    }
    if wanted.ends.ignore_eos && wanted.sampling.constraint.is_some() {
        let message = "'ignore_eos' cannot go with a form that the answer is to have: nothing may follow its end";
        return Err(ApiError::param("ignore_eos", message));
    }
    if wanted.ends.min_tokens > 0 && wanted.sampling.constraint.is_some() {
        let message = "'min_tokens' cannot go with a form that the answer is to have: that may be whole before";
        return Err(ApiError::param("min_tokens", message));
    }
    let room = (context as usize).saturating_sub(prompt.len()) as u32;
    let asked = wanted.max_tokens.unwrap_or(if wanted.fill_context { room.max(1) } else { 16 });
    // What was not asked for by number may be less than the usual.
    let most = if wanted.max_tokens.is_none() { asked.min(room.max(1)) } else { asked };
    if most > room || prompt.len() > limits::SEQUENCE_TOKENS as usize {
        return Err(ApiError::TooLong { context, prompt: prompt.len(), wanted: most, param: wanted.prompt_field() });
    }
    let (stop_tokens, mut sampling) = (wanted.ends.tokens(model), wanted.sampling.clone());
    if wanted.ends.min_tokens > most {
        let why =
            format!("'min_tokens' is {}, and an answer of {most} tokens at most is asked for", wanted.ends.min_tokens);
        return Err(ApiError::param("min_tokens", why));
    }
    if wanted.ends.min_tokens > 0 {
        (sampling.min_tokens, sampling.ends) = (wanted.ends.min_tokens, stop_tokens.clone());
    }
    Ok(Generation { sampling, max_new_tokens: most, stop_tokens, class: wanted.class })
}

/// Submits every prompt as often as asked.
pub(super) async fn submit(
    state: &ApiState,
    model: Arc<TextModel>,
    prompts: Vec<Vec<Token>>,
    wanted: &CompletionRequest,
) -> Result<TakenRequest, ApiError> {
    if prompts.is_empty() || prompts.len() * wanted.computed() as usize > SUBMISSIONS {
        return Err(too_many());
    }
    let (mut plans, count) = (Vec::new(), prompts.len());
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    for (number, prompt) in (0..).zip(prompts) {
        let generation = generation(wanted, &model, &prompt)?;
        for i in 0..wanted.computed() {
            let mut generation = generation.clone();
            generation.sampling.seed = wanted.seeds.of(number, i, wanted.computed());
            plans.push((prompt.clone(), generation));
        }
    }
    let Naming { request, comes_back, .. } = wanted.naming;
    goes_on_as_it_began(wanted, plans.len())?;
    let ticket = state.running.begin(request, &model.card().name, prompt_tokens);
    let (mut answers, mut stats) =
        (Vec::new(), state.metrics.arrived(&model.card().name, judged(state, &model, wanted)));
    for (i, (prompt, generation)) in plans.into_iter().enumerate() {
        let (id, model) = (wanted.naming.answer(i), model.card().id);
        let seen = wanted.naming.seen(i);
        let (overrule, codec) = (wanted.overrule, wanted.codec);
        let prompt_of = prompt.clone();
        let submission =
            PreparedRequest { request: id, model, prompt: prompt_of, generation, comes_back, seen, overrule, codec };
        let accepted = tokio::select! {
            accepted = state.gateway.submit(submission) => accepted,
            () = ticket.cancelled.cancelled() => return Err(ApiError::Cancelled),
        };
        let accepted = accepted.inspect_err(|_| stats.unserved());
        let accepted = accepted.map_err(|error| unserved(&state.view.borrow(), model, error))?;
        let progress = ticket.progress.clone();
        progress.routed(accepted.prefill, accepted.decode);
        answers.push(Answer { prompt, accepted, cancelled: ticket.cancelled.clone(), progress });
    }
    stats.accepted(prompt_tokens, count, wanted.computed() as usize);
    Ok(TakenRequest { request, model, answers, stats, _ticket: ticket })
}
