//! Who may ask for what: keys, the owner's token, rates.

use super::*;

#[tokio::test]
async fn a_key_guards_everything_but_health() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    let ask = |key: &str| api.client.get(format!("{}/v1/models", api.url)).bearer_auth(key).send();
    assert_eq!(ask("sesame").await.unwrap().status(), 200);
    let wrong = ask("sesam").await.unwrap();
    assert_eq!(
        (wrong.status().as_u16(), challenge(&wrong).as_str()),
        (401, r#"Bearer realm="tsnode", error="invalid_token""#)
    );
    assert_eq!(challenge(&api.get("/v1/models").await), r#"Bearer realm="tsnode""#);
    for (path, status) in [("/v1/models", 401), ("/api/swarm", 401), ("/metrics", 401), ("/healthz", 200), ("/", 200)] {
        assert_eq!(api.get(path).await.status(), status, "{path}");
    }
    let (status, answer) = api.post(TEXT, json!({ "prompt": "x" })).await;
    assert_eq!((status, &answer["error"]["code"]), (401, &json!("invalid_api_key")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("tsnode keys add"), "{answer}");
}

fn challenge(response: &Response) -> String {
    response.headers()["www-authenticate"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_keys_scheme_may_be_written_in_any_letters() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    for (shown, status) in [
        ("bearer sesame", 200),
        ("BEARER sesame", 200),
        ("Bearer  sesame", 200),
        ("Basic sesame", 401),
        ("sesame", 401),
        ("bearersesame", 401),
    ] {
        let asked =
            api.client.get(format!("{}/v1/models", api.url)).header("authorization", shown).send().await.unwrap();
        assert_eq!(asked.status(), status, "{shown}");
    }
}

#[tokio::test]
async fn the_owners_token_opens_everything_and_at_any_rate() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let token = LocalToken::leave(&store, "127.0.0.1:0".parse().unwrap()).unwrap();
    let api = Api::with(said(End::Stop), keys(Some("sesame"), Some(20)).with_local(token)).await;
    let token = owner_token::read(folder.path(), "127.0.0.1:0").unwrap();
    for _ in 0..10 {
        for path in ["/api/swarm", "/metrics", "/v1/models"] {
            let asked = api.client.get(format!("{}{path}", api.url)).bearer_auth(&token).send().await.unwrap();
            assert_eq!(asked.status(), 200, "{path}");
        }
    }
    assert_eq!(api.get("/api/swarm").await.status(), 401, "who does not show it needs a key");
}

#[tokio::test]
async fn a_key_for_prompts_is_good_for_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let key = add(folder.path(), "bob", KeyScope::Inference).unwrap();
    let api = Api::with(said(End::Stop), Gatekeeper::new(KeyRing::open(folder.path(), None).unwrap(), None)).await;
    let get = |path: &str| api.client.get(format!("{}{path}", api.url)).bearer_auth(&key).send();
    for (path, status) in
        [("/v1/models", 200), ("/api/swarm", 403), ("/api/requests", 403), ("/metrics", 403), ("/", 200)]
    {
        assert_eq!(get(path).await.unwrap().status(), status, "{path}");
    }
    for path in ["/api/leave", "/api/limits"] {
        let refused = api.client.post(format!("{}{path}", api.url)).bearer_auth(&key).json(&json!({})).send();
        assert_eq!(refused.await.unwrap().status(), 403, "{path}");
    }
}

#[tokio::test]
async fn who_asks_too_often_is_told_when_to_come_back() {
    let api = Api::with(said(End::Stop), keys(None, Some(20))).await;
    let ask = || api.get("/v1/models");
    assert_eq!([ask().await.status(), ask().await.status()], [200, 200]);
    let refused = ask().await;
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(api.get("/healthz").await.status(), 200, "whether it is alive may be asked at any time");
}
