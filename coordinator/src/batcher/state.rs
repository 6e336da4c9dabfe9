//! Where a sequence is in its group, and what it has there.

use crate::Time;
use std::collections::BTreeMap;
use tsnode_protocol::{kv::Delivery, ring::SharedPrefix};

/// Waiting for pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageWait {
    pub since: Time,
    /// There were too few pages when it was asked for last.
    pub refused: bool,
}

/// The pages that a sequence has on every stage, or is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequencePages {
    /// Tokens that there is room for.
    pub room: u32,
    /// The KV is computed here, bit for bit what any group would compute: others may begin with it.
    pub computed_here: bool,
    /// The KV of the prompt, or of its first part, has gone through its codec, if there is one.
    pub through_codec: bool,
}

/// Pages that the stages are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// What it was before, and is again if they refuse.
    pub wait: PageWait,
    /// What it is to begin with.
    pub shared: Option<SharedPrefix>,
    pub pages: SequencePages,
}

/// The states of a sequence.
#[derive(Debug)]
pub(super) enum State {
    /// Has no pages.
    Waiting(PageWait),
    /// The stages are asked for pages, and to begin with what is shared.
    Admitting(Admission),
    /// Has pages; KV has arrived at some stages.
    AwaitingKv { pages: SequencePages, since: Time, arrived: BTreeMap<u16, Vec<Delivery>> },
    /// Computes the tokens it has: `sent` of them are on their way or computed, `done` are computed.
    Prefilling { pages: SequencePages, sent: u32, done: u32 },
    /// Computes its answer: the KV of all tokens but the last is there. More room may be asked for.
    Decoding { pages: SequencePages, growing: Option<u32> },
    /// The same, without room for its last token's KV.
    Paused { pages: SequencePages, growing: Option<u32> },
    /// Its KV is on its way to another group.
    Sending { pages: SequencePages },
}

impl State {
    /// Without pages from now on.
    pub fn waiting(now: Time) -> Self {
        Self::Waiting(PageWait { since: now, refused: false })
    }

    /// The pages it has or is to have.
    pub fn pages(&self) -> Option<SequencePages> {
        match self {
            Self::Waiting(_) => None,
            Self::Admitting(Admission { pages, .. })
            | Self::AwaitingKv { pages, .. }
            | Self::Prefilling { pages, .. }
            | Self::Decoding { pages, .. }
            | Self::Paused { pages, .. }
            | Self::Sending { pages } => Some(*pages),
        }
    }

    /// The room that an answer has, and what more is asked for.
    pub fn growth(&mut self) -> Option<(&mut SequencePages, &mut Option<u32>)> {
        match self {
            Self::Decoding { pages, growing } | Self::Paused { pages, growing } => Some((pages, growing)),
            Self::Waiting(_)
            | Self::Admitting(_)
            | Self::AwaitingKv { .. }
            | Self::Prefilling { .. }
            | Self::Sending { .. } => None,
        }
    }

    /// From here on it computes its answer; whether it did not before.
    pub fn decode(&mut self) -> bool {
        let (pages, growing) = match *self {
            Self::AwaitingKv { pages, .. } | Self::Prefilling { pages, .. } => (pages, None),
            Self::Paused { pages, growing } => (pages, growing),
            Self::Waiting(_) | Self::Admitting(_) | Self::Decoding { .. } | Self::Sending { .. } => return false,
        };
        *self = Self::Decoding { pages, growing };
        true
    }

    /// An answer waits for room.
    pub fn pause(&mut self) {
        if let Self::Decoding { pages, growing } = *self {
            *self = Self::Paused { pages, growing };
        }
    }
}
