//! A model as text sees it: its tokenizer, template, stop tokens and defaults.

use super::{
    AnswerParser, Callable, Conversation, Defaults, Detokeniser, Parsers, SpecialText, TemplateText, Templates,
    ToolFormat, Workers,
    answer_formats::AnswerFormats,
    defaults,
    grammar::{GrammarError, GrammarVocabulary, Grammars},
    reader::Reader,
    short,
    templates::Renderer,
    tokenizer_guard,
    workers::Unfinished,
};
use crate::data_plane::models::ModelFiles;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokenizers::Tokenizer;
use tokio::sync::oneshot;
use tsnode_protocol::{Constraint, Grammar, ModelCard, Token};

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
    /// The text is longer than the model's context, so clearly that not all of its tokens were made.
    #[error(
        "This model's maximum context length is {context} tokens. However, your prompt has {bytes} bytes, which are at \
         least {tokens} tokens. Please shorten it: {context} tokens are some {} bytes of English.",
        4 * u64::from(*.context)
    )]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens that it has at least.
        tokens: usize,
        /// Tokens that the model can hold.
        context: u32,
    },
    /// The model has no chat template.
    #[error("this model has no chat template; use /v1/completions")]
    NoTemplate,
    /// Rendering takes more than it may.
    #[error("the model's chat template takes too much memory or time; use /v1/completions")]
    Unbounded,
    /// Others' conversations are rendered, and take long.
    #[error("the model's chat template is busy")]
    Busy,
    /// The host has no thread for it, or the work broke off.
    #[error("the text was not read: {0}")]
    Unfinished(#[from] Unfinished),
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

/// A model's text side.
pub struct TextModel {
    card: ModelCard,
    reader: Arc<Reader>,
    workers: Arc<Workers>,
    grammars: OnceLock<Arc<Grammars>>,
    template: Option<Renderer>,
    answers: AnswerFormats,
    stop_tokens: Vec<Token>,
    defaults: Defaults,
    notes: Vec<String>,
}

impl TextModel {
    /// From a model's small files; [`Self::check`] says whether its template is good, where that is rendered apart.
    ///
    /// # Errors
    /// When one is missing, broken, or of another model.
    pub fn new(files: &ModelFiles, templates: &Templates) -> Result<Self, TextError> {
        let bytes = files.files.get("tokenizer.json").ok_or(TextError::Missing("tokenizer.json"))?;
        let broken = |error: String| TextError::Broken { file: "tokenizer.json", error };
        let tokenizer = tokenizer_guard::read(bytes).map_err(broken)?;
        let highest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        let vocab = files.card.shape.vocab;
        // Models pad their vocabulary, and tokenizers get tokens added that a model never learnt, but neither to twice the size.
        if highest / 2 >= vocab || highest < vocab / 2 {
            return Err(TextError::Misfit { highest, vocab });
        }
        let mut notes = Vec::new();
        if highest >= vocab {
            let last = vocab.saturating_sub(1);
            notes.push(format!(
                "tokenizer.json has tokens up to {highest}, the model up to {last}: prompts with others are refused"
            ));
        }
        let read = |name| json(files, name);
        let (settings, generation, config) =
            (read("tokenizer_config.json")?, read("generation_config.json")?, read("config.json")?);
        let template = TemplateText::find(&settings, files.files.get("chat_template.jinja").map(Vec::as_slice));
        let answers = AnswerFormats::of(template.as_ref(), &tokenizer);
        let template = template.map(|template| templates.renderer(template)).transpose()?;
        let mut stop_tokens = defaults::ends("generation_config.json", &generation, &mut notes);
        if stop_tokens.is_empty() {
            stop_tokens = defaults::ends("config.json", &config, &mut notes);
        }
        // Some models name only there what ends a turn.
        let named = eos_token(&settings).and_then(|text| tokenizer.token_to_id(text)).map(Token);
        stop_tokens.extend(named.filter(|token| !stop_tokens.contains(token)));
        let defaults = Defaults::read(&generation, &mut notes);
        let reader = Arc::new(Reader::new(tokenizer, &files.card.shape));
        let (card, workers, grammars) = (files.card.clone(), Arc::default(), OnceLock::new());
        Ok(Self { card, reader, workers, grammars, template, answers, stop_tokens, defaults, notes })
    }

    /// The same, with special tokens' texts in messages read as told.
    #[must_use]
    pub fn reading(mut self, special: SpecialText) -> Self {
        // Nobody else has it yet.
        if let Some(reader) = Arc::get_mut(&mut self.reader) {
            reader.read_specials(special);
        }
        self
    }

    /// The same, with answers taken apart as told.
    #[must_use]
    pub fn parsing(self, parsers: Parsers) -> Self {
        Self { answers: self.answers.told(parsers), ..self }
    }

    /// The same, where texts have their turns with those of others.
    #[must_use]
    pub fn with_workers(self, workers: Arc<Workers>) -> Self {
        Self { workers, ..self }
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

    /// How its calls of tools are written.
    #[must_use]
    pub fn tool_format(&self) -> ToolFormat {
        self.answers.tools
    }

    /// Whether its answers may begin with thoughts.
    #[must_use]
    pub fn thinks(&self) -> bool {
        self.answers.thinks()
    }

    /// Takes the answer to a prompt apart; calls are looked for if there are tools. One that has a form begins with it, also where
    /// the prompt begins thoughts.
    #[must_use]
    pub fn parser(&self, prompt: &[Token], tools: Option<Arc<[Callable]>>, form: Option<&Grammar>) -> AnswerParser {
        if self.answers.has_channels() {
            return AnswerParser::default().tools(self.answers.tools, tools.unwrap_or_default());
        }
        let parser = AnswerParser::default().reasoning(self.answers.reasoning(self.tokenizer(), prompt, form));
        match tools {
            Some(callable) => parser.tools(self.answers.tools, callable),
            None => parser,
        }
    }

    /// A grammar, in Lark's notation, of answers to a prompt that do nothing but call these tools, each with its name and the
    /// schema of its arguments.
    #[must_use]
    pub fn call_grammar(&self, prompt: &[Token], tools: &[(&str, &Value)], parallel: bool) -> String {
        self.answers.calls(self.tokenizer(), prompt, tools, parallel)
    }

    /// Special tokens that such a parser looks for.
    #[must_use]
    pub fn kept(&self, with_tools: bool) -> Vec<Token> {
        self.answers.kept(self.tokenizer(), with_tools)
    }

    /// What in its files is odd and used in part or not at all, a line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        self.reader.tokenizer()
    }

    /// Tokens of a plain text, with what the tokenizer puts around one.
    ///
    /// # Errors
    /// When the tokenizer cannot, or the text is far longer than the model's context.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, TextError> {
        self.reader.plain(text)
    }

    /// The same, when it is the text's turn, away from the threads that serve if it is long.
    ///
    /// # Errors
    /// As above, or when there is no thread for it.
    pub async fn encode_prompt(&self, text: String) -> Result<Vec<Token>, TextError> {
        // Without waiting where there is nothing to wait for.
        self.reader.refuse_hopeless(&text)?;
        let reader = self.reader.clone();
        self.workers.run(text.len(), move || reader.plain(&text)).await?
    }

    /// The same without what the tokenizer puts around a text.
    ///
    /// # Errors
    /// As above.
    pub async fn encode_bare(&self, text: String) -> Result<Vec<Token>, TextError> {
        self.reader.refuse_hopeless(&text)?;
        let reader = self.reader.clone();
        self.workers.run(text.len(), move || reader.rendered(&text)).await?
    }

    /// How its vocabulary spells a token; empty where it has none.
    #[must_use]
    pub fn spelled(&self, token: Token) -> String {
        tokenizer_guard::token(self.tokenizer(), token.0, false).unwrap_or_default()
    }

    /// The text of some tokens, special ones included, when it is its turn.
    ///
    /// # Errors
    /// When the tokenizer cannot, or there is no thread for it.
    pub async fn detokenise(&self, tokens: Vec<Token>) -> Result<String, TextError> {
        let reader = self.reader.clone();
        let bytes = size_of_val(tokens.as_slice());
        self.workers.run(bytes, move || reader.text(&tokens)).await?
    }

    /// Tokens of a conversation, ready for the model's answer.
    ///
    /// # Errors
    /// When there is no template, it refuses the messages or takes too much for them, the tokenizer cannot, or they are far
    /// longer than the model's context.
    pub async fn encode_chat(&self, conversation: impl Into<Conversation>) -> Result<Vec<Token>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let mut conversation: Conversation = conversation.into();
        if !self.answers.knows_tools {
            conversation = conversation.described();
        }
        self.refuse_hopeless_chat(template, &conversation).await?;
        if self.reader.is_guarded() {
            return self.encode_guarded(template, conversation).await;
        }
        let text = template.render(&conversation).await?;
        self.reader.refuse_hopeless(&text)?;
        let reader = self.reader.clone();
        self.workers.run(text.len(), move || reader.rendered(&text)).await?
    }

    async fn encode_guarded(&self, template: &Renderer, said: Conversation) -> Result<Vec<Token>, TextError> {
        let (reader, bytes) = (self.reader.clone(), said.bytes());
        let (hidden, blotted) = self.workers.run(bytes, move || reader.hidden(&said)).await??;
        let text = template.render(&hidden).await?;
        self.reader.refuse_hopeless(&text)?;
        let blotted = template.render(&blotted).await?;
        let reader = self.reader.clone();
        self.workers.run(text.len() + blotted.len(), move || reader.restored(&text, &blotted)).await?
    }

    /// Refuses a conversation that no template makes fit. Most keep all that is said, and a short form of the conversation
    /// shows whether this one does; what the model itself said is not counted, since some leave out its thoughts.
    async fn refuse_hopeless_chat(&self, template: &Renderer, said: &Conversation) -> Result<(), TextError> {
        self.reader.refuse_endless(said)?;
        let Some(refusal) = self.reader.hopeless_chat(said) else { return Ok(()) };
        let form = short::form(said);
        let rendered = template.render(&form).await?;
        if short::is_kept(&form, &rendered) { Err(refusal) } else { Ok(()) }
    }

    /// What an answer of this form must be, once the grammar is seen to be one: nothing that is refused comes further.
    ///
    /// # Errors
    /// When it is none, or too many wait to be looked at.
    pub async fn constraint(&self, grammar: Grammar) -> Result<Constraint, GrammarError> {
        let constraint = Constraint { grammar, ends: self.stop_tokens.clone() };
        constraint.check().map_err(|e| GrammarError::Refused(e.to_string()))?;
        if self.stop_tokens.is_empty() {
            return Err(GrammarError::NoVocabulary("it names no token that ends an answer".into()));
        }
        let grammars = self.grammars.get_or_init(|| {
            let (reader, vocab) = (self.reader.clone(), self.card.shape.vocab);
            Grammars::new(move || Ok(GrammarVocabulary::new(reader.tokenizer(), vocab)))
        });
        let (answer, seen) = oneshot::channel();
        grammars.run(move |compiler| {
            let compiled = compiler.and_then(|compiler| {
                compiler.compile(&constraint.grammar, &constraint.ends)?.allowed().map(|_| constraint)
            });
            // The client may have gone.
            drop(answer.send(compiled));
        })?;
        seen.await.unwrap_or(Err(GrammarError::Busy))
    }

    /// The text of some tokens, without those that are no text.
    #[must_use]
    pub fn decode(&self, tokens: &[Token]) -> String {
        let mut text = Detokeniser::new(self.tokenizer(), true);
        let said: String = tokens.iter().map(|token| text.push(*token)).collect();
        said + &text.finish()
    }
}

fn json(files: &ModelFiles, name: &'static str) -> Result<Value, TextError> {
    let Some(bytes) = files.files.get(name) else { return Ok(Value::Null) };
    serde_json::from_slice(bytes).map_err(|e| TextError::Broken { file: name, error: e.to_string() })
}

/// `eos_token` of `tokenizer_config.json` is a text, or an object that holds it.
fn eos_token(settings: &Value) -> Option<&str> {
    let token = &settings["eos_token"];
    token.as_str().or(token["content"].as_str())
}

#[cfg(test)]
pub(crate) mod tests;
