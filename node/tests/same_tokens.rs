//! The same request gives the same tokens from one process, from two peers, and from pipelines cut differently.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

mod common;

use common::{Net, PROMPT, Wish, owned};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tsnode_testnet::PeerConfig;

const NEW_TOKENS: u32 = 128;

/// Greedy and seeded answers, and the peers that prefilled and decoded.
async fn answers(net: &Net, peer: usize) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    for sampling in [json!({ "temperature": 0 }), json!({ "temperature": 0.8, "seed": 7, "top_p": 0.95 })] {
        let mut body = json!({ "prompt": PROMPT, "max_tokens": NEW_TOKENS, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
        let (tokens, _) = net.tokens(peer, body).await;
        assert_eq!(tokens.len(), NEW_TOKENS as usize);
        all.push(tokens);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_two_peers_and_two_pipelines_say_the_same() {
    let one = Net::up_beside(Wish { peers: 1, gateways: 0, flags: &[], model_flags: &[] }).await;
    let expected = answers(&one, 0).await;
    one.down().await;
    assert_ne!(expected[0], expected[1], "sampling samples");

    let two = Net::up_beside(Wish {
        peers: 2,
        gateways: 0,
        flags: &["--layout", "prefill=1,decode=1", "--kv-codec", "raw", "--kv-streams", "2"],
        model_flags: &[],
    })
    .await;
    assert_eq!(answers(&two, 0).await, expected, "two peers");
    assert_eq!(answers(&two, 1).await, expected, "asked at the other peer");
    let asked = Instant::now();
    let (_, answer) = two.tokens(1, json!({ "prompt": PROMPT, "max_tokens": 4, "ignore_eos": true })).await;
    let took = asked.elapsed().as_secs_f64();
    let trace = &answer["tsnode"];
    assert_ne!(trace["prefill"], trace["decode"]);
    // 2 sides, 4 layers, 4 KV heads of 32 channels, 2 bytes each, for every prompt token.
    assert_eq!(trace["kv_bytes"].as_u64().unwrap(), 2048 * trace["prompt_tokens"].as_u64().unwrap());
    assert_eq!(trace["deliveries"][0]["streams"], 2, "{trace}");
    let parts: f64 = trace["parts"].as_object().unwrap().values().map(|p| p.as_f64().unwrap()).sum();
    assert!((parts - trace["total"].as_f64().unwrap()).abs() < 1e-6 && parts <= took, "{parts} of {took} s: {trace}");
    let url = format!("{}/api/requests/{}", two.peer(1).http, trace["request"].as_str().unwrap());
    let kept: serde_json::Value = two.client.get(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(kept, *trace, "the gateway remembers it");
    two.down().await;

    let five = Net::up_beside(Wish {
        peers: 5,
        gateways: 1,
        flags: &["--layout", "prefill=2,decode=3", "--kv-codec", "raw"],
        model_flags: &[],
    })
    .await;
    assert_eq!(answers(&five, 5).await, expected, "pipeline of two into pipeline of three");
    five.down().await;

    let host = || PeerConfig::Host { flags: owned(&["--threads", "2", "--tensor-parallel", "2"]) };
    let flags = ["--layout", "prefill=1,decode=2", "--kv-codec", "raw"];
    let ranks = Net::of_beside(vec![host(), host(), host()], &flags).await;
    assert_eq!(answers(&ranks, 0).await, expected, "two ranks at every stage");
    ranks.down().await;
}

/// Tokens and fingerprint of an answer, asked at that peer, computed where the header says.
async fn answered(net: &Net, peer: usize, way: Option<&str>, codec: Option<&str>) -> (Vec<u64>, String) {
    let mut body = json!({
        "prompt": PROMPT.repeat(8),
        "max_tokens": 48,
        "ignore_eos": true,
        "seed": 7,
        "temperature": 0.9,
        "return_token_ids": true,
        "kv_codec": codec,
    });
    let url = format!("{}/v1/completions", net.peer(peer).http);
    let ask = |body: &Value| {
        let request = net.client.post(&url).json(body);
        way.map_or(request.try_clone().unwrap(), |way| request.header("x-tsnode-kv", way))
    };
    let answer: Value = ask(&body).send().await.unwrap().json().await.unwrap();
    let ids = |choice: &Value| choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let tokens: Vec<u64> = ids(&answer["choices"][0]);
    assert_eq!(tokens.len(), 48, "{answer}");
    let fingerprint = answer["system_fingerprint"].as_str().unwrap().to_owned();
    // The same, streamed: every part says it.
    body["stream"] = json!(true);
    let text = ask(&body).send().await.unwrap().text().await.unwrap();
    let parts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let parts: Vec<Value> = parts.collect();
    assert!(parts.iter().all(|part| part["system_fingerprint"] == fingerprint), "{fingerprint}: {text}");
    let streamed: Vec<u64> = parts.iter().flat_map(|part| ids(&part["choices"][0])).collect();
    assert_eq!(streamed, tokens);
    (tokens, fingerprint)
}

/// Whether KV crosses the network or not, what it goes through is what the request says, or else the peer's owner, and the tokens are
/// the same every time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_with_a_fixed_codec_has_one_answer() {
    let layout = ["--layout", "prefill=1,decode=1,decode=1"];
    let net = Net::up_beside(Wish { peers: 3, gateways: 1, flags: &layout, model_flags: &[] }).await;
    let mut all = Vec::new();
    for codec in ["raw", "int8", "int4", "int3"] {
        let expected = answered(&net, 3, None, Some(codec)).await;
        assert!(expected.1.ends_with(&format!("_{codec}")), "{}", expected.1);
        for (peer, way) in [(3, None), (0, None), (3, Some("in-place")), (1, Some("layers")), (2, Some("whole"))] {
            assert_eq!(answered(&net, peer, way, Some(codec)).await, expected, "{codec} at {peer}, {way:?}");
        }
        all.push(expected.0);
    }
    // Four ways, and not all of them the same words: a codec is part of the question.
    assert!(all.iter().any(|tokens| *tokens != all[0]), "four codecs gave the very same tokens");
    let int8 = answered(&net, 3, None, Some("int8")).await;
    net.down().await;

    let flags = [&layout[..], &["--fixed-kv", "int8"]].concat();
    let net = Net::up_beside(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &[] }).await;
    for (peer, way) in [(3, None), (0, None), (3, Some("in-place")), (1, Some("whole"))] {
        assert_eq!(answered(&net, peer, way, None).await, int8, "fixed by the owner, at {peer}, {way:?}");
    }
    let raw = answered(&net, 3, None, Some("raw")).await;
    assert!(raw.1.ends_with("_raw") && raw.0 == all[0], "a request's own word comes first");
    net.down().await;
}

fn models() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../kernels/models")
}

/// Tokens that the draft model proposed that groups had checked, and those that were right, once a moment has passed since the last.
async fn drafted(net: &Net, peers: usize) -> (u64, u64) {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (mut made, mut right) = (0, 0);
    for peer in 0..peers {
        let url = format!("{}/api/swarm", net.peer(peer).http);
        let view: serde_json::Value = net.client.get(url).send().await.unwrap().json().await.unwrap();
        let of = |what: &str| view["spec_decode"]["draft"][what].as_u64().unwrap();
        (made, right) = (made + of("made"), right + of("right"));
    }
    (made, right)
}

/// The model as its own draft model is always right, another one never: the tokens are the same, drawn ones too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_model_changes_no_token() {
    let one =
        Net::up_beside(Wish { peers: 1, gateways: 0, flags: &["--speculative-decoding", "never"], model_flags: &[] })
            .await;
    let expected = answers(&one, 0).await;
    one.down().await;

    let draft = models().join("gutenberg-tiny").display().to_string();
    for (peers, layout) in [(1, "mixed=1"), (2, "mixed=2"), (2, "prefill=1,decode=1")] {
        let flags = ["--layout", layout, "--kv-codec", "raw", "--draft", &draft];
        let net = Net::up_beside(Wish { peers, gateways: 0, flags: &flags, model_flags: &[] }).await;
        assert_eq!(answers(&net, 0).await, expected, "{layout}");
        let both = futures::future::join_all((0..4).map(|_| answers(&net, 0))).await;
        assert!(both.iter().all(|answers| *answers == expected), "{layout}, four at once");
        let (made, right) = drafted(&net, peers).await;
        println!("{layout}: {right} of {made} draft tokens were accepted");
        assert!(made > 50 && right * 100 >= made * 95, "{layout}: {right} of {made} draft tokens were accepted");
        net.down().await;
    }

    let (model, other) = (models().join("reference/llama-gqa"), models().join("reference/mistral-window"));
    let model_flags = ["--model", &model.display().to_string(), "--draft", &other.display().to_string()];
    let flags = ["--kv-dtype", "f32"];
    let net = Net::up_beside(Wish { peers: 1, gateways: 0, flags: &flags, model_flags: &model_flags }).await;
    for Case { prompt, greedy } in cases(&model) {
        let body = json!({ "prompt": prompt, "max_tokens": greedy.len(), "temperature": 0, "ignore_eos": true });
        assert_eq!(net.tokens(0, body).await.0, greedy, "prompt of {}", prompt.len());
    }
    let (made, right) = drafted(&net, 1).await;
    assert!(made > 50 && right * 4 < made, "{right} of {made} draft tokens were accepted");
    net.down().await;
}

