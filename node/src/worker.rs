//! Plan flow 6: loads the stages a plan gives this peer, and serves them.
//!
//! One task ([`manager`]) owns the models that are [`lent`] and the set of groups and brings streams to them, another ([`loader`]) loads stages for it. A group has a
//! task of its own: a [`leader`] where this peer has the first stage, a [`member`] elsewhere; both run a [`stage`] worker, which talks to
//! the [`compute`] thread of its model and device; threads of one device take [`device_turns`] and share its pages ([`page_share`]). Where a draft model is lent a leader has a [`speculator`] beside it.

pub mod compute;
mod context;
mod device_turns;
mod devices;
mod export;
mod going;
mod kv_receiver;
mod leader;
pub mod leader_client;
mod lent;
mod loader;
mod manager;
mod member;
mod page_share;
mod ring_events;
mod speculation_checks;
mod speculator;
mod stage;

pub use device_turns::Turns;
pub use lent::LentModel;
pub use page_share::PageShare;

use self::{
    leader_client::LeaderRequest,
    loader::{LoadTally, Loader},
    manager::{ManagerParts, StageManager},
};
use crate::{
    data_plane::{
        library::Shelf,
        links::{Incoming, Links},
        roster::Roster,
    },
    embedding::Lenders,
    history::History,
    response_log::ResponseLog,
    view::Weights,
    weights::{Giver, Stocks},
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::{
    batcher::{BatcherConfig, SpeculationTally as Checked},
    policy::sharing::device_use::ServiceUse,
};
use tsnode_kernels::{
    engine::Threads,
    load::{InUse, LoadProgress},
};
use tsnode_protocol::{GroupId, GroupLoad, Load, ModelId, PeerId, Plan};

/// Commands not yet looked at; above it the driver or the gateway waits.
const COMMANDS: usize = 256;
/// Stages ordered and not yet loaded; above it a group has to wait for the next plan.
const STAGES: usize = 64;
/// Loaded stages on their way back; the loader waits above it.
const LOADED: usize = 4;
/// How long what runs on a retired stage may hold memory that the next one waits for.
const ROOM: Duration = Duration::from_secs(20);
/// Rings reaching a stage at once; a leader builds one at a time.
const RINGS: usize = 8;

/// What a worker is made of.
pub struct WorkerSetup {
    /// This peer.
    pub me: PeerId,
    /// Models that it lends; none on a gateway.
    pub models: Vec<LentModel>,
    /// The data plane.
    pub links: Links,
    /// Streams that others open.
    pub incoming: Incoming,
    /// Where others are.
    pub roster: Roster,
    /// What clients got, of other gateways too.
    pub response_log: ResponseLog,
    /// What the shelf of small files gives to others.
    pub shelf: Shelf,
    /// What gives weights to others.
    pub giver: Giver,
    /// Models of which layers are brought when a plan gives this peer them.
    pub stocks: Stocks,
    /// Encoders that this peer lends.
    pub lenders: Lenders,
    /// How leaders batch.
    pub batcher: BatcherConfig,
    /// Threads that load, for as many ranks as the engine has.
    pub threads: Threads,
    /// Where it is counted what is computed for others.
    pub history: History,
    /// Whether what this peer leads moves as soon as a plan goes on without it, since it leaves or is paused.
    pub moving: watch::Receiver<bool>,
    /// Other peers of which the same is true.
    pub going: watch::Receiver<Arc<BTreeSet<PeerId>>>,
    /// Ends everything.
    pub stop: CancellationToken,
}

/// What a worker tells of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerReport {
    /// Groups led here that take requests, and what each has to do.
    pub ready: Vec<GroupLoad>,
    /// What waits and runs here, in all groups together.
    pub load: Load,
    /// Sequences on stages here, whoever leads them, and whether the plan still has them or not.
    pub held: usize,
    /// Gateways' streams to leaders here that have not ended.
    pub talks: usize,
    /// How far the stage is that is being loaded.
    pub loading: Option<LoadProgress>,
    /// Weights read since the start.
    pub weights: Weights,
    /// What stages and pages take in memory.
    pub in_use: InUse,
    /// A stage of the plan has no room here beside those that stand.
    pub out_of_kv_pages: bool,
    /// Devices that do nothing any more, by their places in the advert.
    pub lost: BTreeSet<u16>,
    /// KV streams refused since the start, by why.
    pub kv_refused: BTreeMap<&'static str, u64>,
    /// Draft tokens that groups led here had checked since the start.
    pub drafts: Checked,
    /// Weights given to other peers since the start (bytes).
    pub weights_given: u64,
    /// What each model has had of its devices since it was lent.
    pub used: Vec<(ModelId, ServiceUse)>,
}

