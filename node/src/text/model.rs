//! A model as text sees it: its tokenizer, template, stop tokens and defaults.

use super::{ChatMessage, Detokeniser, TemplateText, Templates, guarded, templates::Renderer};
use crate::models::ModelFiles;
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;
use tokenizers::Tokenizer;
use tsnode_protocol::{ModelCard, Token};

/// Why a model's text files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing.
    #[error("the model has no {0}")]
    Missing(&'static str),
    /// A file is not what it should be.
    #[error("{file}: {error}")]
    Broken {
        /// Which.
        file: &'static str,
        /// Why.
        error: String,
    },
    /// The tokenizer belongs to another model.
    #[error("tokenizer.json does not fit the model: it has tokens up to {highest}, the model {vocab}")]
    Misfit {
        /// Its highest token id.
        highest: u32,
        /// Entries of the model's vocabulary.
        vocab: u32,
    },
    /// The text cannot be encoded, or the messages cannot be rendered.
    #[error("{0}")]
    Input(String),
    /// The model has no chat template.
    #[error("this model has no chat template; use /v1/completions")]
    NoTemplate,
    /// Rendering takes more than it may.
    #[error("the model's chat template takes too much memory or time; use /v1/completions")]
    Unbounded,
    /// Others' conversations are rendered, and take long.
    #[error("the model's chat template is busy")]
    Busy,
    /// There is no process to render in.
    #[error("cannot start {} for the model's chat template: {why}", program.display())]
    NoProcess {
        /// The program.
        program: PathBuf,
        /// Why.
        why: String,
    },
}

impl TextError {
    pub(super) fn template(error: String) -> Self {
        Self::Broken { file: "chat template", error }
    }
}

/// Sampling a model asks for where the client says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Defaults {
    /// Whether it is meant to be sampled; greedy if not.
    pub do_sample: Option<bool>,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Top-k.
    pub top_k: Option<u32>,
    /// Min-p.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
}

/// A model's text side.
pub struct TextModel {
    card: ModelCard,
    tokenizer: Tokenizer,
    template: Option<Renderer>,
    stop_tokens: Vec<Token>,
    defaults: Defaults,
}

impl TextModel {
    /// From a model's small files; [`Self::check`] says whether its template is good, where that is rendered apart.
    ///
    /// # Errors
    /// When one is missing, broken, or of another model.
    pub fn new(files: &ModelFiles, templates: &Templates) -> Result<Self, TextError> {
        let bytes = files.files.get("tokenizer.json").ok_or(TextError::Missing("tokenizer.json"))?;
        let broken = |error: String| TextError::Broken { file: "tokenizer.json", error };
        let tokenizer = guarded::read(bytes).map_err(broken)?;
        let highest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        let vocab = files.card.shape.vocab;
        // Models pad their vocabulary, but not to twice its size.
        if highest >= vocab || highest < vocab / 2 {
            return Err(TextError::Misfit { highest, vocab });
        }
        let read = |name| json(files, name);
        let (settings, generation, config) =
            (read("tokenizer_config.json")?, read("generation_config.json")?, read("config.json")?);
        let template = TemplateText::find(&settings, files.files.get("chat_template.jinja").map(Vec::as_slice));
        let template = template.map(|template| templates.renderer(template)).transpose()?;
        let mut stop_tokens = eos(&generation);
        if stop_tokens.is_empty() {
            stop_tokens = eos(&config);
        }
        // Some models name only there what ends a turn.
        let named = eos_token(&settings).and_then(|text| tokenizer.token_to_id(text)).map(Token);
        stop_tokens.extend(named.filter(|token| !stop_tokens.contains(token)));
        let defaults = serde_json::from_value(generation).unwrap_or_default();
        Ok(Self { card: files.card.clone(), tokenizer, template, stop_tokens, defaults })
    }

    /// Whether its template can be read.
    ///
    /// # Errors
    /// When it cannot, or there is no process to do it.
    pub async fn check(&self) -> Result<(), TextError> {
        match &self.template {
            Some(template) => template.check().await,
            None => Ok(()),
        }
    }

    /// What the model is.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// Tokens that end an answer.
    #[must_use]
    pub fn stop_tokens(&self) -> &[Token] {
        &self.stop_tokens
    }

    /// Sampling where the client says nothing.
    #[must_use]
    pub fn defaults(&self) -> Defaults {
        self.defaults
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens of a plain text, with what the tokenizer puts around one.
    ///
    /// # Errors
    /// When the tokenizer cannot.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.tokens(text, true)
    }

    /// Tokens of a conversation, ready for the model's answer.
    ///
    /// # Errors
    /// When there is no template, it refuses the messages or takes too much for them, or the tokenizer cannot.
    pub async fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<Token>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let text = template.render(messages).await?;
        // The template has written all special tokens itself.
        self.tokens(&text, false)
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, TextError> {
        let tokens = guarded::encode(&self.tokenizer, text, special).map_err(TextError::Input)?;
        Ok(tokens.into_iter().map(Token).collect())
    }

