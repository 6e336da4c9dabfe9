//! A chat completion's answer as Anthropic's messages: content blocks, and the events that tell them.

use super::super::translate::{AnswerHead, CallPart, CompletionPart, Framing, StreamEvent, Teller, Usage, call_id};
use serde_json::{Value, json};

/// Tells one message.
#[derive(Debug, Default)]
pub(super) struct MessagesTeller {
    id: String,
    /// Blocks begun.
    blocks: usize,
    open: Option<ContentBlock>,
    /// Whether a tool was called.
    calls: bool,
    finish: Option<String>,
    stop: Option<String>,
}

/// The block that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentBlock {
    Thinking,
    Text,
    Tool(usize),
}

impl Teller for MessagesTeller {
    const FRAMING: Framing = Framing::Events { ping: Some("ping") };

    fn begin(&mut self, head: &AnswerHead) -> Vec<StreamEvent> {
        self.id = head.id.clone();
        let mut message = message(head);
        message["usage"] = json!({ "input_tokens": head.prompt_tokens, "output_tokens": 0 });
        vec![said("message_start", json!({ "message": message }))]
    }

    fn add(&mut self, part: CompletionPart) -> Vec<StreamEvent> {
        let mut told = Vec::new();
        if !part.reasoning.is_empty() {
            self.within(
                ContentBlock::Thinking,
                || json!({ "type": "thinking", "thinking": "", "signature": "" }),
                &mut told,
            );
            told.push(self.delta(json!({ "type": "thinking_delta", "thinking": part.reasoning })));
        }
        if !part.text.is_empty() {
            self.within(ContentBlock::Text, || json!({ "type": "text", "text": "" }), &mut told);
            told.push(self.delta(json!({ "type": "text_delta", "text": part.text })));
        }
        for CallPart { index, id, name, arguments } in part.calls {
            let id = call_id(id, &self.id, index);
            let begun = || json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
            self.calls = true;
            self.within(ContentBlock::Tool(index), begun, &mut told);
            if !arguments.is_empty() {
                told.push(self.delta(json!({ "type": "input_json_delta", "partial_json": arguments })));
            }
        }
        self.finish = part.finish.or(self.finish.take());
        self.stop = part.stop.or(self.stop.take());
        told
    }

    fn end(&mut self, usage: Usage) -> Vec<StreamEvent> {
        let mut told = Vec::new();
        if self.blocks == 0 {
            self.within(ContentBlock::Text, || json!({ "type": "text", "text": "" }), &mut told);
        }
        self.close(&mut told);
        let (reason, stop) = reason(self.finish.as_deref(), self.stop.as_deref(), self.calls);
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        told.push(said("message_delta", json!({ "delta": delta, "usage": usage_json(usage) })));
        told.push(said("message_stop", json!({})));
        told
    }

    fn fail(&mut self, error: &Value) -> Vec<StreamEvent> {
        let kind = if error["code"] == "unavailable" { "overloaded_error" } else { "api_error" };
        vec![said("error", json!({ "error": { "type": kind, "message": error["message"] } }))]
    }

    fn whole(&mut self, head: &AnswerHead, answer: CompletionPart, usage: Usage) -> Value {
        let (mut content, calls) = (Vec::new(), !answer.calls.is_empty());
        if !answer.reasoning.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
        }
        if !answer.text.is_empty() || (answer.reasoning.is_empty() && answer.calls.is_empty()) {
            content.push(json!({ "type": "text", "text": answer.text }));
        }
        for CallPart { index, id, name, arguments } in answer.calls {
            // A model may write what is no JSON: the client is to see that it did.
            let input = serde_json::from_str::<Value>(&arguments).ok().filter(Value::is_object);
            let input = input.unwrap_or_else(|| json!({ "invalid": arguments }));
            content
                .push(json!({ "type": "tool_use", "id": call_id(id, &head.id, index), "name": name, "input": input }));
        }
        let (reason, stop) = reason(answer.finish.as_deref(), answer.stop.as_deref(), calls);
        let mut message = message(head);
        message["content"] = content.into();
        message["stop_reason"] = json!(reason);
        message["stop_sequence"] = json!(stop);
        message["usage"] = usage_json(usage);
        message
    }
}

impl MessagesTeller {
    /// Has this block open, which begins so.
    fn within(&mut self, block: ContentBlock, begun: impl FnOnce() -> Value, told: &mut Vec<StreamEvent>) {
        if self.open == Some(block) {
            return;
        }
        self.close(told);
        told.push(said("content_block_start", json!({ "index": self.blocks, "content_block": begun() })));
        self.open = Some(block);
        self.blocks += 1;
    }

    fn close(&mut self, told: &mut Vec<StreamEvent>) {
        if self.open.take().is_some() {
            told.push(said("content_block_stop", json!({ "index": self.blocks - 1 })));
        }
    }

    /// More of the open block.
    fn delta(&self, delta: Value) -> StreamEvent {
        said("content_block_delta", json!({ "index": self.blocks.saturating_sub(1), "delta": delta }))
    }
}

/// A message without anything in it.
fn message(head: &AnswerHead) -> Value {
    json!({
        "id": format!("msg_{}", head.id), "type": "message", "role": "assistant", "model": head.model,
        "content": [], "stop_reason": null, "stop_sequence": null,
    })
}

