//! `tsnode doctor`.

mod network;
mod surroundings;

use super::{ask::PeerClient, is_set, machine, models, output::print_json};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    data_plane::{library::files_of, links::beside, listening},
    hardware::{
        self, DeviceChoice, GpuNumbers, LendError,
        memory::{Need, Size, StageHolder},
    },
    node::{ModelChoice, NodeConfig, WantedModel, open_draft, open_named},
    plain,
    reachability::Cause,
    store::{HTTP_FILE, identity::Identity, invited_to},
    text::{Templates, TextModel},
    view::Trouble,
};
use clap::ArgMatches;
use serde::Serialize;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Instant;
use tsnode_kernels::{
    cuda::{self, Libraries, Library},
    device::Host,
    profile,
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, LayerProfile, Misfit};

/// A mean error worth a look: public fits are off by less than half of it, so something else kept the machine busy.
const POOR: f64 = 0.2;
/// What follows where nothing was measured.
const UNMEASURED: &str = "plans count with this device's speeds alone";

#[derive(Serialize)]
struct DoctorFinding {
    what: &'static str,
    state: State,
    detail: String,
    /// What a layer of the model takes, where the finding is that.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<LayerProfile>,
    /// What is behind it, where that is of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Cause>,
    /// What shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Note,
    Fail,
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let mut findings = examine(settings).await;
    findings.extend(troubles(settings).await);
    if is_set(matches, "json") {
        print_json(&findings)?;
    } else {
        for f in &findings {
            let state = match f.state {
                State::Ok => "ok  ",
                State::Note => "note",
                State::Fail => "FAIL",
            };
            say!("{state}  {:<10} {}", f.what, f.detail);
            f.evidence.iter().for_each(|evidence| say!("{:17}because: {evidence}", ""));
            f.remedy.iter().for_each(|remedy| say!("{:17}to do: {remedy}", ""));
        }
    }
    let failed = findings.iter().filter(|f| f.state == State::Fail).count();
    if failed > 0 {
        Err(Exit::new(ExitKind::Other, format!("{failed} of {} checks failed", findings.len())))
    } else {
        Ok(())
    }
}

/// What the peer that runs here has trouble with, beside what its network has.
async fn troubles(settings: &Settings) -> Vec<DoctorFinding> {
    let folder = settings.data_dir();
    let fail = |trouble: &Trouble| finding("trouble", State::Fail, trouble.to_string());
    if folder.join(HTTP_FILE).exists()
        && let Ok(peer) = PeerClient::own(settings)
        && let Ok(view) = peer.view().await
    {
        let is_local = |trouble: &&Trouble| !matches!(trouble, Trouble::Twin { .. } | Trouble::Network { .. });
        return view.troubles.iter().filter(is_local).map(fail).collect();
    }
    Vec::new()
}

/// A library that a GPU is better off with.
fn library(library: &Library) -> DoctorFinding {
    let Library { name, purpose, files, found } = library;
    finding(
        "library",
        State::Note,
        match found {
            Some(path) => format!("{name} ({purpose}): {}", path.display()),
            None => format!(
                "{} ({purpose}) was found neither by the system, nor in CUDA_HOME, nor in Python's packages",
                files.join(" or ")
            ),
        },
    )
}

