//! What is seen from outside while a swarm is broken.

use super::{FollowedPlan, Stamped, Until};
use crate::{PeerInfo, Sight, Swarm, Testnet, watch::SeenCutOff};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Between looks.
const LOOK: Duration = Duration::from_millis(250);
/// Between looks after a death.
const CLOSE_LOOK: Duration = Duration::from_millis(50);
/// A dead peer must be gone from every view by then, and from the plan.
pub(super) const GONE: Duration = Duration::from_secs(20);

/// Looks on while nothing is done, and says who was taken for dead. Cut-offs are the [`Lookout`]'s.
pub(super) async fn watch(net: &Testnet, until: Until) -> Vec<String> {
    let Until::Time(span) = until else { return Vec::new() };
    let (swarm, end, peers) = (Swarm::of(net.peers().into_iter()), Instant::now() + span, net.peers());
    let mut dead = BTreeSet::new();
    while Instant::now() < end {
        for (peer, sight) in peers.iter().zip(swarm.look().await) {
            let Some(sight) = sight else { continue };
            let missing = peers.iter().filter(|p| !sight.peers.iter().any(|s| s.id == p.id));
            dead.extend(missing.map(|p| format!("{} took {} for dead, and it was not", peer.name, p.name)));
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

/// Looks until both have come for all the dead, or [`GONE`] is over.
pub(super) async fn aftermath(living: Vec<PeerInfo>, dead: &[String]) -> Aftermath {
    let (swarm, began, mut seen) = (Swarm::of(living.iter()), Instant::now(), Aftermath::default());
    while began.elapsed() < GONE && (seen.gone.is_none() || seen.replanned.is_none()) {
        let sights = swarm.look().await;
        let now = Some(began.elapsed().as_secs_f64());
        let all = |holds: &dyn Fn(&Sight) -> bool| sights.iter().all(|s| s.as_ref().is_some_and(holds));
        if all(&|s| s.peers.iter().all(|p| !dead.contains(&p.id))) {
            seen.gone = seen.gone.or(now);
        }
        let first = sights.first().and_then(|s| s.as_ref()?.plan_id.clone());
        if first.is_some() && all(&|s| s.plan_id == first && !dead.iter().any(|peer| has_part(s, peer))) {
            seen.replanned = seen.replanned.or(now);
        }
        sleep(CLOSE_LOOK).await;
    }
    seen
}

fn has_part(sight: &Sight, peer: &str) -> bool {
    sight.plan.iter().flat_map(|p| &p.groups).flat_map(|g| &g.stages).any(|s| s.peer == peer)
}

/// Where peers are: one that starts again is elsewhere.
type PeerPlaces = Arc<Mutex<Vec<PeerInfo>>>;

/// Writes down which plans are followed, and who is cut off by whom.
pub(super) struct Lookout {
    over: Arc<AtomicBool>,
    places: PeerPlaces,
    plans: JoinHandle<Vec<Stamped<FollowedPlan>>>,
    cut_off: JoinHandle<CutOffs>,
    /// What those said who were then killed: they will not say it again.
    last_words: CutOffs,
}

impl Lookout {
    /// Looks for plans through the eyes of peer `front`, which nothing is done to, and for cut-offs through everybody's.
    pub fn start(net: &Testnet, front: usize, started: Instant) -> Self {
        let (over, peers) = (Arc::new(AtomicBool::new(false)), net.peers());
        let places: PeerPlaces = Arc::new(Mutex::new(peers.iter().copied().cloned().collect()));
        let plans = follow(peers[front].clone(), names(&places), started, over.clone());
        let cut_off = look_around(places.clone(), over.clone());
        let last_words = CutOffs::new();
        Self { plans: tokio::spawn(plans), cut_off: tokio::spawn(cut_off), over, places, last_words }
    }

    /// Asks peers that are about to be hit whom they have cut off.
    pub async fn hear_out(&mut self, peers: &[PeerInfo]) {
        let names = names(&self.places);
        for (peer, sight) in peers.iter().zip(Swarm::of(peers.iter()).look().await) {
            self.last_words.extend(sight.iter().flat_map(|sight| cut_off_by(&peer.name, sight, &names)));
        }
    }

    /// Peers may be elsewhere now.
    pub fn find(&self, net: &Testnet) {
        let peers = net.peers().into_iter().cloned().collect();
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// What it saw, and what each peer says at the end.
    pub async fn end(mut self) -> (Vec<Stamped<FollowedPlan>>, CutOffs) {
        self.over.store(true, Relaxed);
        let plans = (&mut self.plans).await.unwrap_or_default();
        let mut cut_off = (&mut self.cut_off).await.unwrap_or_default();
        cut_off.append(&mut self.last_words);
        let (peers, names) = (all(&self.places), names(&self.places));
        let sights = Swarm::of(peers.iter()).look().await;
        for (peer, sight) in peers.iter().zip(&sights) {
            cut_off.extend(sight.iter().flat_map(|sight| cut_off_by(&peer.name, sight, &names)));
        }
        (plans, cut_off)
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// One plan after the other, and who plans.
async fn follow(
    front: PeerInfo,
    names: BTreeMap<String, String>,
    started: Instant,
    over: Arc<AtomicBool>,
) -> Vec<Stamped<FollowedPlan>> {
    let (swarm, mut plans) = (Swarm::of([].into_iter()), Vec::<Stamped<FollowedPlan>>::new());
    while !over.load(Relaxed) {
        if let Some(sight) = swarm.look_at(&front).await {
            let coordinator = sight.coordinator.map(|id| names.get(&id).cloned().unwrap_or(id));
            let what = FollowedPlan { plan: sight.plan_id, coordinator };
            if plans.last().is_none_or(|last| last.what != what) {
                plans.push(Stamped { at: started.elapsed().as_secs_f64(), what });
            }
        }
        sleep(LOOK).await;
    }
    plans
}

/// Looks at one peer at a time, so that many cost no more than one: a cut-off lasts for minutes, and is seen at the next turn.
async fn look_around(places: PeerPlaces, over: Arc<AtomicBool>) -> CutOffs {
    let (swarm, names) = (Swarm::of([].into_iter()), names(&places));
    let mut cut_off = CutOffs::new();
    while !over.load(Relaxed) {
        for nth in 0..names.len() {
            let Some(peer) = all(&places).into_iter().nth(nth).filter(|_| !over.load(Relaxed)) else { break };
            if let Some(sight) = swarm.look_at(&peer).await {
                cut_off.extend(cut_off_by(&peer.name, &sight, &names));
            }
            sleep(LOOK).await;
        }
    }
    cut_off
}

/// Who has cut off whom, and why.
pub(super) type CutOffs = BTreeMap<(String, String), String>;

/// Whom a peer has cut off: it has no reason to, as nobody lies.
fn cut_off_by(peer: &str, sight: &Sight, names: &BTreeMap<String, String>) -> CutOffs {
    let name = |c: &SeenCutOff| names.get(&c.id).unwrap_or(&c.id).clone();
    sight.cut_off.iter().map(|c| ((peer.to_owned(), name(c)), c.reason.clone())).collect()
}

fn all(places: &PeerPlaces) -> Vec<PeerInfo> {
    places.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Peers' names, by their ids.
fn names(places: &PeerPlaces) -> BTreeMap<String, String> {
    all(places).into_iter().map(|p| (p.id, p.name)).collect()
}
