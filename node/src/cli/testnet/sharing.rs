//! `tsnode testnet sharing`: the same requests for several models of one real peer, and in the simulator by that peer's measured
//! profiles, in each order of turns: normalised latency beside normalised latency.

mod compared;
mod simulated;
mod turns;

use super::{dir, exit, folder, spinner};
use crate::{
    cli::{
        ask::PeerClient,
        bench::serve::{
            self,
            arrivals::{Arrivals, DrawnLengths, PlannedRequest, drawn},
            client::{BenchTarget, Endpoint, LoadBounds, Run, load},
            prompts::{PromptContent, Prompts},
            report::{Report, reasons},
        },
        decimal,
        exit::{Exit, ExitKind},
        interrupts::Interrupts,
        is_set, json as json_flag, output, switch, verb, whole,
    },
    config::{Settings, values},
    view::SwarmView,
};
use clap::{Arg, ArgAction, ArgMatches, Command, builder::PossibleValuesParser};
use compared::{ComparedModel, OrderComparison, Row, Stopped};
use indicatif::ProgressBar;
use simulated::{LoneRequests, SimulatedPeer};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};
use tsnode_coordinator::policy::sharing::{TurnOrder, device_use::ServiceUse};
use tsnode_protocol::{LayerProfile, ModelCard};
use tsnode_simulator::percentile::Sorted;
use tsnode_testnet::{PeerConfig, PeerInfo, Testnet, TestnetConfig};

/// Requests of each model asked one after another before the others: what a step and a request take beside their layers.
const ALONE: usize = 12;
/// How long one may run behind the last request's time.
const DRAIN: Duration = Duration::from_secs(600);
/// Requests of a model at once.
const AT_ONCE: usize = 1024;
/// How long a peer may take to serve all models, and between looks.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
/// Within which a peer's view says what has happened: it looks four times a second.
const SEEN: Duration = Duration::from_millis(700);

pub(super) fn command() -> Command {
    let example = "tsnode testnet sharing --model small --model large --load 1.2\n  \
                   tsnode testnet sharing --model small --model large --input-len 200,40 --sharing doubling,first-come";
    let about = "Several models on one real peer and in the simulator, in each order of turns";
    let list = |name: &'static str, usual: &'static str, help: &'static str| {
        let tokens = whole(1_u32..=1 << 20);
        Arg::new(name)
            .long(name)
            .value_name("N,M,…")
            .value_delimiter(',')
            .value_parser(tokens)
            .default_value(usual)
            .help(help)
    };
    let number = |name: &'static str, usual: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").default_value(usual).help(help)
    };
    verb("sharing", about, example)
        .arg(
            Arg::new("model")
                .long("model")
                .value_name("PATH")
                .action(ArgAction::Append)
                .required(true)
                .help("A model of the peer, as join takes it: say it twice or more"),
        )
        .arg(
            Arg::new("sharing")
                .long("sharing")
                .value_name("ORDER,…")
                .value_delimiter(',')
                .value_parser(PossibleValuesParser::new(TurnOrder::ALL.map(|(name, _)| name)))
                .help("The peer's --sharing, one after the other [default: all]"),
        )
        .arg(
            number("load", "1.2", "Each model's requests, one by one, would take so much of the device's time")
                .value_parser(values::above_0),
        )
        .arg(number("requests", "600", "Of all models together").value_parser(whole(2_usize..=100_000)))
        .arg(
            number("bursty", "4", "Gaps between a model's requests with this squared coefficient of variation")
                .value_parser(decimal(0.01..=1000.0)),
        )
        .arg(list("input-len", "64,64", "Tokens of each model's prompts, give or take half"))
        .arg(list("output-len", "12,96", "Tokens of each model's answers, give or take half"))
        .arg(number("threads", "1", "Threads of the peer").value_parser(whole(1_u16..=1024)))
        .arg(Arg::new("kv-memory").long("kv-memory").value_name("SIZE").help("The peer's --kv-memory"))
        .arg(number("seed", "1", "Of arrivals, lengths and prompts").value_parser(whole(0..=u64::MAX)))
        .arg(
            Arg::new("most-off")
                .long("most-off")
                .value_name("PERCENT")
                .value_parser(decimal(0.0..=1000.0))
                .help("Fail where a mean of the simulator is further off, or a request failed"),
        )
        .arg(dir())
        .arg(switch("keep", "Leave the peers' logs, however it ends"))
        .arg(json_flag())
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let wish = SharingOptions::of(matches)?;
    let (mut asked, mut rows, mut ended) = (None, Vec::new(), None);
    let mut interrupts = Interrupts::heard();
    for order in &wish.orders {
        // An order takes minutes: what was measured of those before it is told, whatever becomes of this one.
        let measured = wish.measure(settings, matches, *order, (&mut asked, &mut rows), &mut interrupts).await;
        if let Err(Exit { kind, message }) = measured {
            let error = Exit::new(kind, format!("stopped at {}: {message}", order.0));
            ended = Some((Stopped { order: order.0, reason: message }, error));
            break;
        }
    }
    let (stopped, error) = ended.unzip();
    let (Some(asked), false) = (asked, rows.is_empty()) else {
        return Err(error.unwrap_or_else(|| Exit::new(ExitKind::Other, "nothing was asked")));
    };
    let compared = OrderComparison { load: wish.load, seed: wish.seed, models: asked.models(), rows, stopped };
    if is_set(matches, "json") {
        output::print_json(&compared.json())?;
    } else {
        compared.lines().iter().for_each(|line| say!("{line}"));
        output::table(&compared.table())?;
        output::table(&compared.turns())?;
        say!("{}", compared.verdict());
    }
    match error {
        Some(error) => Err(error),
        None => compared.held(matches.get_one::<f64>("most-off").map(|percent| percent / 100.0)),
    }
}

