//! `tsnode testnet replay`: a trace on a swarm of real peers, and in the simulator on the same plan by the peers' own measured
//! profiles: each figure of both, side by side.

mod asking;
mod calibration;
mod compared;
mod fresh_traces;
mod request_log;
mod simulated;
mod terms;
mod together;

use super::{config, exit, spinner, swarm_args};
use crate::{
    cli::{
        ask::{PeerClient, unread},
        bench::serve::{
            self,
            arrivals::{PlannedRequest, TraceScaling, traced},
            client::{BenchTarget, Endpoint, RequestOutcome},
            report::Metric,
        },
        decimal,
        exit::{Exit, ExitKind},
        interrupts::Interrupts,
        is_set, json as json_flag, output, swarm_settings, switch, verb, whole,
    },
    config::{Settings, values},
    hardware::cores::Cores,
    view::{PeerView, SwarmView},
};
use asking::{Asking, Pass, TraceRun};
use calibration::Alone;
use clap::{Arg, ArgMatches, Command, value_parser};
use compared::ReplayComparison;
use request_log::RequestLog;
use serde_json::json;
use simulated::{Hosts, SimulatedReplay, SwarmViews};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terms::{GatewayTotals, LatencyTerms};
use together::ComputingPeers;
use tsnode_protocol::{ModelCard, ModelId, PeerId};
use tsnode_simulator::trace;
use tsnode_testnet::{PeerConfig, PeerInfo, Testnet, TestnetConfig};

/// How long a setting may take to be known, and between looks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// Between looks at which plan is in force, and at which requests have ended.
const PLAN_LOOK: Duration = Duration::from_secs(2);
/// Passes of requests beside the trace: before it, before it once more, and behind it.
const FIRST: Pass = Pass(0);
const AGAIN: Pass = Pass(1);
const BEHIND: Pass = Pass(2);

pub(super) fn command() -> Command {
    let example = "tsnode testnet replay --trace docs/examples/trace.csv --peers 4 --minutes 1\n  \
                   tsnode testnet replay --trace azure.csv --devices cpu:2,cpu:1,none --trace-lengths 0.2 --svg replay.svg --json";
    let factor = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("F").value_parser(values::above_0).default_value("1").help(help)
    };
    let about = "A trace on a swarm of real peers and in the simulator, figure beside figure";
    swarm_args(verb("replay", about, example), "4", "1")
        .arg(
            Arg::new("trace")
                .long("trace")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .required(true)
                .help("Requests and their times, as simulate --trace and bench serve --trace read them"),
        )
        .arg(
            Arg::new("minutes")
                .long("minutes")
                .value_name("N")
                .value_parser(values::above_0)
                .default_value("10")
                .help("So much of it, as it is played"),
        )
        .arg(factor("trace-speed", "Play the trace so many times as fast"))
        .arg(factor("trace-lengths", "Of each length of the trace so much, as 0.1"))
        .arg(
            Arg::new("threads")
                .long("threads")
                .value_name("N")
                .value_parser(whole(1_u16..=1024))
                .default_value("1")
                .conflicts_with("devices")
                .help("Threads of each peer"),
        )
        .arg(Arg::new("cores").long("cores").value_name("LIST").value_delimiter(',').value_parser(cores).help(
            "Processors of each peer in turn, as 0,1 or 0-1,2-3: the first peer on the first, and around [default: any]",
        ))
        .arg(
            Arg::new("split")
                .long("split")
                .value_name("WHEN")
                .value_parser(["auto", "always"])
                .default_value("auto")
                .help("Peers' --split"),
        )
        .arg(
            Arg::new("route")
                .long("route")
                .value_name("POLICY")
                .value_parser(["live", "shares", "shortest", "cronus", "pools"])
                .help("How requests are routed, as tsnode route set [default: live]"),
        )
        .arg(
            Arg::new("batch")
                .long("batch")
                .value_name("POLICY")
                .value_parser(["chunked", "mixed", "prefill-first"])
                .help("How groups form their steps, as tsnode batch set [default: chunked]"),
        )
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .value_parser(whole(0..=u64::MAX))
                .default_value("1")
                .help("Of the prompts' tokens"),
        )
        .arg(
            Arg::new("most-off")
                .long("most-off")
                .value_name("PERCENT")
                .value_parser(decimal(0.0..=1000.0))
                .help("Fail where a median, P90 or throughput of the simulator is further off"),
        )
        .arg(
            Arg::new("svg")
                .long("svg")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Draw both times' percentiles (SVG)"),
        )
        .arg(
            Arg::new("requests")
                .long("requests")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Write each request of the trace there, live and simulated (CSV)"),
        )
        .arg(switch("keep", "Leave the peers' logs, however it ends"))
        .arg(json_flag())
}

