//! Whether a token can have been drawn from logits that are known but for rounding.
//!
//! A sampler sorts tokens by their logits, keeps the likeliest (top-k, top-p and min-p each keep a beginning of that order), and
//! takes the token into whose part of the whole the draw falls, likeliest first. The draw is known: it depends on seed and
//! position alone. Of the logits it is known that rounding moved any two of them against each other by at most `moved` nats:
//! beside what all moved by, each moved by at most half of that. So by temperature T a weight is within a factor of
//! `exp(moved / 2T)` of what it was, and two tokens changed places only if they were no more than `moved` apart.
//!
//! A token's part begins no earlier than where what surely comes before it is as light as can be and all else as heavy, and
//! ends no later than where it and all that may come before it are as heavy as can be and what surely comes after as light.
//! A draw outside of that gives the token for no such logits, so a token that was drawn honestly is never refused. Of all but
//! the likeliest tokens only the sum is known, and that none is likelier than those: the bounds are taken accordingly.

use super::opinion::{FALSE, Fit, LOGPROBS, Opinion, Word};
use std::collections::BTreeMap;
use tsnode_protocol::{Sampling, Token, philox::uniform};

/// Below this temperature what is drawn is the likeliest token, or one about as likely.
const COLD: f64 = 0.01;
/// What is less likely than the likeliest by so many temperatures (nats) is not drawn there: a draw has 53 bits, which are 37, and a
/// million tokens are 14 more.
const DRAWN: f64 = 60.0;
/// No model has more tokens.
const VOCABULARY: f64 = 1_048_576.0;
/// Sums of probabilities are known this well: these come in single precision.
const ROUNDING: f64 = 1e-4;
/// Exponents of e are cut here, where a number is beyond all others and still one.
const LARGEST: f64 = 600.0;

/// How the token of one place of an answer was to be chosen.
pub(super) struct Draw<'a> {
    sampling: &'a Sampling,
    /// The answer up to there.
    answer: &'a [Token],
    /// The number drawn.
    at: f64,
}

/// What is known of a place's logits, changed as the sampler changes them.
struct Logits {
    /// Of the token that is looked at.
    own: f64,
    /// Of others, the likeliest before changes.
    others: Vec<f64>,
    /// The largest of these.
    most: f64,
    /// None that is not known is larger than this.
    least: f64,
    /// Probability of what is not known, at least and at most.
    rest: [f64; 2],
}

/// The bounds for one token.
struct TokenBounds<'a> {
    logits: &'a Logits,
    sampling: &'a Sampling,
    moved: f64,
    /// By so much, at most, a weight is off.
    factor: f64,
}

impl Opinion {
    /// How well a word fits where they do not: it says what is said here of its token, and the draw may give that.
    pub fn fit(&self, word: Word, draw: &Draw<'_>) -> Fit {
        let own = self.of(word);
        let is_chosen = word.token == self.word().token;
        let fits = |nats: f32| word.differs_by(own) <= nats && (is_chosen || draw.may_give(self, own, f64::from(nats)));
        match (fits(LOGPROBS), fits(FALSE)) {
            (true, _) => Fit::Within,
            (false, true) => Fit::Doubtful,
            (false, false) => Fit::Outside,
        }
    }
}

impl<'a> Draw<'a> {
    pub fn new(sampling: &'a Sampling, answer: &'a [Token], position: u32) -> Self {
        Self { sampling, answer, at: uniform(sampling.seed, position) }
    }

    /// Whether a token, of which just this is known, may be chosen where a group holds this opinion, if logits moved by `moved`.
    /// It may, too, where nobody can say: the masks of grammars are not known here, a repetition penalty needs logits and not
    /// just their differences, and of a token that was made likelier and is none of the likeliest nothing is known.
    pub fn may_give(&self, opinion: &Opinion, own: Word, moved: f64) -> bool {
        match self.logits(opinion, own) {
            Some(logits) => logits.own.is_finite() && self.may_fall_on(&logits, moved),
            None => self.is_drawn() || own.logprob + moved as f32 >= opinion.word().logprob,
        }
    }

