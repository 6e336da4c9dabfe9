//! What of a request comes to a machine.

use crate::policy::{
    batching::{Answered, RequestNo, RequestPhase, Task},
    routing::Asked,
};

/// A prompt, whose answer is generated here or elsewhere.
pub(super) fn prompt(request: RequestNo, asked: Asked, answered: Answered) -> Task {
    let (tokens, memory) = (asked.prompt, asked.prompt_memory());
    Task { request, part: RequestPhase::Prompt, service: asked.service, tokens, before: 0, memory, answered }
}

/// What of a prompt comes after its first part, whose memory was reserved with the whole prompt's.
pub(super) fn rest(request: RequestNo, asked: Asked, first: u32) -> Task {
    let tokens = asked.prompt.saturating_sub(first);
    Task {
        request,
        part: RequestPhase::Prompt,
        service: asked.service,
        tokens,
        before: first,
        memory: 0,
        answered: Answered::Here,
    }
}

/// An answer behind its first token.
pub(super) fn answer(request: RequestNo, asked: Asked) -> Task {
    let (tokens, memory) = (asked.answer - 1, asked.answer_memory());
    let (part, answered) = (RequestPhase::Answer, Answered::Here);
    Task { request, part, service: asked.service, tokens, before: 0, memory, answered }
}
