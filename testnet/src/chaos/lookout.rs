//! What is seen from outside while a swarm is broken.

use super::{At, Followed, Until};
use crate::{PeerInfo, Sight, Swarm, Testnet, watch::SeenCutOff};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Between looks.
const LOOK: Duration = Duration::from_millis(250);
/// Between looks after a death.
const CLOSE_LOOK: Duration = Duration::from_millis(50);
/// A dead peer must be gone from every view by then, and from the plan.
pub(super) const GONE: Duration = Duration::from_secs(20);

/// Looks on while nothing is done, and says who was taken for dead or cut off by whom.
pub(super) async fn watch(net: &Testnet, until: Until) -> Vec<String> {
    let Until::Time(span) = until else { return Vec::new() };
    let (swarm, end, peers) = (Swarm::of(net.peers().into_iter()), Instant::now() + span, net.peers());
    let mut dead = BTreeSet::new();
    while Instant::now() < end {
        for (peer, sight) in peers.iter().zip(swarm.look().await) {
            let Some(sight) = sight else { continue };
            let missing = peers.iter().filter(|p| !sight.peers.iter().any(|s| s.id == p.id));
            dead.extend(missing.map(|p| format!("{} took {} for dead, and it was not", peer.name, p.name)));
            let cut = |c: &SeenCutOff| format!("{} has cut off {}, which did nothing: {}", peer.name, c.id, c.reason);
            dead.extend(sight.cut_off.iter().map(cut));
        }
        sleep(LOOK).await;
    }
    dead.into_iter().collect()
}

/// How long after a death nobody saw the dead peer any more, and all followed one plan without it (seconds).
#[derive(Clone, Copy, Default)]
pub(super) struct Aftermath {
    pub gone: Option<f64>,
    pub replanned: Option<f64>,
}

/// Looks until both have come, or [`GONE`] is over.
pub(super) async fn aftermath(living: Vec<PeerInfo>, dead: &str) -> Aftermath {
    let (swarm, began, mut seen) = (Swarm::of(living.iter()), Instant::now(), Aftermath::default());
    while began.elapsed() < GONE && (seen.gone.is_none() || seen.replanned.is_none()) {
        let sights = swarm.look().await;
        let now = Some(began.elapsed().as_secs_f64());
        let all = |holds: &dyn Fn(&Sight) -> bool| sights.iter().all(|s| s.as_ref().is_some_and(holds));
        if all(&|s| s.peers.iter().all(|p| p.id != dead)) {
            seen.gone = seen.gone.or(now);
        }
        let first = sights.first().and_then(|s| s.as_ref()?.plan_id.clone());
        if first.is_some() && all(&|s| s.plan_id == first && !has_part(s, dead)) {
            seen.replanned = seen.replanned.or(now);
        }
        sleep(CLOSE_LOOK).await;
    }
    seen
}

fn has_part(sight: &Sight, peer: &str) -> bool {
    sight.plan.iter().flat_map(|p| &p.groups).flat_map(|g| &g.stages).any(|s| s.peer == peer)
}

/// Writes down which plans are followed, and who is cut off.
pub(super) struct Lookout {
    over: Arc<AtomicBool>,
    task: JoinHandle<(Vec<At<Followed>>, BTreeSet<String>)>,
}

impl Lookout {
    /// Looks through the eyes of `front`, which nothing is done to. Names of peers are those of `peers`.
    pub fn start(front: &PeerInfo, peers: &[&PeerInfo], started: Instant) -> Self {
        let swarm = Swarm::of([front].into_iter());
        let names: BTreeMap<String, String> = peers.iter().map(|p| (p.id.clone(), p.name.clone())).collect();
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let task = tokio::spawn(async move {
            let (mut plans, mut cut_off): (Vec<At<Followed>>, _) = (Vec::new(), BTreeSet::new());
            let name = |id: &String| names.get(id).unwrap_or(id).clone();
            while !ends.load(Relaxed) {
                if let Some(sight) = swarm.look().await.pop().flatten() {
                    cut_off.extend(sight.cut_off.iter().map(|c| format!("{} was cut off: {}", name(&c.id), c.reason)));
                    let what = Followed { plan: sight.plan_id, coordinator: sight.coordinator.as_ref().map(name) };
                    if plans.last().is_none_or(|last| last.what != what) {
                        plans.push(At { at: started.elapsed().as_secs_f64(), what });
                    }
                }
                sleep(LOOK).await;
            }
            (plans, cut_off)
        });
        Self { over, task }
    }

    /// What it saw.
    pub async fn end(mut self) -> (Vec<At<Followed>>, BTreeSet<String>) {
        self.over.store(true, Relaxed);
        (&mut self.task).await.unwrap_or_default()
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}
