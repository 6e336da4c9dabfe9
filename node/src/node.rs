//! A running peer: everything is started here in order, and stopped in reverse.

mod devices;
mod membership;
mod opened;
mod opening;
mod resources;
mod setup;
mod volunteer;

use self::{
    membership::{belonging, identity},
    opening::unless_ended,
    setup::{next_port, not_written},
    volunteer::Volunteer,
};
pub use opened::{open_draft, open_named};
pub use setup::{ComputeChoice, Membering, ModelChoice, NodeConfig, NodeError, WantedModel};

use crate::{
    control_plane::{
        driver::{Driver, Reasons},
        faults::{cut, make_noise},
        heartbeat_sender::HeartbeatSender,
        owner::Owner,
        planner_thread::PlannerThread,
        swarm::{self, ProcessId, SwarmConfig, SwarmEvent, SwarmHandle, names},
        twins,
    },
    data_plane::{
        carrier,
        doors::{self, Doors},
        heartbeats::Inbox,
        library::{self, Shelf},
        links::{GonePeers, Incoming, Links, LinksConfig},
        listening,
        measure::{self, Measurer},
        models::{FilesQuery, ModelLibrary},
        offences::OffenceReporter,
        prober,
        roster::Roster,
    },
    embedding::{self, Asker, Encoders, Lenders},
    faults::Faults,
    gateway::{Drive, GatewayHandle, Submission},
    history::{self, History},
    http::{self, ApiState, Controls, Gatekeeper, Texts},
    limits::LimitsHandle,
    reachability,
    response_log::ResponseLog,
    store::{
        self, Belonging, HTTP_FILE, Store, StoreError,
        identity::Identity,
        invites::{self, Invites},
        keys::KeyRing,
        owner_token::{LocalToken, TOKEN_FILE},
    },
    text::Templates,
    view::{SwarmView, Trouble},
    weights::{Giver, Index, Peers, Puller, Pulls, Stocks},
    worker::{WorkerHandle, WorkerSetup},
};
use libp2p::Multiaddr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::{
    batcher::BatcherConfig,
    control::{Control, ControlConfig},
    fallback::Fallback,
    gateway::{Gateway, GatewayConfig, View},
    planner::{PlanOptions, Scheduler},
    settings::SwarmSettings,
    trust::Trust,
};
use tsnode_protocol::{Advert, Invite, ModelId, PeerId, SeenSpeed, Traffic, proof::Membership};

