//! Policies side by side: at one rate as a table, over rates as a table and a plot.

use super::{
    super::output,
    args::SimulationJob,
    metric::{ComparedMetric, time},
    run::{PolicyRun, Site},
};
use crate::cli::exit::Exit;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use tsnode_simulator::{
    plot::{Plot, Scale},
    summary::Summary,
};

/// A line for each run.
pub(super) fn table(runs: &[PolicyRun]) -> Result<(), Exit> {
    let head = ["POLICY", "IN TIME", "FIRST TOKEN P50", "P99", "BETWEEN TOKENS P99", "ANSWER P50", "P99", "REQUESTS/S"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for run in runs {
        let s = &run.summary;
        rows.push(vec![
            run.name.to_owned(),
            format!("{:.1} %", s.attainment * 100.0),
            format!("{:.2} s", s.ttft.p50),
            format!("{:.2} s", s.ttft.p99),
            s.tbt.map_or_else(String::new, |t| time(t.p99)),
            format!("{:.1} s", s.e2e.p50),
            format!("{:.1} s", s.e2e.p99),
            format!("{:.2}", s.requests_per_second),
        ]);
    }
    output::table(&rows)
}

/// Runs of all policies at several rates, on the plan for the one that was asked.
pub(super) struct Sweep {
    /// At each rate, each policy's.
    rows: Vec<(f64, Vec<Summary>)>,
}

impl Sweep {
    pub(super) fn new(job: &SimulationJob, sites: &mut [Site<'_>], stopped: &AtomicBool) -> Self {
        let (own, mut rows) = (job.requests.nominal(&job.problem), Vec::new());
        for &rate in &job.rates {
            let arrivals = job.requests.faster(rate / own);
            let run = |p| PolicyRun::new(&job.problem, sites, &arrivals, p, job.asked.seed, stopped).summary;
            let summaries: Vec<Summary> = job.policies.iter().map(run).collect();
            // Half a rate would mislead.
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            rows.push((rate, summaries));
        }
        Self { rows }
    }

    pub(super) fn json(&self, job: &SimulationJob) -> Value {
        let row = |(rate, summaries): &(f64, Vec<Summary>)| {
            let runs = job.policies.iter().zip(summaries);
            let runs: Vec<Value> = runs.map(|(p, s)| json!({ "policy": p.name, "summary": s })).collect();
            json!({ "rate": rate, "runs": runs })
        };
        self.rows.iter().map(row).collect()
    }

    pub(super) fn print(&self, job: &SimulationJob) -> Result<(), Exit> {
        say!("{} at so many requests/s, on the plan for {}\n", job.metric.title(), job.problem.rate);
        let names = job.policies.iter().map(|p| p.name.to_owned());
        let mut rows = vec![std::iter::once("REQUESTS/S".to_owned()).chain(names).collect::<Vec<_>>()];
        for (rate, summaries) in &self.rows {
            let cells = summaries.iter().map(|s| job.metric.shown(job.metric.of(s)));
            rows.push(std::iter::once(format!("{rate:.3}")).chain(cells).collect());
        }
        output::table(&rows)
    }

    pub(super) fn svg(&self, job: &SimulationJob) -> String {
        let rates: Vec<f64> = self.rows.iter().map(|(rate, _)| *rate).collect();
        let line = |place: usize| self.rows.iter().map(|(_, all)| job.metric.of(&all[place])).collect();
        let series: Vec<(String, Vec<f64>)> =
            job.policies.iter().enumerate().map(|(place, p)| (p.name.to_owned(), line(place))).collect();
        let problem = &job.problem;
        let (model, cluster) = (&problem.model.name, &problem.cluster.name);
        let title = format!("{model} on {cluster}, {}, {}", problem.workload.name, problem.slo);
        let scale = if job.metric == ComparedMetric::InTime { Scale::Share } else { Scale::Seconds };
        let (across, up) = ("requests/s", job.metric.title());
        Plot { title: &title, across, up, rates: &rates, scale, series: &series }.svg()
    }
}