/// One peer's processors.
fn cores(text: &str) -> Result<Cores, String> {
    text.parse::<Cores>().map_err(str::to_owned)
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let svg = matches.get_one::<PathBuf>("svg").map(|file| serve::drawable(file).map(|()| file)).transpose()?;
    let requests = matches.get_one::<PathBuf>("requests");
    // Found out before anything runs.
    requests.map_or(Ok(()), |file| written(file, ""))?;
    let trace = TestnetTrace::read(matches)?;
    let mut config = config(settings, matches)?;
    let hosts = stated(&mut config, matches)?;
    let spinner = spinner(format!("starting {} peers", config.peers.len()));
    let mut interrupts = Interrupts::heard();
    let net = interrupts.unless(Box::pin(async { Testnet::up(&config).await.map_err(exit) })).await;
    spinner.finish_and_clear();
    let net = net?;
    let replayed = replayed(settings, matches, &net, (trace, &hosts), &mut interrupts).await;
    let folder = net.folder().to_owned();
    let ended = interrupts.down(net).await;
    let keeps = is_set(matches, "keep") || replayed.is_err() || ended.is_err();
    let (compared, log) = match replayed {
        Ok(replayed) => replayed,
        Err(error) => {
            return Err(Exit::new(error.kind, format!("{}; logs are in {}", error.message, folder.display())));
        }
    };
    if keeps {
        note!("tsnode: note: logs are in {}", folder.display());
    } else {
        std::fs::remove_dir_all(&folder).map_err(|e| Exit::file(ExitKind::Other, &folder, &e))?;
    }
    if let Some(file) = svg {
        written(file, &compared.svg())?;
    }
    if let (Some(file), Some(log)) = (requests, log) {
        written(file, &log)?;
    }
    if is_set(matches, "json") {
        output::print_json(&compared.json())?;
    } else {
        compared.lines().iter().for_each(|line| say!("{line}"));
        output::table(&compared.rows())?;
        say!("{}", compared.verdict());
        compared.reasons().iter().for_each(|line| say!("{line}"));
    }
    // What was measured is told first.
    ended?;
    compared.held(matches.get_one::<f64>("most-off").map(|percent| percent / 100.0))
}

fn written(file: &Path, text: &str) -> Result<(), Exit> {
    std::fs::write(file, text).map_err(|e| Exit::file(ExitKind::Other, file, &e))
}

/// What is replayed.
struct TestnetTrace {
    name: String,
    planned: Vec<PlannedRequest>,
    /// Requests whose lengths were cut to the model's context.
    cut: usize,
}

impl TestnetTrace {
    fn read(matches: &ArgMatches) -> Result<Self, Exit> {
        let file = matches.get_one::<PathBuf>("trace").ok_or_else(|| Exit::new(ExitKind::Usage, "--trace FILE"))?;
        let name = file.display().to_string();
        let number = |name: &str| matches.get_one::<f64>(name).copied().unwrap_or(1.0);
        let arrivals =
            trace::read(&serve::text(file)?).map_err(|e| Exit::new(ExitKind::Usage, format!("{name}: {e}")))?;
        let changed = TraceScaling { speed: number("trace-speed"), lengths: number("trace-lengths") };
        let mut planned = traced(&arrivals, usize::MAX, changed);
        let longest = Duration::try_from_secs_f64(number("minutes") * 60.0).unwrap_or(Duration::MAX);
        planned.retain(|request| request.at < longest);
        Ok(Self { name, planned, cut: 0 })
    }

