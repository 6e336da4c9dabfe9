//! Prompt flow 8: chooses the next token from logits.
//!
//! In this order: what a grammar allows, bias, penalties, ends of answers that are too short, temperature, top-k, top-p, min-p,
//! draw. The draw depends on seed and position alone.

use std::collections::BTreeMap;
use tsnode_protocol::{PromptLogprob, Sampled, Sampling, Token, TokenLogprob, philox::uniform};

/// Numbers worked on side by side.
const LANES: usize = 16;

/// Chooses a token for `position`. `logits` is used as scratch; one that is no number counts as minus infinity.
/// The log-probabilities reported are those of the logits as they came.
///
/// # Panics
/// When `logits` is empty.
#[must_use]
pub fn sample(logits: &mut [f32], sampling: &Sampling, prompt: &[Token], answer: &[Token], position: u32) -> Sampled {
    sample_allowed(logits, None, sampling, prompt, answer, position)
}

/// The same among the tokens whose bits are set, if such are given: the bit of token 0 is the lowest of the first word.
///
/// # Panics
/// When `logits` is empty.
#[must_use]
pub fn sample_allowed(
    logits: &mut [f32],
    allowed: Option<&[u32]>,
    sampling: &Sampling,
    prompt: &[Token],
    answer: &[Token],
    position: u32,
) -> Sampled {
    without_nans(logits);
    let (n, total) = (sampling.logprobs.map_or(0, usize::from), total(logits));
    let raw = (n > 0 || allowed.is_some() || sampling.changes_logits()).then(|| logits.to_vec());
    if let Some(allowed) = allowed {
        forbid(logits, allowed);
    }
    penalise(logits, sampling, prompt, answer);
    let token = if sampling.temperature == 0.0 { greedy(logits) } else { draw(logits, sampling, position) };
    let raw = raw.as_deref().unwrap_or(logits);
    Sampled { token, logprob: Some(raw[token.0 as usize] - total), top: alternatives(raw, n, total) }
}

/// What logits say of a token that follows, and of the `n` likeliest ones. One that is no number, or not there, counts as
/// minus infinity.
#[must_use]
pub fn log_probability(logits: &mut [f32], token: Token, n: u8) -> PromptLogprob {
    without_nans(logits);
    let (total, own) = (total(logits), logits.get(token.0 as usize).copied().unwrap_or(f32::NEG_INFINITY));
    let rank = logits.iter().filter(|x| **x >= own).count() as u32;
    PromptLogprob { logprob: own - total, rank, top: alternatives(logits, n.into(), total) }
}

fn without_nans(logits: &mut [f32]) {
    for x in logits.iter_mut().filter(|x| x.is_nan()) {
        *x = f32::NEG_INFINITY;
    }
}

/// The likeliest tokens, best first.
fn alternatives(logits: &[f32], n: usize, total: f32) -> Vec<TokenLogprob> {
    let one = |i: usize| TokenLogprob { token: Token(i as u32), logprob: logits[i] - total };
    best(logits, n).into_iter().map(one).collect()
}

/// The natural log of the sum of exponentials.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    top + sum.ln() as f32
}

/// The same to five digits, for every token of every answer: in lanes, and with what any processor does to several numbers at
/// once.
fn total(logits: &[f32]) -> f32 {
    let top = largest(logits);
    let mut sums = [0.0; LANES];
    for x in logits.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += exp_below(*x - top);
        }
    }
    top + sums.iter().sum::<f32>().ln()
}