/// How long a leaving peer waits for what runs here.
const DRAIN: Duration = Duration::from_secs(30);
/// How long it then waits for clients' last bytes; streams that do not end by then are cut with the process.
const LAST_BYTES: Duration = Duration::from_secs(2);
/// And for its own tasks.
const LAST_TASKS: Duration = Duration::from_secs(5);
/// Where Ollama's clients look unless they are told otherwise.
const OLLAMA_PORT: u16 = 11434;
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
    let Some(ground) = stop.run_until_cancelled(Ground::take(config)).await.transpose()? else { return Ok(()) };
    // HTTP opens first: until the peer is useful it says how far it is.
    let (handle, mut owner) = Owner::new(ground.store.clone(), ground.config.hours, stop.clone());
    let wall = ground.config.wall;
    let faults = ground.config.faults.then(|| watch::Sender::new(Faults { wall, ..Faults::default() }));
    let broken = faults.as_ref().map(watch::Sender::subscribe);
    let testnet = ground.config.faults.then(|| ground.config.data_dir.clone());
    let (measurer, wishes) = Measurer::channel();
    let (asked, was_asked) = watch::channel(false);
    let (settings, to_set) = mpsc::channel(SETTINGS);
    let (pulls, to_pull) = Pulls::channel();
    let (limits, relends) = LimitsHandle::new(&ground.config.data_dir, ground.config.limits(), ground.config.bounds());
    // Who lends nothing has nothing to lend anew, and says so.
    let relends = Some(relends).filter(|_| !ground.config.models.is_empty());
    let allowed = limits.clone();
    let front = ground
        .front(Controls { owner: handle, measurer, faults, testnet, asked, settings, limits, pulls: pulls.clone() })
        .await?;
    let arrivals = history::watch(ground.history.clone(), front.view.subscribe());
    ground.tasks.spawn(ground.ends.clone().run_until_cancelled_owned(arrivals));
    let began = ground.bootstrap().iter().map(ToString::to_string).collect();
    front.view.send_modify(|view| view.bootstrap = began);
    watcher(front.view.subscribe());
    let hashing = front.view.clone();
    let mut tell = move |far| hashing.send_modify(|view| view.loading = Some(far));
    let (config, store, moving) = (ground.config.clone(), ground.store.clone(), owner.moving());
    let opening = async move {
        let index = Index::open(&config.data_dir).await;
        let resources = resources::Resources::find(&config, &store, &index, &mut tell).await?;
        let lenders = resources::lenders(&config, &moving)?;
        Ok::<_, NodeError>((index, resources, lenders))
    };
    let Some((index, resources, lenders)) = unless_ended(&stop, opening).await? else {
        tracing::info!("ends before it has joined its swarm: its models were still being read, hashed or measured");
        last_bytes(&front.end, front.serving).await;
        ground.store.remove_file(HTTP_FILE);
        ground.store.remove_file(TOKEN_FILE);
        ground.ends.cancel();
        ground.last_tasks().await;
        return Ok(());
    };
    let (giver, stocks) = (Giver::default(), Stocks::default());
    let planner_thread = PlannerThread::start(Arc::new(Scheduler)).map_err(|e| NodeError::System(e.to_string()))?;
    let (offence_reporter, offence_receiver) = OffenceReporter::channel();
    let (inbox, heartbeats) = Inbox::channel(ground.invite.swarm);
    let planes = ground.planes(&offence_reporter, broken.clone(), inbox).await?;
    if let Some(address) = planes.links.lacks_lifelines() {
        front.view.send_modify(|view| view.troubles.push(Trouble::NoLifelines { address }));
    }
    let twins = twins::watch(ground.identity.clone(), ground.process, ground.former.clone(), front.view.clone());
    ground.tasks.spawn(ground.ends.clone().run_until_cancelled_owned(twins));
    let member = Membership::new(ground.invite.swarm, ground.belonging.secret);
    let alone = reachability::watch::watch(ground.invite.swarm, member, front.view.clone());
    ground.tasks.spawn(ground.ends.clone().run_until_cancelled_owned(alone));
    let (roster_writer, roster) = Roster::channel();
    let (advert, shelf, links) =
        (Advert { encoders: lenders.cards(), ..resources.advert.clone() }, resources.shelf(), planes.links);
    let fallback = ground.fallback(&advert);
    let response_log = ground.response_log(&links, &roster)?;
    let (going, gone) = watch::channel(Arc::default());
    let memory = resources.advert.devices.iter().map(|device| device.memory_bytes).sum();
    let elements = resources.models.iter().map(|model| (model.source.card().id, model.dtype.bytes() as u64)).collect();
    let limited = resources.limited(&ground.config);
    let inside = resources.models.first().map(|model| model.source.card().id);
    let worker = ground.worker(
        (resources, shelf.clone(), lenders.clone(), giver.clone(), stocks.clone()),
        planes.incoming,
        (&links, &roster, &response_log),
        (owner.moving(), gone),
        broken.clone(),
    )?;
    owner.set_devices(advert.devices.clone());

    let Ground { tasks, ends, .. } = &ground;
    let named = names::call(ground.bootstrap().into_iter().filter(names::has_name).collect(), planes.swarm.clone());
    tasks.spawn(ends.clone().run_until_cancelled_owned(named));
    if let Some(broken) = &broken {
        tasks.spawn(cut(broken.clone(), planes.swarm.clone(), ends.clone()));
    }
    let (late, now_lent) = mpsc::channel(1);
    let places = Peers {
        me: ground.identity.peer_id(),
        links: links.clone(),
        roster: roster.clone(),
        offence_reporter: offence_reporter.clone(),
    };
    let puller = Puller {
        places: places.clone(),
        index: index.clone(),
        data_dir: ground.config.data_dir.clone(),
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
            config: ground.config.clone(),
            store: ground.store.clone(),
            worker: worker.clone(),
            giver,
            stocks: stocks.clone(),
            shelf: shelf.clone(),
            view: front.view.clone(),
            lent: late,
        };
        tasks.spawn(volunteer.run(ends.clone()));
    }
    tasks.spawn(library::run(shelf, links.clone(), roster.clone(), front.queries, ends.clone()));
    let asker =
        Asker::new(ground.identity.peer_id(), links.clone(), roster.clone(), lenders.clone(), ground.history.clone());
    tasks.spawn(embedding::run(asker, front.encodings, tasks.clone(), ends.clone()));
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
    tasks.spawn(ground.drive(&ways, elements, (view, front.submissions), words).run(ends.clone()));
    tasks.spawn(measure::run(wishes, links.clone(), roster.clone(), ends.clone()));
    let (link_news, link_changes) = mpsc::channel(LINK_NEWS);
    tasks.spawn(prober::run(ground.identity.peer_id(), links.clone(), roster, link_news, ends.clone()));

    let driver = Driver {
        control: ground.control(),
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
        default_model: ground.config.default_model.clone(),
        reasons: Reasons::new(ground.bootstrap().len()),
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
        view: front.view,
        invite: ground.invite.clone(),
        invites: ground.invites.clone(),
        owner,
        offence_receiver,
        trust: Trust::default(),
        twin_seen: None,
        store: ground.store.clone(),
        faults: broken,
        boast: None,
        is_slow: false,
        accused: Vec::new(),
        remembered: ground.store.endorsed(),
        known: ground.store.known(ground.invite.swarm),
        shown: Vec::new(),
        echo: None,
        started: ground.started,
    };
    driver.run(stop, drained(worker, still_open)).await;

    // In reverse: what others need is gone last.
    last_bytes(&front.end, front.serving).await;
    ends.cancel();
    links.close();
    ground.last_tasks().await;
    Ok(())
}

