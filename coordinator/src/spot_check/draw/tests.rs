//! Honest groups whose logits are others by rounding are never refused; who does not draw as asked is, often enough.

use super::*;
use crate::rng::Rng;
use crate::spot_check::{evidence::EvidenceScore, opinion::Fit};
use tsnode_protocol::{Sampled, TokenLogprob};

/// So far rounding may move a logit (nats): half of what two may move against each other, but for the last bits.
const MOVED: f64 = 0.2499;
/// Tokens that are named.
const NAMED: usize = 20;

fn sampling(temperature: f32, top_k: u32, top_p: f32, min_p: f32, seed: u64) -> Sampling {
    Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::greedy() }
}

/// One of many settings, some with changes of logits.
fn any_sampling(rng: &mut Rng, tokens: usize) -> Sampling {
    let mut one_of = |of: &[f32]| of[rng.below(of.len())];
    let temperature = one_of(&[0.0, 0.005, 0.02, 0.2, 0.7, 1.0, 1.0, 1.3, 2.0]);
    let top_k = one_of(&[0.0, 0.0, 1.0, 3.0, 19.0, 20.0, 21.0, 40.0]) as u32;
    let (top_p, min_p) = (one_of(&[1.0, 1.0, 0.95, 0.5, 0.1]), one_of(&[0.0, 0.0, 0.001, 0.05, 0.3]));
    let mut any = sampling(temperature, top_k, top_p, min_p, rng.bits());
    if rng.below(4) == 0 {
        any.frequency_penalty = (rng.unit() * 2.0 - 0.5) as f32;
        any.presence_penalty = rng.unit() as f32;
        let mut bias = || (Token(rng.below(tokens) as u32), (rng.unit() * 4.0 - 3.0) as f32);
        any.logit_bias = (0..3).map(|_| bias()).collect();
        (any.min_tokens, any.ends) = (rng.below(6) as u32, vec![Token(rng.below(tokens) as u32)]);
    }
    any
}

/// Logits about as texts have them: some places leave no choice, others many.
fn any_logits(rng: &mut Rng, tokens: usize) -> Vec<f64> {
    let steep = 0.5 + 2.5 * rng.unit();
    let by = rng.below(tokens);
    let mut noise = || (rng.unit() + rng.unit() + rng.unit() - 1.5) * 2.0;
    let mut logits: Vec<f64> = (0..tokens).map(|n| noise() - steep * (1.0 + n as f64).ln()).collect();
    logits.rotate_left(by);
    logits
}

fn likeliest_first(logits: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order
}

/// As `tsnode_kernels::sampling` chooses.
fn chosen(logits: &[f64], draw: &Draw<'_>) -> usize {
    let mut logits = logits.to_vec();
    for (token, change) in draw.changes().unwrap() {
        logits[token.0 as usize] += change;
    }
    let mut order = likeliest_first(&logits);
    let Sampling { temperature, top_k, top_p, min_p, .. } = *draw.sampling;
    order.truncate(if top_k == 0 { usize::MAX } else { top_k as usize });
    if temperature == 0.0 {
        return order[0];
    }
    let top = logits[order[0]];
    let weight = |token: usize| ((logits[token] - top) / f64::from(temperature)).exp();
    let mut kept: Vec<(usize, f64)> = order.into_iter().map(|token| (token, weight(token))).collect();
    if top_p < 1.0 {
        let mass = f64::from(top_p) * kept.iter().map(|(_, weight)| weight).sum::<f64>();
        let (mut reached, mut most) = (0.0, 0);
        while most < kept.len() && reached < mass {
            reached += kept[most].1;
            most += 1;
        }
        kept.truncate(most.max(1));
    }
    kept.retain(|(_, weight)| *weight > 0.0 && *weight >= f64::from(min_p));
    let mut left = draw.at * kept.iter().map(|(_, weight)| weight).sum::<f64>();
    for (token, weight) in &kept {
        left -= weight;
        if left < 0.0 {
            return *token;
        }
    }
    kept.last().unwrap().0
}

fn logprobs(logits: &[f64]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = most + logits.iter().map(|logit| (logit - most).exp()).sum::<f64>().ln();
    logits.iter().map(|logit| (logit - total) as f32).collect()
}

