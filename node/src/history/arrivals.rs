//! Who came into the swarm when, as this peer saw it since it started.

use super::History;
use crate::view::SwarmView;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tsnode_protocol::PeerId;

/// Peers that are remembered; who has been gone longest goes first.
const KEPT: usize = 256;
/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// A peer's last stay. Times are seconds since 1970, by this host's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerStay {
    /// Who.
    pub id: PeerId,
    /// What it calls itself.
    pub name: String,
    /// When it was seen first in this stay.
    pub came: u64,
    /// When it was gone; none while it is here.
    pub left: Option<u64>,
    /// How often it has come.
    pub times: u32,
}

/// All that were seen.
#[derive(Debug, Default)]
pub(super) struct PeerStays {
    /// When this peer began to look; none before.
    since: Option<u64>,
    known: BTreeMap<PeerId, PeerStay>,
}

impl PeerStays {
    /// These are here at `now`, and nobody else.
    pub fn look<'n>(&mut self, now: u64, here: impl IntoIterator<Item = (PeerId, &'n str)>) {
        self.since.get_or_insert(now);
        let mut gone: BTreeSet<PeerId> = self.known.keys().copied().collect();
        for (id, name) in here {
            gone.remove(&id);
            let arrival = self.known.entry(id).or_insert_with(|| PeerStay {
                id,
                name: String::new(),
                came: now,
                left: Some(now),
                times: 0,
            });
            if arrival.left.take().is_some() {
                (arrival.came, arrival.times) = (now, arrival.times.saturating_add(1));
            }
            if arrival.name != name {
                name.clone_into(&mut arrival.name);
            }
        }
        for id in gone {
            self.known.get_mut(&id).map(|arrival| arrival.left.get_or_insert(now));
        }
        self.forget();
    }

    /// Of those that have left the first go; whoever is here is known by the swarm, which is bounded.
    fn forget(&mut self) {
        while self.known.len() > KEPT {
            let left = self.known.values().filter_map(|one| Some((one.left?, one.id)));
            let Some((_, first)) = left.min() else { return };
            self.known.remove(&first);
        }
    }

    /// Since when it is looked, and who was seen: who came last first.
    pub fn list(&self) -> (Option<u64>, Vec<PeerStay>) {
        let mut all: Vec<PeerStay> = self.known.values().cloned().collect();
        all.sort_by(|one, other| other.came.cmp(&one.came).then_with(|| one.name.cmp(&other.name)));
        (self.since, all)
    }
}

/// Looks who is there and which plan is followed, as long as the peer runs.
pub async fn watch(history: History, mut view: watch::Receiver<SwarmView>) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {
                let view = view.borrow();
                let others = view.peers.iter().filter(|peer| peer.id != view.me);
                let others = others.map(|peer| (peer.id, peer.advert.name.as_str()));
                history.0.arrivals.lock().unwrap_or_else(PoisonError::into_inner).look(unix_now(), others);
            }
            // A plan may give way to the next before that.
            changed = view.changed() => {
                if changed.is_err() {
                    return;
                }
                let view = view.borrow_and_update();
                let mut plans = history.0.plans.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(id) = view.plan_id.filter(|id| plans.is_news(*id))
                    && let Some(plan) = &view.plan
                {
                    plans.follow(unix_now(), id, plan.clone());
                }
            }
        }
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> PeerId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&n.to_be_bytes());
        PeerId(id)
    }

    #[test]
    fn who_comes_leaves_and_comes_back_is_one_with_its_last_stay() {
        let mut arrivals = PeerStays::default();
        arrivals.look(100, []);
        arrivals.look(110, [(id(1), "attic")]);
        arrivals.look(120, [(id(1), "attic"), (id(2), "cellar")]);
        arrivals.look(130, [(id(2), "cellar")]);
        let told = |arrivals: &PeerStays| {
            let (since, all) = arrivals.list();
            (since.unwrap(), all.into_iter().map(|a| (a.name, a.came, a.left, a.times)).collect::<Vec<_>>())
        };
        let expected = vec![("cellar".into(), 120, None, 1), ("attic".into(), 110, Some(130), 1)];
        assert_eq!(told(&arrivals), (100, expected));
        arrivals.look(140, [(id(1), "loft"), (id(2), "cellar")]);
        let expected = vec![("loft".into(), 140, None, 2), ("cellar".into(), 120, None, 1)];
        assert_eq!(told(&arrivals), (100, expected));
    }

    #[test]
    fn many_who_come_and_go_are_forgotten_the_oldest_first() {
        let mut arrivals = PeerStays::default();
        for n in 0..KEPT as u32 * 2 {
            arrivals.look(u64::from(n), [(id(u32::MAX), "stays"), (id(n), "passes")]);
        }
        let (_, all) = arrivals.list();
        assert_eq!(all.len(), KEPT);
        assert!(all.iter().any(|one| one.name == "stays" && one.times == 1 && one.left.is_none()));
        assert!(all.iter().all(|one| one.name == "stays" || one.came > u64::from(KEPT as u32 - 3)));
    }
}
