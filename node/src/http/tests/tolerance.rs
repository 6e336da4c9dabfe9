//! What ordinary clients send beside what OpenAI's reference has: it works as vLLM's, is ignored and named, or refused.

use super::{Api, CHAT, GatewayReply, TEXT, hello, said};
use serde_json::{Value, json};
use tsnode_protocol::{Token, stream::End};

#[tokio::test]
async fn what_only_advises_is_ignored_and_named() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({ "messages": hello(), "verbosity": "low", "prompt_cache_key": "k", "store": true, "user": "u",
        "stream": true, "stream_options": { "include_obfuscation": false } });
    let response = api.send(CHAT, &body).await;
    assert_eq!(response.status(), 200);
    let named = "prompt_cache_key, store, user, verbosity, stream_options.include_obfuscation";
    assert_eq!(response.headers()["x-tsnode-ignored"], named);
    let plain = api.send(TEXT, &json!({ "prompt": "x", "store": null })).await;
    assert!(plain.headers().get("x-tsnode-ignored").is_none());
    for (name, value) in
        [("bad_words", json!(["x"])), ("allowed_token_ids", json!([1])), ("use_beam_search", json!(true))]
    {
        let mut body = json!({ "prompt": "x" });
        body[name] = value;
        let (status, refused) = api.post(TEXT, body).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(name)), "{refused}");
    }
}

