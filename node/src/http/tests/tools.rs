//! Tools and thoughts as clients see them: what the template is given, and what the answer is taken apart into.

use super::*;

/// As Hermes and Qwen have it; begins thoughts unless told not to.
const HERMES: &str = "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}{{ documents | tojson if documents }}\
{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }} \
{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}{{ reasoning_effort }}\
{{ '<think>' if enable_thinking }}";

fn with_template(template: &str) -> ModelFiles {
    let mut files = files();
    Arc::make_mut(&mut files.files).insert("chat_template.jinja".into(), template.into());
    files
}

async fn hermes(says: &'static str) -> Api {
    Api::of(with_template(HERMES), GatewayReply::Say(says, End::Stop), keys(None, None)).await
}

fn wind() -> Value {
    let schema: Value = serde_json::from_str(
        r#"{"type":"object","properties":{"town":{"type":"string"},"at":{}},"required":["town"]}"#,
    )
    .unwrap();
    json!([{ "type": "function", "function": { "name": "wind", "parameters": schema } }])
}

fn asked(more: Value) -> Value {
    let mut body = json!({ "messages": hello(), "tools": wind() });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

impl Api {
    /// The text that the model was asked to go on with.
    fn prompt(&self) -> String {
        let text = TextModel::new(&files(), &Templates::Here).unwrap();
        let ids: Vec<u32> = self.last_asked().prompt.iter().map(|token| token.0).collect();
        text.tokenizer().decode(&ids, false).unwrap()
    }

    /// The choices' first entries of a streamed answer.
    async fn choices(&self, mut body: Value) -> Vec<Value> {
        body["stream"] = json!(true);
        let events = self.stream(CHAT, body).await;
        let parts = events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
        parts.map(|part| part["choices"][0].clone()).collect()
    }
}

const TWO_CALLS: &str = "I look.\n<tool_call>\n{\"name\": \"wind\", \"arguments\": {\"town\": \"Bonn\"}}\n</tool_call>\n\
                         <tool_call>\n{\"name\": \"wind\", \"arguments\": {\"town\": \"Rome\"}}\n</tool_call>";

#[tokio::test]
async fn calls_are_apart_from_what_is_said() {
    let api = hermes(TWO_CALLS).await;
    let (status, answer) = api.post(CHAT, asked(json!({}))).await;
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &json!("I look.")));
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let towns: Vec<&Value> = calls.iter().map(|call| &call["function"]["arguments"]).collect();
    assert_eq!(towns, [r#"{"town": "Bonn"}"#, r#"{"town": "Rome"}"#]);
    assert!(calls.iter().all(|call| call["type"] == "function" && call["function"]["name"] == "wind"), "{answer}");
    let ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("call_")), "{ids:?}");
    // Who says nothing beside has no content.
    let api = hermes("<tool_call>{\"name\": \"wind\", \"arguments\": {}}</tool_call>").await;
    let (_, answer) = api.post(CHAT, asked(json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
}

/// What is called is not lost with what a stop string cuts off behind it.
#[tokio::test]
async fn a_stop_string_behind_calls_leaves_them_calls() {
    let says = "<tool_call>{\"name\": \"wind\", \"arguments\": {}}</tool_call>\nAnd so on";
    let api = hermes(says).await;
    let body = asked(json!({ "stop": [" so"] }));
    let (_, answer) = api.post(CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("tool_calls"), &json!(" so")), "{answer}");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "wind");
    let choices = api.choices(body).await;
    assert_eq!(choices.iter().rev().find_map(|choice| choice["finish_reason"].as_str()), Some("tool_calls"));
}

