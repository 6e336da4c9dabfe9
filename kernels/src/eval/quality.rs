//! How answers change when the KV of their prompts is changed once, between prompt and answer (ThunderServe App. I).

use crate::{
    engine::{Engine, EngineError, Input, Output, Slice, StageKey},
    sampling::log_sum_exp,
};
use half::f16;
use serde::Serialize;
use tsnode_protocol::{KvCodec, RequestId, TileHeader, Token};

/// A loaded stage with all layers of a model, and what it is measured with.
pub struct Subject<'a> {
    /// Where it is loaded.
    pub engine: &'a mut Engine,
    /// All its layers.
    pub stage: StageKey,
    /// Entries of its vocabulary.
    pub vocab: usize,
}

/// What happens to the first tokens of a sequence before the next are computed.
pub type PrefixChange<'c> = &'c mut dyn FnMut(&mut Engine, RequestId, u32) -> Result<(), EngineError>;

/// What follows prefixes of one length, predicted with and without the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PrefixQuality {
    /// Tokens of each prefix.
    pub prefix: usize,
    /// Tokens predicted.
    pub tokens: usize,
    /// Mean negative log-likelihood without the change (natural log).
    pub before: f64,
    /// With it.
    pub after: f64,
    /// Share of tokens for which the likeliest is the same.
    pub same_top: f64,
    /// How far predictions with the change are from those without: mean Kullback-Leibler divergence (natural log).
    pub divergence: f64,
}

impl PrefixQuality {
    /// Perplexity with the change over that without.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        (self.after - self.before).exp()
    }

    /// All of them as one, weighed by tokens.
    #[must_use]
    pub fn all(parts: &[Self]) -> Self {
        let tokens: usize = parts.iter().map(|p| p.tokens).sum();
        let mean =
            |of: fn(&Self) -> f64| parts.iter().map(|p| of(p) * p.tokens as f64).sum::<f64>() / tokens.max(1) as f64;
        Self {
            prefix: 0,
            tokens,
            before: mean(|p| p.before),
            after: mean(|p| p.after),
            same_top: mean(|p| p.same_top),
            divergence: mean(|p| p.divergence),
        }
    }
}

/// What a layer's keys or values lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SideError {
    /// Largest difference.
    pub worst: f64,
    /// Mean difference.
    pub mean: f64,
    /// Root of the squared differences over the squared numbers.
    pub relative: f64,
}

/// What a layer lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerError {
    /// The layer.
    pub layer: u32,
    /// Of its keys.
    pub keys: SideError,
    /// Of its values.
    pub values: SideError,
}

impl SideError {
    /// Of numbers as half precision, little-endian.
    fn of(before: &[u8], after: &[u8]) -> Self {
        let read = |b: &[u8; 2]| f64::from(f16::from_le_bytes(*b).to_f32());
        let (mut sum, mut squares, mut all, mut worst) = (0.0, 0.0, 0.0, 0.0f64);
        for (x, y) in before.as_chunks().0.iter().map(read).zip(after.as_chunks().0.iter().map(read)) {
            let lost = (x - y).abs();
            worst = worst.max(lost);
            sum += lost;
            squares += lost * lost;
            all += x * x;
        }
        let n = (before.len() / 2).max(1) as f64;
        Self { worst, mean: sum / n, relative: (squares / all.max(f64::MIN_POSITIVE)).sqrt() }
    }
}