fn said(event: &'static str, mut data: Value) -> StreamEvent {
    data["type"] = event.into();
    StreamEvent { event: Some(event), data }
}

/// A call that was asked for is the reason, too, which completions do not say of one.
fn reason<'s>(finish: Option<&str>, stop: Option<&'s str>, calls: bool) -> (&'static str, Option<&'s str>) {
    match (finish, stop) {
        (Some("length"), _) => ("max_tokens", None),
        (Some("tool_calls"), _) => ("tool_use", None),
        (_, Some(stop)) => ("stop_sequence", Some(stop)),
        _ if calls => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

/// What comes from the cache is counted apart.
fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached), "output_tokens": usage.completion,
        "cache_read_input_tokens": usage.cached, "cache_creation_input_tokens": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage { prompt: 7, cached: 2, completion: 3, reasoning: 0 };

    fn head() -> AnswerHead {
        AnswerHead { id: "0a".into(), model: "m".into(), created: 1, prompt_tokens: 7 }
    }

    fn text(text: &str) -> CompletionPart {
        CompletionPart { text: text.into(), ..CompletionPart::default() }
    }

    fn call(id: Option<&str>, arguments: &str) -> CompletionPart {
        let [id, name] = [id.map(str::to_owned), id.map(|_| "weather".to_owned())];
        CompletionPart {
            calls: vec![CallPart { index: 0, id, name, arguments: arguments.into() }],
            ..CompletionPart::default()
        }
    }

    fn ends(finish: &str) -> CompletionPart {
        CompletionPart { finish: Some(finish.into()), ..CompletionPart::default() }
    }

    /// What a stream of these says, without names that its data have too.
    fn stream(parts: Vec<CompletionPart>) -> Vec<Value> {
        let mut teller = MessagesTeller::default();
        let mut told = teller.begin(&head());
        told.extend(parts.into_iter().flat_map(|part| teller.add(part)).collect::<Vec<_>>());
        told.extend(teller.end(USAGE));
        assert!(told.iter().all(|said| said.data["type"] == said.event.unwrap()));
        told.into_iter().map(|said| said.data).collect()
    }

    #[test]
    fn a_streamed_message_is_told_block_by_block() {
        let thought = CompletionPart { reasoning: "Hm".into(), ..CompletionPart::default() };
        let told = stream(vec![
            text(""),
            thought,
            text("Hel"),
            text("lo"),
            call(Some("t1"), ""),
            call(None, "{}"),
            ends("tool_calls"),
        ]);
        let kinds: Vec<&str> = told.iter().map(|said| said["type"].as_str().unwrap()).collect();
        let block = ["content_block_start", "content_block_delta", "content_block_stop"];
        let mut expected = vec!["message_start"];
        expected.extend(block);
        expected.extend([block[0], block[1], block[1], block[2]]);
        expected.extend(block);
        expected.extend(["message_delta", "message_stop"]);
        assert_eq!(kinds, expected);
        assert_eq!(told[0]["message"]["usage"], json!({ "input_tokens": 7, "output_tokens": 0 }));
        assert_eq!(told[5]["delta"], json!({ "type": "text_delta", "text": "Hel" }));
        assert_eq!((&told[8]["index"], &told[8]["content_block"]["name"]), (&json!(2), &json!("weather")));
        assert_eq!(told[9]["delta"]["partial_json"], "{}");
        assert_eq!(told[11]["delta"]["stop_reason"], "tool_use");
        assert_eq!((&told[11]["usage"]["input_tokens"], &told[11]["usage"]["output_tokens"]), (&json!(5), &json!(3)));
    }

    #[test]
    fn an_empty_answer_has_a_block_all_the_same() {
        let told = stream(vec![ends("stop")]);
        let kinds: Vec<&str> = told.iter().map(|said| said["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
        );
    }

    #[test]
    fn a_whole_message_has_the_same() {
        let mut answer = CompletionPart { calls: call(Some("t1"), r#"{"city":"Ulm"}"#).calls, ..text("Hello") };
        answer.finish = Some("tool_calls".into());
        let whole = MessagesTeller::default().whole(&head(), answer, USAGE);
        let tool = json!({ "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Ulm" } });
        assert_eq!(whole["content"], json!([{ "type": "text", "text": "Hello" }, tool]));
        assert_eq!((&whole["id"], &whole["stop_reason"]), (&json!("msg_0a"), &json!("tool_use")));
        assert_eq!(whole["usage"]["cache_read_input_tokens"], 2);
    }

    #[test]
    fn why_an_answer_ended_is_said_in_their_words() {
        assert_eq!(reason(Some("length"), None, true), ("max_tokens", None));
        assert_eq!(reason(Some("stop"), None, false), ("end_turn", None));
        assert_eq!(reason(Some("stop"), Some("x"), true), ("stop_sequence", Some("x")));
    }

    /// A completion of which one tool was demanded by name ends with `stop`.
    #[test]
    fn a_call_that_was_demanded_is_why_an_answer_ended() {
        let told = stream(vec![call(Some("t1"), "{}"), ends("stop")]);
        assert_eq!(told[told.len() - 2]["delta"]["stop_reason"], "tool_use");
        let answer = CompletionPart { finish: Some("stop".into()), ..call(Some("t1"), "{}") };
        assert_eq!(MessagesTeller::default().whole(&head(), answer, USAGE)["stop_reason"], "tool_use");
    }
}
