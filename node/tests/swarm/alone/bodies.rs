//! Long bodies take little memory and time of a peer, give it back, and nobody waits for them.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]
#![cfg(target_os = "linux")] // Memory in use is read as Linux tells it.

use crate::common::{Net, PROMPT, Wish};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What HTTP takes at most (bytes).
const MOST: usize = 8 << 20;
/// Bodies, and how many of them at once.
const BODIES: usize = 16;
const AT_ONCE: usize = 8;
/// Bytes above rest that they may take, and that may be left five seconds after: what tokens of one body took was 1.1 GB, of eight at
/// once 2.6 GB were kept. How much threads' allocators keep differs from run to run, from 33 to 42 MB as seen.
const ABOVE: u64 = 300 << 20;
const AFTER: u64 = 64 << 20;
/// What a short request may take meanwhile: 47 s it was.
const SHORT: Duration = Duration::from_secs(5);

/// Memory of a process that is in use (bytes).
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn filled(begin: &str, unit: &str, end: &str) -> Vec<u8> {
    format!("{begin}{}{end}", unit.repeat((MOST - begin.len() - end.len()) / unit.len())).into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_are_refused_in_little_memory_beside_short_requests() {
    let net = Net::up(Wish { peers: 1, gateways: 0, flags: &[], model_flags: &[] }).await;
    let short = json!({ "prompt": PROMPT, "max_tokens": 4 });
    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 4 });
    assert_eq!((net.complete(0, short.clone()).await.0, net.post(0, "/v1/chat/completions", chat).await.0), (200, 200));
    let peer = net.peer(0);
    let (rest, most) = (resident(peer.pid), Arc::new(AtomicU64::new(0)));
    let watch = tsnode::tasks::spawn("test", {
        let (most, pid) = (most.clone(), peer.pid);
        async move {
            loop {
                most.fetch_max(resident(pid), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let kinds = [
        ("/v1/completions", filled(r#"{"prompt":""#, "a ", r#""}"#)),
        ("/v1/chat/completions", filled(r#"{"messages":[{"role":"user","content":""#, "a ", r#""}]}"#)),
        ("/v1/completions", filled(r#"{"prompt":"a","stop":["#, r#"{"":0},"#, "0]}")),
    ];
    for (path, body) in kinds {
        let (asked, url) = (Instant::now(), format!("{}{path}", peer.http));
        let mut senders: JoinSet<_> = (0..AT_ONCE)
            .map(|_| {
                let (client, url, body) = (net.client.clone(), url.clone(), bytes::Bytes::from(body.clone()));
                async move {
                    for _ in 0..BODIES / AT_ONCE {
                        let answer = client
                            .post(&url)
                            .header("content-type", "application/json")
                            .body(body.clone())
                            .send()
                            .await
                            .unwrap();
                        let (status, told) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
                        assert_eq!(status, 400, "{told}");
                    }
                }
            })
            .collect();
        while !senders.is_empty() {
            let asked = Instant::now();
            assert_eq!(net.complete(0, short.clone()).await.0, 200);
            assert!(asked.elapsed() < SHORT, "a short request took {:?}", asked.elapsed());
            while let Some(ended) = senders.try_join_next() {
                ended.unwrap();
            }
        }
        println!("{BODIES} bodies to {path} in {:.1?}", asked.elapsed());
    }
    watch.abort();
    let above = most.load(Ordering::Relaxed).saturating_sub(rest);
    println!("{} MB above rest, which is {} MB", above >> 20, rest >> 20);
    assert!(above < ABOVE, "{} MB above rest", above >> 20);
    let until = Instant::now() + Duration::from_secs(5);
    while resident(peer.pid) > rest + AFTER {
        assert!(Instant::now() < until, "{} MB above rest are kept", (resident(peer.pid) - rest) >> 20);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    net.down().await;
}
