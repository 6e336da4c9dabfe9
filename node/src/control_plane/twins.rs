//! Looks out for another process with this peer's identity, and has it named.

use crate::{
    control_plane::swarm::{self, ProcessId},
    store::identity::Identity,
    view::{SwarmView, Trouble},
};
use libp2p::Multiaddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Between two looks: the other may be started later.
const LOOK: Duration = Duration::from_secs(60);
/// For how long a peer that has been looked for has a twin: a look that is missed, as by a busy host, changes nothing.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(150);

/// Looks where this peer was in its last run, again and again.
pub(crate) async fn watch(identity: Identity, me: ProcessId, former: Vec<Multiaddr>, view: watch::Sender<SwarmView>) {
    let mut last = None;
    loop {
        let found = swarm::find_twin(&identity, me, &former).await.map(|at| at.to_string());
        if found != last {
            if let Some(at) = &found {
                tracing::error!(at, "another process runs with this peer's identity");
            }
            view.send_modify(|view| {
                view.troubles.retain(|trouble| !matches!(trouble, Trouble::Twin { at: Some(_) }));
                view.troubles.extend(found.clone().map(|at| Trouble::Twin { at: Some(at) }));
            });
            last = found;
        }
        sleep(LOOK).await;
    }
}
