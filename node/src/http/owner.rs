//! What the owner of a peer may ask of it. The body must be JSON, so that no web page can ask in their name unasked.

use super::ApiState;
use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};

type OwnerReply = (StatusCode, Json<Value>);

pub(super) async fn pause(State(state): State<ApiState>, Json(_): Json<Value>) -> OwnerReply {
    state.controls.owner.pause(true);
    done("paused: what runs here goes on elsewhere")
}

pub(super) async fn resume(State(state): State<ApiState>, Json(_): Json<Value>) -> OwnerReply {
    state.controls.owner.pause(false);
    done("lends again")
}

pub(super) async fn leave(State(state): State<ApiState>, Json(_): Json<Value>) -> OwnerReply {
    state.controls.owner.leave();
    done("leaves: what runs here goes on elsewhere")
}

fn done(what: &str) -> OwnerReply {
    (StatusCode::ACCEPTED, Json(json!({ "done": what })))
}
