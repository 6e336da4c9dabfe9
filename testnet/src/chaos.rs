//! Breaks a swarm under load, by a schedule drawn from a seed, and holds from outside what must hold: every request ends
//! once, with the tokens of an undisturbed run; all pages come back; all peers come to one plan; the dead are forgotten in
//! time, and nobody is cut off, because nobody lies.

mod lookout;
mod report;
mod summary;
mod timeline;
mod victims;

pub use report::{At, Deed, Fault, Followed, Report, Served};
pub use summary::{Spread, Summary, Ways};

use crate::{
    Flaw, SeenPeer, Sight, Swarm, Testnet, TestnetError,
    client::Seen,
    load::{Answers, Gateways, Load},
    watch::SeenLoad,
};
use lookout::{Aftermath, GONE, Lookout, aftermath, watch};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use victims::{Dice, Victim, addresses, choose, fronts, hit, mend};

/// How long the swarm may serve nobody, and how long it may take to be whole again at the end.
const PATIENCE: Duration = Duration::from_secs(75);
/// Longest time from a look at the swarm to the fault (milliseconds).
const JITTER: u64 = 300;
/// Streams that end before a fault, and before its end.
const BEFORE: usize = 3;
const WITHIN: usize = 8;
/// Of so many faults, most kill.
const DEEDS: u64 = 12;
/// What a slow peer's links carry (Mbit/s), and how much later (milliseconds).
const SLOW: Flaw = Flaw::Slow { mbit: Some(4.0), ms: 40.0 };
/// Part of the tiles that a corrupt one spoils.
const CORRUPT: Flaw = Flaw::Corrupt { part: 0.5 };
/// Where processes are only stopped or cut off, it is for long enough to be taken for dead.
const STOPPED: Duration = Duration::from_secs(5);
/// Where several are, it is for long enough that each side gives the other up and plans by itself.
const PARTED: Duration = Duration::from_secs(12);
/// By then after a partition all see each other and follow one plan, as in rehearsals (docs/control.md).
const HEALED: Duration = Duration::from_secs(40);

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

/// Breaks `net`, and mends it. The last of its gateways may be hit, too, if it has two; clients ask gateways only, or the
/// first peer where there is none. `tell` hears of every fault.
///
/// # Errors
/// When a peer does not start again, or the system does not let it be hit.
pub async fn run(
    net: &mut Testnet,
    chaos: Chaos,
    answers: Answers,
    tell: impl FnMut(&Fault),
) -> Result<Report, TestnetError> {
    let (started, fronts) = (Instant::now(), fronts(net));
    let known = Gateways::new(addresses(net, &fronts).into());
    let load = Load::start(chaos.seed, chaos.streams, &known, &Arc::new(answers));
    let lookout = Lookout::start(net, fronts[0], started);
    let dice = Dice(chaos.seed);
    let mut story =
        Story { net, chaos, fronts, known, load, lookout, dice, started, faults: vec![], violations: vec![] };
    match chaos.deeds {
        Deeds::Calm => story.violations.extend(watch(story.net, chaos.until).await),
        _ => story.break_and_mend(tell).await?,
    }
    if !story.load.await_more(chaos.streams, PATIENCE).await {
        story.violations.push(format!("nobody was served for {PATIENCE:?} after the last fault"));
    }
    let Story { net, load, lookout, faults, mut violations, .. } = story;
    let seen = load.end().await;
    violations.extend(seen.iter().filter_map(|s| s.as_ref().err().map(ToString::to_string)));
    violations.extend(whole_again(net).await.err());
    let (plans, cut_off) = lookout.end().await;
    violations.extend(cut_off);
    let streams = seen.iter().flatten().map(|s| served(s, started)).collect();
    let peers = net.peers().iter().map(|p| p.name.clone()).collect();
    let seconds = started.elapsed().as_secs_f64();
    Ok(Report { seed: chaos.seed, seconds, peers, faults, plans, streams, violations })
}

/// A swarm that is being broken.
struct Story<'n> {
    net: &'n mut Testnet,
    chaos: Chaos,
    fronts: Vec<usize>,
    known: Gateways,
    load: Load,
    lookout: Lookout,
    dice: Dice,
    started: Instant,
    faults: Vec<Fault>,
    violations: Vec<String>,
}

