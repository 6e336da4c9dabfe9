//! How many requests keep their targets: those that ended while there were some, by model and class.

use super::Metrics;
use crate::view::AttainmentView;
use prometheus_client::{encoding::EncodeLabelSet, metrics::counter::Counter, metrics::family::Family};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tsnode_protocol::{RequestClass, Targets};

/// Over which attainment is shown.
const WINDOW: Duration = Duration::from_secs(600);
/// Requests of one model and class that are remembered for it.
const REMEMBERED: usize = 4096;

/// The model and class of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByClass {
    pub model_name: String,
    pub class: &'static str,
}

/// What one request is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::http) struct JudgedRequest {
    /// Its class.
    pub class: RequestClass,
    /// As they were when it came; none where nobody had set any.
    pub targets: Option<Targets>,
}

type Late = BTreeMap<(String, RequestClass), VecDeque<(Instant, bool)>>;

/// Requests that were held against targets.
#[derive(Debug, Default)]
pub(super) struct AttainmentCounters {
    pub judged: Family<ByClass, Counter>,
    pub in_time: Family<ByClass, Counter>,
    /// Held for queue operations only.
    late: Mutex<Late>,
}

impl AttainmentCounters {
    /// A request of a model ended; `model_name` is one of a bounded number.
    pub fn ended(&self, model_name: &str, class: RequestClass, kept: bool) {
        let label = match class {
            RequestClass::Interactive => "interactive",
            RequestClass::Batch => "batch",
        };
        let by = ByClass { model_name: model_name.to_owned(), class: label };
        self.judged.get_or_create(&by).inc();
        if kept {
            self.in_time.get_or_create(&by).inc();
        } else {
            drop(self.in_time.get_or_create(&by));
        }
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = late.entry((by.model_name, class)).or_default();
        if queue.len() >= REMEMBERED {
            queue.pop_front();
        }
        queue.push_back((Instant::now(), kept));
    }

    fn of_late(&self, now: Instant) -> Vec<AttainmentView> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in late.values_mut() {
            while queue.front().is_some_and(|(at, _)| *at + WINDOW < now) {
                queue.pop_front();
            }
        }
        let all = late.iter().filter(|(_, queue)| !queue.is_empty());
        all.map(|((model, class), queue)| AttainmentView {
            model: model.clone(),
            class: *class,
            requests: queue.len(),
            in_time: queue.iter().filter(|(_, kept)| *kept).count(),
        })
        .collect()
    }
}

impl Metrics {
    /// How many requests kept their targets in the last ten minutes.
    pub(in crate::http) fn attainment(&self) -> Vec<AttainmentView> {
        self.kept.of_late(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_long_ago_is_counted_and_not_shown() {
        let kept = AttainmentCounters::default();
        kept.ended("tiny", RequestClass::Interactive, true);
        kept.ended("tiny", RequestClass::Interactive, false);
        kept.ended("tiny", RequestClass::Batch, true);
        let shown: Vec<_> =
            kept.of_late(Instant::now()).into_iter().map(|a| (a.class, a.in_time, a.requests)).collect();
        assert_eq!(shown, [(RequestClass::Interactive, 1, 2), (RequestClass::Batch, 1, 1)]);
        assert_eq!(kept.of_late(Instant::now() + 2 * WINDOW), []);
        let by = ByClass { model_name: "tiny".into(), class: "interactive" };
        assert_eq!((kept.judged.get_or_create(&by).get(), kept.in_time.get_or_create(&by).get()), (2, 1));
    }
}
