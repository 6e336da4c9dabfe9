//! Plan flow 2: what a peer says of itself, as its node tells it.

use crate::settings::SwarmSettings;
use std::sync::Arc;
use tsnode_protocol::{Advert, GroupLoad, Load, PeerId, SeenSpeed};

/// This peer, by its own account.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub advert: Option<Arc<Advert>>,
    /// What it knows that members have set.
    pub settings: SwarmSettings,
    pub load: Load,
    /// Groups that it leads, which take requests.
    pub ready: Vec<GroupLoad>,
    /// Whom it has cut off.
    pub cut_off: Vec<PeerId>,
    /// What its gateway saw of groups whose claims are in doubt.
    pub seen_speeds: Vec<SeenSpeed>,
    /// A client has asked for something.
    pub asked: bool,
    pub leaving: bool,
}

impl Own {
    /// Whether it lends devices.
    pub fn lends(&self) -> bool {
        self.advert.as_ref().is_some_and(|a| !a.devices.is_empty())
    }
}
