//! The command line of `tsnode simulate provision`, understood.

use crate::cli::{
    exit::{Exit, ExitKind as Ending},
    is_set,
    plan::asked::{read_model, read_workload, usage},
};
use clap::ArgMatches;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_coordinator::scheduler::{
    Slo, Workload,
    cluster::ClusterLink,
    figures::{self, Column, DeviceFigures, Upkeep},
    public_models,
    slo::Reference,
};
use tsnode_protocol::{Bytes, BytesPerSecond, Seconds};
use tsnode_simulator::{
    provisioning::{
        Aim, Design, MixBudget, Question,
        demand::{Demand, Drawn},
        kinds::{MachineHost, MachineKind, MachineRole, Measure},
        targets::{AloneTimes, ProvisioningTargets},
        trial::Trial,
    },
    splitwise::{LIMITS, Sizes},
    table, trace,
};

const MODEL: &str = "LLaMA-30B";
const KINDS: &str = "8xA100,8xH100";
/// What batches of closed forms are made for where the targets are Splitwise's: the middle ones.
const MIDDLE: &str = "ttft=2x,tpot=1.25x,e2e=1.25x";
/// Most machines in a pool.
const MOST: u32 = 512;
/// Of one device to another of its host.
const INSIDE: Seconds = Seconds(10e-6);
/// NVLink 3 and 4 at 0.8 of their rates, PCIe 4.0 ×16, as in the clusters that ship with the project (bytes/s).
const NVLINK_3: f64 = 240e9;
const NVLINK_4: f64 = 360e9;
const PCIE_4: f64 = 25.6e9;
/// Steps between nothing and the rate that closed forms expect.
const STEPS: f64 = 50.0;

/// What a request must keep.
enum WantedTargets {
    Splitwise,
    Slo(Slo),
}

/// The command line, understood.
pub(super) struct ProvisionQuery {
    model: String,
    kinds: Vec<KindSpec>,
    workload: Workload,
    demand: Demand,
    wanted: WantedTargets,
    share: f64,
    aim: Option<Aim>,
    step: Option<f64>,
    budgets: Vec<MixBudget>,
    column: Column,
    link: BytesPerSecond,
    seconds: f64,
}

/// A question, and what is printed beside its answer.
pub(super) struct Fleet {
    pub(super) question: Question,
    pub(super) model: String,
    pub(super) workload: String,
    pub(super) targets: String,
}

/// `8xA100:17.6:3200`.
struct KindSpec {
    devices: u16,
    device: String,
    cost: Option<f64>,
    power: Option<f64>,
}

impl KindSpec {
    fn parse(text: &str) -> Result<Self, Exit> {
        let wrong =
            || usage(format!("--kinds {text:?}: devices, GPU, $/h and W, as in 8xA100, 4xA40:1.6 or 4xA40:1.6:1200"));
        let mut parts = text.trim().split(':');
        let (count, device) = parts.next().and_then(|p| p.split_once('x')).ok_or_else(wrong)?;
        let devices = count.parse::<u16>().ok().filter(|n| (1..=64).contains(n)).ok_or_else(wrong)?;
        let figure = |text: Option<&str>| match text.filter(|t| !t.is_empty()) {
            None => Ok(None),
            Some(t) => t.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0).map(Some).ok_or_else(wrong),
        };
        let (cost, power) = (figure(parts.next())?, figure(parts.next())?);
        if device.is_empty() || parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { devices, device: device.to_owned(), cost, power })
    }

    /// What it takes: as said, or that of so many devices.
    fn upkeep(&self, one: Upkeep) -> (Option<f64>, Option<f64>) {
        let all = |one: Option<f64>| one.map(|v| v * f64::from(self.devices));
        (self.cost.or(all(one.price)), self.power.or(all(one.power)))
    }
}

