//! Plan flow 1: what of a peer's heartbeats was said to all, and what only to a few.

use super::Audience;
use crate::Time;
use std::time::Duration;
use tsnode_protocol::Heartbeat;

/// How long a word to all may be on its way, when what was said later has come straight.
const UNTOLD: Duration = Duration::from_millis(1500);

/// What one peer has told all, as far as this one has heard.
#[derive(Clone, Debug, Default)]
pub(in crate::control) struct Announced {
    /// The sequence of the last heartbeat that it said to all.
    sequence: u64,
    /// What was in it.
    told: Option<Heartbeat>,
    /// Since when it says a few what it has not said to all.
    untold_since: Option<Time>,
}

impl Announced {
    /// The sequence of the last heartbeat that it said to all.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// A heartbeat to all with this sequence has come.
    pub fn heard(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// It has started again: what it told before is no longer so.
    pub fn reborn(&mut self) {
        (self.told, self.untold_since) = (None, None);
    }

    /// A heartbeat to all came after `last`, which was said later and is the newest.
    pub fn overtaken(&mut self, sequence: u64, heartbeat: &Heartbeat, last: &Heartbeat) {
        self.sequence = sequence;
        self.told = Some(heartbeat.clone());
        self.untold_since = self.untold_since.filter(|_| last.is_news_after(heartbeat));
    }

    /// A heartbeat that is news to this peer came so.
    pub fn tells(&mut self, now: Time, heartbeat: &Heartbeat, way: Audience) {
        match way {
            Audience::ToAll => (self.told, self.untold_since) = (Some(heartbeat.clone()), None),
            // Who has said nothing to all yet, here, is new, or is to this peer: adverts will tell.
            Audience::Straight if !self.told.as_ref().is_some_and(|told| heartbeat.is_news_after(told)) => {
                self.untold_since = None;
            }
            Audience::Straight => _ = self.untold_since.get_or_insert(now),
        }
    }

    /// Whether something that all should know did not come to all, or not here.
    pub fn keeps_from_all(&self, now: Time) -> bool {
        self.untold_since.is_some_and(|since| now >= since + UNTOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_a_few_and_not_all_is_missed_after_a_while() {
        let (plain, leaving) = (Heartbeat::default(), Heartbeat { leaving: true, ..Heartbeat::default() });
        let at = Time::from_secs;
        let mut announced = Announced::default();
        announced.tells(at(1), &leaving, Audience::Straight);
        assert!(!announced.keeps_from_all(at(9)), "who has told all nothing is new");
        announced.tells(at(10), &plain, Audience::ToAll);
        announced.tells(at(11), &leaving, Audience::Straight);
        assert!(!announced.keeps_from_all(at(12)) && announced.keeps_from_all(at(13)));
        announced.tells(at(13), &plain, Audience::Straight);
        assert!(!announced.keeps_from_all(at(20)), "all know that");
        announced.tells(at(21), &leaving, Audience::Straight);
        announced.overtaken(5, &leaving, &leaving);
        assert!(!announced.keeps_from_all(at(30)) && announced.sequence() == 5, "it was on its way");
        announced.tells(at(31), &plain, Audience::Straight);
        announced.reborn();
        assert!(!announced.keeps_from_all(at(40)));
    }
}
