//! A chat completion's answer as a response: items of output, and the events that tell them.

use super::super::translate::{AnswerHead, CallPart, CompletionPart, StreamEvent, Usage, call_id};
use super::{items, request::ResponsesRequest};
use serde_json::{Value, json};

/// Tells one response.
#[derive(Debug, Default)]
pub(super) struct ResponsesTeller {
    asked: ResponsesRequest,
    head: AnswerHead,
    /// The number of the next event.
    sequence: u64,
    items: Vec<OutputItem>,
    finish: Option<String>,
    /// The response, once it is whole.
    response: Option<Value>,
}

/// One item of output.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OutputItem {
    Reasoning { text: String },
    Message { text: String },
    Call { index: usize, id: String, name: String, arguments: String },
}

impl ResponsesTeller {
    pub fn of(asked: ResponsesRequest) -> Self {
        Self { asked, ..Self::default() }
    }

    pub fn begin(&mut self, head: &AnswerHead) -> Vec<StreamEvent> {
        self.head = head.clone();
        let response = self.response("in_progress", None, None);
        ["response.created", "response.in_progress"]
            .into_iter()
            .map(|event| self.said(event, json!({ "response": response })))
            .collect()
    }

    pub fn add(&mut self, part: CompletionPart) -> Vec<StreamEvent> {
        let mut told = Vec::new();
        if !part.reasoning.is_empty() {
            let same = |item: &OutputItem| matches!(item, OutputItem::Reasoning { .. });
            self.within(same, || OutputItem::Reasoning { text: String::new() }, &mut told);
            self.more(&part.reasoning, &mut told);
        }
        if !part.text.is_empty() {
            let same = |item: &OutputItem| matches!(item, OutputItem::Message { .. });
            self.within(same, || OutputItem::Message { text: String::new() }, &mut told);
            self.more(&part.text, &mut told);
        }
        for CallPart { index, id, name, arguments } in part.calls {
            let same = |item: &OutputItem| matches!(item, OutputItem::Call { index: at, .. } if *at == index);
            let id = call_id(id, &self.head.id, index);
            let begun = || OutputItem::Call { index, id, name: name.unwrap_or_default(), arguments: String::new() };
            self.within(same, begun, &mut told);
            if !arguments.is_empty() {
                self.more(&arguments, &mut told);
            }
        }
        self.finish = part.finish.or(self.finish.take());
        told
    }

    pub fn end(&mut self, usage: Usage) -> Vec<StreamEvent> {
        let mut told = Vec::new();
        if self.items.is_empty() {
            self.within(|_| false, || OutputItem::Message { text: String::new() }, &mut told);
        }
        self.close(&mut told);
        let response = self.ended(usage);
        let event = if self.is_incomplete() { "response.incomplete" } else { "response.completed" };
        told.push(self.said(event, json!({ "response": response })));
        told
    }

    pub fn fail(&mut self, error: &Value) -> Vec<StreamEvent> {
        let error = json!({ "code": error["code"].as_str().unwrap_or("server_error"), "message": error["message"] });
        let response = self.response("failed", None, Some(error));
        vec![self.said("response.failed", json!({ "response": response }))]
    }

    pub fn whole(&mut self, head: &AnswerHead, answer: CompletionPart, usage: Usage) -> Value {
        self.head = head.clone();
        self.add(answer);
        if self.items.is_empty() {
            self.items.push(OutputItem::Message { text: String::new() });
        }
        self.ended(usage)
    }

    /// The whole response and the conversation that it ends, where they are to be kept.
    pub fn to_keep(&self) -> Option<(&Value, Vec<Value>)> {
        let (response, mut said) = (self.response.as_ref()?, self.asked.conversation.clone()?);
        // What was said before is no part of this answer.
        let mut answer = Vec::new();
        for item in &self.items {
            match item {
                OutputItem::Reasoning { .. } => {}
                OutputItem::Message { text } => answer.push(json!({ "role": "assistant", "content": text })),
                OutputItem::Call { id, name, arguments, .. } => {
                    let function = json!({ "name": name, "arguments": arguments });
                    items::call(json!({ "id": id, "type": "function", "function": function }), &mut answer);
                }
            }
        }
        said.extend(answer);
        Some((response, said))
    }

    fn is_incomplete(&self) -> bool {
        self.finish.as_deref() == Some("length")
    }

    fn ended(&mut self, usage: Usage) -> Value {
        let status = if self.is_incomplete() { "incomplete" } else { "completed" };
        let response = self.response(status, Some(usage), None);
        self.response = Some(response.clone());
        response
    }

