//! Breaks a swarm under load, by a schedule drawn from a seed, and holds from outside what must hold: every request ends
//! once, with the tokens of an undisturbed run; all pages come back; all peers come to one plan.

mod timeline;

use crate::{
    Flaw, Network, Sight, Swarm, Testnet, TestnetError,
    client::Seen,
    load::{Answers, Gateways, Load},
    watch::SeenCutOff,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the swarm may serve nobody, and how long it may take to be whole again at the end.
const PATIENCE: Duration = Duration::from_secs(75);
/// Longest time from a look at the swarm to the fault (milliseconds).
const JITTER: u64 = 300;
/// Between looks at a swarm to which nothing is done.
const LOOK: Duration = Duration::from_millis(250);
/// Streams that end before a fault, and before its end.
const BEFORE: usize = 3;
const WITHIN: usize = 8;
/// Of so many faults, most kill.
const DEEDS: u64 = 10;
/// What a slow peer's links carry (Mbit/s), and how much later (milliseconds).
const SLOW: Flaw = Flaw::Slow { mbit: Some(4.0), ms: 40.0 };
/// Part of the tiles that a corrupt one spoils.
const CORRUPT: Flaw = Flaw::Corrupt { part: 0.5 };
/// Where processes are only stopped or cut off, it is for long enough to be taken for dead.
const STOPPED: Duration = Duration::from_secs(5);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// Draws the schedule.
    pub seed: u64,
    /// Streams at once.
    pub streams: usize,
    /// When it is enough.
    pub until: Until,
    /// What is done to peers.
    pub deeds: Deeds,
}

/// When it is enough.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many faults.
    Faults(usize),
    /// After this long.
    Time(Duration),
}

/// What is done to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deeds {
    /// Now this and now that.
    Drawn,
    /// Always the same.
    Only(Deed),
    /// Nothing: whoever is taken for dead is not.
    Calm,
}

/// What is done to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// Killed as by a power cut; later started again.
    Kill,
    /// Its process is stopped with its connections open; later it goes on.
    Stop,
    /// Nothing passes between it and any other; later it does again.
    Cut,
    /// Its links become slow.
    Slow,
    /// KV that it sends has bits flipped.
    Corrupt,
}

/// Something that was done to a peer.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// What.
    pub deed: Deed,
    /// The peer's name.
    pub peer: String,
    /// What it did when it was hit.
    pub role: String,
    /// Since the start (seconds).
    pub at: f64,
    /// When it was back (seconds).
    pub until: f64,
}

/// A stream that ended well, since the start (seconds).
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// When it was asked for.
    pub from: f64,
    /// When it had ended.
    pub to: f64,
    /// Its longest pause.
    pub pause: f64,
    /// When that began.
    pub paused: f64,
    /// What peers call it.
    pub request: String,
    /// Why another group went on with it, each time.
    pub moves: Vec<String>,
    /// Why its prompt was computed where it was, in the end.
    pub reason: String,
    /// How often its client came back elsewhere.
    pub returns: usize,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How long it took (seconds).
    pub seconds: f64,
    /// Names of the peers.
    pub peers: Vec<String>,
    /// What was done.
    pub faults: Vec<Fault>,
    /// Streams that ended well.
    pub streams: Vec<Served>,
    /// What did not hold; empty if all did.
    pub violations: Vec<String>,
}

impl Report {
    /// Median and longest of the pauses of streams that a fault hit (seconds), and how many those are.
    #[must_use]
    pub fn pauses(&self) -> Option<(f64, f64, usize)> {
        let hit = self.streams.iter().filter(|s| !s.moves.is_empty() || s.returns > 0);
        let mut pauses: Vec<f64> = hit.map(|s| s.pause).collect();
        pauses.sort_by(f64::total_cmp);
        Some((*pauses.get(pauses.len() / 2)?, *pauses.last()?, pauses.len()))
    }

