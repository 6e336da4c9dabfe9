//! A completion's answer in Ollama's words: an object for each part, on a line of its own.

use super::super::translate::{AnswerHead, CallPart, CompletionPart, Framing, StreamEvent, Teller, Usage};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Which of the two was asked: `/api/chat` or `/api/generate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OllamaEndpoint {
    #[default]
    Chat,
    Generate,
}

/// Tells one answer.
#[derive(Debug)]
pub(super) struct OllamaTeller {
    endpoint: OllamaEndpoint,
    asks_nothing: bool,
    model: String,
    asked: Instant,
    /// When the first token came.
    first: Option<Duration>,
    finish: Option<String>,
    /// Calls of tools, which are told whole.
    calls: Vec<CallPart>,
}

impl OllamaTeller {
    pub fn of(endpoint: OllamaEndpoint, asks_nothing: bool) -> Self {
        let (model, calls) = (String::new(), Vec::new());
        Self { endpoint, asks_nothing, model, asked: Instant::now(), first: None, finish: None, calls }
    }

    /// Whether there is no prompt.
    pub fn asks_nothing(&self) -> bool {
        self.asks_nothing
    }

    /// The answer to that.
    pub fn nothing(&self, model: &str) -> Value {
        let mut told = self.part(model, String::new(), String::new(), Vec::new());
        told["done"] = true.into();
        told["done_reason"] = "load".into();
        told
    }

    /// One object.
    fn part(&self, model: &str, text: String, thinking: String, calls: Vec<Value>) -> Value {
        let mut told = json!({ "model": model, "created_at": jiff::Timestamp::now().to_string(), "done": false });
        let mut said = Map::new();
        if !thinking.is_empty() {
            said.insert("thinking".into(), thinking.into());
        }
        if !calls.is_empty() {
            said.insert("tool_calls".into(), calls.into());
        }
        match (self.endpoint, &mut told) {
            (OllamaEndpoint::Generate, Value::Object(told)) => {
                told.extend(said);
                told.insert("response".into(), text.into());
            }
            (_, told) => {
                said.insert("role".into(), "assistant".into());
                said.insert("content".into(), text.into());
                told["message"] = said.into();
            }
        }
        told
    }

    fn gather(&mut self, calls: Vec<CallPart>) {
        for call in calls {
            match self.calls.iter_mut().find(|known| known.index == call.index) {
                Some(known) => known.arguments.push_str(&call.arguments),
                None => self.calls.push(call),
            }
        }
    }

    fn calls(&mut self) -> Vec<Value> {
        let call = |CallPart { name, arguments, .. }| {
            // A model may write what is no JSON: the client is to see that it did.
            let read = serde_json::from_str::<Value>(&arguments).ok().filter(Value::is_object);
            let arguments = read.unwrap_or_else(|| json!({ "invalid": arguments }));
            json!({ "function": { "name": name, "arguments": arguments } })
        };
        self.calls.drain(..).map(call).collect()
    }

    /// Closes an answer with what it took.
    fn close(&self, told: &mut Value, usage: Usage) {
        let all = self.asked.elapsed();
        let prompt = self.first.unwrap_or(all);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        told["done"] = true.into();
        told["done_reason"] = if self.finish.as_deref() == Some("length") { "length" } else { "stop" }.into();
        told["total_duration"] = nanoseconds(all).into();
        told["load_duration"] = 0.into();
        told["prompt_eval_count"] = usage.prompt.into();
        told["prompt_eval_duration"] = nanoseconds(prompt).into();
        told["eval_count"] = usage.completion.into();
        told["eval_duration"] = nanoseconds(all.saturating_sub(prompt)).into();
    }
}

fn line(data: Value) -> StreamEvent {
    StreamEvent { event: None, data }
}

impl Teller for OllamaTeller {
    const FRAMING: Framing = Framing::Lines;

    fn begin(&mut self, head: &AnswerHead) -> Vec<StreamEvent> {
        self.model = head.model.clone();
        Vec::new()
    }

    fn add(&mut self, part: CompletionPart) -> Vec<StreamEvent> {
        self.first.get_or_insert(self.asked.elapsed());
        self.finish = part.finish.or(self.finish.take());
        self.gather(part.calls);
        if part.text.is_empty() && part.reasoning.is_empty() {
            return Vec::new();
        }
        vec![line(self.part(&self.model, part.text, part.reasoning, Vec::new()))]
    }

    fn end(&mut self, usage: Usage) -> Vec<StreamEvent> {
        let calls = self.calls();
        let mut told = Vec::new();
        if !calls.is_empty() {
            told.push(line(self.part(&self.model, String::new(), String::new(), calls)));
        }
        let mut last = self.part(&self.model, String::new(), String::new(), Vec::new());
        self.close(&mut last, usage);
        told.push(line(last));
        told
    }

    fn fail(&mut self, error: &Value) -> Vec<StreamEvent> {
        vec![line(json!({ "error": error["message"] }))]
    }

    fn whole(&mut self, head: &AnswerHead, answer: CompletionPart, usage: Usage) -> Value {
        self.finish = answer.finish;
        self.gather(answer.calls);
        let calls = self.calls();
        let mut told = self.part(&head.model, answer.text, answer.reasoning, calls);
        self.close(&mut told, usage);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage { prompt: 7, cached: 2, completion: 3, reasoning: 0 };

    fn head() -> AnswerHead {
        AnswerHead { id: "0a".into(), model: "m".into(), created: 1, prompt_tokens: 7 }
    }

    fn parts() -> [CompletionPart; 4] {
        let call = |id: Option<&str>, arguments: &str| CallPart {
            index: 0,
            id: id.map(str::to_owned),
            name: id.map(|_| "weather".to_owned()),
            arguments: arguments.into(),
        };
        [
            CompletionPart { reasoning: "Hm".into(), ..CompletionPart::default() },
            CompletionPart { text: "Hi".into(), calls: vec![call(Some("c"), "{\"a\"")], ..CompletionPart::default() },
            CompletionPart { calls: vec![call(None, ":1}")], ..CompletionPart::default() },
            CompletionPart { finish: Some("length".into()), ..CompletionPart::default() },
        ]
    }

    #[test]
    fn a_stream_has_a_line_for_each_part_and_a_last_one_with_what_it_took() {
        let mut telling = OllamaTeller::of(OllamaEndpoint::Chat, false);
        telling.begin(&head());
        let mut told: Vec<Value> =
            parts().into_iter().flat_map(|part| telling.add(part)).map(|said| said.data).collect();
        told.extend(telling.end(USAGE).into_iter().map(|said| said.data));
        assert_eq!(told.len(), 4);
        assert_eq!((&told[0]["message"]["thinking"], &told[1]["message"]["content"]), (&json!("Hm"), &json!("Hi")));
        let function = json!({ "name": "weather", "arguments": { "a": 1 } });
        assert_eq!(told[2]["message"]["tool_calls"], json!([{ "function": function }]));
        assert_eq!((&told[3]["done"], &told[3]["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!((&told[3]["prompt_eval_count"], &told[3]["eval_count"]), (&json!(7), &json!(3)));
        assert!(told[..3].iter().all(|said| said["done"] == false && said["model"] == "m"));
        assert!(told[0]["created_at"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn a_whole_answer_to_a_prompt_is_a_response() {
        let answer = CompletionPart { text: "Hi".into(), finish: Some("stop".into()), ..CompletionPart::default() };
        let told = OllamaTeller::of(OllamaEndpoint::Generate, false).whole(&head(), answer, USAGE);
        assert_eq!(
            (&told["response"], &told["done_reason"], &told["message"]),
            (&json!("Hi"), &json!("stop"), &Value::Null)
        );
        let nothing = OllamaTeller::of(OllamaEndpoint::Generate, true).nothing("m");
        assert_eq!((&nothing["done_reason"], &nothing["response"]), (&json!("load"), &json!("")));
        assert_eq!(
            OllamaTeller::of(OllamaEndpoint::Chat, false).fail(&json!({ "message": "gone" }))[0].data,
            json!({ "error": "gone" })
        );
    }
}