/// Takes no new clients, and waits until those that are there have their last bytes.
async fn last_bytes(end: &CancellationToken, serving: Vec<JoinHandle<std::io::Result<()>>>) {
    end.cancel();
    let _ = timeout(LAST_BYTES, futures::future::join_all(serving)).await;
}

/// What everything else stands on.
struct Ground {
    config: NodeConfig,
    store: Store,
    identity: Identity,
    belonging: Belonging,
    invite: Invite,
    invites: Invites,
    /// Which process with this identity this is.
    process: ProcessId,
    /// Where this peer was in its last run.
    former: Vec<Multiaddr>,
    /// Places for whoever comes.
    doors: Doors,
    /// What was computed for whom.
    history: History,
    /// The process's zero.
    started: Instant,
    /// Owner of all tasks but HTTP's.
    tasks: TaskTracker,
    /// Ends them.
    ends: CancellationToken,
}

async fn http_listener(address: SocketAddr) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|e| NodeError::Listen {
        address,
        what: "HTTP",
        in_use: e.kind() == std::io::ErrorKind::AddrInUse,
        error: crate::plain::io_error(&e),
    })
}

/// The HTTP side, and the far ends of what it asks.
struct Front {
    view: watch::Sender<SwarmView>,
    submissions: mpsc::Receiver<Submission>,
    queries: mpsc::Receiver<FilesQuery>,
    encodings: mpsc::Receiver<embedding::Query>,
    /// At each of its ports.
    serving: Vec<JoinHandle<std::io::Result<()>>>,
    end: CancellationToken,
}

/// The ways to other peers.
struct Planes {
    links: Links,
    incoming: Incoming,
    gone: GonePeers,
    data_port: u16,
    swarm: SwarmHandle,
    events: mpsc::Receiver<SwarmEvent>,
}

/// What a gateway works with.
struct Ways<'w> {
    worker: &'w WorkerHandle,
    links: &'w Links,
    roster: &'w Roster,
    response_log: &'w ResponseLog,
    offence_reporter: &'w OffenceReporter,
}

/// What a gateway tells the peer it is of: how many requests are open, what is asked for, and whose claims of speed are in doubt.
struct GatewayWords {
    open: watch::Sender<usize>,
    traffic: watch::Sender<Vec<Traffic>>,
    seen_speeds: watch::Sender<Vec<SeenSpeed>>,
}

impl Ground {
    async fn take(config: NodeConfig) -> Result<Self, NodeError> {
        let (started, doors) = (Instant::now(), Doors::of(doors::raise_files()));
        let config = NodeConfig { listen: listening::available(config.listen), ..config };
        let store = Store::open(&config.data_dir)?;
        let identity = identity(&config.data_dir, &store)?;
        invites::set_damaged_aside(&config.data_dir)?;
        let (belonging, invite) = belonging(&config, &store, &identity).await?;
        let invites = Invites::new(&config.data_dir, belonging.swarm, belonging.secret);
        let (tasks, ends) = (TaskTracker::new(), CancellationToken::new());
        // Before the file is written anew.
        let (process, former) = (ProcessId::draw(), former_addresses(&config.data_dir));
        let history = History::default();
        tasks.spawn(history::keep(history.clone(), config.data_dir.clone(), ends.clone()));
        Ok(Self {
            config,
            store,
            identity,
            belonging,
            invite,
            invites,
            process,
            former,
            doors,
            history,
            started,
            tasks,
            ends,
        })
    }