#[tokio::test]
async fn fields_of_vllm_reach_who_chooses_tokens() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({ "prompt": "x", "max_tokens": 9, "top_k": -1, "min_tokens": 3, "stop_token_ids": [70, 60, 70] });
    assert_eq!(api.post(TEXT, body).await.0, 200);
    let generation = api.last_asked().generation;
    let ends = [Token(1), Token(60), Token(70)];
    assert_eq!((generation.sampling.top_k, generation.sampling.min_tokens), (0, 3));
    assert_eq!((&generation.stop_tokens[..], &generation.sampling.ends[..]), (&ends[..], &ends[..]));
    let more = [
        ("min_tokens", json!(10)),
        ("stop_token_ids", json!([4096])),
        ("stop_token_ids", json!("x")),
        ("top_k", json!(-2)),
        ("truncate_prompt_tokens", json!(0)),
        ("prompt_logprobs", json!(21)),
    ];
    for (name, wrong) in more {
        let mut body = json!({ "prompt": "x", "max_tokens": 9 });
        body[name] = wrong;
        let (status, refused) = api.post(TEXT, body).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(name)), "{refused}");
    }
    let prompt: Vec<u32> = (10..40).collect();
    for (keep, kept) in [(4, 36..40), (99, 10..40), (-1, 10..40)] {
        let body = json!({ "prompt": prompt, "truncate_prompt_tokens": keep });
        assert_eq!(api.post(TEXT, body).await.0, 200);
        assert_eq!(api.last_asked().prompt, kept.map(Token).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn special_tokens_and_stops_are_text_where_they_are_asked_for() {
    let api = Api::up(GatewayReply::Write(vec![Token(300), Token(2), Token(1)])).await;
    let text = async |more: Value| {
        let mut body = json!({ "prompt": "x" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = api.post(TEXT, body).await;
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = text(json!({})).await;
    assert!(!plain.contains("<|"), "{plain}");
    let special = text(json!({ "skip_special_tokens": false })).await;
    assert!(special.starts_with(&plain) && special.matches("<|").count() == 1, "{special}");
    let all = text(json!({ "skip_special_tokens": false, "include_stop_str_in_output": true })).await;
    assert!(all.starts_with(&special) && all.matches("<|").count() == 2, "{all}");
    let word = plain.trim();
    assert_eq!(text(json!({ "stop": word })).await.trim(), "");
    assert_eq!(text(json!({ "stop": word, "include_stop_str_in_output": true })).await.trim(), word);
    assert_eq!(text(json!({ "stop": word, "min_tokens": 1 })).await, plain);
}

#[tokio::test]
async fn an_echoed_prompt_has_log_probabilities_before_the_answers() {
    let api = Api::up(said(End::Length)).await;
    let body = json!({ "prompt": "It was a dark night", "echo": true, "logprobs": 1, "return_token_ids": true });
    let (status, answer) = api.post(TEXT, body.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let (choice, asked) = (&answer["choices"][0], api.last_asked());
    assert_eq!(asked.generation.sampling.prompt_logprobs, Some(1));
    let column = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let (prompt, generated) = (asked.prompt.len(), answer["usage"]["completion_tokens"].as_u64().unwrap() as usize);
    let values = column("token_logprobs");
    assert_eq!((values.len(), &values[0], &values[1]), (prompt + generated, &Value::Null, &json!(-1.0)));
    assert_eq!(&values[prompt - 1..=prompt], [json!(1.0 - prompt as f64), json!(-0.5)]);
    let (tokens, offsets) = (column("tokens"), column("text_offset"));
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with("It was a dark night"), "{text}");
    for (token, offset) in tokens.iter().zip(&offsets).skip(1) {
        let offset = offset.as_u64().unwrap() as usize;
        assert!(text[offset..].starts_with(token.as_str().unwrap()), "{token} at {offset} of {text}");
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = api.stream(TEXT, streamed).await;
    let first: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(first["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().len(), prompt + 1);
    let mut alone = body;
    alone["max_tokens"] = json!(0);
    assert_eq!(api.post(TEXT, alone).await.0, 200);
    assert_eq!(api.last_asked().generation.max_new_tokens, 0);
    // vLLM's field, and of conversations.
    let chat = json!({ "messages": hello(), "prompt_logprobs": 0 });
    let (_, answer) = api.post(CHAT, chat.clone()).await;
    let (list, asked) = (answer["prompt_logprobs"].as_array().unwrap(), api.last_asked().prompt);
    assert_eq!((list.len(), &list[0]), (asked.len(), &Value::Null));
    assert_eq!(list[1][asked[1].0.to_string()]["logprob"], -1.0, "{answer}");
    let mut streamed = chat;
    streamed["stream"] = json!(true);
    assert_eq!(api.post(CHAT, streamed).await.0, 400);
}

#[tokio::test]
async fn counts_come_with_every_event_where_they_are_wanted() {
    let api = Api::up(said(End::Stop)).await;
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let body = json!({ "prompt": "x", "stream": true, "stream_options": options });
    let events = api.stream(TEXT, body).await;
    let parts = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let counts: Vec<u64> = parts.map(|part| part["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.len() > 3 && counts.is_sorted() && counts[0] == 1, "{counts:?}");
    let odd = json!({ "prompt": "x", "stream": true, "stream_options": { "odd": 1 } });
    assert_eq!(api.post(TEXT, odd).await.0, 400);
}

#[tokio::test]
async fn the_best_of_many_is_given_and_all_are_counted() {
    let api = Api::up(said(End::Stop)).await;
    let body = |n: u64, best_of: u64| json!({ "prompt": ["x", "y"], "n": n, "best_of": best_of, "max_tokens": 9 });
    let (status, answer) = api.post(TEXT, body(2, 5)).await;
    assert_eq!(status, 200, "{answer}");
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<u64> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert!(choices.iter().all(|choice| choice["logprobs"].is_null()), "{answer}");
    assert_eq!((api.asked.lock().unwrap().len(), answer["usage"]["completion_tokens"].as_u64().unwrap() % 10), (10, 0));
    let (asked, counts) = (api.last_asked(), &answer["usage"]);
    assert_eq!(
        (asked.generation.sampling.logprobs, &counts["prompt_tokens"]),
        (Some(0), &json!(2 * asked.prompt.len()))
    );
    for (n, best_of) in [(2, 1), (1, 129)] {
        assert_eq!(api.post(TEXT, body(n, best_of)).await.1["error"]["param"], "best_of");
    }
    let mut streamed = body(1, 2);
    streamed["stream"] = json!(true);
    assert_eq!(api.post(TEXT, streamed).await.1["error"]["param"], "best_of");
    assert_eq!(api.post(TEXT, json!({ "prompt": "x", "n": 128 })).await.1["choices"].as_array().unwrap().len(), 128);
    assert_eq!(api.post(TEXT, body(65, 65)).await.0, 400);
}

#[tokio::test]
async fn an_answer_goes_on_with_the_last_message_for_who_asks() {
    let api = Api::up(said(End::Stop)).await;
    let messages = json!([{ "role": "user", "content": "Who?" }, { "role": "assistant", "content": "The old" }]);
    let body = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 4 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let mut lengths = Vec::new();
    for more in [
        json!({ "continue_final_message": true }),
        json!({ "continue_final_message": true, "add_generation_prompt": false }),
        json!({ "add_generation_prompt": false }),
        json!({}),
    ] {
        let (status, answer) = api.post(CHAT, body(more)).await;
        assert_eq!(status, 200, "{answer}");
        lengths.push(api.last_asked().prompt.len());
    }
    // The end of the message is a token, and so is the mark of an answer.
    assert_eq!(lengths, [lengths[0], lengths[0], lengths[0] + 1, lengths[0] + 2]);
    let both = json!({ "continue_final_message": true, "add_generation_prompt": true });
    let (status, refused) = api.post(CHAT, body(both)).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("continue_final_message")), "{refused}");
}

#[tokio::test]
async fn tokens_are_named_by_their_ids_for_who_asks() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({ "prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": true, "return_token_ids": true });
    let (_, answer) = api.post(TEXT, body).await;
    let choice = &answer["choices"][0];
    let names = choice["token_ids"].as_array().unwrap().iter().map(|id| json!(format!("token_id:{id}")));
    let names: Vec<Value> = names.collect();
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap()[..names.len()], names[..], "{choice}");
}
