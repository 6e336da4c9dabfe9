//! Looks at a swarm from outside, through its peers' HTTP interfaces.

use crate::PeerInfo;
use serde::{Deserialize, de::IgnoredAny};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between looks.
const LOOK: Duration = Duration::from_millis(100);
/// A peer that answers nothing for so long counts as silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Peers asked at the same time: their answers are made on the same processors, and all of fifty would be late.
const AT_ONCE: usize = 16;
/// A plan that leaves out somebody who lends stands for so long if it is not followed by one that takes them in.
const STANDS: Duration = Duration::from_secs(2);

/// What one peer says of the swarm, as far as a testnet asks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sight {
    /// The peer.
    pub me: String,
    /// The adopted plan's name.
    pub plan_id: Option<String>,
    /// The adopted plan.
    pub plan: Option<SeenPlan>,
    /// Who plans.
    pub coordinator: Option<String>,
    /// Groups that take requests.
    pub ready_groups: Vec<String>,
    /// Peers alive.
    pub peers: Vec<SeenPeer>,
    /// Peers that it has nothing to do with.
    pub cut_off: Vec<SeenCutOff>,
    /// What it refused, and who was not let in, by reason.
    #[serde(default)]
    pub rejected: BTreeMap<String, u64>,
    /// Models that somebody has.
    #[serde(default)]
    pub models: Vec<SeenModel>,
}

impl Sight {
    /// Whether the plan has no part for somebody who lends.
    fn leaves_out(&self) -> bool {
        let Some(plan) = &self.plan else { return false };
        let has_part = |id: &str| plan.groups.iter().flat_map(|g| &g.stages).any(|stage| stage.peer == id);
        self.peers.iter().any(|peer| !peer.advert.devices.is_empty() && !has_part(&peer.id))
    }
}

/// A model, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenModel {
    /// Its name.
    pub name: String,
}

/// A plan, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenPlan {
    /// Its groups.
    pub groups: Vec<SeenGroup>,
}

/// A group, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenGroup {
    /// Its name.
    pub id: String,
    /// Its phase.
    pub phase: String,
    /// Its stages.
    pub stages: Vec<SeenStage>,
}

/// A stage, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenStage {
    /// Who runs it.
    pub peer: String,
}

/// A peer, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenPeer {
    /// Its id.
    pub id: String,
    /// What it says of itself.
    pub advert: SeenAdvert,
    /// What it has to do.
    pub load: SeenLoad,
}

/// A peer that is cut off, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenCutOff {
    /// Its id.
    pub id: String,
    /// What it did.
    pub reason: String,
}

/// An advert, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenAdvert {
    /// Where its control plane is.
    pub addresses: Vec<String>,
    /// Where its data plane is.
    pub data_addresses: Vec<String>,
    /// What it lends.
    #[serde(default)]
    pub devices: Vec<IgnoredAny>,
    /// Whether others can call it.
    pub reachable: bool,
    /// Links from it.
    pub links: Vec<SeenLink>,
}

/// A link, as far as a testnet looks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SeenLink {
    /// To whom.
    pub to: String,
    /// How it goes.
    pub path: SeenPath,
}

/// How a link goes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeenPath {
    /// Straight.
    Direct,
    /// Over another peer.
    Relayed {
        /// That peer.
        via: String,
    },
}

/// A load, as far as a testnet looks.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct SeenLoad {
    /// Sequences in batches.
    pub running: u32,
    /// KV pages free.
    pub free_pages: u32,
    /// KV pages in all.
    pub total_pages: u32,
}

/// Some peers' HTTP interfaces.
#[derive(Clone)]
pub struct Swarm {
    peers: Vec<PeerInfo>,
    client: reqwest::Client,
}

