//! Tools for models whose template knows none: they are described in the system's message, and calls and results are said in
//! words. It is what clients expect of a server that takes `tools`: a model that was not trained for them still sees them.

use super::{ChatMessage, Conversation, ToolCall};
use serde_json::{Value, json};

/// The form in which such a model is told to call.
const HOW: &str = "To call a function, answer with nothing but JSON: {\"name\": ..., \"arguments\": {...}}, or a list of \
                   such. The result is the next message. Functions, with JSON schemas of their arguments:";

impl Conversation {
    /// The same, with its tools in words.
    #[must_use]
    pub fn described(self) -> Self {
        let Self { messages, tools, documents, kwargs, ending } = self;
        let mut messages: Vec<ChatMessage> = messages.into_iter().map(in_words).collect();
        if !tools.is_empty() {
            describe(&tools, &mut messages);
        }
        Self { messages, tools: Vec::new(), documents, kwargs, ending }
    }
}

fn describe(tools: &[Value], messages: &mut Vec<ChatMessage>) {
    let functions = tools.iter().map(|tool| format!("\n{}", tool["function"]));
    let told = functions.fold(HOW.to_owned(), |told, function| told + &function);
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(first) if first.content.is_empty() => first.content = told,
        Some(first) => first.content = format!("{}\n\n{told}", first.content),
        None => messages.insert(0, ChatMessage::new("system", told)),
    }
}

/// What is no call and no result stays as it is.
fn in_words(message: ChatMessage) -> ChatMessage {
    if message.role == "tool" {
        let ChatMessage { content, name, tool_call_id, .. } = message;
        let of = name.or(tool_call_id).map_or(String::new(), |of| format!(" of {of}"));
        return ChatMessage::new("user", format!("Result{of}: {content}"));
    }
    if message.tool_calls.is_empty() {
        return message;
    }
    let ChatMessage { role, content, tool_calls, reasoning_content, name, .. } = message;
    let call = |call: &ToolCall| format!(r#"{{"name": {}, "arguments": {}}}"#, json!(call.name), call.arguments);
    let calls: Vec<String> = tool_calls.iter().map(call).collect();
    let calls = if calls.len() == 1 { calls.concat() } else { format!("[{}]", calls.join(", ")) };
    let space = if content.is_empty() { "" } else { "\n" };
    let content = format!("{content}{space}{calls}");
    ChatMessage { role, content, reasoning_content, name, ..ChatMessage::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_calls_and_results_are_said_in_words() {
        let tool = json!({ "type": "function", "function": { "name": "wind", "parameters": {} } });
        let call = |name: &str, arguments: &str| ToolCall {
            id: Some("c1".into()),
            name: name.into(),
            arguments: arguments.into(),
        };
        let said = |calls| ChatMessage { tool_calls: calls, ..ChatMessage::new("assistant", "") };
        let messages = vec![
            ChatMessage::new("system", "Be brief."),
            ChatMessage::new("user", "How is it?"),
            said(vec![call("wind", r#"{"town": "Bonn"}"#)]),
            ChatMessage { name: Some("wind".into()), ..ChatMessage::new("tool", "calm") },
            said(vec![call("wind", "{}"), call("rain", "{}")]),
        ];
        let conversation = Conversation { messages, tools: vec![tool], ..Conversation::default() };
        let described = conversation.described();
        let told: Vec<&str> = described.messages.iter().map(|message| message.content.as_str()).collect();
        assert!(described.tools.is_empty());
        assert!(told[0].starts_with("Be brief.\n\nTo call a function") && told[0].contains("\n{\"name\":\"wind\""));
        assert_eq!(told[2], r#"{"name": "wind", "arguments": {"town": "Bonn"}}"#);
        assert_eq!(told[3], "Result of wind: calm");
        assert_eq!(told[4], r#"[{"name": "wind", "arguments": {}}, {"name": "rain", "arguments": {}}]"#);
        let roles: Vec<&str> = described.messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    }
}
