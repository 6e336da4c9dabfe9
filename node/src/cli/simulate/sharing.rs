//! `tsnode simulate sharing`: several models on one GPU, taken in one order or another.

use super::several::{Seeded, traces};
use crate::cli::{
    exit::{Exit, ExitKind},
    is_set, joined, json, output,
    plan::asked::{read_model, read_workload, usage},
    verb,
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use tsnode_coordinator::{
    replay::machines::Arrival,
    scheduler::{
        Workload,
        figures::{self, Column},
        public_models::Model,
    },
};
use tsnode_simulator::{
    plot::{Plot, Scale},
    shared_gpu::{Known, ORDERS, SharedGpu, SharedGpuOrder},
    trace::beside,
};

const GPU: &str = "A800";
const SERVICES: [&str; 2] = ["Llama-2-7B:coding", "Llama-2-13B:conversation"];
const LOADS: &str = "0.6,1.2";
/// Most loads.
const MOST_LOADS: usize = 32;
const REQUESTS: &str = "1500";
const BURSTS: &str = "16";

pub(super) fn command() -> Command {
    let example = "tsnode simulate sharing --loads 0.3,0.6,0.9,1.2 --svg sharing.svg\n  \
                   tsnode simulate sharing --service Llama-2-7B:coding --service Llama-2-7B:conversation --gpu A40 --loads 0.6";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    verb("sharing", "Several models on one GPU: whose turn it is, and what that is worth", example)
        .arg(
            value("service", "MODEL[:WORKLOAD]", "A model on it, with coding, conversation, or a trace's CSV file; repeat [default: Llama-2-7B:coding and Llama-2-13B:conversation]")
                .action(ArgAction::Append),
        )
        .arg(value("gpu", "NAME", "The GPU [default: A800]"))
        .arg(value("orders", "A,B,…", "Of doubling, first-come, round-robin, feedback, and peers-doubling, peers-round-robin, peers-first-come: as peers take turns by --sharing [default: all]"))
        .arg(value("loads", "L,M,…", "Run at these loads: each service's requests, one by one, would take so much of the GPU's time [default: 0.6,1.2]"))
        .arg(value("trace", "FILE,FILE,…", "A trace of requests at their times for each service, instead of drawn ones").conflicts_with_all(["loads", "requests", "bursty", "seed", "svg"]))
        .args(Seeded::args("Draw so many of all services together [default: 1500]", "Gaps with this squared coefficient of variation [default: 16]"))
        .arg(value("figures", "COLUMN", "GPU figures: vendor or paper [default: vendor]"))
        .arg(value("svg", "FILE", "Draw mean normalised latency over loads into this file"))
        .arg(json())
}

/// The command line, understood.
struct SharingQuery {
    gpu: String,
    services: Vec<(Model, Workload)>,
    shared: SharedGpu,
    orders: Vec<(&'static str, SharedGpuOrder)>,
    /// Requests, and at which load they were drawn.
    lists: Vec<(Option<f64>, Vec<Arrival>)>,
    svg: Option<String>,
    json: bool,
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let asked = SharingQuery::read(matches)?;
    joined(tokio::task::spawn_blocking(move || asked.run())).await?
}

impl SharingQuery {
    fn read(matches: &ArgMatches) -> Result<Self, Exit> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
        let given: Vec<&str> =
            matches.get_many::<String>("service").into_iter().flatten().map(String::as_str).collect();
        let given = if given.is_empty() { SERVICES.to_vec() } else { given };
        let services = given.into_iter().map(service).collect::<Result<Vec<_>, _>>()?;
        let (name, column) = (text("gpu").unwrap_or(GPU), text("figures").unwrap_or("vendor"));
        let column: Column = column.parse().map_err(usage)?;
        let known = figures::shipped(column);
        let gpu = known.get(name).ok_or_else(|| {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            usage(format!("no GPU is called {name:?}; there are {}", names.join(", ")))
        })?;
        let shared = SharedGpu::new(gpu, &services).map_err(|e| usage(e.to_string()))?;
        let lists = match text("trace") {
            Some(files) => {
                let all = beside(traces(files, services.len())?);
                if let Some(long) = all.iter().find(|arrival| !shared.holds(arrival.asked)) {
                    let tokens = u64::from(long.asked.prompt) + u64::from(long.asked.answer);
                    return Err(usage(format!(
                        "--trace: the KV of a request with {tokens} tokens does not fit the {name}"
                    )));
                }
                vec![(None, all)]
            }
            None => {
                let seeded = Seeded::read(matches, REQUESTS, BURSTS)?;
                let drawn = |load| (Some(load), shared.requests(load, seeded.requests, seeded.arriving, seeded.seed));
                loads(text("loads").unwrap_or(LOADS))?.into_iter().map(drawn).collect()
            }
        };
        let svg = text("svg").map(str::to_owned);
        if svg.is_some() && lists.len() < 2 {
            return Err(usage("--svg draws latencies over loads: give two --loads or more, as in --loads 0.3,0.6,1.2"));
        }
        let orders = orders(text("orders"))?;
        Ok(Self { gpu: name.to_owned(), services, shared, orders, lists, svg, json: is_set(matches, "json") })
    }

    fn run(&self) -> Result<(), Exit> {
        let runs: Vec<Ran> = self.lists.iter().flat_map(|(load, list)| self.at(*load, list)).collect();
        if let Some(path) = &self.svg {
            std::fs::write(path, self.drawn(&runs)).map_err(|e| Exit::file(ExitKind::Other, path, &e))?;
        }
        if self.json {
            return output::print_json(&self.document(&runs));
        }
        self.print(&runs)
    }

    fn at(&self, load: Option<f64>, arrivals: &[Arrival]) -> Vec<Ran> {
        let ran = |(name, order): &(&'static str, SharedGpuOrder)| {
            let run = self.shared.run(*order, arrivals);
            let figures = [run.mean, run.p50, run.p99, run.busy];
            Ran { load, order: name, requests: arrivals.len(), figures }
        };
        self.orders.iter().map(ran).collect()
    }

    fn print(&self, runs: &[Ran]) -> Result<(), Exit> {
        for ((model, workload), alone) in self.services.iter().zip(self.shared.profiles(Known::Service)) {
            say!("{} on {}: {:.2} s alone on average", workload.name, model.name, alone.mean.0);
        }
        say!("{}, {} KV pages that they share\n", self.gpu, self.shared.kv_pages());
        let head = ["LOAD", "ORDER", "NORMALISED", "P50", "P99", "GPU BUSY", "REQUESTS"];
        let mut rows = vec![head.map(String::from).to_vec()];
        for Ran { load, order, requests, figures: [mean, p50, p99, busy] } in runs {
            rows.push(vec![
                load.map_or("trace".into(), |load| load.to_string()),
                (*order).to_owned(),
                format!("{mean:.2}"),
                format!("{p50:.2}"),
                format!("{p99:.1}"),
                format!("{:.0} %", busy * 100.0),
                requests.to_string(),
            ]);
        }
        output::table(&rows)
    }

    fn document(&self, runs: &[Ran]) -> Value {
        let services = self.services.iter().zip(self.shared.profiles(Known::Service));
        let services = services.map(|((model, workload), alone)| {
            json!({ "model": model.name, "workload": workload.name, "mean_alone_s": alone.mean.0 })
        });
        let runs = runs.iter().map(|Ran { load, order, requests, figures: [mean, p50, p99, busy] }| {
            json!({ "load": load, "order": order, "requests": requests, "gpu_busy": busy,
                "normalised": { "mean": mean, "p50": p50, "p99": p99 } })
        });
        json!({ "gpu": self.gpu, "kv_pages": self.shared.kv_pages(), "services": services.collect::<Vec<_>>(),
            "runs": runs.collect::<Vec<_>>() })
    }

    fn drawn(&self, runs: &[Ran]) -> String {
        let rates: Vec<f64> = self.lists.iter().filter_map(|(load, _)| *load).collect();
        let line = |(name, _): &(&'static str, SharedGpuOrder)| {
            let own = runs.iter().filter(|ran| ran.order == *name);
            ((*name).to_owned(), own.map(|ran| ran.figures[0]).collect())
        };
        let series: Vec<(String, Vec<f64>)> = self.orders.iter().map(line).collect();
        let names: Vec<&str> = self.services.iter().map(|(model, _)| model.name.as_str()).collect();
        let title = format!("{} on one {}", names.join(", "), self.gpu);
        let (across, up) = ("load of each service", "mean normalised latency");
        Plot { title: &title, across, up, rates: &rates, scale: Scale::Multiples, series: &series }.svg()
    }
}

/// What came of one list in one order.
struct Ran {
    load: Option<f64>,
    order: &'static str,
    requests: usize,
    /// Mean, median and P99 of normalised latencies, and the part of the time in which the GPU was busy.
    figures: [f64; 4],
}

fn service(text: &str) -> Result<(Model, Workload), Exit> {
    let (model, workload) = text.split_once(':').unwrap_or((text, "conversation"));
    Ok((read_model(model)?, read_workload(workload)?))
}

fn orders(list: Option<&str>) -> Result<Vec<(&'static str, SharedGpuOrder)>, Exit> {
    let Some(list) = list else { return Ok(ORDERS.to_vec()) };
    let one = |name: &str| {
        let known = ORDERS.iter().find(|(known, _)| *known == name.trim()).copied();
        let names = ORDERS.map(|(name, _)| name).join(", ");
        known.ok_or_else(|| usage(format!("no order is called {name:?}; there are {names}")))
    };
    let mut chosen: Vec<(&'static str, SharedGpuOrder)> = Vec::new();
    for name in list.split(',') {
        let order = one(name)?;
        if !chosen.iter().any(|(known, _)| *known == order.0) {
            chosen.push(order);
        }
    }
    Ok(chosen)
}

fn loads(list: &str) -> Result<Vec<f64>, Exit> {
    let wrong =
        || usage(format!("--loads {list:?}: up to {MOST_LOADS} numbers from 0.01 to 100, as in --loads 0.6,1.2"));
    let one = |t: &str| t.trim().parse::<f64>().ok().filter(|load| (0.01..=100.0).contains(load));
    let mut loads: Vec<f64> = list.split(',').map(one).collect::<Option<_>>().ok_or_else(wrong)?;
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    if loads.len() > MOST_LOADS { Err(wrong()) } else { Ok(loads) }
}