async fn examine(settings: &Settings) -> Vec<DoctorFinding> {
    let host = Host::detect();
    let cpu = &host.cpu;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let mut found = vec![
        finding("cpu", State::Ok, format!("{}, {} cores, {:?} instructions", cpu.name, cpu.cores, cpu.simd)),
        finding(
            "memory",
            State::Ok,
            format!("{:.1} GiB free of {:.1}", gib(cpu.available_bytes), gib(cpu.memory_bytes)),
        ),
    ];
    found.push(match &host.gpus {
        Ok(gpus) => {
            let names: Vec<String> = gpus
                .iter()
                .map(|g| format!("cuda:{}, {} ({:.0} GiB)", g.ordinal, g.name, gib(g.memory_bytes)))
                .collect();
            finding("gpu", State::Ok, names.join("; "))
        }
        Err(why) => finding("gpu", State::Note, format!("{why}; the processor computes")),
    });
    if host.gpus.is_ok() {
        let Libraries { blas, nvrtc, nvml, nccl, .. } = Libraries::find();
        found.extend([blas, nvrtc, nvml, nccl].map(library));
    }
    let mut config = match settings.node() {
        Ok(config) => config,
        Err(error) => {
            found.push(finding("config", State::Fail, error.to_string()));
            return found;
        }
    };
    found.push(finding("config", State::Ok, "every setting can be used".into()));
    found.extend(settings.warnings(machine()).into_iter().map(|said| finding("config", State::Note, said)));
    if let Ok(Some((compute, rest))) = settings.cores() {
        found.push(match compute.check().and_then(|()| rest.check()) {
            Ok(()) => finding("cores", State::Ok, format!("{compute} to compute, {rest} for all else")),
            Err(error) => finding("cores", State::Fail, error.to_string()),
        });
    }
    let folder = &config.data_dir;
    let running = folder.join(HTTP_FILE).exists();
    found.push(surroundings::disk(folder));
    found.push(if !folder.exists() {
        finding("data", State::Ok, format!("{} will be made", folder.display()))
    } else {
        match Identity::load(folder, invited_to(folder)) {
            Ok(Some(identity)) => finding("identity", State::Ok, identity.peer_id().to_string()),
            Ok(None) => finding("identity", State::Ok, "none yet: the peer that starts here is a new one".into()),
            Err(error) => finding("identity", State::Fail, error.to_string()),
        }
    });
    found.extend(surroundings::files(folder));
    let port = |what, at: SocketAddr, free: std::io::Result<()>| match free {
        Ok(()) => finding(what, State::Ok, format!("{at} is free")),
        Err(_) if running => finding(what, State::Note, format!("{at} is in use, by the peer that runs here")),
        Err(error) => finding(what, State::Fail, format!("{at}: {}", plain::io_error(&error))),
    };
    found.push(port("http", config.http, TcpListener::bind(config.http).map(drop)));
    let listen = listening::available(config.listen);
    found.push(port("peers", listen, TcpListener::bind(listen).map(drop)));
    found.push(port("peers udp", listen, UdpSocket::bind(listen).map(drop)));
    if let Some(data) = listen.port().checked_add(1).filter(|_| listen.port() != 0) {
        let data = SocketAddr::new(listen.ip(), data);
        let lifelines = beside(data);
        found.push(port("data udp", data, UdpSocket::bind(data).map(drop)));
        found.push(port("lifelines", lifelines, TcpListener::bind(lifelines).map(drop)));
    }
    found.push(surroundings::reach(settings, &config, running).await);
    found.extend(network::examine(settings, &config).await);
    match models::find(&mut config) {
        Ok(()) => found.extend(models_of(&host, &config)),
        // It is no fault: a peer fetches what is not here.
        Err(absent) => found.push(finding("model", State::Note, absent.message)),
    }
    found
}

/// The models, one after the other.
fn models_of(host: &Host, config: &NodeConfig) -> Vec<DoctorFinding> {
    if config.models.is_empty() {
        return vec![finding("model", State::Note, "none: a gateway only".into())];
    }
    config.models.iter().flat_map(|wanted| model(host, config, wanted)).collect()
}

/// A model: whether it fits, and how well plans can foretell its times here.
fn model(host: &Host, config: &NodeConfig, wanted: &WantedModel) -> Vec<DoctorFinding> {
    let source = match &wanted.choice {
        ModelChoice::Fallback | ModelChoice::Embedded | ModelChoice::Named(_) => ModelSource::embedded(),
        ModelChoice::Path(path) => open_named(path),
    };
    let source = match source {
        Ok(source) => source,
        Err(error) => return vec![finding("model", State::Fail, error.to_string())],
    };
    let source = Arc::new(source);
    let notes = source.notes().iter().map(|note| finding("model", State::Note, note.clone()));
    notes.chain(text(&source)).chain(lent(host, (config, wanted), &source)).collect()
}

/// What is odd in the model's text files, or why they cannot be used.
fn text(source: &ModelSource) -> Vec<DoctorFinding> {
    match TextModel::new(&files_of(source), &Templates::Here) {
        Ok(text) => text.notes().iter().map(|note| finding("model", State::Note, note.clone())).collect(),
        Err(error) => vec![finding("model", State::Fail, error.to_string())],
    }
}

/// What would compute the model, and how well.
fn lent(host: &Host, of: (&NodeConfig, &WantedModel), source: &Arc<ModelSource>) -> Vec<DoctorFinding> {
    let ((config, wanted), gpus) = (of, gpus(source, of));
    if !gpus.is_empty() && config.devices != DeviceChoice::Auto {
        return gpus.into_iter().chain(draft(host, of, source)).collect();
    }
    match fits(host, config, source) {
        Ok(fits) => {
            let times = times(source, config, wanted.kv_dtype);
            gpus.into_iter().chain([fits]).chain(draft(host, of, source)).chain(times).collect()
        }
        Err(error) => vec![finding("model", State::Fail, error.to_string())],
    }
}

