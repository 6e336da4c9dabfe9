//! An answer as its client asked for it: whole, or streamed.

use super::{
    ApiError, ApiState,
    request::{CompletionRequest, TakenRequest},
    respond::{AnswerHead, AnswerTokens, AnswerWriter, CompletionKind, Frame, Piece, REQUEST_ID, trace_json, usage},
    sse,
    tolerance::IGNORED,
};
use crate::gateway::Reply;
use axum::{
    Json,
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tsnode_protocol::{PeerId, Token};

const PREFILL: HeaderName = HeaderName::from_static("x-tsnode-prefill");
const DECODE: HeaderName = HeaderName::from_static("x-tsnode-decode");

/// Answers as asked.
pub(super) async fn answered(
    state: &ApiState,
    taken: TakenRequest,
    wanted: CompletionRequest,
    form: CompletionKind,
) -> Response {
    let headers = headers(&taken, &wanted);
    let head = AnswerHead::of(&taken, &wanted);
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

fn headers(taken: &TakenRequest, wanted: &CompletionRequest) -> HeaderMap {
    let value = |text: String| HeaderValue::from_str(&text).ok();
    let peer = |p: Option<PeerId>| value(p.map(|p| p.to_string()).unwrap_or_default());
    let named = [
        (REQUEST_ID, value(taken.request.to_string())),
        (PREFILL, peer(taken.prefill())),
        (DECODE, peer(taken.decode())),
        (IGNORED, wanted.ignored.header()),
    ];
    named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

async fn whole(
    state: &ApiState,
    taken: TakenRequest,
    wanted: &CompletionRequest,
    form: CompletionKind,
) -> Result<Value, ApiError> {
    let frame = Frame::new(&taken, form, false);
    let prompt_tokens = taken.prompt_tokens(wanted.computed());
    let (mut answers, mut generated, mut cached, mut trace) = (Vec::new(), Vec::new(), 0, None);
    let (mut codecs, mut stats) = (vec![None; taken.answers.len()], taken.stats);
    for (index, mut answer) in taken.answers.into_iter().enumerate() {
        let mut writer = AnswerWriter::new(&taken.model, wanted, form, &answer);
        let mut piece = Piece::default();
        while let Some(reply) = answer.next().await {
            let is_over = piece.finish.is_some();
            match reply {
                Reply::Trace(one) => {
                    stats.trace(index, &one);
                    state.history.note(&one);
                    cached += wanted.cached_tokens(index, &one);
                    trace = trace.or(Some(one));
                }
                // A stop string has ended it.
                Reply::End(_) | Reply::Cancelled if is_over => break,
                _ if is_over => {}
                Reply::Settled(codec) => codecs[index] = Some(codec),
                Reply::PromptLogprobs(more) => piece.extend(writer.prompt_logprobs(more)),
                Reply::Token { sampled, .. } => {
                    // Those after the first are read when it has ended: of when they came nothing is known.
                    if index == 0 {
                        stats.token(index)
                    } else {
                        stats.token_at_hand(index)
                    }
                    piece.extend(writer.token(sampled));
                }
                Reply::End(end) => {
                    piece.extend(writer.end(end).inspect_err(|_| stats.failed())?);
                    break;
                }
                Reply::Cancelled => return Err(ApiError::Cancelled),
            }
            if piece.finish.is_some() {
                answer.has_enough();
            }
        }
        let Some(finish) = piece.finish else {
            stats.failed();
            return Err(ApiError::Failed("the answer broke off".into()));
        };
        stats.choice_finished(finish);
        generated.push(writer.generated);
        let prompt = std::mem::take(&mut answer.prompt);
        answers.push((writer.likelihood(), piece, writer.in_vllms_form(&prompt), prompt));
    }
    stats.finished();
    let (mut choices, mut of_prompt) = (Vec::new(), None);
    for (index, (_, piece, of_its_prompt, prompt)) in best(answers, wanted).into_iter().enumerate() {
        let mut choice = frame.whole(index, piece, wanted, &prompt);
        match (form, of_its_prompt) {
            (CompletionKind::Text { .. }, Some(list)) => choice["prompt_logprobs"] = list,
            (CompletionKind::Chat, list) => of_prompt = of_prompt.or(list),
            _ => {}
        }
        choices.push(choice);
    }
    let mut body = frame.envelope(choices, codecs);
    let generated: AnswerTokens = generated.into_iter().sum();
    body.insert("usage".into(), usage(prompt_tokens, cached, generated));
    if let Some(list) = of_prompt {
        body.insert("prompt_logprobs".into(), list);
    }
    if let Some(trace) = trace.filter(|_| wanted.trace) {
        body.insert("tsnode".into(), trace_json(&trace));
    }
    Ok(Value::Object(body))
}

/// Of as many answers as were computed to each prompt the likeliest, as many as the client gets; all in their order where it gets
/// all. What is first of each is its likelihood.
fn best<T>(answers: Vec<(f64, Piece, T, Vec<Token>)>, wanted: &CompletionRequest) -> Vec<(f64, Piece, T, Vec<Token>)> {
    let Some(best_of) = wanted.best_of else { return answers };
    let (mut answers, mut kept) = (answers.into_iter().peekable(), Vec::new());
    while answers.peek().is_some() {
        let mut of_one: Vec<_> = answers.by_ref().take(best_of as usize).collect();
        of_one.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
        kept.extend(of_one.into_iter().take(wanted.answers as usize));
    }
    kept
}
