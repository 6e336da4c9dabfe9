//! What simulations of several services have in common: requests drawn by a seed, and traces of each service.

use crate::cli::{
    exit::{Exit, ExitKind},
    plan::asked::usage,
};
use clap::{Arg, ArgMatches};
use tsnode_coordinator::replay::machines::Arrival;
use tsnode_simulator::trace::{self, Arriving};

/// Most requests that are drawn.
const MOST_REQUESTS: usize = 1_000_000;

/// How requests are drawn.
pub(super) struct Seeded {
    pub requests: usize,
    pub arriving: Arriving,
    pub seed: u64,
}

impl Seeded {
    /// Its flags.
    pub fn args(requests: &'static str, bursty: &'static str) -> [Arg; 3] {
        let value = |name: &'static str, value: &'static str, help: &'static str| {
            Arg::new(name).long(name).value_name(value).help(help)
        };
        [
            value("requests", "N", requests),
            value("bursty", "C2", bursty),
            value("seed", "S", "Seed of the requests [default: 0]"),
        ]
    }

    pub fn read(matches: &ArgMatches, requests: &str, bursty: &str) -> Result<Self, Exit> {
        let text =
            |name: &str, default| matches.get_one::<String>(name).map_or(default, |text| text.as_str()).to_owned();
        let (requests, bursty, seed) = (text("requests", requests), text("bursty", bursty), text("seed", "0"));
        let count = requests.parse().ok().filter(|n| (1..=MOST_REQUESTS).contains(n));
        let count = count.ok_or_else(|| usage(format!("--requests {requests:?}: from 1 to {MOST_REQUESTS}")))?;
        let variation = bursty.parse::<f64>().ok().filter(|c| c.is_finite() && *c >= 1.0);
        let variation =
            variation.ok_or_else(|| usage(format!("--bursty {bursty:?}: a number of at least 1, as in --bursty 4")))?;
        let seed = seed.parse().map_err(|_| usage(format!("--seed {seed:?} is no whole number")))?;
        Ok(Self { requests: count, arriving: Arriving::Bursty(variation), seed })
    }
}

/// A trace for each of so many services, in their order.
pub(super) fn traces(files: &str, services: usize) -> Result<Vec<Vec<Arrival>>, Exit> {
    let files: Vec<&str> = files.split(',').map(str::trim).collect();
    if files.len() != services {
        return Err(usage(format!(
            "--trace names {} files, and there are {services} services: one for each, in their order, with commas between",
            files.len()
        )));
    }
    let one = |file: &&str| {
        let text = std::fs::read_to_string(file).map_err(|e| Exit::file(ExitKind::Usage, *file, &e))?;
        trace::read(&text).map_err(|e| usage(format!("{file}: {e}")))
    };
    files.iter().map(one).collect()
}