/// What a group with these logits says of a token, and of the likeliest; it chooses another.
fn opinion_of(logits: &[f64], token: usize) -> Opinion {
    let all = logprobs(logits);
    let one = |token: usize| TokenLogprob { token: Token(token as u32), logprob: all[token] };
    let top: Vec<TokenLogprob> = likeliest_first(logits).into_iter().take(NAMED).map(one).collect();
    let is_named = top.iter().any(|named| named.token == Token(token as u32));
    let mut opinion = Opinion::new(Sampled { token: Token(u32::MAX), logprob: Some(-9.0), top });
    if !is_named {
        let own = Token(token as u32);
        opinion.asked_for(own, &Sampled { token: own, logprob: Some(all[token]), top: vec![] });
    }
    opinion
}

fn word(logits: &[f64], token: usize) -> Word {
    Word::new(Token(token as u32), Some(logprobs(logits)[token]))
}

/// Logits as another honest group may have them: at random, as far as can be, and for or against what is likelier than some token.
fn rounded(logits: &[f64], rng: &mut Rng) -> Vec<f64> {
    let (how, common) = (rng.below(4), rng.unit() * 9.0);
    let pivot = logits[rng.below(logits.len())];
    let mut by = |logit: f64| match how {
        0 => rng.unit() * 2.0 - 1.0,
        1 => [-1.0, 1.0][rng.below(2)],
        2 if logit > pivot => -1.0,
        3 if logit < pivot => -1.0,
        _ => 1.0,
    };
    logits.iter().map(|logit| logit + common + MOVED * by(*logit)).collect()
}

#[test]
fn honest_groups_are_never_refused_however_logits_are_rounded() {
    let (mut rng, mut differed) = (Rng::new(3), 0);
    for _ in 0..3000 {
        let tokens = if rng.below(4) == 0 { 2 + rng.below(30) } else { 50 + rng.below(250) };
        let (logits, sampling) = (any_logits(&mut rng, tokens), any_sampling(&mut rng, tokens));
        let answer: Vec<Token> = (0..4).map(|_| Token(rng.below(tokens) as u32)).collect();
        for position in 0..10 {
            let draw = Draw::new(&sampling, &answer, position);
            let others = rounded(&logits, &mut rng);
            let token = chosen(&others, &draw);
            differed += usize::from(token != chosen(&logits, &draw));
            let fit = opinion_of(&logits, token).fit(word(&others, token), &draw);
            assert_eq!(fit, Fit::Within, "{sampling:?} {position}: {token} of {logits:?}");
        }
    }
    // Without the bounds each of these would have been a lie.
    assert!(differed > 1000, "{differed}");
}

#[test]
fn the_same_logits_give_just_what_is_drawn_and_no_neighbour() {
    let logits = [6.0, 4.0, 2.0, 0.0];
    let sampling = sampling(1.0, 0, 1.0, 0.0, 1);
    for position in 0..200 {
        let draw = Draw::new(&sampling, &[], position);
        let drawn = chosen(&logits, &draw);
        for token in 0..4 {
            let own = word(&logits, token);
            assert_eq!(draw.may_give(&opinion_of(&logits, token), own, 1e-6), token == drawn, "{position} {token}");
        }
    }
}

/// Checks on average until who gives such tokens, and says truly how likely they are, is found: by two that are outside of what any
/// honest group says, or by enough in doubt.
fn checks_until_found(settings: [f32; 4], lie: impl Fn(&mut Rng, &[usize], usize) -> usize) -> f64 {
    const MOST: u32 = 2000;
    let mut rng = Rng::new(11);
    let [temperature, top_k, top_p, min_p] = settings;
    let mut one = || {
        let (mut evidence, mut outside) = (EvidenceScore::default(), 0);
        for check in 1..MOST {
            let logits = any_logits(&mut rng, 300);
            let asked = sampling(temperature, top_k as u32, top_p, min_p, rng.bits());
            let other = Sampling { seed: rng.bits(), ..asked.clone() };
            let redrawn = chosen(&logits, &Draw::new(&other, &[], 0));
            let token = lie(&mut rng, &likeliest_first(&logits), redrawn);
            match opinion_of(&logits, token).fit(word(&logits, token), &Draw::new(&asked, &[], 0)) {
                Fit::Within => evidence.passed(),
                Fit::Doubtful if evidence.failed() => return check,
                Fit::Outside if outside == 1 => return check,
                Fit::Doubtful => {}
                Fit::Outside => outside += 1,
            }
        }
        MOST
    };
    (0..20).map(|_| f64::from(one())).sum::<f64>() / 20.0
}

