//! `/v1/embeddings`: vectors of texts, by whichever peer lends the encoder.

use super::{
    ApiError, ApiState,
    bodies::ReadBody,
    fields::{Fields, GivenPrompt, INPUTS, Prompt},
};
use crate::{embedding::EncodeError, view::SwarmView};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};
use std::time::Duration;
use tsnode_protocol::{EncodeRefusal, Encoded, EncoderCard, EncoderInput, EncoderTask, limits};

/// Values of one answer: 32 MiB as they travel, and some 90 MiB as JSON.
const VALUES: usize = 8 << 20;
/// How much of a lender's own words is repeated (characters).
const REPEATED: usize = 300;

pub(super) async fn handle(
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let asked = state.bodies.read_inputs(&headers, body, limits::SEQUENCE_TOKENS as usize).await?;
    let ReadBody { place, mut fields, .. } = asked;
    let card = find(&state.view.borrow(), fields.text("model")?.as_deref(), EncoderTask::Embed)?;
    let given = fields.input().ok_or_else(|| ApiError::param("input", "'input' is missing"))?;
    let inputs = inputs(given, "input")?;
    let wanted = VectorOptions::read(&mut fields, &card)?;
    let truncate = truncate(&mut fields, &card)?;
    for ignored in ["user", "priority", "request_id", "input_type", "task"] {
        fields.take(ignored);
    }
    fields.finish()?;
    if inputs.len() * wanted.dimensions > VALUES {
        let most = VALUES / wanted.dimensions;
        return Err(ApiError::param(
            "input",
            format!("vectors of this model come {most} at a time; send fewer inputs"),
        ));
    }
    let name = card.name.clone();
    let encoded = state.encoders.encode(card, inputs, truncate).await.map_err(|error| refused(error, "input"))?;
    drop(place);
    let bytes = tokio::task::spawn_blocking(move || wanted.answer(&name, encoded)).await;
    let bytes = bytes.map_err(|e| ApiError::Failed(e.to_string()))??;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// The encoder that a client means: by name or id; the first of its kind, if it names none.
pub(super) fn find(view: &SwarmView, name: Option<&str>, task: EncoderTask) -> Result<EncoderCard, ApiError> {
    let mut fitting = view.encoders.iter().filter(|card| card.task == task);
    let Some(name) = name else {
        let (what, flag) = match task {
            EncoderTask::Embed => ("an embedding model", "--embedding-model"),
            EncoderTask::Score => ("a model that ranks", "--rerank-model"),
        };
        let none = || ApiError::Unserved {
            reason: format!("no peer lends {what}; a peer does with: tsnode join {flag} FOLDER"),
            retry_after: Duration::from_secs(5),
        };
        return fitting.next().cloned().ok_or_else(none);
    };
    let found = fitting.find(|card| card.name == name || card.id.to_string() == name);
    found.cloned().ok_or_else(|| ApiError::UnknownModel {
        asked: name.chars().take(120).collect(),
        there: view.encoders.iter().filter(|card| card.task == task).map(|card| card.name.clone()).collect(),
    })
}

/// What a list in a body is as inputs.
pub(super) fn inputs(given: Prompt, param: &str) -> Result<Vec<EncoderInput>, ApiError> {
    let wrong = |message: String| ApiError::param(param, message);
    let given = match given {
        Prompt::Given(given) => given,
        Prompt::TooMany => return Err(wrong(format!("'{param}' has more than {INPUTS} inputs"))),
        Prompt::Wrong => {
            return Err(wrong(format!(
                "'{param}' must be a string, a list of strings, a list of token ids, or a list of those"
            )));
        }
    };
    let one = |given| match given {
        GivenPrompt::Text(text) if text.is_empty() => Err(wrong(format!("'{param}' has an empty string"))),
        GivenPrompt::Tokens(tokens) if tokens.is_empty() => {
            Err(wrong(format!("'{param}' has an empty list of tokens")))
        }
        GivenPrompt::Text(text) if text.len() > limits::ENCODER_BYTES => {
            Err(wrong(format!("a text has {} bytes, and {} is the most", text.len(), limits::ENCODER_BYTES)))
        }
        GivenPrompt::Tokens(tokens) if 4 * tokens.len() > limits::ENCODER_BYTES => {
            Err(wrong(format!("an input has {} tokens, more than any model takes", tokens.len())))
        }
        GivenPrompt::Endless(tokens) => Err(wrong(format!("an input has {tokens} tokens, more than any model takes"))),
        GivenPrompt::Text(text) => Ok(EncoderInput::Text(text)),
        GivenPrompt::Tokens(tokens) => Ok(EncoderInput::Tokens(tokens)),
    };
    given.into_iter().map(one).collect()
}

/// vLLM's `truncate_prompt_tokens`: inputs are cut to so many tokens, to what the model takes with -1.
pub(super) fn truncate(fields: &mut Fields, card: &EncoderCard) -> Result<Option<u32>, ApiError> {
    const NAME: &str = "truncate_prompt_tokens";
    let Some(value) = fields.take(NAME) else { return Ok(None) };
    if value.as_i64() == Some(-1) {
        return Ok(Some(card.context));
    }
    let most = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=card.context).contains(n));
    let wrong = || ApiError::param(NAME, format!("'{NAME}' must be -1, or an integer from 1 to {}", card.context));
    most.map(Some).ok_or_else(wrong)
}

