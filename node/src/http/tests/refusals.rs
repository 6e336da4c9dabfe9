//! What is refused, why, and in whose words.

use super::*;

#[tokio::test]
async fn a_failure_has_a_status_before_the_stream_and_an_event_within_it() {
    let fails = [
        (said(End::Failed("the peer is gone".into())), "the peer is gone"),
        (GatewayReply::BreakOff("The wind"), "the answer broke off"),
    ];
    for (part, why) in fails {
        let api = Api::up(part).await;
        let (status, answer) = api.post(TEXT, json!({ "prompt": "x" })).await;
        assert_eq!((status, &answer["error"]["message"]), (502, &json!(why)));
        for (path, body) in [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))] {
            let mut body = body;
            body["stream"] = json!(true);
            let events = api.stream(path, body).await;
            let [.., error, done] = &events[..] else { panic!("{events:?}") };
            let error: Value = serde_json::from_str(error).unwrap();
            assert_eq!((&error["error"]["message"], &error["error"]["code"]), (&json!(why), &json!("peer_failed")));
            assert_eq!(done, "[DONE]");
        }
    }
}

#[tokio::test]
async fn nobody_to_serve_is_503_with_a_time_to_come_back() {
    let api = Api::up(GatewayReply::Refuse).await;
    let response = api.send(TEXT, &json!({ "prompt": "x", "stream": true })).await;
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (503, "3"));
    let stages = [
        (Readiness::Probing, "measures"),
        (Readiness::Joining, "other peers"),
        (Readiness::Planning, "no plan"),
        (Readiness::Loading, "loading"),
        (Readiness::Leaving, "leaving"),
    ];
    for (stage, word) in stages {
        api.view.send_modify(|v| v.readiness = stage);
        let (status, answer) = api.post(CHAT, json!({ "messages": hello() })).await;
        assert_eq!(status, 503);
        let has_plan_to_come = !matches!(api.view.borrow().readiness, Readiness::Probing);
        assert_eq!(*api.waits.borrow(), has_plan_to_come, "whoever plans is told that a client waits");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
        assert_eq!(api.get("/readyz").await.status(), 503);
        assert_eq!(api.get("/healthz").await.status(), 200);
    }
}

/// Two models, of which the second is the swarm's default.
fn two_models() -> SwarmView {
    let own = files().card;
    let large = ModelCard { id: ModelId([9; 16]), name: "large".into(), ..own.clone() };
    SwarmView { default_model: Some(large.id), ..view(vec![own, large]) }
}

#[test]
fn a_request_without_a_name_is_for_the_swarms_default_and_a_wrong_name_is_told_the_right_ones() {
    let (one, two, none) = (view(vec![files().card]), two_models(), view(vec![]));
    let found = |view: &SwarmView, name| crate::http::texts::find_card(view, name).map(|card| card.name.clone());
    assert_eq!(found(&one, None).unwrap(), one.models[0].name);
    assert_eq!(found(&two, None).unwrap(), "large");
    assert_eq!(found(&two, Some(&one.models[0].name)).unwrap(), one.models[0].name);
    let wrong = found(&two, Some("gpt-4")).unwrap_err().to_string();
    assert_eq!(
        wrong,
        format!("The model `gpt-4` does not exist in this swarm, which has: {}, large", one.models[0].name)
    );
    let many = (0..30u8).map(|n| ModelCard { id: ModelId([n; 16]), name: format!("m{n}"), ..files().card });
    let wrong = found(&view(many.collect()), Some("x")).unwrap_err().to_string();
    assert!(wrong.ends_with("m11, and 18 more"), "{wrong}");
    let nothing = found(&none, None).unwrap_err();
    assert!(
        matches!(&nothing, crate::http::ApiError::Unserved { .. })
            && nothing.to_string().contains("tsnode join --model")
    );
}

