//! Which request comes first: the seam between orders and the machine that services share; and rules that go with any order.

use std::cmp::Ordering;
use tsnode_coordinator::policy::batching::ServiceNo;
use tsnode_protocol::Seconds;

/// A place in an order: the smallest is first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rank(pub f64);

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

/// Which request comes first.
pub trait Order: std::fmt::Debug + Send {
    /// What it keeps of a request.
    type Standing: Copy + std::fmt::Debug + Send;

    /// How a request stands that comes with so many prompt tokens to compute.
    fn enters(&self, service: ServiceNo, prompt: u32) -> Self::Standing;

    /// Its place; of equals, the earlier request comes first.
    fn rank(&self, service: ServiceNo, standing: &Self::Standing) -> Rank;

    /// It has been executed for so long.
    fn executed(&self, service: ServiceNo, standing: &mut Self::Standing, time: Seconds);

    /// A service's place, which goes before its requests'.
    fn turn(&self, service: ServiceNo) -> u64 {
        let _ = service;
        0
    }

    /// A batch of this service runs next.
    fn serves(&mut self, service: ServiceNo) {
        let _ = service;
    }

    /// Busy time of the machine after which a request of this service has waited too long.
    fn patience(&self, service: ServiceNo) -> Seconds {
        let _ = service;
        Seconds(f64::INFINITY)
    }
}

/// What an order leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// When prompts start.
    pub prompts: Prompts,
    /// Whose memory it is.
    pub memory: Memory,
    /// Which batch is first.
    pub lead: Lead,
}

/// When a prompt starts whose service's answers have the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prompts {
    /// At once where the batch has a place, so that its answer joins theirs (continuous batching).
    #[default]
    Join,
    /// When it is first itself, as SeaLLM's Algorithm 2 is printed: its answer comes when theirs have ended.
    Wait,
}

/// What becomes of memory when a prompt is first that lacks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Answers that have started keep theirs; the prompt waits for their ends.
    #[default]
    Kept,
    /// Answers that are ranked after it lose theirs, the last first, if that is enough; they compute what they had again
    /// before they go on.
    TakenBack,
}

/// Which batch is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// That of the request that is first.
    #[default]
    First,
    /// That with the greatest sum of its requests' 1/rank: the c-μ rule (SeaLLM's Lemma 1) where a batch is served at once.
    /// For orders whose ranks are costs.
    Together,
}
