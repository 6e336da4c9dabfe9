//! What an owner sees of their limits, and changes.

use super::*;
use crate::limits::LIMITS_FILE;

#[tokio::test]
async fn hours_are_shown_changed_and_refused() {
    let api = Api::up(said(End::Stop)).await;
    let shown = || async { api.get("/api/limits").await.json::<Value>().await.unwrap() };
    assert_eq!((shown().await["hours"].clone(), shown().await["lending"].clone()), (Value::Null, json!("lends")));
    let (status, done) = api.post("/api/limits", json!({ "hours": "22:00-07:30" })).await;
    assert!(status == 202 && done["done"].as_str().unwrap().contains("22:00-07:30"), "{done}");
    assert_eq!(
        (shown().await["hours"].clone(), shown().await["kept"].clone()),
        (json!("22:00-07:30"), json!({ "hours": "22:00-07:30" }))
    );
    let (status, error) = api.post("/api/limits", json!({ "hours": "never" })).await;
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some("hours")), "{error}");
    assert_eq!(shown().await["hours"], "22:00-07:30", "what is refused changes nothing");
    assert_eq!(api.post("/api/limits", json!({ "hours": null })).await.0, 202);
    assert_eq!(shown().await["hours"], Value::Null);
    assert_eq!(api.post("/api/limits", json!({ "memory": 1 })).await.0, 422, "nothing is called so");
    assert_eq!(api.post("/api/limits", json!({})).await.0, 400, "nothing is no wish");
}

#[tokio::test]
async fn a_limit_is_kept_for_the_next_start_and_what_cannot_hold_is_refused() {
    let api = Api::up(said(End::Stop)).await;
    let (status, done) = api.post("/api/limits", json!({ "upload_mbit": 2.5 })).await;
    assert!(status == 202 && done["done"].as_str().unwrap().contains("2.5 Mbit/s"), "{done}");
    let shown: Value = api.get("/api/limits").await.json().await.unwrap();
    assert_eq!((&shown["limits"]["upload_mbit"], &shown["relending"]["state"]), (&json!(2.5), &json!("none")));
    let kept = std::fs::read_to_string(api.folder.path().join(LIMITS_FILE)).unwrap();
    assert!(kept.contains("upload_mbit = \"2.5\""), "{kept}");
    let (status, error) = api.post("/api/limits", json!({ "upload_mbit": -1 })).await;
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some("upload_mbit")), "{error}");
    // Nobody lends anything here.
    let (status, error) = api.post("/api/limits", json!({ "memory_bytes": 1_u64 << 31 })).await;
    assert!(status == 409 && error["error"]["message"].as_str().unwrap().contains("lends no model"), "{error}");
}