    /// A request has room in the model's context: its answer at most half of it.
    fn within(mut self, context: u32) -> Self {
        for request in &mut self.planned {
            let answer = request.answer.min(context / 2).max(1);
            let prompt = request.prompt.min(context.saturating_sub(answer)).max(1);
            self.cut += usize::from((prompt, answer) != (request.prompt, request.answer));
            (request.prompt, request.answer) = (prompt, answer);
        }
        self
    }
}

/// Says which peer has which processors, and what of them every peer is told.
fn stated(config: &mut TestnetConfig, matches: &ArgMatches) -> Result<Hosts, Exit> {
    let named: Vec<Cores> = matches.get_many::<Cores>("cores").into_iter().flatten().cloned().collect();
    let threads = matches.get_one::<u16>("threads").copied().unwrap_or(1);
    let chosen = matches.value_source("threads") == Some(clap::parser::ValueSource::CommandLine);
    let mut computing = 0;
    for peer in &mut config.peers {
        let PeerConfig::Host { flags } = peer else { continue };
        if chosen && let Some(place) = flags.iter().position(|flag| flag == "--threads") {
            flags[place + 1] = threads.to_string();
        }
        if !named.is_empty() {
            flags.extend(["--cores".to_owned(), named[computing % named.len()].to_string()]);
        }
        computing += 1;
    }
    if computing == 0 {
        return Err(Exit::new(ExitKind::Usage, "no peer has a model: nobody would answer"));
    }
    // Draft tokens and spot checks are work that the simulator knows nothing of.
    config.flags.extend(["--speculative-decoding", "never", "--spot-check", "never"].map(str::to_owned));
    Hosts::new(named).map_err(|why| Exit::new(ExitKind::Usage, format!("--cores: {why}")))
}

