//! Peers that lend GPUs: the emulator stands in for the driver (`scripts/cuda_emulated.sh`), all else is what runs with one. Where
//! there is no C++ compiler the tests say so and pass.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

mod common;

use common::{Net, PROMPT, owned, turn};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Input, Output, Slice, Threads},
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};
use tsnode_testnet::PeerConfig;

/// The emulator takes its time.
const LONG: Duration = Duration::from_secs(90);
/// What the text begins with, and tokens of prompt and answer.
const BEGINNING: [u64; 4] = [296, 82, 19, 300];
const PROMPT_TOKENS: usize = 44;
const NEW_TOKENS: usize = 16;
/// Of these, those that a client has when the GPU is lost.
const LOST_AFTER: usize = 8;
/// Pages enough; what is free on a GPU would otherwise be filled with them.
const FLAGS: [&str; 4] = ["--kv-memory", "64MiB", "--kv-codec", "raw"];

/// A program that is `tsnode` with GPUs, and the file that has them lost once it is there.
struct FakeGpus {
    folder: tempfile::TempDir,
}

impl FakeGpus {
    /// None where the emulator cannot be built.
    fn new() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cuda_emulated.sh");
        if Command::new("g++").arg("--version").output().is_err() {
            eprintln!("skipped: there is no g++ to compile the emulator with");
            return None;
        }
        let built = Command::new(script).args(["printenv", "LD_LIBRARY_PATH"]).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let gpus = Self { folder: tempfile::tempdir().unwrap() };
        let libraries = String::from_utf8(built.stdout).unwrap();
        let (lost, program) = (gpus.lost(), env!("CARGO_BIN_EXE_tsnode"));
        let lost = lost.display();
        let text = format!(
            "#!/bin/sh\nLD_LIBRARY_PATH='{}' TSNODE_CARD_LOST='{lost}' TSNODE_EMULATED_CARDS=3 exec '{program}' \"$@\"\n",
            libraries.trim()
        );
        std::fs::write(gpus.program(), text).unwrap();
        std::fs::set_permissions(gpus.program(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(gpus)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("tsnode")
    }

    fn lost(&self) -> PathBuf {
        self.folder.path().join("lost")
    }

    async fn up(&self, devices: &[&str], layout: &str) -> Net {
        let host = |device: &&str| PeerConfig::Host { flags: owned(&["--threads", "1", "--device", device]) };
        self.run(devices.iter().map(host).collect(), &["--layout", layout]).await
    }

    async fn run(&self, hosts: Vec<PeerConfig>, flags: &[&str]) -> Net {
        let flags = [&FLAGS[..], flags].concat();
        // A thread of the emulator computes for each GPU: with another swarm beside, peers would not have proved theirs in time.
        Net::run_by(turn().await, self.program(), hosts, &flags).await
    }
}

/// A text as the model itself writes it, by the processor and straight from the engine: a prompt that is long enough for the kernels
/// of many rows, and the answer to it. In such a text few tokens are nearly as likely as the likeliest, and a GPU, which adds in
/// another order, can say the same.
fn prompt_and_answer() -> (Vec<u64>, Vec<u64>) {
    let (source, request) = (ModelSource::embedded().unwrap(), RequestId([1; 16]));
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: 16 << 20, kv_dtype: KvDtype::F16 };
    let mut engine = Engine::new(config).unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    let mut written = BEGINNING.to_vec();
    let all = PROMPT_TOKENS + NEW_TOKENS;
    engine.admit(stage, request, all as u32).unwrap();
    let mut done = 0;
    while written.len() < all {
        let new: Vec<Token> = written[done..].iter().map(|id| Token(*id as u32)).collect();
        let batch = [Slice { request, start: done as u32, len: new.len() as u32 }];
        let output = Output::Logits { rows: &[new.len() - 1] };
        let logits = engine.forward(stage, &batch, Input::Tokens(&new), output).unwrap();
        done = written.len();
        written.push(logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u64);
    }
    let answer = written.split_off(PROMPT_TOKENS);
    (written, answer)
}

fn asked(prompt: &[u64]) -> Value {
    json!({ "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": true })
}

/// Tokens of a streamed answer, each told as it comes, and how often it went on at another group.
async fn streamed(net: &Net, mut body: Value, mut told: impl FnMut(usize)) -> (Vec<u64>, usize) {
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let url = format!("{}/v1/completions", net.peer(0).http);
    let mut response = net.client.post(url).header("x-tsnode-trace", "1").json(&body).send().await.unwrap();
    let (mut text, mut tokens, mut moves) = (Vec::new(), Vec::new(), 0);
    while let Some(part) = response.chunk().await.unwrap() {
        text.extend_from_slice(&part);
        while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            let event = String::from_utf8(event).unwrap();
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            assert!(data.get("error").is_none(), "{data}");
            moves += data["tsnode"]["moves"].as_array().map_or(0, Vec::len);
            for id in data["choices"][0]["token_ids"].as_array().into_iter().flatten() {
                tokens.push(id.as_u64().unwrap());
                told(tokens.len());
            }
        }
    }
    (tokens, moves)
}

