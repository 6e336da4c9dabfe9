//! What a peer is told at its start, and why it may not start.

use crate::{
    control_plane::swarm::{RedeemError, SwarmError},
    data_plane::links::{LinkError, Shaping},
    embedding::EncoderError,
    faults::Wall,
    hardware::{DeviceChoice, LendError, cores::Cores},
    http::hosts::Sites,
    limits::{LimitBounds, Limits},
    store::{Store, StoreError, identity::IdentityError, invites::InvitesError, keys::KeysError},
    text::{Parsers, SpecialText, TextError, VocabularyError},
    weights::{self, FetchError},
};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use tsnode_coordinator::{
    batcher::Speculation,
    gate::{KvChoice, SplitChoice},
    kv_streams::KvStreams,
    layout::GroupLayout,
    lending::Hours,
    policy::sharing::TurnOrder,
    spot_check::SpotChecks,
};
use tsnode_kernels::{
    engine::Threads,
    source::{Precision, SourceError},
};
use tsnode_protocol::{EncoderTask, Invite, KvCodec, KvDtype, kv::KvPace};

/// A model that a peer serves, and what is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedModel {
    /// Which.
    pub choice: ModelChoice,
    /// What it is called, where not as its files are.
    pub name: Option<String>,
    /// Its part of the memory that is lent (bytes), if told.
    pub memory_bytes: Option<u64>,
    /// Elements of its KV pages.
    pub kv_dtype: KvDtype,
    /// A small model that drafts for it.
    pub draft: Option<PathBuf>,
    /// Whether it stays in memory where not all are there at once.
    pub keep: bool,
}

impl WantedModel {
    /// A model of which nothing else is said.
    #[must_use]
    pub fn new(choice: ModelChoice, kv_dtype: KvDtype) -> Self {
        Self { choice, name: None, memory_bytes: None, kv_dtype, draft: None, keep: false }
    }
}

/// What model that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelChoice {
    /// None is named: the one inside the program, where no other is served.
    Fallback,
    /// The one inside the program, whatever others serve.
    Embedded,
    /// One on disk.
    Path(PathBuf),
    /// One that peers of the swarm call so, fetched from them. Until it is here it is not lent.
    Named(String),
}

/// How a model is computed, as its owner chooses: whoever chooses otherwise has another model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeChoice {
    /// What products with its matrices do with rows.
    pub precision: Precision,
    /// Whether sequences may be longer than the first training's of a model that turns otherwise for those.
    pub long_context: bool,
}

impl fmt::Display for ModelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fallback | Self::Embedded => f.write_str("the embedded model"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Named(name) => f.write_str(name),
        }
    }
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
    /// The models; none on a gateway.
    pub models: Vec<WantedModel>,
    /// What it may fetch by itself where none is named.
    pub weights: weights::ProvisionLimits,
    /// Whether weights of gated repositories are given to peers.
    pub give_gated: bool,
    /// The model of its clients' requests that name none, by name or id, where somebody has it.
    pub default_model: Option<String>,
    /// What computes.
    pub devices: DeviceChoice,
    /// Threads that compute, and the ranks that share them.
    pub threads: Threads,
    /// Threads that would compute where no number were told.
    pub all_threads: usize,
    /// Limits that flags and variables told, as they were said: they hold at every start.
    pub fixed_limits: BTreeMap<&'static str, String>,
    /// Processors they stay on.
    pub cores: Option<Cores>,
    /// Most memory to lend (bytes), if told.
    pub memory_bytes: Option<u64>,
    /// KV pages (bytes), if told.
    pub kv_bytes: Option<u64>,
    /// Whether models are lent that together need more memory than is lent.
    pub swap_models: bool,
    /// What models are called that stay in memory then, beside those of which it is said where they are named.
    pub keep: Vec<String>,
    /// Elements of KV pages, where a model has no others.
    pub kv_dtype: KvDtype,
    /// Packing of KV on the wire.
    pub kv_codec: KvChoice,
    /// What every prompt's KV goes through, sent or not, where that is fixed.
    pub fixed_kv: Option<KvCodec>,
    /// When KV leaves, where it is not as pays.
    pub kv_pace: Option<KvPace>,
    /// How many connections may carry a KV transfer.
    pub kv_streams: KvStreams,
    /// Whether the cost gate is asked.
    pub split: SplitChoice,
    /// Whether answers to clients of this peer are checked.
    pub spot_checks: SpotChecks,
    /// Whether groups that this peer leads propose answers' next tokens.
    pub speculation: Speculation,
    /// In which order models on one device take turns.
    pub sharing: TurnOrder,
    /// How models are computed, where their files do not say it.
    pub computed: ComputeChoice,
    /// Encoders to lend, each a folder and what it is to be.
    pub encoders: Vec<(PathBuf, EncoderTask)>,
    /// Hours in which the host is lent; all of them where none are named.
    pub hours: Option<Hours>,
    /// Groups asked for.
    pub layout: Option<GroupLayout>,
    /// How models write thoughts and calls of tools, where their files do not say it.
    pub parsers: Parsers,
    /// What becomes of special tokens' texts in clients' messages.
    pub special_text: SpecialText,
    /// Key that HTTP clients must show.
    pub api_key: Option<String>,
    /// Requests a minute of each key, or of each address where there are none; unlimited where nothing is said.
    pub http_rate: Option<u32>,
    /// By which names HTTP is asked, and for which pages.
    pub sites: Sites,
    /// Whether HTTP is answered at Ollama's port as well.
    pub ollama_port: bool,
    /// Limits on what leaves by the data plane: the owner's, and those of a slow network to pretend.
    pub shaping: Option<Shaping>,
    /// Whether to carry between others that do not reach each other.
    pub relay: bool,
    /// Whether its network may be broken on purpose.
    pub faults: bool,
    /// What is pretended in front of it from the start, where it may be broken.
    pub wall: Wall,
}

