//! What is set for the whole swarm, and requests that nobody waits for.

use super::{Api, TEXT, said};
use serde_json::{Value, json};
use tsnode_protocol::{
    BatchPolicy, RequestClass, RoutePolicy, Seconds, SettingKey, SettingValue, Targets, stream::End,
};

#[tokio::test]
async fn what_is_for_nobody_yet_is_said_to_be_a_batch_and_nonsense_is_refused() {
    let api = Api::up(said(End::Stop)).await;
    for (field, value, class) in [
        ("priority", json!(3), RequestClass::Batch),
        ("priority", json!(0), RequestClass::Interactive),
        ("priority", json!(-3), RequestClass::Interactive),
        ("service_tier", json!("flex"), RequestClass::Batch),
        ("service_tier", json!("auto"), RequestClass::Interactive),
    ] {
        let (status, said) = api.post(TEXT, json!({ "prompt": "It was", field: value })).await;
        assert_eq!((status, api.last_asked().generation.class), (200, class), "{field} {said}");
    }
    let (status, said) = api.post(TEXT, json!({ "prompt": "It was", "priority": "soon" })).await;
    assert_eq!((status, &said["error"]["param"]), (400, &json!("priority")), "{said}");
}

#[tokio::test]
async fn members_set_what_can_be_meant_and_in_an_open_swarm_nobody_does() {
    let mut api = Api::up(said(End::Stop)).await;
    let targets = |ttft: Value| json!({ "about": "targets", "ttft_s": ttft });
    assert_eq!(api.post("/api/settings", targets(json!(0.5))).await.0, 409);
    api.view.send_modify(|view| view.private = true);
    let (status, said) = api.post("/api/settings", targets(json!(0.5))).await;
    assert_eq!(status, 202, "{said}");
    let targets_set = Targets { ttft: Some(Seconds(0.5)), ..Targets::default() };
    let key = SettingKey::Targets { model: None, class: RequestClass::Interactive };
    assert_eq!(api.set.recv().await, Some((key, SettingValue::Targets(targets_set))));
    for wrong in [targets(json!(0.0)), targets(json!(-1)), targets(json!(1e9))] {
        assert_eq!(api.post("/api/settings", wrong).await.0, 400);
    }
    let (status, said) = api.post("/api/settings", json!({ "about": "batch", "policy": "prefill-first" })).await;
    assert_eq!(status, 202, "{said}");
    let first = SettingValue::Batch(Some(BatchPolicy::PrefillFirst));
    assert_eq!(api.set.recv().await, Some((SettingKey::Batch { model: None }, first)));
    let (status, said) = api.post("/api/settings", json!({ "about": "route", "policy": "auto" })).await;
    assert_eq!(status, 202, "{said}");
    let auto = SettingValue::Route(Some(RoutePolicy::Auto));
    assert_eq!(api.set.recv().await, Some((SettingKey::Route { model: None }, auto)));
    for wrong in [
        json!({}),
        json!({ "about": "route", "policy": "fast" }),
        json!({ "about": "route", "x": 1 }),
        json!({ "about": "batch", "policy": "live" }),
    ] {
        assert!(matches!(api.post("/api/settings", wrong).await.0, 400 | 422));
    }
}
