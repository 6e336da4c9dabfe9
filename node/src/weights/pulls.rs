//! Models that the owner of this peer wants here whole: fetched from peers one after the other, and kept in the data folder.

use super::{
    error::FetchError,
    fetch::{BadPeers, FetchTimeouts, Fetcher, Peers},
    fetch_progress::Fetching,
    index::Index,
    remembered::{self, FOLDER},
    stock::{Stock, Tell},
    stocks::Stocks,
};
use crate::data_plane::library::Shelf;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{ModelCard, ModelId};

/// Models that wait; one more is refused.
const WAITING: usize = 8;

/// How far one is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// How far it is.
    #[serde(flatten)]
    pub far: Fetching,
    /// Its folder, once all of it is there.
    pub path: Option<PathBuf>,
    /// Whether nothing is done for it any more: it is there, or its `why` says why not.
    pub is_over: bool,
}

/// All that were wanted since this peer started.
pub type Pulled = BTreeMap<ModelId, Pull>;

/// The way to what fetches them. Clones are equal.
#[derive(Clone, Debug)]
pub struct Pulls {
    wishes: mpsc::Sender<ModelCard>,
    seen: watch::Sender<Pulled>,
}

/// The other end.
pub struct Wishes(mpsc::Receiver<ModelCard>);

/// Too many are wanted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{WAITING} models wait to be fetched already: ask again when one of them is here")]
pub struct TooMany;

/// Why one is not fetched.
#[derive(Debug, thiserror::Error)]
enum NotPulled {
    #[error("{0} is lent by this peer from its own disk: nothing is missing of it")]
    Here(String),
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

impl Pulls {
    /// Both ends.
    #[must_use]
    pub fn channel() -> (Self, Wishes) {
        let (wishes, wanted) = mpsc::channel(WAITING);
        (Self { wishes, seen: watch::Sender::default() }, Wishes(wanted))
    }

    /// Has a model fetched whole. One that is on its way is not asked for twice.
    ///
    /// # Errors
    /// When too many wait.
    pub fn want(&self, card: &ModelCard) -> Result<(), TooMany> {
        let is_coming = self.seen.borrow().get(&card.id).is_some_and(|pull| !pull.is_over);
        if is_coming {
            return Ok(());
        }
        let place = self.wishes.try_reserve().map_err(|_| TooMany)?;
        // First: it may be over at once.
        self.say(card.id, Pull { far: named(card), ..Pull::default() });
        place.send(card.clone());
        Ok(())
    }

    /// How far they are.
    #[must_use]
    pub fn seen(&self) -> Pulled {
        self.seen.borrow().clone()
    }

    fn say(&self, model: ModelId, pull: Pull) {
        self.seen.send_modify(|seen| drop(seen.insert(model, pull)));
    }

    fn far(&self, card: &ModelCard) -> Fetching {
        self.seen.borrow().get(&card.id).map_or_else(|| named(card), |pull| pull.far.clone())
    }
}

fn named(card: &ModelCard) -> Fetching {
    Fetching { model: card.name.clone(), ..Fetching::default() }
}

/// Fetches what is wanted.
pub struct Puller {
    /// Where it comes from.
    pub places: Peers,
    /// What is known of files here.
    pub index: Index,
    /// Where it goes to.
    pub data_dir: PathBuf,
    /// What is lent here already.
    pub shelf: Shelf,
    /// Models of which layers are fetched.
    pub stocks: Stocks,
    /// Where it is said how far it is.
    pub pulls: Pulls,
}

impl Puller {
    /// One model after the other, until `stop`.
    pub async fn run(self, Wishes(mut wishes): Wishes, stop: CancellationToken) {
        let fetch = async {
            while let Some(card) = wishes.recv().await {
                let came = self.pull(&card).await;
                let far = self.pulls.far(&card);
                let pull = match came {
                    Ok(path) => {
                        tracing::info!(model = card.name, folder = %path.display(), "is here whole");
                        remembered::add(&self.data_dir.join(FOLDER), &card);
                        Pull { far, path: Some(path), is_over: true }
                    }
                    Err(error) => {
                        tracing::warn!(model = card.name, %error, "is not fetched whole");
                        Pull { far: Fetching { why: Some(error.to_string()), ..far }, path: None, is_over: true }
                    }
                };
                self.pulls.say(card.id, pull);
            }
        };
        stop.run_until_cancelled(fetch).await;
    }

    async fn pull(&self, card: &ModelCard) -> Result<PathBuf, NotPulled> {
        let is_lent = self.shelf.cards().iter().any(|lent| lent.id == card.id);
        if is_lent && self.stocks.of(card.id).is_none() {
            return Err(NotPulled::Here(card.name.clone()));
        }
        let (pulls, id) = (self.pulls.clone(), card.id);
        let tell: Tell = Arc::new(move |far| pulls.say(id, Pull { far, ..Pull::default() }));
        let open = || Stock::open(self.fetcher(), card.clone(), Arc::default(), tell.clone());
        Ok(self.stocks.open(card.id, open).await?.whole(&tell).await?)
    }

    fn fetcher(&self) -> Fetcher<Peers> {
        Fetcher {
            places: self.places.clone(),
            folder: self.data_dir.join(FOLDER),
            index: self.index.clone(),
            // Who names it allows it.
            budget: u64::MAX,
            patience: FetchTimeouts::default(),
            bad: BadPeers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;

    #[test]
    fn what_is_coming_is_not_asked_for_twice_and_too_many_are_refused() {
        let (pulls, Wishes(mut wanted)) = Pulls::channel();
        let card = |n: usize| ModelCard { id: ModelId([n as u8; 16]), ..sample::card() };
        (0..2 * WAITING).for_each(|_| pulls.want(&card(0)).unwrap());
        (1..WAITING).for_each(|n| pulls.want(&card(n)).unwrap());
        assert_eq!(pulls.want(&card(WAITING)), Err(TooMany));
        assert_eq!((pulls.seen().len(), wanted.try_recv().unwrap().id), (WAITING, ModelId([0; 16])));
        // One that failed may be wanted again.
        pulls.say(ModelId([0; 16]), Pull { is_over: true, ..Pull::default() });
        pulls.want(&card(0)).unwrap();
        assert!(!pulls.seen()[&ModelId([0; 16])].is_over);
    }
}
