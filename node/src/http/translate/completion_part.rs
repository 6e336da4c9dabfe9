//! A completion's answer, whole or a part of it, as tellers read it.

use serde_json::Value;

/// What an answer took (tokens).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Usage {
    pub prompt: u64,
    /// Of the prompt, in the prefix cache.
    pub cached: u64,
    pub completion: u64,
    /// Of the completion, thoughts.
    pub reasoning: u64,
}

impl Usage {
    pub fn of(answer: &Value) -> Self {
        let usage = &answer["usage"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        Self {
            prompt: number(&usage["prompt_tokens"]),
            cached: number(&usage["prompt_tokens_details"]["cached_tokens"]),
            completion: number(&usage["completion_tokens"]),
            reasoning: number(&usage["completion_tokens_details"]["reasoning_tokens"]),
        }
    }

    /// Of a stream's part, where that says it.
    pub fn in_stream(part: &Value) -> Option<Self> {
        part["usage"].is_object().then(|| Self::of(part))
    }
}

/// Some of an answer, or all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::http) struct CompletionPart {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<CallPart>,
    pub finish: Option<String>,
    /// What the client asked to stop at, where that is said.
    pub stop: Option<String>,
}

/// Some of a call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct CallPart {
    pub index: usize,
    /// With the first part.
    pub id: Option<String>,
    /// With the first part.
    pub name: Option<String>,
    pub arguments: String,
}

impl CompletionPart {
    /// Of the first choice.
    pub fn of(answer: &Value) -> Self {
        let choice = &answer["choices"][0];
        let message = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            text: text(&message["content"]).or(text(&choice["text"])).unwrap_or_default(),
            reasoning: text(&message["reasoning_content"]).or(text(&message["reasoning"])).unwrap_or_default(),
            calls: calls(&message["tool_calls"]),
            finish: text(&choice["finish_reason"]),
            stop: text(&choice["stop_reason"]),
        }
    }
}

fn calls(calls: &Value) -> Vec<CallPart> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let call = |(at, call): (usize, &Value)| CallPart {
        index: call["index"].as_u64().map_or(at, |index| index as usize),
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: text(&call["function"]["arguments"]).unwrap_or_default(),
    };
    calls.as_array().into_iter().flatten().enumerate().map(call).collect()
}

/// Names a call that has none.
pub(in crate::http) fn call_id(id: Option<String>, head: &str, index: usize) -> String {
    id.unwrap_or_else(|| format!("call_{head}{index}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_answers_and_parts_are_read_alike() {
        let call = json!({ "index": 1, "id": "c", "function": { "name": "f", "arguments": "{}" } });
        let message = json!({ "content": "Hi", "reasoning_content": "Hm", "tool_calls": [call] });
        let expected = CompletionPart {
            text: "Hi".into(),
            reasoning: "Hm".into(),
            calls: vec![CallPart { index: 1, id: Some("c".into()), name: Some("f".into()), arguments: "{}".into() }],
            finish: Some("stop".into()),
            stop: Some(".".into()),
        };
        for name in ["message", "delta"] {
            let choice = json!({ "finish_reason": "stop", "stop_reason": ".", name: message });
            assert_eq!(CompletionPart::of(&json!({ "choices": [choice] })), expected);
        }
        assert_eq!(CompletionPart::of(&json!({ "choices": [{ "text": "Hi" }] })).text, "Hi");
        assert_eq!(CompletionPart::of(&json!({ "choices": [] })), CompletionPart::default());
    }

    #[test]
    fn an_answer_says_what_it_took() {
        let usage =
            json!({ "prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": { "cached_tokens": 2 } });
        let answer = json!({ "usage": usage });
        assert_eq!(Usage::in_stream(&answer), Some(Usage { prompt: 5, cached: 2, completion: 3, reasoning: 0 }));
        assert_eq!(Usage::in_stream(&json!({ "usage": null })), None);
    }
}
