//! What all parts of a peer are started with: its configuration, its folder, who it is and where, and its tasks.

use super::{
    membership::{belonging, identity},
    opened::has_none,
    setup::{ModelChoice, NodeConfig, NodeError},
};
use crate::{
    control_plane::swarm::ProcessId,
    data_plane::{
        doors::{self, Doors},
        links::Links,
        listening,
        roster::Roster,
    },
    history::{self, History},
    response_log::ResponseLog,
    store::{
        self, Belonging, Store, StoreError,
        identity::Identity,
        invites::{self, Invites},
    },
};
use libp2p::Multiaddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::{
    control::{Control, ControlConfig},
    fallback::Fallback,
    planner::PlanOptions,
    settings::SwarmSettings,
};
use tsnode_protocol::{Advert, Invite};

/// How long a peer that leaves waits for its own tasks.
const LAST_TASKS: Duration = Duration::from_secs(5);

/// What everything else stands on.
pub(super) struct NodeContext {
    pub config: NodeConfig,
    pub store: Store,
    pub identity: Identity,
    pub belonging: Belonging,
    pub invite: Invite,
    pub invites: Invites,
    /// Which process with this identity this is.
    pub process: ProcessId,
    /// Where this peer was in its last run.
    pub former: Vec<Multiaddr>,
    /// Places for whoever comes.
    pub doors: Doors,
    /// What was computed for whom.
    pub history: History,
    /// The process's zero.
    pub started: Instant,
    /// Owner of all tasks but HTTP's.
    pub tasks: TaskTracker,
    /// Ends them.
    pub ends: CancellationToken,
}

impl NodeContext {
    /// Opens the folder, finds who this peer is, and has it let in where it was invited.
    pub async fn open(config: NodeConfig) -> Result<Self, NodeError> {
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

    /// Where the swarm may be found: at those who invited, and at those who were there last.
    pub fn bootstrap(&self) -> Vec<Multiaddr> {
        let mut known = self.store.known(self.invite.swarm);
        known.retain(|address| !self.invite.addresses.contains(address));
        self.invite.addresses.iter().chain(&known).filter_map(|a| a.parse().ok()).collect()
    }

    pub fn control(&self) -> Control {
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

    /// Whether and when the model inside the program is lent, where no other is named.
    pub fn fallback(&self, advert: &Advert) -> Option<Fallback> {
        let own = advert.models.first()?.clone();
        if has_none(&self.config.models) {
            return Some(Fallback::never(own));
        }
        let is_fallback = self.config.models.iter().any(|model| model.choice == ModelChoice::Fallback);
        is_fallback.then(|| Fallback::new(own, self.started.elapsed(), !self.bootstrap().is_empty()))
    }

    pub fn response_log(&self, links: &Links, roster: &Roster) -> Result<ResponseLog, StoreError> {
        let (tasks, stop) = (self.tasks.clone(), self.ends.clone());
        ResponseLog::open(&self.store, self.identity.peer_id(), (links.clone(), roster.clone()), tasks, stop)
    }

    /// Waits for tasks that were told to end.
    pub async fn last_tasks(&self) {
        self.tasks.close();
        let _ = timeout(LAST_TASKS, self.tasks.wait()).await;
        tracing::debug!(left = ?crate::tasks::running(), "tasks that have not ended");
    }
}

/// Where the peer of this folder was in its last run, as its invite says.
pub(crate) fn former_addresses(folder: &Path) -> Vec<Multiaddr> {
    let invite = store::own_invite(folder);
    invite.into_iter().flat_map(|invite| invite.addresses).filter_map(|a| a.parse().ok()).collect()
}
