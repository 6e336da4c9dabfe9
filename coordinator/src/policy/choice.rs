//! Which policies there are to choose from: nodes and the planner's replay make them here, and nowhere else.

use super::{
    batching::Stepwise,
    caps,
    chunked::Chunked,
    prefill_first::PrefillFirst,
    routing::{MachineNo, Routing},
    shares::{PhasePair, Shares},
};
use crate::scheduler::prompts::Prompts;
use tsnode_protocol::{LayerProfile, Tokens};

/// Tokens of a step, where nothing was measured.
const CHUNK: u32 = 512;
/// A step's tokens where nothing is answered, as a multiple of these, at most. Twice as long a step reads the weights half as
/// often; four times as long was no better (docs/research/closed-forms.md).
pub const LONG: u32 = 2;

/// How requests are routed on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// By the plan's shares alone.
    Shares,
    /// By the shares, corrected by live queues: what nodes do.
    Live,
}

impl Dispatch {
    /// The policy, over these ways, whose draws begin at this point of [0, 1).
    #[must_use]
    pub fn routing(self, ways: Vec<PhasePair<MachineNo>>, point: f64) -> Box<dyn Routing> {
        match self {
            Self::Shares => Box::new(Shares::new(ways, false).starting_at(point)),
            Self::Live => Box::new(Shares::new(ways, true).starting_at(point)),
        }
    }
}

/// How a machine batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// Prompts first, one after the other; then all answers that have a place. A group of several stages takes the next
    /// when its slowest stage is free, as the closed forms have it.
    PrefillFirst,
    /// Answers, and beside them prompts in chunks, within a number of tokens; as many batches on their way as a group has
    /// stages. What nodes do.
    Chunked(u32),
}

/// What a machine has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Answers at once.
    pub places: usize,
    /// KV (tokens).
    pub tokens: u64,
    /// Batches that are on their way at once, where the policy can have several.
    pub stages: usize,
}

/// What nodes do, where nothing was measured.
impl Default for Batches {
    fn default() -> Self {
        Self::Chunked(CHUNK)
    }
}

impl Batches {
    /// What nodes do: steps as long as these profiles, of a group's stages or of all that plans are made for, make worth it.
    #[must_use]
    pub fn measured<'a>(profiles: impl Iterator<Item = &'a LayerProfile>) -> Self {
        caps::chunk(profiles).map_or_else(Self::default, Self::Chunked)
    }

    /// What a group does that computes prompts so.
    #[must_use]
    pub fn of(prompts: Prompts) -> Self {
        match prompts {
            Prompts::Whole => Self::PrefillFirst,
            Prompts::Chunks(chunk) => Self::Chunked(chunk.0 as u32),
        }
    }

    /// How prompts are computed so, as closed forms have it.
    #[must_use]
    pub fn prompts(self) -> Prompts {
        match self {
            Self::Chunked(chunk) => Prompts::Chunks(Tokens(f64::from(chunk))),
            Self::PrefillFirst => Prompts::Whole,
        }
    }

    /// Whether the stages of a pipeline are at different batches.
    #[must_use]
    pub fn fill_pipelines(self) -> bool {
        matches!(self, Self::Chunked(_))
    }

    /// The policy, on an idle machine.
    #[must_use]
    pub fn batching(self, room: Room) -> Box<dyn Stepwise> {
        match self {
            Self::PrefillFirst => Box::new(PrefillFirst::new(room.places, room.tokens)),
            Self::Chunked(tokens) => {
                let chunked = Chunked::new(tokens, room.places, room.tokens).alone(tokens.saturating_mul(LONG));
                Box::new(chunked.in_stages(room.stages))
            }
        }
    }
}
