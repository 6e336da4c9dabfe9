//! How far a model is that is fetched, as people see it.

use crate::hardware::memory::Size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tsnode_protocol::LayerRange;

/// What comes in less time says little of what will.
const TELLING: Duration = Duration::from_secs(1);

/// A model on its way here, or why none is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Its name.
    pub model: String,
    /// The layers that are wanted; none before a plan gives this peer some.
    #[serde(default)]
    pub layers: Option<LayerRange>,
    /// All that is wanted of it, by whole chunks (bytes).
    pub bytes: u64,
    /// Of that, verified and on disk (bytes).
    pub done: u64,
    /// What came over the network for it, right or wrong (bytes).
    pub fetched: u64,
    /// Peers that give it just now.
    pub holders: usize,
    /// How long the rest should take, once some has come (s).
    #[serde(default)]
    pub seconds_left: Option<u64>,
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
        let layers = self.layers.map_or_else(String::new, |layers| format!(" (layers {layers})"));
        write!(f, "fetching {model}{layers} from {holders} peer{s}: {} of {}", Size(*done), Size(*bytes))?;
        match self.seconds_left {
            None => Ok(()),
            Some(s @ ..120) => write!(f, ", about {s} s left"),
            Some(s @ ..7200) => write!(f, ", about {} min left", s / 60),
            Some(s) => write!(f, ", about {} h left", s / 3600),
        }
    }
}

/// How long the rest takes (s), when so much came in that time; nothing before that says much.
pub(super) fn seconds_left(rest: u64, came: u64, took: Duration) -> Option<u64> {
    let says_much = rest > 0 && came > 0 && took >= TELLING;
    says_much.then(|| (rest as f64 / came as f64 * took.as_secs_f64()).ceil() as u64)
}

/// Several that are fetched beside each other, by places of their own: one of them is shown, with the bytes that came for all.
#[derive(Debug, Default)]
pub struct ConcurrentFetches(BTreeMap<usize, Fetching>);

impl ConcurrentFetches {
    /// What is to be shown, now that this is how far one of them is: one that comes, or else one that does not, or else this one.
    pub fn told(&mut self, place: usize, far: Fetching) -> Fetching {
        self.0.insert(place, far.clone());
        let others = || self.0.values();
        let comes = |far: &&Fetching| far.why.is_none() && far.done < far.bytes;
        let is_stuck = |far: &&Fetching| far.why.is_some();
        let shown = Some(&far).filter(comes).or_else(|| others().find(comes)).or_else(|| others().find(is_stuck));
        Fetching { fetched: others().map(|far| far.fetched).sum(), ..shown.unwrap_or(&far).clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn far(model: &str, done: u64, fetched: u64, why: Option<&str>) -> Fetching {
        let why = why.map(ToOwned::to_owned);
        Fetching { model: model.into(), bytes: 10, done, fetched, why, ..Fetching::default() }
    }

    #[test]
    fn how_long_the_rest_takes_is_said_once_it_is_known() {
        let left = |rest, came, took| seconds_left(rest, came, Duration::from_millis(took));
        assert_eq!((left(100, 0, 5000), left(100, 50, 900), left(0, 50, 5000)), (None, None, None));
        assert_eq!((left(100, 50, 5000), left(1, 1000, 5000)), (Some(10), Some(1)));
        let said = |seconds_left| Fetching { seconds_left, ..far("m", 4, 4, None) }.to_string();
        assert!(!said(None).contains("left") && said(Some(119)).ends_with(", about 119 s left"));
        assert!(said(Some(7199)).ends_with(", about 119 min left") && said(Some(7200)).ends_with(", about 2 h left"));
    }

    #[test]
    fn of_several_one_that_comes_is_shown_and_all_bytes_are() {
        let mut several = ConcurrentFetches::default();
        assert_eq!(several.told(0, far("a", 4, 4, None)), far("a", 4, 4, None));
        assert_eq!(several.told(1, far("b", 0, 0, Some("nobody"))), far("a", 4, 4, None));
        assert_eq!(several.told(1, far("b", 1, 2, None)), far("b", 1, 6, None));
        assert_eq!(several.told(0, far("a", 10, 12, None)), far("b", 1, 14, None));
        assert_eq!(several.told(1, far("b", 2, 3, Some("gone"))), far("b", 2, 15, Some("gone")));
        assert_eq!(several.told(1, far("b", 10, 11, None)), far("b", 10, 23, None));
    }
}
