//! What a testnet has a peer say to everybody that no honest peer says.

use crate::{
    control_plane::swarm::{PublishError, SwarmHandle},
    faults::{Faults, Noise},
};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::gateway::View;
use tsnode_protocol::{Gossip, Heartbeat, Plan, Term};

/// Between two lies.
const EVERY: Duration = Duration::from_millis(200);
/// Messages of a flood at a time.
const FLOOD: usize = 100;
/// Messages held back at first, until all have long heard what comes later, and how many of them are then said at a time.
const OLD: usize = 400;
const HELD_BACK: Duration = Duration::from_secs(50);
/// Meanwhile one in so many ticks says what comes later: who is no leader has its heartbeats told by another.
const LATER: u64 = 5;
const AGAIN: usize = 40;

/// Says what is wished, until `stop`. What is not said because a queue is full is said later, or was one of many.
pub async fn make(
    faults: watch::Receiver<Faults>,
    swarm: SwarmHandle,
    routes: watch::Receiver<View>,
    stop: CancellationToken,
) {
    let mut every = tokio::time::interval(EVERY);
    let mut old = Vec::new();
    let (mut n, mut since) = (0u64, Instant::now());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = every.tick() => n += 1,
        }
        let noise = faults.borrow().noise;
        let said = match noise {
            None => Ok(()),
            Some(Noise::Garbage) => swarm.say(n.to_le_bytes().to_vec()).map_err(PublishError::from),
            Some(Noise::Flood) => (0..FLOOD).try_for_each(|_| swarm.publish(&heartbeat()).map(drop)),
            Some(Noise::SecondPlan) => {
                let plan = routes.borrow().plan.clone();
                plan.map_or(Ok(()), |plan| swarm.publish(&other(&plan, n)).map(drop))
            }
            Some(Noise::Replay) if old.is_empty() => {
                since = Instant::now();
                old = (0..OLD).filter_map(|_| swarm.seal_bytes(&heartbeat()).ok()).collect();
                Ok(())
            }
            Some(Noise::Replay) if since.elapsed() < HELD_BACK => {
                if n.is_multiple_of(LATER) {
                    swarm.publish(&heartbeat()).map(drop)
                } else {
                    Ok(())
                }
            }
            Some(Noise::Replay) => {
                let from = old.len().saturating_sub(AGAIN);
                old.drain(from..).try_for_each(|bytes| swarm.say(bytes).map_err(PublishError::from))
            }
        };
        if let Err(error) = said {
            tracing::debug!(%error, ?noise, "not said");
        }
    }
}

fn heartbeat() -> Gossip {
    Gossip::Heartbeat(Heartbeat::default())
}

/// A plan for the next term, each time another.
fn other(plan: &Plan, n: u64) -> Gossip {
    let term = Term(plan.term.0 + 1);
    Gossip::Plan(Plan { term, reason: format!("plan {n}"), ..plan.clone() }.into())
}