#[tokio::test]
async fn streamed_calls_come_name_first_and_add_up() {
    let api = hermes(TWO_CALLS).await;
    let choices = api.choices(asked(json!({}))).await;
    assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");
    let content: String = choices.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
    assert_eq!(content, "I look.");
    let parts: Vec<&Value> = choices.iter().filter_map(|c| c["delta"]["tool_calls"].as_array()).flatten().collect();
    assert!(parts.len() > 4, "arguments come as they are written: {parts:?}");
    let (mut named, mut arguments) = (Vec::new(), [String::new(), String::new()]);
    for part in parts {
        let index = part["index"].as_u64().unwrap() as usize;
        if let Some(name) = part["function"]["name"].as_str() {
            assert!(arguments[index].is_empty() && part["type"] == "function", "{part}");
            named.push((index, name, part["id"].as_str().unwrap()));
        } else {
            assert!(part.get("id").is_none(), "{part}");
        }
        arguments[index].push_str(part["function"]["arguments"].as_str().unwrap());
    }
    assert_eq!(arguments, [r#"{"town": "Bonn"}"#, r#"{"town": "Rome"}"#]);
    assert!(matches!(&named[..], [(0, "wind", one), (1, "wind", other)] if one != other), "{named:?}");
}

/// Qwen3-Coder's values are bare text: what they are, the tool's schema says.
#[tokio::test]
async fn bare_values_are_of_the_schemas_types_whole_and_streamed() {
    let template = format!("{HERMES}{{# <function=name> #}}");
    let says = "I look.\n<tool_call>\n<function=wind>\n<parameter=town>\nBonn \"am Rhein\"\n</parameter>\n<parameter=days>\n3\n\
                </parameter>\n<parameter=at>\n7\n</parameter>\n</function>\n</tool_call>";
    let api = Api::of(with_template(&template), GatewayReply::Say(says, End::Stop), keys(None, None)).await;
    let mut body = asked(json!({}));
    body["tools"][0]["function"]["parameters"]["properties"]["days"] = json!({ "type": "integer" });
    let held = json!({ "town": "Bonn \"am Rhein\"", "days": 3, "at": "7" });
    let (_, answer) = api.post(CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &json!("I look.")));
    let call = &choice["message"]["tool_calls"][0]["function"];
    let given = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!((call["name"].as_str(), given(call["arguments"].as_str().unwrap())), (Some("wind"), held.clone()));
    let choices = api.choices(body).await;
    let parts: Vec<&Value> = choices.iter().filter_map(|c| c["delta"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(parts[0]["function"]["name"], "wind");
    let arguments: String = parts.iter().filter_map(|part| part["function"]["arguments"].as_str()).collect();
    assert_eq!(given(&arguments), held);
    assert!(parts.len() > 4, "a text comes as it is written: {parts:?}");
}

/// Gemma 4's thoughts may come again behind a call, and its arguments are no JSON.
#[tokio::test]
async fn gemmas_thoughts_and_calls_are_apart_whole_and_streamed() {
    let template = "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}{{ messages[0].content }}\
                    {# <|tool_call>call: #}{{ '<|channel>thought\n<channel|>' if not enable_thinking }}";
    let says = "<|channel>thought\nWind, then.\n<channel|>I look.\n\
                <|tool_call>call:wind{at:7,town:<|\"|>Bonn \"am Rhein\"<|\"|>}<tool_call|><|channel>thought\n<channel|>";
    let api = Api::of(with_template(template), GatewayReply::Say(says, End::Stop), keys(None, None)).await;
    let held = json!({ "town": "Bonn \"am Rhein\"", "at": 7 });
    let given = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (_, answer) = api.post(CHAT, asked(json!({}))).await;
    let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
    assert_eq!((&choice["finish_reason"], &message["content"]), (&json!("tool_calls"), &json!("I look.")), "{answer}");
    assert_eq!(message["reasoning_content"], "Wind, then.");
    let call = &message["tool_calls"][0]["function"];
    assert_eq!((call["name"].as_str(), given(call["arguments"].as_str().unwrap())), (Some("wind"), held.clone()));
    let choices = api.choices(asked(json!({}))).await;
    let said = |field: &str| choices.iter().filter_map(|c| c["delta"][field].as_str()).collect::<String>();
    assert_eq!((said("reasoning_content"), said("content")), ("Wind, then.".into(), "I look.".into()));
    let parts: Vec<&Value> = choices.iter().filter_map(|c| c["delta"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(parts[0]["function"]["name"], "wind");
    let arguments: String = parts.iter().filter_map(|part| part["function"]["arguments"].as_str()).collect();
    assert_eq!(given(&arguments), held);
    assert!(parts.len() > 4, "a text comes as it is written: {parts:?}");
    // Who must call is held to JSON between these marks, with thoughts before it or without.
    api.post(CHAT, asked(json!({ "tool_choice": "required" }))).await;
    let constraint = api.last_asked().generation.sampling.constraint.unwrap();
    let grammar = constraint.grammar.text();
    for part in [r#""<|channel>" "thought\n""#, r#""<|tool_call>" "call:wind" arguments_0 "<tool_call|>""#] {
        assert!(grammar.contains(part), "{part} in {grammar}");
    }
}

#[tokio::test]
async fn what_only_looks_like_a_call_is_said() {
    let text = "Write <tool_call>like this</tool_call>.";
    let api = hermes(text).await;
    let (_, answer) = api.post(CHAT, asked(json!({}))).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(text), &json!("stop")));
    assert!(choice["message"].get("tool_calls").is_none());
    // Nobody looks for calls where none may be made.
    let api = hermes(TWO_CALLS).await;
    for body in [json!({ "messages": hello() }), asked(json!({ "tool_choice": "none" }))] {
        let (_, answer) = api.post(CHAT, body).await;
        let choice = &answer["choices"][0];
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(TWO_CALLS), &json!("stop")));
        assert!(!api.prompt().contains("wind"), "{}", api.prompt());
    }
}

#[tokio::test]
async fn one_call_is_left_where_there_may_not_be_more() {
    let api = hermes(TWO_CALLS).await;
    let body = asked(json!({ "parallel_tool_calls": false }));
    let (_, answer) = api.post(CHAT, body.clone()).await;
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &answer["choices"][0]["finish_reason"]), (1, &json!("tool_calls")));
    let choices = api.choices(body).await;
    let mut parts = choices.iter().filter_map(|c| c["delta"]["tool_calls"].as_array()).flatten();
    assert!(parts.all(|part| part["index"] == 0));
}

