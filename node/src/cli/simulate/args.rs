//! The command line of `tsnode simulate`, understood.

use super::{
    super::{
        is_set,
        plan::asked::{PlanQuery, usage},
    },
    metric::ComparedMetric,
    policies::{self, ComparedPolicy},
};
use crate::cli::exit::{Exit, ExitKind};
use clap::ArgMatches;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tsnode_coordinator::{replay::machines::Arrival, scheduler::Problem};
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    fixed_plan::Written,
    trace::{self, Arriving},
};

/// Requests drawn if nothing else is said.
const REQUESTS: usize = 5000;
/// Most requests drawn: more do not fit memory.
const MOST_REQUESTS: usize = 20_000_000;
/// Most rates.
const MOST_RATES: usize = 50;
/// Parts of the rate at which policies are plotted.
const AROUND: [f64; 7] = [0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5];

/// What is to be simulated.
pub(super) struct SimulationJob {
    pub(super) asked: PlanQuery,
    pub(super) problem: Problem,
    /// The plan, if it is not to be searched.
    pub(super) written: Option<Written>,
    pub(super) policies: Vec<ComparedPolicy>,
    pub(super) requests: TracedRequests,
    /// Rates besides the requests' own.
    pub(super) rates: Vec<f64>,
    pub(super) metric: ComparedMetric,
    pub(super) svg: Option<PathBuf>,
    pub(super) json: bool,
}

/// Requests that come.
pub(super) struct TracedRequests {
    pub(super) arrivals: Vec<Arrival>,
    /// Of each its line in the trace, if there is one.
    lines: Vec<usize>,
}

impl TracedRequests {
    /// Requests a second.
    pub(super) fn rate(&self) -> f64 {
        let last = self.arrivals.last().map_or(0.0, |a| a.at.0);
        if last > 0.0 { self.arrivals.len() as f64 / last } else { 0.0 }
    }

    /// Whether they were read from a file.
    fn is_trace(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The rate they were made for: the one asked for, or a trace's own.
    pub(super) fn nominal(&self, problem: &Problem) -> f64 {
        if self.is_trace() { self.rate() } else { problem.rate }
    }

    /// The same requests, coming faster or more slowly.
    pub(super) fn faster(&self, factor: f64) -> Vec<Arrival> {
        self.arrivals.iter().map(|a| Arrival { at: Seconds(a.at.0 / factor), ..*a }).collect()
    }

    /// How a request is called in an error.
    pub(super) fn name(&self, place: usize) -> String {
        let line = self.lines.get(place).map(|line| format!("line {line}, "));
        format!("{}request {}", line.unwrap_or_default(), place + 1)
    }
}

impl SimulationJob {
    pub(super) fn read(matches: &ArgMatches) -> Result<Self, Exit> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
        let asked = PlanQuery::read(text("cluster").unwrap_or_default(), matches)?;
        let policies = policies::named(text("compare").or(text("policy")).unwrap_or(policies::USUAL))?;
        let mut problem = asked.problem(&asked.service, asked.cluster.clone())?;
        // Planned for the first of them.
        problem.prompts = policies.first().map_or(problem.prompts, |p| p.prompts());
        let written = match text("plan") {
            None | Some("auto") => None,
            Some(file) if asked.budget.is_some() => {
                return Err(usage(format!("--budget: the plan is that of {file}, and none is searched")));
            }
            Some(file) => Some(plan(file)?),
        };
        let requests = match text("trace") {
            Some(file) => from_trace(file)?,
            None => drawn(&problem, asked.seed, text("requests"), text("bursty"))?,
        };
        let svg = text("svg").map(PathBuf::from);
        if let Some(folder) = svg.as_deref().and_then(Path::parent).filter(|f| !f.as_os_str().is_empty() && !f.is_dir())
        {
            return Err(usage(format!("--svg: there is no folder {}", folder.display())));
        }
        let plotted = svg.is_some() && text("compare").is_some();
        let rates = match text("rates") {
            Some(list) => rates(list)?,
            None if plotted && requests.nominal(&problem) <= 0.0 => {
                return Err(usage("the trace's requests all come at once: say which --rates"));
            }
            None if plotted => AROUND.map(|part| part * requests.nominal(&problem)).to_vec(),
            None => Vec::new(),
        };
        let metric = text("metric").unwrap_or("in-time").parse().map_err(|e: String| usage(e))?;
        if text("metric").is_some() && rates.is_empty() {
            return Err(usage("--metric: nothing is run over rates; say --rates, or --compare with --svg"));
        }
        let json = is_set(matches, "json");
        Ok(Self { asked, problem, written, policies, requests, rates, metric, svg, json })
    }
}