async fn swarm(net: &Net) -> Value {
    net.client.get(format!("{}/api/swarm", net.peer(0).http)).send().await.unwrap().json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peers_on_gpus_hand_kv_over_and_say_what_the_processor_says() {
    let Some(gpus) = FakeGpus::new() else { return };
    // The second has two GPUs that hold every layer together.
    let net = gpus.up(&["cuda:0", "cuda:1-2"], "prefill=1,decode=1").await;
    let (prompt, expected) = prompt_and_answer();
    let (tokens, answer) = net.tokens(0, asked(&prompt)).await;
    assert_eq!(tokens, expected);
    let trace = &answer["tsnode"];
    assert_ne!(trace["prefill"], trace["decode"], "{trace}");
    assert!(trace["kv_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{trace}");
    // With probabilities all logits are wanted here.
    let mut body = asked(&prompt);
    body["logprobs"] = json!(2);
    assert_eq!(net.tokens(1, body).await.0, tokens);
    let drawn = json!({ "prompt": PROMPT, "max_tokens": 8, "temperature": 0.8, "seed": 7, "ignore_eos": true });
    assert_eq!(net.tokens(0, drawn.clone()).await.0, net.tokens(1, drawn).await.0);
    net.down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_is_lost_takes_its_group_out_of_the_plan_and_not_the_stream() {
    let Some(gpus) = FakeGpus::new() else { return };
    // Both are of one peer, which sends KV to itself; the GPU decodes.
    let net = gpus.up(&["cpu,cuda:0"], "prefill=1,decode=1").await;
    let (prompt, expected) = prompt_and_answer();
    let (before, answer) = net.tokens(0, asked(&prompt)).await;
    assert_eq!(before, expected);
    assert!(answer["tsnode"]["kv_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{answer}");
    let (after, moves) = streamed(&net, asked(&prompt), |tokens| {
        if tokens == LOST_AFTER {
            std::fs::write(gpus.lost(), "").unwrap();
        }
    })
    .await;
    assert_eq!(after, expected, "the client does not notice");
    assert_eq!(moves, 1);
    // The GPU keeps its place in the advert, since plans name devices by it, and has nothing there.
    let until = Instant::now() + LONG;
    loop {
        let (swarm, _) = (swarm(&net).await, tokio::time::sleep(Duration::from_millis(100)).await);
        let memory = |at: usize| swarm["peers"][0]["advert"]["devices"][at]["memory_bytes"].as_u64();
        let stages = swarm["plan"]["groups"].as_array().unwrap().iter().flat_map(|g| g["stages"].as_array().unwrap());
        let on: Vec<u64> = stages.map(|stage| stage["device"].as_u64().unwrap()).collect();
        if memory(1) == Some(0) && memory(0) > Some(0) && on == [0] {
            break;
        }
        assert!(Instant::now() < until, "{swarm}");
    }
    let (later, answer) = net.tokens(0, asked(&prompt)).await;
    assert_eq!(later, expected);
    assert!(answer["tsnode"]["kv_bytes"].as_u64().is_none_or(|bytes| bytes == 0), "{answer}");
    net.down().await;
}

/// Two models on one GPU, with one pool of pages there and turns: asked at once, each answers as it does alone, one as the processor
/// and the other as transformers does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_that_share_a_gpu_answer_as_each_does_alone() {
    let Some(gpus) = FakeGpus::new() else { return };
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models");
    let [own, other] = ["gutenberg-tiny", "reference/llama-gqa"].map(|name| models.join(name).display().to_string());
    let flags = owned(&["--threads", "1", "--device", "cuda:0", "--model", &own, "--model", &other]);
    let net = gpus.run(vec![PeerConfig::Host { flags }], &["--kv-dtype", "f32"]).await;
    let device = &swarm(&net).await["peers"][0]["advert"]["devices"][0];
    assert_eq!(device["serves"].as_array().map(Vec::len), Some(2), "{device}");
    let cases = std::fs::read_to_string(models.join("reference/llama-gqa/cases.json")).unwrap();
    let cases: Value = serde_json::from_str(&cases).unwrap();
    let (prompt, expected) = prompt_and_answer();
    let mut own = asked(&prompt);
    own["model"] = json!("gutenberg-tiny");
    let others = cases["cases"].as_array().unwrap().iter().map(|case| {
        let greedy = case["greedy"].as_array().unwrap();
        let body = json!({ "model": "llama-gqa", "prompt": case["prompt"], "max_tokens": greedy.len(),
            "temperature": 0, "ignore_eos": true });
        let greedy: Vec<u64> = greedy.iter().map(|token| token.as_u64().unwrap()).collect();
        (body, greedy)
    });
    let all = [(own.clone(), expected.clone()), (own, expected)].into_iter().chain(others);
    let answers = all.map(|(body, expected)| {
        let net = &net;
        async move { assert_eq!(net.tokens(0, body.clone()).await.0, expected, "{body}") }
    });
    futures::future::join_all(answers).await;
    net.down().await;
}