/// A comparison, and its requests where they are asked for.
async fn replayed(
    settings: &Settings,
    matches: &ArgMatches,
    net: &Testnet,
    (trace, hosts): (TestnetTrace, &Hosts),
    interrupts: &mut Interrupts,
) -> Result<(ReplayComparison, Option<String>), Exit> {
    let peers: Vec<PeerInfo> = net.peers().into_iter().cloned().collect();
    // The last is a gateway, if there is one.
    let asked = peers.last().ok_or_else(|| Exit::new(ExitKind::Other, "no peers to ask"))?;
    let peer = PeerClient::of(settings, asked.http.clone(), &asked.data_dir)?;
    for about in ["route", "batch"] {
        if let Some(policy) = matches.get_one::<String>(about) {
            set(&peer, about, policy).await?;
        }
    }
    let view = peer.view().await?;
    let card = only_model(&view)?;
    let unmeasured = unmeasured(&view, card.id);
    if unmeasured > 0 {
        note!(
            "tsnode: note: steps of {unmeasured} peers have not been measured, as of no model of one layer they are: the simulator takes \
             what their devices can do at most"
        );
    }
    let trace = trace.within(card.shape.context);
    let target = BenchTarget {
        peer,
        endpoint: Endpoint::Completions,
        model: card.name,
        temperature: Some(0.0),
        ignore_eos: true,
    };
    let asking = Asking { net, target: Arc::new(target), seed: matches.get_one::<u64>("seed").copied().unwrap_or(1) };
    let spinner = spinner("asking one request after another, and some at once".into());
    let hosting = (peers.iter().filter(|peer| !peer.gateway).count(), hosts.computing(&peers, &view));
    let context = card.shape.context;
    let measured = interrupts.unless(Box::pin(measured(&asking, &trace.planned, hosting, context))).await;
    spinner.finish_and_clear();
    let BeforeTrace { mut alone, view: before, is_settled } = measured?;
    let counted_before = counted(&asking.target.peer).await?;
    let bar = serve::bar(trace.planned.len(), is_set(matches, "json"));
    let log = if matches.contains_id("requests") {
        Some(RequestLog::begun(&asking.target.peer, trace.planned.len()).await?)
    } else {
        None
    };
    let mut watch = TraceWatch { in_force: PlansInForce::since(before.clone()), log };
    let replayed = tokio::select! {
        // A signal ends the trace with what there is.
        replayed = asking.trace(&trace.planned, &bar, interrupts.next()) => replayed,
        () = watch.looks(&asking.target.peer) => Err(Exit::new(ExitKind::Other, "nobody looks at the plan any more")),
    };
    bar.finish_and_clear();
    let TraceRun { report: live, outcomes, processors } = replayed?;
    let counted_after = counted(&asking.target.peer).await?;
    let terms = LatencyTerms::live(counted_before, counted_after, live.mean(Metric::E2el).unwrap_or_default());
    let TraceWatch { in_force, mut log } = watch;
    if let Some(log) = &mut log {
        // Before others are asked for: gateways keep a number of the newest. What is not told now is asked for once more.
        let _ = log.look().await;
    }
    // With another plan, or where somebody has had enough, it would not be the same.
    let is_the_same = async { asking.target.peer.view().await.is_ok_and(|view| view.plan_id == before.plan_id) };
    if live.unsent + live.cut == 0 && is_the_same.await {
        let bar = self::spinner("asking the same again behind the trace".into());
        let pass = asking.pass(BEHIND, &trace.planned, hosting, context);
        let pass = interrupts.unless(Box::pin(pass)).await;
        bar.finish_and_clear();
        // What the trace showed is not lost to who ends this, nor to a request that fails.
        if let Ok(pass) = pass {
            alone = alone.and_behind(pass);
        }
    }
    let behind = alone.behind;
    let views = SwarmViews { before: &before, in_force: in_force.longest().unwrap_or(&before) };
    let simulated = SimulatedReplay::new(&views, &peers, hosts, &alone, &trace.planned)?;
    let requests = match log {
        Some(log) => Some(requests(log, (&trace.planned, &outcomes), &simulated, &peers).await),
        None => None,
    };
    let (settled, replanned) = (is_settled, in_force.are_several());
    let compared = ReplayComparison {
        trace: trace.name,
        cut: trace.cut,
        live,
        terms,
        simulated,
        settled,
        replanned,
        behind,
        processors,
    };
    Ok((compared, requests))
}

/// What was measured before the trace, and the swarm as it was then.
struct BeforeTrace {
    alone: Alone,
    view: SwarmView,
    /// All of it with that plan.
    is_settled: bool,
}

/// Measures what is not in profiles, and once more where another plan was adopted meanwhile: the simulator has one of them.
async fn measured(
    asking: &Asking<'_>,
    planned: &[PlannedRequest],
    hosting: (usize, ComputingPeers),
    context: u32,
) -> Result<BeforeTrace, Exit> {
    let before = measured_once(asking, FIRST, planned, hosting, context).await?;
    if before.is_settled { Ok(before) } else { measured_once(asking, AGAIN, planned, hosting, context).await }
}

async fn measured_once(
    asking: &Asking<'_>,
    pass: Pass,
    planned: &[PlannedRequest],
    hosting: (usize, ComputingPeers),
    context: u32,
) -> Result<BeforeTrace, Exit> {
    let plan = asking.target.peer.view().await?.plan_id;
    let alone = asking.alone(pass, planned, hosting, context).await?;
    let view = asking.target.peer.view().await?;
    let is_settled = view.plan_id == plan;
    Ok(BeforeTrace { alone, view, is_settled })
}

/// The trace's requests, live and simulated, once all have ended.
async fn requests(
    mut log: RequestLog<'_>,
    (planned, outcomes): (&[PlannedRequest], &[RequestOutcome]),
    simulated: &SimulatedReplay,
    peers: &[PeerInfo],
) -> String {
    let last = log.look().await;
    let live = log.ended();
    let missed = live.missed(outcomes);
    if missed > 0 {
        let why = last.err().map_or_else(String::new, |error| format!(": {}", error.message));
        note!("tsnode: note: of {missed} requests nothing is known of where they ran and waited{why}");
    }
    let name = |peer: PeerId| {
        let id = peer.to_string();
        peers.iter().find(|known| known.id == id).map_or(id, |known| known.name.clone())
    };
    live.csv(planned, outcomes, simulated, name)
}