impl ProvisionQuery {
    pub(super) fn read(matches: &ArgMatches) -> Result<Self, Exit> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
        let positive = |name: &str| match text(name) {
            None => Ok(None),
            Some(t) => {
                let number = t.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
                number.map(Some).ok_or_else(|| usage(format!("--{name} {t:?} is no positive number")))
            }
        };
        let budgets =
            [("budget-cost", Measure::Cost), ("budget-power", Measure::Power), ("budget-machines", Measure::Machines)];
        let budgets: Vec<MixBudget> = budgets
            .into_iter()
            .filter_map(|(name, of)| positive(name).map(|b| b.map(|most| MixBudget { of, most })).transpose())
            .collect::<Result<_, _>>()?;
        let rate = positive("rate")?;
        let least = |of| Some(Aim::Least { of, rate: rate.unwrap_or(3.0) });
        let aim = match text("aim") {
            None if rate.is_none() && !budgets.is_empty() => None,
            None | Some("cheapest") => least(Measure::Cost),
            Some("power") => least(Measure::Power),
            Some("fewest") => least(Measure::Machines),
            Some("throughput") if rate.is_some() => {
                return Err(usage(
                    "--aim throughput seeks the rate itself: leave --rate away, or choose another --aim",
                ));
            }
            Some("throughput") => None,
            Some(other) => {
                return Err(usage(format!(
                    "no aim is called {other:?}; there are cheapest, power, fewest, throughput"
                )));
            }
        };
        let share = positive("share")?.unwrap_or(0.9);
        if share > 1.0 {
            return Err(usage(format!("--share {share}: a part of all requests, as in --share 0.9")));
        }
        let seed = text("seed").unwrap_or("0");
        let seed = seed.parse().map_err(|_| usage(format!("--seed {seed:?} is no whole number")))?;
        let name = text("workload").unwrap_or("conversation");
        let workload = read_workload(name)?;
        let demand = demand(name, &workload, is_set(matches, "independent"), seed);
        Ok(Self {
            model: text("plan-model").unwrap_or(MODEL).to_owned(),
            kinds: text("kinds").unwrap_or(KINDS).split(',').map(KindSpec::parse).collect::<Result<_, _>>()?,
            demand: demand.ok_or_else(|| usage(format!("{name}: no requests in it")))?,
            workload,
            wanted: match text("slo") {
                Some("splitwise") => WantedTargets::Splitwise,
                slo => WantedTargets::Slo(
                    slo.unwrap_or("e2e=5x").parse().map_err(|e| usage(format!("--slo: {e}, or splitwise")))?,
                ),
            },
            share,
            aim,
            step: positive("step")?,
            budgets,
            column: text("figures").unwrap_or("vendor").parse().map_err(usage)?,
            link: BytesPerSecond(positive("link")?.unwrap_or(200.0) * 1e9 / 8.0),
            seconds: positive("seconds")?.unwrap_or(120.0),
        })
    }

    pub(super) fn fleet(self, matches: &ArgMatches) -> Result<Fleet, Exit> {
        let (kinds, targets, kv) = match matches.get_one::<String>("times") {
            None => self.closed()?,
            Some(file) => self.measured(file, matches.get_one::<String>("alone").map(String::as_str))?,
        };
        let words = match &self.wanted {
            WantedTargets::Splitwise => "Splitwise's nine targets".to_owned(),
            WantedTargets::Slo(slo) => format!("{slo} for {} % of requests", self.share * 100.0),
        };
        let mut question = Question {
            designs: Design::all(kinds.len()),
            kinds,
            demand: self.demand,
            targets,
            aim: self.aim.unwrap_or(Aim::Most { step: self.step.unwrap_or(1.0) }),
            budgets: self.budgets,
            machines: MOST,
            short: Seconds(self.seconds / 4.0),
            long: Seconds(self.seconds),
            transfer: kv / self.link,
        };
        if let (Aim::Most { .. }, None) = (question.aim, self.step) {
            question.aim = Aim::Most { step: step(expected(&question)) };
        }
        Ok(Fleet { question, model: self.model, workload: self.workload.name, targets: words })
    }

    /// By the cost model.
    fn closed(&self) -> Result<(Vec<MachineKind>, ProvisioningTargets, tsnode_protocol::BytesPerToken), Exit> {
        let model = read_model(&self.model)?;
        let reference = Reference::a100(&model, self.column);
        let reference = reference.ok_or_else(|| Exit::new(Ending::Other, "no figures for the reference GPU"))?;
        let slo = self.slo()?;
        let (known, upkeep) = (figures::shipped(self.column), figures::upkeep());
        let kind = |spec: &KindSpec| {
            let device = device(&known, &spec.device)?;
            let (cost, power) = spec.upkeep(upkeep.get(&device.name).copied().unwrap_or_default());
            let inside = ClusterLink { latency: INSIDE, bandwidth: BytesPerSecond(inside(&device.name)) };
            let name = format!("{}x{}", spec.devices, device.name);
            let host =
                MachineHost { name: name.clone(), device: device.clone(), devices: spec.devices, inside, cost, power };
            MachineKind::closed(&host, &model, &self.workload, slo, reference).ok_or_else(|| {
                let have = device.memory.0 * f64::from(spec.devices) / 1e9;
                usage(format!(
                    "{name} does not hold {} and its longest request: {have:.0} GB for {:.0} GB of weights; take more \
                     devices, as in {}x{}",
                    model.name,
                    model.bytes().0 / 1e9,
                    spec.devices * 2,
                    device.name
                ))
            })
        };
        let kinds = self.kinds.iter().map(kind).collect::<Result<Vec<_>, _>>()?;
        let targets = match self.wanted {
            WantedTargets::Splitwise => ProvisioningTargets::TableVi(AloneTimes::Reference(reference)),
            WantedTargets::Slo(slo) => ProvisioningTargets::Deadlines { slo, reference, share: self.share },
        };
        Ok((kinds, targets, model.kv()))
    }

    /// By a table of times.
    fn measured(
        &self,
        file: &str,
        alone: Option<&str>,
    ) -> Result<(Vec<MachineKind>, ProvisioningTargets, tsnode_protocol::BytesPerToken), Exit> {
        let text = std::fs::read_to_string(file).map_err(|e| Exit::file(Ending::Usage, file, &e))?;
        let known = public_models::by_name(&self.model);
        let sizes = Sizes::of(&self.model)
            .or_else(|| known.as_ref().map(|m| Sizes { weights: m.bytes(), kv: m.kv() }))
            .ok_or_else(|| {
                usage(format!(
                    "the sizes of {} are not known: --model bloom-176b, llama2-70b or a name that tsnode plan knows",
                    self.model
                ))
            })?;
        let read = |hardware: &str, devices: u16| {
            table::read(&text, &self.model, hardware, devices).map(Arc::new).map_err(|error| {
                usage(match error {
                    table::TableError::Missing { .. } => format!("{file}: {error}; it has {}", rows(&text)),
                    table::TableError::Line { .. } => format!("{file}: {error}"),
                })
            })
        };
        let (shipped, upkeep) = (figures::shipped(self.column), figures::upkeep());
        let kind = |spec: &KindSpec| {
            let device = device(&shipped, &spec.device).ok();
            let mut one = device.and_then(|d| upkeep.get(&d.name)).copied().unwrap_or_default();
            // Splitwise's power-capped machines: 70 % of what they would take.
            one.power = one.power.map(|w| if spec.device.ends_with("-pcap") { w * 0.7 } else { w });
            let (cost, power) = spec.upkeep(one);
            let table = read(&spec.device, spec.devices)?;
            // What is sold as GB is GiB.
            let gib = |d: &DeviceFigures| d.memory / 1e9 * f64::from(1u32 << 30) * f64::from(spec.devices);
            let memory = device.map(gib).unwrap_or(Bytes(8.0 * 80.0 * f64::from(1u32 << 30)));
            let room = ((memory - sizes.weights) / sizes.kv).0;
            if room < 1.0 {
                return Err(usage(format!(
                    "{}x{} does not hold {}: take more devices",
                    spec.devices, spec.device, self.model
                )));
            }
            let role = MachineRole { speed: table, limits: LIMITS, room: room as u64 };
            Ok(MachineKind::alike(&format!("{}x{}", spec.devices, spec.device), cost, power, &role))
        };
        let kinds = self.kinds.iter().map(kind).collect::<Result<Vec<_>, Exit>>()?;
        let targets = match (&self.wanted, known) {
            (WantedTargets::Splitwise, _) => {
                let devices = self.kinds.first().map_or(8, |k| k.devices);
                let first = self.kinds.first().map_or("", |k| k.device.as_str());
                ProvisioningTargets::TableVi(AloneTimes::Table(read(alone.unwrap_or(first), devices)?))
            }
            (WantedTargets::Slo(slo), Some(model)) => {
                let reference = Reference::a100(&model, self.column);
                let reference =
                    reference.ok_or_else(|| Exit::new(Ending::Other, "no figures for the reference GPU"))?;
                ProvisioningTargets::Deadlines { slo: *slo, reference, share: self.share }
            }
            (WantedTargets::Slo(_), None) => {
                return Err(usage(format!(
                    "what an A100 takes for {} is not known: choose --slo splitwise",
                    self.model
                )));
            }
        };
        Ok((kinds, targets, sizes.kv))
    }

    fn slo(&self) -> Result<Slo, Exit> {
        match self.wanted {
            WantedTargets::Slo(slo) => Ok(slo),
            WantedTargets::Splitwise => MIDDLE.parse().map_err(|e| Exit::new(Ending::Other, format!("{e}"))),
        }
    }
}

