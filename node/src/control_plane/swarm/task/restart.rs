//! What follows where the network panics. libp2p has checks that its own books agree, and peers whose timing is bad or malicious have
//! found some that do not (a relay's answer that comes after the place is given up). Whoever does that costs this peer its connections
//! for a moment, and nothing else: the network is made again, and all are dialled again.

use super::SwarmTask;
use crate::control_plane::swarm::{
    SwarmEvent, address_changes::Moves, network::Maker, not_hearing::NotHearing, task::Reach, to_libp2p_id,
    unproven::Unproven,
};
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};
use tokio_util::sync::CancellationToken;

impl SwarmTask {
    /// The same with another network, whose connections are all to come; none once `stop` is cancelled.
    pub(super) async fn with_another_network(
        mut self,
        panic: Box<dyn Any + Send>,
        maker: &Maker,
        stop: &CancellationToken,
    ) -> Option<Self> {
        tracing::error!(
            reason = said(panic.as_ref()),
            "the network has panicked, and is made again: please report this"
        );
        drop(panic);
        for peer in std::mem::take(&mut self.hearing) {
            self.outbox.push(SwarmEvent::Disconnected(peer));
        }
        if !self.reach.is_reachable() {
            self.outbox.push(SwarmEvent::Reachable(true));
        }
        self.peers.send_replace(Vec::new());
        let old = self.net;
        // Its addresses are free only once it is gone.
        if catch_unwind(AssertUnwindSafe(|| drop(old))).is_err() {
            tracing::debug!("it has panicked at its end, too");
        }
        let mut net = maker.make_again(stop).await?;
        for id in self.bans.iter().filter_map(|(peer, _)| to_libp2p_id(*peer)) {
            net.behaviour_mut().blocked.block_peer(id);
        }
        Some(Self {
            net,
            connected: BTreeSet::new(),
            not_hearing: NotHearing::default(),
            reach: Reach::default(),
            wanted: BTreeMap::new(),
            unproven: Unproven::default(),
            moves: Moves::default(),
            ..self
        })
    }
}

/// What a panic says.
fn said(panic: &dyn Any) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("it does not say why")
}
