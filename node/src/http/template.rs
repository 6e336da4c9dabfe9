//! What a chat request gives to the model's template beside its messages.

use super::{ApiError, fields::Fields};
use crate::text::Ending;
use serde_json::{Map, Value};

/// Names that are given anyway, and not by `chat_template_kwargs`.
const OWN: [&str; 5] = ["messages", "tools", "documents", "chat_template", "tokenize"];
/// Documents of one request.
const DOCUMENTS: usize = 256;

/// `chat_template_kwargs`, and `reasoning_effort` where they do not say it: `none` also switches thinking off.
pub(super) fn kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let mut kwargs = match fields.take(NAME) {
        None => Map::new(),
        Some(Value::Object(kwargs)) => kwargs,
        Some(_) => return Err(ApiError::param(NAME, format!("'{NAME}' must be an object"))),
    };
    if let Some(own) = OWN.iter().find(|own| kwargs.contains_key(**own)) {
        return Err(ApiError::param(NAME, format!("'{NAME}' cannot give the template '{own}'")));
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        if effort == "none" {
            kwargs.entry("enable_thinking").or_insert(Value::Bool(false));
        }
        kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
    }
    Ok(kwargs)
}

/// `add_generation_prompt` and `continue_final_message`: whether an answer begins behind the conversation, as it does unless they say
/// otherwise, nothing does, or the last message goes on.
pub(super) fn ending(fields: &mut Fields) -> Result<Ending, ApiError> {
    const NAME: &str = "continue_final_message";
    let is_said = fields.peek("add_generation_prompt").is_some();
    let (begins, goes_on) = (fields.flag_or("add_generation_prompt", true)?, fields.flag(NAME)?);
    match (begins, goes_on) {
        (true, true) if is_said => Err(ApiError::param(
            NAME,
            format!("'{NAME}' cannot go with 'add_generation_prompt': nothing begins where one goes on"),
        )),
        (_, true) => Ok(Ending::Open),
        (true, false) => Ok(Ending::Answer),
        (false, false) => Ok(Ending::Closed),
    }
}

/// `documents`: objects, which templates of some models write before the question.
pub(super) fn documents(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    const NAME: &str = "documents";
    match fields.take(NAME) {
        None => Ok(Vec::new()),
        Some(Value::Array(documents)) if documents.len() <= DOCUMENTS && documents.iter().all(Value::is_object) => {
            Ok(documents)
        }
        Some(_) => Err(ApiError::param(NAME, format!("'{NAME}' must be a list of up to {DOCUMENTS} objects"))),
    }
}
