//! What an answer says, whole or streamed, and what it was computed with.

use super::*;

#[tokio::test]
async fn a_whole_answer_has_text_usage_and_names_its_peers() {
    let api = Api::up(said(End::Length)).await;
    let response = api.send(TEXT, &json!({ "prompt": "It was", "max_tokens": 9, "return_token_ids": true })).await;
    for name in ["x-request-id", "x-tsnode-prefill", "x-tsnode-decode"] {
        assert!(!response.headers()[name].is_empty(), "{name}");
    }
    let answer: Value = response.json().await.unwrap();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "The wind was in the house.");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(answer["object"], "text_completion");
    let (prompt, ids) = (choice["prompt_token_ids"].as_array().unwrap(), choice["token_ids"].as_array().unwrap());
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(answer["usage"]["completion_tokens"], ids.len());
    assert_eq!(answer["usage"]["total_tokens"], prompt.len() + ids.len());
    assert_eq!(api.last_asked().generation.max_new_tokens, 9);
}

#[tokio::test]
async fn a_header_says_where_a_prompt_is_computed() {
    let api = Api::up(said(End::Length)).await;
    let asked = async |way: &'static str| {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header("x-tsnode-kv", way);
        request.json(&json!({ "prompt": "It was", "max_tokens": 9 })).send().await.unwrap().status().as_u16()
    };
    let ways = [
        ("in-place", Overrule::InPlace),
        ("sent", Overrule::Sent(None)),
        ("layers", Overrule::Sent(Some(KvPace::Layers))),
        ("whole", Overrule::Sent(Some(KvPace::Whole))),
    ];
    for (way, overrule) in ways {
        assert_eq!((asked(way).await, api.last_asked().overrule), (200, Some(overrule)));
    }
    assert_eq!(asked("sideways").await, 400);
    api.send(TEXT, &json!({ "prompt": "It was" })).await;
    assert_eq!(api.last_asked().overrule, None);
}

/// Of both kinds of completion, whole, streamed and of several answers, with what closes a stream.
#[tokio::test]
async fn every_answer_names_what_its_kv_went_through() {
    let api = Api::up(said(End::Length)).await;
    let id = files().card.id;
    let fingerprint = json!(format!("fp_{}_int4", data_encoding::HEXLOWER.encode(&id.0[..6])));
    let asked = [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))];
    for (path, mut body) in asked {
        body["n"] = json!(2);
        let (status, answer) = api.post(path, body.clone()).await;
        assert_eq!((status, &answer["system_fingerprint"]), (200, &fingerprint), "{path}");
        (body["stream"], body["stream_options"]) = (json!(true), json!({ "include_usage": true }));
        let events = api.stream(path, body).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let parts: Vec<Value> = parts.collect();
        assert!(parts.len() > 4 && parts.iter().all(|p| p["system_fingerprint"] == fingerprint), "{parts:?}");
    }
}

