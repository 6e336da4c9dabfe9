//! Which policies there are to choose from: nodes and the planner's replay make them here, and nowhere else.

use super::{
    batching::Stepwise,
    caps,
    chunked::{BesidePrompts, Chunked},
    pools::LivePools,
    prefill_first::PrefillFirst,
    routing::{MachineNo, Routing},
    shares::{PhasePair, Shares},
    shortest::Shortest,
};
use tsnode_protocol::{BatchPolicy, LayerProfile, RoutePolicy};

/// Tokens of a step, where nothing was measured.
pub(crate) const CHUNK: u32 = 512;
/// Times that answers are passed over where prompts go first and answers beside them: Splitwise's simulator has four.
const MIXED_PATIENCE: u32 = 4;
/// The same where prompts go alone: as many steps of 512 tokens as the longest prompts of Azure's coding service have.
const PREFILL_FIRST_PATIENCE: u32 = 16;

/// How requests are routed on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// By the plan's shares alone.
    Shares,
    /// By the shares, corrected by live queues: what nodes do where members have set nothing else.
    Live,
    /// To the shortest queues.
    Shortest,
    /// As live; the gateway then parts prompts between the two groups of a way (`gateway/cronus.rs`).
    Cronus,
    /// To the shortest queues of two pools that lend each other machines (`pools.rs`).
    Pools,
}

impl From<RoutePolicy> for Dispatch {
    fn from(policy: RoutePolicy) -> Self {
        match policy {
            // What is chosen by measurement is as it was until something was.
            RoutePolicy::Live | RoutePolicy::Auto => Self::Live,
            RoutePolicy::Shares => Self::Shares,
            RoutePolicy::Shortest => Self::Shortest,
            RoutePolicy::Cronus => Self::Cronus,
            RoutePolicy::Pools => Self::Pools,
        }
    }
}

impl Dispatch {
    /// The policy, over these ways, whose draws begin at this point of [0, 1).
    #[must_use]
    pub fn routing(self, ways: Vec<PhasePair<MachineNo>>, point: f64) -> Box<dyn Routing> {
        match self {
            Self::Shares => Box::new(Shares::new(ways, false).starting_at(point)),
            Self::Live | Self::Cronus => Box::new(Shares::new(ways, true).starting_at(point)),
            Self::Shortest => Box::new(Shortest::new(ways)),
            Self::Pools => Box::new(LivePools::new(ways)),
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
    /// stages. What nodes do where members have set nothing else.
    Chunked(u32),
    /// Prompts in chunks within a number of tokens, and answers beside them as far as it reaches; answers that were passed over a few
    /// times go first (Splitwise §IV-B).
    Mixed(u32),
    /// The same with nothing beside prompts, in longer chunks; answers that were passed over many times go first.
    PromptsFirst(u32),
}

/// What a machine has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineRoom {
    /// Answers at once.
    pub places: usize,
    /// KV of all requests together (tokens).
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

    /// Steps of the same length, formed by this policy.
    #[must_use]
    pub fn by(self, policy: BatchPolicy) -> Self {
        let (Self::Chunked(tokens) | Self::Mixed(tokens) | Self::PromptsFirst(tokens)) = self else { return self };
        match policy {
            // What is chosen by measurement is as it was until something was.
            BatchPolicy::Chunked | BatchPolicy::Auto => Self::Chunked(tokens),
            BatchPolicy::Mixed => Self::Mixed(tokens),
            BatchPolicy::PrefillFirst => Self::PromptsFirst(tokens),
        }
    }

    /// Whether the stages of a pipeline are at different batches.
    #[must_use]
    pub fn fill_pipelines(self) -> bool {
        !matches!(self, Self::PrefillFirst)
    }

    /// The policy, on an idle machine.
    #[must_use]
    pub fn batching(self, room: MachineRoom) -> Box<dyn Stepwise> {
        match self {
            Self::PrefillFirst => Box::new(PrefillFirst::new(room.places, room.tokens)),
            Self::Chunked(tokens) => Box::new(chunked(tokens, room)),
            Self::Mixed(tokens) => {
                Box::new(chunked(tokens, room).prompts_first(BesidePrompts::Answers, MIXED_PATIENCE))
            }
            Self::PromptsFirst(tokens) => {
                Box::new(chunked(tokens, room).prompts_first(BesidePrompts::Nothing, PREFILL_FIRST_PATIENCE))
            }
        }
    }
}

fn chunked(tokens: u32, room: MachineRoom) -> Chunked {
    let chunked = Chunked::new(tokens, room.places, room.tokens).alone(tokens.saturating_mul(caps::LONG));
    chunked.in_stages(room.stages)
}