    /// The response as it is now.
    fn response(&self, status: &str, usage: Option<Usage>, error: Option<Value>) -> Value {
        let mut response = Value::Object(self.asked.repeated.clone());
        let AnswerHead { id, model, created, .. } = &self.head;
        let output: Vec<Value> = (0..self.items.len()).map(|at| self.item(at, status_of(status))).collect();
        response["id"] = format!("resp_{id}").into();
        response["object"] = "response".into();
        response["created_at"] = (*created).into();
        response["model"] = model.as_str().into();
        response["status"] = status.into();
        response["error"] = json!(error);
        response["output"] = output.into();
        let reason = json!({ "reason": "max_output_tokens" });
        response["incomplete_details"] = if status == "incomplete" { reason } else { Value::Null };
        response["usage"] = json!(usage.map(usage_json));
        response
    }

    /// One item of output as clients read it.
    fn item(&self, at: usize, status: &str) -> Value {
        let id = self.item_id(at);
        match &self.items[at] {
            OutputItem::Reasoning { text } => {
                let content = json!([{ "type": "reasoning_text", "text": text }]);
                json!({ "type": "reasoning", "id": id, "summary": [], "content": content, "status": status })
            }
            OutputItem::Message { text } => {
                let content = json!([text_part(text)]);
                json!({ "type": "message", "id": id, "role": "assistant", "status": status, "content": content })
            }
            OutputItem::Call { id: call, name, arguments, .. } => json!({
                "type": "function_call", "id": id, "call_id": call, "name": name, "arguments": arguments, "status": status,
            }),
        }
    }

    fn item_id(&self, at: usize) -> String {
        let kind = match &self.items[at] {
            OutputItem::Reasoning { .. } => "rs",
            OutputItem::Message { .. } => "msg",
            OutputItem::Call { .. } => "fc",
        };
        format!("{kind}_{}{at}", self.head.id)
    }

    /// Has such an item open, which begins so.
    fn within(
        &mut self,
        same: impl Fn(&OutputItem) -> bool,
        begun: impl FnOnce() -> OutputItem,
        told: &mut Vec<StreamEvent>,
    ) {
        if self.items.last().is_some_and(same) {
            return;
        }
        self.close(told);
        self.items.push(begun());
        let at = self.items.len() - 1;
        let mut item = self.item(at, "in_progress");
        if !matches!(self.items[at], OutputItem::Call { .. }) {
            item["content"] = json!([]);
        }
        told.push(self.said("response.output_item.added", json!({ "output_index": at, "item": item })));
        if matches!(self.items[at], OutputItem::Message { .. }) {
            let part = json!({ "part": text_part("") });
            told.push(self.of_content("response.content_part.added", part));
        }
    }

    /// More of the open item.
    fn more(&mut self, more: &str, told: &mut Vec<StreamEvent>) {
        let Some(item) = self.items.last_mut() else { return };
        let (OutputItem::Reasoning { text } | OutputItem::Message { text } | OutputItem::Call { arguments: text, .. }) =
            item;
        text.push_str(more);
        let delta = json!({ "delta": more });
        let said = match item {
            OutputItem::Reasoning { .. } => self.of_content("response.reasoning_text.delta", delta),
            OutputItem::Message { .. } => {
                self.of_content("response.output_text.delta", json!({ "delta": more, "logprobs": [] }))
            }
            OutputItem::Call { .. } => self.of_item("response.function_call_arguments.delta", delta),
        };
        told.push(said);
    }

    /// Says that the open item is whole.
    fn close(&mut self, told: &mut Vec<StreamEvent>) {
        let Some(at) = self.items.len().checked_sub(1) else { return };
        match self.items[at].clone() {
            OutputItem::Reasoning { text } => {
                told.push(self.of_content("response.reasoning_text.done", json!({ "text": text })));
            }
            OutputItem::Message { text } => {
                told.push(self.of_content("response.output_text.done", json!({ "text": text, "logprobs": [] })));
                told.push(self.of_content("response.content_part.done", json!({ "part": text_part(&text) })));
            }
            OutputItem::Call { name, arguments, .. } => {
                let whole = json!({ "name": name, "arguments": arguments });
                told.push(self.of_item("response.function_call_arguments.done", whole));
            }
        }
        let item = self.item(at, "completed");
        told.push(self.said("response.output_item.done", json!({ "output_index": at, "item": item })));
    }

    /// An event of the last item.
    fn of_item(&mut self, event: &'static str, mut data: Value) -> StreamEvent {
        let at = self.items.len().saturating_sub(1);
        data["output_index"] = at.into();
        data["item_id"] = self.item_id(at).into();
        self.said(event, data)
    }