    /// The text of some tokens, without those that are no text.
    #[must_use]
    pub fn decode(&self, tokens: &[Token]) -> String {
        let mut text = Detokeniser::new(&self.tokenizer, true);
        let said: String = tokens.iter().map(|token| text.push(*token)).collect();
        said + &text.finish()
    }
}

fn json(files: &ModelFiles, name: &'static str) -> Result<Value, TextError> {
    let Some(bytes) = files.files.get(name) else { return Ok(Value::Null) };
    serde_json::from_slice(bytes).map_err(|e| TextError::Broken { file: name, error: e.to_string() })
}

/// `eos_token_id` is a number or a list of them.
fn eos(config: &Value) -> Vec<Token> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).map(Token);
    match &config["eos_token_id"] {
        Value::Array(many) => many.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

/// `eos_token` of `tokenizer_config.json` is a text, or an object that holds it.
fn eos_token(settings: &Value) -> Option<&str> {
    let token = &settings["eos_token"];
    token.as_str().or(token["content"].as_str())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;
    use tsnode_kernels::source::ModelSource;

    pub(crate) fn embedded() -> ModelFiles {
        let source = ModelSource::embedded().unwrap();
        let card = source.card().clone();
        let files = card.files.iter().map(|f| (f.name.clone(), source.file(&f.name).unwrap().to_vec())).collect();
        ModelFiles { card, files: Arc::new(files) }
    }

    #[tokio::test]
    async fn a_conversation_is_rendered_as_the_model_was_trained() {
        let model = TextModel::new(&embedded(), &Templates::Here).unwrap();
        let says = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
        let tokens =
            model.encode_chat(&[says("user", "Good day"), says("assistant", "Yes"), says("user", "Go on")]).await;
        let ids: Vec<u32> = tokens.unwrap().iter().map(|t| t.0).collect();
        assert_eq!((ids[0], ids[1], *ids.last().unwrap()), (0, 2, 3));
        assert_eq!(ids.iter().filter(|id| **id == 1).count(), 1, "one <|eos|>, after the answer");
        assert_eq!(model.encode("It was").unwrap()[0], Token(0), "plain text begins with <|bos|>");
        assert_eq!(model.stop_tokens(), [Token(1)]);
        assert_eq!(model.defaults().temperature, Some(0.7));
    }

    #[test]
    fn an_end_that_only_the_tokenizer_names_ends_an_answer() {
        for named in [r#"{"eos_token":"<|user|>"}"#, r#"{"eos_token":{"content":"<|user|>"}}"#] {
            let mut files = embedded();
            Arc::make_mut(&mut files.files).insert("tokenizer_config.json".into(), named.into());
            let model = TextModel::new(&files, &Templates::Here).unwrap();
            assert_eq!(model.stop_tokens(), [Token(1), Token(2)], "{named}");
        }
    }

    #[test]
    fn a_tokenizer_of_another_model_is_refused() {
        let mut files = embedded();
        files.card.shape.vocab = 4095;
        assert!(matches!(
            TextModel::new(&files, &Templates::Here),
            Err(TextError::Misfit { highest: 4095, vocab: 4095 })
        ));
        let mut files = embedded();
        Arc::make_mut(&mut files.files).insert("tokenizer.json".into(), b"{}".to_vec());
        assert!(matches!(
            TextModel::new(&files, &Templates::Here),
            Err(TextError::Broken { file: "tokenizer.json", .. })
        ));
    }

    #[test]
    fn changed_tokenizers_are_refused_or_used() {
        let whole = embedded().files["tokenizer.json"].clone();
        let mut state = 1_u64;
        let mut dice = |sides: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % sides
        };
        let mut used = 0;
        for round in 0..60 {
            let mut bytes = whole.clone();
            match round % 3 {
                // Another byte of a name, a number or a bracket.
                0 => bytes[dice(whole.len())] = b" 0\"{}[]:,a\\\xff"[dice(12)],
                1 => bytes.truncate(dice(whole.len())),
                _ => {
                    let from = dice(whole.len() - 64);
                    bytes.drain(from..from + 1 + dice(64));
                }
            }
            let mut files = embedded();
            Arc::make_mut(&mut files.files).insert("tokenizer.json".into(), bytes);
            if let Ok(model) = TextModel::new(&files, &Templates::Here) {
                used += 1;
                let vocab = model.card().shape.vocab;
                let tokens = model.encode("It was a dark night, <|user|> 12\u{e9}").unwrap_or_default();
                assert!(tokens.iter().all(|token| token.0 < vocab), "tokens that the model has not: {tokens:?}");
                drop(model.decode(&tokens));
            }
        }
        assert!(used > 0, "all were refused: the changes are too large to test anything");
    }

    #[test]
    fn a_smaller_vocabulary_than_the_model_has_is_refused_too() {
        let mut files = embedded();
        files.card.shape.vocab = 3 * 4096;
        assert!(matches!(
            TextModel::new(&files, &Templates::Here),
            Err(TextError::Misfit { highest: 4095, vocab: 12288 })
        ));
    }
}
