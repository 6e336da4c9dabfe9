//! Prompt flow 8: the last stage's tokens, chosen on its GPU where that can be, so that no logits come from there, and here
//! otherwise.

use super::{constrained::Constrained, slices};
use crate::{text::grammar::GrammarError, worker::export::Taps};
use std::collections::BTreeMap;
use std::sync::Arc;
use tsnode_kernels::{
    engine::{Engine, EngineError, Input, Output, RowToSample, StageKey},
    sampling::sample_allowed,
};
use tsnode_protocol::{
    RequestId, Sampled, Sampling, Token,
    ring::{Step, StepEntry},
};

/// What the choice of the next token depends on beside the logits.
pub(super) struct Sampler {
    pub sampling: Sampling,
    pub prompt: Arc<[Token]>,
    pub generated: Vec<Token>,
    /// Of an answer that has to have a form.
    pub constrained: Option<Constrained>,
}

/// What became of a step's rows.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub tokens: Vec<(RequestId, Sampled)>,
    /// Those of which no token can be chosen, and why.
    pub failed: Vec<(RequestId, String)>,
}

impl Sampler {
    /// The token for `position`, by logits that are spoilt by it.
    ///
    /// # Errors
    /// When a grammar allows none, or to find them takes more than it may.
    pub fn choose(&mut self, logits: &mut [f32], position: u32) -> Result<Sampled, GrammarError> {
        let allowed = self.constrained.as_mut().map(Constrained::allowed).transpose()?;
        Ok(sample_allowed(logits, allowed, &self.sampling, &self.prompt, &self.generated, position))
    }
}

pub(super) type Samplers = BTreeMap<RequestId, Sampler>;

/// A row after which a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampledRow {
    /// Of the batch.
    row: usize,
    request: RequestId,
    /// Of the token chosen.
    position: u32,
    /// The draft token in its place.
    draft: Option<Token>,
}

/// Computes a step and chooses tokens, each answer's as long as the draft before them was right.
pub(super) fn compute_and_choose(
    engine: &mut Engine,
    key: StageKey,
    step: &Step,
    input: Input<'_>,
    (vocab, samplers): (usize, &mut Samplers),
    taps: &mut Taps,
) -> Result<Chosen, EngineError> {
    let (rows, batch) = (rows(&step.entries), slices(step));
    if let Some(picks) = picks(&rows, samplers)
        && let Some(all) = engine.choose_on_gpu(key, &batch, input, &picks, taps.as_tap())?
    {
        return Ok(choose(&rows, samplers, |n: usize, _: &mut Sampler| Ok(all[n].clone())));
    }
    let wanted: Vec<usize> = rows.iter().map(|row| row.row).collect();
    let output = Output::Logits { rows: &wanted };
    let logits = engine.forward_tapped(key, &batch, input, output, taps.as_tap())?;
    let chosen = |n: usize, s: &mut Sampler| s.choose(&mut logits[n * vocab..][..vocab], rows[n].position);
    Ok(choose(&rows, samplers, chosen))
}

/// After the last token of a prompt, and after all of an answer.
fn rows(entries: &[StepEntry]) -> Vec<SampledRow> {
    let (mut end, mut rows) = (0, Vec::new());
    for entry in entries {
        let (start, request) = (end, entry.request);
        end += entry.tokens.len();
        let first = if entry.prompt { entry.tokens.len().saturating_sub(1) } else { 0 };
        let after = entry.start + 1;
        let row = |n: usize| {
            let draft = entry.tokens.get(n + 1).copied();
            SampledRow { row: start + n, request, position: after + n as u32, draft }
        };
        if entry.sample {
            rows.extend((first..entry.tokens.len()).map(row));
        }
    }
    rows
}

/// How each row's token is chosen; none where that is not known of one.
fn picks<'s>(rows: &[SampledRow], samplers: &'s Samplers) -> Option<Vec<RowToSample<'s>>> {
    let pick = |row: &SampledRow| {
        let sampling = &samplers.get(&row.request)?.sampling;
        Some(RowToSample { row: row.row, sampling, position: row.position })
    };
    rows.iter().map(pick).collect()
}

