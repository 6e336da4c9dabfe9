//! Which sequences begin alike: those that run, and what is kept of those that ended.
//!
//! In sorted order the sequence that has most in common with another is one of its neighbours, so that a sorted set is
//! all that is needed. What stages really hold is theirs to say: they may let go of what is kept at any moment, and
//! refuse a sequence that was to begin with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_protocol::{
    RequestId, Token,
    ring::{PrefixId, SharedPrefix, SharedWith},
};

/// Fewer tokens in common are computed anew: pages are copied for them.
const LEAST: usize = 16;

/// Sequences by their tokens.
#[derive(Debug, Default)]
struct SortedSequences(BTreeSet<(Arc<[Token]>, SharedWith)>);

impl SortedSequences {
    /// Which has most in common with these tokens, and how many.
    fn longest(&self, tokens: &[Token]) -> Option<(SharedWith, usize)> {
        let query = (Arc::from(tokens), SharedWith::Running(RequestId([0; 16])));
        let neighbours = [self.0.range(..&query).next_back(), self.0.range(&query..).next()];
        let common = |(found, with): &(Arc<[Token]>, SharedWith)| {
            (*with, found.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        neighbours.into_iter().flatten().map(common).max_by_key(|(_, tokens)| *tokens)
    }
}

#[derive(Debug)]
struct PrefixEntry {
    tokens: Arc<[Token]>,
    used: u64,
}

/// What of a sequence that ended is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keeping {
    /// Its name, if it is worth keeping.
    pub prefix: Option<PrefixId>,
    /// What is no longer worth keeping beside it.
    pub forgotten: Vec<PrefixId>,
}

/// All sequences of a group that others may begin with.
#[derive(Debug)]
pub(super) struct Prefixes {
    /// Those whose KV is there.
    ready: SortedSequences,
    /// Those that compute it.
    coming: SortedSequences,
    running: BTreeMap<RequestId, Arc<[Token]>>,
    kept: BTreeMap<PrefixId, PrefixEntry>,
    /// Most that are kept.
    most: usize,
    /// Whether a sequence may begin with a part of another; else with all of one that is kept.
    cuts: bool,
    next: u64,
    uses: u64,
}

impl Prefixes {
    pub fn new(most: usize, cuts: bool) -> Self {
        Self {
            ready: SortedSequences::default(),
            coming: SortedSequences::default(),
            running: BTreeMap::new(),
            kept: BTreeMap::new(),
            most,
            cuts,
            next: 0,
            uses: 0,
        }
    }

    /// A sequence computes these tokens.
    pub fn begins(&mut self, request: RequestId, tokens: &[Token]) {
        let tokens: Arc<[Token]> = tokens.into();
        self.coming.0.insert((tokens.clone(), SharedWith::Running(request)));
        self.running.insert(request, tokens);
    }

    /// It has computed them.
    pub fn is_ready(&mut self, request: RequestId) {
        let Some(tokens) = self.running.get(&request) else { return };
        let entry = (tokens.clone(), SharedWith::Running(request));
        if self.coming.0.remove(&entry) {
            self.ready.0.insert(entry);
        }
    }

    /// It runs no longer.
    pub fn ends(&mut self, request: RequestId) {
        if let Some(tokens) = self.running.remove(&request) {
            let entry = (tokens, SharedWith::Running(request));
            self.coming.0.remove(&entry);
            self.ready.0.remove(&entry);
        }
    }

    /// The most that a sequence of these tokens can begin with. Its last token is always computed, for what follows it.
    pub fn shared(&mut self, tokens: &[Token]) -> Option<SharedPrefix> {
        let (with, common) = if self.cuts { self.ready.longest(tokens)? } else { self.whole(tokens)? };
        let common = common.min(tokens.len().saturating_sub(1));
        if common < LEAST {
            return None;
        }
        if let SharedWith::Kept(prefix) = with {
            self.uses += 1;
            self.kept.entry(prefix).and_modify(|e| e.used = self.uses);
        }
        Some(SharedPrefix { with, tokens: common as u32 })
    }

    /// The longest that is kept of which all is there, before the last of these tokens.
    fn whole(&self, tokens: &[Token]) -> Option<(SharedWith, usize)> {
        let begins = |e: &PrefixEntry| e.tokens.len() < tokens.len() && tokens.starts_with(&e.tokens);
        let longest = self.kept.iter().filter(|(_, e)| begins(e)).max_by_key(|(_, e)| e.tokens.len());
        longest.map(|(prefix, e)| (SharedWith::Kept(*prefix), e.tokens.len()))
    }

    /// Whether a sequence of these tokens is kept, or as good as that.
    fn is_there(&self, tokens: &[Token]) -> bool {
        if self.cuts {
            return self.ready.longest(tokens).is_some_and(|(_, common)| common == tokens.len());
        }
        self.kept.values().any(|e| *e.tokens == *tokens)
    }

    /// Who computes more of these tokens now than a sequence could begin with so far, and is worth waiting for.
    pub fn worth_waiting_for(&self, tokens: &[Token]) -> Option<RequestId> {
        if !self.cuts {
            return None;
        }
        let common = |sorted: &SortedSequences| {
            let found = sorted.longest(tokens);
            found.map(|(with, common)| (with, common.min(tokens.len().saturating_sub(1))))
        };
        let (with, coming) = common(&self.coming)?;
        let ready = common(&self.ready).map_or(0, |(_, common)| common);
        match with {
            SharedWith::Running(request) if coming >= ready + LEAST => Some(request),
            _ => None,
        }
    }

