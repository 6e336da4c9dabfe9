//! What clients get of a swarm whose peers all live, and what is left of it afterwards.

use super::verbs;
use crate::common::{Net, PROMPT, Wish};
use crate::{LONG, all_pages_free, swarm, talk, until_said};
use futures::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swarm_serves_many_and_forgets_them() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1,decode=1"];
    let net = Net::up(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
    many_streams_are_complete_and_right(&net).await;
    what_prompts_have_in_common_is_computed_once(&net).await;
    a_client_that_hangs_up_frees_its_pages(&net).await;
    bad_requests_get_the_right_errors(&net).await;
    a_link_is_measured_twice_in_a_row_and_no_oftener(&net).await;
    verbs::requests_are_shown_with_peers_names(&net).await;
    verbs::what_is_computed_for_others_is_counted_on_both_sides(&net).await;
    verbs::what_a_machine_does_is_said_in_plain_words(&net).await;
    verbs::the_swarm_is_on_one_screen(&net).await;
    verbs::programs_talk_line_by_line(&net).await;
    a_tool_that_must_be_called_is_called(&net).await;
    load_on_the_swarm_is_measured(&net).await;
    what_one_member_sets_all_follow_and_no_request_is_lost(&net).await;
    swarm(&net).await_that(LONG, all_pages_free).await.unwrap();
    for (index, peer) in net.net.peers().iter().enumerate() {
        let (bytes, _) = net.net.usage(index).unwrap();
        println!("{}: {:.1} MB resident after 64 streams", peer.name, bytes as f64 / 1e6);
        assert!(bytes < 400_000_000, "{} uses {bytes} bytes", peer.name);
    }
    net.down().await;
}

async fn many_streams_are_complete_and_right(net: &Net) {
    let body =
        |n: usize| json!({ "prompt": PROMPT, "max_tokens": 40, "temperature": 0.9, "seed": n % 8, "ignore_eos": true });
    let mut expected = Vec::new();
    for n in 0..8 {
        expected.push(net.tokens(n % 5, body(n)).await.0);
    }
    let all = futures::future::join_all((0..64).map(|n| net.tokens(n % 5, body(n)))).await;
    let mut decoders = BTreeSet::new();
    for (n, (tokens, answer)) in all.into_iter().enumerate() {
        assert_eq!(tokens, expected[n % 8], "stream {n}");
        assert_ne!(answer["tsnode"]["prefill"], answer["tsnode"]["decode"]);
        decoders.insert(answer["tsnode"]["decode"].to_string());
    }
    let view = net.client.get(format!("{}/api/swarm", net.peer(0).http)).send().await.unwrap();
    let view = view.json::<Value>().await.unwrap();
    assert!(decoders.len() > 1, "work is spread over decode groups: {view}");
}

/// One prefill group, 32 prompts with 500 tokens in common: from the second on less than a tenth is computed, and the
/// answers are those of prompts that share nothing.
async fn what_prompts_have_in_common_is_computed_once(net: &Net) {
    let prompt = |n: u32| (0..500).map(|k| 300 + k * 7 % 3000).chain((0..20).map(|k| 400 + n * 20 + k)).collect();
    let body = |n: u32| {
        let prompt: Vec<u32> = prompt(n);
        json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true })
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let alone = json!({ "prompt": (0..20).map(|k| 400 + k).collect::<Vec<u32>>(), "max_tokens": 1 });
    assert_eq!(cached(&net.complete(0, alone).await.1), 0);
    let (first, answer) = net.tokens(0, body(0)).await;
    assert_eq!(cached(&answer), 0);
    let others = futures::future::join_all((1..32).map(|n| net.tokens(n as usize % 5, body(n)))).await;
    assert!(others.iter().all(|(_, answer)| cached(answer) >= 500), "from the second on");
    let (again, answer) = net.tokens(1, body(0)).await;
    assert_eq!((again, cached(&answer)), (first, 519), "all but the last token, which the first one follows");
    // Whom a stop string ends, while the group would go on for long, is told no less.
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let mut stopped = body(0);
    (stopped["stop"], stopped["max_tokens"]) = (json!(text.chars().next().unwrap().to_string()), json!(400));
    let (_, answer) = net.complete(1, stopped).await;
    assert_eq!((&answer["choices"][0]["finish_reason"], cached(&answer)), (&json!("stop"), 519), "{answer}");
    assert!(answer["tsnode"]["new_tokens"].as_u64().unwrap() < 400, "{answer}");
}