    /// The stream that stood still for longest.
    #[must_use]
    pub fn slowest(&self) -> Option<&Served> {
        self.streams.iter().max_by(|a, b| a.pause.total_cmp(&b.pause))
    }

    /// Peers, faults and streams over time, as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        timeline::svg(self)
    }
}

/// Pseudo-random numbers of a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides.max(1)
    }
}

/// Breaks `net`, and mends it. The last of its gateways may be hit, too, if it has two; clients ask gateways only, or the
/// first peer where there is none. `tell` hears of every fault.
///
/// # Errors
/// When a peer does not start again, or the system does not let it be hit.
pub async fn run(
    net: &mut Testnet,
    chaos: Chaos,
    answers: Answers,
    mut tell: impl FnMut(&Fault),
) -> Result<Report, TestnetError> {
    let (started, mut dice) = (Instant::now(), Dice(chaos.seed));
    let fronts = fronts(net);
    let known = Gateways::new(addresses(net, &fronts).into());
    let load = Load::start(chaos.streams, &known, &Arc::new(answers));
    let (mut faults, mut violations) = (Vec::new(), Vec::new());
    if chaos.deeds == Deeds::Calm {
        violations.extend(watch(net, chaos.until).await);
    }
    loop {
        let enough = match chaos.until {
            Until::Faults(faults_wanted) => faults.len() >= faults_wanted,
            Until::Time(span) => started.elapsed() >= span,
        };
        if enough || chaos.deeds == Deeds::Calm || !violations.is_empty() {
            break;
        }
        if !load.await_more(BEFORE, PATIENCE).await {
            violations.push(format!("nobody was served for {PATIENCE:?} before fault {}", faults.len()));
            break;
        }
        let Some((role, victim)) = choose(net, &fronts, &mut dice).await else { continue };
        let drawn = match dice.roll(DEEDS) {
            0 | 1 => Deed::Stop,
            2 => Deed::Cut,
            3 => Deed::Slow,
            4 => Deed::Corrupt,
            _ => Deed::Kill,
        };
        // A gateway that is stopped or cut off is for its clients to notice.
        let deed = if fronts.contains(&victim) {
            Deed::Kill
        } else {
            match chaos.deeds {
                Deeds::Only(deed) => deed,
                _ => drawn,
            }
        };
        sleep(Duration::from_millis(dice.roll(JITTER))).await;
        let at = started.elapsed().as_secs_f64();
        hit(net, victim, deed).await?;
        let long = matches!(chaos.deeds, Deeds::Only(Deed::Stop | Deed::Cut));
        let stopped = if long { STOPPED } else { Duration::ZERO };
        let (served, ()) = tokio::join!(load.await_more(WITHIN, PATIENCE), sleep(stopped));
        mend(net, victim, deed).await?;
        *known.lock().unwrap_or_else(PoisonError::into_inner) = addresses(net, &fronts);
        let peer = net.peers()[victim].name.clone();
        let fault = Fault { deed, peer, role, at, until: started.elapsed().as_secs_f64() };
        tell(&fault);
        if !served {
            violations.push(format!("nobody was served for {PATIENCE:?} after fault {}: {fault:?}", faults.len()));
        }
        faults.push(fault);
    }
    if !load.await_more(chaos.streams, PATIENCE).await {
        violations.push(format!("nobody was served for {PATIENCE:?} after the last fault"));
    }
    let seen = load.end().await;
    violations.extend(seen.iter().filter_map(|s| s.as_ref().err().map(ToString::to_string)));
    violations.extend(whole_again(net).await.err());
    let streams = seen.iter().flatten().map(|s| served(s, started)).collect();
    let peers = net.peers().iter().map(|p| p.name.clone()).collect();
    Ok(Report { seed: chaos.seed, seconds: started.elapsed().as_secs_f64(), peers, faults, streams, violations })
}

