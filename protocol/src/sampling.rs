//! How the next token is chosen, and what is said about it.

use crate::{Constraint, Token, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// A request's sampling parameters. The draw at a position depends on `seed` and position alone, so that a
/// continued request gives the tokens an undisturbed one would have given.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the likeliest tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides (or multiplies, where negative) the logits of tokens seen in prompt or answer; 1 is off.
    pub repetition_penalty: f32,
    /// Taken from the logit of a token for each time the answer has it already (OpenAI).
    pub frequency_penalty: f32,
    /// Taken once from the logit of every token the answer has already (OpenAI).
    pub presence_penalty: f32,
    /// Added to single logits before anything else.
    pub logit_bias: Vec<(Token, f32)>,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Report the log-probability of each token and this many alternatives.
    pub logprobs: Option<u8>,
    /// The same of the prompt's tokens, but for the first, which follows nothing.
    pub prompt_logprobs: Option<u8>,
    /// While the answer is shorter than this, none of `ends` is chosen.
    pub min_tokens: u32,
    /// Tokens that end an answer, where `min_tokens` is set.
    pub ends: Vec<Token>,
    /// What the answer's text must be: every token is chosen among those that may follow.
    pub constraint: Option<Box<Constraint>>,
}

impl Sampling {
    /// Always the likeliest token.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
            prompt_logprobs: None,
            min_tokens: 0,
            ends: Vec::new(),
            constraint: None,
        }
    }

    /// Whether logits are changed before a token is chosen.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        let plain = self.repetition_penalty == 1.0 && self.frequency_penalty == 0.0 && self.presence_penalty == 0.0;
        !plain || !self.logit_bias.is_empty() || self.min_tokens > 0 || self.constraint.is_some()
    }

    /// Refuses numbers that no sampler should see.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        let within = |x: f32, low: f32, high: f32| x.is_finite() && (low..=high).contains(&x);
        if !within(self.temperature, 0.0, 100.0) {
            return Err(CodecError::Invalid("temperature out of range"));
        }
        if !within(self.top_p, 0.0, 1.0) || !within(self.min_p, 0.0, 1.0) {
            return Err(CodecError::Invalid("top_p or min_p out of range"));
        }
        if !within(self.repetition_penalty, 1e-3, 100.0)
            || !within(self.frequency_penalty, -100.0, 100.0)
            || !within(self.presence_penalty, -100.0, 100.0)
        {
            return Err(CodecError::Invalid("penalty out of range"));
        }
        if self.logit_bias.len() > 1024 || !self.logit_bias.iter().all(|b| within(b.1, -100.0, 100.0)) {
            return Err(CodecError::Invalid("logit_bias too long or out of range"));
        }
        if self.logprobs.max(self.prompt_logprobs).is_some_and(|n| usize::from(n) > limits::TOP_LOGPROBS) {
            return Err(CodecError::Invalid("too many logprobs"));
        }
        if self.min_tokens > limits::SEQUENCE_TOKENS || self.ends.len() > limits::STOP_TOKENS {
            return Err(CodecError::Invalid("min_tokens out of range"));
        }
        self.constraint.as_ref().map_or(Ok(()), |constraint| constraint.check())
    }
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Sampled {
    /// The token that goes to the client.
    pub token: Token,
    /// Natural log of its probability before temperature and cuts. Whoever serves a swarm says it of every token, since others may
    /// compute it again; clients are told where they ask for it ([`Sampling::logprobs`]).
    pub logprob: Option<f32>,
    /// The likeliest tokens, best first.
    pub top: Vec<TokenLogprob>,
}

impl Sampled {
    /// Refuses more alternatives than anybody may ask for.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.top.len() > limits::TOP_LOGPROBS {
            return Err(CodecError::Invalid("too many alternatives of a token"));
        }
        Ok(())
    }
}

/// What a model says of a token that was given to it, by the tokens before it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct PromptLogprob {
    /// Natural log of its probability.
    pub logprob: f32,
    /// Tokens that are no less likely, itself among them: 1 is the likeliest.
    pub rank: u32,
    /// The likeliest tokens, best first.
    pub top: Vec<TokenLogprob>,
}

/// Refuses more than one message may say of a prompt.
pub(crate) fn check_prompt_logprobs(logprobs: &[PromptLogprob]) -> Result<(), CodecError> {
    if logprobs.len() > limits::PROMPT_LOGPROBS || logprobs.iter().any(|l| l.top.len() > limits::TOP_LOGPROBS) {
        return Err(CodecError::Invalid("too many log-probabilities of a prompt"));
    }
    Ok(())
}

/// One of the likeliest tokens where one was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token that might have been chosen.
    pub token: Token,
    /// Natural log of its probability.
    pub logprob: f32,
}
