//! How good a placement is: simulated on past requests, each group sharing its time by the doubling budget (SeaLLM §4.2),
//! each request sent to the least loaded holder. Deadlines first, then normalised latency (Algorithm 1, lines 19 to 25).

use super::{Placement, Services, hosting::Hosting, replacement::RequestCounts};
use crate::policy::least_loaded::LeastLoaded;
use std::cmp::Ordering;
use tsnode_coordinator::{
    policy::batching::ServiceNo,
    replay::machines::{Alike, Arrival, ReplayTrace, Simulation},
    scheduler::{
        slo::{self, Deadline},
        workload::WorkloadRequest,
    },
    service_monitor::{Performance, normalised},
};
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// α of Equation 6: what normalised latency counts for beside late requests (SeaLLM §6.1).
const ALPHA: f64 = 1e-4;

/// Past requests, in order of arrival, and what is expected of them.
#[derive(Clone, Debug, Default)]
pub struct PastRequests {
    arrivals: Vec<Arrival>,
    /// By request: how long it may take.
    deadlines: Vec<Deadline>,
    /// By service: mean time of its requests alone on the reference device.
    means: Vec<Seconds>,
}

impl PastRequests {
    /// Requests of these services.
    #[must_use]
    pub fn new(services: &Services, arrivals: Vec<Arrival>) -> Self {
        let deadline = |a: &Arrival| {
            let problem = services.problem(a.asked.service);
            slo::deadline(&problem.slo, &problem.reference, &request(a))
        };
        let mean = |s: ServiceNo| {
            let problem = services.problem(s);
            let time = |r: &WorkloadRequest| {
                let (first, step) = problem.reference.times(r);
                first + step * r.steps()
            };
            let requests = &problem.workload.requests;
            requests.iter().map(time).sum::<Seconds>() / requests.len().max(1) as f64
        };
        let deadlines = arrivals.iter().map(deadline).collect();
        Self { deadlines, means: services.ids().map(mean).collect(), arrivals }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// The requests.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// How many of each service, in so long a time.
    #[must_use]
    pub fn counts(&self, time: Seconds) -> RequestCounts {
        let mut requests = vec![0; self.means.len()];
        self.arrivals.iter().for_each(|a| requests[usize::from(a.asked.service.0)] += 1);
        RequestCounts { time, requests }
    }

    /// Those of a part of the time, counted from its beginning.
    #[must_use]
    pub fn between(&self, from: Seconds, to: Seconds) -> Self {
        let place = |at: Seconds| self.arrivals.partition_point(|a| a.at < at);
        let (a, b) = (place(from), place(to));
        let moved = |a: &Arrival| Arrival { at: a.at - from, ..*a };
        Self {
            arrivals: self.arrivals[a..b].iter().map(moved).collect(),
            deadlines: self.deadlines[a..b].to_vec(),
            means: self.means.clone(),
        }
    }

    /// What became of those that ended in a part of the time; the traces are those of all.
    #[must_use]
    pub fn ended_between(&self, traces: &[ReplayTrace], from: Seconds, to: Seconds) -> Judged {
        let (mut ended, mut deadlines) = (Vec::new(), Vec::new());
        for (trace, deadline) in traces.iter().zip(&self.deadlines).filter(|(t, _)| t.end >= from && t.end < to) {
            ended.push(*trace);
            deadlines.push(*deadline);
        }
        Self { arrivals: Vec::new(), deadlines, means: self.means.clone() }.judged(&ended)
    }

    /// The same, coming so many times as fast.
    #[must_use]
    pub fn hastened(&self, by: f64) -> Self {
        let sooner = |a: &Arrival| Arrival { at: a.at / by, ..*a };
        Self { arrivals: self.arrivals.iter().map(sooner).collect(), ..self.clone() }
    }

    /// The first of them.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let count = count.min(self.len());
        Self {
            arrivals: self.arrivals[..count].to_vec(),
            deadlines: self.deadlines[..count].to_vec(),
            means: self.means.clone(),
        }
    }

