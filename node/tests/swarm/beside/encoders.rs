//! A gateway without a model asks whoever lends an encoder, and another when that one is killed.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, Wish};
use futures::future::join_all;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const GATEWAY: usize = 2;

fn encoder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders").join(name)
}

fn expected(name: &str) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(encoder(name).join("expected.json")).unwrap()).unwrap()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn are_near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
}

/// Asks the gateway until there is an answer, for as long as peers take to hear of each other.
async fn asked(net: &Net, path: &str, body: &Value) -> Value {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (status, answer) = net.post(GATEWAY, path, body.clone()).await;
        match status {
            200 => return answer,
            404 | 503 if Instant::now() < until => sleep(Duration::from_millis(100)).await,
            _ => panic!("{path}: {status} {answer}"),
        }
    }
}

/// Tokens of texts, for others at both lenders and by others at the gateway: the same.
async fn what_was_read_is_counted(net: &Net) {
    let counted = |peer: usize, side: &'static str| async move {
        let url = format!("{}/api/earnings", net.peer(peer).http);
        let earnings = net.client.get(url).send().await.unwrap().json::<Value>().await.unwrap();
        let of = |line: &&Value| line["model"].as_str().is_some_and(|name| name.starts_with("tiny-bert"));
        let lines = earnings["earnings"].as_array().unwrap().iter().filter(of);
        lines.map(|line| line[side]["prompt_tokens"].as_u64().unwrap()).sum::<u64>()
    };
    let (one, other) = (counted(0, "for_others").await, counted(1, "for_others").await);
    assert_eq!(one + other, counted(GATEWAY, "by_others").await);
    assert!(one + other > 0, "nothing was counted");
}

/// Waits until the gateway knows so many lenders.
async fn lenders(net: &Net, many: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let view = net.client.get(format!("{}/api/swarm", net.peer(GATEWAY).http)).send().await.unwrap();
        let view = view.json::<Value>().await.unwrap();
        let peers = view["peers"].as_array().unwrap();
        let lend = |peer: &&Value| peer["advert"]["encoders"].as_array().is_some_and(|all| all.len() == 2);
        if peers.iter().filter(lend).count() == many {
            return;
        }
        assert!(Instant::now() < until, "{many} lenders are not known: {view}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_encoded_by_whoever_lends_an_encoder_and_is_alive() {
    let (embeds, ranks) =
        (encoder("tiny-bert").display().to_string(), encoder("tiny-bert-ranker").display().to_string());
    let model_flags = ["--embedding-model", &embeds, "--rerank-model", &ranks];
    let mut net = Net::up_beside(Wish { peers: 2, gateways: 1, flags: &[], model_flags: &model_flags }).await;
    lenders(&net, 2).await;
    vectors_are_those_of_sentence_transformers(&net).await;
    documents_are_ranked(&net).await;
    what_cannot_be_encoded_is_refused(&net).await;
    models_are_listed(&net).await;
    what_was_read_is_counted(&net).await;

    // The first dies with work, and the other does it.
    let many = json!({ "model": "tiny-bert", "input": vec!["the old house and the dark night"; 200] });
    let client = net.client.clone();
    let url = format!("{}/v1/embeddings", net.peer(GATEWAY).http);
    let ask = || async {
        let answer = client.post(&url).json(&many).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (answers, killed) = tokio::join!(join_all((0..16).map(|_| ask())), net.net.kill(0));
    killed.unwrap();
    for (status, answer) in answers {
        assert_eq!((status, answer["data"].as_array().map(Vec::len)), (200, Some(200)), "{answer}");
    }
    let begun = Instant::now();
    assert_eq!(ask().await.0, 200);
    println!("with one lender killed the next answer took {:.2} s", begun.elapsed().as_secs_f64());
    // It comes back, and the other dies: a gateway that knows of the dead one alone waits for who is there.
    net.net.restart(0).await.unwrap();
    net.net.kill(1).await.unwrap();
    let answer = asked(&net, "/v1/embeddings", &many).await;
    assert_eq!(answer["data"].as_array().map(Vec::len), Some(200), "{answer}");
    lenders(&net, 1).await;
    vectors_are_those_of_sentence_transformers(&net).await;
    // One whose machine is wanted back lends no encoder either.
    assert_eq!(net.post(0, "/api/pause", json!({})).await.0, 202);
    lenders(&net, 0).await;
    let (status, answer) = net.post(GATEWAY, "/v1/embeddings", json!({ "input": "a" })).await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("unavailable")), "{answer}");
    net.down().await;
}