#[tokio::test]
async fn a_request_fixes_what_its_kv_goes_through_by_a_name_that_there_is() {
    let api = Api::up(said(End::Length)).await;
    let asked = [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))];
    for (path, body) in asked {
        let with = |codec: Value| json!({ "kv_codec": codec }).as_object().unwrap().clone();
        let of = |codec: Value| {
            let mut body = body.clone();
            body.as_object_mut().unwrap().extend(with(codec));
            body
        };
        let names = [("raw", KvCodec::Raw), ("int3", KvCodec::Int3), ("int4", KvCodec::Int4), ("int8", KvCodec::Int8)];
        for (name, codec) in names {
            assert_eq!(api.post(path, of(json!(name))).await.0, 200);
            assert_eq!(api.last_asked().codec, Some(codec.into()));
        }
        assert_eq!(api.post(path, of(json!("int4@128"))).await.0, 200);
        assert_eq!(api.last_asked().codec, Some(PromptCodec { codec: KvCodec::Int4, first: Some(128) }));
        for unsaid in [body.clone(), of(Value::Null)] {
            assert_eq!(api.post(path, unsaid).await.0, 200);
            assert_eq!(api.last_asked().codec, None);
        }
        for wrong in [json!("int5"), json!("int4@100"), json!("auto"), json!(""), json!(4), json!(["raw"])] {
            let (status, refused) = api.post(path, of(wrong.clone())).await;
            assert_eq!((status, &refused["error"]["param"]), (400, &json!("kv_codec")), "{wrong}: {refused}");
        }
        let (_, refused) = api.post(path, of(json!("int5"))).await;
        let why = "'kv_codec' must be one of raw, int3, int4, int8, for a prompt's first tokens alone followed by @ and a \
                   multiple of 64";
        assert_eq!(refused["error"]["message"], why);
    }
    // Three bits are not built for cards: whoever asks for them there must not break a group's ring.
    api.view.send_modify(|view| view.peers.push(with_a_card()));
    assert_eq!(api.post(TEXT, json!({ "prompt": "x", "kv_codec": "int3" })).await.0, 400);
    assert_eq!(api.post(TEXT, json!({ "prompt": "x", "kv_codec": "int4" })).await.0, 200);
}

/// A peer that lends a graphics card.
fn with_a_card() -> PeerView {
    let cards = Gpus {
        first: 0,
        count: 1,
        capability: (9, 0),
        driver: None,
        power_limit_mw: None,
        clocks_mhz: None,
        pcie: None,
        up: BytesPerSecond(1e10),
        down: BytesPerSecond(1e10),
    };
    let card = Device {
        kind: DeviceKind::Cuda(cards),
        name: "card".into(),
        memory_bytes: 1 << 30,
        kv_bytes: 1 << 28,
        flops: FlopsPerSecond(1e13),
        bandwidth: BytesPerSecond(1e12),
        serves: vec![],
    };
    let advert = Advert { devices: vec![card], ..tsnode_coordinator::sample::gateway(0) };
    let (id, load) = (PeerId([9; 32]), Load::default());
    PeerView { id, advert, load, groups: vec![], silent_for: 0.0, silent: false, plan: None, leaving: false }
}

#[tokio::test]
async fn who_comes_back_goes_on_with_the_packing_that_the_answer_began_with() {
    let api = Api::up(said(End::Length)).await;
    let back = async |codec: &str| {
        let request = api.client.post(format!("{}{TEXT}", api.url));
        let request = request.header("last-event-id", format!("{}:2/int4", RequestId([7; 16])));
        let body = json!({ "prompt": "x", "stream": true, "kv_codec": codec });
        request.json(&body).send().await.unwrap().status().as_u16()
    };
    assert_eq!([back("int4").await, back("raw").await], [200, 400]);
}

