//! A running peer: everything is started here in order, and stopped in reverse.

use crate::{
    driver::Driver,
    gateway::{Drive, Gateway},
    hardware::{self, Lend, LendError},
    http::{self, ApiState},
    identity::{Identity, IdentityError},
    library::{self, Shelf},
    links::{LinkError, Links, LinksConfig, Shaping},
    models::ModelLibrary,
    prober,
    roster::Roster,
    serving::{
        compute::Compute,
        host::{Host, HostSetup},
    },
    store::{Store, StoreError},
    swarm::{self, SwarmConfig, SwarmError},
    text::{TextError, TextModel},
    view::{Readiness, SwarmView},
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::{
    batcher::BatcherConfig,
    control::{Control, ControlConfig},
    gate::{KvChoice, SplitChoice},
    gateway::{Gateway as Machine, GatewayConfig, View},
    layout::Layout,
};
use tsnode_kernels::{
    device::Host as Hardware,
    engine::{Engine, EngineConfig},
    source::{ModelSource, SourceError},
};
use tsnode_protocol::{Advert, Epoch, Invite, KvDtype, Secret, SwarmId, Term, proof::Membership};

/// File in the data folder that says where HTTP listens, while the peer runs.
pub const HTTP_FILE: &str = "http.addr";
/// File in the data folder with the invite to the peer's swarm.
pub const INVITE_FILE: &str = "invite";
/// How long a leaving peer waits for what runs here.
const DRAIN: Duration = Duration::from_secs(30);

/// What model a peer serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelChoice {
    /// The one inside the program.
    Embedded,
    /// One on disk.
    Path(PathBuf),
    /// None: the peer is a gateway only.
    None,
}

/// Which swarm to be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membering {
    /// The one the peer was in last, else the open one of the local network.
    Usual,
    /// A new one with a secret.
    NewPrivate,
    /// That of an invite.
    Invited(Invite),
}

/// Everything a peer is told at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where its identity and state are.
    pub data_dir: PathBuf,
    /// What people call it.
    pub name: String,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// Where peers connect: TCP and UDP for control, the next UDP port for data; port 0 takes any.
    pub listen: SocketAddr,
    /// The swarm.
    pub membering: Membering,
    /// Whether to look for peers on the local network.
    pub mdns: bool,
    /// The model.
    pub model: ModelChoice,
    /// Threads that compute.
    pub threads: usize,
    /// KV pages (bytes), if told.
    pub kv_bytes: Option<u64>,
    /// Elements of KV pages.
    pub kv_dtype: KvDtype,
    /// Packing of KV on the wire.
    pub kv_codec: KvChoice,
    /// Whether the cost gate is asked.
    pub split: SplitChoice,
    /// Groups asked for.
    pub layout: Option<Layout>,
    /// Key that HTTP clients must show.
    pub api_key: Option<String>,
    /// A slow network to pretend.
    pub shaping: Option<Shaping>,
}

/// Why a peer does not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The model.
    #[error(transparent)]
    Model(#[from] SourceError),
    /// The model's tokenizer and templates.
    #[error("{model}: {error}")]
    Text {
        /// Which model.
        model: String,
        /// Why.
        error: TextError,
    },
    /// An address is taken or cannot be had.
    #[error("cannot listen on {address} ({what}): {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What for.
        what: &'static str,
        /// Why.
        error: String,
        /// Whether another program has it.
        in_use: bool,
    },
    /// What the host is asked to lend.
    #[error(transparent)]
    Lend(#[from] LendError),
    /// Anything else the system does not give.
    #[error("{0}")]
    System(String),
}

impl From<SwarmError> for NodeError {
    fn from(error: SwarmError) -> Self {
        match error {
            SwarmError::InUse { protocol, listen } => Self::Listen {
                address: listen,
                what: "peers",
                error: format!("{protocol} address in use"),
                in_use: true,
            },
            SwarmError::Listen { listen, reason, .. } => {
                Self::Listen { address: listen, what: "peers", error: reason, in_use: false }
            }
            SwarmError::Setup(error) => Self::System(error),
        }
    }
}

impl From<LinkError> for NodeError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Bind { address, error, in_use } => Self::Listen { address, what: "data", error, in_use },
            other => Self::System(other.to_string()),
        }
    }
}

