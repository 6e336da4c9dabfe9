//! A peer that was told no model fetches one that its swarm serves: which, is decided in `coordinator`'s `wanted`.

use super::{
    error::FetchError,
    fetch::{Fetcher, Patience, Peers},
    index::Index,
    work::Tally,
};
use crate::{hardware::memory::Size, store::disk};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tsnode_coordinator::wanted::{self, Glob, Unwanted, Wanted};
use tsnode_protocol::{Advert, ModelCard, ModelId};

/// Folder of fetched models in the data folder.
const FOLDER: &str = "models";
/// How long it is listened who else has a model, once somebody has.
const LISTENING: Duration = Duration::from_millis(1500);
/// Before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long others are waited for that have a model, by a peer that fetched one before: then it lends that again.
const ALONE: Duration = Duration::from_secs(4);
/// Which model that was.
const LAST: &str = "last.json";
/// Longest such note (bytes).
const LAST_BYTES: u64 = 4096;
/// How often it is said how far it is.
const TELL: Duration = Duration::from_millis(250);

/// What a peer may fetch by itself.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a model at most; none at all where it is 0.
    pub budget: u64,
    /// Names that are allowed; all where there are none.
    pub allowed: Vec<Glob>,
}

/// A model on its way here, or why none is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Its name.
    pub model: String,
    /// All its files (bytes).
    pub bytes: u64,
    /// Verified and on disk (bytes).
    pub done: u64,
    /// What came over the network for it, right or wrong (bytes).
    pub fetched: u64,
    /// Peers that give it just now.
    pub holders: usize,
    /// What keeps it from coming.
    pub why: Option<String>,
}

impl fmt::Display for Fetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.why {
            return f.write_str(why);
        }
        let s = if self.holders == 1 { "" } else { "s" };
        let Self { model, bytes, done, holders, .. } = self;
        write!(f, "fetching {model} from {holders} peer{s}: {} of {}", Size(*done), Size(*bytes))
    }
}

/// The model that was fetched last.
#[derive(Debug, Serialize, Deserialize)]
struct Last {
    name: String,
    /// What to open, in the folder of fetched models.
    path: PathBuf,
}

/// Looks for a model to fetch, and fetches it.
pub struct Provision {
    fetcher: Fetcher<Peers>,
    allowed: Vec<Glob>,
    /// Memory that is lent (bytes).
    memory: u64,
    /// The model inside the program: nobody has to fetch it.
    own: ModelId,
    /// What came over the network in attempts before this one (bytes).
    fetched: u64,
    /// Models that turned out to be larger than said.
    refused: BTreeSet<ModelId>,
}

impl Provision {
    /// Into a data folder.
    #[must_use]
    pub fn new(places: Peers, data_dir: &Path, index: Index, limits: Limits, (memory, own): (u64, ModelId)) -> Self {
        let fetcher = Fetcher {
            places,
            folder: data_dir.join(FOLDER),
            index,
            budget: limits.budget,
            patience: Patience::default(),
        };
        Self { fetcher, allowed: limits.allowed, memory, own, fetched: 0, refused: BTreeSet::new() }
    }

