//! What members set for their swarm: targets for latency, and how requests are routed and batched.

use super::{ApiError, ApiState, texts::find_card};
use crate::view::SwarmView;
use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tsnode_protocol::{
    BatchPolicy, RequestClass, RoutePolicy, Seconds, SettingKey, SettingValue, SwarmSetting, Targets,
};

/// What may be set in one request; nothing takes back what was set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "about", rename_all = "lowercase")]
pub(super) enum SettingsWish {
    /// Targets for a class of requests.
    Targets {
        /// By its name or id; nothing for all that have none of their own.
        #[serde(default)]
        model: Option<String>,
        #[serde(default)]
        class: RequestClass,
        #[serde(default)]
        ttft_s: Option<f64>,
        #[serde(default)]
        tpot_s: Option<f64>,
        #[serde(default)]
        e2e_s: Option<f64>,
    },
    /// How requests are routed.
    Route {
        #[serde(default)]
        model: Option<String>,
        #[serde(default)]
        policy: Option<RoutePolicy>,
    },
    /// How groups form their steps.
    Batch {
        #[serde(default)]
        model: Option<String>,
        #[serde(default)]
        policy: Option<BatchPolicy>,
    },
}

impl SettingsWish {
    fn read(self, view: &SwarmView) -> Result<(SettingKey, SettingValue), ApiError> {
        let named =
            |name: Option<String>| name.map(|name| find_card(view, Some(&name)).map(|card| card.id)).transpose();
        Ok(match self {
            Self::Targets { model, class, ttft_s, tpot_s, e2e_s } => {
                let [ttft, tpot, e2e] = [ttft_s, tpot_s, e2e_s].map(|time| time.map(Seconds));
                let key = SettingKey::Targets { model: named(model)?, class };
                (key, SettingValue::Targets(Targets { ttft, tpot, e2e }))
            }
            Self::Route { model, policy } => (SettingKey::Route { model: named(model)? }, SettingValue::Route(policy)),
            Self::Batch { model, policy } => (SettingKey::Batch { model: named(model)? }, SettingValue::Batch(policy)),
        })
    }
}

pub(super) async fn show(State(state): State<ApiState>) -> Json<Value> {
    let view = state.view.borrow();
    Json(json!({ "settings": view.settings, "attainment": state.metrics.attainment() }))
}

pub(super) async fn set(
    State(state): State<ApiState>,
    Json(wish): Json<SettingsWish>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let (key, value) = {
        let view = state.view.borrow();
        if !view.private {
            return Err(ApiError::Refused {
                status: StatusCode::CONFLICT,
                message:
                    "Anybody may come into this swarm, so nobody sets anything for all of it: members of a private \
                          swarm do, which begins with: tsnode join --private"
                        .into(),
            });
        }
        wish.read(&view)?
    };
    // As it will be held against what members take.
    let as_said = SwarmSetting { key, value, at: 0, by: state.view.borrow().me };
    as_said.check().map_err(|_| {
        ApiError::param("about", "targets are times above 0 and of a day at most: ttft_s, tpot_s, e2e_s, in seconds")
    })?;
    let busy = |_| ApiError::Refused {
        status: StatusCode::SERVICE_UNAVAILABLE,
        message: "More is being set than this peer takes in at once: ask again in a second".into(),
    };
    state.controls.settings.try_send((key, value)).map_err(busy)?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "done": "set: every peer follows it within seconds" }))))
}