#[tokio::test]
async fn a_streamed_chat_says_who_speaks_ends_with_done_and_adds_up() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({ "messages": hello(), "stream": true, "stream_options": { "include_usage": true } });
    let events = api.stream(CHAT, body).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let parts: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(parts.iter().all(|p| p["object"] == "chat.completion.chunk" && p["id"] == parts[0]["id"]));
    let (usage, parts) = parts.split_last().unwrap();
    assert!(usage["usage"]["completion_tokens"].as_u64() > Some(3) && usage["choices"] == json!([]), "{usage}");
    let text: String = parts.iter().filter_map(|p| p["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "The wind was in the house.");
    let finishes: Vec<&Value> = parts.iter().map(|p| &p["choices"][0]["finish_reason"]).collect();
    assert_eq!(finishes.iter().filter(|f| **f == "stop").count(), 1);
    assert_eq!(*finishes.last().unwrap(), "stop");
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_before_it_streamed_or_not() {
    let api = Api::up(said(End::Length)).await;
    for stop in [json!(" in the"), json!(["nowhere", " in the"])] {
        let (status, answer) = api.post(TEXT, json!({ "prompt": "x", "stop": stop })).await;
        assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("The wind was")));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let events = api.stream(TEXT, json!({ "prompt": "x", "stop": stop, "stream": true })).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let text: String = parts.map(|p| p["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(text, "The wind was");
    }
}

/// Tokens that another gateway had wait for what is said of an echoed prompt, and then end where they would have ended.
#[tokio::test]
async fn a_stop_string_among_tokens_that_waited_ends_the_answer() {
    let api = Api::up(GatewayReply::Recalled("The wind was in the house.")).await;
    let body = json!({ "prompt": "It was", "echo": true, "logprobs": 1, "stop": " in the" });
    let (status, answer) = api.post(TEXT, body).await;
    let choice = &answer["choices"][0];
    assert_eq!((status, &choice["finish_reason"]), (200, &json!("stop")), "{answer}");
    assert!(choice["text"].as_str().unwrap().ends_with("The wind was"), "{answer}");
}

/// What an answer's group writes before it knows is nobody's, and the other answers go on to their own ends.
#[tokio::test]
async fn a_stop_string_ends_each_of_several_streamed_answers_once() {
    let api = Api::up(said(End::Length)).await;
    for (path, mut body) in [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))] {
        (body["n"], body["stop"]) = (json!(3), json!(" in the"));
        let (_, whole) = api.post(path, body.clone()).await;
        (body["stream"], body["stream_options"]) = (json!(true), json!({ "include_usage": true }));
        let events = api.stream(path, body).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let parts: Vec<Value> = parts.collect();
        let (usage, parts) = parts.split_last().unwrap();
        for index in 0..3_u64 {
            let choices: Vec<&Value> =
                parts.iter().map(|part| &part["choices"][0]).filter(|choice| choice["index"] == index).collect();
            let said = choices.iter().filter_map(|c| c["text"].as_str().or(c["delta"]["content"].as_str()));
            assert_eq!(said.collect::<String>(), "The wind was", "{path}");
            assert_eq!(choices.iter().filter(|c| !c["finish_reason"].is_null()).count(), 1, "{path}");
            assert_eq!(choices.last().unwrap()["finish_reason"], "stop", "{path}");
        }
        assert_eq!(usage["usage"], whole["usage"], "{path}");
    }
}

#[tokio::test]
async fn several_answers_come_numbered_with_seeds_of_their_own() {
    let api = Api::up(said(End::Length)).await;
    let (_, answer) = api.post(TEXT, json!({ "prompt": ["a", "b"], "n": 2, "seed": 7 })).await;
    let indices: Vec<u64> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let seeds: Vec<u64> = api.asked.lock().unwrap().iter().map(|p| p.generation.sampling.seed).collect();
    assert_eq!((seeds[0], seeds[2], seeds[1]), (7, 7, seeds[3]), "a prompt has the answers that it has alone");
    assert!(![7, 8].contains(&seeds[1]), "and none of the next seed's");
    let prompt = api.asked.lock().unwrap()[0].prompt.len();
    assert_eq!(answer["usage"]["prompt_tokens"], 2 * prompt, "a prompt counts once, however many answers it has");
    let events = api.stream(CHAT, json!({ "messages": hello(), "n": 3, "stream": true })).await;
    let finished = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
    let mut finished: Vec<u64> = finished
        .filter(|p| !p["choices"][0]["finish_reason"].is_null())
        .map(|p| p["choices"][0]["index"].as_u64().unwrap())
        .collect();
    finished.sort_unstable();
    assert_eq!(finished, [0, 1, 2]);
}

/// As its first answer found it: what that computed is cached for the others.
#[tokio::test]
async fn what_was_cached_of_a_prompt_counts_once_however_many_answers_it_has() {
    let api = Api::up(GatewayReply::Traced("The wind was in the house.", 2)).await;
    let mut body = json!({ "prompt": ["It was", "It is"], "n": 3, "stream_options": { "include_usage": true } });
    body["stream"] = json!(true);
    let events = api.stream(TEXT, body.clone()).await;
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    (body["stream"], body["stream_options"]) = (Value::Null, Value::Null);
    let (_, whole) = api.post(TEXT, body.clone()).await;
    assert_eq!(last["usage"], whole["usage"]);
    body["best_of"] = json!(4);
    let (_, best) = api.post(TEXT, body).await;
    for usage in [&whole["usage"], &best["usage"]] {
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 4, "of two prompts: {usage}");
    }
}

