//! Prompt flow 2: how much of a prompt groups have from before, as far as this gateway can tell.
//!
//! Groups keep what they computed until its pages are wanted (`batcher/prefixes.rs`), and tell nobody. A gateway knows what it
//! had computed where, and hears with every grant how much of a prompt was there. Tokens are held as hashes of all that
//! lies before each block, eight bytes for sixteen tokens: what two sequences have in common is how far these agree.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher as _};
use tsnode_protocol::{GroupId, Token};

/// Tokens of a block: the fewest that a group lets a sequence begin with.
const BLOCK: usize = 16;
/// Sequences remembered of one group: as many as it keeps.
const SEQUENCES: usize = 64;
/// Blocks remembered of one group: a million tokens, more than devices have pages for.
const BLOCKS: usize = 65_536;

/// The whole blocks that a sequence begins with.
type BlockHashes = Vec<u64>;

/// How a sequence goes, block by block.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    hasher: DefaultHasher,
    tokens: usize,
    blocks: BlockHashes,
}

impl Trail {
    /// Of these tokens.
    pub fn of(tokens: &[Token]) -> Self {
        let mut trail = Self::default();
        trail.extend(tokens);
        trail
    }

    /// It goes on so.
    pub fn extend(&mut self, tokens: &[Token]) {
        for token in tokens {
            self.hasher.write_u32(token.0);
            self.tokens += 1;
            if self.tokens.is_multiple_of(BLOCK) {
                self.blocks.push(self.hasher.finish());
            }
        }
    }

    /// Its whole blocks among so many tokens.
    fn first(&self, tokens: usize) -> &[u64] {
        &self.blocks[..(tokens / BLOCK).min(self.blocks.len())]
    }
}

fn common(one: &[u64], other: &[u64]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// What groups were seen to have computed, the latest in the end.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex(BTreeMap<GroupId, VecDeque<BlockHashes>>);

impl PrefixIndex {
    /// Tokens that a sequence could begin with there.
    pub fn has(&self, group: GroupId, trail: &Trail) -> u32 {
        let known = self.0.get(&group).into_iter().flatten();
        (known.map(|known| common(known, &trail.blocks)).max().unwrap_or(0) * BLOCK) as u32
    }

    /// The groups that have some of it.
    pub fn holders(&self, trail: &Trail) -> impl Iterator<Item = GroupId> {
        self.0.keys().copied().filter(|group| self.has(*group, trail) > 0)
    }

    /// A group has computed so many tokens of it.
    pub fn computed(&mut self, group: GroupId, trail: &Trail, tokens: usize) {
        let new = trail.first(tokens);
        if new.is_empty() || new.len() > BLOCKS {
            return;
        }
        let known = self.0.entry(group).or_default();
        // The longer of two that begin alike stands for both.
        let longer = known.iter().position(|k| common(k, new) == new.len()).and_then(|place| known.remove(place));
        known.retain(|k| common(k, new) < k.len());
        known.push_back(longer.unwrap_or_else(|| new.to_vec()));
        let blocks = |known: &VecDeque<BlockHashes>| known.iter().map(Vec::len).sum::<usize>();
        while known.len() > SEQUENCES || blocks(known) > BLOCKS {
            known.pop_front();
        }
    }

    /// A group says how many of its tokens were there when it looked: it has no more of it, and no less.
    pub fn found(&mut self, group: GroupId, trail: &Trail, cached: u32) {
        let there = trail.first(cached as usize).len();
        if let Some(known) = self.0.get_mut(&group) {
            // The last token is computed always, so that one block less is no news.
            known.retain(|k| common(k, &trail.blocks) <= there + 1);
        }
        self.computed(group, trail, cached as usize);
    }

    /// A group has lost what it ran, and with it what it kept.
    pub fn lost(&mut self, group: GroupId) {
        self.0.remove(&group);
    }

    /// Of groups that are still there.
    pub fn retain(&mut self, there: impl Fn(&GroupId) -> bool) {
        self.0.retain(|group, _| there(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: GroupId = GroupId([1; 8]);
    const THERE: GroupId = GroupId([2; 8]);

    fn trail(tokens: std::ops::Range<u32>) -> Trail {
        Trail::of(&tokens.map(Token).collect::<Vec<_>>())
    }

    fn all(kept: &mut PrefixIndex, tokens: std::ops::Range<u32>) {
        kept.computed(HERE, &trail(tokens), usize::MAX);
    }

    #[test]
    fn what_a_group_has_is_the_longest_beginning_in_whole_blocks() {
        let mut kept = PrefixIndex::default();
        all(&mut kept, 0..100);
        all(&mut kept, 0..40);
        assert_eq!(kept.0[&HERE].len(), 1, "the longer one stands for both");
        let has = |tokens| kept.has(HERE, &trail(tokens));
        assert_eq!([has(0..200), has(0..50), has(0..15), has(1..90)], [96, 48, 0, 0]);
        assert_eq!((kept.has(THERE, &trail(0..100)), kept.holders(&trail(0..20)).count()), (0, 1));
    }

    #[test]
    fn what_a_group_says_stands_against_what_was_thought() {
        let mut kept = PrefixIndex::default();
        all(&mut kept, 0..100);
        kept.found(HERE, &trail(0..96), 95);
        assert_eq!(kept.has(HERE, &trail(0..96)), 96, "the last token is always computed");
        kept.found(HERE, &trail(0..96), 32);
        assert_eq!(kept.has(HERE, &trail(0..96)), 32);
        // Another gateway's request began alike.
        kept.found(THERE, &trail(0..96), 64);
        assert_eq!(kept.has(THERE, &trail(0..96)), 64);
        kept.found(THERE, &trail(0..96), u32::MAX);
        assert_eq!(kept.has(THERE, &trail(0..96)), 96, "no more than there is of it");
        kept.lost(THERE);
        assert_eq!(kept.has(THERE, &trail(0..96)), 0);
    }

    #[test]
    fn the_oldest_goes_where_there_are_too_many() {
        let mut kept = PrefixIndex::default();
        for n in 0..=SEQUENCES as u32 {
            all(&mut kept, 1000 * n..1000 * n + 32);
        }
        assert_eq!([0, 1].map(|n: u32| kept.has(HERE, &trail(1000 * n..1000 * n + 32))), [0, 32]);
        all(&mut kept, 0..(BLOCK * (BLOCKS + 1)) as u32);
        assert_eq!(kept.0[&HERE].len(), SEQUENCES, "one that is too long says nothing");
    }
}
