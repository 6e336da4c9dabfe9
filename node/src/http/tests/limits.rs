//! What an owner sees of their limits, and changes.

use super::*;

#[tokio::test]
async fn hours_are_shown_changed_and_refused() {
    let api = Api::up(said(End::Stop)).await;
    let shown = || async { api.get("/api/limits").await.json::<Value>().await.unwrap() };
    assert_eq!((shown().await["hours"].clone(), shown().await["lending"].clone()), (Value::Null, json!("lends")));
    let (status, done) = api.post("/api/limits", json!({ "hours": "22:00-07:30" })).await;
    assert!(status == 202 && done["done"].as_str().unwrap().contains("until this peer starts again"), "{done}");
    assert_eq!(shown().await["hours"], "22:00-07:30");
    let (status, error) = api.post("/api/limits", json!({ "hours": "never" })).await;
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some("hours")), "{error}");
    assert_eq!(shown().await["hours"], "22:00-07:30", "what is refused changes nothing");
    assert_eq!(api.post("/api/limits", json!({ "hours": null })).await.0, 202);
    assert_eq!(shown().await["hours"], Value::Null);
    for wrong in [json!({ "memory": 1 }), json!({})] {
        assert_eq!(
            api.post("/api/limits", wrong).await.0,
            422,
            "memory is a setting of the start, and nothing is no wish"
        );
    }
}