#[tokio::test]
async fn who_waits_is_told_why_everywhere_in_the_same_words() {
    let api = Api::up(GatewayReply::Refuse).await;
    let why = NotReady::SmallKv { model: "llama".into(), needs: 1024, holds: 512 };
    let words = "KV holds 512 tokens of llama, a plan needs 1024";
    for stage in [Readiness::Joining, Readiness::Planning] {
        api.view.send_modify(|v| (v.readiness, v.waiting) = (stage.clone(), Some(why.clone())));
        let (status, answer) = api.post(CHAT, json!({ "messages": hello() })).await;
        assert_eq!(status, 503);
        assert!(answer["error"]["message"].as_str().unwrap().contains(words), "{answer}");
        let ready = api.get("/readyz").await;
        assert_eq!(ready.status(), 503);
        let ready = ready.json::<Value>().await.unwrap();
        assert!(ready["reason"].as_str().unwrap().contains(words), "{ready}");
        assert_eq!((&ready["stage"], &ready["waiting"]["why"]), (&json!(stage)["stage"], &json!("small_kv")));
    }
    // Ready for others, and not for this one.
    let short = Shortfall {
        model: "tiny".into(),
        id: files().card.id,
        lack: DeviceShortfall::Memory { needs: 9 << 30, lent: 1 << 30 },
    };
    api.view.send_modify(|v| (v.readiness, v.waiting, v.short) = (Readiness::Ready, None, vec![short]));
    let (status, answer) = api.post(CHAT, json!({ "messages": hello() })).await;
    assert_eq!(status, 503);
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("tiny needs 9.0 GiB"), "{answer}");
    assert_eq!(api.get("/readyz").await.json::<Value>().await.unwrap(), json!({ "stage": "ready" }));
}

#[tokio::test]
async fn a_client_that_hangs_up_is_let_go_even_while_nothing_is_said() {
    for stream in [true, false] {
        let mut api = Api::up(GatewayReply::Hang).await;
        let url = format!("{}{TEXT}", api.url);
        let body = json!({ "prompt": "x", "stream": stream });
        let request = crate::tasks::spawn("test", api.client.post(url).json(&body).send());
        let taken = async {
            while api.asked.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), taken).await.unwrap();
        if stream {
            drop(request.await.unwrap().unwrap());
        } else {
            request.abort();
        }
        tokio::time::timeout(Duration::from_secs(10), api.dropped.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_field_that_is_wrong_is_named() {
    let api = Api::up(said(End::Stop)).await;
    let cases = [
        (TEXT, json!({}), "prompt"),
        (TEXT, json!({ "prompt": "" }), "prompt"),
        (TEXT, json!({ "prompt": [] }), "prompt"),
        (TEXT, json!({ "prompt": [[]] }), "prompt"),
        (TEXT, json!({ "prompt": [1.5] }), "prompt"),
        (TEXT, json!({ "prompt": [4_000_000_000u32] }), "prompt"),
        (TEXT, json!({ "prompt": { "a": 1 } }), "prompt"),
        (TEXT, json!({ "prompt": vec!["x"; 129] }), "prompt"),
        (CHAT, json!({ "messages": hello(), "max_tokens": 0 }), "max_tokens"),
        (TEXT, json!({ "prompt": "x", "max_tokens": -3 }), "max_tokens"),
        (TEXT, json!({ "prompt": "x", "n": 0 }), "n"),
        (TEXT, json!({ "prompt": "x", "temperature": 2.5 }), "temperature"),
        (TEXT, json!({ "prompt": "x", "top_p": -0.1 }), "top_p"),
        (TEXT, json!({ "prompt": "x", "seed": "lucky" }), "seed"),
        (TEXT, json!({ "prompt": "x", "stop": ["a", 1] }), "stop"),
        (TEXT, json!({ "prompt": "x", "stop": vec!["a"; 17] }), "stop"),
        (TEXT, json!({ "prompt": "x", "stop": "a".repeat(1025) }), "stop"),
        (TEXT, json!({ "prompt": "x", "stop": ["a", "b".repeat(1025)] }), "stop"),
        (TEXT, json!({ "prompt": "x", "logprobs": 9 }), "logprobs"),
        (TEXT, json!({ "prompt": "x", "logit_bias": { "0": 101 } }), "logit_bias"),
        (TEXT, json!({ "prompt": "x", "logit_bias": { "x": 1 } }), "logit_bias"),
        (TEXT, json!({ "prompt": "x", "stream": "yes" }), "stream"),
        (TEXT, json!({ "prompt": "x", "stream_options": {} }), "stream_options"),
        (TEXT, json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        (TEXT, json!({ "prompt": "x", "no_such_field": 1 }), "no_such_field"),
        (CHAT, json!({ "messages": [] }), "messages"),
        (CHAT, json!({ "messages": "Hello" }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "king", "content": "x" }] }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "user" }] }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }), "messages"),
        (CHAT, json!({ "messages": hello(), "tools": [{}] }), "tools"),
        (CHAT, json!({ "messages": hello(), "response_format": { "type": "xml" } }), "response_format"),
        (CHAT, json!({ "messages": hello(), "top_logprobs": 2 }), "top_logprobs"),
    ];
    for (path, body, param) in cases {
        let (status, answer) = api.post(path, body.clone()).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body} {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
    }
    assert!(api.asked.lock().unwrap().is_empty(), "nothing wrong reaches the gateway");
}

