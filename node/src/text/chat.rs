//! Chat templates: Jinja as Hugging Face writes it.

use minijinja::{Environment, Error, ErrorKind, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};

/// A template's steps, so that none runs forever.
const FUEL: u64 = 5_000_000;
const NAME: &str = "chat";

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
    bos: String,
    eos: String,
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
        Some(Self { text, bos: special(&settings["bos_token"]), eos: special(&settings["eos_token"]) })
    }
}

/// The same, ready to be rendered.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not valid Jinja: why.
    pub fn new(template: TemplateText) -> Result<Self, String> {
        let TemplateText { text, bos, eos } = template;
        let broken = |e: Error| e.to_string();
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(broken)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_template_owned(NAME, text).map_err(broken)?;
        Ok(Self { environment, bos, eos })
    }

    /// The conversation as text, ready for the model's answer.
    ///
    /// # Errors
    /// When the template refuses it: why.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, String> {
        let input = |e: Error| format!("chat template: {e}");
        let template = self.environment.get_template(NAME).map_err(input)?;
        let context = minijinja::context! {
            messages => Serde(messages),
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            add_generation_prompt => true,
        };
        template.render(context).map_err(input)
    }
}

/// A special token is a text, or an object with its content.
fn special(value: &serde_json::Value) -> String {
    value.as_str().or(value["content"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Result<String, String> {
        let settings = serde_json::json!({ "chat_template": text, "bos_token": { "content": "<s>" } });
        let message = ChatMessage { role: "user".into(), content: " hi ".into() };
        ChatTemplate::new(TemplateText::find(&settings, None).unwrap())?.render(&[message])
    }

    #[test]
    fn python_is_understood_as_far_as_templates_use_it() {
        let text =
            "{{ bos_token }}{% for m in messages %}{{ m['content'].strip().upper() }}{{ m.get('x', '-') }}{% endfor %}";
        assert_eq!(template(text).unwrap(), "<s>HI-");
    }

    #[test]
    fn a_template_may_refuse_and_may_not_run_forever() {
        assert!(template("{{ raise_exception('no system role') }}").unwrap_err().contains("no system role"));
        let loops = "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}";
        assert!(template(loops).is_err());
        assert!(template("{% for").is_err());
    }
}
