//! Plan flow 1: which messages of one peer have come, in which of its lives.

use crate::{Time, control::calls::Calls};
use tsnode_protocol::{Gossip, Life};

/// How long a call may be on its way when what its caller said later has come. While it stands it is said anew each second. An
/// older one is an old one that somebody says again: news where it was missed, but not to whom it names, who would not answer.
const OVERTAKEN: Time = Time::from_secs(3);

/// Kinds of messages, each with a sequence of its own: gossip may reorder between kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) enum MessageKind {
    Advert,
    Heartbeat,
    Plan,
    Endorsement,
    Certificate,
    Call,
    LivenessDigest,
}

impl MessageKind {
    pub(in crate::control) fn of(gossip: &Gossip) -> Self {
        match gossip {
            Gossip::Advert(_) => Self::Advert,
            Gossip::Heartbeat(_) => Self::Heartbeat,
            Gossip::Plan(_) => Self::Plan,
            Gossip::Endorsement(_) => Self::Endorsement,
            Gossip::Certificate(_) => Self::Certificate,
            Gossip::Call(_) => Self::Call,
            Gossip::LivenessDigest(_) => Self::LivenessDigest,
        }
    }
}

/// The sequences of what one peer said: what comes again is no news.
#[derive(Clone, Debug)]
pub(in crate::control) struct Sequences {
    life: Life,
    last: [u64; 7],
    calls: Calls,
    /// The highest sequence as it was at two times, with [`OVERTAKEN`] or more between them.
    marks: [(Time, u64); 2],
}

impl Sequences {
    /// Of a peer that nothing was heard of before.
    pub fn new(now: Time) -> Self {
        Self { life: Life::default(), last: [0; 7], calls: Calls::default(), marks: [(now, 0); 2] }
    }

    /// Of which of its lives the last message was.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The last of a kind.
    pub fn of(&self, kind: MessageKind) -> u64 {
        self.last[kind as usize]
    }

    /// Something has come at this time.
    pub fn heard(&mut self, now: Time) {
        if now >= self.marks[1].0 + OVERTAKEN {
            self.marks = [self.marks[1], (now, self.highest())];
        }
    }

    /// Notes a message's sequence, and says whether it is the first of a new life; nothing if it is of a former life, or not above the last one of its kind: what was said later
    /// stands for it, but where it is a call, which is refused if it has come before, or was overtaken long ago.
    pub fn advance(&mut self, now: Time, kind: MessageKind, sequence: u64) -> Option<bool> {
        let life = Life::of(sequence);
        if life < self.life {
            return None;
        }
        let is_old = kind == MessageKind::Call && sequence < self.overtaken(now);
        let last = &mut self.last[kind as usize];
        let is_news = if kind == MessageKind::Call { !is_old && self.calls.note(sequence) } else { sequence > *last };
        if !is_news {
            return None;
        }
        *last = sequence.max(*last);
        Some(life > std::mem::replace(&mut self.life, life))
    }

    /// What it said before this was overtaken long ago.
    fn overtaken(&self, now: Time) -> u64 {
        let is_long_ago = |mark: &&(Time, u64)| now >= mark.0 + OVERTAKEN;
        self.marks.iter().rev().find(is_long_ago).map_or(0, |mark| mark.1)
    }

    /// Whether a heartbeat of that sequence is later than the last.
    pub fn is_news(&self, sequence: u64) -> bool {
        Life::of(sequence) >= self.life && sequence > self.last[MessageKind::Heartbeat as usize]
    }

    /// The highest sequence it was heard with.
    pub fn highest(&self) -> u64 {
        self.last.into_iter().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(sequences: &mut Sequences, kind: MessageKind, sequence: u64) -> bool {
        sequences.advance(Time::ZERO, kind, sequence).is_some()
    }

    #[test]
    fn a_call_that_was_overtaken_is_heard_once_and_other_words_are_not() {
        let mut sequences = Sequences::new(Time::ZERO);
        let heard = [9, 5, 9, 5, 6].map(|sequence| news(&mut sequences, MessageKind::Call, sequence));
        assert_eq!(heard, [true, true, false, false, true]);
        assert_eq!([9, 5].map(|sequence| news(&mut sequences, MessageKind::Heartbeat, sequence)), [true, false]);
        assert!((10..20).all(|sequence| news(&mut sequences, MessageKind::Call, sequence)));
        assert!(!news(&mut sequences, MessageKind::Call, 7), "too many have come since");
        assert_eq!(sequences.highest(), 19);
    }

    #[test]
    fn a_call_from_long_before_what_came_since_is_an_old_one() {
        let mut sequences = Sequences::new(Time::ZERO);
        for second in 1..=8 {
            let now = Time::from_secs(second);
            assert!(sequences.advance(now, MessageKind::Heartbeat, 10 * second).is_some());
            sequences.heard(now);
        }
        let now = Time::from_secs(9);
        assert_eq!(sequences.advance(now, MessageKind::Call, 1), None, "it was overtaken long ago");
        assert_eq!(sequences.advance(now, MessageKind::Call, 79), Some(false), "it was on its way");
    }

    #[test]
    fn a_new_life_is_told_once_and_nothing_of_the_former_counts_any_more() {
        let (first, second) = (Life(1), Life(2));
        let at = |life: Life, n: u64| (u64::from(life.0) << 32) | n;
        let mut sequences = Sequences::new(Time::ZERO);
        let told = [at(first, 5), at(second, 1), at(second, 2), at(first, 6)]
            .map(|sequence| sequences.advance(Time::ZERO, MessageKind::Advert, sequence));
        assert_eq!(told, [Some(true), Some(true), Some(false), None]);
        assert_eq!(sequences.life(), second);
    }
}