/// What is asked for.
struct SharingOptions {
    models: Vec<String>,
    orders: Vec<(&'static str, TurnOrder)>,
    load: f64,
    requests: usize,
    variation: f64,
    /// Of each model.
    lengths: Vec<DrawnLengths>,
    threads: u16,
    kv_memory: Option<String>,
    seed: u64,
    shows_progress: bool,
}

/// What is asked of every peer: drawn once, by what the first one was measured to take.
struct SharingLoad {
    names: Vec<String>,
    /// What was measured of each model's layers on the first peer.
    profiles: Vec<Option<LayerProfile>>,
    planned: Vec<Vec<PlannedRequest>>,
    /// What each model's requests take alone, on average: by these all latencies are normalised, live and simulated.
    means: Vec<f64>,
}

impl SharingLoad {
    fn models(&self) -> Vec<ComparedModel> {
        let all = self.names.iter().zip(&self.profiles).zip(self.planned.iter().zip(&self.means));
        type Named<'a> = (&'a String, &'a Option<LayerProfile>);
        let model = |((name, profile), (planned, mean)): (Named<'_>, (&Vec<PlannedRequest>, &f64))| ComparedModel {
            name: name.clone(),
            profile: *profile,
            requests: planned.len(),
            mean_alone: *mean,
        };
        all.map(model).collect()
    }
}

impl SharingOptions {
    fn of(matches: &ArgMatches) -> Result<Self, Exit> {
        let usage = |what: String| Exit::new(ExitKind::Usage, what);
        let models: Vec<String> = matches.get_many::<String>("model").into_iter().flatten().cloned().collect();
        if models.len() < 2 {
            return Err(usage("--model: name two models or more, which take turns".into()));
        }
        let list = |name: &str| -> Result<Vec<u32>, Exit> {
            let all: Vec<u32> = matches.get_many::<u32>(name).into_iter().flatten().copied().collect();
            let wrong =
                || usage(format!("--{name} has {} numbers: name one for each of {} models", all.len(), models.len()));
            if all.len() == models.len() { Ok(all) } else { Err(wrong()) }
        };
        let lengths = list("input-len")?.into_iter().zip(list("output-len")?);
        let lengths = lengths.map(|(prompt, answer)| DrawnLengths { prompt, answer, ratio: 0.5 }).collect();
        let named: Vec<&String> = matches.get_many::<String>("sharing").into_iter().flatten().collect();
        let is_asked = |name: &str| named.is_empty() || named.iter().any(|asked| *asked == name);
        let number = |name: &str| matches.get_one::<f64>(name).copied().unwrap_or(1.0);
        Ok(Self {
            models,
            orders: TurnOrder::ALL.into_iter().filter(|(name, _)| is_asked(name)).collect(),
            load: number("load"),
            requests: matches.get_one("requests").copied().unwrap_or(2),
            variation: number("bursty"),
            lengths,
            threads: matches.get_one("threads").copied().unwrap_or(1),
            kv_memory: matches.get_one::<String>("kv-memory").cloned(),
            seed: matches.get_one("seed").copied().unwrap_or(1),
            shows_progress: !is_set(matches, "json"),
        })
    }

