//! Models that the owner of this peer wants here whole: fetched from peers one after the other, and kept in the data folder.

use super::{
    Bad, Fetcher, Index, Patience, Peers,
    fetching::Fetching,
    provision::FOLDER,
    stock::{Stock, Tell},
    stocks::Stocks,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
        self.wishes.try_send(card.clone()).map_err(|_| TooMany)?;
        self.say(card.id, Pull { far: named(card), ..Pull::default() });
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

    /// Fetches what is wanted, until `stop`.
    pub async fn run(
        self,
        Wishes(mut wishes): Wishes,
        (places, index, data_dir): (Peers, Index, PathBuf),
        stocks: Stocks,
        stop: CancellationToken,
    ) {
        let fetch = async {
            while let Some(card) = wishes.recv().await {
                let fetcher = Fetcher {
                    places: places.clone(),
                    folder: data_dir.join(FOLDER),
                    index: index.clone(),
                    // Who names it allows it.
                    budget: u64::MAX,
                    patience: Patience::default(),
                    bad: Bad::default(),
                };
                self.pull(&card, fetcher, &stocks).await;
            }
        };
        stop.run_until_cancelled(fetch).await;
    }

    async fn pull(&self, card: &ModelCard, fetcher: Fetcher<Peers>, stocks: &Stocks) {
        let (pulls, id) = (self.clone(), card.id);
        let tell: Tell = Arc::new(move |far| pulls.say(id, Pull { far, ..Pull::default() }));
        let whole = async {
            let open = || Stock::open(fetcher, card.clone(), Arc::default(), tell.clone());
            stocks.open(id, open).await?.whole(&tell).await
        };
        let (far, path) = match whole.await {
            Ok(path) => (self.far(card), Some(path)),
            Err(error) => (Fetching { why: Some(error.to_string()), ..self.far(card) }, None),
        };
        let shown = path.as_deref().map(Path::display);
        tracing::info!(
            model = card.name,
            path = shown.map(tracing::field::display),
            why = far.why,
            "was to be fetched whole"
        );
        self.say(id, Pull { far, path, is_over: true });
    }

    fn far(&self, card: &ModelCard) -> Fetching {
        self.seen.borrow().get(&card.id).map_or_else(|| named(card), |pull| pull.far.clone())
    }
}

fn named(card: &ModelCard) -> Fetching {
    Fetching { model: card.name.clone(), ..Fetching::default() }
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
