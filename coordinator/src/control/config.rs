//! How a peer takes part in the control plane: its name, its rhythm, its patience.

use super::detector::Silence;
use crate::{
    planner::{PlanOptions, Planner, Scheduler},
    settings::SwarmSettings,
};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Epoch, PeerId, SwarmId, Term};

/// How a peer takes part.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The id that this peer signs by.
    pub me: PeerId,
    /// The swarm whose gossip counts.
    pub swarm: SwarmId,
    /// Time from one heartbeat to the next.
    pub heartbeat: Duration,
    /// How long silence may last.
    pub silence: Silence,
    /// Quiet after a change in membership before a plan is made: peers come in bunches.
    pub settle: Duration,
    /// Whether this peer knows where others are, and is likely to meet them.
    pub company: bool,
    /// How long a coordinator may leave a needed plan unmade before the next rank takes over.
    pub patience: Duration,
    /// Length of an epoch.
    pub epoch_length: Duration,
    /// Part by which a plan must be better to replace one that still fits, and may be worse by another's view.
    pub margin: f64,
    /// Time over which a full plan must repay its loading.
    pub horizon: Duration,
    /// What a person asks of plans.
    pub wish: PlanOptions,
    /// What members had set when this peer ended last.
    pub settings: SwarmSettings,
    /// Whether members may set anything for all: in a swarm that anybody may come into, nobody may.
    pub takes_settings: bool,
    /// What makes them, and values them.
    pub planner: Arc<dyn Planner>,
    /// Peers known at once; more are refused.
    pub max_peers: usize,
    /// The last (epoch, term) this peer endorsed in an earlier life: a restart must not let it endorse twice.
    pub endorsed: Option<(Epoch, Term)>,
}

impl ControlConfig {
    /// The usual settings.
    #[must_use]
    pub fn new(me: PeerId, swarm: SwarmId) -> Self {
        Self {
            me,
            swarm,
            heartbeat: Duration::from_secs(1),
            silence: Silence::default(),
            settle: Duration::from_millis(800),
            company: true,
            patience: Duration::from_secs(2),
            epoch_length: Duration::from_secs(600),
            margin: 0.1,
            // An epoch: volunteers come and go, and what is loaded for longer than that may not be needed by then.
            horizon: Duration::from_secs(600),
            wish: PlanOptions::default(),
            settings: SwarmSettings::default(),
            takes_settings: true,
            planner: Arc::new(Scheduler),
            max_peers: 4096,
            endorsed: None,
        }
    }
}