/// All requests of a trace's file; a named workload's.
fn demand(name: &str, workload: &Workload, is_independent: bool, seed: u64) -> Option<Demand> {
    let file = Workload::named(name).is_none().then(|| std::fs::read_to_string(name).ok()).flatten();
    let lengths = file.and_then(|text| trace::read(&text).ok()).map(|all| all.into_iter().map(|a| a.asked).collect());
    match lengths {
        None => Demand::of(workload, seed),
        Some(lengths) => Demand::new(lengths, if is_independent { Drawn::Apart } else { Drawn::Together }, seed),
    }
}

/// The figures of a GPU by its name or the beginning of it; of several memories the largest. Names of tables go on
/// after that of the GPU.
fn device<'a>(known: &'a BTreeMap<String, DeviceFigures>, asked: &str) -> Result<&'a DeviceFigures, Exit> {
    let lower = asked.to_lowercase();
    let family = |name: &str| name.to_lowercase().split('-').next().unwrap_or_default().to_owned();
    let exact = known.values().find(|f| f.name.to_lowercase() == lower);
    let of_family = || known.values().filter(|f| family(&f.name) == family(&lower));
    let begins =
        |f: &&DeviceFigures| f.name.to_lowercase().starts_with(&lower) || lower.starts_with(&f.name.to_lowercase());
    let largest =
        |all: &mut dyn Iterator<Item = &'a DeviceFigures>| all.max_by(|a, b| a.memory.0.total_cmp(&b.memory.0));
    let found = exact.or_else(|| largest(&mut of_family().filter(begins))).or_else(|| largest(&mut of_family()));
    found.ok_or_else(|| {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        usage(format!("--kinds: no figures are known for GPU {asked:?}; there are {}", names.join(", ")))
    })
}

