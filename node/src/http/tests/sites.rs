//! What browsers are refused, and what they are let do for pages that the owner allows.

use super::{Api, CHAT, TEXT, hello, keys, said};
use crate::http::hosts::Sites;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tsnode_protocol::stream::End;

const EVIL: &str = "https://evil.example";
const APP: &str = "https://chat.example.com";

/// A peer of this host alone, whose owner allows one application.
async fn up(key: Option<&str>) -> Api {
    let (http, host, page) = ([127, 0, 0, 1].into(), "llm.example.com".parse().unwrap(), APP.parse().unwrap());
    Api::with(said(End::Stop), keys(key, None).with_sites(Sites::new(http, "box", host, page))).await
}

impl Api {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    fn preflight(&self, path: &str, origin: &str) -> RequestBuilder {
        let asked = self.request(Method::OPTIONS, path).header("origin", origin);
        let asked = asked.header("access-control-request-method", "POST");
        asked.header("access-control-request-headers", "authorization,content-type,x-stainless-os")
    }
}

async fn code(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, response.json::<Value>().await.unwrap()["error"]["code"].take())
}

/// A page whose name is made to point here once it is shown: it may read what is answered to its own origin.
#[tokio::test]
async fn a_name_that_is_made_to_point_here_is_not_answered() {
    let api = up(None).await;
    for (method, path) in
        [(Method::GET, "/api/swarm"), (Method::GET, "/"), (Method::POST, "/api/pause"), (Method::POST, CHAT)]
    {
        let asked = api.request(method.clone(), path).header("host", "evil.example:7448");
        let asked = asked.header("origin", "http://evil.example:7448").json(&json!({ "messages": hello() }));
        let refused = asked.send().await.unwrap();
        assert_eq!(code(refused).await, (403, json!("host_not_allowed")), "{method} {path}");
    }
    let refused = api.request(Method::GET, "/api/swarm").header("host", "evil.example").send().await.unwrap();
    let said = refused.text().await.unwrap();
    assert!(said.contains("`evil.example`") && said.contains("--allow-host"), "{said}");
    for host in ["localhost:9", "127.0.0.1", "[::1]:7448", "llm.example.com"] {
        let asked = api.request(Method::GET, "/api/swarm").header("host", host).send().await.unwrap();
        assert_eq!(asked.status(), 200, "{host}");
    }
}

#[tokio::test]
async fn a_foreign_page_changes_nothing_and_the_peers_own_does() {
    let api = up(None).await;
    let asked = [
        ("/api/pause", json!({})),
        ("/api/leave", json!({})),
        ("/api/limits", json!({ "hours": "22:00-07:00" })),
        (CHAT, json!({ "messages": hello() })),
    ];
    for (path, body) in asked {
        for foreign in [EVIL, "null", "http://127.0.0.1:1"] {
            let refused = api.request(Method::POST, path).header("origin", foreign).json(&body).send().await.unwrap();
            assert!(!refused.headers().contains_key("access-control-allow-origin"));
            assert_eq!(code(refused).await, (403, json!("origin_not_allowed")), "{path} {foreign}");
        }
    }
    assert!(api.asked.lock().unwrap().is_empty(), "nothing reached the gateway");
    let own = api.request(Method::POST, "/api/pause").header("origin", &api.url).json(&json!({})).send().await.unwrap();
    assert_eq!(own.status(), 202);
    // What changes nothing is answered, and the browser is not told to hand it on.
    let seen = api.request(Method::GET, "/api/swarm").header("origin", EVIL).send().await.unwrap();
    assert_eq!((seen.status().as_u16(), seen.headers().get("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn an_allowed_page_may_ask_whether_it_may_with_and_without_keys() {
    for key in [None, Some("sesame")] {
        let api = up(key).await;
        let may =
            api.preflight(CHAT, APP).header("access-control-request-private-network", "true").send().await.unwrap();
        assert_eq!(may.status(), 200, "no key is asked for");
        let said = |name: &str| may.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(said("access-control-allow-origin"), APP);
        assert!(said("access-control-allow-headers").contains("x-stainless-os"));
        assert!(said("access-control-allow-methods").contains("POST"));
        assert_eq!(said("access-control-allow-private-network"), "true");
        assert!(said("vary").contains("origin"), "what is answered is the page's alone");
        let refused = api.preflight(CHAT, EVIL).send().await.unwrap();
        assert_eq!(code(refused).await, (403, json!("origin_not_allowed")));
    }
}

#[tokio::test]
async fn an_allowed_page_reads_answers_and_errors_and_needs_a_key_where_there_are_some() {
    let api = up(Some("sesame")).await;
    let ask = |key: &str| api.request(Method::POST, CHAT).header("origin", APP).bearer_auth(key);
    for (key, status) in [("sesame", 200), ("sesam", 401)] {
        let answer = ask(key).json(&json!({ "messages": hello() })).send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["access-control-allow-origin"], APP, "it may read why");
        assert_eq!(answer.headers()["access-control-expose-headers"], "*");
    }
    // Without a key the allowed page has no more than anybody.
    let none = api.request(Method::GET, "/api/swarm").header("origin", APP).send().await.unwrap();
    assert_eq!(none.status(), 401);
}

#[tokio::test]
async fn a_peer_that_allows_no_page_says_nothing_of_pages() {
    let api = Api::up(said(End::Stop)).await;
    let answer = api.request(Method::GET, "/v1/models").header("origin", APP).send().await.unwrap();
    assert!(answer.headers().keys().all(|name| !name.as_str().starts_with("access-control")));
    assert_eq!(code(api.preflight(CHAT, APP).send().await.unwrap()).await, (403, json!("origin_not_allowed")));
}

/// What a form can send from any page, without the browser asking whether it may.
#[tokio::test]
async fn bodies_are_json() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({ "prompt": "x", "messages": hello() }).to_string();
    let kinds = [
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("multipart/form-data; boundary=application/json"), 415),
        (None, 415),
        (Some("Application/JSON; charset=utf-8"), 200),
    ];
    for (kind, status) in kinds {
        let asked = api.request(Method::POST, TEXT).body(json!({ "prompt": "x" }).to_string());
        let asked = kind.map_or(asked.try_clone().unwrap(), |kind| asked.header("content-type", kind));
        assert_eq!(asked.send().await.unwrap().status(), status, "{kind:?}");
    }
    // Ollama's clients do not say what they send.
    for kind in [None, Some("application/x-www-form-urlencoded")] {
        let chat = json!({ "model": "gutenberg-tiny", "messages": hello(), "stream": false }).to_string();
        let asked = api.request(Method::POST, "/api/chat").body(chat);
        let asked = kind.map_or(asked.try_clone().unwrap(), |kind| asked.header("content-type", kind));
        let foreign = asked.try_clone().unwrap().header("origin", APP);
        assert_ne!(asked.send().await.unwrap().status(), 415, "{kind:?}");
        assert_eq!(foreign.send().await.unwrap().status(), 403, "{kind:?}");
    }
    for path in ["/api/pause", CHAT] {
        let refused = api.request(Method::POST, path).body(body.clone()).send().await.unwrap();
        assert_eq!(code(refused).await, (415, json!("unsupported_media_type")), "{path}");
    }
}