    /// Waits for tasks that were told to end.
    async fn last_tasks(&self) {
        self.tasks.close();
        let _ = timeout(LAST_TASKS, self.tasks.wait()).await;
        tracing::debug!(left = ?crate::tasks::running(), "tasks that have not ended");
    }

    async fn front(&self, controls: Controls) -> Result<Front, NodeError> {
        let listener = http_listener(self.config.http).await?;
        let ollama = SocketAddr::new(self.config.http.ip(), OLLAMA_PORT);
        let ollama = if self.config.ollama_port { Some(http_listener(ollama).await?) } else { None };
        let at = listener.local_addr().map_err(|e| NodeError::System(e.to_string()))?;
        let (me, belonging) = (self.identity.peer_id(), &self.belonging);
        let first = SwarmView::first(me, belonging.swarm, belonging.secret.is_some());
        let (view, viewer) = watch::channel(SwarmView { split: self.config.split, http: Some(at), ..first });
        let (gateway, submissions) = GatewayHandle::channel();
        let (models, queries) = ModelLibrary::channel();
        let keys = KeyRing::open(&self.config.data_dir, self.config.api_key.as_deref())?;
        // The address of a process before this one may be another program's by now: it must not be shown the token.
        self.store.remove_file(HTTP_FILE);
        let local = LocalToken::leave(&self.store, at);
        let local = local.map_err(|error| not_written(&self.store, TOKEN_FILE, error))?;
        let gatekeeper = Gatekeeper::new(keys, self.config.http_rate);
        let gatekeeper = gatekeeper.with_local(local).with_sites(self.config.sites.clone());
        let templates = Templates::apart().map_err(|e| NodeError::System(e.to_string()))?;
        let texts = Texts::new(models, templates).reading(self.config.special_text).parsing(self.config.parsers);
        let (encoders, encodings) = Encoders::channel();
        let state = ApiState::new(gateway, texts, viewer, controls, gatekeeper).with_encoders(encoders);
        let state = state.with_history(self.history.clone());
        let end = CancellationToken::new();
        let serving = [Some(listener), ollama].into_iter().flatten().map(|listener| {
            crate::tasks::spawn("HTTP", http::serve(listener, self.doors.http.clone(), state.clone(), end.clone()))
        });
        let serving = serving.collect();
        let written = self.store.write_file(HTTP_FILE, &format!("{at}\n"));
        written.map_err(|error| not_written(&self.store, HTTP_FILE, error))?;
        Ok(Front { view, submissions, queries, encodings, serving, end })
    }