#[tokio::test]
async fn what_asks_for_nothing_is_let_pass() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({
        "messages": hello(), "model": null, "stop": null, "n": 1, "tools": [], "tool_choice": "none", "user": "me",
        "response_format": { "type": "text" }, "frequency_penalty": 0, "presence_penalty": 0.5, "logit_bias": {},
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "max_completion_tokens": 5, "store": false,
    });
    let (status, answer) = api.post(CHAT, body).await;
    assert_eq!(status, 200, "{answer}");
    let sampling = api.last_asked().generation.sampling;
    assert_eq!((sampling.top_k, sampling.min_p, sampling.presence_penalty), (5, 0.1, 0.5));
}

#[tokio::test]
async fn too_much_for_the_context_is_said_in_openais_words() {
    let api = Api::up(said(End::Stop)).await;
    for body in [json!({ "prompt": vec![9; 1024] }), json!({ "prompt": "x", "max_tokens": 1024 })] {
        let (status, answer) = api.post(TEXT, body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        assert!(answer["error"]["message"].as_str().unwrap().contains("maximum context length is 1024 tokens"));
        assert!(answer["error"]["message"].as_str().unwrap().contains("your prompt resulted in"), "{answer}");
        assert_eq!(answer["error"]["param"], "prompt");
    }
    let (_, answer) = api.post(CHAT, json!({ "messages": hello(), "max_tokens": 1024 })).await;
    assert_eq!(
        (&answer["error"]["param"], &answer["error"]["code"]),
        (&json!("messages"), &json!("context_length_exceeded"))
    );
}

#[tokio::test]
async fn models_are_listed_found_and_missed() {
    let api = Api::up(said(End::Stop)).await;
    let list: Value = api.get("/v1/models").await.json().await.unwrap();
    assert_eq!(list["data"][0]["id"], "gutenberg-tiny");
    assert_eq!(api.get("/v1/models/gutenberg-tiny").await.status(), 200);
    assert_eq!(api.get("/v1/models/other").await.status(), 404);
    let (status, answer) = api.post(TEXT, json!({ "prompt": "x", "model": "other" })).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")));
    for (path, status) in [("/nowhere", 404), (TEXT, 405)] {
        let response = api.get(path).await;
        assert_eq!(response.status(), status);
        assert!(response.json::<Value>().await.unwrap()["error"]["message"].is_string());
    }
}

/// Several models make no request without a name wrong: the list says which of them it gets, and which are loaded.
#[tokio::test]
async fn the_list_says_who_has_a_model_whether_it_is_loaded_and_which_one_is_the_default() {
    let api = Api::up(said(End::Stop)).await;
    let own = files().card;
    let advert = Advert { models: vec![own.clone()], ..tsnode_coordinator::sample::advert(0) };
    let peer = |n| PeerView {
        id: PeerId([n; 32]),
        advert: advert.clone(),
        load: Default::default(),
        groups: vec![],
        silent_for: 0.0,
        silent: false,
        plan: None,
        leaving: false,
    };
    api.view.send_modify(|view| {
        *view = SwarmView { default_model: Some(own.id), loaded: [own.id].into(), ..two_models() };
        view.peers = vec![peer(1), peer(2)];
    });
    let list: Value = api.get("/v1/models").await.json().await.unwrap();
    let said = |n: usize| {
        let model = &list["data"][n];
        ["id", "owned_by", "max_model_len", "tsnode_peers", "tsnode_loaded", "tsnode_default"].map(|key| &model[key])
    };
    let (length, swarm) = (json!(own.shape.context), json!("swarm"));
    assert_eq!(said(0), [&json!(own.name), &swarm, &length, &json!(2), &json!(true), &json!(true)]);
    assert_eq!(said(1), [&json!("large"), &swarm, &length, &json!(0), &json!(false), &json!(false)]);
    for (path, body) in [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))] {
        let (status, answer) = api.post(path, body).await;
        assert_eq!((status, &answer["model"]), (200, &json!(own.name)));
    }
}

