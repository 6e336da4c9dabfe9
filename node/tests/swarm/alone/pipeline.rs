//! Prompts on a pipeline: their chunks follow each other through the stages, whoever hangs up meanwhile.

use crate::common::{Net, Wish};
use crate::{LONG, all_pages_free, swarm};
use serde_json::{Value, json};
use std::time::Duration;

/// From one peer to the other, and as long back.
const LATENCY: Duration = Duration::from_millis(100);

/// A prompt of several chunks, however long steps are worth it on this machine, and one that nobody else has.
fn body(n: u32) -> Value {
    let prompt: Vec<u32> = (0..800).map(|k| 300 + (k * 7 + n * 131) % 3000).collect();
    json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0.8, "seed": 7, "ignore_eos": true })
}

/// On a link that takes a tenth of a second a prompt in chunks of 128 tokens would take 1.4 seconds and more, were each of them to come
/// round before the next one sets off. Two for each stage are on their way, so that they come round twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_a_prompt_overlap_over_stages() {
    let one = Net::up(Wish { peers: 1, gateways: 0, flags: &[], model_flags: &[] }).await;
    let mut expected = Vec::new();
    for n in [1, 2, 6] {
        expected.push(one.tokens(0, body(n)).await.0);
    }
    one.down().await;

    let latency = LATENCY.as_millis().to_string();
    let flags = ["--layout", "mixed=2", "--shape-ms", &latency];
    let net = Net::up(Wish { peers: 2, gateways: 0, flags: &flags, model_flags: &[] }).await;
    // The first one's activations feel out what the link carries, round trip by round trip.
    assert_eq!(net.tokens(0, body(1)).await.0, expected[0]);
    let (tokens, answer) = net.tokens(0, body(2)).await;
    assert_eq!(tokens, expected[1]);
    let took = answer["tsnode"]["parts"]["prefill"].as_f64().unwrap();
    println!("{} tokens of a prompt took {took:.2} s", answer["usage"]["prompt_tokens"]);
    assert!(took < 8.0 * LATENCY.as_secs_f64(), "{took} s for a prompt whose chunks overlap: {answer}");

    // Some hang up when pages were granted and chunks are on their way: those are computed for nobody, and the next prompt's come behind
    // them. A whole answer takes more round trips than they wait for.
    for n in 3..6 {
        let url = format!("{}/v1/completions", net.peer(n as usize % 2).http);
        let asked = net.client.post(url).json(&body(n)).send();
        assert!(tokio::time::timeout(n * LATENCY, asked).await.is_err(), "an answer in {n} times the latency");
    }
    assert_eq!(net.tokens(1, body(6)).await.0, expected[2]);
    swarm(&net).await_that(LONG, all_pages_free).await.unwrap();
    net.down().await;
}