/// What `chosen` says of each row, by its number, up to the first of an answer's that a wrong draft went before.
fn choose(
    rows: &[SampledRow],
    samplers: &mut Samplers,
    mut chosen: impl FnMut(usize, &mut Sampler) -> Result<Sampled, GrammarError>,
) -> Chosen {
    let mut all = Chosen::default();
    let mut wrong = None;
    for (n, row) in rows.iter().enumerate() {
        let Some(sampler) = samplers.get_mut(&row.request).filter(|_| wrong != Some(row.request)) else { continue };
        let sampled = match chosen(n, sampler) {
            Ok(sampled) => sampled,
            Err(why) => {
                wrong = Some(row.request);
                all.failed.push((row.request, why.to_string()));
                continue;
            }
        };
        // Under a grammar the tokens allowed after a draft are not known here: leaders propose nothing for it.
        if row.draft == Some(sampled.token) && sampler.constrained.is_none() {
            sampler.generated.push(sampled.token);
        } else {
            wrong = Some(row.request);
        }
        all.tokens.push((row.request, sampled));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RequestId = RequestId([1; 16]);
    const B: RequestId = RequestId([2; 16]);

    fn entry(request: RequestId, start: u32, tokens: &[u32], prompt: bool) -> StepEntry {
        StepEntry { request, start, tokens: tokens.iter().copied().map(Token).collect(), prompt, sample: true }
    }

    #[test]
    fn a_prompt_has_one_token_and_an_answer_one_for_each_draft_that_was_right() {
        let silent = StepEntry { sample: false, ..entry(B, 0, &[1, 2], true) };
        let entries = [silent, entry(A, 4, &[7, 8, 9], true), entry(B, 10, &[3, 4, 5], false)];
        let rows = rows(&entries);
        let places: Vec<(usize, u32)> = rows.iter().map(|row| (row.row, row.position)).collect();
        assert_eq!(places, [(4, 7), (5, 11), (6, 12), (7, 13)]);
        let sampler =
            || Sampler { sampling: Sampling::greedy(), prompt: [].into(), generated: Vec::new(), constrained: None };
        let told = |tokens: [u32; 4]| {
            let mut samplers: Samplers = [(A, sampler()), (B, sampler())].into();
            assert_eq!(picks(&rows, &samplers).map(|picks| picks.len()), Some(4));
            let sampled = |token| Sampled { token, logprob: None, top: Vec::new() };
            let chosen = choose(&rows, &mut samplers, |n, _| Ok(sampled(Token(tokens[n])))).tokens;
            let of_b: Vec<u32> = chosen.iter().filter(|c| c.0 == B).map(|c| c.1.token.0).collect();
            assert_eq!(chosen.len(), of_b.len() + 1);
            (of_b, samplers[&B].generated.iter().map(|t| t.0).collect::<Vec<_>>())
        };
        assert_eq!(told([1, 4, 5, 6]), (vec![4, 5, 6], vec![4, 5]));
        assert_eq!(told([1, 4, 9, 6]), (vec![4, 9], vec![4]));
        assert_eq!(told([1, 9, 5, 6]), (vec![9], vec![]));
        assert!(picks(&rows, &[(A, sampler())].into()).is_none());
    }

    #[test]
    fn an_answer_of_which_no_token_can_be_chosen_fails_alone() {
        let rows = rows(&[entry(A, 4, &[7], false), entry(B, 10, &[3], false)]);
        let sampler =
            || Sampler { sampling: Sampling::greedy(), prompt: [].into(), generated: Vec::new(), constrained: None };
        let mut samplers: Samplers = [(A, sampler()), (B, sampler())].into();
        let chosen = choose(&rows, &mut samplers, |n, _| match n {
            0 => Err(GrammarError::Stuck("nothing fits".into())),
            _ => Ok(Sampled { token: Token(9), logprob: None, top: Vec::new() }),
        });
        assert_eq!(chosen.tokens.iter().map(|t| (t.0, t.1.token)).collect::<Vec<_>>(), [(B, Token(9))]);
        assert!(chosen.failed[0].0 == A && chosen.failed[0].1.contains("nothing fits"), "{:?}", chosen.failed);
    }
}