/// What is looked at while the trace runs.
struct TraceWatch<'p> {
    in_force: PlansInForce,
    log: Option<RequestLog<'p>>,
}

impl TraceWatch<'_> {
    /// Looks now and then; it does not end. Who is too busy to answer is asked again.
    async fn looks(&mut self, peer: &PeerClient) {
        loop {
            tokio::time::sleep(PLAN_LOOK).await;
            if let Ok(view) = peer.view().await {
                self.in_force.seen(view);
            }
            if let Some(log) = &mut self.log {
                // What was not told this time is asked for the next.
                let _ = log.look().await;
            }
        }
    }
}

/// The swarm as it was seen with each of its plans, and how often. Once gateways have said what they are asked for a plan is made for that.
struct PlansInForce(Vec<(SwarmView, u32)>);

impl PlansInForce {
    fn since(view: SwarmView) -> Self {
        Self(vec![(view, 0)])
    }

    fn seen(&mut self, view: SwarmView) {
        match self.0.iter_mut().find(|(known, _)| known.plan_id == view.plan_id) {
            Some((_, times)) => *times += 1,
            None if view.plan.is_some() => self.0.push((view, 1)),
            None => {}
        }
    }

    /// With the plan that was in force longest, the first of several.
    fn longest(&self) -> Option<&SwarmView> {
        self.0.iter().rev().max_by_key(|(_, times)| *times).map(|(view, _)| view)
    }

    fn are_several(&self) -> bool {
        self.0.len() > 1
    }
}

/// What the peer that is asked has counted of its requests.
async fn counted(peer: &PeerClient) -> Result<GatewayTotals, Exit> {
    let response = peer.send(peer.request("/metrics").timeout(PATIENCE)).await?;
    let text = response.text().await.map_err(|e| Exit::new(ExitKind::Unreachable, unread(&e)))?;
    Ok(GatewayTotals::of(&text))
}

/// Sets how requests are routed or steps formed, and waits until the peer that is asked knows it.
async fn set(peer: &PeerClient, about: &str, policy: &str) -> Result<(), Exit> {
    peer.send(peer.post("/api/settings", &json!({ "about": about, "policy": policy }))).await?;
    let until = Instant::now() + PATIENCE;
    loop {
        let view = peer.view().await?;
        let (settings, model) = (swarm_settings::of(&view), only_model(&view)?.id);
        let said = match about {
            "batch" => settings.batch(model).map(|(policy, _)| policy.to_string()),
            _ => settings.route(model).map(|(policy, _)| policy.to_string()),
        };
        if said.as_deref() == Some(policy) {
            return Ok(());
        }
        if Instant::now() > until {
            let what = format!("--{about} {policy} is not set after {} s", PATIENCE.as_secs());
            return Err(Exit::new(ExitKind::Other, what));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Peers that serve a model of whose steps nothing was measured.
fn unmeasured(view: &SwarmView, model: ModelId) -> usize {
    let serve_unmeasured = |peer: &&PeerView| {
        let mut served = peer.advert.devices.iter().filter_map(|device| device.served(model));
        served.any(|served| served.profile.is_none())
    };
    view.peers.iter().filter(serve_unmeasured).count()
}

/// The swarm's model: a testnet has one.
fn only_model(view: &SwarmView) -> Result<ModelCard, Exit> {
    let model = view.models.first().cloned();
    model.ok_or_else(|| Exit::new(ExitKind::Unserved, "the swarm has no model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_counts_that_was_in_force_longest() {
        let view = crate::view::tests::view;
        let mut plans = PlansInForce::since(view());
        assert!(plans.longest().is_some() && !plans.are_several());
        plans.0.push((view(), 3));
        plans.0.push((view(), 2));
        assert!(plans.are_several() && std::ptr::eq(plans.longest().unwrap(), &plans.0[1].0));
    }
}