/// Runs a peer until `stop`, then drains and leaves. `watcher` sees the swarm as the peer does.
///
/// # Errors
/// When something it needs cannot be had; nothing is left half-written.
pub async fn run(
    config: NodeConfig,
    stop: CancellationToken,
    watcher: impl FnOnce(watch::Receiver<SwarmView>),
) -> Result<(), NodeError> {
    let started = Instant::now();
    let store = Store::open(&config.data_dir)?;
    let identity = Identity::load_or_create(&config.data_dir)?;
    let invite = membership(&config, &store);
    let listener = TcpListener::bind(config.http).await.map_err(|e| NodeError::Listen {
        address: config.http,
        what: "HTTP",
        in_use: e.kind() == std::io::ErrorKind::AddrInUse,
        error: e.to_string(),
    })?;
    let http_at = listener.local_addr().map_err(|e| NodeError::System(e.to_string()))?;

    // HTTP opens first: until the peer is useful it says how far it is.
    let (view, viewer) = watch::channel(first_view(&identity, &invite, http_at));
    watcher(viewer.clone());
    let (gateway, submissions) = Gateway::channel();
    let (models, queries) = ModelLibrary::channel();
    let tasks = TaskTracker::new();
    let (ends, http_end) = (CancellationToken::new(), CancellationToken::new());
    let state = ApiState::new(gateway, models, viewer.clone(), config.api_key.clone());
    let serving_http = tokio::spawn(http::serve(listener, state, http_end.clone()));
    write_file(&store, HTTP_FILE, &format!("{http_at}\n"))?;

    let source = open_model(&config.model)?;
    let shelf = Shelf::new(source.clone());
    check_text(&shelf)?;
    let advert = advert(&config, source.as_deref(), &store).await?;
    let kv_bytes = advert.devices.first().map_or(0, |d| d.kv_bytes);
    let member = Membership::of(&invite);

    let data_at = SocketAddr::new(config.listen.ip(), next_port(config.listen.port()));
    let (links, incoming) = Links::bind(
        LinksConfig {
            identity: identity.clone(),
            membership: member.clone(),
            listen: data_at,
            shaping: config.shaping,
        },
        ends.clone(),
    )?;
    let data_at = links.local_addr().map_err(|e| NodeError::System(e.to_string()))?;
    let (swarm, events) = swarm::start(
        SwarmConfig {
            identity: identity.clone(),
            swarm: invite.swarm,
            membership: member,
            listen: config.listen,
            bootstrap: invite.addresses.iter().filter_map(|a| a.parse().ok()).collect(),
            mdns: config.mdns,
            degree: swarm::DEGREE,
            agent: concat!("tsnode/", env!("CARGO_PKG_VERSION")).into(),
        },
        ends.clone(),
    )
    .await?;

    let (roster_writer, roster) = Roster::channel();
    let engine = EngineConfig { threads: config.threads, pool_bytes: kv_bytes as usize, kv_dtype: config.kv_dtype };
    let engine = Engine::new(engine).map_err(|e| NodeError::System(e.to_string()))?;
    let compute = Compute::start(engine).map_err(|e| NodeError::System(e.to_string()))?;
    let host = Host::start(
        HostSetup {
            me: identity.peer_id(),
            compute,
            links: links.clone(),
            incoming,
            roster: roster.clone(),
            source,
            shelf: shelf.clone(),
            dtype: config.kv_dtype,
            batcher: BatcherConfig::default(),
            stop: ends.clone(),
        },
        &tasks,
    );
    tasks.spawn(library::run(shelf, links.clone(), roster.clone(), queries, ends.clone()));
    let (routes, route_view) = watch::channel(View::default());
    let drive = Drive {
        machine: Machine::new(gateway_config(&config)),
        me: identity.peer_id(),
        host: host.clone(),
        links: links.clone(),
        roster: roster.clone(),
        view: route_view,
        submissions,
        tasks: tasks.clone(),
        started,
    };
    tasks.spawn(drive.run(ends.clone()));
    let (link_news, link_changes) = mpsc::channel(4);
    tasks.spawn(prober::run(identity.peer_id(), links.clone(), roster, link_news, ends.clone()));

    let driver = Driver {
        control: control(&config, &identity, &invite, &store, started),
        swarm,
        events,
        host: host.clone(),
        data_plane: links.clone(),
        advert,
        data_port: data_at.port(),
        links: link_changes,
        roster: roster_writer,
        routes,
        view,
        invite,
        store,
        started,
    };
    driver.run(stop, drained(host)).await;

    // In reverse: what others need is gone last.
    http_end.cancel();
    // Streams that do not end by themselves are cut with the process.
    let _ = timeout(Duration::from_secs(2), serving_http).await;
    ends.cancel();
    links.close();
    tasks.close();
    let _ = timeout(Duration::from_secs(5), tasks.wait()).await;
    Ok(())
}

