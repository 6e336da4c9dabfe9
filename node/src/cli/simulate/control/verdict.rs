//! What scenarios came to: one verdict, and the sum of many.

use super::ControlQuery;
use crate::cli::{
    exit::{Exit, ExitKind},
    output,
};
use serde_json::{Value, json};
use std::time::Duration;
use tsnode_simulator::simulation::{ScenarioReport, Script, requests::ScenarioTally};

/// What is measured only where clients come.
const SERVED: &str = "served after that";

pub(super) fn verdict(script: &Script, report: &ScenarioReport) -> Value {
    let figures = &report.figures;
    json!({
        "seed": script.seed,
        "peers": script.peers,
        "broken": report.broken.as_ref().map(|b| json!({ "sentence": b.sentence, "at_s": b.at.as_secs_f64(), "what": b.what })),
        "lasted_s": report.lasted.as_secs_f64(),
        "agreed_after_s": figures.agreed_after,
        "served_after_s": figures.served_after,
        "requests": requests(&figures.requests),
        "plans": figures.plans,
        "false_deaths": figures.false_deaths,
        "said": figures.said,
        "noticed_at_once_s": figures.noticed_at_once,
        "noticed_by_silence_s": figures.noticed_by_silence,
    })
}

/// How requests fared, for programs.
fn requests(of: &ScenarioTally) -> Value {
    json!({
        "asked": of.asked, "complete": of.complete, "unserved": of.unserved, "failed": of.failed,
        "cancelled": of.cancelled, "lost": of.lost, "resumed": of.resumed, "moved": of.moved, "went_on": of.went_on,
    })
}

/// The same for people.
pub(super) fn fared(of: &ScenarioTally) -> String {
    let ScenarioTally { asked, complete, unserved, failed, cancelled, lost, resumed, moved, went_on } = of;
    format!(
        "{asked} requests: {complete} complete, {unserved} told to ask again, {failed} failed, {cancelled} cancelled, \
         {lost} lost with their gateway\n{resumed} gone on with at another gateway, {moved} moved to another group, \
         {went_on} of them with tokens"
    )
}

/// What came of many scenarios.
#[derive(Default)]
pub(super) struct ScenariosSummary {
    runs: u64,
    broken: Vec<Value>,
    agreed: Vec<f64>,
    served: Vec<f64>,
    requests: ScenarioTally,
    at_once: Vec<f64>,
    by_silence: Vec<f64>,
    false_deaths: u64,
    plans: u64,
}

impl ScenariosSummary {
    pub(super) fn add(&mut self, script: &Script, report: ScenarioReport) {
        self.runs += 1;
        if report.broken.is_some() {
            self.broken.push(verdict(script, &report));
        }
        let figures = report.figures;
        self.agreed.extend(figures.agreed_after);
        self.served.extend(figures.served_after);
        self.requests += figures.requests;
        self.at_once.extend(figures.noticed_at_once);
        self.by_silence.extend(figures.noticed_by_silence);
        self.false_deaths += figures.false_deaths;
        self.plans += figures.plans;
    }

    pub(super) fn print(mut self, asked: &ControlQuery, took: Duration) -> Result<(), Exit> {
        self.broken.sort_by_key(|b| b["seed"].as_u64());
        let times = [
            ("agreed", &mut self.agreed),
            (SERVED, &mut self.served),
            ("noticed at once", &mut self.at_once),
            ("noticed by silence", &mut self.by_silence),
        ];
        let mut rows = Vec::new();
        for (name, of) in times {
            if of.is_empty() && asked.clients == 0.0 && name == SERVED {
                continue;
            }
            of.sort_by(f64::total_cmp);
            let at = |q: f64| of.get((q * of.len().saturating_sub(1) as f64) as usize).copied();
            rows.push((name, of.len(), [at(0.5), at(0.99), at(1.0)]));
        }
        if asked.json {
            let quantiles: Value = rows
                .iter()
                .map(|(name, count, at)| json!({ "what": name, "count": count, "p50_s": at[0], "p99_s": at[1], "most_s": at[2] }))
                .collect();
            output::print_json(&json!({
                "scenarios": self.runs, "stories": self.runs, "broken": self.broken, "plans": self.plans, "false_deaths": self.false_deaths,
                "requests": requests(&self.requests), "times": quantiles, "took_s": took.as_secs_f64(),
            }))?;
        } else {
            let (runs, plans, deaths) = (self.runs, self.plans, self.false_deaths);
            say!("{runs} scenarios in {:.0} s: {plans} plans, {deaths} false deaths", took.as_secs_f64());
            for (name, count, at) in rows {
                let [median, most_of, most] = at.map(|t| t.map_or_else(|| "-".into(), |t| format!("{t:.2} s")));
                say!("{name:20} median {median}, 99 % {most_of}, at most {most}, of {count}");
            }
            if asked.clients > 0.0 {
                say!("{}", fared(&self.requests));
            }
        }
        match self.broken.len() {
            0 => Ok(()),
            n => Err(Exit::new(ExitKind::Other, format!("{n} of {} scenarios broke an invariant", self.runs))),
        }
    }
}
