//! What a swarm says of a prompt's tokens is what transformers says of them, wherever it is computed and whatever is cached;
//! and answers end where vLLM's fields say.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, Wish};
use crate::widened;
use serde_json::{Value, json};
use std::path::Path;

/// A case of the reference model: a prompt, and transformers' logits after some of its tokens, in single precision.
struct Case {
    prompt: Vec<u64>,
    logits: Vec<(usize, Vec<f64>)>,
    greedy: Vec<u64>,
}

fn cases(folder: &Path) -> Vec<Case> {
    let file: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>();
    let logits = |case: &Value| {
        let all = case["logits"].as_object().unwrap().iter();
        let row = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        all.map(|(at, values)| (at.parse().unwrap(), row(values))).collect()
    };
    let case = |case: &Value| Case { prompt: ids(&case["prompt"]), logits: logits(case), greedy: ids(&case["greedy"]) };
    file["cases"].as_array().unwrap().iter().map(case).collect()
}

fn logprob(logits: &[f64], token: u64) -> f64 {
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    logits[token as usize] - top - logits.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompts_tokens_are_as_likely_as_transformers_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/reference/llama-gqa");
    // For weights of bfloat16 rows are rounded to bfloat16, too, which is more than what is allowed here.
    let widened = widened::copy(&folder);
    let model = widened.path().display().to_string();
    // With raw KV an answer is the same wherever its prompt is computed.
    let flags = ["--layout", "prefill=1,decode=2", "--kv-dtype", "f32", "--kv-codec", "raw"];
    let net = Net::up_beside(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &["--model", &model] }).await;
    let cases = cases(&folder);
    for case in &cases {
        // The second time every page of the prompt is cached.
        let first = echoed(&net, 3, case).await;
        assert_eq!(echoed(&net, 0, case).await, first);
        in_vllms_field(&net, case, &first).await;
    }
    answers_end_where_they_should(&net, &cases[2]).await;
    net.down().await;
}

/// The prompt's log-probabilities, by `echo`; those that transformers' logits are known of are held against them.
async fn echoed(net: &Net, peer: usize, case: &Case) -> Value {
    let body = json!({ "prompt": case.prompt, "echo": true, "logprobs": 2, "max_tokens": 0, "temperature": 0 });
    let (status, answer) = net.complete(peer, body.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let (choice, counts) = (&answer["choices"][0], &answer["usage"]);
    assert_eq!((&choice["finish_reason"], &counts["completion_tokens"]), (&json!("length"), &json!(0)), "{answer}");
    assert_eq!(counts["prompt_tokens_details"]["cached_tokens"], 0, "what is cached has no logits");
    let all = choice["logprobs"]["token_logprobs"].as_array().unwrap().clone();
    assert_eq!((all.len(), &all[0]), (case.prompt.len(), &Value::Null));
    for (at, logits) in case.logits.iter().filter(|(at, _)| at + 1 < case.prompt.len()) {
        let (wanted, said) = (logprob(logits, case.prompt[at + 1]), all[at + 1].as_f64().unwrap());
        assert!((wanted - said).abs() < 1e-3, "token {}: {said}, transformers: {wanted}", at + 1);
        let best = (0..logits.len() as u64).map(|id| logprob(logits, id)).fold(f64::MIN, f64::max);
        let top = choice["logprobs"]["top_logprobs"][at + 1].as_object().unwrap();
        let top = top.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert!((best - top).abs() < 1e-3, "best before token {}: {top}, transformers: {best}", at + 1);
    }
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let url = format!("{}/v1/completions", net.peer(peer).http);
    let text = net.client.post(url).json(&streamed).send().await.unwrap().text().await.unwrap();
    let parts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let of = |part: Value| part["choices"][0]["logprobs"]["token_logprobs"].as_array().cloned().unwrap_or_default();
    assert_eq!(parts.flat_map(of).collect::<Vec<_>>(), all, "{text}");
    Value::Array(all)
}

/// The same in vLLM's field, before an answer, with ranks.
async fn in_vllms_field(net: &Net, case: &Case, echoed: &Value) {
    let body =
        json!({ "prompt": case.prompt, "prompt_logprobs": 1, "max_tokens": 2, "temperature": 0, "ignore_eos": true });
    let (tokens, answer) = net.tokens(1, body).await;
    assert_eq!(tokens, case.greedy[..2]);
    let list = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((list.len(), &list[0]), (case.prompt.len(), &Value::Null));
    for (at, entry) in list.iter().enumerate().skip(1) {
        let own = &entry[case.prompt[at].to_string()];
        assert_eq!(own["logprob"], echoed[at], "{entry}");
        assert_eq!(own["rank"] == 1, entry.as_object().unwrap().len() == 1, "{entry}");
    }
}

/// Also where another peer computed the first token.
async fn answers_end_where_they_should(net: &Net, case: &Case) {
    let end = case.greedy[5];
    let first = case.greedy.iter().position(|id| *id == end).unwrap();
    let body = |more: Value| {
        let mut body = json!({ "prompt": case.prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (tokens, answer) = net.tokens(3, body(json!({ "stop_token_ids": [end] }))).await;
    assert_eq!(tokens, case.greedy[..=first], "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let (tokens, _) = net.tokens(3, body(json!({ "stop_token_ids": [end], "min_tokens": 12 }))).await;
    assert!(tokens.len() > 12 && !tokens[..12].contains(&end), "{end} in {tokens:?}");
    assert_eq!(tokens[..first], case.greedy[..first]);
    let (again, _) = net.tokens(1, body(json!({ "stop_token_ids": [end], "min_tokens": 12 }))).await;
    assert_eq!(again, tokens);
}
