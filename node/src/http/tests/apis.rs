//! What clients of other APIs than OpenAI's completions see.

use super::*;

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const SAID: &str = "The wind was in the house.";

/// Names and data of a stream's events.
async fn events(api: &Api, path: &str, body: Value) -> Vec<(String, Value)> {
    let response = api.send(path, &body).await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let text = response.text().await.unwrap();
    let of = |event: &str| {
        let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Some((line("event: ")?, serde_json::from_str(&line("data: ")?).unwrap()))
    };
    text.split("\n\n").filter_map(of).collect()
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    names
}

fn message(user: &str) -> Value {
    json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": user }] })
}

#[tokio::test]
async fn messages_are_answered_whole_and_streamed() {
    let api = Api::up(said(End::Stop)).await;
    let response = api.send(MESSAGES, &message("Hello")).await;
    assert_eq!(response.headers()["request-id"], response.headers()["x-request-id"]);
    let whole: Value = response.json().await.unwrap();
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(whole["content"], json!([{ "type": "text", "text": SAID }]));
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    assert_eq!(api.last_asked().generation.max_new_tokens, 9);
    let mut body = message("Hello");
    body["stream"] = json!(true);
    let events = events(&api, MESSAGES, body).await;
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names(&events), expected);
    let text: String = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, SAID);
    let (prompt, last) = (&events[0].1["message"]["usage"]["input_tokens"], &events[events.len() - 2].1);
    assert_eq!((prompt, &last["usage"]), (&whole["usage"]["input_tokens"], &whole["usage"]));
    let counted = api.post("/v1/messages/count_tokens", message("Hello")).await;
    assert_eq!(counted, (200, json!({ "input_tokens": prompt })));
}

#[tokio::test]
async fn a_message_says_which_sequence_ended_it() {
    let api = Api::up(said(End::Length)).await;
    let mut body = message("Hello");
    body["stop_sequences"] = json!(["never", " in the"]);
    let (_, whole) = api.post(MESSAGES, body.clone()).await;
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!(" in the")));
    assert_eq!(whole["content"][0]["text"], "The wind was");
    body["stream"] = json!(true);
    let events = events(&api, MESSAGES, body).await;
    let delta = &events[events.len() - 2].1["delta"];
    assert_eq!(delta, &json!({ "stop_reason": "stop_sequence", "stop_sequence": " in the" }));
}

#[tokio::test]
async fn errors_of_messages_have_their_own_form() {
    let api = Api::up(said(End::Stop)).await;
    let mut image = message("x");
    image["messages"][0]["content"] = json!([{ "type": "image", "source": {} }]);
    let mut unknown = message("x");
    unknown["model"] = json!("claude");
    let mut long = message("x");
    long["max_tokens"] = json!(1 << 20);
    for (body, status, kind) in [
        (image, 400, "invalid_request_error"),
        (unknown, 404, "not_found_error"),
        (long, 400, "invalid_request_error"),
        (json!([]), 400, "invalid_request_error"),
    ] {
        let (got, error) = api.post(MESSAGES, body).await;
        assert_eq!((got, &error["type"], &error["error"]["type"]), (status, &json!("error"), &json!(kind)), "{error}");
        assert!(error["error"]["message"].is_string());
    }
    let no_json = api.client.post(format!("{}{MESSAGES}", api.url)).body("{}").send().await.unwrap();
    assert!(no_json.status().is_client_error() && no_json.headers().contains_key("request-id"));
    assert_eq!(no_json.json::<Value>().await.unwrap()["type"], "error");
    let refusing = Api::up(GatewayReply::Refuse).await.send(MESSAGES, &message("x")).await;
    assert_eq!((refusing.status().as_u16(), &refusing.headers()["retry-after"]), (503, &"3".parse().unwrap()));
    assert_eq!(refusing.json::<Value>().await.unwrap()["error"]["type"], "overloaded_error");
    let broken = Api::up(GatewayReply::BreakOff("The wind")).await;
    let mut body = message("x");
    assert_eq!(broken.post(MESSAGES, body.clone()).await.1["error"]["type"], "api_error");
    body["stream"] = json!(true);
    assert_eq!(events(&broken, MESSAGES, body).await.last().unwrap().0, "error");
}