/// GPUs that a peer would lend, each tried with the model: a fraction of a second, and a little of its memory.
fn gpus(source: &ModelSource, (config, wanted): (&NodeConfig, &WantedModel)) -> Vec<DoctorFinding> {
    let gpus: Vec<GpuNumbers> = match &config.devices {
        DeviceChoice::Auto => cuda::usable().unwrap_or_default().into_iter().map(GpuNumbers::one).collect(),
        DeviceChoice::Named(names) => names.iter().filter_map(|name| name.gpus()).collect(),
    };
    let tried = |gpus| match hardware::try_gpus(gpus, source, config.threads.count, wanted.kv_dtype) {
        Ok(about) => {
            let driver = about.facts.driver.unwrap_or_else(|| "unknown".into());
            let said = format!(
                "{gpus}, {} with driver {driver}, computes {} as the processor does",
                about.name,
                source.card().name
            );
            finding("card", State::Ok, said)
        }
        // Where GPUs are not named the processor serves in their place.
        Err(error) => {
            let state = if config.devices == DeviceChoice::Auto { State::Note } else { State::Fail };
            finding("card", state, format!("{gpus} is not used: {error}"))
        }
    };
    gpus.into_iter().map(tried).collect()
}

/// What the model needs, beside what there is.
fn fits(host: &Host, config: &NodeConfig, source: &ModelSource) -> Result<DoctorFinding, LendError> {
    let free = host.cpu.available_bytes;
    let kv = hardware::kv_bytes(host, config.kv_bytes, config.memory_bytes)?;
    let ranks = config.threads.ranks;
    let (holder, shape) = (StageHolder::Ranks(ranks), source.card().shape);
    Need::of_least(source, holder, kv)?.within(free)?;
    let (whole, layers) = (Need::of(source, shape.all_layers(), holder, kv)?, shape.layers);
    Ok(if whole.total() > free {
        let said = format!("{whole}, where {} is free: other peers must hold some of its {layers} layers", Size(free));
        finding("model", State::Note, said)
    } else {
        finding("model", State::Ok, format!("{whole}; {layers} layers"))
    })
}

/// The draft model, if there is to be one.
fn draft(
    host: &Host,
    (config, wanted): (&NodeConfig, &WantedModel),
    source: &Arc<ModelSource>,
) -> Option<DoctorFinding> {
    let draft = match open_draft(wanted, source) {
        Ok(draft) => draft?,
        Err(error) => return Some(finding("draft", State::Fail, error.to_string())),
    };
    let need = hardware::draft_need(source, &draft, StageHolder::Ranks(config.threads.ranks));
    let fits = need.map_err(|e| e.to_string()).and_then(|need| {
        let said = need.to_string();
        need.within(host.cpu.available_bytes).map(|()| said).map_err(|e| e.to_string())
    });
    Some(match fits {
        Ok(said) => finding("draft", State::Ok, said),
        Err(error) => finding("draft", State::Fail, error),
    })
}

/// Measured anew: a peer that runs here keeps its own to itself, and takes its share of the processor meanwhile.
fn times(source: &ModelSource, config: &NodeConfig, kv_dtype: KvDtype) -> Vec<DoctorFinding> {
    let started = Instant::now();
    match profile::measure(source, config.threads, kv_dtype) {
        Ok(Some(profile)) => {
            let LayerProfile { prompts, steps, mixed, .. } = profile;
            let took = started.elapsed().as_secs_f64();
            let prompts = format!("{prompts}, foretold from others; a layer was measured in {took:.2} s");
            let steps = format!("{steps}; with a prompt beside them {mixed}");
            let state = |errors: &[Misfit]| if errors.iter().any(|e| e.mean > POOR) { State::Note } else { State::Ok };
            vec![
                DoctorFinding { profile: Some(profile), ..finding("prompts", state(&[profile.prompts]), prompts) },
                finding("steps", state(&[profile.steps, profile.mixed]), steps),
            ]
        }
        Ok(None) => {
            vec![finding("prompts", State::Note, format!("too small to be measured, or still fetched; {UNMEASURED}"))]
        }
        Err(error) => vec![finding("prompts", State::Note, format!("{error}; {UNMEASURED}"))],
    }
}

fn finding(what: &'static str, state: State, detail: String) -> DoctorFinding {
    DoctorFinding { what, state, detail, profile: None, cause: None, evidence: None, remedy: None }
}
