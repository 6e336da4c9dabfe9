//! Chat templates: Jinja as Hugging Face writes it.
//!
//! What transformers adds to Jinja is here too: `raise_exception`, `strftime_now`, `tojson` as Python writes it, and a tag for
//! training. Objects keep the order of their keys (a feature of minijinja), as Python's do.

pub(super) mod clock;
mod json;
mod tags;
#[cfg(test)]
mod tests;

use clock::Clock;
use minijinja::{Environment, Error, ErrorKind, Value, context, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A template's steps, so that none runs forever.
const FUEL: u64 = 5_000_000;
const NAME: &str = "chat";
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
    environment: Environment<'static>,
    special: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Reads it; the clock is asked whenever it asks for the date.
    ///
    /// # Errors
    /// When it is not valid Jinja: why.
    pub fn new(template: TemplateText, clock: Clock) -> Result<Self, String> {
        let TemplateText { text, special } = template;
        let broken = |e: Error| e.to_string();
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(broken)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
            clock::strftime(&clock(), &format).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
        });
        environment.add_filter("tojson", json::tojson);
        // To Python none is nothing to go through, to minijinja an empty list.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_template_owned(NAME, tags::readable(&text)).map_err(broken)?;
        Ok(Self { environment, special })
    }

    /// The conversation as text, ready for the model's answer.
    ///
    /// # Errors
    /// When the template refuses it: why.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, String> {
        self.fill(context! { messages => Serde(messages) })
    }

    /// What transformers names and is not given is none, and no error to ask for.
    fn fill(&self, given: Value) -> Result<String, String> {
        let input = |e: Error| format!("chat template: {e}");
        let template = self.environment.get_template(NAME).map_err(input)?;
        let special = Value::from(Serde(&self.special));
        let usual = context! { tools => (), documents => (), add_generation_prompt => true, ..special };
        template.render(context! { ..given, ..usual }).map_err(input)
    }
}

/// A special token is a text, or an object with its content.
fn special(value: &serde_json::Value) -> Option<String> {
    let text = value.as_str().or(value["content"].as_str())?;
    (!text.is_empty()).then(|| text.to_owned())
}