    /// What became of them, request by request in the same order.
    #[must_use]
    pub fn judged(&self, traces: &[ReplayTrace]) -> Judged {
        let mut services = vec![ServiceTally::default(); self.means.len()];
        for (trace, deadline) in traces.iter().zip(&self.deadlines) {
            let service = usize::from(trace.arrival.asked.service.0);
            let (tally, whole) = (&mut services[service], trace.end - trace.arrival.at);
            tally.requests += 1;
            if whole.is_finite() {
                tally.kept += usize::from(keeps(trace, deadline));
                tally.ended += 1;
                tally.latency += normalised(whole, self.means[service]);
            }
        }
        Judged { services }
    }
}

fn keeps(trace: &ReplayTrace, deadline: &Deadline) -> bool {
    let ReplayTrace { arrival, first, end, .. } = trace;
    let rest = deadline.tpot * request(arrival).steps().max(1.0);
    first.0 - arrival.at.0 <= deadline.ttft.0 && *end - *first <= rest && *end - arrival.at <= deadline.e2e
}

fn request(arrival: &Arrival) -> WorkloadRequest {
    let tokens = |n: u32| Tokens(f64::from(n));
    WorkloadRequest { prompt: tokens(arrival.asked.prompt), answer: tokens(arrival.asked.answer) }
}

/// What became of a service's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceTally {
    /// That came.
    pub requests: usize,
    /// That kept their deadlines.
    pub kept: usize,
    /// That ended.
    pub ended: usize,
    /// L_N (Equation 1): times of those that ended, each as a multiple of its service's mean alone, added up.
    pub latency: f64,
}

/// What became of all, by service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// In order of services.
    pub services: Vec<ServiceTally>,
}

impl From<&Judged> for Performance {
    fn from(judged: &Judged) -> Self {
        Self { attainment: judged.attainment(), normalised: judged.normalised() }
    }
}

impl Judged {
    /// Share of all requests that kept their deadlines; those that were not served did not.
    #[must_use]
    pub fn attainment(&self) -> f64 {
        self.sum(|t| t.kept as f64) / self.sum(|t| t.requests as f64).max(1.0)
    }

    /// Mean normalised latency of those that ended.
    #[must_use]
    pub fn normalised(&self) -> f64 {
        self.sum(|t| t.latency) / self.sum(|t| t.ended as f64).max(1.0)
    }

    fn sum(&self, of: impl Fn(&ServiceTally) -> f64) -> f64 {
        self.services.iter().map(of).sum()
    }

    /// The unserved index UI of a service (Equation 6): its requests that were late or not served, then its latency.
    #[must_use]
    pub fn urgency(&self, service: ServiceNo) -> f64 {
        let tally = self.services.get(usize::from(service.0)).copied().unwrap_or_default();
        (tally.requests - tally.kept) as f64 + ALPHA * tally.latency
    }

    /// Better ones first: more deadlines kept, then more ended, then less latency.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let kept = |j: &Self| j.sum(|t| t.kept as f64);
        let ended = |j: &Self| j.sum(|t| t.ended as f64);
        let latency = |j: &Self| j.sum(|t| t.latency);
        let more = kept(other).total_cmp(&kept(self)).then(ended(other).total_cmp(&ended(self)));
        more.then(latency(self).total_cmp(&latency(other)))
    }

    /// Whether it is better.
    #[must_use]
    pub fn is_better_than(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Less
    }
}

/// Simulates placements of services on their past.
#[derive(Debug)]
pub struct Judge<'s> {
    hosting: Hosting<'s>,
    past: &'s PastRequests,
}

impl<'s> Judge<'s> {
    /// Of these requests.
    #[must_use]
    pub fn new(services: &'s Services, past: &'s PastRequests) -> Self {
        Self { hosting: Hosting::new(services), past }
    }

    /// What becomes of the requests on a placement.
    pub fn judge(&mut self, placement: &Placement) -> Judged {
        let (machines, holders) = self.hosting.machines(placement);
        let links = Alike { per_token: SecondsPerToken(0.0) };
        let simulation = Simulation::new(machines, Box::new(LeastLoaded::new(holders)), Box::new(links));
        let outcome = simulation.run(&self.past.arrivals, &|_| false);
        self.past.judged(&outcome.traces)
    }
}
