//! Chat templates: what transformers gives to Jinja, and what is a model's template.

pub(super) mod clock;
#[cfg(test)]
mod tests;

use super::jinja::{Dict, Error, Template, Value};
use clock::Clock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens that a template may name.
const SPECIAL: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A model's chat template as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateText {
    text: String,
    /// Special tokens by what they are for; one that the model has not is undefined.
    special: BTreeMap<String, String>,
}

impl TemplateText {
    /// The template of `tokenizer_config.json` (a text, or a list with one called `default`), or of a file of its own, and
    /// the special tokens it names.
    #[must_use]
    pub fn find(settings: &serde_json::Value, file: Option<&[u8]>) -> Option<Self> {
        let text = match (file, &settings["chat_template"]) {
            (Some(file), _) => String::from_utf8_lossy(file).into_owned(),
            (None, serde_json::Value::String(text)) => text.clone(),
            (None, serde_json::Value::Array(named)) => {
                named.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str())?.to_owned()
            }
            _ => return None,
        };
        let special = SPECIAL.iter().filter_map(|name| Some(((*name).to_owned(), special(&settings[name])?)));
        Some(Self { text, special: special.collect() })
    }
}

/// The same, ready to be rendered.
pub struct ChatTemplate {
    template: Template,
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
        let TemplateText { text, special } = template;
        Ok(Self { template: Template::read(&text).map_err(|error| error.to_string())?, special, clock })
    }

    /// The conversation as text, ready for the model's answer.
    ///
    /// # Errors
    /// When the template refuses it: why.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, String> {
        self.fill(|| {
            let messages = messages.iter().map(message).collect::<Result<_, _>>()?;
            Ok(vec![("messages".into(), Value::list(messages))])
        })
    }

    /// What transformers names and is not given is none, and no error to ask for.
    fn fill(&self, given: impl FnOnce() -> Result<Names, Error> + Send) -> Result<String, String> {
        let names = || -> Result<Names, Error> {
            let special = self.special.iter().map(|(name, token)| (name.as_str().into(), Value::text(token.as_str())));
            let mut names: Names = special.collect();
            names.push(("tools".into(), Value::None));
            names.push(("documents".into(), Value::None));
            names.push(("add_generation_prompt".into(), Value::Bool(true)));
            names.extend(given()?);
            Ok(names)
        };
        self.template.render(self.clock, names).map_err(|error| format!("chat template: {error}"))
    }
}

fn message(message: &ChatMessage) -> Result<Value, Error> {
    let part = |name: &str, text: &str| (Value::text(name), Value::text(text));
    let parts = [part("role", &message.role), part("content", &message.content)];
    Dict::from_pairs(parts).map(Value::dict)
}

/// A special token is a text, or an object with its content.
fn special(value: &serde_json::Value) -> Option<String> {
    let text = value.as_str().or(value["content"].as_str())?;
    (!text.is_empty()).then(|| text.to_owned())
}