#[tokio::test]
async fn an_anthropic_key_is_a_key() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    let (status, error) = api.post(MESSAGES, message("x")).await;
    assert_eq!((status, &error["error"]["type"]), (401, &json!("authentication_error")));
    let asked = api.client.post(format!("{}{MESSAGES}", api.url)).header("x-api-key", "sesame").json(&message("x"));
    assert_eq!(asked.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn responses_are_answered_whole_and_streamed_and_gone_on_from() {
    let api = Api::up(said(End::Stop)).await;
    let first = json!({ "input": "Hello", "instructions": "Be brief.", "max_output_tokens": 9 });
    let (status, whole) = api.post(RESPONSES, first).await;
    assert_eq!((status, &whole["object"], &whole["status"]), (200, &json!("response"), &json!("completed")));
    assert_eq!(whole["output"][0]["content"][0]["text"], SAID);
    let id = whole["id"].as_str().unwrap();
    assert_eq!(api.get(&format!("{RESPONSES}/{id}")).await.json::<Value>().await.unwrap(), whole);
    let more = json!({ "input": "Go on", "previous_response_id": id, "stream": true });
    let told = events(&api, RESPONSES, more).await;
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names(&told), expected);
    let text: String = told.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(text, SAID);
    let model = TextModel::new(&files(), &Templates::Here).unwrap();
    let prompt = model.decode(&api.last_asked().prompt);
    assert!(prompt.contains("Hello") && prompt.contains(SAID) && !prompt.contains("Be brief."), "{prompt}");
    let last = told.last().unwrap().1["response"]["id"].as_str().unwrap().to_owned();
    assert_eq!(api.client.delete(format!("{}{RESPONSES}/{last}", api.url)).send().await.unwrap().status(), 200);
    let gone = json!({ "input": "x", "previous_response_id": last });
    let (status, error) = api.post(RESPONSES, gone).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("previous_response_id")));
}

#[tokio::test]
async fn a_response_that_is_not_to_be_kept_or_fails_is_not() {
    let api = Api::up(said(End::Stop)).await;
    let (_, whole) = api.post(RESPONSES, json!({ "input": "x", "store": false })).await;
    assert_eq!(api.get(&format!("{RESPONSES}/{}", whole["id"].as_str().unwrap())).await.status(), 404);
    let broken = Api::up(GatewayReply::BreakOff("The wind")).await;
    let told = events(&broken, RESPONSES, json!({ "input": "x", "stream": true })).await;
    let (name, last) = told.last().unwrap();
    assert_eq!((name.as_str(), &last["response"]["status"]), ("response.failed", &json!("failed")));
    let id = last["response"]["id"].as_str().unwrap();
    assert_eq!(broken.get(&format!("{RESPONSES}/{id}")).await.status(), 404);
}

#[tokio::test]
async fn ollamas_chats_and_prompts_are_lines_of_json() {
    let api = Api::up(said(End::Length)).await;
    let name = files().card.name;
    let chat = json!({ "model": format!("{name}:latest"), "messages": hello(), "options": { "num_predict": 7 } });
    let response = api.send("/api/chat", &chat).await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    let last = lines.last().unwrap();
    assert_eq!((said.as_str(), &last["done"], &last["done_reason"]), (SAID, &json!(true), &json!("length")));
    assert_eq!(api.last_asked().generation.max_new_tokens, 7);
    for raw in [false, true] {
        let prompt = json!({ "model": name, "prompt": "It was", "stream": false, "raw": raw });
        let (status, whole) = api.post("/api/generate", prompt).await;
        assert_eq!((status, &whole["response"]), (200, &json!(SAID)));
        assert!(api.last_asked().generation.max_new_tokens > 900, "until the context is full");
    }
    let asked = api.asked.lock().unwrap().len();
    let (status, loaded) = api.post("/api/generate", json!({ "model": name })).await;
    assert_eq!((status, &loaded["done_reason"]), (200, &json!("load")));
    assert_eq!(api.asked.lock().unwrap().len(), asked, "nothing is asked of anybody");
}

