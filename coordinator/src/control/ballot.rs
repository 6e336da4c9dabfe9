//! Plan flow 5: this peer's vote, and which terms of which epochs are used up.

use crate::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::{Epoch, Term};

/// Epochs whose terms are remembered: all that are not far.
const EPOCHS_HEARD: usize = 32;

/// When a plan is for, which orders plans.
pub(super) type EpochTerm = (Epoch, Term);

/// What one peer has endorsed, and what it has heard of.
#[derive(Debug)]
pub(super) struct Ballot {
    /// The last endorsed: only higher ones are.
    endorsed: Option<EpochTerm>,
    /// When that was, until a plan takes effect.
    endorsed_at: Option<Time>,
    /// The last that was written down.
    remembered: Option<EpochTerm>,
    /// The highest term heard of in each epoch's proposals.
    heard: BTreeMap<Epoch, Term>,
}

impl Ballot {
    /// Of a peer that endorsed this in a former life.
    pub fn new(endorsed: Option<EpochTerm>) -> Self {
        Self { endorsed, endorsed_at: None, remembered: endorsed, heard: BTreeMap::new() }
    }

    /// A plan of that epoch and term is on its way: the next one is above it.
    pub fn heard_of(&mut self, (epoch, term): EpochTerm) {
        let last = self.heard.entry(epoch).or_insert(term);
        *last = term.max(*last);
        if self.heard.len() > EPOCHS_HEARD {
            self.heard.pop_first();
        }
    }

    /// The highest term heard of in an epoch.
    pub fn heard_in(&self, epoch: Epoch) -> Option<Term> {
        self.heard.get(&epoch).copied()
    }

    /// Whether it may be endorsed: nothing of this or a later time was.
    pub fn is_free(&self, at: EpochTerm) -> bool {
        self.endorsed.is_none_or(|last| at > last)
    }

    /// The epoch it last endorsed in.
    pub fn epoch(&self) -> Epoch {
        self.endorsed.map_or(Epoch(0), |last| last.0)
    }

    pub fn endorse(&mut self, now: Time, at: EpochTerm) {
        (self.endorsed, self.endorsed_at) = (Some(at), Some(now));
    }

    /// Until when what was endorsed last has its chance, if it takes so long.
    pub fn waits_until(&self, chance: Duration) -> Option<Time> {
        self.endorsed_at.map(|at| at + chance)
    }

    /// A plan takes effect: nothing that was endorsed waits for that.
    pub fn settle(&mut self) {
        self.endorsed_at = None;
    }

    /// The last that is written down.
    pub fn remembered(&self) -> Option<EpochTerm> {
        self.remembered
    }

    /// Whether it is to be written down: it is used up, also for this peer's next life.
    pub fn remember(&mut self, at: EpochTerm) -> bool {
        let is_later = self.remembered.is_none_or(|last| at > last);
        if is_later {
            self.remembered = Some(at);
        }
        is_later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, term: u32) -> EpochTerm {
        (Epoch(epoch), Term(term))
    }

    #[test]
    fn nothing_is_endorsed_twice_in_a_term_in_this_life_or_the_next() {
        let mut ballot = Ballot::new(Some(at(3, 1)));
        assert!(!ballot.is_free(at(3, 1)) && !ballot.is_free(at(2, 9)) && ballot.is_free(at(3, 2)));
        ballot.endorse(Time::from_secs(5), at(4, 0));
        assert!(!ballot.is_free(at(4, 0)) && !ballot.is_free(at(3, 2)) && ballot.is_free(at(4, 1)));
        assert_eq!(ballot.waits_until(Duration::from_secs(2)), Some(Time::from_secs(7)));
        ballot.settle();
        assert_eq!(ballot.waits_until(Duration::from_secs(2)), None);
        assert!(!ballot.is_free(at(4, 0)), "a plan in force frees no term");
    }

    #[test]
    fn what_is_written_down_only_grows() {
        let mut ballot = Ballot::new(Some(at(3, 1)));
        let written = [at(3, 1), at(3, 2), at(3, 2), at(2, 9), at(4, 0)].map(|at| ballot.remember(at));
        assert_eq!(written, [false, true, false, false, true]);
        assert_eq!(ballot.remembered(), Some(at(4, 0)));
    }

    #[test]
    fn terms_heard_of_are_kept_for_the_latest_epochs() {
        let mut ballot = Ballot::new(None);
        for epoch in 0..100 {
            ballot.heard_of(at(epoch, 7));
            ballot.heard_of(at(epoch, 2));
        }
        assert_eq!([67, 68, 99].map(|epoch| ballot.heard_in(Epoch(epoch))), [None, Some(Term(7)), Some(Term(7))]);
    }
}