impl NodeConfig {
    /// What its owner allows, as HTTP shows it.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.memory_bytes,
            kv_bytes: self.kv_bytes,
            threads: self.threads.count,
            upload_mbit: self.shaping.and_then(|shaping| shaping.upload).map(|rate| rate.0 * 8.0 / 1e6),
            relay: self.relay,
            model_budget_bytes: self.weights.budget,
            requests_per_minute: self.http_rate,
        }
    }

    /// What these are held against when they are changed.
    pub(super) fn bounds(&self) -> LimitBounds {
        LimitBounds {
            fixed: self.fixed_limits.clone(),
            all_threads: self.all_threads,
            ranks: self.threads.ranks,
            has_cores: self.cores.is_some(),
        }
    }
}

/// Why a peer does not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The keys of HTTP clients.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The model.
    #[error(transparent)]
    Model(#[from] SourceError),
    /// A model without other frequencies.
    #[error("{0} has no frequencies for longer sequences than it is served for: leave --long-context out")]
    NoLongContext(String),
    /// The model's tokenizer and templates.
    #[error("{model}: {error}")]
    Text {
        /// Which model.
        model: String,
        /// Why.
        error: TextError,
    },
    /// One model, named twice.
    #[error("{first} and {second} are the same model, {name}; name it once")]
    SameModel {
        /// Named first.
        first: String,
        /// Named then.
        second: String,
        /// What it is called.
        name: String,
    },
    /// Two models with one name.
    #[error(
        "{first} and {second} are different models, and both are called {name}: give one another name, with name in its [[models]]"
    )]
    SameName {
        /// Named first.
        first: String,
        /// Named then.
        second: String,
        /// What both are called.
        name: String,
    },
    /// A model that is to stay in memory, and is none of those that are lent.
    #[error("--keep {keep}: no model that is lent here is named or called so; they are called {}", .called.join(", "))]
    KeepsNone {
        /// What it was called.
        keep: String,
        /// What they are called.
        called: Vec<String>,
    },
    /// A draft model that speaks of other tokens.
    #[error("{draft} cannot draft for {model}: {error}; --draft wants a model with the same tokenizer")]
    Draft {
        /// Which.
        draft: String,
        /// For which.
        model: String,
        /// Why not.
        error: VocabularyError,
    },
    /// A draft model, or one that it would draft for, whose sequences keep a state.
    #[error(
        "{draft} cannot draft for {model}: layers of one of the two keep a state, from which proposed tokens cannot be taken \
         back; start without --draft"
    )]
    DraftOfState {
        /// Which.
        draft: String,
        /// For which.
        model: String,
    },
    /// A model that comes from peers.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// An encoder.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
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
    /// Invites made here.
    #[error(transparent)]
    Invites(#[from] InvitesError),
    /// The invite to come with.
    #[error(transparent)]
    Redeem(#[from] RedeemError),
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

/// The one beside the control plane's, or any where that is any.
pub(super) fn next_port(port: u16) -> u16 {
    if port == 0 { 0 } else { port.saturating_add(1) }
}

pub(super) fn not_written(store: &Store, name: &str, error: std::io::Error) -> NodeError {
    NodeError::Store(StoreError::Io { path: store.folder().join(name), error })
}