enum WorkerCommand {
    Lend(Vec<LentModel>),
    Adopt(Arc<Plan>, BTreeSet<GroupId>),
    Keep(BTreeSet<GroupId>),
    Rest,
    Serve { group: GroupId, request: Box<LeaderRequest> },
    Report(oneshot::Sender<WorkerReport>),
}

/// The way to the worker.
#[derive(Clone)]
pub struct WorkerHandle {
    commands: mpsc::Sender<WorkerCommand>,
}

/// The worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this peer no longer serves")]
pub struct WorkerGone;

impl WorkerHandle {
    /// Starts the worker's task; it ends on `setup.stop`.
    #[must_use]
    pub fn start(setup: WorkerSetup, tasks: &TaskTracker) -> Self {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let (orders, ordered) = mpsc::channel(STAGES);
        let (loaded, arrivals) = mpsc::channel(LOADED);
        let (progress, far) = watch::channel(None);
        let tally = Arc::<LoadTally>::default();
        let loader =
            Loader { stocks: setup.stocks.clone(), threads: setup.threads, progress, tally: tally.clone(), loaded };
        tasks.spawn(loader.run(ordered));
        let (stage_manager, losses) =
            StageManager::new(setup, ManagerParts { tally, orders, far, tasks: tasks.clone() });
        tasks.spawn(stage_manager.run(receiver, arrivals, losses));
        Self { commands }
    }

    /// Serves other models from now on than it was started with, on other devices.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn lend(&self, models: Vec<LentModel>) -> Result<(), WorkerGone> {
        self.commands.send(WorkerCommand::Lend(models)).await.map_err(|_| WorkerGone)
    }

    /// Serves what the plan gives this peer, and of what it no longer does these groups, as long as they are there. The others
    /// drain.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn adopt(&self, plan: Arc<Plan>, beside: BTreeSet<GroupId>) -> Result<(), WorkerGone> {
        self.commands.send(WorkerCommand::Adopt(plan, beside)).await.map_err(|_| WorkerGone)
    }

    /// Of the groups that the plan does not have only these are served from now on.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn keep(&self, beside: BTreeSet<GroupId>) -> Result<(), WorkerGone> {
        self.commands.send(WorkerCommand::Keep(beside)).await.map_err(|_| WorkerGone)
    }

    /// Serves no group any more, whatever the plan says, until the next plan.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn rest(&self) -> Result<(), WorkerGone> {
        self.commands.send(WorkerCommand::Rest).await.map_err(|_| WorkerGone)
    }

    /// Hands a request of this peer's own gateway to a leader on this peer.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn serve(&self, group: GroupId, request: LeaderRequest) -> Result<(), WorkerGone> {
        self.commands.send(WorkerCommand::Serve { group, request: Box::new(request) }).await.map_err(|_| WorkerGone)
    }

    /// What is ready, runs and waits.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn report(&self) -> Result<WorkerReport, WorkerGone> {
        let (answer, report) = oneshot::channel();
        self.commands.send(WorkerCommand::Report(answer)).await.map_err(|_| WorkerGone)?;
        report.await.map_err(|_| WorkerGone)
    }
}