#[test]
fn a_draft_model_of_other_tokens_is_refused_by_name() {
    let (folder, other) = (tempfile::tempdir().unwrap(), models().join("reference/llama-gqa"));
    let mut join = std::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    join.args(["join", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--mdns=false", "--data-dir"]);
    let ended = join.arg(folder.path()).arg("--draft").arg(&other).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("reference/llama-gqa cannot draft for the embedded model"), "{said}");
}

fn cases(model: &Path) -> Vec<Case> {
    let cases: Cases = serde_json::from_slice(&std::fs::read(model.join("cases.json")).unwrap()).unwrap();
    cases.cases
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u64>,
}

const REFERENCE: [&str; 9] = [
    "llama-gqa",
    "llama3-rope",
    "qwen2-bias",
    "opt-relu",
    "mistral-window",
    "qwen3-norms",
    "gemma2-caps",
    "gemma3-local",
    "phi3-longrope",
];

/// Reference models over peers: prefill cut in two, decode on a third peer, f32 KV. (`llama-gqa` and the others have
/// cases for prompts of 1, 7, 33 and 200 tokens; logits are compared in `kernels/tests/reference.rs`.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_models_cut_over_peers_continue_as_transformers_does() {
    for name in REFERENCE {
        let folder = models().join("reference").join(name);
        let path = folder.display().to_string();
        let net = Net::up_beside(Wish {
            peers: 3,
            gateways: 0,
            flags: &["--layout", "prefill=2,decode=1", "--kv-codec", "raw", "--kv-dtype", "f32"],
            model_flags: &["--model", &path],
        })
        .await;
        for case in cases(&folder) {
            let body =
                json!({ "prompt": case.prompt, "max_tokens": case.greedy.len(), "temperature": 0, "ignore_eos": true });
            let (tokens, answer) = net.tokens(2, body).await;
            assert_eq!(tokens, case.greedy, "{name}, prompt of {}", case.prompt.len());
            assert_ne!(answer["tsnode"]["prefill"], answer["tsnode"]["decode"]);
        }
        net.down().await;
    }
}

