//! Long bodies: what they may take, and who waits for whom.

use super::*;
use crate::http::bodies::Bodies;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header::CONTENT_LENGTH};
use futures::{StreamExt, stream};
use std::convert::Infallible;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What HTTP takes at most (bytes).
const MOST: usize = 8 << 20;

fn long(begin: &str, end: &str) -> Vec<u8> {
    let text = "a ".repeat((MOST - begin.len() - end.len()) / 2);
    format!("{begin}{text}{end}").into_bytes()
}

async fn post(api: &Api, path: &str, body: Vec<u8>) -> (u16, Value) {
    let response = api
        .client
        .post(format!("{}{path}", api.url))
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn what_cannot_fit_is_refused_by_its_length_in_words_that_help() {
    let api = Api::up(said(End::Stop)).await;
    let cases = [
        (TEXT, long(r#"{"prompt":""#, r#""}"#), "prompt"),
        (TEXT, long(r#"{"prompt":["x",""#, r#""]}"#), "prompt"),
        (CHAT, long(r#"{"messages":[{"role":"user","content":""#, r#""}]}"#), "messages"),
        (CHAT, long(r#"{"messages":[{"role":"user","content":[{"type":"text","text":""#, r#""}]}]}"#), "messages"),
        // What the model said counts, too, where it is far more than a template leaves out.
        (CHAT, long(r#"{"messages":[{"role":"assistant","content":""#, r#""}]}"#), "messages"),
    ];
    for (path, body, param) in cases {
        let (status, answer) = post(&api, path, body).await;
        let error = &answer["error"];
        assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{answer}");
        assert_eq!((&error["param"], &error["type"]), (&json!(param), &json!("invalid_request_error")));
        let message = error["message"].as_str().unwrap();
        for part in ["maximum context length is 1024 tokens", " bytes, which are at least ", "Please shorten it"] {
            assert!(message.contains(part), "{message}");
        }
    }
    assert!(api.asked.lock().unwrap().is_empty(), "nothing of it reaches the gateway");
}

#[tokio::test]
async fn json_of_many_values_is_refused_whatever_field_it_is_in() {
    let api = Api::up(said(End::Stop)).await;
    let many = |unit: &str| unit.repeat((MOST - 100) / unit.len());
    let cases = [
        (TEXT, format!(r#"{{"prompt":[{}7]}}"#, many("7,")), "prompt"),
        (TEXT, format!(r#"{{"prompt":[{}7]}}"#, many("[],")), "prompt"),
        (TEXT, format!(r#"{{"prompt":"x","stop":[{}7]}}"#, many(r#"{"":0},"#)), "stop"),
        (TEXT, format!(r#"{{"{}":0}}"#, many("odd")), "odd"),
        (CHAT, format!(r#"{{"messages":[{}7]}}"#, many(r#"{"":0},"#)), "messages"),
        (CHAT, format!(r#"{{"messages":[{{"role":"user","content":[{}7]}}]}}"#, many("[],")), "messages"),
    ];
    for (path, body, param) in cases {
        let (status, answer) = post(&api, path, body.into_bytes()).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["param"].as_str().unwrap().starts_with(param), "{answer}");
    }
    let (status, answer) = post(&api, TEXT, vec![b' '; MOST + 1]).await;
    assert_eq!((status, &answer["error"]["message"]), (413, &json!("The body is larger than 8388608 bytes")));
    let owners = api.client.post(format!("{}/api/pause", api.url)).header("content-type", "application/json");
    assert_eq!(owners.body(vec![b' '; 1 << 20]).send().await.unwrap().status(), 413);
}

fn declared(length: usize) -> HeaderMap {
    [(CONTENT_LENGTH, HeaderValue::from(length))].into_iter().collect()
}

/// A body that begins and never ends.
fn endless(begin: &'static [u8]) -> Body {
    Body::from_stream(stream::iter([Ok::<_, Infallible>(begin)]).chain(stream::pending()))
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited).await.unwrap();
}

/// Bodies that hold all places, and who sends them.
async fn full(bodies: &Bodies) -> JoinSet<()> {
    let mut holding = JoinSet::new();
    for _ in 0..bodies.places_for(MOST) {
        let bodies = bodies.clone();
        holding.spawn(async move {
            let _ = bodies.read(&declared(MOST), endless(b"{"), 1024).await;
        });
    }
    until(|| bodies.places_for(MOST) == 0).await;
    holding
}

#[tokio::test]
async fn long_bodies_wait_unread_for_their_turn_and_short_ones_do_not() {
    let bodies = Bodies::patient(Duration::from_secs(10));
    let mut holding = full(&bodies).await;
    let short = bodies.read(&HeaderMap::new(), Body::from(r#"{"prompt":"x"}"#), 1024).await.unwrap();
    assert!(short.place.is_none());
    let text = long(r#"{"prompt":""#, r#""}"#);
    let waiting = crate::tasks::spawn("test", {
        let bodies = bodies.clone();
        async move { bodies.read(&declared(text.len()), Body::from(text), 1024).await.unwrap() }
    });
    until(|| bodies.waiting() == 1).await;
    holding.abort_all();
    while holding.join_next().await.is_some() {}
    let asked = waiting.await.unwrap();
    assert!(asked.place.is_some());
    let all = bodies.places_for(MOST);
    drop(asked);
    assert_eq!((bodies.places_for(MOST), bodies.waiting()), (all + 1, 0), "its place is free again");
}

#[tokio::test]
async fn a_long_body_that_waits_too_long_is_told_to_come_back() {
    let bodies = Bodies::patient(Duration::from_millis(50));
    let _holding = full(&bodies).await;
    let text = long(r#"{"prompt":""#, r#""}"#);
    for headers in [declared(text.len()), HeaderMap::new()] {
        let refused = bodies.read(&headers, Body::from(text.clone()), 1024).await.err().unwrap();
        assert!(matches!(refused, crate::http::ApiError::Unserved { .. }), "{refused}");
        assert!(refused.to_string().contains("no room for another long request"), "{refused}");
    }
}

#[tokio::test]
async fn who_sends_slowly_gives_its_place_to_those_who_wait() {
    let bodies = Bodies::patient(Duration::from_secs(10));
    let _holding = full(&bodies).await;
    let text = long(r#"{"prompt":""#, r#""}"#);
    let asked = Instant::now();
    assert!(bodies.read(&declared(text.len()), Body::from(text), 1024).await.is_ok());
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn short_requests_are_answered_while_long_bodies_come_slowly() {
    let api = Api::up(said(End::Stop)).await;
    let mut slow = Vec::new();
    for _ in 0..24 {
        let mut stream = TcpStream::connect(api.url.trim_start_matches("http://")).await.unwrap();
        let head = format!(
            "POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {MOST}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let (status, _) = api.post(TEXT, json!({ "prompt": "It was" })).await;
    assert_eq!(status, 200);
    // Those who have places and send nothing lose them to those who wait, and are told.
    let mut told = vec![0; 12];
    tokio::time::timeout(Duration::from_secs(10), slow[0].read_exact(&mut told)).await.unwrap().unwrap();
    assert_eq!(told, b"HTTP/1.1 408");
}
