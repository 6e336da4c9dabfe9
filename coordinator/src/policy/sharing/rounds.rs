//! Orders that know nothing of services' lengths: services take turns, or requests are served as they came (SeaLLM's
//! baselines: MuxServe's and AlpaServe's ways to share).

use super::order::{Order, OrderRank};
use crate::policy::batching::ServiceNo;
use std::collections::BTreeMap;
use tsnode_protocol::Seconds;

/// The service that has been served least lately is next; in it requests are served as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    batches: u64,
    /// The last batch of each service.
    served: BTreeMap<ServiceNo, u64>,
}

/// Requests are served as they came, whatever their service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsTheyCame;

impl Order for Rounds {
    type Standing = ();

    fn enters(&self, _: ServiceNo, _: u32) {}

    fn rank(&self, _: ServiceNo, (): &()) -> OrderRank {
        OrderRank::default()
    }

    fn executed(&self, _: ServiceNo, (): &mut (), _: Seconds) {}

    fn turn(&self, service: ServiceNo) -> u64 {
        self.served.get(&service).copied().unwrap_or(0)
    }

    fn serves(&mut self, service: ServiceNo) {
        self.batches += 1;
        self.served.insert(service, self.batches);
    }
}

impl Order for AsTheyCame {
    type Standing = ();

    fn enters(&self, _: ServiceNo, _: u32) {}

    fn rank(&self, _: ServiceNo, (): &()) -> OrderRank {
        OrderRank::default()
    }

    fn executed(&self, _: ServiceNo, (): &mut (), _: Seconds) {}
}
