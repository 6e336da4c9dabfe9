//! Looks why nobody is found, while nobody is, and has the cause named where this peer's troubles are.

use super::{
    Observations, Severity, conclude,
    probe::{self, targets},
};
use crate::view::{SwarmView, Trouble};
use std::time::Duration;
use tokio::{sync::watch, time::sleep};
use tsnode_protocol::{SwarmId, proof::Membership};

/// Before the first look: most peers are in by then.
const FIRST: Duration = Duration::from_secs(8);
/// Between two looks: whoever mends something sees soon that it is mended.
const EVERY: Duration = Duration::from_secs(20);

/// Looks again and again; a peer that knows no address waits for others to come, and nothing is wrong with that.
pub(crate) async fn watch(swarm: SwarmId, membership: Membership, view: watch::Sender<SwarmView>) {
    let bootstrap = view.borrow().bootstrap.clone();
    if bootstrap.is_empty() {
        return;
    }
    sleep(FIRST).await;
    let mut told = None;
    loop {
        let alone = view.borrow().peers.len() <= 1;
        let found = if alone { why(&bootstrap, swarm, &membership).await } else { None };
        if found != told {
            view.send_modify(|view| {
                view.troubles.retain(|trouble| !matches!(trouble, Trouble::Network { .. }));
                view.troubles.extend(found.clone().map(|said| Trouble::Network { said }));
            });
            told = found;
        }
        sleep(EVERY).await;
    }
}

/// The most fundamental cause, with what to do.
async fn why(bootstrap: &[String], swarm: SwarmId, membership: &Membership) -> Option<String> {
    let probe::ProbeCalls { peers, unusable } = probe::call(targets(bootstrap), swarm, Some(membership)).await;
    let seen = Observations { own: probe::own(&peers), peers, unusable, ..Observations::default() };
    let first = conclude(&seen).into_iter().find(|finding| finding.state == Severity::Fail)?;
    Some(format!("{} ({}): {}", first.said, first.evidence, first.remedy))
}
