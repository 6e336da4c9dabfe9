//! `tsnode simulate placement`: which devices of a cluster hold which models, by requests that came.

use super::{
    several::{Seeded, traces},
    stopping::stoppable,
};
use crate::cli::{
    exit::{Exit, ExitKind},
    is_set, json, output,
    plan::asked::{Service, read_cluster, usage},
    switch, verb,
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    replay::machines::Arrival,
    scheduler::{Cluster, Problem, Space, figures::Column, slo::Reference},
};
use tsnode_protocol::{BytesPerSecond, Seconds, Tokens};
use tsnode_simulator::{
    diagram::placement as picture,
    placement::{
        MOST_SHARING, Placement, Services, baselines,
        judge::{Judge, Judged, PastRequests},
        replacement::Rule,
        search::{self, FoundPlacement, PlacementEffort},
        serving::{self, ServingOptions},
    },
    trace::{beside, drawn},
};

/// Requests of each service that placements are made for, and as many that they are judged by.
const REQUESTS: &str = "1000";
const BURSTS: &str = "4";
/// At which a group loads weights: a local disk of NVMe.
const LOADING: BytesPerSecond = BytesPerSecond(10e9);
/// Past requests that guide searches on the way, and changes tried: they come often.
const BRIEF: PlacementEffort = PlacementEffort { guide: 250, changes: 30, margin: 1.2 };

pub(super) fn command() -> Command {
    let example = "tsnode simulate placement --cluster a100x8 --service LLaMA-7B:coding:4 --service LLaMA-13B:conversation:1 --svg placement.svg\n  \
                   tsnode simulate placement --cluster a100x8 --service LLaMA-7B --service LLaMA-13B --trace a.csv,b.csv --follow";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    verb("placement", "Several models on one cluster: which devices hold which, alone or shared", example)
        .arg(value("cluster", "FILE", "The cluster: a TOML file, or one of cloud32, a100x8").required(true))
        .arg(
            value("service", "MODEL[:WORKLOAD[:RATE[:SLO]]]", "One of the models, with what is asked of it; repeat")
                .action(ArgAction::Append)
                .required(true),
        )
        .arg(value("sharing", "N", "Most models on a group of devices [default: 2]"))
        .arg(
            value("trace", "FILE,FILE,…", "A trace of requests at their times for each service, instead of drawn ones: placed by the first half, judged by the second")
                .conflicts_with_all(["requests", "bursty"]),
        )
        .args(Seeded::args("Draw so many of all services together, and as many to judge by [default: 1000]", "Gaps with this squared coefficient of variation [default: 4]"))
        .arg(switch("follow", "Also place anew on the way, at SeaLLM's adaptive interval"))
        .arg(value("figures", "COLUMN", "GPU figures: vendor or paper [default: vendor]"))
        .arg(value("links", "VARIANT", "Links between hosts: default, or one the file names (high, low)"))
        .arg(value("svg", "FILE", "Draw the placement into this file"))
        .arg(json())
}

/// The command line, understood.
struct PlacementQuery {
    services: Services,
    past: PastRequests,
    later: PastRequests,
    seed: u64,
    follow: bool,
    svg: Option<String>,
    json: bool,
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let asked = PlacementQuery::read(matches)?;
    // A signal ends the search with the best so far.
    stoppable(move |stopped| asked.run(stopped)).await
}

