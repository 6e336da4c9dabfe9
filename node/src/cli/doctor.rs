//! `tsnode doctor`.

use super::{is_set, show::print_json};
use crate::{
    config::Settings,
    exit::{Exit, Kind},
    hardware,
    identity::Identity,
    memory::{Need, Size},
    node::{HTTP_FILE, ModelChoice, NodeConfig},
};
use clap::ArgMatches;
use serde::Serialize;
use std::net::{TcpListener, UdpSocket};
use tsnode_kernels::{device::Host, source::ModelSource};

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    state: State,
    detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Note,
    Fail,
}

pub(super) fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let findings = examine(settings);
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
        }
    }
    let failed = findings.iter().filter(|f| f.state == State::Fail).count();
    if failed > 0 {
        Err(Exit::new(Kind::Other, format!("{failed} of {} checks failed", findings.len())))
    } else {
        Ok(())
    }
}

fn examine(settings: &Settings) -> Vec<Finding> {
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
            let names: Vec<String> =
                gpus.iter().map(|g| format!("{} ({:.0} GiB)", g.name, gib(g.memory_bytes))).collect();
            finding("gpu", State::Note, format!("{}; found, not used for computing by this version", names.join(", ")))
        }
        Err(why) => finding("gpu", State::Note, format!("{why}; the processor computes")),
    });
    let config = match settings.node() {
        Ok(config) => config,
        Err(error) => {
            found.push(finding("config", State::Fail, error.to_string()));
            return found;
        }
    };
    found.push(finding("config", State::Ok, "every setting can be used".into()));
    let folder = &config.data_dir;
    let running = folder.join(HTTP_FILE).exists();
    found.push(if !folder.exists() {
        finding("data", State::Ok, format!("{} will be made", folder.display()))
    } else {
        match Identity::load_or_create(folder) {
            Ok(identity) => finding("identity", State::Ok, identity.peer_id().to_string()),
            Err(error) => finding("identity", State::Fail, error.to_string()),
        }
    });
    let port = |what, at: std::net::SocketAddr, free: std::io::Result<()>| match free {
        Ok(()) => finding(what, State::Ok, format!("{at} is free")),
        Err(_) if running => finding(what, State::Note, format!("{at} is in use, by the peer that runs here")),
        Err(error) => finding(what, State::Fail, format!("{at}: {error}")),
    };
    found.push(port("http", config.http, TcpListener::bind(config.http).map(drop)));
    found.push(port("peers", config.listen, TcpListener::bind(config.listen).map(drop)));
    found.push(port("peers udp", config.listen, UdpSocket::bind(config.listen).map(drop)));
    found.push(model(&host, &config));
    found
}

fn model(host: &Host, config: &NodeConfig) -> Finding {
    let source = match &config.model {
        ModelChoice::None => return finding("model", State::Note, "none: a gateway only".into()),
        ModelChoice::Embedded => ModelSource::embedded(),
        ModelChoice::Path(path) => ModelSource::open(path),
    };
    let sums = source.map_err(|e| e.to_string()).and_then(|source| {
        let kv = hardware::kv_bytes(host, config.kv_bytes).map_err(|e| e.to_string())?;
        Need::of_least(&source, kv).map_err(|e| e.to_string())?.within(free(host)).map_err(|e| e.to_string())?;
        let whole = Need::of(&source, source.card().shape.all_layers(), kv).map_err(|e| e.to_string())?;
        Ok((whole, source.card().shape.layers))
    });
    match sums {
        Ok((whole, layers)) if whole.total() > free(host) => {
            let said = format!(
                "{whole}, where {} is free: other peers must hold some of its {layers} layers",
                Size(free(host))
            );
            finding("model", State::Note, said)
        }
        Ok((whole, layers)) => finding("model", State::Ok, format!("{whole}; {layers} layers")),
        Err(error) => finding("model", State::Fail, error),
    }
}

fn free(host: &Host) -> u64 {
    host.cpu.available_bytes
}

fn finding(what: &'static str, state: State, detail: String) -> Finding {
    Finding { what, state, detail }
}