/// Models that one peer lends at once, and where their files are. Some layers of the last one keep a state, which is sent nowhere.
const SEVERAL: [&str; 3] = ["gutenberg-tiny", "reference/llama-gqa", "reference/qwen3next-experts"];

/// What is asked of one of them for a while, as it is streamed.
fn streamed(model: &str) -> Value {
    json!({
        "model": model, "prompt": PROMPT, "max_tokens": 300, "ignore_eos": true, "temperature": 0.8, "seed": 7,
        "stream": true, "return_token_ids": true,
    })
}

/// Reads tokens of a stream to its end; the sender counts them as they come.
async fn read(mut response: reqwest::Response, counted: tokio::sync::watch::Sender<usize>) -> Vec<u64> {
    let (mut tokens, mut rest) = (Vec::new(), Vec::new());
    while let Some(part) = response.chunk().await.unwrap() {
        rest.extend_from_slice(&part);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8(rest.drain(..=end).collect()).unwrap();
            let event = line.trim_end().strip_prefix("data: ").and_then(|e| serde_json::from_str::<Value>(e).ok());
            let ids = event.iter().flat_map(|e| e["choices"][0]["token_ids"].as_array()).flatten();
            tokens.extend(ids.filter_map(Value::as_u64));
        }
        counted.send_replace(tokens.len());
    }
    tokens
}