    fn may_fall_on(&self, logits: &Logits, moved: f64) -> bool {
        let temperature = f64::from(self.sampling.temperature);
        if temperature < COLD {
            return logits.own + moved + DRAWN * temperature >= logits.most;
        }
        let factor = (moved / 2.0 / temperature).exp();
        let bounds = TokenBounds { logits, sampling: self.sampling, moved, factor };
        bounds.begins_by(self.at) && bounds.ends_after(self.at)
    }

    /// Whether it is not simply the likeliest token that a grammar allows.
    fn is_drawn(&self) -> bool {
        let plain = Sampling { constraint: None, ..self.sampling.clone() };
        self.sampling.temperature > 0.0 || plain.changes_logits()
    }

    fn logits(&self, opinion: &Opinion, own: Word) -> Option<Logits> {
        let mut changes = self.changes()?;
        let mut changed = |token: Token, logprob: f64| logprob + changes.remove(&token).unwrap_or(0.0);
        let said = f64::from(own.logprob);
        let own_logit = changed(own.token, said);
        let (mut others, mut known, mut least) = (Vec::new(), said.exp(), 0.0_f64);
        for other in opinion.top().iter().filter(|other| other.token != own.token) {
            let logprob = f64::from(other.logprob);
            others.push(changed(other.token, logprob));
            known += logprob.exp();
        }
        for likely in opinion.top() {
            least = least.min(f64::from(likely.logprob));
        }
        others.retain(|logit| logit.is_finite());
        if changes.values().any(|change| *change > 0.0) {
            return None;
        }
        let is_lowered = changes.values().any(|change| *change < 0.0);
        let at_least = if is_lowered { 0.0 } else { (1.0 - known - ROUNDING).max(0.0) };
        let rest = [at_least, (1.0 - known + ROUNDING).max(0.0)];
        let most = others.iter().copied().fold(own_logit, f64::max);
        Some(Logits { own: own_logit, others, most, least, rest })
    }

    /// What is added to logits before the draw, token by token, where that is known.
    fn changes(&self) -> Option<BTreeMap<Token, f64>> {
        let sampling = self.sampling;
        if sampling.constraint.is_some() || sampling.repetition_penalty != 1.0 {
            return None;
        }
        let mut changes = BTreeMap::<Token, f64>::new();
        for (token, bias) in &sampling.logit_bias {
            *changes.entry(*token).or_default() += f64::from(*bias);
        }
        let (each, once) = (f64::from(sampling.frequency_penalty), f64::from(sampling.presence_penalty));
        if each != 0.0 || once != 0.0 {
            let mut counts = BTreeMap::<Token, u32>::new();
            for token in self.answer {
                *counts.entry(*token).or_default() += 1;
            }
            for (token, count) in counts {
                *changes.entry(token).or_default() -= f64::from(count) * each + once;
            }
        }
        if self.answer.len() < sampling.min_tokens as usize {
            changes.extend(sampling.ends.iter().map(|end| (*end, f64::NEG_INFINITY)));
        }
        Some(changes)
    }
}