#[tokio::test]
async fn an_answer_that_a_stop_string_ended_says_what_it_took_as_any_other() {
    let api = Api::up(GatewayReply::Traced("The wind was in the house.", 2)).await;
    let mut body = json!({ "prompt": ["It was", "It is"], "stop": " in the" });
    let ask = async |body: &Value| {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header("x-tsnode-trace", "1").json(body);
        request.send().await.unwrap().text().await.unwrap()
    };
    let whole: Value = serde_json::from_str(&ask(&body).await).unwrap();
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 4, "{whole}");
    assert_eq!(whole["tsnode"]["cached_tokens"], 2, "{whole}");
    (body["stream"], body["stream_options"]) = (json!(true), json!({ "include_usage": true }));
    let streamed = ask(&body).await;
    let last = streamed.lines().rev().find_map(|line| line.strip_prefix("data: {")).unwrap();
    let last: Value = serde_json::from_str(&format!("{{{last}")).unwrap();
    assert_eq!((&last["usage"], &last["tsnode"]["cached_tokens"]), (&whole["usage"], &json!(2)), "{last}");
    let known: Value = api.get("/api/requests").await.json().await.unwrap();
    assert_eq!(known["requests"].as_array().unwrap().len(), 4, "{known}");
}

/// Who says no seed wants draws, also of equal prompts; who asks again by the same name gets the same ones.
#[tokio::test]
async fn equal_prompts_of_one_list_draw_each_for_itself() {
    let api = Api::up(said(End::Length)).await;
    let asked = async || {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header("idempotency-key", "mine");
        request.json(&json!({ "prompt": ["a", "a", "a", "a"], "n": 2 })).send().await.unwrap();
        api.asked.lock().unwrap().drain(..).map(|p| p.generation.sampling.seed).collect::<Vec<_>>()
    };
    let (seeds, again) = (asked().await, asked().await);
    let different: std::collections::BTreeSet<u64> = seeds.iter().copied().collect();
    assert_eq!((seeds.len(), different.len()), (8, 8), "{seeds:?}");
    assert_eq!(seeds, again);
}

