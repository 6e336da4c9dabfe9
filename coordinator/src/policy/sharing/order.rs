//! Which request comes first: the seam between orders and a machine that services share.

use crate::policy::batching::ServiceNo;
use std::cmp::Ordering;
use tsnode_protocol::Seconds;

/// A place in an order: the smallest is first.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderRank(pub f64);

impl Ord for OrderRank {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for OrderRank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderRank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrderRank {}

impl OrderRank {
    /// The rank of a batch of requests that are served at once: 1 / Σ 1/rank, the c-μ rule (SeaLLM's Lemma 1). For orders whose
    /// ranks are costs.
    #[must_use]
    pub fn together(ranks: impl Iterator<Item = Self>) -> Self {
        Self(1.0 / ranks.map(|rank| 1.0 / rank.0).sum::<f64>())
    }
}

/// Which request comes first.
pub trait Order: std::fmt::Debug + Send {
    /// What it keeps of a request.
    type Standing: Copy + std::fmt::Debug + Send;

    /// How a request stands that comes with so many prompt tokens to compute.
    fn enters(&self, service: ServiceNo, prompt: u32) -> Self::Standing;

    /// Its place; of equals, the earlier request comes first.
    fn rank(&self, service: ServiceNo, standing: &Self::Standing) -> OrderRank;

    /// It has been executed for so long.
    fn executed(&self, service: ServiceNo, standing: &mut Self::Standing, time: Seconds);

    /// It is gone.
    fn ended(&mut self, service: ServiceNo, spent: Spent) {
        let _ = (service, spent);
    }

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

/// What a request has been executed for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Tokens of its prompt that were computed.
    pub prompt_tokens: u32,
    /// For how long those were.
    pub prompt: Seconds,
    /// For how long its answer was.
    pub answer: Seconds,
}

impl Spent {
    /// Time spent on prompt and answer together.
    #[must_use]
    pub fn whole(&self) -> Seconds {
        self.prompt + self.answer
    }
}

/// Which batch is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// That of the request that is first.
    #[default]
    First,
    /// That with the greatest sum of its requests' 1/rank ([`OrderRank::together`]).
    Together,
}