    /// What of a sequence of these tokens to keep, now that it has ended.
    pub fn keeping(&mut self, tokens: &[Token]) -> Keeping {
        if tokens.len() < LEAST || self.most == 0 || self.is_there(tokens) {
            return Keeping::default();
        }
        // Where nothing is cut, the longer one does not stand for it.
        let begins_it = |e: &PrefixEntry| self.cuts && tokens.starts_with(&e.tokens);
        let mut forgotten: Vec<PrefixId> =
            self.kept.iter().filter(|(_, e)| begins_it(e)).map(|(prefix, _)| *prefix).collect();
        if forgotten.is_empty() && self.kept.len() >= self.most {
            let oldest = self.kept.iter().min_by_key(|(_, e)| e.used);
            forgotten.extend(oldest.map(|(prefix, _)| *prefix));
        }
        forgotten.iter().for_each(|prefix| self.forget(*prefix));
        let (prefix, tokens): (_, Arc<[Token]>) = (PrefixId(self.next), tokens.into());
        self.next += 1;
        self.uses += 1;
        self.ready.0.insert((tokens.clone(), SharedWith::Kept(prefix)));
        self.kept.insert(prefix, PrefixEntry { tokens, used: self.uses });
        Keeping { prefix: Some(prefix), forgotten }
    }

    /// It is not kept any longer.
    pub fn forget(&mut self, prefix: PrefixId) {
        if let Some(entry) = self.kept.remove(&prefix) {
            self.ready.0.remove(&(entry.tokens, SharedWith::Kept(prefix)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<Token> {
        ids.into_iter().map(Token).collect()
    }

    proptest! {
        /// Neighbours in order are enough: nothing else has more in common.
        #[test]
        fn the_longest_is_the_longest_of_all(
            all in prop::collection::vec(prop::collection::vec(0u32..3, 0..40), 1..20),
            query in prop::collection::vec(0u32..3, 1..40),
        ) {
            let mut sorted = SortedSequences::default();
            for (n, ids) in all.iter().enumerate() {
                sorted.0.insert((tokens(ids.iter().copied()).into(), SharedWith::Kept(PrefixId(n as u64))));
            }
            let common = |ids: &Vec<u32>| ids.iter().zip(&query).take_while(|(a, b)| a == b).count();
            let (_, found) = sorted.longest(&tokens(query.iter().copied())).unwrap();
            prop_assert_eq!(Some(found), all.iter().map(common).max());
        }
    }

    #[test]
    fn what_ended_is_kept_once_and_the_oldest_goes() {
        let mut prefixes = Prefixes::new(2, true);
        let long = tokens(0..40);
        let first = prefixes.keeping(&long[..30]).prefix.unwrap();
        assert_eq!(prefixes.keeping(&long[..20]), Keeping::default(), "it is there already");
        let longer = prefixes.keeping(&long);
        assert_eq!(longer.forgotten, [first], "the longer one begins with it");
        let other = prefixes.keeping(&tokens(100..140)).prefix.unwrap();
        // Used: the other is the oldest now.
        let with = SharedWith::Kept(longer.prefix.unwrap());
        assert_eq!(prefixes.shared(&long), Some(SharedPrefix { with, tokens: 39 }), "the last token is computed");
        assert_eq!(prefixes.keeping(&tokens(200..240)).forgotten, [other]);
    }

    #[test]
    fn where_nothing_is_cut_a_sequence_begins_with_all_of_one_that_is_kept() {
        let mut prefixes = Prefixes::new(2, false);
        let request = RequestId([1; 16]);
        prefixes.begins(request, &tokens(0..40));
        assert_eq!(prefixes.worth_waiting_for(&tokens(0..60)), None);
        prefixes.is_ready(request);
        assert_eq!(prefixes.shared(&tokens(0..60)), None, "it goes on");
        prefixes.ends(request);
        let with = SharedWith::Kept(prefixes.keeping(&tokens(0..50)).prefix.unwrap());
        assert_eq!(prefixes.shared(&tokens(0..60)), Some(SharedPrefix { with, tokens: 50 }));
        assert_eq!(prefixes.shared(&tokens((0..49).chain(70..80))), None, "they part before its end");
        assert_eq!(prefixes.shared(&tokens(0..50)), None, "the last token is computed");
        // One that goes on further neither hides it nor takes its place, and the other way round.
        let longer = prefixes.keeping(&tokens(0..70));
        assert!(longer.forgotten.is_empty());
        assert_eq!(prefixes.keeping(&tokens(0..50)), Keeping::default(), "it is there already");
        assert_eq!(prefixes.shared(&tokens((0..60).chain(90..99))), Some(SharedPrefix { with, tokens: 50 }));
        let with = SharedWith::Kept(longer.prefix.unwrap());
        assert_eq!(prefixes.shared(&tokens(0..80)), Some(SharedPrefix { with, tokens: 70 }));
        assert_eq!(prefixes.keeping(&tokens(0..60)).forgotten.len(), 1, "there is room for two");
    }

    #[test]
    fn one_that_computes_is_waited_for_only_if_it_has_more() {
        let mut prefixes = Prefixes::new(2, true);
        let ids = |n: u8| RequestId([n; 16]);
        prefixes.begins(ids(1), &tokens(0..100));
        assert_eq!(prefixes.worth_waiting_for(&tokens(0..200)), Some(ids(1)));
        assert_eq!(prefixes.shared(&tokens(0..200)), None, "nothing is there yet");
        prefixes.is_ready(ids(1));
        assert_eq!(prefixes.worth_waiting_for(&tokens(0..200)), None);
        let shared = SharedPrefix { with: SharedWith::Running(ids(1)), tokens: 100 };
        assert_eq!(prefixes.shared(&tokens(0..200)), Some(shared));
        prefixes.ends(ids(1));
        assert_eq!(prefixes.shared(&tokens(0..200)), None);
    }
}
