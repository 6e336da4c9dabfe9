//! `tsnode join`.

mod arrival;
mod board;
mod phases;
pub(super) mod status_line;

use self::{
    arrival::ModelArrival,
    board::{Board, Fixed},
    phases::Phases,
};
use super::{loading::Loading, models, text_layout::harmless, verb, ways};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    data_plane::listening,
    hardware::memory::Size,
    node::{self, Membering},
    platform::{HOME, Signals},
    telemetry,
    view::{Readiness, SwarmView, Trouble, UnusedDevicesView},
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::lending::Lending;
use tsnode_protocol::Device;

/// The log in the data folder, where a person watches the peer.
const LOG_FILE: &str = "join.log";

pub(super) fn command() -> Command {
    verb("join", "Lend this machine to a swarm", "tsnode join --invite -").arg(
        Arg::new("verbose")
            .long("verbose")
            .short('v')
            .action(ArgAction::SetTrue)
            .help("Show the log on standard error, as where that is no terminal, and not the summary"),
    )
}

/// Where the log of a peer goes: to standard error, unless a person watches who did not ask for it.
pub(super) fn log(settings: &Settings, matches: &ArgMatches) -> telemetry::Sink {
    if status_line::is_watched() && !matches.get_flag("verbose") {
        telemetry::Sink::File { path: log_file(settings), warnings: status_line::above }
    } else {
        telemetry::Sink::StandardError
    }
}

fn log_file(settings: &Settings) -> PathBuf {
    settings.data_dir().join(LOG_FILE)
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let mut config = settings.node().map_err(|e| Exit::new(ExitKind::Config, e.to_string()))?;
    models::fetch(&mut config).await?;
    let is_watched = status_line::is_watched() && !matches.get_flag("verbose");
    let fixed = is_watched.then(|| fixed(settings, config.name.clone()));
    let stop = CancellationToken::new();
    let shown = Arc::<OnceLock<watch::Receiver<SwarmView>>>::default();
    let end = crate::tasks::spawn("signals", handle_signals(stop.clone(), shown.clone()));
    let (began, is_invited) = (Instant::now(), matches!(config.membering, Membering::Invited(_)));
    if is_watched && is_invited {
        status_line::show(board::coloured(phases::proves(), status_line::is_coloured()));
    }
    let watch = |view: watch::Receiver<SwarmView>| {
        // It is called once.
        let _ = shown.set(view.clone());
        match fixed {
            Some(fixed) => {
                // Before there is something to watch a peer is let in, and does little else.
                let proved = is_invited.then(|| phases::proved(began.elapsed()));
                crate::tasks::spawn("summary", summarise(view, fixed, proved))
            }
            None => crate::tasks::spawn("board", narrate(view)),
        };
    };
    let done = node::run(config, stop, watch).await;
    end.abort();
    status_line::clear();
    Ok(done?)
}

/// What a person is told of a peer whatever it does.
fn fixed(settings: &Settings, name: String) -> Fixed {
    let is_usual = settings.text("data-dir").is_empty();
    let home = std::env::var_os(HOME).map(PathBuf::from);
    let written = |path: &Path| board::path(path, home.as_deref());
    let invite = match is_usual {
        true => "tsnode invite".into(),
        false => format!("tsnode invite --data-dir {}", settings.data_dir().display()),
    };
    Fixed { name, invite, log: board::log(&written(&log_file(settings))) }
}

/// The first signal drains, the second ends at once.
async fn handle_signals(stop: CancellationToken, shown: Arc<OnceLock<watch::Receiver<SwarmView>>>) {
    let Ok(mut signals) = Signals::to_end() else {
        return tracing::warn!("signals are not heard: stop this peer with kill -9");
    };
    let mut first = true;
    loop {
        signals.next().await;
        if !first {
            std::process::exit(130);
        }
        first = false;
        let said = shown.get().map_or_else(|| parting(None), |view| parting(Some(&view.borrow())));
        status_line::above(format!("{said}\n").as_bytes());
        stop.cancel();
    }
}

/// What is said to who ends a peer: what is waited for, or what it was at before anything ran here.
fn parting(view: Option<&SwarmView>) -> String {
    let Some(view) = view else { return "ending: it was opening its data folder, or asking to be let in".into() };
    match (&view.readiness, view.loading) {
        (Readiness::Probing, Some(far)) if far.done < far.total => format!(
            "ending: it was hashing its models ({} of {}); files that were hashed whole are not hashed again",
            Size(far.done),
            Size(far.total)
        ),
        (Readiness::Probing, _) => "ending: it was reading its models and measuring this machine".into(),
        _ => "leaving: waiting for what runs here to end; once more to end at once".into(),
    }
}

