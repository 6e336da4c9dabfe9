//! A running peer: everything is started here in order, and stopped in reverse.

mod context;
mod devices;
mod gateway;
mod http_server;
mod membership;
mod opened;
mod opening;
mod planes;
mod resources;
mod setup;
mod volunteer;
mod worker;

use self::{
    context::NodeContext,
    gateway::{GatewayWords, Ways},
    http_server::last_bytes,
    opening::unless_ended,
    volunteer::Volunteer,
};
pub(crate) use context::former_addresses;
pub use opened::{open_draft, open_named};
pub use setup::{ComputeChoice, Membering, ModelChoice, NodeConfig, NodeError, WantedModel};

use crate::{
    control_plane::{
        driver::{Driver, Reasons},
        faults::{cut, make_noise},
        heartbeat_sender::HeartbeatSender,
        owner::Owner,
        planner_thread::PlannerThread,
        swarm::names,
        twins,
    },
    data_plane::{
        heartbeats::Inbox,
        library,
        measure::{self, Measurer},
        offences::OffenceReporter,
        prober,
        roster::Roster,
    },
    embedding::{self, Asker},
    faults::Faults,
    history,
    http::Controls,
    limits::LimitsHandle,
    reachability,
    store::{HTTP_FILE, owner_token::TOKEN_FILE},
    view::{SwarmView, Trouble},
    weights::{Giver, Index, Peers, Puller, Pulls, Stocks},
    worker::WorkerHandle,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{gateway::View, planner::Scheduler, trust::Trust};
use tsnode_protocol::{Advert, proof::Membership};

/// How long a leaving peer waits for what runs here.
const DRAIN: Duration = Duration::from_secs(30);
/// Measurements of links on their way into the advert.
const LINK_NEWS: usize = 4;
/// What is to be set for the swarm, and has not been said: more is refused.
const SETTINGS: usize = 16;

/// Runs a peer until `stop`, then drains and leaves. `watcher` sees the swarm as the peer does.
///
/// # Errors
/// When something it needs cannot be had; nothing is left half-written.
pub async fn run(
    config: NodeConfig,
    stop: CancellationToken,
    watcher: impl FnOnce(watch::Receiver<SwarmView>),
) -> Result<(), NodeError> {
    let Some(context) = stop.run_until_cancelled(NodeContext::open(config)).await.transpose()? else { return Ok(()) };
    // HTTP opens first: until the peer is useful it says how far it is.
    let (handle, mut owner) = Owner::new(context.store.clone(), context.config.hours, stop.clone());
    let wall = context.config.wall;
    let faults = context.config.faults.then(|| watch::Sender::new(Faults { wall, ..Faults::default() }));
    let broken = faults.as_ref().map(watch::Sender::subscribe);
    let testnet = context.config.faults.then(|| context.config.data_dir.clone());
    let (measurer, wishes) = Measurer::channel();
    let (asked, was_asked) = watch::channel(false);
    let (settings, to_set) = mpsc::channel(SETTINGS);
    let (pulls, to_pull) = Pulls::channel();
    let (limits, relends) =
        LimitsHandle::new(&context.config.data_dir, context.config.limits(), context.config.bounds());
    // Who lends nothing has nothing to lend anew, and says so.
    let relends = Some(relends).filter(|_| !context.config.models.is_empty());
    let allowed = limits.clone();
    let controls = Controls { owner: handle, measurer, faults, testnet, asked, settings, limits, pulls: pulls.clone() };
    let server = context.http_server(controls).await?;
    let arrivals = history::watch(context.history.clone(), server.view.subscribe());
    context.tasks.spawn(context.ends.clone().run_until_cancelled_owned(arrivals));
    let began = context.bootstrap().iter().map(ToString::to_string).collect();
    server.view.send_modify(|view| view.bootstrap = began);
    watcher(server.view.subscribe());
    let hashing = server.view.clone();
    let mut tell = move |far| hashing.send_modify(|view| view.loading = Some(far));
    let (config, store, moving) = (context.config.clone(), context.store.clone(), owner.moving());
    let opening = async move {
        let index = Index::open(&config.data_dir).await;
        let resources = resources::Resources::find(&config, &store, &index, &mut tell).await?;
        let lenders = resources::lenders(&config, &moving)?;
        Ok::<_, NodeError>((index, resources, lenders))
    };
    let Some((index, resources, lenders)) = unless_ended(&stop, opening).await? else {
        tracing::info!("ends before it has joined its swarm: its models were still being read, hashed or measured");
        last_bytes(&server.end, server.serving).await;
        context.store.remove_file(HTTP_FILE);
        context.store.remove_file(TOKEN_FILE);
        context.ends.cancel();
        context.last_tasks().await;
        return Ok(());
    };
    let (giver, stocks) = (Giver::default(), Stocks::default());
    let planner_thread = PlannerThread::start(Arc::new(Scheduler)).map_err(|e| NodeError::System(e.to_string()))?;
    let (offence_reporter, offence_receiver) = OffenceReporter::channel();
    let (inbox, heartbeats) = Inbox::channel(context.invite.swarm);
    let planes = context.planes(&offence_reporter, broken.clone(), inbox).await?;
    if let Some(address) = planes.links.lacks_lifelines() {
        server.view.send_modify(|view| view.troubles.push(Trouble::NoLifelines { address }));
    }
    let twins = twins::watch(context.identity.clone(), context.process, context.former.clone(), server.view.clone());
    context.tasks.spawn(context.ends.clone().run_until_cancelled_owned(twins));
    let member = Membership::new(context.invite.swarm, context.belonging.secret);
    let alone = reachability::watch::watch(context.invite.swarm, member, server.view.clone());
    context.tasks.spawn(context.ends.clone().run_until_cancelled_owned(alone));
    let (roster_writer, roster) = Roster::channel();
    let (advert, shelf, links) =
        (Advert { encoders: lenders.cards(), ..resources.advert.clone() }, resources.shelf(), planes.links);
    let fallback = context.fallback(&advert);
    let response_log = context.response_log(&links, &roster)?;
    let (going, gone) = watch::channel(Arc::default());
    let memory = resources.advert.devices.iter().map(|device| device.memory_bytes).sum();
    let elements = resources.models.iter().map(|model| (model.source.card().id, model.dtype.bytes() as u64)).collect();
    let limited = resources.limited(&context.config);
    let inside = resources.models.first().map(|model| model.source.card().id);
    let worker = context.worker(
        (resources, shelf.clone(), lenders.clone(), giver.clone(), stocks.clone()),
        planes.incoming,
        (&links, &roster, &response_log),
        (owner.moving(), gone),
        broken.clone(),
    )?;
    owner.set_devices(advert.devices.clone());

    let NodeContext { tasks, ends, .. } = &context;
    let named = names::call(context.bootstrap().into_iter().filter(names::has_name).collect(), planes.swarm.clone());
    tasks.spawn(ends.clone().run_until_cancelled_owned(named));
    if let Some(broken) = &broken {
        tasks.spawn(cut(broken.clone(), planes.swarm.clone(), ends.clone()));
    }
    let (late, now_lent) = mpsc::channel(1);
    let places = Peers {
        me: context.identity.peer_id(),
        links: links.clone(),
        roster: roster.clone(),
        offence_reporter: offence_reporter.clone(),
    };
    let puller = Puller {
        places: places.clone(),
        index: index.clone(),
        data_dir: context.config.data_dir.clone(),
        shelf: shelf.clone(),
        stocks: stocks.clone(),
        pulls,
    };
    tasks.spawn(puller.run(to_pull, ends.clone()));
    tasks.spawn(ends.clone().run_until_cancelled_owned(links.clone().limit_uploads(allowed.upload())));
    if let (Some(inside), Some(relends)) = (inside, relends) {
        let volunteer = Volunteer {
            places,
            limits: allowed,
            relends,
            faults: broken.clone(),
            index,
            memory,
            own: inside,
            config: context.config.clone(),
            store: context.store.clone(),
            worker: worker.clone(),
            giver,
            stocks: stocks.clone(),
            shelf: shelf.clone(),
            view: server.view.clone(),
            lent: late,
        };
        tasks.spawn(volunteer.run(ends.clone()));
    }
    tasks.spawn(library::run(shelf, links.clone(), roster.clone(), server.queries, ends.clone()));
    let asker =
        Asker::new(context.identity.peer_id(), links.clone(), roster.clone(), lenders.clone(), context.history.clone());
    tasks.spawn(embedding::run(asker, server.encodings, tasks.clone(), ends.clone()));
    let (routes, view) = watch::channel(View::default());
    if let Some(broken) = &broken {
        tasks.spawn(make_noise(broken.clone(), planes.swarm.clone(), view.clone(), ends.clone()));
    }
    let (open, still_open) = watch::channel(0);
    let (traffic, asked_for) = watch::channel(Vec::new());
    let (seen_speeds, speeds_to_tell) = watch::channel(Vec::new());
    let words = GatewayWords { open, traffic, seen_speeds };
    let ways = Ways {
        worker: &worker,
        links: &links,
        roster: &roster,
        response_log: &response_log,
        offence_reporter: &offence_reporter,
    };
    tasks.spawn(context.drive(&ways, elements, (view, server.submissions), words).run(ends.clone()));
    tasks.spawn(measure::run(wishes, links.clone(), roster.clone(), ends.clone()));
    let (link_news, link_changes) = mpsc::channel(LINK_NEWS);
    tasks.spawn(prober::run(context.identity.peer_id(), links.clone(), roster, link_news, ends.clone()));

    let driver = Driver {
        control: context.control(),
        planner_thread,
        swarm: planes.swarm,
        events: planes.events,
        worker: worker.clone(),
        changeover: Default::default(),
        beside: Default::default(),
        stocks,
        data_plane: links.clone(),
        gone: planes.gone,
        heartbeats,
        heartbeat_sender: HeartbeatSender::new(links.clone(), tasks.clone()),
        advert,
        limited,
        encoders: lenders.cards(),
        fallback,
        default_model: context.config.default_model.clone(),
        reasons: Reasons::new(context.bootstrap().len()),
        data_port: planes.data_port,
        links: link_changes,
        traffic: asked_for,
        seen_speeds: speeds_to_tell,
        asked: was_asked,
        settings: to_set,
        now_lent,
        roster: roster_writer.adverts,
        chosen: roster_writer.chosen,
        going,
        routes,
        view: server.view,
        invite: context.invite.clone(),
        invites: context.invites.clone(),
        owner,
        offence_receiver,
        trust: Trust::default(),
        twin_seen: None,
        store: context.store.clone(),
        faults: broken,
        boast: None,
        is_slow: false,
        accused: Vec::new(),
        remembered: context.store.endorsed(),
        known: context.store.known(context.invite.swarm),
        shown: Vec::new(),
        echo: None,
        started: context.started,
    };
    driver.run(stop, drained(worker, still_open)).await;

    // In reverse: what others need is gone last.
    last_bytes(&server.end, server.serving).await;
    ends.cancel();
    links.close();
    context.last_tasks().await;
    Ok(())
}

/// Resolves when nothing runs here any more, for whatever leader, and this peer's clients have their answers, or it has taken too long.
async fn drained(worker: WorkerHandle, open: watch::Receiver<usize>) {
    let quiet = async {
        loop {
            match worker.report().await {
                Ok(report) if report.load.running + report.load.waiting > 0 || report.held + report.talks > 0 => {}
                _ if *open.borrow() > 0 => {}
                _ => return,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(DRAIN, quiet).await.is_err() {
        tracing::info!("left while requests were running: they go on elsewhere");
    }
}
