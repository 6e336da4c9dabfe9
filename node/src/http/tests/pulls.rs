//! Models that an owner wants whole.

use super::*;

#[tokio::test]
async fn what_nobody_has_is_not_pulled() {
    let api = Api::up(said(End::Stop)).await;
    let shown = || async { api.get("/api/models/pulls").await.json::<Value>().await.unwrap() };
    assert_eq!(shown().await, json!({ "pulls": [] }));
    assert_eq!(api.post("/api/models/pulls", json!({ "model": "org/other" })).await.0, 404);
    assert_eq!(api.post("/api/models/pulls", json!({ "path": "/" })).await.0, 422);
    assert_eq!(shown().await, json!({ "pulls": [] }));
}
