//! Where an answer ends, and which of its tokens are text, as vLLM's clients say it.

use super::{ApiError, fields::Fields};
use crate::text::TextModel;
use tsnode_protocol::{Token, limits};

/// How an answer ends, beside stop strings and the model's own tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnswerEnds {
    /// Nothing ends it before so many tokens.
    pub min_tokens: u32,
    /// These end it, whatever the model's own are.
    pub stop_token_ids: Vec<Token>,
    /// The model's own do not.
    pub ignore_eos: bool,
    /// Special tokens are no text.
    pub skip_special_tokens: bool,
    /// What ends it is text.
    pub include_stop: bool,
}

impl AnswerEnds {
    pub fn of(fields: &mut Fields, model: &TextModel) -> Result<Self, ApiError> {
        Ok(Self {
            min_tokens: fields.integer("min_tokens", 0, limits::SEQUENCE_TOKENS.into())?.unwrap_or(0) as u32,
            stop_token_ids: stop_token_ids(fields, model)?,
            ignore_eos: fields.flag("ignore_eos")?,
            skip_special_tokens: fields.flag_or("skip_special_tokens", true)?,
            include_stop: fields.flag("include_stop_str_in_output")?,
        })
    }

    /// Tokens that end an answer of the model.
    pub fn tokens(&self, model: &TextModel) -> Vec<Token> {
        let own: &[Token] = if self.ignore_eos { &[] } else { model.stop_tokens() };
        let mut ends = own.to_vec();
        ends.extend(self.stop_token_ids.iter().filter(|id| !own.contains(id)));
        ends
    }
}

fn stop_token_ids(fields: &mut Fields, model: &TextModel) -> Result<Vec<Token>, ApiError> {
    let Some(value) = fields.take("stop_token_ids") else { return Ok(Vec::new()) };
    // Room is left for the model's own.
    let (most, vocab) = (limits::STOP_TOKENS / 2, model.card().shape.vocab);
    let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab);
    let ids = value.as_array().filter(|ids| ids.len() <= most);
    let ids = ids.and_then(|ids| ids.iter().map(|value| id(value).map(Token)).collect::<Option<Vec<_>>>());
    let mut ids = ids.ok_or_else(|| {
        let why = format!("'stop_token_ids' must be a list of up to {most} token ids below {vocab}");
        ApiError::param("stop_token_ids", why)
    })?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
