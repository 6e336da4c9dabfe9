//! How often a pool had no room, where requests are pooled (`tsnode route set pools`).

use super::Metrics;
use crate::view::OverflowView;
use prometheus_client::{encoding::EncodeLabelSet, metrics::counter::Counter, metrics::family::Family};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tsnode_coordinator::policy::routing::Overflow;

/// The model of a request, and the pool that had no room for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByPool {
    model_name: String,
    pool: &'static str,
}

/// Answers that one group computed and gave because a pool had no room.
#[derive(Debug, Default)]
pub(super) struct Overflows {
    pub counted: Family<ByPool, Counter>,
    /// Of prompts and of answers, by model. Held for map operations only.
    so_far: Mutex<BTreeMap<String, [u64; 2]>>,
}

impl Overflows {
    /// One more; `model_name` is one of a bounded number.
    pub fn note(&self, model_name: &str, overflow: Overflow) {
        let (pool, place) = match overflow {
            Overflow::Prompts => ("prompts", 0),
            Overflow::Answers => ("answers", 1),
        };
        self.counted.get_or_create(&ByPool { model_name: model_name.to_owned(), pool }).inc();
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.entry(model_name.to_owned()).or_default()[place] += 1;
    }

    fn so_far(&self) -> Vec<OverflowView> {
        let so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        let view = |(model, [prompts, answers]): (&String, &[u64; 2])| OverflowView {
            model: model.clone(),
            prompts: *prompts,
            answers: *answers,
        };
        so_far.iter().map(view).collect()
    }
}

impl Metrics {
    /// How often pools had no room since the start.
    pub(in crate::http) fn overflows(&self) -> Vec<OverflowView> {
        self.overflows.so_far()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_is_counted_by_model() {
        let overflows = Overflows::default();
        for overflow in [Overflow::Prompts, Overflow::Answers, Overflow::Prompts] {
            overflows.note("tiny", overflow);
        }
        overflows.note("small", Overflow::Answers);
        let shown: Vec<_> = overflows.so_far().into_iter().map(|o| (o.model, o.prompts, o.answers)).collect();
        assert_eq!(shown, [("small".to_owned(), 0, 1), ("tiny".to_owned(), 2, 1)]);
        let by = ByPool { model_name: "tiny".into(), pool: "prompts" };
        assert_eq!(overflows.counted.get_or_create(&by).get(), 2);
    }
}