impl Story<'_> {
    /// One fault after the other, until it is enough or something did not hold.
    async fn break_and_mend(&mut self, mut tell: impl FnMut(&Fault)) -> Result<(), TestnetError> {
        while !self.is_enough() && self.violations.is_empty() {
            if !self.load.await_more(BEFORE, PATIENCE).await {
                self.violations.push(format!("nobody was served for {PATIENCE:?} before fault {}", self.faults.len()));
                break;
            }
            let hits = summary::hits(&self.faults);
            let Some(victim) = choose(self.net, &self.fronts, &hits, &mut self.dice).await else { continue };
            let deed = self.deed(victim.index);
            sleep(Duration::from_millis(self.dice.roll(JITTER))).await;
            let fault = self.one(victim, deed).await?;
            tell(&fault);
            self.faults.push(fault);
        }
        Ok(())
    }

    fn is_enough(&self) -> bool {
        match self.chaos.until {
            Until::Faults(wanted) => self.faults.len() >= wanted,
            Until::Time(span) => self.started.elapsed() >= span,
        }
    }

    fn deed(&mut self, victim: usize) -> Deed {
        let drawn = match self.dice.roll(DEEDS) {
            0 | 1 => Deed::Stop,
            2 => Deed::Cut,
            3 => Deed::Part,
            4 => Deed::Slow,
            5 => Deed::Corrupt,
            _ => Deed::Kill,
        };
        match self.chaos.deeds {
            // A gateway that is stopped or cut off is for its clients to notice.
            _ if self.fronts.contains(&victim) => Deed::Kill,
            Deeds::Only(deed) => deed,
            _ => drawn,
        }
    }

    /// Does it, waits until enough streams have ended under it, and undoes it.
    async fn one(&mut self, Victim { index, role }: Victim, deed: Deed) -> Result<Fault, TestnetError> {
        let peer = self.net.peers()[index].clone();
        let side = self.side(index, deed);
        let at = self.started.elapsed().as_secs_f64();
        hit(self.net, &side, deed).await?;
        // Every other dead peer is back before all have missed it, which is another story.
        let stays_dead = deed == Deed::Kill && self.dice.roll(2) == 0;
        let least = match (deed, self.chaos.deeds) {
            (Deed::Part, _) => PARTED,
            (_, Deeds::Only(Deed::Stop | Deed::Cut)) => STOPPED,
            _ => Duration::ZERO,
        };
        let living = self.net.peers().into_iter().filter(|p| p.id != peer.id).cloned().collect();
        let missed = async { if stays_dead { aftermath(living, &peer.id).await } else { Aftermath::default() } };
        let enough = self.load.await_more(WITHIN, PATIENCE);
        let (served, Aftermath { gone, replanned }, ()) = tokio::join!(enough, missed, sleep(least));
        mend(self.net, index, deed).await?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = addresses(self.net, &self.fronts);
        self.lookout.find(self.net);
        let until = self.started.elapsed().as_secs_f64();
        let replanned = replanned.filter(|_| role.contains(' '));
        let healed = if deed == Deed::Part { self.heals().await } else { None };
        let with = side[1..].iter().map(|index| self.net.peers()[*index].name.clone()).collect();
        let fault = Fault { deed, peer: peer.name, with, role, at, until, gone, replanned, healed };
        if !served {
            let n = self.faults.len();
            self.violations.push(format!("nobody was served for {PATIENCE:?} after fault {n}: {fault:?}"));
        }
        if stays_dead && gone.is_none() {
            self.violations.push(format!("{} was seen {GONE:?} after its death", fault.peer));
        }
        Ok(fault)
    }

    /// Who is hit together: one peer, or a part of the swarm that is smaller than half of it. The gateway that this looks through
    /// stays on the larger side; another may be on either, and its clients wait, if need be, until the sides are one again.
    fn side(&mut self, victim: usize, deed: Deed) -> Vec<usize> {
        let (peers, mut side) = (self.net.peers().len(), vec![victim]);
        let most = (peers / 2).saturating_sub(1);
        if deed != Deed::Part || most < 2 {
            return side;
        }
        let wanted = 2 + self.dice.roll(most as u64 - 1) as usize;
        let mut others: Vec<usize> = (0..peers).filter(|n| *n != victim && *n != self.fronts[0]).collect();
        while side.len() < wanted && !others.is_empty() {
            side.push(others.swap_remove(self.dice.roll(others.len() as u64) as usize));
        }
        side
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
