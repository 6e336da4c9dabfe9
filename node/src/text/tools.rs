//! Calls of tools in what a model writes. Each family has its own form; a parser finds its calls in a growing text, and
//! passes on as content what only looks like one.
//!
//! They are written here: the crates that have such parsers (`tool-parser`, `dynamo-parsers`) bring a runtime, a parser of
//! Python and a server's types, 170 crates in all.

mod bare;
mod body;
mod call;
mod deepseek;
mod found;
mod gemma4;
mod grammar;
mod harmony;
mod hermes;
mod markers;
mod mistral;
mod parameter;
mod qwen3_coder;
#[cfg(test)]
mod tests;

pub(super) use grammar::{Thought, ThoughtMarks, grammar};
pub(super) use markers::Markers;
pub use parameter::Callable;
#[cfg(test)]
pub(super) use tests::split;

use super::{TemplateText, answer_part::AnswerPart};
use bare::Bare;
use deepseek::DeepSeek;
use gemma4::Gemma4;
use harmony::Harmony;
use hermes::Hermes;
use mistral::Mistral;
use qwen3_coder::Qwen3Coder;
use std::sync::Arc;

/// Finds calls in a growing text. Any cut of a text into pieces gives the same.
pub trait ToolParser: Send {
    /// What a piece of text adds.
    fn push(&mut self, text: &str) -> Vec<AnswerPart>;
    /// What was held back, when no more comes.
    fn finish(&mut self) -> Vec<AnswerPart>;
    /// Whether what comes next is thought, as far as is known: only Harmony's thoughts are the parser's of calls.
    fn is_thinking(&self) -> bool {
        false
    }
}

/// How a family writes calls; named as vLLM's parsers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`: Qwen3-Coder.
    Qwen3Coder,
    /// `{"name": …, "parameters": …}` alone, perhaps behind `<|python_tag|>`: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]` or `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// Name and a fenced block between special tokens: DeepSeek V3 and R1.
    DeepSeekV3,
    /// The same without the fence: DeepSeek V3.1.
    DeepSeekV31,
    /// Messages on channels, of which some go to functions: gpt-oss. Its thoughts are such messages too.
    Harmony,
    /// `<|tool_call>call:NAME{key:value}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `{"name": …, "arguments": …}` alone, or a list of such: models that were told so.
    Json,
}

/// What a setting calls them.
const NAMES: [(&str, ToolFormat); 9] = [
    ("hermes", ToolFormat::Hermes),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
    ("llama3_json", ToolFormat::Llama3Json),
    ("mistral", ToolFormat::Mistral),
    ("deepseek_v3", ToolFormat::DeepSeekV3),
    ("deepseek_v31", ToolFormat::DeepSeekV31),
    ("openai", ToolFormat::Harmony),
    ("gemma4", ToolFormat::Gemma4),
    ("json", ToolFormat::Json),
];

impl ToolFormat {
    /// By its name in the settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// All names that there are.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The form that a chat template teaches, by the marks that it writes.
    #[must_use]
    pub fn of(template: Option<&TemplateText>) -> Self {
        let mentions = |mark: &str| template.is_some_and(|template| template.mentions(mark));
        match () {
            () if mentions(harmony::CHANNEL) && mentions(harmony::START) => Self::Harmony,
            () if mentions(gemma4::OPEN) && mentions(gemma4::CALL) => Self::Gemma4,
            () if mentions(deepseek::CALL) && mentions("```json") => Self::DeepSeekV3,
            () if mentions(deepseek::CALL) => Self::DeepSeekV31,
            () if mentions(mistral::CALLS) => Self::Mistral,
            () if mentions(hermes::OPEN) && mentions(qwen3_coder::FUNCTION) => Self::Qwen3Coder,
            () if mentions(hermes::OPEN) => Self::Hermes,
            () if mentions("tools") && (mentions(bare::PYTHON) || mentions("<|eot_id|>")) => Self::Llama3Json,
            () => Self::Json,
        }
    }

    /// Texts that may be special tokens, and are part of the form.
    #[must_use]
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Qwen3Coder => hermes::MARKS,
            Self::Llama3Json => bare::MARKS,
            Self::Mistral => mistral::MARKS,
            Self::DeepSeekV3 | Self::DeepSeekV31 => deepseek::MARKS,
            Self::Harmony => harmony::MARKS,
            Self::Gemma4 => gemma4::MARKS,
            Self::Json => &[],
        }
    }

    /// A parser of one answer that may call these tools.
    #[must_use]
    pub fn parser(self, tools: Arc<[Callable]>) -> Box<dyn ToolParser> {
        let names = || tools.iter().map(|tool| tool.name.clone()).collect();
        match self {
            Self::Hermes => Box::<Hermes>::default(),
            Self::Qwen3Coder => Box::new(Qwen3Coder::new(tools)),
            Self::Llama3Json => Box::new(Bare::llama(names())),
            Self::Mistral => Box::<Mistral>::default(),
            Self::DeepSeekV3 | Self::DeepSeekV31 => Box::<DeepSeek>::default(),
            Self::Harmony => Box::new(Harmony::new(tools)),
            Self::Gemma4 => Box::<Gemma4>::default(),
            Self::Json => Box::new(Bare::json(names())),
        }
    }
}