/// Looks on while nothing is done, and says who was taken for dead or cut off by whom.
async fn watch(net: &Testnet, until: Until) -> Vec<String> {
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

/// Peers that clients ask.
fn fronts(net: &Testnet) -> Vec<usize> {
    let gateways: Vec<usize> =
        net.peers().iter().enumerate().filter(|(_, p)| p.gateway).map(|(index, _)| index).collect();
    if gateways.is_empty() { vec![0] } else { gateways }
}

fn addresses(net: &Testnet, fronts: &[usize]) -> Vec<String> {
    fronts.iter().map(|index| net.peers()[*index].http.clone()).collect()
}

/// Who is hit, and what it does: a peer with a part in the plan, the plan's maker, or the last of several gateways.
async fn choose(net: &Testnet, fronts: &[usize], dice: &mut Dice) -> Option<(String, usize)> {
    let peers = net.peers();
    let sight = Swarm::of([peers[fronts[0]]].into_iter()).look().await.pop()??;
    let index = |id: &str| peers.iter().position(|p| p.id == id).filter(|index| *index != fronts[0]);
    let mut all = Vec::new();
    for group in sight.plan.iter().flat_map(|p| &p.groups) {
        for (place, stage) in group.stages.iter().enumerate() {
            let role = if place == 0 { format!("{} leader", group.phase) } else { format!("{} member", group.phase) };
            all.extend(index(&stage.peer).map(|i| (role, i)));
        }
    }
    all.extend(sight.coordinator.as_deref().and_then(index).map(|i| ("coordinator".to_owned(), i)));
    all.extend(fronts.last().filter(|_| fronts.len() > 1).map(|i| ("gateway".to_owned(), *i)));
    if all.is_empty() {
        return None;
    }
    let chosen = dice.roll(all.len() as u64) as usize;
    Some(all.swap_remove(chosen))
}

async fn hit(net: &mut Testnet, victim: usize, deed: Deed) -> Result<(), TestnetError> {
    match deed {
        Deed::Kill => net.kill(victim).await,
        Deed::Stop => net.signal(victim, "-STOP"),
        Deed::Cut => network(net).partition(&[&net.peers()[victim].name]).await,
        Deed::Slow => network(net).spoil(&net.peers()[victim].name, SLOW).await,
        Deed::Corrupt => network(net).spoil(&net.peers()[victim].name, CORRUPT).await,
    }
}

async fn mend(net: &mut Testnet, victim: usize, deed: Deed) -> Result<(), TestnetError> {
    match deed {
        Deed::Kill => net.restart(victim).await,
        Deed::Stop => net.signal(victim, "-CONT"),
        Deed::Cut | Deed::Slow | Deed::Corrupt => network(net).heal().await,
    }
}

fn network(net: &Testnet) -> Network<'_> {
    Network::of(net.peers())
}

/// Faults being over, every peer is there, follows one plan, and has all its pages.
async fn whole_again(net: &mut Testnet) -> Result<(), String> {
    let peers = net.peers().len();
    net.await_one_mind(peers).await.map_err(|e| e.to_string())?;
    let swarm = Swarm::of(net.peers().into_iter());
    swarm.await_that(PATIENCE, |sights| sights.first().map_or(Ok(()), all_pages_free)).await
}

fn all_pages_free(sight: &Option<Sight>) -> Result<(), String> {
    let sight = sight.as_ref().ok_or("a peer does not answer")?;
    let holds = sight.peers.iter().find(|p| p.load.running > 0 || p.load.free_pages != p.load.total_pages);
    holds.map_or(Ok(()), |p| Err(format!("{} has {} of {} pages free", p.id, p.load.free_pages, p.load.total_pages)))
}

fn served(seen: &Seen, started: Instant) -> Served {
    let since = |at: std::time::Instant| at.saturating_duration_since(started.into_std()).as_secs_f64();
    Served {
        from: since(seen.asked),
        to: since(seen.ended),
        pause: seen.pause.as_secs_f64(),
        paused: since(seen.paused),
        request: seen.request.clone(),
        moves: seen.moves.clone(),
        reason: seen.reason.clone(),
        returns: seen.returns,
    }
}
