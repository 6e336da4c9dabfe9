//! Prompt flow 4: log-probabilities of prompts' tokens, at the last stage and for who asks for them.
//!
//! Such a prompt's part of a step is computed a few rows at a time, so that logits of few tokens are there at once, whatever
//! the vocabulary. Sums have one order however a prompt is cut (`docs/design/arithmetic.md`): the tokens that follow are
//! those that would have followed without.

use super::choosing::{Chosen, Samplers, compute_and_choose};
use crate::worker::export::Taps;
use std::ops::Range;
use tsnode_kernels::{
    engine::{Engine, EngineError, Input, Output, Slice, StageKey},
    sampling::log_probability,
};
use tsnode_protocol::{
    PromptLogprob, RequestId, Token,
    ring::{Step, StepEntry},
};

/// Logits that are there at once: 16 MiB of them.
const LOGITS: usize = 4 << 20;
/// Rows computed at once: more make them no faster.
const ROWS: usize = 256;

/// What the last stage makes of a step.
#[derive(Debug, Default)]
pub(super) struct StepResult {
    pub chosen: Chosen,
    /// Of prompts' tokens, each from some place on.
    pub prompts: Vec<(RequestId, u32, Vec<PromptLogprob>)>,
}

/// What a model's rows and logits are long.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub hidden: usize,
    pub vocab: usize,
}

/// Computes a step and chooses tokens; of prompts says how likely their tokens were, where that is asked for.
pub(super) fn compute_and_judge(
    engine: &mut Engine,
    key: StageKey,
    step: &Step,
    input: Input<'_>,
    (widths, samplers): (Widths, &mut Samplers),
    taps: &mut Taps,
) -> Result<StepResult, EngineError> {
    let judged =
        |e: &StepEntry| samplers.get(&e.request).is_some_and(|s| e.prompt && s.sampling.prompt_logprobs.is_some());
    if !step.entries.iter().any(judged) {
        let chosen = compute_and_choose(engine, key, step, input, (widths.vocab, samplers), taps)?;
        return Ok(StepResult { chosen, ..StepResult::default() });
    }
    let mut end = 0;
    let placed = step.entries.iter().map(|entry| {
        let start = end;
        end += entry.tokens.len();
        (start..end, entry)
    });
    let (those, others): (Vec<_>, Vec<_>) = placed.partition(|(_, entry)| judged(entry));
    let mut found = StepResult::default();
    if !others.is_empty() {
        let input = StageRows::of(input, widths.hidden, others.iter().map(|(rows, _)| rows.clone()));
        let step = Step { entries: others.into_iter().map(|(_, entry)| entry.clone()).collect(), ..*step };
        found.chosen = compute_and_choose(engine, key, &step, input.as_input(), (widths.vocab, &mut *samplers), taps)?;
    }
    for (rows, entry) in those {
        judge(engine, key, (entry, StageRows::of(input, widths.hidden, [rows])), (widths, &mut *samplers), &mut found)?;
    }
    Ok(found)
}

/// One prompt's part of a step. Its KV goes nowhere: who asks for this does not have a prompt computed for another group.
fn judge(
    engine: &mut Engine,
    key: StageKey,
    (entry, input): (&StepEntry, StageRows),
    (widths, samplers): (Widths, &mut Samplers),
    found: &mut StepResult,
) -> Result<(), EngineError> {
    let Some(sampler) = samplers.get_mut(&entry.request) else { return Ok(()) };
    let (vocab, all) = (widths.vocab.max(1), entry.tokens.len());
    let (at_once, n) = ((LOGITS / vocab).clamp(1, ROWS), sampler.sampling.prompt_logprobs.unwrap_or(0));
    let (mut logprobs, mut first) = (Vec::new(), 0);
    while first < all {
        let rows: Vec<usize> = (0..at_once.min(all - first)).collect();
        let start = entry.start + first as u32;
        let slice = Slice { request: entry.request, start, len: rows.len() as u32 };
        let part = StageRows::of(input.as_input(), widths.hidden, std::iter::once(first..first + rows.len()));
        first += rows.len();
        let logits = engine.forward(key, &[slice], part.as_input(), Output::Logits { rows: &rows })?;
        for (position, logits) in (start as usize + 1..).zip(logits.chunks_exact_mut(vocab)) {
            logprobs.extend(sampler.prompt.get(position).map(|token| log_probability(logits, *token, n)));
            if entry.sample && position == entry.start as usize + all {
                match sampler.choose(logits, position as u32) {
                    Ok(chosen) => found.chosen.tokens.push((entry.request, chosen)),
                    Err(why) => found.chosen.failed.push((entry.request, why.to_string())),
                }
            }
        }
    }
    found.prompts.push((entry.request, entry.start, logprobs));
    Ok(())
}

/// Some rows of what enters a stage.
enum StageRows {
    Tokens(Vec<Token>),
    Hidden(Vec<f32>),
}

impl StageRows {
    fn of(input: Input<'_>, width: usize, rows: impl IntoIterator<Item = Range<usize>>) -> Self {
        let rows = rows.into_iter();
        match input {
            Input::Tokens(tokens) => Self::Tokens(rows.flat_map(|rows| &tokens[rows]).copied().collect()),
            Input::Hidden(hidden) => {
                Self::Hidden(rows.flat_map(|rows| &hidden[rows.start * width..rows.end * width]).copied().collect())
            }
        }
    }

    fn as_input(&self) -> Input<'_> {
        match self {
            Self::Tokens(tokens) => Input::Tokens(tokens),
            Self::Hidden(hidden) => Input::Hidden(hidden),
        }
    }
}