/// Why an encoder's work did not come about, to a client whose inputs are in `param`.
pub(super) fn refused(error: EncodeError, param: &'static str) -> ApiError {
    let clip = |text: String| text.chars().take(REPEATED).collect::<String>();
    match error {
        EncodeError::Refused(EncodeRefusal::TooLong { index, tokens, context }) => ApiError::FarTooLong {
            message: format!(
                "This model's maximum context length is {context} tokens. However, input {index} has {tokens} tokens. Please \
                 shorten it, or have it cut with truncate_prompt_tokens."
            ),
            param,
        },
        EncodeError::Refused(refusal) => ApiError::param(param, clip(refusal.to_string())),
        EncodeError::Busy => ApiError::Unserved { reason: error.to_string(), retry_after: Duration::from_secs(5) },
        EncodeError::NoLender | EncodeError::Closing => {
            ApiError::Unserved { reason: error.to_string(), retry_after: Duration::from_secs(2) }
        }
        EncodeError::Failed(_) => ApiError::Failed(clip(error.to_string())),
    }
}

/// How a client wants its vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VectorOptions {
    /// The first so many values.
    dimensions: usize,
    /// Of length 1.
    normalise: bool,
    format: EncodingFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EncodingFormat {
    Float,
    /// 32-bit numbers, the least byte first.
    Base64,
}

impl VectorOptions {
    fn read(fields: &mut Fields, card: &EncoderCard) -> Result<Self, ApiError> {
        let format = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => EncodingFormat::Float,
            Some("base64") => EncodingFormat::Base64,
            Some(_) => return Err(ApiError::param("encoding_format", "'encoding_format' must be float or base64")),
        };
        let dimensions = fields.integer("dimensions", 1, card.dimensions.into())?;
        let normalise = match fields.take("normalize") {
            None => true,
            Some(value) => {
                value.as_bool().ok_or_else(|| ApiError::param("normalize", "'normalize' must be true or false"))?
            }
        };
        Ok(Self { dimensions: dimensions.unwrap_or(card.dimensions.into()) as usize, normalise, format })
    }

    /// The answer's body.
    fn answer(self, model: &str, encoded: Vec<Encoded>) -> Result<Vec<u8>, ApiError> {
        let tokens = encoded.iter().map(|one| u64::from(one.tokens)).sum();
        let one = |(index, one): (usize, Encoded)| Embedding {
            object: "embedding",
            index,
            embedding: EmbeddingValues { values: self.shaped(one.values), format: self.format },
        };
        let answer = EmbeddingList {
            object: "list",
            data: encoded.into_iter().enumerate().map(one).collect(),
            model,
            usage: EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens },
        };
        serde_json::to_vec(&answer).map_err(|e| ApiError::Failed(e.to_string()))
    }

    /// The first values of a vector, which has length 1 again.
    fn shaped(self, mut values: Vec<f32>) -> Vec<f32> {
        values.truncate(self.dimensions);
        if self.normalise {
            let length = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
            values.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        values
    }
}

#[derive(Serialize)]
struct EmbeddingList<'m> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'m str,
    usage: EmbeddingUsage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: EmbeddingValues,
}

#[derive(Serialize)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

struct EmbeddingValues {
    values: Vec<f32>,
    format: EncodingFormat,
}

impl Serialize for EmbeddingValues {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.format {
            EncodingFormat::Float => self.values.serialize(to),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = self.values.iter().flat_map(|x| x.to_le_bytes()).collect();
                to.serialize_str(&data_encoding::BASE64.encode(&bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn vectors_are_cut_have_length_1_and_come_as_they_are_wanted() {
        let encoded = || vec![Encoded { tokens: 3, values: vec![3.0, 4.0, 12.0] }];
        let wanted = VectorOptions { dimensions: 2, normalise: true, format: EncodingFormat::Float };
        let answer: Value = serde_json::from_slice(&wanted.answer("m", encoded()).unwrap()).unwrap();
        assert_eq!(answer["usage"], json!({ "prompt_tokens": 3, "total_tokens": 3 }));
        assert_eq!(answer["data"][0]["embedding"], json!([0.6, 0.8]));
        let raw = VectorOptions { dimensions: 3, normalise: false, format: EncodingFormat::Base64 };
        let answer: Value = serde_json::from_slice(&raw.answer("m", encoded()).unwrap()).unwrap();
        assert_eq!(answer["data"][0]["embedding"], "AABAQAAAgEAAAEBB");
        let nothing = VectorOptions { dimensions: 2, normalise: true, format: EncodingFormat::Float };
        assert_eq!(nothing.shaped(vec![0.0, 0.0]), [0.0, 0.0], "what has no direction gets none");
    }

    #[test]
    fn lenders_words_are_not_repeated_without_end() {
        let why = "x".repeat(1 << 20);
        let error = refused(EncodeError::Refused(EncodeRefusal::Input { index: 0, why: why.clone() }), "input");
        assert!(error.to_string().len() <= REPEATED);
        assert!(refused(EncodeError::Failed(why), "input").to_string().len() <= REPEATED);
    }
}