impl TokenBounds<'_> {
    /// Whether the token's part may begin where the draw fell, or before.
    fn begins_by(&self, at: f64) -> bool {
        let Logits { own, ref others, most, .. } = *self.logits;
        let floor = self.floor(most);
        if own + self.moved < floor {
            return false;
        }
        let sure: Vec<f64> = others.iter().copied().filter(|logit| *logit > own + self.moved).collect();
        let Some(places) = self.top_k().checked_sub(sure.len()).filter(|places| *places > 0) else { return false };
        let before = sure.iter().map(|logit| self.weight(*logit)).sum::<f64>() / self.factor;
        let own = self.factor * self.weight(own);
        let kept = before + own + self.others_at_most(places - 1, floor);
        // Of the kept the last one reaches top-p, and is no heavier than this one.
        let reached =
            f64::from(self.sampling.top_p) * (before + own + self.others_at_most(places - 1, f64::NEG_INFINITY));
        at * kept.min(reached + own) >= before
    }

    /// Whether the token's part may end behind where the draw fell.
    fn ends_after(&self, at: f64) -> bool {
        let Logits { own, ref others, most, least, rest } = *self.logits;
        let maybe = others.iter().filter(|logit| **logit >= own - self.moved);
        let mut end = self.weight(own) + maybe.map(|logit| self.weight(*logit)).sum::<f64>();
        if least >= own - self.moved {
            end += self.weights(rest[1])[1];
        }
        end *= self.factor;
        let floor = self.floor(most.max(least)) + self.moved;
        let (mut all, mut kept) = (0.0, 0.0);
        for logit in others.iter().filter(|logit| **logit < own - self.moved && self.is_in_top_k(**logit)) {
            let weight = self.weight(*logit) / self.factor;
            all += weight;
            kept += if *logit >= floor { weight } else { 0.0 };
        }
        if self.top_k() == usize::MAX && least < own - self.moved {
            let weight = self.weights(rest[0])[0] / self.factor;
            all += weight;
            kept += if self.sampling.min_p == 0.0 { weight } else { 0.0 };
        }
        at * (end + kept).min(f64::from(self.sampling.top_p) * (end + all)) < end
    }

    /// The most that `places` tokens weigh which do not surely come before, if each is at least about this likely.
    fn others_at_most(&self, places: usize, floor: f64) -> f64 {
        let Logits { own, ref others, least, rest, .. } = *self.logits;
        let may_be = |logit: &f64| *logit <= own + self.moved && *logit + self.moved >= floor;
        let mut weights: Vec<f64> = others.iter().copied().filter(may_be).map(|logit| self.weight(logit)).collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        let one_of_rest = self.weight(least);
        let heavier = weights.iter().take_while(|weight| **weight >= one_of_rest).count().min(places);
        let rest = if least + self.moved >= floor { self.weights(rest[1])[1] } else { 0.0 };
        let lighter = rest + weights[heavier..].iter().sum::<f64>();
        let places = (places - heavier) as f64;
        self.factor * (weights[..heavier].iter().sum::<f64>() + lighter.min(places * one_of_rest))
    }

    /// Whether fewer tokens than top-k keeps may come before one of the others.
    fn is_in_top_k(&self, logit: f64) -> bool {
        if self.top_k() == usize::MAX {
            return true;
        }
        let Logits { own, ref others, least, .. } = *self.logits;
        let may_be_before = |other: &&f64| **other >= logit - self.moved;
        // It is one of these itself.
        let before = others.iter().chain([&own]).filter(may_be_before).count() - 1;
        least < logit - self.moved && before < self.top_k()
    }

    fn top_k(&self) -> usize {
        match self.sampling.top_k {
            0 => usize::MAX,
            top_k => top_k as usize,
        }
    }

    /// Below this min-p keeps nothing where the likeliest is this likely.
    fn floor(&self, most: f64) -> f64 {
        most + f64::from(self.sampling.temperature) * f64::from(self.sampling.min_p).ln()
    }

    /// Beside that of the largest that is known.
    fn weight(&self, logit: f64) -> f64 {
        ((logit - self.logits.most) / f64::from(self.sampling.temperature)).min(LARGEST).exp()
    }

    /// What tokens of this probability weigh that are not known: the least and the most. One is where each is as likely as it can
    /// be, so that they are few; the other where all that there are share it evenly.
    fn weights(&self, probability: f64) -> [f64; 2] {
        let Logits { most, least, .. } = *self.logits;
        let sharp = 1.0 / f64::from(self.sampling.temperature);
        let few = probability.ln() + (sharp - 1.0) * least - most * sharp;
        let many = (1.0 - sharp) * VOCABULARY.ln() + sharp * probability.ln() - most * sharp;
        [few.min(many), few.max(many)].map(|log| log.min(LARGEST).exp())
    }
}

#[cfg(test)]
mod tests;
