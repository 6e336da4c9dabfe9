//! The page, and the events that it lives by.

use super::*;
use crate::http::events::LISTENERS;
use futures::{StreamExt, stream::BoxStream};

/// Who listens to a peer's events.
struct EventListener {
    stream: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    rest: String,
}

impl EventListener {
    async fn to(api: &Api) -> Self {
        Self::at(api, "/api/events").await
    }

    async fn at(api: &Api, path: &str) -> Self {
        let stream = api.get(path).await.error_for_status().unwrap().bytes_stream();
        Self { stream: stream.boxed(), rest: String::new() }
    }

    /// The next event: its name and what it says.
    async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
                let next = (field("event: "), serde_json::from_str(&field("data: ")).unwrap());
                self.rest = rest.to_owned();
                return next;
            }
            self.rest += std::str::from_utf8(&self.stream.next().await.unwrap().unwrap()).unwrap();
        }
    }
}

#[tokio::test]
async fn the_page_says_nothing_without_a_key_and_lets_nothing_else_in() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    for (path, kind) in [("/", "text/html"), ("/page.js", "text/javascript")] {
        let file = api.get(path).await;
        let header = |name: &str| file.headers()[name].to_str().unwrap().to_owned();
        assert!(file.status() == 200 && header("content-type").starts_with(kind), "{path}");
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && header("x-content-type-options") == "nosniff");
        // All there is to know comes by requests of its own, which show the key.
        assert!(!file.text().await.unwrap().contains(&api.view.borrow().swarm.to_string()));
    }
    assert_eq!(api.get("/api/events").await.status(), 401);
}

#[tokio::test]
async fn the_invite_of_an_open_swarm_is_told_and_of_a_private_one_why_it_is_not() {
    let api = Api::up(said(End::Stop)).await;
    let told = || async { api.get("/api/invite").await.json::<Value>().await.unwrap() };
    let here = "/ip4/192.0.2.1/tcp/7447".to_owned();
    api.view.send_modify(|view| (view.private, view.addresses) = (false, vec![here.clone()]));
    let answer = told().await;
    let text = answer["invite"].as_str().unwrap().to_owned();
    assert!(answer["why"].is_null(), "{answer}");
    let invite: tsnode_protocol::Invite = text.parse().unwrap();
    let swarm = api.view.borrow().swarm;
    assert_eq!((invite.swarm, invite.ticket, invite.addresses), (swarm, None, vec![here]));
    api.view.send_modify(|view| view.addresses = vec!["/ip4/127.0.0.1/tcp/7447".into()]);
    let answer = told().await;
    assert!(answer["invite"].is_string() && answer["why"].as_str().unwrap().contains("of this host"), "{answer}");
    api.view.send_modify(|view| view.private = true);
    let answer = told().await;
    assert!(answer["invite"].is_null() && answer["why"].as_str().unwrap().contains("private"), "{answer}");
    api.view.send_modify(|view| (view.private, view.addresses) = (false, vec![]));
    assert!(told().await["why"].as_str().unwrap().contains("no address"));
}

#[tokio::test]
async fn who_asks_for_changes_is_told_an_advert_once() {
    let api = Api::up(said(End::Stop)).await;
    let peer = |n| PeerView {
        id: PeerId([n; 32]),
        advert: tsnode_coordinator::sample::advert(0),
        load: Default::default(),
        groups: vec![],
        silent_for: 0.0,
        silent: false,
        plan: None,
        leaving: false,
    };
    api.view.send_modify(|view| view.peers = vec![peer(1), peer(2)]);
    let mut events = EventListener::at(&api, "/api/events?changes").await;
    let (name, swarm) = events.next().await;
    assert!(name == "swarm" && swarm["peers"][1]["advert"]["devices"].is_array(), "{name} {swarm}");
    assert_eq!(events.next().await.0, "requests");
    api.view.send_modify(|view| {
        view.peers[0].load.running = 7;
        view.peers[1].advert.name = "another".into();
    });
    let (name, changes) = events.next().await;
    assert_eq!((name.as_str(), &changes["swarm"]["me"]), ("changes", &swarm["me"]));
    assert_eq!((&changes["peers"][0]["load"]["running"], &changes["peers"][0]["advert"]), (&json!(7), &Value::Null));
    assert_eq!(changes["peers"][1]["advert"]["name"], "another");
    let whole = serde_json::from_value::<SwarmView>(swarm).unwrap();
    assert!(whole.peers.len() == 2 && changes["swarm"]["peers"] == json!([]));
}

#[tokio::test]
async fn events_tell_the_swarm_and_requests_as_they_change() {
    let mut api = Api::up(GatewayReply::Hang).await;
    let mut events = EventListener::to(&api).await;
    let (name, swarm) = events.next().await;
    assert_eq!((name.as_str(), &swarm["me"]), ("swarm", &json!(api.view.borrow().me)));
    let (name, requests) = events.next().await;
    assert_eq!((name.as_str(), &requests), ("requests", &json!({ "requests": [], "running": [] })));
    let asked = api.send(CHAT, &json!({ "messages": hello(), "stream": true })).await;
    let (name, requests) = events.next().await;
    let runs = &requests["running"][0];
    assert_eq!(name, "requests");
    assert_eq!(runs["request"], asked.headers()["x-request-id"].to_str().unwrap());
    assert!(runs["model"].is_string() && runs["seconds"].is_u64(), "{runs}");
    drop(asked);
    api.dropped.recv().await.unwrap();
    loop {
        // Its seconds may have been told meanwhile.
        let (_, requests) = events.next().await;
        if requests["running"] == json!([]) {
            break;
        }
    }
    api.view.send_modify(|view| view.private = true);
    let (name, swarm) = events.next().await;
    assert_eq!((name.as_str(), &swarm["private"]), ("swarm", &json!(true)));
}

#[tokio::test]
async fn so_many_listen_at_once_and_no_more() {
    let api = Api::up(said(End::Stop)).await;
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        listeners.push(EventListener::to(&api).await);
    }
    let refused = api.get("/api/events").await;
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (503, "5"));
    listeners.pop();
    // The place is free when the connection's end is noticed.
    let mut status = 503;
    for _ in 0..100 {
        status = api.get("/api/events").await.status().as_u16();
        if status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(status, 200);
}

#[tokio::test]
async fn events_end_when_http_does() {
    let api = Api::up(said(End::Stop)).await;
    let mut events = EventListener::to(&api).await;
    events.next().await;
    api.stop.cancel();
    let ends = async { while events.stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(5), ends).await.expect("HTTP waits for who listens");
}