async fn vectors_are_those_of_sentence_transformers(net: &Net) {
    let rows = expected("tiny-bert");
    let texts: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
    let answer = asked(net, "/v1/embeddings", &json!({ "model": "tiny-bert", "input": texts })).await;
    for (index, row) in rows.iter().enumerate() {
        let one = &answer["data"][index];
        assert_eq!((&one["index"], &one["object"]), (&json!(index), &json!("embedding")));
        assert!(are_near(&numbers(&one["embedding"]), &numbers(&row["values"])), "{one}");
    }
    let tokens: usize = rows.iter().map(|row| row["ids"].as_array().unwrap().len()).sum();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    // As the openai client asks; of tokens; the first values alone.
    let body = json!({ "model": "tiny-bert", "input": rows[0]["ids"], "encoding_format": "base64", "dimensions": 4 });
    let answer = asked(net, "/v1/embeddings", &body).await;
    let bytes = data_encoding::BASE64.decode(answer["data"][0]["embedding"].as_str().unwrap().as_bytes()).unwrap();
    let values: Vec<f64> = bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect();
    let first = &numbers(&rows[0]["values"])[..4];
    let length = first.iter().map(|x| x * x).sum::<f64>().sqrt();
    let shortened: Vec<f64> = first.iter().map(|x| x / length).collect();
    assert!(are_near(&values, &shortened), "{values:?} {shortened:?}");
}

async fn documents_are_ranked(net: &Net) {
    let rows = expected("tiny-bert-ranker");
    let body = json!({
        "model": "tiny-bert-ranker", "query": rows[0]["query"], "documents": [rows[0]["text"], rows[1]["text"]]
    });
    let answer = asked(net, "/v1/rerank", &body).await;
    let results = answer["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(results.len() == 2 && scores[0] >= scores[1], "{answer}");
    for result in results {
        let row = &rows[result["index"].as_u64().unwrap() as usize];
        assert!(are_near(&[result["relevance_score"].as_f64().unwrap()], &numbers(&row["values"])), "{result} {row}");
        assert_eq!(result["document"]["text"], row["text"]);
    }
    let tokens: usize = rows[..2].iter().map(|row| row["ids"].as_array().unwrap().len()).sum();
    assert_eq!(answer["usage"]["total_tokens"], json!(tokens));
    let mut top = body;
    top["top_n"] = json!(1);
    top["return_documents"] = json!(false);
    let answer = asked(net, "/v1/rerank", &top).await;
    assert_eq!((answer["results"].as_array().unwrap().len(), &answer["results"][0]["document"]), (1, &Value::Null));
}

async fn what_cannot_be_encoded_is_refused(net: &Net) {
    let refused = |body: Value| async move {
        let (status, answer) = net.post(GATEWAY, "/v1/embeddings", body).await;
        let error = &answer["error"];
        (status, error["param"].clone(), error["code"].clone(), error["message"].to_string())
    };
    let long = "a ".repeat(100);
    let (status, param, code, message) = refused(json!({ "input": ["a", long] })).await;
    assert_eq!((status, param, code), (400, json!("input"), json!("context_length_exceeded")), "{message}");
    assert!(message.contains("input 1") && message.contains("102 tokens"), "{message}");
    let cut = json!({ "input": long, "truncate_prompt_tokens": -1 });
    assert_eq!(asked(net, "/v1/embeddings", &cut).await["usage"]["prompt_tokens"], 64);
    for (body, field) in [
        (json!({}), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": { "a": 1 } }), "input"),
        (json!({ "input": [99999] }), "input"),
        (json!({ "input": vec!["a"; 2049] }), "input"),
        (json!({ "input": "a", "dimensions": 17 }), "dimensions"),
        (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format"),
        (json!({ "input": "a", "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens"),
        (json!({ "input": "a", "odd": 1 }), "odd"),
    ] {
        let (status, param, _, message) = refused(body).await;
        assert_eq!((status, param), (400, json!(field)), "{message}");
    }
    let (status, _, code, message) = refused(json!({ "input": "a", "model": "tiny-bert-ranker" })).await;
    assert_eq!((status, code), (404, json!("model_not_found")), "{message}");
}

async fn models_are_listed(net: &Net) {
    let get = |path: &str| net.client.get(format!("{}{path}", net.peer(GATEWAY).http)).send();
    let list = get("/v1/models").await.unwrap().json::<Value>().await.unwrap();
    let named =
        |name: &str| list["data"].as_array().unwrap().iter().find(|model| model["id"] == name).cloned().unwrap();
    let one = named("tiny-bert");
    assert_eq!(
        (&one["tsnode_task"], &one["tsnode_dimensions"], &one["max_model_len"]),
        (&json!("embed"), &json!(16), &json!(64))
    );
    assert_eq!(named("tiny-bert-ranker")["tsnode_task"], "score");
    assert_eq!(get("/v1/models/tiny-bert").await.unwrap().json::<Value>().await.unwrap(), one);
}