impl Swarm {
    /// Of these peers.
    pub fn of<'p>(peers: impl Iterator<Item = &'p PeerInfo>) -> Self {
        Self { peers: peers.cloned().collect(), client: crate::client::plain_http() }
    }

    /// What every peer says, in order; `None` for one that does not answer.
    pub async fn look(&self) -> Vec<Option<Sight>> {
        let mut sights = Vec::with_capacity(self.peers.len());
        for some in self.peers.chunks(AT_ONCE) {
            sights.extend(futures::future::join_all(some.iter().map(|peer| self.look_at(peer))).await);
        }
        sights
    }

    /// What this peer says.
    pub(crate) async fn look_at(&self, peer: &PeerInfo) -> Option<Sight> {
        let request = self.client.get(format!("{}/api/swarm", peer.http)).timeout(PATIENCE);
        peer.authorised(request).send().await.ok()?.json().await.ok()
    }

    /// Waits until every peer sees `peers` peers and follows the same plan, with all its groups up; a plan that leaves out somebody
    /// who lends must stand for a while, since who comes late follows what there is until there is one with a part for it.
    ///
    /// # Errors
    /// Says what is missing when `patience` is over.
    pub async fn await_one_mind(&self, peers: usize, patience: Duration) -> Result<(), String> {
        self.await_one_mind_telling(peers, patience, |_| {}).await
    }

    /// The same, and says after each look how far they are.
    ///
    /// # Errors
    /// Says what is missing when `patience` is over.
    pub async fn await_one_mind_telling(
        &self,
        peers: usize,
        patience: Duration,
        mut tell: impl FnMut(&str),
    ) -> Result<(), String> {
        let mut passing: Option<(Option<String>, Instant)> = None;
        let stands = |sights: &[Option<Sight>]| {
            if let Err(missing) = one_mind(sights, peers) {
                let far = how_far(sights, peers);
                tell(&far);
                return Err(format!("{missing} ({far})"));
            }
            let Some(sight) = sights.iter().flatten().find(|s| s.leaves_out()) else { return Ok(()) };
            match &passing {
                Some((plan, since)) if *plan == sight.plan_id && since.elapsed() >= STANDS => return Ok(()),
                Some((plan, _)) if *plan == sight.plan_id => {}
                _ => passing = Some((sight.plan_id.clone(), Instant::now())),
            }
            Err("the plan leaves out somebody who lends, and another may follow it".to_owned())
        };
        self.await_that(patience, stands).await
    }

    /// Waits until `wanted` finds nothing missing any more.
    ///
    /// # Errors
    /// Says what is missing when `patience` is over.
    pub async fn await_that(
        &self,
        patience: Duration,
        mut wanted: impl FnMut(&[Option<Sight>]) -> Result<(), String>,
    ) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let began = Instant::now();
            let missing = match wanted(&self.look().await) {
                Ok(()) => return Ok(()),
                Err(missing) => missing,
            };
            if Instant::now() > until {
                return Err(missing);
            }
            // Looking at many peers is work, theirs and ours: on the same processors no more than a part of the time goes to it.
            sleep(LOOK.max(began.elapsed() * 3)).await;
        }
    }
}

/// How many are where, of all.
fn how_far(sights: &[Option<Sight>], peers: usize) -> String {
    let there = || sights.iter().flatten();
    let (answer, see) = (there().count(), there().filter(|sight| sight.peers.len() == peers).count());
    let mut plans: BTreeMap<&str, usize> = BTreeMap::new();
    there().filter_map(|sight| sight.plan_id.as_deref()).for_each(|plan| *plans.entry(plan).or_default() += 1);
    let follow = plans.into_values().max().unwrap_or(0);
    format!("{answer} of {} answer, {see} see all {peers}, {follow} follow one plan", sights.len())
}

fn one_mind(sights: &[Option<Sight>], peers: usize) -> Result<(), String> {
    let mut plan = None;
    for sight in sights {
        let sight = sight.as_ref().ok_or("a peer does not answer")?;
        if sight.peers.len() != peers {
            return Err(format!("a peer sees {} of {peers} peers", sight.peers.len()));
        }
        let adopted = sight.plan.as_ref().ok_or("a peer has no plan")?;
        if *plan.get_or_insert(&sight.plan_id) != &sight.plan_id {
            return Err("two peers follow different plans".into());
        }
        if let Some(group) = adopted.groups.iter().find(|g| !sight.ready_groups.contains(&g.id)) {
            let leader = group.stages.first().and_then(|s| sights.iter().flatten().find(|o| o.me == s.peer));
            let by_itself =
                if leader.is_some_and(|l| l.ready_groups.contains(&group.id)) { "it is" } else { "it is not" };
            let id = &group.id;
            return Err(format!("{} does not see {} group {id} up; by its leader {by_itself}", sight.me, group.phase));
        }
    }
    Ok(())
}