impl Subject<'_> {
    /// What the KV of `prompt` loses by the change, layer by layer. Pages hold half precision.
    ///
    /// # Errors
    /// When the engine has too few pages.
    pub fn errors(&mut self, prompt: &[Token], change: PrefixChange<'_>) -> Result<Vec<LayerError>, EngineError> {
        let request = RequestId([2; 16]);
        let len = prompt.len() as u32;
        self.engine.admit(self.stage, request, len)?;
        self.compute(request, 0, prompt, &[])?;
        let before = self.pages(request, len)?;
        change(self.engine, request, len)?;
        let after = self.pages(request, len)?;
        self.engine.release(self.stage, request);
        let errors = before.iter().zip(&after).map(|((layer, before), (_, after))| {
            // Keys first, then as many values.
            let half = before.len() / 2;
            let side = |range: std::ops::Range<usize>| SideError::of(&before[range.clone()], &after[range]);
            LayerError { layer: *layer, keys: side(0..half), values: side(half..before.len()) }
        });
        Ok(errors.collect())
    }

    fn pages(&mut self, request: RequestId, token_end: u32) -> Result<Vec<(u32, Vec<u8>)>, EngineError> {
        let (layers, head_end) = self.engine.extent(self.stage)?;
        let mut pages = Vec::new();
        for layer in layers.iter() {
            let tile = TileHeader { layer, head_start: 0, head_end, token_start: 0, token_end, bytes: 0 };
            let mut bytes = Vec::new();
            self.engine.export(self.stage, request, &tile, KvCodec::Raw, &mut bytes)?;
            pages.push((layer, bytes));
        }
        Ok(pages)
    }

    /// What follows each window's first `prefix` tokens, predicted from their KV as it is and as `change` leaves it.
    ///
    /// # Errors
    /// When the engine has too few pages, or a window is longer than the model's context.
    pub fn predict(
        &mut self,
        windows: &[Vec<Token>],
        prefix: usize,
        change: PrefixChange<'_>,
    ) -> Result<PrefixQuality, EngineError> {
        let mut sum = PrefixQuality { prefix, ..PrefixQuality::default() };
        for window in windows.iter().filter(|w| w.len() > prefix + 1) {
            let before = self.follow(window, prefix, &mut |_, _, _| Ok(()))?;
            let after = self.follow(window, prefix, change)?;
            let rows = before.chunks_exact(self.vocab).zip(after.chunks_exact(self.vocab));
            for ((before, after), target) in rows.zip(&window[prefix + 1..]) {
                let (total, changed) = (log_sum_exp(before), log_sum_exp(after));
                let target = target.0 as usize;
                sum.tokens += 1;
                sum.before += f64::from(total - before[target]);
                sum.after += f64::from(changed - after[target]);
                sum.same_top += f64::from(u8::from(likeliest(before) == likeliest(after)));
                let apart =
                    |(a, b): (&f32, &f32)| f64::from((a - total).exp()) * f64::from((a - total) - (b - changed));
                sum.divergence += before.iter().zip(after).map(apart).sum::<f64>();
            }
        }
        let n = sum.tokens.max(1) as f64;
        let PrefixQuality { before, after, same_top, divergence, .. } = sum;
        let [before, after, same_top, divergence] = [before, after, same_top, divergence].map(|sum| sum / n);
        Ok(PrefixQuality { before, after, same_top, divergence, ..sum })
    }

    /// Logits after each token behind the prefix but the last.
    fn follow(&mut self, window: &[Token], prefix: usize, change: PrefixChange<'_>) -> Result<Vec<f32>, EngineError> {
        let request = RequestId([1; 16]);
        self.engine.admit(self.stage, request, window.len() as u32)?;
        self.compute(request, 0, &window[..prefix], &[])?;
        change(self.engine, request, prefix as u32)?;
        let rest = &window[prefix..];
        let rows: Vec<usize> = (0..rest.len() - 1).collect();
        let logits = self.compute(request, prefix, rest, &rows)?.to_vec();
        self.engine.release(self.stage, request);
        Ok(logits)
    }

    /// The likeliest `n` tokens after each prompt, one after the other, with prompts' KV as `change` leaves it.
    /// The first is chosen where the prompt was computed.
    ///
    /// # Errors
    /// When the engine has too few pages, or an answer is longer than the model's context.
    pub fn answers(
        &mut self,
        prompts: &[Vec<Token>],
        n: usize,
        change: PrefixChange<'_>,
    ) -> Result<Vec<Vec<Token>>, EngineError> {
        let mut answers = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let request = numbered(i);
            self.engine.admit(self.stage, request, (prompt.len() + n) as u32)?;
            let logits = self.compute(request, 0, prompt, &[prompt.len() - 1])?;
            answers.push(vec![Token(likeliest(logits) as u32)]);
            change(self.engine, request, prompt.len() as u32)?;
        }
        for step in 1..n {
            let start = |i: usize| (prompts[i].len() + step - 1) as u32;
            let batch: Vec<Slice> =
                (0..prompts.len()).map(|i| Slice { request: numbered(i), start: start(i), len: 1 }).collect();
            let last: Vec<Token> = answers.iter().filter_map(|a| a.last().copied()).collect();
            let rows: Vec<usize> = (0..prompts.len()).collect();
            let logits =
                self.engine.forward(self.stage, &batch, Input::Tokens(&last), Output::Logits { rows: &rows })?;
            for (answer, logits) in answers.iter_mut().zip(logits.chunks_exact(self.vocab)) {
                answer.push(Token(likeliest(logits) as u32));
            }
        }
        (0..prompts.len()).for_each(|i| self.engine.release(self.stage, numbered(i)));
        Ok(answers)
    }

    fn compute(
        &mut self,
        request: RequestId,
        start: usize,
        tokens: &[Token],
        rows: &[usize],
    ) -> Result<&[f32], EngineError> {
        let slice = [Slice { request, start: start as u32, len: tokens.len() as u32 }];
        Ok(self.engine.forward(self.stage, &slice, Input::Tokens(tokens), Output::Logits { rows })?)
    }
}

fn numbered(i: usize) -> RequestId {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&(i as u64).to_le_bytes());
    RequestId(id)
}

/// The first of the largest logits.
fn likeliest(logits: &[f32]) -> usize {
    let first = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).fold(0, first)
}

/// ROUGE-L over tokens: the harmonic mean of the longest common subsequence's shares of both.
#[must_use]
pub fn rouge_l(a: &[Token], b: &[Token]) -> f64 {
    // Lengths for the tokens of `a` so far and each beginning of `b`.
    let mut lengths = vec![0usize; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = lengths[j + 1];
            lengths[j + 1] = if x == y { diagonal + 1 } else { above.max(lengths[j]) };
            diagonal = above;
        }
    }
    let common = lengths[b.len()] as f64;
    if common == 0.0 { 0.0 } else { 2.0 * common / (a.len() + b.len()) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rouge_is_of_the_longest_common_subsequence() {
        let of = |a: &[u32], b: &[u32]| {
            let [a, b] = [a, b].map(|x| x.iter().copied().map(Token).collect::<Vec<_>>());
            rouge_l(&a, &b)
        };
        assert_eq!(of(&[1, 2, 3], &[1, 2, 3]), 1.0);
        assert_eq!(of(&[1, 2, 3], &[4, 5, 6]), 0.0);
        // 1 3 4 of four and five.
        assert_eq!(of(&[1, 2, 3, 4], &[1, 3, 5, 4, 2]), 2.0 * 3.0 / 9.0);
        assert_eq!(of(&[], &[1]), 0.0);
    }
}
