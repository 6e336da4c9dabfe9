//! Chat templates: what transformers gives to Jinja, and what is a model's template.

mod conversation;
mod described;
mod given;
#[cfg(test)]
mod tests;

pub use conversation::{ChatMessage, Conversation, Ending, ToolCall};

use super::clock::Clock;
use super::jinja::{Dict, Error, Template, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens that a template may name.
const SPECIAL: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A model's chat template as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateText {
    text: String,
    /// Another for conversations with tools, where the model has two.
    #[serde(default)]
    tool_use: Option<String>,
    /// Special tokens by what they are for; one that the model has not is undefined.
    special: BTreeMap<String, String>,
}

impl TemplateText {
    /// The template of `tokenizer_config.json` (a text, or a list with one called `default` and perhaps one called
    /// `tool_use`), or of a file of its own, and the special tokens it names.
    #[must_use]
    pub fn find(settings: &serde_json::Value, file: Option<&[u8]>) -> Option<Self> {
        let (text, tool_use) = match (file, &settings["chat_template"]) {
            (Some(file), _) => (String::from_utf8_lossy(file).into_owned(), None),
            (None, serde_json::Value::String(text)) => (text.clone(), None),
            (None, serde_json::Value::Array(named)) => {
                let called = |name| named.iter().find(|t| t["name"] == name)?["template"].as_str().map(str::to_owned);
                (called("default")?, called("tool_use"))
            }
            _ => return None,
        };
        let special = SPECIAL.iter().filter_map(|name| Some(((*name).to_owned(), special(&settings[name])?)));
        Some(Self { text, tool_use, special: special.collect() })
    }

    /// Whether it says somewhere what it looks for.
    #[must_use]
    pub fn mentions(&self, word: &str) -> bool {
        self.text.contains(word) || self.tool_use.as_ref().is_some_and(|text| text.contains(word))
    }
}

/// The same, ready to be rendered.
pub struct ChatTemplate {
    template: Template,
    tool_use: Option<Template>,
    special: BTreeMap<String, String>,
    clock: Clock,
}

/// Names and what they stand for.
type Names = Vec<(Arc<str>, Value)>;

impl ChatTemplate {
    /// Reads it; the clock is asked whenever it asks for the date.
    ///
    /// # Errors
    /// When it is not valid Jinja: why.
    pub fn new(template: TemplateText, clock: Clock) -> Result<Self, String> {
        let TemplateText { text, tool_use, special } = template;
        let read = |text: &str| Template::read(text).map_err(|error| error.to_string());
        Ok(Self { template: read(&text)?, tool_use: tool_use.as_deref().map(read).transpose()?, special, clock })
    }

    /// The conversation as text, ready for the model's answer.
    ///
    /// # Errors
    /// When the template refuses it: why.
    pub fn render(&self, conversation: &Conversation) -> Result<String, String> {
        let with_tools = self.tool_use.as_ref().filter(|_| !conversation.tools.is_empty());
        let text = self.fill(with_tools.unwrap_or(&self.template), || given::names(conversation))?;
        if conversation.ending == Ending::Open { opened(text, conversation) } else { Ok(text) }
    }

    /// What transformers names and is not given is none, and no error to ask for.
    fn fill(&self, template: &Template, given: impl FnOnce() -> Result<Names, Error> + Send) -> Result<String, String> {
        let names = || -> Result<Names, Error> {
            let special = self.special.iter().map(|(name, token)| (name.as_str().into(), Value::text(token.as_str())));
            let mut names: Names = special.collect();
            names.push(("tools".into(), Value::None));
            names.push(("documents".into(), Value::None));
            names.push(("add_generation_prompt".into(), Value::Bool(true)));
            names.extend(given()?);
            Ok(names)
        };
        template.render(self.clock, names).map_err(|error| format!("chat template: {error}"))
    }
}

/// The text up to the end of what the last message says, as transformers cuts it: where the template has kept the white space
/// around that, so does this.
fn opened(mut text: String, conversation: &Conversation) -> Result<String, String> {
    let said = conversation.messages.last().map_or("", |last| last.content.as_str());
    let (trimmed, from_its_start) = (said.trim(), said.trim_start());
    let at = if trimmed.is_empty() { None } else { text.rfind(trimmed) };
    let at = at
        .ok_or("the last message cannot be gone on with: it says nothing, or the chat template changes what it says")?;
    let is_kept = text[at..].starts_with(from_its_start);
    text.truncate(at + if is_kept { from_its_start.len() } else { trimmed.len() });
    Ok(text)
}

/// A special token is a text, or an object with its content.
fn special(value: &serde_json::Value) -> Option<String> {
    let text = value.as_str().or(value["content"].as_str())?;
    (!text.is_empty()).then(|| text.to_owned())
}