#[test]
fn who_does_not_draw_as_asked_is_found_within_so_many_checks() {
    let settings = [[1.0, 0.0, 1.0, 0.0], [0.7, 0.0, 1.0, 0.0], [1.0, 0.0, 0.95, 0.0], [0.7, 20.0, 0.9, 0.0]];
    for each in settings {
        let any = checks_until_found(each, |rng, order, _| order[rng.below(order.len())]);
        let likely = checks_until_found(each, |rng, order, _| order[rng.below(20)]);
        let second = checks_until_found(each, |_, order, _| order[1]);
        let first = checks_until_found(each, |_, order, _| order[0]);
        let redrawn = checks_until_found(each, |_, _, redrawn| redrawn);
        let found = [any, likely, second, first, redrawn];
        println!("{each:?}: any token, a likely one, the second, the first, another draw: {found:.0?}");
        let bounds = [6.0, 10.0, 20.0, 700.0, 200.0];
        assert!(found.iter().zip(bounds).all(|(found, bound)| *found <= bound), "{each:?}: {found:.0?}");
    }
}

#[test]
fn a_greedy_choice_is_no_draw() {
    let logits = [2.0, 1.9, 1.0];
    let greedy = Sampling::greedy();
    let fit = |token: usize| opinion_of(&logits, token).fit(word(&logits, token), &Draw::new(&greedy, &[], 0));
    assert_eq!([0, 1, 2].map(fit), [Fit::Within, Fit::Within, Fit::Doubtful]);
}

#[test]
fn who_says_something_else_of_a_token_is_in_doubt_and_far_from_it_false() {
    let logits = [2.0, 1.9, 1.0];
    let greedy = Sampling::greedy();
    let fit = |said: f32| opinion_of(&logits, 0).fit(Word::new(Token(0), Some(said)), &Draw::new(&greedy, &[], 0));
    let truth = logprobs(&logits)[0];
    assert_eq!([truth, truth - 0.4].map(fit), [Fit::Within; 2]);
    assert_eq!([truth - 1.0, truth + 1.0].map(fit), [Fit::Doubtful; 2]);
    assert_eq!([truth - 3.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(fit), [Fit::Outside; 4]);
}

/// What cannot be computed again is not held against anybody, but for how likely it is said to be; what is not allowed, is.
#[test]
fn under_a_grammar_the_word_counts_and_what_is_allowed() {
    let logits = [2.0, 1.0, -3.0];
    let grammar = tsnode_protocol::Grammar::Regex("a".into());
    let constraint = Some(Box::new(tsnode_protocol::Constraint { grammar, ends: vec![] }));
    let drawn = Sampling { temperature: 1.0, constraint, ..Sampling::greedy() };
    let fit = |sampling: &Sampling, opinion: &Opinion, token: usize| {
        opinion.fit(word(&logits, token), &Draw::new(sampling, &[], 0))
    };
    for token in 0..3 {
        assert_eq!(fit(&drawn, &opinion_of(&logits, token), token), Fit::Within);
    }
    let mut forbidden = opinion_of(&logits, 0);
    forbidden.asked_for(Token(0), &Sampled { token: Token(1), logprob: Some(-1.0), top: vec![] });
    assert_eq!(fit(&drawn, &forbidden, 0), Fit::Outside);
    // A greedy one is as good as what a greedy group chose.
    let greedy = Sampling { temperature: 0.0, ..drawn };
    let top = opinion_of(&logits, 0).top().to_vec();
    let best = Opinion::new(Sampled { token: Token(0), logprob: Some(top[0].logprob), top });
    assert_eq!([0, 1, 2].map(|token| fit(&greedy, &best, token)), [Fit::Within, Fit::Doubtful, Fit::Outside]);
}

#[test]
fn of_more_tokens_than_may_be_asked_for_no_more_are_looked_at() {
    let top = (0..9999).map(|n| TokenLogprob { token: Token(n), logprob: -9.0 }).collect();
    let opinion = Opinion::new(Sampled { token: Token(0), logprob: Some(-9.0), top });
    assert_eq!(opinion.top().len(), NAMED);
}
