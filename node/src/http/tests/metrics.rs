//! Each request is counted once, and ends once; what is counted is written in the form that was asked for.

use super::{Api, CHAT, GatewayReply, TEXT, hello, said};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::stream::End;

impl Api {
    async fn metrics(&self, path: &str) -> String {
        self.get(path).await.text().await.unwrap()
    }

    /// The value of a metric of the model, with these labels beside its name.
    async fn value(&self, name: &str, labels: &str) -> f64 {
        let text = self.metrics("/metrics").await;
        let row = format!("{name}{{model_name=\"gutenberg-tiny\"{labels}}} ");
        text.lines().find_map(|line| line.strip_prefix(&row)?.parse().ok()).unwrap_or(0.0)
    }

    /// Waits until a metric of the model has that value.
    async fn until(&self, name: &str, value: f64) {
        let reached = async {
            while self.value(name, "").await != value {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap();
    }

    /// Requests accepted, unserved, finished, cancelled, failed, running, waiting.
    async fn counts(&self) -> [f64; 7] {
        let mut counts = [0.0; 7];
        let names = [
            "accepted_total",
            "unserved_total",
            "finished_total",
            "cancelled_total",
            "failed_total",
            "running",
            "waiting",
        ];
        for (count, name) in counts.iter_mut().zip(names) {
            *count = self.value(&format!("tsnode_requests_{name}"), "").await;
        }
        counts
    }
}

#[tokio::test]
async fn a_request_of_many_choices_is_one_request() {
    let api = Api::up(said(End::Stop)).await;
    let prompt_tokens = api.post(TEXT, json!({ "prompt": "It was", "n": 8 })).await.1["usage"]["prompt_tokens"].clone();
    assert_eq!(api.counts().await, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(api.value("tsnode_choices_finished_total", ",finished_reason=\"stop\"").await, 8.0);
    assert_eq!(api.value("tsnode_first_tokens_total", "").await, 8.0);
    assert_eq!(api.value("tsnode_prompt_tokens_total", "").await, prompt_tokens.as_f64().unwrap(), "a prompt once");
    // Streamed, of two prompts.
    api.stream(TEXT, json!({ "prompt": ["It was", "It is"], "n": 3, "stream": true })).await;
    assert_eq!(api.counts().await, [2.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(api.value("tsnode_choices_finished_total", ",finished_reason=\"stop\"").await, 14.0);
    for histogram in ["time_to_first_token_seconds", "e2e_request_latency_seconds", "request_generation_tokens"] {
        assert_eq!(api.value(&format!("tsnode_{histogram}_count"), "").await, 2.0, "{histogram}");
        assert_eq!(api.value(&format!("vllm:{histogram}_count"), "").await, 2.0, "{histogram}");
    }
    let tokens = api.value("tsnode_generation_tokens_total", "").await;
    assert_eq!(api.value("tsnode_request_generation_tokens_sum", "").await, tokens);
    // Of the eight whole answers, the first; of the six streamed ones, each; between any two of their tokens.
    let gaps = 7.0 * (tokens / 14.0 - 1.0);
    assert_eq!(api.value("tsnode_inter_token_latency_seconds_count", "").await, gaps);
}

/// In figures that a person can read: the same requests as the histograms'.
#[tokio::test]
async fn what_is_asked_of_a_model_is_shown_with_how_it_was_served() {
    let api = Api::up(said(End::Stop)).await;
    let swarm = || async { api.get("/api/swarm").await.json::<Value>().await.unwrap() };
    assert_eq!(swarm().await["services"], json!([]));
    let usage = api.post(TEXT, json!({ "prompt": "It was" })).await.1["usage"].clone();
    api.stream(CHAT, json!({ "messages": hello(), "stream": true })).await;
    let services = swarm().await["services"].clone();
    let service = &services[0];
    assert_eq!((services.as_array().unwrap().len(), &service["model"]), (1, &json!("gutenberg-tiny")));
    assert_eq!(
        (&service["answered"], &service["lost"], service["rate"].as_f64() > Some(0.0)),
        (&json!(2), &json!(0), true)
    );
    assert_eq!(service["answer_tokens"]["p50"], usage["completion_tokens"].as_f64().unwrap());
    assert!(service["e2e"]["mean"].as_f64() >= service["ttft"]["mean"].as_f64(), "{service}");
}

/// Of a whole answer as of a stream.
#[tokio::test]
async fn a_request_whose_client_goes_is_cancelled() {
    for stream in [true, false] {
        let mut api = Api::up(GatewayReply::Hang).await;
        let body = json!({ "messages": hello(), "stream": stream });
        let request = crate::tasks::spawn("test", api.client.post(format!("{}{CHAT}", api.url)).json(&body).send());
        api.until("tsnode_requests_running", 1.0).await;
        if stream {
            drop(request.await.unwrap().unwrap());
        } else {
            request.abort();
        }
        api.until("tsnode_requests_cancelled_total", 1.0).await;
        assert_eq!(api.counts().await, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], "stream: {stream}");
        tokio::time::timeout(Duration::from_secs(10), api.dropped.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_request_that_breaks_off_or_is_not_served_ends_as_that() {
    for stream in [true, false] {
        let broken = Api::up(GatewayReply::BreakOff("The wind")).await;
        broken.send(TEXT, &json!({ "prompt": "x", "n": 2, "stream": stream })).await.text().await.unwrap();
        assert_eq!(broken.counts().await, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let refused = Api::up(GatewayReply::Refuse).await;
        refused.send(TEXT, &json!({ "prompt": "x", "n": 2, "stream": stream })).await.text().await.unwrap();
        assert_eq!(refused.counts().await, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
    let wrong = Api::up(said(End::Stop)).await;
    wrong.post(TEXT, json!({ "prompt": "x", "temperature": 9 })).await;
    assert_eq!(wrong.counts().await, [0.0; 7], "what is asked wrongly is no request for a model");
}

#[tokio::test]
async fn the_form_is_what_is_accepted() {
    let api = Api::up(said(End::Stop)).await;
    api.post(TEXT, json!({ "prompt": "x" })).await;
    let text = api.get("/metrics").await;
    assert_eq!(text.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = text.text().await.unwrap();
    assert!(!text.contains("# EOF") && text.contains("# TYPE tsnode_requests_accepted_total counter\n"), "{text}");
    let url = format!("{}/metrics", api.url);
    let open =
        api.client.get(url).header("accept", "application/openmetrics-text; version=1.0.0").send().await.unwrap();
    assert_eq!(open.headers()["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let open = open.text().await.unwrap();
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE tsnode_requests_accepted counter\n"), "{open}");
    for (names, ours, theirs) in [("tsnode", true, false), ("vllm", false, true)] {
        let text = api.metrics(&format!("/metrics?names={names}")).await;
        assert_eq!((text.contains("tsnode_"), text.contains("vllm:")), (ours, theirs));
    }
    assert_eq!(api.get("/metrics?names=sglang").await.status(), 400);
}

/// What linters of metrics look for.
#[tokio::test]
async fn every_metric_says_what_it_is_and_counters_are_called_total() {
    let api = Api::up(said(End::Stop)).await;
    api.post(TEXT, json!({ "prompt": "x" })).await;
    let text = api.metrics("/metrics").await;
    let of = |kind: &str| -> BTreeMap<&str, &str> {
        text.lines().filter_map(|line| line.strip_prefix(kind)?.split_once(' ')).collect()
    };
    let (help, types) = (of("# HELP "), of("# TYPE "));
    assert_eq!(help.keys().collect::<Vec<_>>(), types.keys().collect::<Vec<_>>());
    for (name, kind) in &types {
        assert_eq!(*kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
    }
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    for sample in samples {
        let name = sample.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let known = types.contains_key(name) || family.is_some_and(|family| types.get(family) == Some(&"histogram"));
        assert!(known, "{sample}");
    }
    let described = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(described, types.len(), "none is there twice");
}

/// What the dashboards that vLLM gives away ask for.
#[tokio::test]
async fn vllms_names_are_beside_ours() {
    let api = Api::up(said(End::Stop)).await;
    api.post(TEXT, json!({ "prompt": "x" })).await;
    let text = api.metrics("/metrics").await;
    let there: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE vllm:")?.split(' ').next()).collect();
    for name in [
        "e2e_request_latency_seconds",
        "generation_tokens_total",
        "inter_token_latency_seconds",
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_hits_total",
        "prefix_cache_queries_total",
        "prompt_tokens_total",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success_total",
        "time_per_output_token_seconds",
        "time_to_first_token_seconds",
    ] {
        assert!(there.contains(name), "{name} in {there:?}");
    }
}