impl PlacementQuery {
    fn read(matches: &ArgMatches) -> Result<Self, Exit> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
        let column: Column = text("figures").unwrap_or("vendor").parse().map_err(usage)?;
        let cluster = read_cluster(text("cluster").unwrap_or_default(), column, text("links"))?;
        let sharing = text("sharing").map_or(Ok(MOST_SHARING), str::parse);
        let sharing = sharing.map_err(|_| usage("--sharing: a whole number, as in --sharing 2"))?;
        let given = matches.get_many::<String>("service").into_iter().flatten();
        let problems = given.map(|one| problem(Service::parse(one)?, &cluster, column));
        let services = Services::new(problems.collect::<Result<_, _>>()?, sharing).map_err(|e| usage(e.to_string()))?;
        let seeded = Seeded::read(matches, REQUESTS, BURSTS)?;
        let (services, past, later) = match text("trace") {
            Some(files) => halves(services, beside(traces(files, given_count(matches))?))?,
            None => {
                let list = |seed| PastRequests::new(&services, requests(&services, &seeded, seed));
                let (past, later) = (list(seeded.seed), list(seeded.seed.wrapping_add(1)));
                (services, past, later)
            }
        };
        let (svg, follow) = (text("svg").map(str::to_owned), is_set(matches, "follow"));
        Ok(Self { services, past, later, seed: seeded.seed, follow, svg, json: is_set(matches, "json") })
    }

    fn run(&self, stopped: &AtomicBool) -> Result<(), Exit> {
        let (services, started) = (&self.services, Instant::now());
        let bar = indicatif::ProgressBar::new_spinner().with_message(format!("placing {} models", services.count()));
        bar.enable_steady_tick(Duration::from_millis(100));
        let stop = || stopped.load(Ordering::Relaxed);
        let found = search::search(services, &self.past, None, PlacementEffort::default(), self.seed, &stop);
        let took = started.elapsed();
        let found = found.map_err(|e| usage(e.to_string()));
        let rows = found.as_ref().ok().map(|found| self.compared(found, &stop));
        bar.finish_and_clear();
        let (found, rows) = (found?, rows.unwrap_or_default());
        if let Some(path) = &self.svg {
            let drawn = picture::svg(services, &found.placement, &title(services, &rows));
            std::fs::write(path, drawn).map_err(|e| Exit::file(ExitKind::Other, path, &e))?;
        }
        if self.json {
            return output::print_json(&self.document(&found, &rows, took));
        }
        self.print(&found, &rows, took)
    }

    /// The placement that was found, beside simpler ones that are the best of their kind on the past, all on later requests.
    fn compared(&self, found: &FoundPlacement, stop: &dyn Fn() -> bool) -> Vec<PlacementRow> {
        let services = &self.services;
        let later = |placement: &Placement| Judge::new(services, &self.later).judge(placement);
        let best = |all: Vec<Placement>| {
            let mut judge = Judge::new(services, &self.past);
            let rated = all.into_iter().map(|p| (judge.judge(&p), p));
            rated.min_by(|a, b| a.0.order(&b.0)).map(|(_, placement)| later(&placement))
        };
        let mut rows = vec![PlacementRow::new("placed", Some(later(&found.placement)))];
        if stop() {
            return rows;
        }
        rows.push(PlacementRow::new("devices of their own", best(baselines::dedicated(services))));
        rows.push(PlacementRow::new("dealt in turn", best(baselines::in_turn(services))));
        if self.follow && !stop() {
            let how = ServingOptions { rule: Some(Rule::default()), effort: BRIEF, seed: self.seed, loading: LOADING };
            let served = serving::serve(services, &self.past, &self.later, how).ok();
            let note = served.as_ref().map(|served| {
                let (changes, loaded) = (served.replacements, served.loaded.0 / 1e9);
                format!("{} intervals, {changes} replacements, {loaded:.0} GB loaded", served.intervals)
            });
            rows.push(PlacementRow {
                note,
                ..PlacementRow::new("placed anew on the way", served.map(|served| served.judged))
            });
        }
        rows
    }

    fn print(&self, found: &FoundPlacement, rows: &[PlacementRow], took: Duration) -> Result<(), Exit> {
        let services = &self.services;
        let head = ["GROUP", "DEVICES", "MODELS"].map(String::from).to_vec();
        let groups = found.placement.groups.iter().enumerate().map(|(place, sharing)| {
            let models: Vec<&str> = sharing.services.iter().map(|s| services.problem(*s).model.name.as_str()).collect();
            let models = if models.is_empty() { "none".into() } else { models.join(", ") };
            vec![(place + 1).to_string(), picture::devices(services.cluster(), &sharing.group), models]
        });
        output::table(&std::iter::once(head).chain(groups).collect::<Vec<_>>())?;
        say!("");
        let mut table = vec![["ON LATER REQUESTS", "IN TIME", "NORMALISED", ""].map(String::from).to_vec()];
        for PlacementRow { name, judged, note } in rows {
            let [in_time, normalised] = judged.as_ref().map_or(["-".into(), "-".into()], |judged| {
                [format!("{:.1} %", judged.attainment() * 100.0), format!("{:.2}", judged.normalised())]
            });
            table.push(vec![(*name).to_owned(), in_time, normalised, note.clone().unwrap_or_default()]);
        }
        output::table(&table)?;
        say!(
            "\nsearch   {} ways to group devices, {} placements simulated, {:.1} s",
            found.partitions,
            found.simulated,
            took.as_secs_f64()
        );
        Ok(())
    }

    fn document(&self, found: &FoundPlacement, rows: &[PlacementRow], took: Duration) -> Value {
        let services = &self.services;
        let groups = found.placement.groups.iter().map(|sharing| {
            let models: Vec<&str> = sharing.services.iter().map(|s| services.problem(*s).model.name.as_str()).collect();
            let numbers: Vec<u16> = sharing.services.iter().map(|s| s.0).collect();
            json!({ "devices": picture::devices(services.cluster(), &sharing.group), "services": numbers, "models": models })
        });
        let judged = |row: &PlacementRow| {
            let judged = row.judged.as_ref();
            json!({ "name": row.name, "attainment": judged.map(Judged::attainment),
                "normalised": judged.map(Judged::normalised), "note": row.note })
        };
        let past = json!({ "attainment": found.judged.attainment(), "normalised": found.judged.normalised() });
        json!({
            "groups": groups.collect::<Vec<_>>(), "past": past, "later": rows.iter().map(judged).collect::<Vec<_>>(),
            "partitions": found.partitions, "simulated": found.simulated, "search_s": took.as_secs_f64(),
        })
    }
}

