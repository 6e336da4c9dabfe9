//! The same request gives the same tokens from one process, from two peers, and from pipelines cut differently.
#![allow(clippy::unwrap_used)] // A swarm that cannot be had fails the test.

mod common;

use common::{Net, PROMPT, Wish, owned};
use serde::Deserialize;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;
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
    let one = Net::up(Wish { peers: 1, gateways: 0, flags: &[], model_flags: &[] }).await;
    let expected = answers(&one, 0).await;
    one.down().await;
    assert_ne!(expected[0], expected[1], "sampling samples");

    let two = Net::up(Wish {
        peers: 2,
        gateways: 0,
        flags: &["--layout", "prefill=1,decode=1", "--kv-codec", "raw", "--kv-lanes", "2"],
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

    let five = Net::up(Wish {
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
    let ranks = Net::of(vec![host(), host(), host()], &flags).await;
    assert_eq!(answers(&ranks, 0).await, expected, "two ranks at every stage");
    ranks.down().await;
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
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/reference");
    for name in REFERENCE {
        let folder = models.join(name);
        let path = folder.display().to_string();
        let net = Net::up(Wish {
            peers: 3,
            gateways: 0,
            flags: &["--layout", "prefill=2,decode=1", "--kv-codec", "raw", "--kv-dtype", "f32"],
            model_flags: &["--model", &path],
        })
        .await;
        let cases: Cases = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
        for case in cases.cases {
            let body =
                json!({ "prompt": case.prompt, "max_tokens": case.greedy.len(), "temperature": 0, "ignore_eos": true });
            let (tokens, answer) = net.tokens(2, body).await;
            assert_eq!(tokens, case.greedy, "{name}, prompt of {}", case.prompt.len());
            assert_ne!(answer["tsnode"]["prefill"], answer["tsnode"]["decode"]);
        }
        net.down().await;
    }
}
