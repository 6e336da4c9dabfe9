//! Breaks the control plane as a testnet wishes ([`crate::faults`]).

mod noise;

pub use noise::make as make_noise;

use crate::{
    control_plane::swarm::{Ban, CommandError, SwarmHandle},
    faults::Faults,
};
use std::collections::BTreeSet;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::PeerId;

/// Keeps the control plane's connections cut as wished, until `stop`.
pub async fn cut(mut faults: watch::Receiver<Faults>, swarm: SwarmHandle, stop: CancellationToken) {
    let mut cut = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = faults.changed() => if changed.is_err() { return },
        }
        let wanted: BTreeSet<PeerId> = faults.borrow_and_update().cut.keys().copied().collect();
        let ordered = wanted.difference(&cut).try_for_each(|peer| swarm.ban(*peer, Ban::Fault));
        let ordered =
            ordered.and_then(|()| cut.difference(&wanted).try_for_each(|peer| swarm.allow(*peer, Ban::Fault)));
        match ordered {
            Ok(()) => cut = wanted,
            // Orders are few: a task that far behind has other troubles, and the next wish sets it right.
            Err(CommandError::Busy) => tracing::info!("a fault was not done: the network task is busy"),
            Err(CommandError::Stopped) => return,
        }
    }
}
