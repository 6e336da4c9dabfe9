//! Breaks a swarm under load, by a schedule that a seed fixes, and holds from outside what must hold: every request ends
//! once, with the tokens of an undisturbed run; all pages come back; all peers come to one plan; the dead are forgotten in
//! time, and nobody is cut off, because nobody lies.

mod lookout;
mod report;
mod schedule;
mod summary;
mod timeline;
mod verdict;
mod victims;

pub use report::{ChaosReport, Deed, FollowedPlan, InjectedFault, ServedStream, Stamped, Stood, Wronged};
pub use schedule::{Lasts, Schedule, ScheduledFault};
pub use summary::{ChaosSummary, Resumptions, Spread};
pub use verdict::ChaosVerdict;

use crate::{
    Answers, Flaw, SeenPeer, Sight, Swarm, Testnet, TestnetError,
    answers::AnswerKind,
    client::{Paused, SeenStream},
    load_generator::{ClientLoad, Gateways, LoadRequest},
    watch::SeenLoad,
};
use lookout::{Aftermath, CutOffs, GONE, Lookout, aftermath, watch};
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use victims::{addresses, fronts, hit, mend, places, roles};

/// How long the swarm may serve nobody, and how long it may take to be whole again at the end.
const PATIENCE: Duration = Duration::from_secs(75);
/// What a slow peer's links carry (Mbit/s), and how much later (milliseconds).
const SLOW: Flaw = Flaw::Slow { mbit: Some(4.0), ms: 40.0 };
/// Part of the tiles that a corrupt one spoils.
const CORRUPT: Flaw = Flaw::Corrupt { part: 0.5 };
/// By then after a partition all see each other and follow one plan, as in simulation (docs/design/control-plane.md).
const HEALED: Duration = Duration::from_secs(40);

/// What to do.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// Draws the schedule.
    pub seed: u64,
    /// Streams at once.
    pub streams: usize,
    /// When it is enough.
    pub until: Until,
    /// What is done to peers.
    pub deeds: Deeds,
    /// Part of the kills and stops that hit two peers at once, from 0 to 1.
    pub pairs: f64,
    /// What is allowed.
    pub limits: PauseLimits,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deeds {
    /// Now this and now that.
    Drawn,
    /// Now this and now that of these.
    Only(Vec<Deed>),
    /// Nothing: whoever is taken for dead is not.
    Calm,
}

/// How long streams may stand still (seconds), those aside that wait for a gateway which was stopped or cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PauseLimits {
    /// What 99 of 100 do not exceed, of those that a fault hit.
    pub p99: Option<f64>,
    /// What none does.
    pub worst: Option<f64>,
}

/// Breaks `net`, and mends it, by the schedule of these options. Clients ask gateways only, or the first peer where there is none.
/// `tell` hears of every fault.
///
/// # Errors
/// When a peer does not start again, the system does not let it be hit, or an undisturbed swarm does not answer.
pub async fn run(
    net: &mut Testnet,
    chaos: Chaos,
    mut answers: Answers,
    tell: impl FnMut(&InjectedFault),
) -> Result<ChaosReport, TestnetError> {
    let (started, fronts) = (Instant::now(), fronts(net));
    let known = Gateways::new(addresses(net, &fronts).into());
    let load = ClientLoad::start(chaos.seed, chaos.streams, &known);
    let lookout = Lookout::start(net, fronts[0], started);
    let mut scenario = ChaosRun { net, fronts, known, load, lookout, started, faults: vec![], violations: vec![] };
    match chaos.deeds {
        Deeds::Calm => scenario.violations.extend(watch(scenario.net, chaos.until).await),
        _ => scenario.break_and_mend(&chaos, tell).await?,
    }
    if !scenario.load.await_more(chaos.streams, PATIENCE).await {
        scenario.violations.push(format!("nobody was served for {PATIENCE:?} after the last fault"));
    }
    let ChaosRun { net, fronts, load, lookout, faults, mut violations, .. } = scenario;
    let asked = load.end().await;
    violations.extend(whole_again(net).await.err());
    let (plans, cut_off) = lookout.end().await;
    let seconds = started.elapsed().as_secs_f64();
    answers.ask(&kinds(&asked)).await?;
    let peers: Vec<String> = net.peers().iter().map(|p| p.name.clone()).collect();
    let fronts = fronts.iter().map(|index| peers[*index].clone()).collect();
    let (streams, wronged) = judged(asked, &answers, &Clients { fronts, started });
    let report = ChaosReport {
        seed: chaos.seed,
        seconds,
        peers,
        faults,
        plans,
        streams,
        wronged,
        cut_off: told(cut_off),
        violations,
    };
    Ok(report.within(chaos.limits))
}