/// What such a grammar is, is tested beside it; here it must be that of the tools that may be called.
#[tokio::test]
async fn who_must_call_is_constrained_to_it() {
    let api = hermes("<tool_call>\n{\"name\": \"wind\", \"arguments\": {}}\n</tool_call>").await;
    let mut tools = wind();
    tools.as_array_mut().unwrap().push(json!({ "type": "function", "function": { "name": "rain" } }));
    let named = json!({ "type": "function", "function": { "name": "wind" } });
    for (choice, has_rain, finish) in [(json!("required"), true, "tool_calls"), (named, false, "stop")] {
        let (status, answer) = api.post(CHAT, asked(json!({ "tools": tools, "tool_choice": choice }))).await;
        assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!(finish)), "{answer}");
        let constraint = api.last_asked().generation.sampling.constraint.unwrap();
        let grammar = constraint.grammar.text();
        assert!(grammar.contains(r#"\"name\": \"wind\""#), "{grammar}");
        assert_eq!((grammar.contains("rain"), grammar.contains("{0,15}")), (has_rain, has_rain), "{grammar}");
        assert!(!constraint.ends.is_empty());
    }
    api.post(CHAT, asked(json!({}))).await;
    assert_eq!(api.last_asked().generation.sampling.constraint, None);
}

