//! What a group says of the place of a token, and how well another's word fits it.
//!
//! Two processors say the same to the bit. What a GPU computes is a little different, and so may be what it draws: there a token
//! fits where logits as near as honest ones are give it.

use tsnode_protocol::{Sampled, Token, TokenLogprob, limits, stream::Generation};

/// A greedy token may be this much less likely than the likeliest (nats): pages may be of different precision.
const TIE: f32 = 0.02;
/// Log-probabilities of one token may be this far apart (nats): GPUs compute with fewer bits than processors do. Logits of two tokens
/// are taken to move against each other by no more than that.
pub(super) const LOGPROBS: f32 = 0.5;
/// What is off by more than this (nats) was not computed from the same model and tokens, however it rounds.
pub(super) const FALSE: f32 = 2.0;

/// A token, and what somebody says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub token: Token,
    /// Minus infinity where nothing is said of it: then there is no such token.
    pub logprob: f32,
}

impl Word {
    pub fn new(token: Token, logprob: Option<f32>) -> Self {
        Self { token, logprob: logprob.unwrap_or(f32::NEG_INFINITY) }
    }

    pub fn agrees(self, other: Self) -> bool {
        // What is no number agrees with nothing, nor do infinities.
        self.token == other.token && self.differs_by(other) <= LOGPROBS
    }

    pub fn differs_by(self, other: Self) -> f32 {
        (self.logprob - other.logprob).abs()
    }
}

/// How well a word fits an opinion; the better is the lesser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// Within what rounding does.
    Within,
    /// Beyond that, as an honest one may be now and then.
    Doubtful,
    /// As no honest one is.
    Outside,
}

/// What a group says of a place.
#[derive(Clone, Debug)]
pub(super) struct Opinion {
    /// What it chooses, and the likeliest.
    said: Sampled,
    /// What it says of one token that it was asked for.
    asked: Option<Word>,
}

impl Opinion {
    /// What it says beyond what may be asked for is not looked at: one message has room for some hundred thousand, and each is held
    /// against each.
    pub fn new(mut said: Sampled) -> Self {
        said.top.truncate(limits::TOP_LOGPROBS);
        said.top.retain(|likely| likely.logprob.is_finite());
        Self { said, asked: None }
    }

    /// What it chooses.
    pub fn word(&self) -> Word {
        Word::new(self.said.token, self.said.logprob)
    }

    /// The likeliest tokens.
    pub fn top(&self) -> &[TokenLogprob] {
        &self.said.top
    }

    /// Whether it has to be asked for what it says of this token: it neither chooses it nor names it, or it may not be allowed.
    pub fn lacks(&self, token: Token, generation: &Generation) -> bool {
        let is_named = self.top().iter().any(|likely| likely.token == token);
        let is_known = is_named && generation.sampling.constraint.is_none();
        self.asked.is_none() && self.said.token != token && !is_known
    }

    /// Asked to choose `token` if that is allowed at all, it has said this.
    pub fn asked_for(&mut self, token: Token, said: &Sampled) {
        let logprob = said.logprob.filter(|_| said.token == token);
        self.asked = Some(Word::new(token, logprob));
    }

    /// How well a word fits where all compute the same bits. Of greedy tokens near ties fit, too.
    pub fn exact_fit(&self, word: Word, generation: &Generation) -> Fit {
        if word.agrees(self.word()) || is_tie(generation, word, &self.said) { Fit::Within } else { Fit::Outside }
    }

    /// What is said here of a word's token. Of one that is not named only this much is known: it is no likelier than those that are.
    pub fn of(&self, word: Word) -> Word {
        let named = || self.top().iter().find(|likely| likely.token == word.token).map(|likely| likely.logprob);
        let asked = self.asked.filter(|asked| asked.token == word.token).map(|asked| asked.logprob);
        let logprob = match asked {
            _ if word.token == self.said.token => self.word().logprob,
            Some(logprob) => logprob,
            None => named().unwrap_or_else(|| self.top().iter().fold(word.logprob, |least, t| least.min(t.logprob))),
        };
        Word { token: word.token, logprob }
    }
}

/// Whether `claimed` is as likely as the token that greedy choice gave, but for rounding. What is likelier than that under a
/// grammar was forbidden by it.
pub(super) fn is_tie(generation: &Generation, claimed: Word, sampled: &Sampled) -> bool {
    let best = sampled.logprob.unwrap_or(0.0);
    let most = if generation.sampling.constraint.is_some() { best + TIE } else { f32::INFINITY };
    let near = |t: &TokenLogprob| {
        t.logprob > best - TIE && t.logprob < most && claimed.agrees(Word::new(t.token, Some(t.logprob)))
    };
    generation.sampling.temperature == 0.0 && sampled.top.iter().any(near)
}