async fn a_client_that_hangs_up_frees_its_pages(net: &Net) {
    let url = format!("{}/v1/completions", net.peer(4).http);
    let body = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true });
    let response = net.client.post(url).json(&body).send().await.unwrap();
    let mut stream = response.bytes_stream();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    swarm(net).await_that(LONG, all_pages_free).await.unwrap();
}

async fn bad_requests_get_the_right_errors(net: &Net) {
    let cases: [(Value, u16, &str, &str); 7] = [
        (json!({ "model": "nothing", "prompt": "x" }), 404, "model_not_found", "model"),
        (json!({ "prompt": "x ".repeat(3000) }), 400, "context_length_exceeded", "prompt"),
        (json!({ "prompt": "" }), 400, "", "prompt"),
        (json!({ "prompt": [5000] }), 400, "", "prompt"),
        (json!({ "prompt": "x", "temperature": "hot" }), 400, "", "temperature"),
        (json!({ "prompt": "x", "tools": [1] }), 400, "", "tools"),
        (json!({ "prompt": "x", "best_of": 200 }), 400, "", "best_of"),
    ];
    for (body, status, code, param) in cases {
        let (got, answer) = net.complete(4, body.clone()).await;
        let error = &answer["error"];
        assert_eq!((got, error["param"].as_str()), (status, Some(param)), "{answer}");
        assert_eq!(error["code"].as_str().unwrap_or(""), code, "{answer}");
    }
    let raw = |body: Vec<u8>| {
        let request = net.client.post(format!("{}/v1/completions", net.peer(0).http));
        request.header("content-type", "application/json").body(body).send()
    };
    let nested = [b"{\"prompt\":".to_vec(), b"[".repeat(100_000)].concat();
    for body in [b"{".to_vec(), nested, vec![b'"', 0xFF, b'"'], b"[]".to_vec()] {
        assert_eq!(raw(body).await.unwrap().status(), 400);
    }
    assert_eq!(raw(vec![b'x'; 9 << 20]).await.unwrap().status(), 413);
}