/// A swarm that is being broken.
struct ChaosRun<'n> {
    net: &'n mut Testnet,
    fronts: Vec<usize>,
    known: Gateways,
    load: ClientLoad,
    lookout: Lookout,
    started: Instant,
    faults: Vec<InjectedFault>,
    violations: Vec<String>,
}

impl ChaosRun<'_> {
    /// One step after the other, until it is enough or something did not hold.
    async fn break_and_mend(
        &mut self,
        chaos: &Chaos,
        mut tell: impl FnMut(&InjectedFault),
    ) -> Result<(), TestnetError> {
        let mut schedule = Schedule::new(chaos, &self.net.config().peers);
        while !self.is_enough(chaos.until) && self.violations.is_empty() {
            let Some(step) = schedule.next() else {
                self.violations.push("there is nobody to do that to: more peers, or another thing to do".into());
                break;
            };
            if !self.load.await_more(step.after_answers, PATIENCE).await {
                self.violations.push(format!("nobody was served for {PATIENCE:?} before fault {}", step.nth));
                break;
            }
            sleep(Duration::from_millis(step.then_ms)).await;
            let fault = self.one(&step).await?;
            tell(&fault);
            self.faults.push(fault);
        }
        Ok(())
    }

    fn is_enough(&self, until: Until) -> bool {
        match until {
            Until::Faults(wanted) => self.faults.len() >= wanted,
            Until::Time(span) => self.started.elapsed() >= span,
        }
    }

    /// Does it, waits until enough streams have ended under it, and undoes it.
    async fn one(&mut self, step: &ScheduledFault) -> Result<InjectedFault, TestnetError> {
        let ScheduledFault { nth, deed, ref peers, lasts, .. } = *step;
        let side = places(self.net, peers);
        let roles = self.roles(&side).await;
        let at = self.started.elapsed().as_secs_f64();
        hit(self.net, &side, deed).await?;
        let (served, Aftermath { gone, replanned }) = self.lasts(&side, lasts).await;
        mend(self.net, &side, deed).await?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = addresses(self.net, &self.fronts);
        self.lookout.find(self.net);
        let until = self.started.elapsed().as_secs_f64();
        let healed = if deed == Deed::Part { self.heals().await } else { None };
        let mut fault = InjectedFault::new(step, roles, at, until);
        (fault.gone, fault.healed) = (gone, healed);
        fault.replanned = replanned.filter(|_| fault.had_a_part());
        if !served {
            self.violations.push(format!("nobody was served for {PATIENCE:?} after fault {nth}: {fault:?}"));
        }
        if lasts.until_missed && gone.is_none() {
            self.violations.push(format!("{} was seen {GONE:?} after its death", peers.join(" or ")));
        }
        Ok(fault)
    }

    /// What those do who are about to be hit; they are also asked whom they have cut off.
    async fn roles(&mut self, side: &[usize]) -> Vec<Vec<String>> {
        let peers = self.net.peers();
        let victims: Vec<_> = side.iter().map(|index| peers[*index].clone()).collect();
        self.lookout.hear_out(&victims).await;
        let sight = Swarm::of([peers[self.fronts[0]]].into_iter()).look().await.pop().flatten();
        side.iter().map(|index| roles(self.net, sight.as_ref(), *index)).collect()
    }

    /// Waits for as long as a fault lasts; whether streams ended meanwhile, and when those who were killed were missed.
    async fn lasts(&self, side: &[usize], lasts: Lasts) -> (bool, Aftermath) {
        let peers = self.net.peers();
        let dead: Vec<String> = side.iter().map(|index| peers[*index].id.clone()).collect();
        let living = peers.into_iter().filter(|p| !dead.contains(&p.id)).cloned().collect();
        let missed = async { if lasts.until_missed { aftermath(living, &dead).await } else { Aftermath::default() } };
        let enough = self.load.await_more(lasts.answers, PATIENCE);
        let (served, missed, ()) = tokio::join!(enough, missed, sleep(Duration::from_secs(lasts.at_least_s)));
        (served, missed)
    }

    /// Waits until all see each other and follow one plan again; how long that took (seconds).
    async fn heals(&mut self) -> Option<f64> {
        let (swarm, began) = (Swarm::of(self.net.peers().into_iter()), Instant::now());
        match swarm.await_one_mind(self.net.peers().len(), HEALED).await {
            Ok(()) => Some(began.elapsed().as_secs_f64()),
            Err(why) => {
                self.violations.push(format!("{HEALED:?} after the sides could meet again: {why}"));
                None
            }
        }
    }
}