    /// Resolves when a model is here: what it is called, and what to open.
    pub async fn run(mut self, tell: impl Fn(Fetching)) -> (String, PathBuf) {
        let (mut roster, begun) = (self.fetcher.places.roster.clone(), Instant::now());
        let mut last = self.last();
        loop {
            let fetched = self.fetched;
            match self.choose() {
                Err(Unwanted::None) if begun.elapsed() >= ALONE && last.is_some() => {
                    if let Some(Last { name, path }) = last.take() {
                        tracing::info!(model = name, "nobody has a model: lends the one that was fetched last");
                        return (name, path);
                    }
                }
                Err(Unwanted::None) => {}
                Err(why) => tell(Fetching { why: Some(why.to_string()), fetched, ..Fetching::default() }),
                Ok(_) => {
                    sleep(LISTENING).await;
                    let Ok(wanted) = self.choose() else { continue };
                    match self.fetch(&wanted, &tell).await {
                        Ok(path) => {
                            self.remember(&wanted.card.name, &path);
                            return (wanted.card.name, path);
                        }
                        Err(error) => {
                            tracing::warn!(model = wanted.card.name, %error, "not fetched");
                            if let FetchError::Budget { .. } = error {
                                self.refused.insert(wanted.card.id);
                            }
                            let (model, why, fetched) = (wanted.card.name, Some(error.to_string()), self.fetched);
                            tell(Fetching { model, why, fetched, ..Fetching::default() });
                            sleep(AGAIN).await;
                            continue;
                        }
                    }
                }
            }
            tokio::select! {
                there = roster.changed() => if !there {
                    // The process ends.
                    std::future::pending::<()>().await;
                },
                () = sleep(ALONE), if last.is_some() => {}
            }
        }
    }

    /// What was fetched last, if it is still there.
    fn last(&self) -> Option<Last> {
        let (folder, path) = (&self.fetcher.folder, self.fetcher.folder.join(LAST));
        fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= LAST_BYTES)?;
        let last: Last = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let is_inside = last.path.components().all(|part| matches!(part, Component::Normal(_)));
        let path = folder.join(&last.path);
        (is_inside && path.exists()).then_some(Last { path, ..last })
    }

    fn remember(&self, name: &str, path: &Path) {
        let Ok(inside) = path.strip_prefix(&self.fetcher.folder) else { return };
        let last = Last { name: name.to_owned(), path: inside.to_owned() };
        let written = serde_json::to_vec(&last).map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|note| disk::write_whole(&self.fetcher.folder.join(LAST), &note)) {
            tracing::info!(%error, "what was fetched is not remembered");
        }
    }

    fn choose(&self) -> Result<Wanted, Unwanted> {
        let me = self.fetcher.places.me;
        let adverts = self.fetcher.places.roster.adverts();
        let foreign = |card: &ModelCard| card.id != self.own && !self.refused.contains(&card.id);
        let strip = |advert: &Advert| {
            let models = advert.models.iter().filter(|card| foreign(card)).cloned().collect();
            Advert { models, ..advert.clone() }
        };
        let others: BTreeMap<_, _> =
            adverts.iter().filter(|(peer, _)| **peer != me).map(|(peer, advert)| (*peer, strip(advert))).collect();
        let others = others.iter().map(|(peer, advert)| (*peer, advert)).collect();
        let limits = wanted::Limits { budget: self.fetcher.budget, memory: self.memory, allowed: &self.allowed };
        wanted::choose(&others, &limits, None)
    }

    async fn fetch(&mut self, wanted: &Wanted, tell: &impl Fn(Fetching)) -> Result<PathBuf, FetchError> {
        let Wanted { card, bytes, holders } = wanted;
        tracing::info!(
            model = card.name, id = %card.id, bytes, holders = holders.len(), folder = %self.fetcher.folder.display(),
            "fetches the model that this swarm serves, to serve it too"
        );
        let tally = Arc::new(Tally::default());
        let before = self.fetched;
        let seen = || {
            let [all, done, fetched] =
                [&tally.bytes, &tally.done, &tally.fetched].map(|count| count.load(Ordering::Relaxed));
            let bytes = if all == 0 { *bytes } else { all };
            let holders = tally.holders.load(Ordering::Relaxed).max(usize::from(all == 0) * holders.len());
            Fetching { model: card.name.clone(), bytes, done, fetched: before + fetched, holders, why: None }
        };
        let mut ticks = interval(TELL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fetching = std::pin::pin!(self.fetcher.fetch(card, &tally));
        let came = loop {
            tokio::select! {
                came = &mut fetching => break came,
                _ = ticks.tick() => tell(seen()),
            }
        };
        tell(seen());
        self.fetched = seen().fetched;
        came
    }
}