#[tokio::test]
async fn ollamas_models_and_errors_are_as_its_clients_know_them() {
    let api = Api::up(GatewayReply::BreakOff("The wind")).await;
    let name = files().card.name;
    let tags: Value = api.get("/api/tags").await.json().await.unwrap();
    assert_eq!(tags["models"][0]["name"], json!(name));
    let (_, shown) = api.post("/api/show", json!({ "model": name })).await;
    assert_eq!(shown["model_info"]["transformer.context_length"], 1024);
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert!(api.get("/api/version").await.json::<Value>().await.unwrap()["version"].is_string());
    for (path, body, status) in [
        ("/api/chat", json!({ "model": "none", "messages": hello() }), 404),
        ("/api/show", json!({ "model": "none" }), 404),
        ("/api/generate", json!({ "model": name, "prompt": "x", "images": ["aGk="] }), 400),
        ("/api/pull", json!({ "model": name }), 404),
    ] {
        let (got, error) = api.post(path, body).await;
        assert_eq!((got, error["error"].is_string()), (status, true), "{path}: {error}");
    }
    let text = api.send("/api/chat", &json!({ "model": name, "messages": hello() })).await.text().await.unwrap();
    assert!(serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()["error"].is_string(), "{text}");
}

/// Whatever stands where something else is looked for is refused, or does nothing: no request takes its connection down.
#[tokio::test]
async fn nonsense_in_any_place_is_answered() {
    let api = Api::up(said(End::Stop)).await;
    let name = files().card.name;
    let schema = json!({ "type": "object" });
    let function = json!({ "name": "f", "arguments": { "a": 1 } });
    let part = json!([{ "type": "input_text", "text": "x" }]);
    let requests = [
        (
            "/api/chat",
            json!({
                "model": name, "format": schema, "think": "low", "options": { "stop": ["x"], "num_predict": 4 }, "stream": false,
                "messages": [
                    { "role": "user", "content": "x", "images": [] },
                    { "role": "assistant", "thinking": "x", "tool_calls": [{ "function": function }] },
                    { "role": "tool", "content": "x" },
                ],
                "tools": [{ "type": "function", "function": { "name": "f", "parameters": schema } }],
            }),
        ),
        ("/api/generate", json!({ "model": name, "prompt": "x", "system": "x", "raw": false, "stream": false })),
        (
            RESPONSES,
            json!({
                "input": [
                    { "role": "user", "content": part },
                    { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
                    { "type": "function_call_output", "call_id": "c", "output": part },
                    { "type": "reasoning", "summary": [] },
                ],
                "tools": [{ "type": "function", "name": "f", "parameters": schema }], "max_output_tokens": 4,
                "tool_choice": "auto", "text": { "format": { "type": "text" } }, "reasoning": { "effort": "low" },
            }),
        ),
        (
            MESSAGES,
            json!({
                "system": [{ "type": "text", "text": "x" }], "max_tokens": 4, "stop_sequences": ["x"],
                "messages": [
                    { "role": "user", "content": "x" },
                    { "role": "assistant", "content": [
                        { "type": "thinking", "thinking": "x" }, { "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
                    { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "x" }] },
                ],
                "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": { "type": "auto" },
                "thinking": { "type": "enabled" }, "output_config": { "effort": "low" },
            }),
        ),
    ];
    for (path, whole) in requests {
        let api = &api;
        let answered = |body: Value| async move {
            // Streamed where the nonsense says so.
            let response = api.send(path, &body).await;
            (response.status().as_u16(), response.text().await.unwrap())
        };
        let (status, answer) = answered(whole.clone()).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let mut places = Vec::new();
        all_places(&whole, String::new(), &mut places);
        for place in places {
            for nonsense in [Value::Null, json!(7), json!("x"), json!([]), json!([[null]]), json!({ "a": [1] })] {
                let mut body = whole.clone();
                *body.pointer_mut(&place).unwrap() = nonsense;
                let (status, answer) = answered(body.clone()).await;
                assert!([200, 400, 404].contains(&status), "{path} {body}: {status} {answer}");
            }
        }
    }
}

/// Pointers to all values within one.
fn all_places(value: &Value, at: String, places: &mut Vec<String>) {
    let keys: Vec<String> = match value {
        Value::Object(fields) => fields.keys().cloned().collect(),
        Value::Array(items) => (0..items.len()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    };
    for key in keys {
        let place = format!("{at}/{key}");
        all_places(&value.pointer(&format!("/{key}")).cloned().unwrap_or_default(), place.clone(), places);
        places.push(place);
    }
}

#[tokio::test]
async fn who_hangs_up_on_any_api_frees_what_it_asked_for() {
    let mut api = Api::up(GatewayReply::Hang).await;
    let name = files().card.name;
    for (path, body) in [
        (RESPONSES, json!({ "input": "x", "stream": true })),
        (MESSAGES, json!({ "max_tokens": 9, "messages": hello(), "stream": true })),
        ("/api/chat", json!({ "model": name, "messages": hello() })),
    ] {
        let response = api.send(path, &body).await;
        assert_eq!(response.status(), 200);
        drop(response);
        tokio::time::timeout(Duration::from_secs(10), api.dropped.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_key_for_prompts_is_good_for_all_apis() {
    let folder = tempfile::tempdir().unwrap();
    let key = add(folder.path(), "bob", KeyScope::Inference).unwrap();
    let api = Api::with(said(End::Stop), Gatekeeper::new(KeyRing::open(folder.path(), None).unwrap(), None)).await;
    let get = |path: &str| api.client.get(format!("{}{path}", api.url)).bearer_auth(&key).send();
    for (path, status) in [("/api/tags", 200), ("/api/version", 200), ("/api/requests", 403), ("/v1/responses/x", 404)]
    {
        assert_eq!(get(path).await.unwrap().status(), status, "{path}");
    }
    let without = api.get("/api/tags").await;
    assert_eq!(without.status(), 401);
    assert!(without.json::<Value>().await.unwrap()["error"].is_string());
}

#[tokio::test]
async fn texts_become_tokens_and_tokens_text_as_a_prompt_would() {
    let api = Api::up(said(End::Stop)).await;
    let model = TextModel::new(&files(), &Templates::Here).unwrap();
    let ids = |tokens: &[Token]| json!(tokens.iter().map(|token| token.0).collect::<Vec<_>>());
    let whole = model.encode(SAID).unwrap();
    let (status, told) = api.post("/tokenize", json!({ "prompt": SAID, "return_token_strs": true })).await;
    assert_eq!((status, &told["tokens"], &told["max_model_len"]), (200, &ids(&whole), &json!(1024)));
    assert_eq!((&told["count"], &told["token_strs"][0]), (&json!(whole.len()), &json!("<|bos|>")));
    let (_, bare) = api.post("/tokenize", json!({ "prompt": SAID, "add_special_tokens": false })).await;
    assert_eq!((&bare["tokens"], &bare["token_strs"]), (&ids(&whole[1..]), &Value::Null));
    let (_, back) = api.post("/detokenize", json!({ "tokens": bare["tokens"] })).await;
    assert_eq!(back, json!({ "prompt": SAID }));
    let (_, chat) = api.post("/tokenize", json!({ "messages": hello() })).await;
    api.post(CHAT, json!({ "messages": hello() })).await;
    assert_eq!(chat["tokens"], ids(&api.last_asked().prompt));
    for (path, wrong) in [
        ("/tokenize", json!({ "prompt": ["a", "b"] })),
        ("/tokenize", json!({ "prompt": "a", "odd": 1 })),
        ("/tokenize", json!({})),
        ("/detokenize", json!({ "tokens": [1 << 20] })),
        ("/detokenize", json!({ "tokens": vec![5; 1025] })),
        ("/detokenize", json!({ "tokens": ["a"] })),
    ] {
        assert_eq!(api.post(path, wrong.clone()).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_request_under_way_can_be_cancelled_and_its_client_is_told() {
    let mut api = Api::up(GatewayReply::Hang).await;
    let cancel = async |id: &str| api.post(&format!("/api/requests/{id}/cancel"), json!({})).await.0;
    let streamed = api.send(TEXT, &json!({ "prompt": "x", "stream": true })).await;
    let id = streamed.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(cancel(&id).await, 202);
    let told = streamed.text().await.unwrap();
    assert!(told.contains(r#""code":"cancelled""#) && told.ends_with("data: [DONE]\n\n"), "{told}");
    assert_eq!(cancel(&id).await, 404, "it is over");
    let (client, url) = (api.client.clone(), format!("{}{TEXT}", api.url));
    let whole =
        crate::tasks::spawn(
            "test",
            async move { client.post(url).json(&json!({ "prompt": "y" })).send().await.unwrap() },
        );
    let begun = async || {
        while api.asked.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        api.last_asked().request.to_string()
    };
    let id = tokio::time::timeout(Duration::from_secs(10), begun()).await.unwrap();
    assert_eq!(cancel(&id).await, 202);
    let told = whole.await.unwrap();
    assert_eq!(told.status(), 410);
    for _ in 0..2 {
        tokio::time::timeout(Duration::from_secs(10), api.dropped.recv()).await.unwrap().unwrap();
    }
}
