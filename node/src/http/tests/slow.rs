//! Clients that begin to ask and do not end: each is hung up on within the time that the docs state, and nobody waits for them.

use super::{Api, TEXT, said};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tsnode_protocol::stream::End;

/// Half-sent requests of a kind.
const MANY: usize = 101;
/// For a computer that is busy with other tests.
const SLACK: Duration = Duration::from_secs(15);

/// Sends that, and says what came back and after how long the connection was closed.
async fn half(address: String, sent: String) -> (String, Duration) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let began = Instant::now();
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is reset is closed, too.
    let _ = stream.read_to_end(&mut answer).await;
    (String::from_utf8(answer).unwrap(), began.elapsed())
}

#[tokio::test]
async fn half_sent_requests_are_closed_within_the_stated_times() {
    let api = Api::up(said(End::Stop)).await;
    let address = api.url.trim_start_matches("http://").to_owned();
    let headers = format!("POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    let with_body = |path: &str| {
        let head = headers.replace(TEXT, path);
        format!("{head}content-length: 100\r\n\r\n{{\"prompt\"")
    };
    // What is sent, how many times, from when and until when it is closed, and what is said.
    let kinds = [
        (headers.clone(), MANY, 10, ""),
        (with_body(TEXT), 20, 15, "HTTP/1.1 408"),
        (with_body("/api/pause"), 20, 20, ""),
    ];
    let all = kinds.into_iter().map(|(sent, count, within, said)| {
        let address = address.clone();
        async move {
            let clients = (0..count).map(|_| half(address.clone(), sent.clone()));
            for (answer, after) in futures::future::join_all(clients).await {
                let within = Duration::from_secs(within);
                assert!(after < within + SLACK, "{sent}: closed after {after:?}");
                assert!(after > within - Duration::from_secs(1), "{sent}: it had no time: {after:?}");
                assert!(answer.starts_with(said), "{answer}");
            }
        }
    });
    let served = async {
        let (status, _) = api.post(TEXT, json!({ "prompt": "It was" })).await;
        assert_eq!(status, 200, "others are served meanwhile");
    };
    tokio::join!(futures::future::join_all(all), served);
}