/// Resolves when nothing runs here any more, or it has taken too long.
async fn drained(host: Host) {
    let quiet = async {
        loop {
            match host.report().await {
                Ok(report) if report.load.running + report.load.waiting > 0 => {}
                _ => return,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(DRAIN, quiet).await.is_err() {
        tracing::warn!("left while requests were running");
    }
}

/// The invite to the swarm this peer is in, without addresses of its own yet.
fn membership(config: &NodeConfig, store: &Store) -> Invite {
    match &config.membering {
        Membering::Invited(invite) => invite.clone(),
        Membering::NewPrivate => Invite {
            swarm: SwarmId(crate::random_bytes()),
            secret: Some(Secret(crate::random_bytes())),
            addresses: Vec::new(),
        },
        Membering::Usual => store.swarm().and_then(|text| text.parse().ok()).unwrap_or_else(local_swarm),
    }
}

/// The open swarm that peers of one network find each other in.
fn local_swarm() -> Invite {
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::derive_key("tsnode 2026 open local swarm", b"")[..16]);
    Invite { swarm: SwarmId(id), secret: None, addresses: Vec::new() }
}

fn first_view(identity: &Identity, invite: &Invite, http: SocketAddr) -> SwarmView {
    SwarmView {
        me: identity.peer_id(),
        swarm: invite.swarm,
        private: invite.secret.is_some(),
        readiness: Readiness::Probing,
        epoch: Epoch(0),
        term: Term(0),
        coordinator: None,
        plan_id: None,
        plan: None,
        ready_groups: Vec::new(),
        peers: Vec::new(),
        models: Vec::new(),
        rejected: Default::default(),
        addresses: Vec::new(),
        http: Some(http),
    }
}

fn open_model(choice: &ModelChoice) -> Result<Option<Arc<ModelSource>>, SourceError> {
    Ok(match choice {
        ModelChoice::None => None,
        ModelChoice::Embedded => Some(Arc::new(ModelSource::embedded()?)),
        ModelChoice::Path(path) => Some(Arc::new(ModelSource::open(path)?)),
    })
}

/// Reads tokenizer and template once, so that a model whose text cannot be read is refused before anybody counts on it.
fn check_text(shelf: &Shelf) -> Result<(), NodeError> {
    let Some(files) = shelf.own() else { return Ok(()) };
    let read = tokio::task::block_in_place(|| TextModel::new(&files));
    read.map(drop).map_err(|error| NodeError::Text { model: files.card.name, error })
}

async fn advert(config: &NodeConfig, source: Option<&ModelSource>, store: &Store) -> Result<Advert, NodeError> {
    let mut devices = Vec::new();
    if source.is_some() {
        let host = Hardware::detect();
        match &host.gpus {
            Ok(gpus) => tracing::info!(?gpus, "GPUs found; this version computes on the processor"),
            Err(why) => tracing::info!(why, "no GPU"),
        }
        let lend = Lend { threads: config.threads, kv_bytes: config.kv_bytes };
        // A third of a second of computing, once: nothing else of this peer runs yet.
        let device = tokio::task::block_in_place(|| hardware::processor(&host, lend, store));
        devices.push(device?);
    }
    Ok(Advert {
        name: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        addresses: Vec::new(),
        data_addresses: Vec::new(),
        devices,
        models: source.map(|s| s.card().clone()).into_iter().collect(),
        links: Vec::new(),
        reachable: true,
    })
}

fn gateway_config(config: &NodeConfig) -> GatewayConfig {
    GatewayConfig {
        kv: config.kv_codec,
        split: config.split,
        element_bytes: config.kv_dtype.bytes() as u64,
        ..GatewayConfig::default()
    }
}

fn control(config: &NodeConfig, identity: &Identity, invite: &Invite, store: &Store, started: Instant) -> Control {
    let settings = ControlConfig {
        layout: config.layout.clone(),
        endorsed: store.endorsed(),
        ..ControlConfig::new(identity.peer_id(), invite.swarm)
    };
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Control::new(settings, started.elapsed(), unix)
}

fn next_port(port: u16) -> u16 {
    if port == 0 { 0 } else { port.saturating_add(1) }
}

fn write_file(store: &Store, name: &str, content: &str) -> Result<(), NodeError> {
    let path = store.folder().join(name);
    store.write_file(name, content).map_err(|error| NodeError::Store(StoreError::Io { path, error }))
}