async fn stream(net: &Net, peer: usize, model: &str) -> (tokio::sync::watch::Receiver<usize>, TokensTask) {
    let url = format!("{}/v1/completions", net.peer(peer).http);
    let response = net.client.post(url).json(&streamed(model)).send().await.unwrap();
    assert_eq!(response.status(), 200, "{model}");
    let (counted, count) = tokio::sync::watch::channel(0);
    (count, tsnode::tasks::spawn("test", read(response, counted)))
}

type TokensTask = tokio::task::JoinHandle<Vec<u64>>;

/// What each model is called.
fn called(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// Three models on each of two peers, asked at once at every gateway: each answers as it does alone on a peer, and where it is a
/// reference model as transformers does; so do streams of all three go on when a peer that holds them dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_models_on_one_peer_answer_as_each_does_alone_and_outlive_it() {
    let path = |name: &str| models().join(name).display().to_string();
    let flags = ["--kv-dtype", "f32", "--split", "auto", "--kv-codec", "raw"];
    let mut expected = Vec::new();
    for name in SEVERAL {
        let model_flags = ["--model", &path(name)];
        let one = Net::up_beside(Wish { peers: 1, gateways: 0, flags: &flags, model_flags: &model_flags }).await;
        expected.push(stream(&one, 0, called(name)).await.1.await.unwrap());
        one.down().await;
    }
    let all = SEVERAL.map(path);
    let model_flags: Vec<&str> = all.iter().flat_map(|path| ["--model", path]).collect();
    let mut net = Net::up_beside(Wish { peers: 2, gateways: 1, flags: &flags, model_flags: &model_flags }).await;
    let asked = (0..3).flat_map(|peer| SEVERAL.iter().enumerate().map(move |(n, name)| (peer, n, name)));
    let answers = asked.map(|(peer, n, name)| {
        let (net, expected) = (&net, &expected);
        async move {
            let tokens = stream(net, peer, called(name)).await.1.await.unwrap();
            assert_eq!(tokens, expected[n], "{name} asked at {peer}");
            for case in cases_of(name) {
                let body = json!({ "model": called(name), "prompt": case.prompt, "max_tokens": case.greedy.len(),
                    "temperature": 0, "ignore_eos": true });
                assert_eq!(net.tokens(peer, body).await.0, case.greedy, "{name} asked at {peer}");
            }
        }
    });
    futures::future::join_all(answers).await;

    overloaded(&net, &expected).await;
    let mut running = Vec::new();
    for name in SEVERAL {
        running.push(stream(&net, 2, called(name)).await);
    }
    for (count, _) in &mut running {
        count.wait_for(|tokens| *tokens > 0).await.unwrap();
    }
    net.net.kill(0).await.unwrap();
    for ((n, name), (_, reading)) in SEVERAL.iter().enumerate().zip(running) {
        assert_eq!(reading.await.unwrap(), expected[n], "{name}, whose peer was killed");
    }
    net.down().await;
}

/// One model is asked for by many at once: the others' answers come meanwhile, and all are the same as ever.
async fn overloaded(net: &Net, expected: &[Vec<u64>]) {
    let busy = called(SEVERAL[0]);
    let mut load = Vec::new();
    for _ in 0..8 {
        load.push(stream(net, 2, busy).await);
    }
    for (count, _) in &mut load {
        count.wait_for(|tokens| *tokens > 0).await.unwrap();
    }
    let mut others = Vec::new();
    for name in &SEVERAL[1..] {
        others.push(stream(net, 2, called(name)).await);
    }
    for (count, _) in &mut others {
        count.wait_for(|tokens| *tokens >= 8).await.unwrap();
    }
    let ended = load.iter().filter(|(count, _)| *count.borrow() == expected[0].len()).count();
    assert!(ended < load.len(), "the others waited until all of {busy}'s answers had ended");
    for (n, (_, reading)) in (1..).zip(others) {
        assert_eq!(reading.await.unwrap(), expected[n], "{}, beside a load on {busy}", SEVERAL[n]);
    }
    for (_, reading) in load {
        assert_eq!(reading.await.unwrap(), expected[0], "{busy}, asked for by many");
    }
}

