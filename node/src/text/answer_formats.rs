//! How a model's answers are taken apart: as its template and vocabulary say, or as its gateway's owner does.

use super::{
    Detokeniser, ReasoningParser, TemplateText, ToolFormat,
    channels::{self, ChannelParser},
    reasoning::{self, ThoughtParser},
    tools::{Thought, ThoughtMarks, grammar},
};
use serde_json::Value;
use tokenizers::Tokenizer;
use tsnode_protocol::{Grammar, Token};

/// Tokens at a prompt's end that may begin thoughts.
const TAIL: usize = 16;

/// Whether thoughts are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Not at all: they are content.
    None,
    /// Between `<think>` and `</think>`.
    Think,
    /// Between `<|channel>thought` and `<channel|>`.
    Gemma4,
}

impl ReasoningFormat {
    /// What a template takes out of earlier answers the model writes; otherwise its vocabulary shows it.
    fn of(template: Option<&TemplateText>, tokenizer: &Tokenizer) -> Self {
        let mentions = |mark: &str| template.is_some_and(|template| template.mentions(mark));
        let knows = |mark: &str| tokenizer.token_to_id(mark).is_some();
        match () {
            () if mentions(channels::MARKS.end) => Self::Gemma4,
            () if mentions(reasoning::MARKS.end) => Self::Think,
            () if knows(channels::MARKS.end) => Self::Gemma4,
            () if knows(reasoning::MARKS.end) => Self::Think,
            () => Self::None,
        }
    }

    fn marks(self) -> Option<ThoughtMarks> {
        match self {
            Self::None => None,
            Self::Think => Some(reasoning::MARKS),
            Self::Gemma4 => Some(channels::MARKS),
        }
    }
}

/// What the owner says; unsaid is what the model's files say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parsers {
    /// How calls are written.
    pub tools: Option<ToolFormat>,
    /// How thoughts are.
    pub reasoning: Option<ReasoningFormat>,
}

/// What is looked for in a model's answers.
pub(super) struct AnswerFormats {
    pub tools: ToolFormat,
    /// Its template writes tools; others' are described in words.
    pub knows_tools: bool,
    reasoning: ReasoningFormat,
}

impl AnswerFormats {
    pub fn of(template: Option<&TemplateText>, tokenizer: &Tokenizer) -> Self {
        let mentions = |word: &str| template.is_some_and(|template| template.mentions(word));
        let knows_tools = mentions("tools");
        Self {
            // Who is told in words answers as told.
            tools: if knows_tools { ToolFormat::of(template) } else { ToolFormat::Json },
            knows_tools,
            reasoning: ReasoningFormat::of(template, tokenizer),
        }
    }

    pub fn told(self, parsers: Parsers) -> Self {
        let tools = parsers.tools.unwrap_or(self.tools);
        Self { tools, reasoning: parsers.reasoning.unwrap_or(self.reasoning), ..self }
    }

    /// For the answer to a prompt, which may begin thoughts; an answer of a form goes on with them only where the form has their
    /// end.
    pub fn reasoning(
        &self,
        tokenizer: &Tokenizer,
        prompt: &[Token],
        form: Option<&Grammar>,
    ) -> Option<Box<dyn ThoughtParser>> {
        let has_end = |marks: ThoughtMarks| form.is_none_or(|form| has_mark(form, marks.end));
        let is_begun = matches!(self.thought(tokenizer, prompt), Thought::Begun(marks) if has_end(marks));
        match self.reasoning {
            ReasoningFormat::None => None,
            ReasoningFormat::Think => Some(Box::new(ReasoningParser::new(is_begun))),
            ReasoningFormat::Gemma4 => Some(Box::new(ChannelParser::new(is_begun))),
        }
    }

    fn thought(&self, tokenizer: &Tokenizer, prompt: &[Token]) -> Thought {
        let Some(marks) = self.reasoning.marks() else { return Thought::None };
        let mut text = Detokeniser::new(tokenizer, false);
        let tail = &prompt[prompt.len().saturating_sub(TAIL)..];
        let tail = tail.iter().map(|token| text.push(*token)).collect::<String>() + &text.finish();
        if marks.are_begun_by(&tail) { Thought::Begun(marks) } else { Thought::May(marks) }
    }

    /// A grammar of answers to a prompt that do nothing but call these tools (name, and schema of the arguments).
    pub fn calls(&self, tokenizer: &Tokenizer, prompt: &[Token], tools: &[(&str, &Value)], parallel: bool) -> String {
        let added = tokenizer.get_added_tokens_decoder();
        let special =
            |text: &str| added.iter().find(|(_, token)| token.special && token.content == text).map(|(id, _)| *id);
        grammar(self.tools, tools, parallel, self.thought(tokenizer, prompt), special)
    }

    /// Whether thoughts are looked for.
    pub fn thinks(&self) -> bool {
        self.reasoning != ReasoningFormat::None || self.has_channels()
    }

    /// Whether thoughts, calls and content are all messages of one form.
    pub fn has_channels(&self) -> bool {
        self.tools == ToolFormat::Harmony
    }

    /// Special tokens that are part of what is looked for.
    pub fn kept(&self, tokenizer: &Tokenizer, with_tools: bool) -> Vec<Token> {
        let calls = if with_tools || self.has_channels() { self.tools.marks() } else { &[] };
        let thoughts = self.reasoning.marks().map(|marks| [marks.begin, marks.end]);
        let marks = calls.iter().copied().chain(thoughts.into_iter().flatten());
        marks.filter_map(|mark| tokenizer.token_to_id(mark)).map(Token).collect()
    }
}

/// Whether texts of a form may have a mark by its word: what a JSON text says is never one.
fn has_mark(form: &Grammar, mark: &str) -> bool {
    match form {
        Grammar::JsonSchema(_) => false,
        // Any sign may be written behind a backslash.
        Grammar::Regex(text) | Grammar::Lark(text) => text.replace('\\', "").contains(mark),
    }
}
