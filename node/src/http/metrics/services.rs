//! The service monitors: what clients of this gateway ask of each model, and how they are served.

use super::Metrics;
use crate::view::ServiceView;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tsnode_coordinator::service_monitor::{AnsweredRequest, Event, ServiceMonitor, normalised};

/// One monitor for each model that has a row of its own.
#[derive(Debug)]
pub(super) struct ServiceMonitors {
    started: Instant,
    /// Held for what a monitor does with one event, or one report of each.
    monitors: Mutex<BTreeMap<String, ServiceMonitor>>,
}

impl Default for ServiceMonitors {
    fn default() -> Self {
        Self { started: Instant::now(), monitors: Mutex::default() }
    }
}

impl ServiceMonitors {
    /// Something happened to a request; `model_name` is one of a bounded number.
    pub fn on_event(&self, model_name: &str, event: Event) {
        self.with(model_name, |monitor, now| monitor.on_event(now, event));
    }

    /// A request was answered: its normalised latency, where it is known what requests take alone.
    pub fn answered(&self, model_name: &str, answered: AnsweredRequest) -> Option<f64> {
        self.with(model_name, |monitor, now| {
            monitor.on_event(now, Event::Answered(answered));
            monitor.mean_alone().map(|mean| normalised(answered.whole, mean))
        })
    }

    fn with<T>(&self, model_name: &str, act: impl FnOnce(&mut ServiceMonitor, Duration) -> T) -> T {
        let now = self.started.elapsed();
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        act(monitors.entry(model_name.to_owned()).or_insert_with(|| ServiceMonitor::new(now)), now)
    }

    fn reports(&self, now: Duration) -> Vec<ServiceView> {
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        let report = |(model, monitor): (&String, &mut ServiceMonitor)| {
            Some(ServiceView { model: model.clone(), report: monitor.report(now)? })
        };
        monitors.iter_mut().filter_map(report).collect()
    }
}

impl Metrics {
    /// What has been asked of late of each model, and how that was served.
    pub(in crate::http) fn services(&self) -> Vec<ServiceView> {
        self.services.reports(self.services.started.elapsed())
    }
}