/// What models the swarm has groups of that take requests, as a peer sees it.
async fn loaded(net: &Net, peer: usize) -> Vec<String> {
    let url = format!("{}/api/swarm", net.peer(peer).http);
    let view: Value = net.client.get(url).send().await.unwrap().json().await.unwrap();
    let is_loaded = |model: &&Value| view["loaded"].as_array().unwrap().contains(&model["id"]);
    let models = view["models"].as_array().unwrap().iter().filter(is_loaded);
    models.map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

/// Of two models a peer holds one at a time: a request for the other waits until that has come into its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_nobody_asks_for_yields_its_memory_to_one_that_somebody_does() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("config.toml");
    let part = |name: &str| format!("[[models]]\nmodel = \"{}\"\nmemory = \"400MiB\"\n", models().join(name).display());
    std::fs::write(&settings, [part(SEVERAL[1]), part(SEVERAL[2])].concat()).unwrap();
    let model_flags = ["--config", settings.to_str().unwrap(), "--memory", "600MiB", "--swap-models"];
    let flags = ["--kv-dtype", "f32", "--split", "auto", "--kv-codec", "raw"];
    let mut net = Net::up_beside(Wish { peers: 1, gateways: 1, flags: &flags, model_flags: &model_flags }).await;
    // The first request waits until one model has gone and the other has come, which a busy machine takes its time for.
    net.client = reqwest::Client::builder().timeout(Duration::from_secs(300)).build().unwrap();
    let before = loaded(&net, 1).await;
    assert_eq!(before.len(), 1, "{before:?}");
    let other = SEVERAL[1..].iter().find(|name| called(name) != before[0]).unwrap();
    for case in cases_of(other) {
        let body = json!({ "model": called(other), "prompt": case.prompt, "max_tokens": case.greedy.len(),
            "temperature": 0, "ignore_eos": true });
        assert_eq!(net.tokens(1, body).await.0, case.greedy, "{other}");
    }
    assert_eq!(loaded(&net, 1).await, [called(other)]);
    net.down().await;
}

/// Prompts with what transformers goes on with, of models that have them.
fn cases_of(name: &str) -> Vec<Case> {
    let folder = models().join(name);
    if folder.join("cases.json").exists() { cases(&folder) } else { Vec::new() }
}

/// What no peer can lend is refused in one line that says what, and what to do.
#[test]
fn models_that_cannot_be_lent_together_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| models().join(name).display().to_string();
    let join = |more: &[&str]| {
        let mut join = std::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
        let fixed = ["join", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--mdns=false", "--device", "cpu"];
        let ended = join.args(fixed).arg("--data-dir").arg(folder.path().join("data")).args(more).output().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let (tiny, other) = (path("gutenberg-tiny"), path("reference/llama-gqa"));
    let (code, said) = join(&["--model", &tiny, "--model", &other, "--model", &tiny]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("are the same model, gutenberg-tiny; name it once"), "{said}");
    let (code, said) = join(&["--model", &tiny, "--model", &other, "--keep", "third"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("--keep third: no model that is lent here is named or called so; they are called"), "{said}");
    let settings = folder.path().join("config.toml");
    let named = |of: &str, more: &str| format!("[[models]]\nmodel = \"{of}\"\n{more}\n");
    let with = |text: String| {
        std::fs::write(&settings, text).unwrap();
        join(&["--config", settings.to_str().unwrap()])
    };
    let (code, said) = with([named(&tiny, "name = \"one\""), named(&other, "name = \"one\"")].concat());
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("both are called one: give one another name"), "{said}");
    let (_, said) = with([named(&tiny, "memory = \"4000GiB\""), named(&other, "")].concat());
    assert!(said.contains("2 models need") && said.contains("gutenberg-tiny has 4000.0 GiB of its own"), "{said}");
    assert!(said.contains("llama-gqa would fit"), "{said}");
    let (code, said) = with(named(&tiny, "memroy = \"1GiB\""));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("config.toml:3: unknown key `memroy`; did you mean `memory`?"), "{said}");
    let bare = folder.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(models().join("reference/llama-gqa").join(file), bare.join(file)).unwrap();
    }
    let (code, said) = join(&["--model", &tiny, "--model", bare.to_str().unwrap()]);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("bare") && said.contains("tokenizer"), "{said}");
}
