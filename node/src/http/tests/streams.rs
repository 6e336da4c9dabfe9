//! Streams that go on after their client came back, and what they do not say.

use super::*;

/// A client that comes back with the last event's id gets the events after it, of the same request.
#[tokio::test]
async fn a_stream_goes_on_after_the_last_event() {
    let api = Api::up(said(End::Length)).await;
    let body = json!({ "prompt": "x", "stream": true, "max_tokens": 40 });
    let events = |text: &str| -> Vec<(Option<String>, String)> {
        let line = |event: &str, name: &str| event.lines().find_map(|l| l.strip_prefix(name).map(str::to_owned));
        text.split("\n\n").filter_map(|e| Some((line(e, "id: "), line(e, "data: ")?))).collect()
    };
    let ask = |name: &'static str, value: String| {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header(name, value);
        let request = request.header("x-tsnode-event-ids", "1").json(&body).send();
        async move { request.await.unwrap().text().await.unwrap() }
    };
    let all = events(&ask("idempotency-key", "mine".into()).await);
    let first = api.last_asked();
    assert!(first.comes_back && all.len() > 4, "{all:?}");
    let seen = all[1].0.clone().unwrap();
    let rest = events(&ask("last-event-id", seen).await);
    let again = api.last_asked();
    assert_eq!((again.request, &again.generation), (first.request, &first.generation), "the same seed, too");
    let data = |events: &[(Option<String>, String)]| -> Vec<Value> {
        let choices = |d: &String| serde_json::from_str::<Value>(d).ok().map(|e| e["choices"].clone());
        events.iter().filter_map(|(_, d)| choices(d)).collect()
    };
    assert_eq!(data(&rest), data(&all[2..]));
    let response = api.client.post(format!("{}{TEXT}", api.url)).header("last-event-id", "7").json(&body).send().await;
    assert_eq!(response.unwrap().status(), 400);
    // Without a name nobody can come back, and nobody is looked for.
    api.stream(TEXT, body.clone()).await;
    assert!(!api.last_asked().comes_back && api.last_asked().request != first.request);
}

/// Load generators and simple clients take each line that is not empty for `data: …`.
#[tokio::test]
async fn who_does_not_ask_for_ids_gets_nothing_but_data_lines() {
    let api = Api::up(said(End::Length)).await;
    for (path, body) in [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))] {
        let mut body = body;
        (body["stream"], body["n"]) = (json!(true), json!(2));
        for key in [None, Some("mine")] {
            let request = api.client.post(format!("{}{path}", api.url));
            let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
            let text = request.json(&body).send().await.unwrap().text().await.unwrap();
            assert!(text.lines().all(|line| line.is_empty() || line.starts_with("data: ")), "{text}");
            assert!(text.lines().count() > 8, "{text}");
        }
    }
}
