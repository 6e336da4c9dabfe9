//! `/api/invite`: what others join an open swarm with. That of a private one is a secret, and no secret crosses HTTP.

use super::ApiState;
use crate::data_plane::listening;
use axum::{Json, extract::State};
use serde_json::{Value, json};
use tsnode_protocol::Invite;

pub(super) async fn show(State(state): State<ApiState>) -> Json<Value> {
    let view = state.view.borrow();
    let why = match (view.private, view.addresses.is_empty()) {
        (true, _) => "the swarm is private: its invites are secrets, and made on this peer's host by tsnode invite",
        (false, true) => "this peer has no address yet that others could dial",
        (false, false) => {
            let invite = Invite { swarm: view.swarm, ticket: None, addresses: view.addresses.clone() };
            let mut told = json!({ "invite": invite.to_string() });
            if !listening::is_found(&invite.addresses) {
                told["why"] =
                    json!("only processes of this host can use it: this peer has no address that others could reach");
            }
            return Json(told);
        }
    };
    Json(json!({ "invite": null, "why": why }))
}