#[tokio::test]
async fn logprobs_come_in_either_form() {
    let api = Api::up(said(End::Length)).await;
    let (_, chat) = api.post(CHAT, json!({ "messages": hello(), "logprobs": true, "top_logprobs": 1 })).await;
    let content = &chat["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["logprob"], -0.5);
    assert_eq!(content[0]["top_logprobs"][0]["token"], content[0]["token"]);
    let (_, text) = api.post(TEXT, json!({ "prompt": "x", "logprobs": 1 })).await;
    let columns = &text["choices"][0]["logprobs"];
    let tokens: Vec<&str> = columns["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), "The wind was in the house.");
    assert_eq!(columns["text_offset"][1], tokens[0].len());
    // However few are asked for, the chosen one is among them.
    for asked in [0, 3] {
        let (_, text) = api.post(TEXT, json!({ "prompt": "x", "logprobs": asked })).await;
        let columns = &text["choices"][0]["logprobs"];
        for (token, top) in tokens.iter().zip(columns["top_logprobs"].as_array().unwrap()) {
            assert_eq!(top[token], -0.5, "{columns}");
        }
    }
    let (_, text) = api.post(TEXT, json!({ "prompt": "x", "logprobs": 1 })).await;
    assert_eq!(text["choices"][0]["logprobs"]["tokens"], json!(tokens));
    assert_eq!(api.last_asked().generation.sampling.logprobs, Some(1));
}

/// A model whose tokenizer spells characters of many bytes in byte tokens, and the tokens of "hello가나다라 end".
fn with_byte_tokens() -> (ModelFiles, Vec<Token>) {
    let mut files = files();
    let tokenizer = include_bytes!("../../text/byte_tokens.json");
    files.files = Arc::new([("tokenizer.json".to_owned(), tokenizer.to_vec())].into());
    files.card.shape.vocab = 264;
    let vocab: Value = serde_json::from_slice(tokenizer).unwrap();
    let id = |token: &str| Token(vocab["model"]["vocab"][token].as_u64().unwrap() as u32);
    let bytes = "가나다라".bytes().map(|byte| id(&format!("<0x{byte:02X}>")));
    let tokens = [id("▁hello")].into_iter().chain(bytes).chain([id("▁end")]).collect();
    (files, tokens)
}

#[tokio::test]
async fn characters_of_byte_tokens_reach_the_client_whole() {
    let (files, tokens) = with_byte_tokens();
    let count = tokens.len();
    let api = Api::of(files, GatewayReply::Write(tokens), keys(None, None)).await;
    let ask = |more: Value| {
        let mut body = json!({ "prompt": [1, 261], "logprobs": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (stop, said) in [(json!([]), "hello가나다라 end"), (json!(["다라 e"]), "hello가나")] {
        let (status, answer) = api.post(TEXT, ask(json!({ "stop": stop }))).await;
        assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!(said)), "{answer}");
        let events = api.stream(TEXT, ask(json!({ "stop": stop, "stream": true }))).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let text: String = parts.map(|p| p["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(text, said);
    }
    // Offsets are where characters begin.
    let (_, answer) = api.post(TEXT, ask(json!({}))).await;
    let offsets = &answer["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([0, 5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9]));
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"][count - 1], " end");
    // The answer goes on where the prompt ends.
    let (_, answer) = api.post(TEXT, json!({ "prompt": [1, 261], "echo": true })).await;
    assert_eq!(answer["choices"][0]["text"], "the hello가나다라 end");
}

#[tokio::test]
async fn a_token_beyond_the_model_is_refused_where_the_tokenizer_has_it() {
    let (mut files, tokens) = with_byte_tokens();
    files.card.shape.vocab = 262;
    let api = Api::of(files, GatewayReply::Write(tokens[..4].to_vec()), keys(None, None)).await;
    let (status, answer) = api.post(TEXT, json!({ "prompt": [1, 262] })).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["message"], "token id 262 is outside the vocabulary of 262");
    let (status, answer) = api.post(TEXT, json!({ "prompt": "." })).await;
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("token 263"), "{answer}");
    let (status, answer) = api.post(TEXT, json!({ "prompt": [1, 261] })).await;
    assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("hello가")));
}

#[tokio::test]
async fn the_history_reaches_the_template_and_defaults_are_the_models() {
    let api = Api::up(said(End::Stop)).await;
    let turns = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "One " }, { "type": "text", "text": "two" }] },
        { "role": "assistant", "content": "three" },
        { "role": "user", "content": "four" },
    ]);
    let (status, answer) = api.post(CHAT, json!({ "messages": turns, "return_token_ids": true })).await;
    assert_eq!(status, 200, "{answer}");
    let text = TextModel::new(&files(), &Templates::Here).unwrap();
    let ids: Vec<u32> = api.last_asked().prompt.iter().map(|t| t.0).collect();
    let prompt = text.tokenizer().decode(&ids, false).unwrap();
    let places: Vec<usize> = ["<|system|>", "Be brief.", "<|user|>", "One two", "<|assistant|>", "three", "four"]
        .iter()
        .map(|part| prompt.find(part).unwrap_or_else(|| panic!("{part} in {prompt}")))
        .collect();
    assert!(places.is_sorted(), "{prompt}");
    let PreparedRequest { generation, prompt, .. } = api.last_asked();
    // Its generation_config.json says 0.7 and 0.9; a chat answer may fill the context.
    assert_eq!((generation.sampling.temperature, generation.sampling.top_p), (0.7, 0.9));
    assert_eq!(generation.max_new_tokens as usize + prompt.len(), 1024);
}