/// While one model comes into another's place requests wait for it, while the first one is loaded they are refused: whoever asks for
/// readiness is told the same.
#[tokio::test]
async fn ready_is_who_takes_requests() {
    let api = Api::up(said(End::Stop)).await;
    for (holds_all, status) in [(false, 200), (true, 503)] {
        let mut advert = tsnode_coordinator::sample::lends_several(0, tsnode_coordinator::sample::cards(2));
        let device = &mut advert.devices[0];
        let memory = device.memory_bytes;
        device.serves.iter_mut().filter(|_| !holds_all).for_each(|served| served.memory_bytes = memory);
        let peer = PeerView {
            id: PeerId([1; 32]),
            advert,
            load: Default::default(),
            groups: vec![],
            silent_for: 0.0,
            silent: false,
            plan: None,
            leaving: false,
        };
        api.view.send_modify(|view| (view.readiness, view.peers) = (Readiness::Loading, vec![peer]));
        let ready = api.get("/readyz").await;
        assert_eq!(ready.status(), status);
        assert_eq!(ready.json::<Value>().await.unwrap()["stage"], json!("loading"));
        assert_eq!(api.post(CHAT, json!({ "messages": hello() })).await.0, status);
    }
}

/// Whatever goes wrong and wherever: JSON in OpenAI's form, and an id to ask about.
#[tokio::test]
async fn every_error_is_json_and_has_an_id() {
    let api = Api::up(said(End::Stop)).await;
    let bodies = [
        ("/api/pause", "text/plain", "{}", 415),
        ("/api/pause", "application/json", "{", 400),
        ("/api/links/measure", "application/json", "{}", 422),
        ("/api/faults", "application/json", "1", 422),
        ("/api/nothing", "application/json", "{}", 404),
        (TEXT, "application/json", "{", 400),
        (CHAT, "application/json", "{\"messages\": 1}", 400),
    ];
    let mut answers = Vec::new();
    for (path, kind, body, status) in bodies {
        let request = api.client.post(format!("{}{path}", api.url)).header("content-type", kind).body(body.to_owned());
        answers.push((path, request.send().await.unwrap(), status));
    }
    for (path, status) in [("/v1/models/%ff", 400), ("/api/requests/%ff", 400), ("/api/pause", 405), ("/nowhere", 404)]
    {
        answers.push((path, api.get(path).await, status));
    }
    for (path, answer, status) in answers {
        assert_eq!(answer.status(), status, "{path}");
        assert!(answer.headers()["x-request-id"].to_str().unwrap().starts_with("req-"), "{path}");
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{path}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{path}: {error}");
    }
    let first = api.get("/v1/models").await.headers()["x-request-id"].clone();
    assert_ne!(api.get("/v1/models").await.headers()["x-request-id"], first);
}

/// An emoji that a JavaScript program cut in two, and what programs on Windows put in front.
#[tokio::test]
async fn half_an_emoji_and_a_byte_order_mark_are_taken() {
    let api = Api::up(said(End::Stop)).await;
    let text = TextModel::new(&files(), &Templates::Here).unwrap();
    let ask = |path: &str, body: &str| {
        let request = api.client.post(format!("{}{path}", api.url)).header("content-type", "application/json");
        let request = request.body(body.to_owned()).send();
        async move { request.await.unwrap().status().as_u16() }
    };
    assert_eq!(ask(TEXT, r#"{"prompt":"a\ud83d"}"#).await, 200);
    assert_eq!(api.last_asked().prompt, text.encode("a\u{FFFD}").unwrap());
    assert_eq!(ask(CHAT, r#"{"messages":[{"role":"user","content":"a\ud83d"}],"stop":["\udc00"]}"#).await, 200);
    assert_eq!(ask(TEXT, "\u{FEFF}{\"prompt\":\"b\"}").await, 200);
    assert_eq!(api.last_asked().prompt, text.encode("b").unwrap());
}