    async fn planes(
        &self,
        offence_reporter: &OffenceReporter,
        faults: Option<watch::Receiver<Faults>>,
        inbox: Inbox,
    ) -> Result<Planes, NodeError> {
        let Self { config, identity, .. } = self;
        let member = Membership::new(self.belonging.swarm, self.belonging.secret);
        let (carriage, porter) = carrier::channel();
        let (links, incoming, gone) = Links::bind(
            LinksConfig {
                identity: identity.clone(),
                membership: member.clone(),
                listen: SocketAddr::new(config.listen.ip(), next_port(config.listen.port())),
                shaping: config.shaping,
                datagram: None,
                offence_reporter: offence_reporter.clone(),
                faults: faults.clone(),
                heartbeats: Some(inbox),
                carriage: Some(carriage),
                kv_streams: config.kv_streams,
                doors: self.doors.clone(),
            },
            self.ends.clone(),
        )?;
        let data_port = links.local_addr().map_err(|e| NodeError::System(e.to_string()))?.port();
        let settings = SwarmConfig {
            identity: identity.clone(),
            life: self.store.begin_life(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
            swarm: self.invite.swarm,
            membership: member,
            process: self.process,
            invites: self.invites.clone(),
            listen: config.listen,
            bootstrap: self.bootstrap().into_iter().filter(|address| !names::has_name(address)).collect(),
            mdns: config.mdns,
            degree: swarm::DEGREE,
            agent: concat!("tsnode/", env!("CARGO_PKG_VERSION")).into(),
            relay: config.relay,
            faults,
            doors: self.doors.clone(),
        };
        let (swarm, events) = swarm::start(settings, porter, self.ends.clone()).await?;
        Ok(Planes { links, incoming, gone, data_port, swarm, events })
    }

    fn response_log(&self, links: &Links, roster: &Roster) -> Result<ResponseLog, StoreError> {
        let (tasks, stop) = (self.tasks.clone(), self.ends.clone());
        ResponseLog::open(&self.store, self.identity.peer_id(), (links.clone(), roster.clone()), tasks, stop)
    }

    /// Where the swarm may be found: at those who invited, and at those who were there last.
    fn bootstrap(&self) -> Vec<Multiaddr> {
        let mut known = self.store.known(self.invite.swarm);
        known.retain(|address| !self.invite.addresses.contains(address));
        self.invite.addresses.iter().chain(&known).filter_map(|a| a.parse().ok()).collect()
    }

    fn worker(
        &self,
        (resources, shelf, lenders, giver, stocks): (resources::Resources, Shelf, Lenders, Giver, Stocks),
        incoming: Incoming,
        (links, roster, response_log): (&Links, &Roster, &ResponseLog),
        (moving, going): (watch::Receiver<bool>, watch::Receiver<Arc<BTreeSet<PeerId>>>),
        faults: Option<watch::Receiver<Faults>>,
    ) -> Result<WorkerHandle, NodeError> {
        let (models, holdings) = resources.start(&self.config, faults.as_ref())?;
        giver.hold(holdings);
        let setup = WorkerSetup {
            me: self.identity.peer_id(),
            models,
            links: links.clone(),
            incoming,
            roster: roster.clone(),
            shelf,
            giver,
            stocks,
            lenders,
            batcher: BatcherConfig { speculation: self.config.speculation, ..BatcherConfig::default() },
            threads: self.config.threads,
            moving,
            going,
            response_log: response_log.clone(),
            history: self.history.clone(),
            stop: self.ends.clone(),
        };
        Ok(WorkerHandle::start(setup, &self.tasks))
    }

    fn drive(
        &self,
        ways: &Ways<'_>,
        elements: BTreeMap<ModelId, u64>,
        (view, submissions): (watch::Receiver<View>, mpsc::Receiver<Submission>),
        GatewayWords { open, traffic, seen_speeds }: GatewayWords,
    ) -> Drive {
        let settings = GatewayConfig {
            kv: self.config.kv_codec,
            fixed: self.config.fixed_kv,
            pace: self.config.kv_pace,
            split: self.config.split,
            element_bytes: self.config.kv_dtype.bytes() as u64,
            model_element_bytes: elements,
            ..GatewayConfig::default()
        };
        Drive {
            machine: Gateway::new(settings),
            me: self.identity.peer_id(),
            worker: ways.worker.clone(),
            links: ways.links.clone(),
            roster: ways.roster.clone(),
            offence_reporter: ways.offence_reporter.clone(),
            spot_checks: self.config.spot_checks,
            view,
            submissions,
            response_log: ways.response_log.clone(),
            history: self.history.clone(),
            open,
            traffic,
            seen_speeds,
            tasks: self.tasks.clone(),
            started: self.started,
        }
    }

    /// Whether and when the model inside the program is lent, where no other is named.
    fn fallback(&self, advert: &Advert) -> Option<Fallback> {
        let own = advert.models.first()?.clone();
        if opened::has_none(&self.config.models) {
            return Some(Fallback::never(own));
        }
        let is_fallback = self.config.models.iter().any(|model| model.choice == ModelChoice::Fallback);
        is_fallback.then(|| Fallback::new(own, self.started.elapsed(), !self.bootstrap().is_empty()))
    }

    fn control(&self) -> Control {
        let mut known = SwarmSettings::default();
        known.take_in(&self.store.settings(self.invite.swarm));
        let settings = ControlConfig {
            settings: known,
            takes_settings: self.belonging.secret.is_some(),
            wish: PlanOptions { layout: self.config.layout.clone(), split: self.config.split },
            endorsed: self.store.endorsed(),
            company: !self.bootstrap().is_empty(),
            ..ControlConfig::new(self.identity.peer_id(), self.invite.swarm)
        };
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Control::new(settings, self.started.elapsed(), unix)
    }
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

/// Where the peer of this folder was in its last run, as its invite says.
pub(crate) fn former_addresses(folder: &Path) -> Vec<Multiaddr> {
    let invite = store::own_invite(folder);
    invite.into_iter().flat_map(|invite| invite.addresses).filter_map(|a| a.parse().ok()).collect()
}