/// A placement on later requests.
struct PlacementRow {
    name: &'static str,
    /// None where there is no such placement.
    judged: Option<Judged>,
    note: Option<String>,
}

impl PlacementRow {
    fn new(name: &'static str, judged: Option<Judged>) -> Self {
        Self { name, judged, note: None }
    }
}

fn title(services: &Services, rows: &[PlacementRow]) -> String {
    let judged = rows.first().and_then(|row| row.judged.as_ref());
    let in_time =
        judged.map_or(String::new(), |j| format!(": {:.1} % of later requests in time", j.attainment() * 100.0));
    format!("{} models on {}{in_time}", services.count(), services.cluster().name)
}

fn given_count(matches: &ArgMatches) -> usize {
    matches.get_many::<String>("service").map_or(0, Iterator::count)
}

fn problem(service: Service, cluster: &Cluster, column: Column) -> Result<Problem, Exit> {
    let Service { model, workload, rate, slo } = service;
    let reference = Reference::a100(&model, column);
    let reference = reference.ok_or_else(|| Exit::new(ExitKind::Other, "no figures for the reference GPU"))?;
    let workload = workload.within(Tokens(f64::from(model.shape.context)));
    Problem::new(cluster.clone(), model, workload, rate, slo, reference, Space::default())
        .map_err(|e| usage(e.to_string()))
}

/// Requests of all services, drawn over one span of time.
fn requests(services: &Services, seeded: &Seeded, seed: u64) -> Vec<Arrival> {
    let all: f64 = services.ids().map(|s| services.problem(s).rate).sum();
    let list = |s| {
        let problem = services.problem(s);
        let count = ((seeded.requests as f64 * problem.rate / all) as usize).max(1);
        drawn(
            &problem.workload,
            problem.rate,
            count,
            seeded.arriving,
            seed.wrapping_mul(1000).wrapping_add(u64::from(s.0)),
        )
    };
    beside(services.ids().map(list).collect())
}

/// The first half of the time, for which services are placed at its rates, and the second.
fn halves(services: Services, all: Vec<Arrival>) -> Result<(Services, PastRequests, PastRequests), Exit> {
    let last = all.last().map_or(Seconds(0.0), |a| a.at);
    let half = last / 2.0;
    let whole = PastRequests::new(&services, all);
    let (past, later) = (whole.between(Seconds(0.0), half), whole.between(half, last + Seconds(1.0)));
    if past.is_empty() || later.is_empty() {
        return Err(usage("--trace: its requests all come at once; there must be some in each half of its time"));
    }
    let rates: Vec<f64> = past.counts(half).requests.iter().map(|n| f64::from(*n) / half.0).collect();
    Ok((services.at_rates(&rates), past, later))
}