    /// An event of the last item's one part.
    fn of_content(&mut self, event: &'static str, mut data: Value) -> StreamEvent {
        data["content_index"] = 0.into();
        self.of_item(event, data)
    }

    fn said(&mut self, event: &'static str, mut data: Value) -> StreamEvent {
        data["type"] = event.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        StreamEvent { event: Some(event), data }
    }
}

/// What items are in a response that is this.
fn status_of(response: &str) -> &str {
    if response == "failed" { "incomplete" } else { response }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt, "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.completion, "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.completion,
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

    fn call(index: usize, id: Option<&str>, arguments: &str) -> CompletionPart {
        let [id, name] = [id.map(str::to_owned), id.map(|_| "weather".to_owned())];
        CompletionPart {
            calls: vec![CallPart { index, id, name, arguments: arguments.into() }],
            ..CompletionPart::default()
        }
    }

    fn ends(finish: &str) -> CompletionPart {
        CompletionPart { finish: Some(finish.into()), ..CompletionPart::default() }
    }

    fn stream(telling: &mut ResponsesTeller, parts: Vec<CompletionPart>) -> Vec<Value> {
        let mut told = telling.begin(&head());
        for part in parts {
            told.extend(telling.add(part));
        }
        told.extend(telling.end(USAGE));
        let told: Vec<Value> = told.into_iter().map(|said| said.data).collect();
        assert!((0..).zip(&told).all(|(n, said)| said["sequence_number"] == n));
        told
    }

    fn kinds(told: &[Value]) -> Vec<&str> {
        told.iter().map(|said| said["type"].as_str().unwrap().trim_start_matches("response.")).collect()
    }

    #[test]
    fn a_streamed_text_is_told_from_its_beginning_to_its_end() {
        let told = stream(&mut ResponsesTeller::default(), vec![text(""), text("Hel"), text("lo"), ends("stop")]);
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(kinds(&told), expected);
        assert_eq!((&told[4]["delta"], &told[4]["item_id"]), (&json!("Hel"), &json!("msg_0a0")));
        let whole = ResponsesTeller::default().whole(
            &head(),
            CompletionPart { finish: Some("stop".into()), ..text("Hello") },
            USAGE,
        );
        assert_eq!(told[9]["response"], whole, "streamed or not, it is the same");
        assert_eq!((&whole["id"], &whole["status"]), (&json!("resp_0a"), &json!("completed")));
        assert_eq!(whole["output"][0]["content"][0]["text"], "Hello");
        assert_eq!(whole["usage"]["total_tokens"], 10);
    }

    #[test]
    fn thoughts_text_and_calls_are_items_of_their_own() {
        let thought = CompletionPart { reasoning: "Hm".into(), ..CompletionPart::default() };
        let parts = vec![
            thought,
            text("Yes"),
            call(0, Some("c1"), "{"),
            call(0, None, "}"),
            call(1, Some("c2"), "{}"),
            ends("tool_calls"),
        ];
        let conversation = vec![json!({ "role": "user", "content": "Weather?" })];
        let mut telling =
            ResponsesTeller::of(ResponsesRequest { conversation: Some(conversation), ..ResponsesRequest::default() });
        let told = stream(&mut telling, parts);
        let of = |kind: &str| kinds(&told).iter().filter(|k| **k == kind).count();
        assert_eq!((of("output_item.added"), of("output_item.done"), of("function_call_arguments.delta")), (4, 4, 3));
        let output = &told.last().unwrap()["response"]["output"];
        let types: Vec<&str> = output.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["reasoning", "message", "function_call", "function_call"]);
        assert_eq!((&output[2]["arguments"], &output[3]["call_id"]), (&json!("{}"), &json!("c2")));
        let (_, kept) = telling.to_keep().unwrap();
        assert_eq!((kept.len(), kept[1]["tool_calls"].as_array().unwrap().len()), (2, 2));
        assert_eq!(kept[1]["content"], "Yes");
    }

    #[test]
    fn what_is_cut_short_or_breaks_off_says_so() {
        let told = stream(&mut ResponsesTeller::default(), vec![text("Hel"), ends("length")]);
        let last = told.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
        let mut telling =
            ResponsesTeller::of(ResponsesRequest { conversation: Some(vec![]), ..ResponsesRequest::default() });
        telling.begin(&head());
        telling.add(text("Hel"));
        let failed = telling.fail(&json!({ "message": "gone", "code": "peer_failed" }));
        assert_eq!(failed[0].data["response"]["error"], json!({ "code": "peer_failed", "message": "gone" }));
        assert_eq!(failed[0].data["response"]["output"][0]["status"], "incomplete");
        assert!(telling.to_keep().is_none(), "nothing goes on from it");
    }
}