fn read(file: &str) -> Result<String, Exit> {
    std::fs::read_to_string(file).map_err(|e| Exit::file(ExitKind::Usage, file, &e))
}

/// A plan as `tsnode plan --json` prints it, or its groups and routes alone.
fn plan(file: &str) -> Result<Written, Exit> {
    #[derive(Deserialize)]
    struct Printed {
        plan: Written,
    }
    let text = read(file)?;
    let wrong = |e: serde_json::Error| usage(format!("{file}: {e}"));
    let whole: serde_json::Value = serde_json::from_str(&text).map_err(wrong)?;
    if whole.get("services").is_some() {
        return Err(usage(format!("{file}: a plan of several services; one is simulated at a time")));
    }
    // Read from the text again: errors then say where.
    match whole.get("plan") {
        Some(_) => serde_json::from_str::<Printed>(&text).map(|p| p.plan).map_err(wrong),
        None => serde_json::from_str(&text).map_err(wrong),
    }
}

fn from_trace(file: &str) -> Result<TracedRequests, Exit> {
    let text = read(file)?;
    let arrivals = trace::read(&text).map_err(|e| usage(format!("{file}: {e}")))?;
    let rows = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()).skip(1);
    Ok(TracedRequests { arrivals, lines: rows.map(|(line, _)| line + 1).collect() })
}

fn drawn(problem: &Problem, seed: u64, requests: Option<&str>, bursty: Option<&str>) -> Result<TracedRequests, Exit> {
    let number = match requests {
        None => REQUESTS,
        Some(t) => {
            let valid = t.parse().ok().filter(|n| (1..=MOST_REQUESTS).contains(n));
            valid.ok_or_else(|| usage(format!("--requests {t:?}: a whole number from 1 to {MOST_REQUESTS}")))?
        }
    };
    let arriving = match bursty {
        None => Arriving::Poisson,
        Some(t) => Arriving::Bursty(variation(t)?),
    };
    let arrivals = trace::drawn(&problem.workload, problem.rate, number, arriving, seed);
    if arrivals.last().is_some_and(|a| !a.at.is_finite()) {
        return Err(usage(format!("--rate {}: {number} requests never come", problem.rate)));
    }
    Ok(TracedRequests { arrivals, lines: Vec::new() })
}

fn variation(text: &str) -> Result<f64, Exit> {
    let valid = text.parse::<f64>().ok().filter(|c| c.is_finite() && *c >= 1.0);
    valid.ok_or_else(|| usage(format!("--bursty {text:?}: a number of at least 1, as in --bursty 4")))
}

fn rates(list: &str) -> Result<Vec<f64>, Exit> {
    let wrong = || usage(format!("--rates {list:?}: up to {MOST_RATES} positive numbers, as in --rates 1,2,3"));
    let one = |t: &str| t.trim().parse::<f64>().ok().filter(|r| r.is_finite() && *r > 0.0);
    let mut rates: Vec<f64> = list.split(',').map(one).collect::<Option<_>>().ok_or_else(wrong)?;
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    if rates.len() > MOST_RATES { Err(wrong()) } else { Ok(rates) }
}
