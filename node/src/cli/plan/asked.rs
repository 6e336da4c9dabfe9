//! The command line of `tsnode plan --cluster`, understood.

use crate::cli::exit::{Exit, ExitKind};
use clap::ArgMatches;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tsnode_coordinator::{
    policy::choice::Batches,
    scheduler::{
        Cluster, Problem, Slo, Space, Workload, cluster_file,
        figures::Column,
        public_models::{self, Model},
        slo::Reference,
    },
};

/// What is asked of a cluster.
#[derive(Clone)]
pub(in crate::cli) struct Service {
    pub(in crate::cli) model: Model,
    pub(in crate::cli) workload: Workload,
    pub(in crate::cli) rate: f64,
    pub(in crate::cli) slo: Slo,
}

const MODEL: &str = "LLaMA-30B";
const WORKLOAD: &str = "conversation";
const RATE: &str = "3";
const SLO: &str = "e2e=5x";

impl Service {
    fn read(model: &str, workload: &str, rate: &str, slo: &str) -> Result<Self, Exit> {
        Ok(Self {
            model: read_model(model)?,
            workload: read_workload(workload)?,
            rate: rate.parse().map_err(|_| usage(format!("--rate {rate:?} is no number")))?,
            slo: slo.parse().map_err(|e| usage(format!("--slo: {e}")))?,
        })
    }

    /// `MODEL[:WORKLOAD[:RATE[:SLO]]]`.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, Exit> {
        let parts: Vec<&str> = text.split(':').collect();
        if parts.len() > 4 {
            return Err(usage(format!("--service {text:?}: as in LLaMA-13B:coding:2:e2e=5x")));
        }
        let part = |place: usize, default| parts.get(place).copied().filter(|p| !p.is_empty()).unwrap_or(default);
        Self::read(part(0, MODEL), part(1, WORKLOAD), part(2, RATE), part(3, SLO))
    }
}

/// The command line, understood.
pub(in crate::cli) struct PlanQuery {
    pub(in crate::cli) cluster: Cluster,
    /// The only one, if the cluster is not shared.
    pub(in crate::cli) service: Service,
    /// Those that share the cluster.
    pub(in crate::cli) sharing: Vec<Service>,
    pub(in crate::cli) column: Column,
    pub(in crate::cli) seed: u64,
    pub(in crate::cli) budget: Option<Duration>,
    pub(in crate::cli) lose: Vec<String>,
}

impl PlanQuery {
    pub(in crate::cli) fn read(cluster: &str, matches: &ArgMatches) -> Result<Self, Exit> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
        // Verbs share these flags; not every verb has all of them.
        let all = |name: &str| matches.try_get_many::<String>(name).ok().flatten().into_iter().flatten();
        let column: Column = text("figures").unwrap_or("vendor").parse().map_err(usage)?;
        let cluster = read_cluster(cluster, column, text("links"))?;
        let whole = |name: &str| match text(name) {
            None => Ok(None),
            Some(t) => t.parse::<u64>().map(Some).map_err(|_| usage(format!("--{name} {t:?} is no whole number"))),
        };
        Ok(Self {
            cluster,
            service: Service::read(
                text("plan-model").unwrap_or(MODEL),
                text("workload").unwrap_or(WORKLOAD),
                text("rate").unwrap_or(RATE),
                text("slo").unwrap_or(SLO),
            )?,
            sharing: all("service").map(|text| Service::parse(text)).collect::<Result<_, _>>()?,
            column,
            seed: whole("seed")?.unwrap_or(0),
            budget: whole("budget")?.map(Duration::from_millis),
            lose: all("lose").cloned().collect(),
        })
    }

    pub(in crate::cli) fn problem(&self, service: &Service, cluster: Cluster) -> Result<Problem, Exit> {
        let reference = Reference::a100(&service.model, self.column)
            .ok_or_else(|| Exit::new(ExitKind::Other, "no figures for the reference GPU"))?;
        let (model, workload) = (service.model.clone(), service.workload.clone());
        let problem = Problem::new(cluster, model, workload, service.rate, service.slo, reference, Space::default());
        let mut problem = problem.map_err(|e| usage(e.to_string()))?;
        // Planned for what nodes do, as swarms are.
        problem.prompts = Batches::default().into();
        Ok(problem)
    }
}

pub(in crate::cli) fn usage(message: impl Into<String>) -> Exit {
    Exit::new(ExitKind::Usage, message)
}

fn read(path: &Path) -> Result<String, Exit> {
    std::fs::read_to_string(path).map_err(|e| Exit::file(ExitKind::Usage, path, &e))
}

pub(in crate::cli) fn read_cluster(name: &str, column: Column, links: Option<&str>) -> Result<Cluster, Exit> {
    let shipped = cluster_file::SHIPPED.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
    let text = match shipped {
        Some(text) => text,
        None if !Path::new(name).exists() => {
            let known: Vec<&str> = cluster_file::SHIPPED.iter().map(|(name, _)| *name).collect();
            return Err(usage(format!(
                "no cluster is called {name:?} and no file either; there are {}",
                known.join(", ")
            )));
        }
        None => read(Path::new(name))?,
    };
    cluster_file::read(&text, column, links).map_err(|e| usage(format!("{name}: {}", e.to_string().trim_end())))
}

pub(in crate::cli) fn read_model(name: &str) -> Result<Model, Exit> {
    if let Some(model) = public_models::by_name(name) {
        return Ok(model);
    }
    let path = PathBuf::from(name);
    let path = if path.is_dir() { path.join("config.json") } else { path };
    if !path.exists() {
        let known: Vec<&str> = public_models::names().collect();
        return Err(usage(format!("no model is called {name:?} and no file either; known are {}", known.join(", "))));
    }
    let bytes = read(&path)?;
    let config = tsnode_kernels::config::ModelConfig::parse(bytes.as_bytes());
    let config = config.map_err(|e| usage(format!("{}: {e}", path.display())))?;
    // As one that is known by name.
    Ok(Model { handed_on: 2.0, ..Model::of_shape(name.to_owned(), config.shape_in_16_bit(), 2.0) })
}

pub(in crate::cli) fn read_workload(name: &str) -> Result<Workload, Exit> {
    if let Some(workload) = Workload::named(name) {
        return Ok(workload);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(usage(format!(
            "no workload is called {name:?} and no file either; there are coding and conversation"
        )));
    }
    let title = path.file_stem().map_or_else(|| name.to_owned(), |s| s.to_string_lossy().into_owned());
    Workload::from_trace(&title, &read(path)?).map_err(|e| usage(format!("{name}: {e}")))
}
