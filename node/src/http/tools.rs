//! `tools`, `tool_choice`, `parallel_tool_calls`: what a model may call, and whether it must.

use super::ApiError;
use crate::text::Callable;
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};

/// Tools of one request, as OpenAI has it.
const TOOLS: usize = 128;
/// Letters of a tool's name: OpenAI has 64, and some protocols make longer ones.
const NAME: usize = 128;

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Tools that a request's answers may call: at least one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tools {
    /// As the client wrote them.
    pub list: Vec<Value>,
    /// The same, as far as reading calls needs it.
    callable: Arc<[Callable]>,
    choice: ToolChoice,
    /// Whether one answer may have several calls.
    parallel: bool,
}

impl Tools {
    /// Of the three fields; nothing where there are no tools, or none may be called.
    pub fn read(
        tools: Option<Value>,
        choice: Option<Value>,
        parallel: Option<Value>,
    ) -> Result<Option<Self>, ApiError> {
        let list = list(tools)?;
        let parallel = match parallel {
            None => true,
            Some(Value::Bool(parallel)) => parallel,
            Some(_) => {
                return Err(ApiError::param("parallel_tool_calls", "'parallel_tool_calls' must be true or false"));
            }
        };
        let Some(choice) = self::choice(choice, &list)? else { return Ok(None) };
        let callable = list.iter().filter_map(|tool| Some(Callable::new(name(tool)?, &tool["function"]["parameters"])));
        let callable = callable.collect();
        Ok((!list.is_empty()).then_some(Self { list, callable, choice, parallel }))
    }

    /// All of them, for who reads calls.
    pub fn callable(&self) -> Arc<[Callable]> {
        Arc::clone(&self.callable)
    }

    /// Whether one of them was named: its call is no choice of the model's, and OpenAI does not say that it was.
    pub fn is_named(&self) -> bool {
        matches!(self.choice, ToolChoice::Named(_))
    }

    /// Whether an answer must be nothing but calls.
    pub fn must_call(&self) -> bool {
        self.choice != ToolChoice::Auto
    }

    /// Whether one answer may have several calls; who names a tool wants one.
    pub fn may_call_several(&self) -> bool {
        self.parallel && !self.is_named()
    }

    /// Those that must be called, or one of them: name, and schema of the arguments.
    pub fn to_call(&self) -> Vec<(&str, &Value)> {
        static ANY: Value = Value::Null;
        let named =
            |tool: &&Value| !matches!(&self.choice, ToolChoice::Named(only) if Some(only.as_str()) != name(tool));
        let tool = |tool| Some((name(tool)?, tool["function"].get("parameters").unwrap_or(&ANY)));
        self.list.iter().filter(named).filter_map(tool).collect()
    }
}

fn name(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

fn list(given: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let wrong = |why: String| ApiError::param("tools", why);
    let list = match given {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= TOOLS => list,
        Some(_) => return Err(wrong(format!("'tools' must be a list of up to {TOOLS} tools"))),
    };
    check(&list)?;
    Ok(list)
}

fn check(list: &[Value]) -> Result<(), ApiError> {
    let wrong = |why: String| ApiError::param("tools", why);
    let mut names = BTreeSet::new();
    for (at, tool) in list.iter().enumerate() {
        if tool["type"] != "function" || !tool["function"].is_object() {
            let form = "{\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}";
            return Err(wrong(format!("'tools[{at}]' must be {form}")));
        }
        let name = name(tool).filter(|name| is_name(name));
        let name = name.ok_or_else(|| {
            wrong(format!("'tools[{at}].function.name' must have 1 to {NAME} letters, digits, and signs of '_-.:/'"))
        })?;
        if !names.insert(name) {
            return Err(wrong(format!("'tools' has two functions called {name}")));
        }
        if !matches!(tool["function"].get("parameters"), None | Some(Value::Null | Value::Object(_))) {
            return Err(wrong(format!("'tools[{at}].function.parameters' must be an object: a JSON schema")));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "_-.:/".contains(letter);
    (1..=NAME).contains(&name.len()) && name.chars().all(fits)
}

/// Nothing where no tool may be called.
fn choice(given: Option<Value>, tools: &[Value]) -> Result<Option<ToolChoice>, ApiError> {
    let wrong = |why: String| Err(ApiError::param("tool_choice", why));
    let choice = match &given {
        None => ToolChoice::Auto,
        Some(Value::String(said)) => match said.as_str() {
            "none" => return Ok(None),
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return wrong("'tool_choice' must be none, auto, required, or a function by its name".into()),
        },
        Some(named) => match (&named["type"], named["function"]["name"].as_str()) {
            (Value::String(kind), Some(only)) if kind == "function" => ToolChoice::Named(only.to_owned()),
            _ => {
                let form = "{\"type\": \"function\", \"function\": {\"name\"}}";
                return wrong(format!("'tool_choice' must be none, auto, required, or {form}"));
            }
        },
    };
    match &choice {
        ToolChoice::Named(only) if !tools.iter().any(|tool| name(tool) == Some(only)) => {
            let only: String = only.chars().take(NAME).collect();
            wrong(format!("'tool_choice' names {only}, which is none of 'tools'"))
        }
        ToolChoice::Required if tools.is_empty() => wrong("'tool_choice' is required, and there are no 'tools'".into()),
        _ => Ok(Some(choice)),
    }
}