#[tokio::test]
async fn an_answer_that_is_cut_off_within_a_call_says_so() {
    let text = "<tool_call>{\"name\": \"wind\", \"arguments\": {\"town\": \"Bo";
    let api = Api::of(with_template(HERMES), GatewayReply::Say(text, End::Length), keys(None, None)).await;
    let (_, answer) = api.post(CHAT, asked(json!({}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"town\": \"Bo");
}

/// Tools with their keys in the client's order, calls with their arguments as objects, and what tools answered.
#[tokio::test]
async fn the_template_is_given_tools_calls_and_results() {
    let api = hermes("So.").await;
    let turns = json!([
        { "role": "user", "content": "Is it calm?" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "c1", "type": "function", "function": { "name": "wind", "arguments": "{\"town\": \"Bonn\", \"at\": 7}" } },
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "calm" },
    ]);
    let body = asked(json!({ "messages": turns, "documents": [{ "text": "It blows." }] }));
    let (status, answer) = api.post(CHAT, body).await;
    assert_eq!(status, 200, "{answer}");
    let prompt = api.prompt();
    let parts = [
        r#"[{"type": "function", "function": {"name": "wind", "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "at": {}}, "required": ["town"]}}}]"#,
        r#"[{"text": "It blows."}]"#,
        r#"<assistant><tool_call>wind {"town": "Bonn", "at": 7}</tool_call><tool>calm"#,
    ];
    for part in parts {
        assert!(prompt.contains(part), "{part} in {prompt}");
    }
}

#[tokio::test]
async fn tools_are_described_to_a_model_whose_template_knows_none() {
    let call = "{\"name\": \"wind\", \"arguments\": {\"town\": \"Bonn\"}}";
    let api = Api::up(GatewayReply::Say(call, End::Stop)).await;
    let (status, answer) = api.post(CHAT, asked(json!({}))).await;
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"town\": \"Bonn\"}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    let prompt = api.prompt();
    assert!(prompt.contains("<|system|>To call a function, answer with nothing but JSON"), "{prompt}");
    assert!(prompt.contains("{\"name\":\"wind\""), "{prompt}");
}

#[tokio::test]
async fn tools_that_are_none_are_refused_by_name() {
    let api = hermes("So.").await;
    let function = |function: Value| json!([{ "type": "function", "function": function }]);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let cases = [
        (json!({ "tools": {} }), "tools"),
        (json!({ "tools": [{}] }), "tools"),
        (json!({ "tools": function(json!({})) }), "tools"),
        (json!({ "tools": function(json!({ "name": "a b" })) }), "tools"),
        (json!({ "tools": function(json!({ "name": "x".repeat(129) })) }), "tools"),
        (json!({ "tools": function(json!({ "name": "f", "parameters": [] })) }), "tools"),
        (json!({ "tools": [wind()[0], wind()[0]] }), "tools"),
        (json!({ "tools": vec![wind()[0].clone(); 129] }), "tools"),
        (json!({ "tool_choice": "maybe" }), "tool_choice"),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice"),
        (json!({ "tool_choice": named("rain") }), "tool_choice"),
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice"),
        (json!({ "parallel_tool_calls": 1 }), "parallel_tool_calls"),
        (json!({ "functions": [{}] }), "functions"),
        (json!({ "documents": ["x"] }), "documents"),
        (json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs"),
        (json!({ "reasoning_effort": 1 }), "reasoning_effort"),
        (json!({ "include_reasoning": "no" }), "include_reasoning"),
    ];
    for (more, param) in cases {
        let (status, answer) = api.post(CHAT, asked(more.clone())).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{more} {answer}");
    }
    assert!(api.asked.lock().unwrap().is_empty(), "nothing wrong reaches the gateway");
}

#[tokio::test]
async fn thoughts_are_apart_from_the_answer() {
    let begun = json!({ "messages": hello(), "chat_template_kwargs": { "enable_thinking": true } });
    let own = json!({ "messages": hello() });
    for (text, body) in [("One and\none.\n</think>\n\nTwo.", begun), ("<think>\nOne and\none.\n</think>\n\nTwo.", own)]
    {
        let template = format!("{HERMES}{{# </think> #}}");
        let api = Api::of(with_template(&template), GatewayReply::Say(text, End::Stop), keys(None, None)).await;
        let (status, answer) = api.post(CHAT, body.clone()).await;
        assert_eq!(status, 200, "{answer}");
        let message = &answer["choices"][0]["message"];
        let thought = json!("One and\none.");
        assert_eq!([&message["reasoning_content"], &message["reasoning"]], [&thought; 2], "{answer}");
        assert_eq!(message["content"], "Two.");
        let choices = api.choices(body.clone()).await;
        let said = |field: &str| choices.iter().filter_map(|c| c["delta"][field].as_str()).collect::<String>();
        assert_eq!((json!(said("reasoning_content")), said("content")), (thought, "Two.".into()));
        let mut unasked = body;
        unasked["include_reasoning"] = json!(false);
        let (_, answer) = api.post(CHAT, unasked).await;
        let message = &answer["choices"][0]["message"];
        assert!(message.get("reasoning").is_none() && message["content"] == "Two.", "{answer}");
    }
}

/// Of tokens that are a text's letters in its order, those between the marks of thoughts, or behind nothing where the prompt has begun
/// them.
fn thoughts(tokens: &Value, is_begun: bool) -> usize {
    let texts: Vec<&str> = tokens.as_array().unwrap().iter().map(|token| token["token"].as_str().unwrap()).collect();
    let begin = if is_begun { 0 } else { "<think>".len() };
    let end = texts.concat().find("</think>").unwrap() + "</think>".len();
    let ends = texts.iter().scan(0, |end, text| {
        *end += text.len();
        Some(*end)
    });
    ends.zip(&texts).filter(|(until, text)| until - text.len() >= begin && *until < end).count()
}

#[tokio::test]
async fn tokens_of_thoughts_are_counted_among_the_answers() {
    let template = format!("{HERMES}{{# </think> #}}");
    for (text, is_begun) in
        [("One and\none.\n</think>\n\nTwo.", true), ("<think>\nOne and\none.\n</think>\n\nTwo.", false)]
    {
        let api = Api::of(with_template(&template), GatewayReply::Say(text, End::Stop), keys(None, None)).await;
        let mut body = json!({ "messages": hello(), "logprobs": true });
        body["chat_template_kwargs"] = json!({ "enable_thinking": is_begun });
        let (_, answer) = api.post(CHAT, body.clone()).await;
        let expected = thoughts(&answer["choices"][0]["logprobs"]["content"], is_begun);
        assert!(expected > 3, "{answer}");
        let usage = &answer["usage"];
        assert_eq!(usage["completion_tokens_details"], json!({ "reasoning_tokens": expected }));
        (body["stream"], body["stream_options"]) = (json!(true), json!({ "include_usage": true }));
        let events = api.stream(CHAT, body).await;
        let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
        assert_eq!(&last["usage"], usage);
        if !is_begun {
            let (_, answer) = api.post("/v1/responses", json!({ "input": "Hello" })).await;
            assert_eq!(answer["usage"]["output_tokens_details"]["reasoning_tokens"], expected);
        }
    }
    let api = hermes(TWO_CALLS).await;
    let (_, answer) = api.post(CHAT, asked(json!({}))).await;
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

/// A form is followed from the first token on, so that nothing of it is a thought though the prompt has begun one; a form that
/// has their end has both.
#[tokio::test]
async fn an_answer_of_a_form_is_content_where_the_template_begins_thoughts() {
    let template = format!("{HERMES}{{# </think> #}}");
    let object = json!({ "response_format": { "type": "json_object" } });
    let choice = json!({ "guided_choice": ["{\"a\": 1}", "b"] });
    let both = json!({ "guided_regex": "[a-z]+<\\/think>[a-z]+" });
    for (text, form, thought, content) in
        [("{\"a\": 1}", object, "", "{\"a\": 1}"), ("b", choice, "", "b"), ("one</think>two", both, "one", "two")]
    {
        let api = Api::of(with_template(&template), GatewayReply::Say(text, End::Stop), keys(None, None)).await;
        let mut body = json!({ "messages": hello(), "chat_template_kwargs": { "enable_thinking": true } });
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let (status, answer) = api.post(CHAT, body.clone()).await;
        assert_eq!(status, 200, "{answer}");
        let message = &answer["choices"][0]["message"];
        let whole = (message["reasoning_content"].as_str().unwrap_or(""), message["content"].as_str().unwrap());
        assert_eq!(whole, (thought, content), "{answer}");
        let choices = api.choices(body).await;
        let said = |field: &str| choices.iter().filter_map(|c| c["delta"][field].as_str()).collect::<String>();
        assert_eq!((said("reasoning_content"), said("content")), (thought.to_owned(), content.to_owned()));
    }
}

#[tokio::test]
async fn thinking_is_switched_where_the_template_asks() {
    let api = hermes("So.").await;
    let end = async |more: Value| {
        let (status, answer) = api.post(CHAT, asked(more)).await;
        assert_eq!(status, 200, "{answer}");
        let prompt = api.prompt();
        prompt[prompt.rfind("Hello").unwrap() + 5..].to_owned()
    };
    assert_eq!(end(json!({})).await, "");
    assert_eq!(end(json!({ "chat_template_kwargs": { "enable_thinking": true } })).await, "<think>");
    assert_eq!(end(json!({ "chat_template_kwargs": { "enable_thinking": false } })).await, "");
    assert_eq!(end(json!({ "reasoning_effort": "high" })).await, "high");
    assert_eq!(
        end(json!({ "reasoning_effort": "none", "chat_template_kwargs": { "enable_thinking": true } })).await,
        "none<think>"
    );
}