/// By a model that was never told how: the tokens it may choose make a call, and arguments that the schema allows.
async fn a_tool_that_must_be_called_is_called(net: &Net) {
    let schema = json!({
        "type": "object",
        "properties": { "town": { "enum": ["Bonn", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
        "required": ["town", "days"],
        "additionalProperties": false,
    });
    let body = |seed: u64, choice: Value| {
        json!({
            "messages": [{ "role": "user", "content": "How is the wind?" }],
            "tools": [{ "type": "function", "function": { "name": "wind", "parameters": schema.clone() } }],
            "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 120, "temperature": 1, "seed": seed,
        })
    };
    let named = json!({ "type": "function", "function": { "name": "wind" } });
    for seed in 0..4 {
        for (choice, finish) in [(json!("required"), "tool_calls"), (named.clone(), "stop")] {
            let (status, answer) = net.post(seed as usize % 5, "/v1/chat/completions", body(seed, choice)).await;
            assert_eq!(status, 200, "{answer}");
            let one = &answer["choices"][0];
            assert_eq!((&one["finish_reason"], &one["message"]["content"]), (&json!(finish), &Value::Null), "{answer}");
            let calls = one["message"]["tool_calls"].as_array().unwrap();
            let [call] = &calls[..] else { panic!("{answer}") };
            assert_eq!(call["function"]["name"], "wind");
            let given: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(["Bonn", "Rome"].contains(&given["town"].as_str().unwrap()), "{given}");
            assert!((1..=7).contains(&given["days"].as_u64().unwrap()), "{given}");
            assert_eq!(given.as_object().unwrap().len(), 2, "{given}");
        }
    }
}

/// `tsnode bench serve` on a gateway: every request is answered with the lengths asked for, and figures agree with each other.
async fn load_on_the_swarm_is_measured(net: &Net) {
    let drawn = ["--request-rate", "20", "--burstiness", "0.5", "--input-len", "100", "--output-len", "8"];
    let chat = ["--endpoint", "/v1/chat/completions", "--input-len", "100", "--output-len", "8"];
    for words in [&drawn[..], &chat] {
        let all = ["bench", "serve", "--num-prompts", "12", "--ignore-eos", "--goodput", "e2el:60s", "--json"];
        let (code, said, noted) = talk(net, 4, &[&all[..], words].concat(), "").await;
        assert_eq!((code, noted.as_str()), (Some(0), ""), "{said}");
        let figures: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&figures["completed"], &figures["failed"]), (&json!(12), &json!(0)), "{said}");
        assert_eq!((&figures["total_output_tokens"], &figures["attainment"]), (&json!(96), &json!(1.0)), "{said}");
        let input = figures["total_input_tokens"].as_u64().unwrap();
        let is_chat = words[0] == "--endpoint";
        assert!(input == 1200 || is_chat && input.abs_diff(1200) < 120, "{said}");
        let ms = |name: &str| figures[name].as_f64().unwrap();
        assert!(ms("p50_ttft_ms") > 0.0 && ms("p50_ttft_ms") <= ms("p99_ttft_ms"), "{said}");
        assert!(ms("p99_e2el_ms") >= ms("p99_ttft_ms") && ms("p99_e2el_ms") <= ms("duration") * 1e3, "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (trace, svg) = (folder.path().join("trace.csv"), folder.path().join("times.svg"));
    fs::write(&trace, "arrival_s,prompt_tokens,output_tokens\n0,500,20\n1,1500,5\n1.5,20000,5\n").unwrap();
    let (trace, svg) = (trace.to_str().unwrap(), svg.to_str().unwrap());
    let words = ["bench", "serve", "--trace", trace, "--trace-speed", "10", "--trace-lengths", "0.1", "--svg", svg];
    let (code, said, _) = talk(net, 0, &words, "").await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("2 requests answered") && said.contains("1 failed: 400: "), "the last is too long: {said}");
    assert!(fs::read_to_string(svg).unwrap().contains("e2el"));
    let (code, said, why) = talk(net, 0, &["bench", "serve", "--model", "nothing"], "").await;
    assert!(code == Some(9) && said.is_empty() && why.contains("gutenberg-tiny"), "{why}");
}

async fn a_link_is_measured_twice_in_a_row_and_no_oftener(net: &Net) {
    let (url, far) = (format!("{}/api/links/measure", net.peer(4).http), net.peer(0).id);
    let ask = |to: &str, bytes: u64| net.client.post(&url).json(&json!({ "to": to, "bytes": bytes })).send();
    let me = net.peer(4).id;
    let stranger = tsnode_protocol::PeerId([0; 32]).to_string();
    for (to, bytes, param, why) in [
        (&stranger, 1, "to", "no peer"),
        (&me, 1, "to", "this peer itself"),
        (&far, 0, "bytes", "from 1 to"),
        (&far, (256 << 20) + 1, "bytes", "from 1 to"),
    ] {
        let refused = ask(to, bytes).await.unwrap();
        let (status, answer) = (refused.status(), refused.json::<Value>().await.unwrap());
        assert_eq!((status.as_u16(), answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
    }
    // What was refused has cost nothing.
    for _ in 0..2 {
        let measured = ask(&far, 1 << 20).await.unwrap();
        assert_eq!(measured.status(), 200);
        let link: Value = measured.json().await.unwrap();
        assert_eq!((link["to"].as_str(), link["bytes"].as_u64()), (Some(&*far), Some(1 << 20)), "{link}");
        assert!(link["bandwidth"].as_f64().unwrap() > 0.0 && link["took"].as_f64().unwrap() > 0.0, "{link}");
    }
    let refused = ask(&far, 1 << 20).await.unwrap();
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=120).contains(&wait), "{wait} s");
}

/// Targets and policies of routing and batching are set at a gateway and at a lender, change, and are taken back while requests run: every peer
/// has the newest, plans are held against them, and how many requests keep them is counted.
async fn what_one_member_sets_all_follow_and_no_request_is_lost(net: &Net) {
    let body = |n: u64| json!({ "prompt": PROMPT, "max_tokens": 20, "seed": n, "priority": n % 2, "ignore_eos": true });
    let load = futures::future::join_all((0..40).map(|n| net.complete(4, body(n))));
    let done = |said: &(Option<i32>, String, String)| assert_eq!(said.0, Some(0), "{said:?}");
    let change = async {
        done(&talk(net, 4, &["targets", "set", "--ttft", "1ms", "--e2e", "60m"], "").await);
        until_said(net, 0, &["targets"], |said| said.contains("ttft 1 ms, e2e 3600 s for interactive")).await;
        done(&talk(net, 1, &["targets", "set", "--e2e", "2m"], "").await);
        done(&talk(net, 2, &["targets", "set", "--e2e", "60m", "--class", "batch"], "").await);
        done(&talk(net, 0, &["route", "set", "shortest"], "").await);
        done(&talk(net, 1, &["batch", "set", "prefill-first"], "").await);
        until_said(net, 3, &["batch"], |said| said.starts_with("prefill-first for every model")).await;
        done(&talk(net, 1, &["batch", "set", "auto"], "").await);
        until_said(net, 2, &["batch"], |said| said.starts_with("auto for every model")).await;
        done(&talk(net, 0, &["batch", "set", "mixed"], "").await);
        let both = |said: &str| said.contains("e2e 120 s for interactive") && said.contains("e2e 3600 s for batch");
        for index in [0, 3, 4] {
            until_said(net, index, &["targets"], both).await;
            until_said(net, index, &["route"], |said| said.starts_with("shortest for every model")).await;
            until_said(net, index, &["batch"], |said| said.starts_with("mixed for every model")).await;
        }
    };
    let (answers, ()) = tokio::join!(load, change);
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let why = until_said(net, 3, &["plan", "--why"], |said| said.contains("in time is within e2e 120 s; set by")).await;
    assert!(why.contains("requests are routed by shortest; set by"), "{why}");
    assert!(why.contains("steps are formed by mixed; set by"), "{why}");
    for n in 0..4 {
        assert_eq!(net.complete(4, body(n)).await.0, 200);
    }
    let status =
        until_said(net, 4, &["status"], |said| said.contains("100 % of") && said.contains("batch requests")).await;
    assert!(status.contains("routing   shortest"), "{status}");
    let url = format!("{}/metrics?names=tsnode", net.peer(4).http);
    let metrics = net.client.get(url).send().await.unwrap().text().await.unwrap();
    for class in ["interactive", "batch"] {
        let line = format!("tsnode_requests_in_time_total{{model_name=\"gutenberg-tiny\",class=\"{class}\"}}");
        assert!(metrics.lines().any(|l| l.starts_with(&line) && !l.ends_with(" 0")), "{metrics}");
    }
    let clear = [
        &["targets", "clear"][..],
        &["targets", "clear", "--class", "batch"],
        &["route", "clear"],
        &["batch", "clear"],
    ];
    for words in clear {
        done(&talk(net, 2, words, "").await);
    }
    until_said(net, 3, &["batch"], |said| said.starts_with("chunked: ")).await;
    until_said(net, 4, &["route"], |said| said.starts_with("live")).await;
    done(&talk(net, 1, &["route", "set", "auto"], "").await);
    until_said(net, 4, &["route"], |said| said.starts_with("auto for every model")).await;
    until_said(net, 3, &["plan", "--why"], |said| said.contains("auto was set by")).await;
    assert_eq!(net.complete(4, body(5)).await.0, 200);
    done(&talk(net, 4, &["route", "clear"], "").await);
    until_said(net, 0, &["plan", "--why"], |said| said.contains("no targets are set")).await;
    let (code, _, why) = talk(net, 0, &["targets", "set", "--ttft", "1ms", "--model", "nothing"], "").await;
    assert!(code == Some(9) && why.contains("gutenberg-tiny"), "{code:?} {why}");
}
