//! Rules that go with any order of requests ([`tsnode_coordinator::policy::sharing::order`]) on a machine that services share.

pub use tsnode_coordinator::policy::sharing::order::{Lead, Order, OrderRank};

/// What an order leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// When prompts start.
    pub prompts: PromptStart,
    /// Whose memory it is.
    pub memory: MemoryRule,
    /// Which batch is first.
    pub lead: Lead,
}

/// When a prompt starts whose service's answers have the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptStart {
    /// At once where the batch has a place, so that its answer joins theirs (continuous batching).
    #[default]
    Join,
    /// When it is first itself, as SeaLLM's Algorithm 2 is printed: its answer comes when theirs have ended.
    Wait,
}

/// What becomes of memory when a prompt is first that lacks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryRule {
    /// Answers that have started keep theirs; the prompt waits for their ends.
    #[default]
    Kept,
    /// Answers that are ranked after it lose theirs, the last first, if that is enough; they compute what they had again
    /// before they go on.
    TakenBack,
}