/// Between two devices of a host (bytes/s).
fn inside(device: &str) -> f64 {
    match device {
        name if name.starts_with("H100") => NVLINK_4,
        name if name.starts_with("A100") || name.starts_with("A800") => NVLINK_3,
        _ => PCIE_4,
    }
}

/// What a table has: model on hardware, devices.
fn rows(text: &str) -> String {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let place = |name: &str| header.iter().position(|h| *h == name).unwrap_or(usize::MAX);
    let places = [place("model"), place("tensor_parallel"), place("hardware")];
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let [model, devices, hardware] = places.map(|p| cells.get(p).copied().unwrap_or_default());
        format!("{model} on {devices}x{hardware}")
    };
    let all: BTreeSet<String> = lines.filter(|l| !l.trim().is_empty()).map(row).collect();
    all.into_iter().take(20).collect::<Vec<_>>().join(", ")
}

/// Requests a second that closed forms expect of the best design.
fn expected(question: &Question) -> f64 {
    const FINE: f64 = 1e-3;
    let rate = |design: &Design| {
        let fine = Question { aim: Aim::Most { step: FINE }, ..question.clone() };
        f64::from(Trial::new(&fine, *design, &|_| false).guess(fine.aim).steps) * FINE
    };
    question.designs.iter().map(rate).fold(FINE, f64::max)
}

/// A round number, about a fiftieth of a rate.
pub(super) fn step(rate: f64) -> f64 {
    let about = rate / STEPS;
    let power = 10f64.powf(about.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().rev().find(|t| t * power <= about).unwrap_or(1.0);
    times * power
}
