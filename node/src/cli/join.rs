//! `tsnode join`.

use super::loading::Loading;
use crate::{
    config::Settings,
    exit::{Exit, Kind},
    memory::Size,
    node,
    view::{Readiness, SwarmView},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::lending::Lending;
use tsnode_protocol::Device;

pub(super) async fn run(settings: &Settings) -> Result<(), Exit> {
    let config = settings.node().map_err(|e| Exit::new(Kind::Config, e.to_string()))?;
    let stop = CancellationToken::new();
    let end = tokio::spawn(obey_signals(stop.clone()));
    let done = node::run(config, stop, |view| drop(tokio::spawn(narrate(view)))).await;
    end.abort();
    Ok(done?)
}

/// The first signal drains, the second ends at once.
async fn obey_signals(stop: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return tracing::warn!("signals are not heard: stop this peer with kill -9");
    };
    let mut first = true;
    loop {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if !first {
            std::process::exit(130);
        }
        first = false;
        eprintln!("leaving: waiting for what runs here to end; once more to end at once");
        stop.cancel();
    }
}

/// Says in a line each how far the peer is.
async fn narrate(mut view: watch::Receiver<SwarmView>) {
    let mut last = String::new();
    let mut worth = None;
    let mut loading = Loading::default();
    loop {
        if worth.is_none() {
            worth = describe_worth(&view.borrow());
            worth.iter().for_each(|line| say!("{line}"));
        }
        let line = describe(&view.borrow_and_update());
        if line != last {
            say!("{line}");
            last = line;
        }
        let far = view.borrow().loading;
        loading.show(far).iter().for_each(|line| say!("{line}"));
        if view.changed().await.is_err() {
            return;
        }
    }
}

/// What this machine lends, once it has been measured.
fn describe_worth(view: &SwarmView) -> Option<String> {
    let own = view.peers.iter().find(|p| p.id == view.me)?;
    let worth = |device: &Device| {
        format!(
            "lends {}, {}: {:.0} GFLOP/s, {:.0} GB/s, {} for KV",
            device.kind,
            device.name,
            device.flops.0 / 1e9,
            device.bandwidth.0 / 1e9,
            Size(device.kv_bytes),
        )
    };
    let worth: Vec<String> = own.advert.devices.iter().map(worth).collect();
    (!worth.is_empty()).then(|| worth.join("\n"))
}

fn describe(view: &SwarmView) -> String {
    let http = view.http.map_or_else(String::new, |a| format!("http://{a}"));
    match view.readiness {
        Readiness::Probing => format!("{} starts; {http} answers", view.me),
        Readiness::Joining => format!("looking for peers of {}{}", view.swarm, because(view)),
        Readiness::Planning => format!("{} found; waiting for a plan{}", count(view), because(view)),
        Readiness::Loading => "loading what the plan gives this peer".into(),
        Readiness::Leaving => "leaving".into(),
        Readiness::Ready if view.lending == Lending::OtherModel => {
            let why = view.lends_nothing().unwrap_or_default();
            format!("ready as a gateway: {why}\nsend requests to {http}/v1")
        }
        Readiness::Ready if view.lending != Lending::Lends => format!("lends nothing: {}", view.lending),
        Readiness::Ready => {
            let mine = view.plan.iter().flat_map(|p| &p.groups);
            let mine = mine.flat_map(|g| g.stages.iter().map(move |s| (g.phase, s))).filter(|(_, s)| s.peer == view.me);
            let work: Vec<String> = mine.map(|(phase, s)| format!("{phase}, layers {}", s.layers)).collect();
            let work = if work.is_empty() { "takes requests for the others".into() } else { work.join("; ") };
            format!("ready: {work}; {}; send requests to {http}/v1", count(view))
        }
    }
}

fn because(view: &SwarmView) -> String {
    view.why_not().map_or_else(String::new, |why| format!(": {why}"))
}

fn count(view: &SwarmView) -> String {
    match view.peers.len() {
        1 => "1 peer".into(),
        n => format!("{n} peers"),
    }
}