fn largest(logits: &[f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    for x in logits.chunks(LANES) {
        for (top, x) in tops.iter_mut().zip(x) {
            *top = if *x > *top { *x } else { *top };
        }
    }
    tops.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// e to the power of `x`, which is at most 0: 2^n by exponent bits times a polynomial (Cephes' coefficients). Multiplied and
/// added one after the other, since that is one instruction only where it is looked for.
#[inline(always)]
fn exp_below(x: f32) -> f32 {
    // Added to a small number it leaves its nearest whole number in the last bits.
    const WHOLE: f32 = 12_582_912.0;
    let x = x.max(-87.0);
    let shifted = x * std::f32::consts::LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_6e-1)
        * r
        + 0.5;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    (p * r * r + r + 1.0) * power
}

/// Leaves only tokens whose bits are set; those beyond the last word are not.
fn forbid(logits: &mut [f32], allowed: &[u32]) {
    for (n, logits) in logits.chunks_mut(32).enumerate() {
        let word = allowed.get(n).copied().unwrap_or(0);
        for (bit, x) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

fn penalise(logits: &mut [f32], sampling: &Sampling, prompt: &[Token], answer: &[Token]) {
    for (token, bias) in &sampling.logit_bias {
        if let Some(x) = logits.get_mut(token.0 as usize) {
            *x += bias;
        }
    }
    if sampling.repetition_penalty != 1.0 {
        let seen: std::collections::BTreeSet<Token> = prompt.iter().chain(answer).copied().collect();
        for token in seen {
            if let Some(x) = logits.get_mut(token.0 as usize) {
                *x = if *x > 0.0 { *x / sampling.repetition_penalty } else { *x * sampling.repetition_penalty };
            }
        }
    }
    if sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0 {
        let mut counts = BTreeMap::<Token, u32>::new();
        for token in answer {
            *counts.entry(*token).or_default() += 1;
        }
        for (token, count) in counts {
            if let Some(x) = logits.get_mut(token.0 as usize) {
                *x -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
            }
        }
    }
    if answer.len() < sampling.min_tokens as usize {
        for end in &sampling.ends {
            if let Some(x) = logits.get_mut(end.0 as usize) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// The likeliest token; of equals, the first.
pub(crate) fn greedy(logits: &[f32]) -> Token {
    let top = largest(logits);
    Token(logits.iter().position(|x| *x == top).unwrap_or(0) as u32)
}

fn draw(logits: &[f32], sampling: &Sampling, position: u32) -> Token {
    let kept = candidates(logits, sampling);
    let total: f64 = kept.iter().map(|(_, p)| p).sum();
    let mut left = uniform(sampling.seed, position) * total;
    for (i, p) in &kept {
        left -= p;
        if left < 0.0 {
            return Token(*i as u32);
        }
    }
    kept.last().map_or_else(|| greedy(logits), |(i, _)| Token(*i as u32))
}

/// Tokens that survive the cuts, likeliest first, with their weights relative to the likeliest.
fn candidates(logits: &[f32], sampling: &Sampling) -> Vec<(usize, f64)> {
    let keep = if sampling.top_k == 0 { logits.len() } else { (sampling.top_k as usize).min(logits.len()) };
    let order = best(logits, keep);
    let Some(top) = order.first().map(|i| logits[*i]) else { return Vec::new() };
    let weight = |i: usize| f64::from((logits[i] - top) / sampling.temperature).exp();
    let mut kept: Vec<(usize, f64)> = order.into_iter().map(|i| (i, weight(i))).collect();
    if sampling.top_p < 1.0 {
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        let mut reached = 0.0;
        // The token that reaches the mass is kept, so at least one always is.
        let n = kept.iter().take_while(|(_, p)| {
            let below = reached < f64::from(sampling.top_p) * total;
            reached += p;
            below
        });
        let n = n.count().max(1);
        kept.truncate(n);
    }
    // What cannot be is not drawn by a rounding error either.
    kept.retain(|(_, p)| *p > 0.0 && *p >= f64::from(sampling.min_p));
    kept
}

/// Indices of the `n` largest, largest first; of equals, the first index first.
fn best(logits: &[f32], n: usize) -> Vec<usize> {
    let n = n.min(logits.len());
    if n == 0 {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let by = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    if n < order.len() {
        order.select_nth_unstable_by(n - 1, by);
    }
    order.truncate(n);
    order.sort_unstable_by(by);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warm() -> Sampling {
        Sampling { temperature: 1.0, seed: 7, ..Sampling::greedy() }
    }

    fn chosen(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
        (0..400).map(|p| sample(&mut logits.to_vec(), sampling, &[], &[], p).token.0).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_best_and_no_nan() {
        let sampled = sample(&mut [1.0, f32::NAN, 3.0, 3.0], &Sampling::greedy(), &[], &[], 0);
        assert_eq!(sampled.token, Token(2));
    }

    #[test]
    fn the_same_seed_and_position_draw_the_same() {
        let logits = [0.0, 0.5, 1.0, 0.2];
        assert_eq!(chosen(&logits, &warm()), chosen(&logits, &warm()));
        let other = Sampling { seed: 8, ..warm() };
        assert_ne!(chosen(&logits, &warm()), chosen(&logits, &other));
    }

    #[test]
    fn frequencies_follow_probabilities() {
        let logits = [0.0, (3.0f32).ln()];
        let ones = chosen(&logits, &warm()).iter().filter(|t| **t == 1).count();
        // 300 expected of 400, standard deviation 8.7.
        assert!((260..340).contains(&ones), "{ones} of 400");
    }

    #[test]
    fn cuts_keep_what_they_should() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let only = |s: Sampling| chosen(&logits, &s).into_iter().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(only(Sampling { top_k: 2, ..warm() }), [0, 1].into());
        // Probabilities 0.64, 0.24, 0.09, 0.03.
        assert_eq!(only(Sampling { top_p: 0.7, ..warm() }), [0, 1].into());
        assert_eq!(only(Sampling { top_p: 0.0, ..warm() }), [0].into());
        assert_eq!(only(Sampling { min_p: 0.1, ..warm() }), [0, 1, 2].into());
    }

    #[test]
    fn penalties_push_away() {
        let mut logits = [2.0, 1.9, 0.0];
        let repeat = Sampling { repetition_penalty: 1.5, ..Sampling::greedy() };
        assert_eq!(sample(&mut logits, &repeat, &[Token(0)], &[], 0).token, Token(1));
        let mut logits = [2.0, 1.9, 0.0];
        let present = Sampling { presence_penalty: 1.0, ..Sampling::greedy() };
        assert_eq!(sample(&mut logits, &present, &[Token(0)], &[], 0).token, Token(0));
        let mut logits = [2.0, 1.9, 0.0];
        assert_eq!(sample(&mut logits, &present, &[], &[Token(0)], 0).token, Token(1));
        let mut logits = [2.0, 1.9, 0.0];
        let bias = Sampling { logit_bias: vec![(Token(2), 5.0)], ..Sampling::greedy() };
        assert_eq!(sample(&mut logits, &bias, &[], &[], 0).token, Token(2));
    }

    #[test]
    fn a_short_answer_does_not_end() {
        let at_least = Sampling { min_tokens: 2, ends: vec![Token(0), Token(9)], ..Sampling::greedy() };
        let after = |answer: &[Token], sampling: &Sampling| {
            let sampled = sample(&mut [2.0, 1.9, 0.0], sampling, &[], answer, 0);
            (sampled.token, sampled.logprob.unwrap())
        };
        let plain = after(&[], &Sampling::greedy());
        for answer in [&[][..], &[Token(1)]] {
            let (token, logprob) = after(answer, &at_least);
            assert_eq!(token, Token(1));
            assert!((logprob - (plain.1 - 0.1)).abs() < 1e-5, "said as if nothing were withheld: {logprob}");
        }
        assert_eq!(after(&[Token(1), Token(1)], &at_least), plain);
        let drawn = Sampling { temperature: 1.0, ..at_least };
        assert!((0..99).all(|p| sample(&mut [9.0, 0.0, 0.0], &drawn, &[], &[], p).token != Token(0)));
    }

    #[test]
    fn a_given_token_has_its_probability_and_its_place() {
        let mut logits = [0.0, f32::NAN, (2.0f32).ln(), 0.0];
        let said = log_probability(&mut logits, Token(3), 2);
        assert!((said.logprob - 0.25f32.ln()).abs() < 1e-6 && said.rank == 3, "{said:?}");
        assert_eq!((said.top[0].token, said.top[1].token), (Token(2), Token(0)));
        assert!((said.top[0].logprob - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!(log_probability(&mut logits, Token(2), 0).rank, 1);
    }

    #[test]
    fn the_quick_sum_is_the_exact_one() {
        let mut bits = 1_u64;
        let mut drawn = || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (bits >> 40) as f32 / (1 << 24) as f32
        };
        for (n, width) in [(1, 1.0), (15, 10.0), (49_152, 30.0), (128_256, 200.0)] {
            let logits: Vec<f32> = (0..n).map(|_| (drawn() - 0.5) * width).collect();
            let (quick, exact) = (total(&logits), log_sum_exp(&logits));
            assert!((quick - exact).abs() < 1e-4, "{quick} {exact} of {n}");
        }
        assert_eq!(total(&[0.0, f32::NEG_INFINITY]), 0.0);
        for x in [-87.5_f32, -87.0, -20.3, -1.0, -0.4, -1e-9, 0.0] {
            let (quick, exact) = (exp_below(x), x.max(-87.0).exp());
            assert!((quick / exact - 1.0).abs() < 1e-5, "{x}: {quick} {exact}");
        }
    }

    #[test]
    fn every_token_says_how_likely_it_was_before_penalties() {
        let bias = Sampling { logit_bias: vec![(Token(0), 50.0)], ..Sampling::greedy() };
        for sampling in [Sampling::greedy(), bias, warm()] {
            let sampled = sample(&mut [0.0, (3.0f32).ln()], &sampling, &[], &[], 0);
            let wanted = [0.25f32, 0.75][sampled.token.0 as usize].ln();
            assert!((sampled.logprob.unwrap() - wanted).abs() < 1e-6 && sampled.top.is_empty(), "{sampled:?}");
        }
    }

    #[test]
    fn only_what_is_allowed_is_chosen_whatever_speaks_against_it() {
        let bias = vec![(Token(0), 100.0), (Token(40), -100.0)];
        let logits: Vec<f32> = (0..50).map(|n| 50.0 - n as f32).collect();
        for sampling in [
            Sampling { logit_bias: bias.clone(), ..Sampling::greedy() },
            Sampling { logit_bias: bias, ..warm() },
            Sampling { top_k: 3, repetition_penalty: 2.0, ..warm() },
        ] {
            // Tokens 33 and 40: the second word's.
            let allowed = [0, 1 << 1 | 1 << 8];
            let sampling = Sampling { logprobs: Some(1), ..sampling };
            for position in 0..100 {
                let chosen =
                    sample_allowed(&mut logits.clone(), Some(&allowed), &sampling, &[Token(0)], &[Token(2)], position);
                assert!([33, 40].contains(&chosen.token.0), "{chosen:?}");
                assert_eq!(chosen.top[0].token, Token(0), "how likely it is, is said of all");
            }
        }
        let none_left = sample_allowed(&mut [1.0, 2.0, 3.0], Some(&[1]), &warm(), &[], &[], 0);
        assert_eq!(none_left.token, Token(0));
    }

    #[test]
    fn logprobs_are_of_the_raw_logits() {
        let ask = Sampling { temperature: 0.5, logprobs: Some(2), ..warm() };
        let sampled = sample(&mut [0.0, (3.0f32).ln()], &ask, &[], &[], 0);
        assert_eq!(sampled.top[0].token, Token(1));
        assert!((sampled.top[0].logprob - 0.75f32.ln()).abs() < 1e-6);
        assert!((sampled.top[1].logprob - 0.25f32.ln()).abs() < 1e-6);
    }
}