    /// One peer that has all models. Drafts and spot checks are work that the simulator knows nothing of.
    fn config(&self, settings: &Settings, matches: &ArgMatches, order: &str) -> Result<TestnetConfig, Exit> {
        let executable = std::env::current_exe().map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
        let threads = self.threads.to_string();
        let told =
            ["--device", "cpu", "--threads", threads.as_str(), "--sharing", order, "--log", settings.text("log")];
        let told = told.into_iter().chain(["--speculative-decoding", "never", "--spot-check", "never"]);
        let mut flags: Vec<String> = told.map(str::to_owned).collect();
        flags.extend(self.kv_memory.iter().flat_map(|size| ["--kv-memory".to_owned(), size.clone()]));
        flags.extend(self.models.iter().flat_map(|model| ["--model".to_owned(), model.clone()]));
        Ok(TestnetConfig {
            executable,
            folder: folder(matches).join(format!("run-{}-{order}", std::process::id())),
            peers: vec![PeerConfig::Host { flags }],
            link_mbit: None,
            link_ms: None,
            http_port: None,
            flags: Vec::new(),
        })
    }

    /// One order, from its peer's start to its end. A row that was measured is kept, whatever goes wrong with its peer behind it.
    async fn measure(
        &self,
        settings: &Settings,
        matches: &ArgMatches,
        (name, order): (&'static str, TurnOrder),
        (asked, rows): (&mut Option<SharingLoad>, &mut Vec<Row>),
        interrupts: &mut Interrupts,
    ) -> Result<(), Exit> {
        let config = self.config(settings, matches, name)?;
        let spinner = self.spinner(format!("{name}: starting the peer"));
        let net = interrupts.unless(Box::pin(async { Testnet::up(&config).await.map_err(exit) })).await;
        spinner.finish_and_clear();
        let net = net?;
        let row = interrupts.unless(Box::pin(self.row(settings, &net, (name, order), asked))).await;
        let ended = interrupts.down(net).await;
        let folder = config.folder;
        let logs = |error: Exit| Exit::new(error.kind, format!("{}; logs are in {}", error.message, folder.display()));
        rows.push(row.map_err(logs)?);
        ended.map_err(logs)?;
        // One that came while nothing was waited for ends what follows.
        interrupts.unless(async { Ok(()) }).await.map_err(logs)?;
        if is_set(matches, "keep") {
            note!("tsnode: note: logs are in {}", folder.display());
            return Ok(());
        }
        std::fs::remove_dir_all(&folder).map_err(|e| Exit::file(ExitKind::Other, &folder, &e))
    }

    /// One order, live and simulated.
    async fn row(
        &self,
        settings: &Settings,
        net: &Testnet,
        (name, order): (&'static str, TurnOrder),
        asked: &mut Option<SharingLoad>,
    ) -> Result<Row, Exit> {
        let missing = || Exit::new(ExitKind::Other, "no peer to ask");
        let info: PeerInfo = net.peers().first().map(|info| (*info).clone()).ok_or_else(missing)?;
        let peer = || PeerClient::of(settings, info.http.clone(), &info.data_dir);
        let (view, cards) = served(&peer()?, self.models.len()).await?;
        self.within(&cards)?;
        let mut targets = Vec::with_capacity(cards.len());
        for card in &cards {
            let (peer, model) = (peer()?, card.name.clone());
            let target =
                BenchTarget { peer, endpoint: Endpoint::Completions, model, temperature: Some(0.0), ignore_eos: true };
            targets.push(Arc::new(target));
        }
        let spinner = self.spinner(format!("{name}: asking each model one request after another"));
        let alone = self.each_alone(&targets, &cards).await;
        spinner.finish_and_clear();
        let simulated = SimulatedPeer::new(&view, &cards, &alone?)?;
        let asked: &SharingLoad = asked.get_or_insert_with(|| self.asked(&view, &cards, &simulated));
        let SharingLoad { planned, means, .. } = asked;
        let bar = serve::bar(planned.iter().map(Vec::len).sum(), !self.shows_progress);
        bar.set_message(name);
        let before = used(&peer()?, &cards).await?;
        let runs = self.live(&targets, planned, &bar).await;
        bar.finish_and_clear();
        if runs.iter().any(|run| run.cut + run.unsent > 0) {
            let what = format!("{name}: some requests had not ended {} s after the last came", DRAIN.as_secs());
            return Err(Exit::new(ExitKind::Request, format!("{what}; ask for less: --load, --requests")));
        }
        let after = used(&peer()?, &cards).await?;
        let (latencies, simulated_turns) = simulated.run(order, planned, means);
        let lost = |run: &Run| run.outcomes.iter().filter(|o| o.answer.is_err()).count();
        let why = runs.iter().flat_map(|run| reasons(&run.outcomes)).map(|(why, _)| why).next();
        Ok(Row {
            order: name,
            failed: runs.iter().map(lost).sum(),
            reason: why,
            live: of_each(&runs, means),
            simulated: latencies,
            live_turns: after.iter().zip(&before).map(|(after, before)| after.since(before)).collect(),
            simulated_turns,
            overheads: simulated.overheads,
        })
    }

    /// Says what is waited for, to people.
    fn spinner(&self, message: String) -> ProgressBar {
        if self.shows_progress { spinner(message) } else { ProgressBar::hidden() }
    }

    /// The longest request that may be drawn of each model has room in its context.
    fn within(&self, cards: &[ModelCard]) -> Result<(), Exit> {
        for (card, DrawnLengths { prompt, answer, ratio }) in cards.iter().zip(&self.lengths) {
            let [prompt, answer] = [prompt, answer].map(|length| (f64::from(*length) * (1.0 + ratio)).ceil());
            let (longest, context) = (prompt + answer, card.shape.context);
            if longest > f64::from(context) {
                let what =
                    format!("{}: its context of {context} tokens is shorter than requests of {longest}", card.name);
                let next = "ask for less with --input-len and --output-len, which vary by half";
                return Err(Exit::new(ExitKind::Usage, format!("{what}; {next}")));
            }
        }
        Ok(())
    }

    /// What models take that are asked alone, one after the other.
    async fn each_alone(&self, targets: &[Arc<BenchTarget>], cards: &[ModelCard]) -> Result<Vec<LoneRequests>, Exit> {
        let mut all = Vec::with_capacity(targets.len());
        for (n, target) in targets.iter().enumerate() {
            all.push(self.alone(target, n, cards).await?);
        }
        Ok(all)
    }

    /// A model's usual requests, one after another.
    async fn alone(&self, target: &Arc<BenchTarget>, n: usize, cards: &[ModelCard]) -> Result<LoneRequests, Exit> {
        let DrawnLengths { prompt, answer, .. } = self.lengths[n];
        let planned = vec![PlannedRequest { at: Duration::ZERO, prompt, answer }; ALONE];
        let one = LoadBounds { concurrency: 1, longest: DRAIN };
        // The first finds cold caches, and is not counted.
        ask(target, (!self.seed, n), &planned[..1], one, |_| {}).await;
        let before = used(&target.peer, cards).await?[n];
        let run = ask(target, (self.seed ^ (1 << 32), n), &planned, one, |_| {}).await;
        let report = Report::new(&run, |_| prompt, Vec::new());
        if report.completed < ALONE {
            let why = report.reasons.first().map_or("it did not end in time", |(why, _)| why.as_str());
            let what = format!("a request alone for {} is not answered: {why}", target.model);
            return Err(Exit::new(ExitKind::Request, what));
        }
        let used = used(&target.peer, cards).await?[n].since(&before);
        Ok(LoneRequests { prompt, answer, report, used })
    }

    /// Requests of all models over one span, each model's so often that alone they would take `load` of the device's time.
    fn asked(&self, view: &SwarmView, cards: &[ModelCard], simulated: &SimulatedPeer) -> SharingLoad {
        let usual = |(n, lengths): (usize, &DrawnLengths)| simulated.alone(n, lengths.prompt, lengths.answer);
        let rates: Vec<f64> = self.lengths.iter().enumerate().map(usual).map(|alone| self.load / alone).collect();
        let sum: f64 = rates.iter().sum();
        let list = |(n, rate): (usize, &f64)| {
            let requests = ((self.requests as f64 * rate / sum).round() as usize).max(1);
            let arrivals = Arrivals::Gamma { rate: *rate, shape: 1.0 / self.variation };
            drawn(arrivals, self.lengths[n], requests, self.seed.wrapping_mul(64).wrapping_add(n as u64))
        };
        let planned: Vec<Vec<PlannedRequest>> = rates.iter().enumerate().map(list).collect();
        let mean = |(n, list): (usize, &Vec<PlannedRequest>)| {
            list.iter().map(|p| simulated.alone(n, p.prompt, p.answer)).sum::<f64>() / list.len() as f64
        };
        let means = planned.iter().enumerate().map(mean).collect();
        let device = view.peers.first().and_then(|peer| peer.advert.devices.first());
        let profile = |card: &ModelCard| device.and_then(|device| device.profile(card.id)).copied();
        let (names, profiles) = cards.iter().map(|card| (card.name.clone(), profile(card))).unzip();
        SharingLoad { names, profiles, planned, means }
    }

    /// All models' requests at their times.
    async fn live(&self, targets: &[Arc<BenchTarget>], planned: &[Vec<PlannedRequest>], bar: &ProgressBar) -> Vec<Run> {
        let last = planned.iter().filter_map(|list| list.last()).map(|request| request.at).max();
        let bounds = LoadBounds { concurrency: AT_ONCE, longest: last.unwrap_or_default() + DRAIN };
        let ended: Vec<AtomicU64> = targets.iter().map(|_| AtomicU64::new(0)).collect();
        let ended = &ended;
        let each = |n: usize| async move {
            let watch = |count: usize| {
                ended[n].store(count as u64, Ordering::Relaxed);
                bar.set_position(ended.iter().map(|count| count.load(Ordering::Relaxed)).sum());
            };
            ask(&targets[n], (self.seed, n), &planned[n], bounds, watch).await
        };
        futures::future::join_all((0..targets.len()).map(each)).await
    }
}

/// These requests of the n-th model, to their ends.
async fn ask(
    target: &Arc<BenchTarget>,
    (seed, n): (u64, usize),
    planned: &[PlannedRequest],
    bounds: LoadBounds,
    watch: impl Fn(usize),
) -> Run {
    let prompts =
        Prompts { form: PromptContent::Tokens, shared: 0, seed: seed.wrapping_mul(64).wrapping_add(n as u64) };
    // Whoever interrupts it ends all of a row.
    load(target, prompts, planned, bounds, std::future::pending(), |ended, _| watch(ended)).await
}

/// Normalised latencies of each model's answers, from when their requests were due.
fn of_each(runs: &[Run], means: &[f64]) -> Vec<Sorted> {
    let of = |(run, mean): (&Run, &f64)| {
        let whole = run.outcomes.iter().filter_map(|o| Some((o.answer.as_ref().ok()?.whole + o.late).as_secs_f64()));
        Sorted::new(whole.map(|whole| simulated::normalised(whole, *mean)))
    };
    runs.iter().zip(means).map(of).collect()
}

/// What each model has had of the peer's device, once no more steps come.
async fn used(peer: &PeerClient, cards: &[ModelCard]) -> Result<Vec<ServiceUse>, Exit> {
    let of = |view: SwarmView| -> Vec<ServiceUse> {
        let own =
            |card: &ModelCard| view.turns.iter().filter(|turns| turns.model == card.id).map(|turns| turns.used).sum();
        cards.iter().map(own).collect()
    };
    let mut last = of(peer.view().await?);
    loop {
        tokio::time::sleep(SEEN).await;
        let now = of(peer.view().await?);
        if now.iter().zip(&last).all(|(now, last)| now.steps == last.steps) {
            return Ok(now);
        }
        last = now;
    }
}

/// The swarm as its one peer sees it once it serves all models, and these in the order in which it was told them.
async fn served(peer: &PeerClient, models: usize) -> Result<(SwarmView, Vec<ModelCard>), Exit> {
    let until = Instant::now() + PATIENCE;
    loop {
        let view = peer.view().await?;
        if view.loaded.len() == models {
            let device = view.peers.first().and_then(|peer| peer.advert.devices.first());
            let serves = device.into_iter().flat_map(|device| &device.serves);
            let card = |model| view.models.iter().find(|card| card.id == model).cloned();
            let cards: Vec<ModelCard> = serves.filter_map(|served| card(served.model)).collect();
            if cards.len() == models {
                return Ok((view, cards));
            }
        }
        if Instant::now() > until {
            let what =
                format!("the peer serves {} of {models} models after {} s", view.loaded.len(), PATIENCE.as_secs());
            return Err(Exit::new(ExitKind::Unserved, what));
        }
        tokio::time::sleep(LOOK).await;
    }
}