/// What answers are to be held against.
fn kinds(asked: &[LoadRequest]) -> BTreeSet<AnswerKind> {
    let seen = asked.iter().filter_map(|a| Some((a.request, a.outcome.as_ref().ok()?)));
    let named = seen.filter(|(_, seen)| !seen.codec.is_empty());
    named.map(|(request, seen)| AnswerKind { request, codec: seen.codec.clone() }).collect()
}

/// Which streams ended well, and which did not.
fn judged(asked: Vec<LoadRequest>, answers: &Answers, clients: &Clients) -> (Vec<ServedStream>, Vec<Wronged>) {
    let (mut streams, mut wronged) = (Vec::new(), Vec::new());
    for LoadRequest { key, request, front, outcome } in asked {
        match outcome.and_then(|seen| answers.check(key, request, seen)) {
            Ok(seen) => streams.push(clients.served(front, &seen)),
            Err(wrong) => wronged.push(Wronged { how: wrong.difference(), what: wrong.to_string() }),
        }
    }
    (streams, wronged)
}

fn told(cut_off: CutOffs) -> Vec<String> {
    let told = |((by, peer), why)| format!("{by} has cut off {peer}, which did nothing: {why}");
    cut_off.into_iter().map(told).collect()
}

/// What is to be known of clients to tell what they saw.
struct Clients {
    /// Peers that they ask.
    fronts: Vec<String>,
    started: Instant,
}

impl Clients {
    /// A stream whose client asked that front first.
    fn served(&self, front: usize, seen: &SeenStream) -> ServedStream {
        let stood =
            |p: &Paused| Stood { from: self.since(p.began), pause: p.lasted.as_secs_f64(), at: self.asked(front, p) };
        ServedStream {
            from: self.since(seen.asked),
            to: self.since(seen.ended),
            tokens: seen.tokens.len(),
            pause: seen.pause.as_secs_f64(),
            paused: self.since(seen.paused),
            pauses: seen.pauses.iter().map(stood).collect(),
            request: seen.request.clone(),
            moves: seen.moves.clone(),
            reason: seen.reason.clone(),
            returns: seen.returns,
        }
    }

    fn since(&self, at: std::time::Instant) -> f64 {
        at.saturating_duration_since(self.started.into_std()).as_secs_f64()
    }

    /// Whom a client asked while it waited.
    fn asked(&self, front: usize, paused: &Paused) -> Vec<String> {
        let times = (paused.last_asked - paused.first_asked + 1).min(self.fronts.len());
        let nth = |n: usize| self.fronts[(front + paused.first_asked + n) % self.fronts.len()].clone();
        (0..times).map(nth).collect()
    }
}

/// Faults being over, every peer is there, follows one plan, and has all its pages, as everybody sees it.
async fn whole_again(net: &mut Testnet) -> Result<(), String> {
    let peers = net.peers().len();
    net.await_one_mind(peers).await.map_err(|e| e.to_string())?;
    let swarm = Swarm::of(net.peers().into_iter());
    swarm.await_that(PATIENCE, |sights| sights.iter().try_for_each(all_pages_free)).await
}

/// Whether a peer knows of no work any more and of no page that is taken, at itself or anybody else.
fn all_pages_free(sight: &Option<Sight>) -> Result<(), String> {
    let Sight { me, peers, .. } = sight.as_ref().ok_or("a peer does not answer")?;
    let holds = peers.iter().find(|p| p.load.running > 0 || p.load.free_pages != p.load.total_pages);
    let told = |p: &SeenPeer| {
        let SeenLoad { running, free_pages, total_pages } = p.load;
        Err(format!("{me} sees {} with {running} sequences, and {free_pages} of {total_pages} pages free", p.id))
    };
    holds.map_or(Ok(()), told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pages_are_free_only_where_every_view_has_them_free() {
        let sight = |running: u32, free: u32| -> Option<Sight> {
            let advert = json!({ "addresses": [], "data_addresses": [], "reachable": true, "links": [] });
            let peer = |id: &str, running: u32, free: u32| {
                let load = json!({ "running": running, "free_pages": free, "total_pages": 8 });
                json!({ "id": id, "advert": advert, "load": load })
            };
            let peers = [peer("a", 0, 8), peer("b", running, free)];
            serde_json::from_value(json!({ "me": "a", "ready_groups": [], "peers": peers, "cut_off": [] })).ok()
        };
        assert_eq!(all_pages_free(&sight(0, 8)), Ok(()));
        assert!(all_pages_free(&sight(0, 7)).is_err_and(|e| e.contains("a sees b") && e.contains("7 of 8")));
        assert!(all_pages_free(&sight(1, 8)).is_err() && all_pages_free(&None).is_err());
    }
}