/// Between two looks at how long something has been waited for.
const BEAT: Duration = Duration::from_secs(1);

/// Keeps a person at a terminal informed: lines that stay, and one that changes.
async fn summarise(mut view: watch::Receiver<SwarmView>, fixed: Fixed, proved: Option<String>) {
    let (mut board, mut phases, began) = (Board::default(), Phases::default(), Instant::now());
    proved.iter().for_each(|line| status_line::print(line));
    loop {
        let now = view.borrow_and_update().clone();
        board.news(&now, &fixed).iter().for_each(|line| status_line::print(line));
        phases.news(began.elapsed(), &now).iter().for_each(|line| status_line::print(line));
        let line = phases.counted(began.elapsed(), board::live(&now));
        status_line::show(board::coloured(line, status_line::is_coloured()));
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            () = sleep(BEAT) => {}
        }
    }
}

/// Says in a line each how far the peer is.
async fn narrate(mut view: watch::Receiver<SwarmView>) {
    let mut last = String::new();
    let mut worth = None;
    let (mut alone, mut named, mut linked, mut left_out) = (None, Vec::<Trouble>::new(), None, None);
    let mut idle = Vec::<UnusedDevicesView>::new();
    let mut looked = None::<Instant>;
    let (mut loading, mut fetching) = (Loading::default(), ModelArrival::default());
    loop {
        if worth.is_none() {
            worth = describe_worth(&view.borrow());
            worth.iter().for_each(|line| say!("{line}"));
        }
        if alone.is_none() {
            alone = describe_alone(&view.borrow());
            alone.iter().flatten().for_each(|line| say!("{line}"));
        }
        let troubles = view.borrow().troubles.clone();
        for trouble in troubles.iter().filter(|trouble| !named.contains(trouble)) {
            say!("{trouble}");
        }
        named = troubles;
        // Once for each reason, whatever plans come between.
        let why = view.borrow().left_out.clone();
        if why.is_some() && why != left_out {
            why.iter().for_each(|why| say!("{}", harmless(why)));
            left_out = why;
        }
        let unused = view.borrow().unused_devices.clone();
        for devices in unused.iter().filter(|devices| !idle.contains(devices)) {
            say!("{}", harmless(&devices.why));
        }
        if !unused.is_empty() {
            idle = unused;
        }
        let line = describe(&view.borrow_and_update());
        if line != last {
            say!("{line}");
            last = line;
        }
        // While it joins, links are measured one after the other; of a thousand peers somebody is heard all the time.
        if looked.is_none_or(|at| at.elapsed() >= BEAT) && view.borrow().readiness == Readiness::Ready {
            looked = Some(Instant::now());
            let told = ways::told(&view.borrow());
            if told.is_some() && told != linked {
                told.iter().for_each(|told| say!("links: {}", harmless(told)));
                linked = told;
            }
        }
        let news = view.borrow().fetching.as_ref().and_then(|far| fetching.news(far));
        news.iter().for_each(|line| say!("{line}"));
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

/// A line where no other host could find this peer, once it is known where it listens.
fn describe_alone(view: &SwarmView) -> Option<Option<&'static str>> {
    let known = !view.addresses.is_empty() && matches!(view.readiness, Readiness::Planning | Readiness::Ready);
    let alone = || !listening::is_found(&view.addresses);
    known.then(|| {
        alone().then_some("only processes of this host can reach this peer: it has no address that others could use; tsnode doctor says why")
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use tsnode_kernels::load::LoadProgress;

    #[test]
    fn who_ends_a_peer_that_starts_is_told_what_it_was_at() {
        let at = |readiness, done, total| {
            let loading = Some(LoadProgress { done, total });
            parting(Some(&SwarmView { readiness, loading, ..view() }))
        };
        let hashing = at(Readiness::Probing, 1 << 30, 4 << 30);
        assert!(hashing.starts_with("ending: it was hashing its models (1.0 GiB of 4.0 GiB)"), "{hashing}");
        let measuring = "ending: it was reading its models and measuring this machine";
        assert_eq!(at(Readiness::Probing, 4 << 30, 4 << 30), measuring);
        assert_eq!(parting(Some(&SwarmView { readiness: Readiness::Probing, ..view() })), measuring);
        assert!(at(Readiness::Loading, 1, 2).starts_with("leaving: waiting for what runs here to end"));
        assert!(parting(None).starts_with("ending: it was opening its data folder"));
    }
}
