//! The swarm as this peer sees it now: one snapshot, replaced whole, read by HTTP and the command line.

use crate::{data_plane::offences::SpotChecked, hardware::memory::Size, weights::Fetching};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use tsnode_coordinator::{
    batcher::SpeculationTally, gate::SplitChoice, left_out::UnusedDevices, lending::Lending, planner::live::Shortfall,
    policy::sharing::device_use::ServiceUse, service_monitor::ServiceReport, waiting::NotReady,
};
use tsnode_kernels::load::{InUse, LoadProgress};
use tsnode_protocol::{
    Advert, EncoderCard, Epoch, GroupId, GroupLoad, Load, ModelCard, ModelId, PeerId, Plan, PlanId, RequestClass,
    SwarmId, SwarmSetting, Term,
};

/// How far a peer has come on its way to being useful.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Readiness {
    /// Reading its model, measuring its hardware.
    Probing,
    /// Looking for other peers.
    Joining,
    /// In the swarm; no plan adopted yet.
    Planning,
    /// Loading the weights the plan gives it.
    Loading,
    /// Takes requests.
    Ready,
    /// On its way out.
    Leaving,
}

/// What the owner of a peer should know, and see to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Trouble {
    /// Another process runs with this peer's identity.
    Twin {
        /// Where, as far as it is known.
        at: Option<String>,
    },
    /// Nobody of the swarm is found, and why.
    Network {
        /// What, what shows it, and what to do.
        said: String,
    },
    /// The port is taken by which others notice that this process has ended.
    NoLifelines {
        /// TCP.
        address: SocketAddr,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twin { at } => {
                f.write_str("another process runs with this peer's identity")?;
                at.iter().try_for_each(|at| write!(f, ", at {at}"))?;
                f.write_str(
                    ": others take each for the other. Was this data folder copied? Stop one of the two; the copy is a peer of \
                     its own once it has no identity.key",
                )
            }
            Self::Network { said } => f.write_str(said),
            Self::NoLifelines { address } => write!(
                f,
                "another program has TCP port {} ({address}): others notice seconds later when this peer ends. Stop that \
                 program, or choose another port with --listen",
                address.port()
            ),
        }
    }
}

/// The swarm as one peer sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwarmView {
    /// The peer that looks.
    pub me: PeerId,
    /// The swarm.
    pub swarm: SwarmId,
    /// Whether it has a secret.
    pub private: bool,
    /// How far this peer is.
    pub readiness: Readiness,
    /// Why it takes no requests, where it does not.
    #[serde(default)]
    pub waiting: Option<NotReady>,
    /// Whether this peer lends its devices.
    #[serde(default)]
    pub lending: Lending,
    /// Why the adopted plan has nothing for what is lent here, and what to do; none where it has, or nothing is lent.
    #[serde(default)]
    pub left_out: Option<String>,
    /// Devices lent here that the adopted plan has nothing for, while it has for others of this peer, by reason.
    #[serde(default)]
    pub unused_devices: Vec<UnusedDevicesView>,
    /// How far the stage is that is being loaded here.
    #[serde(default)]
    pub loading: Option<LoadProgress>,
    /// Weights that this peer has read to serve them, since it started.
    #[serde(default)]
    pub weights: Weights,
    /// What stages and KV pages take in this peer's memory.
    #[serde(default)]
    pub in_use: InUse,
    /// Epoch it is in.
    pub epoch: Epoch,
    /// Term it follows.
    pub term: Term,
    /// Who plans now.
    pub coordinator: Option<PeerId>,
    /// Id of the adopted plan.
    pub plan_id: Option<PlanId>,
    /// The adopted plan.
    pub plan: Option<Plan>,
    /// Whether plans may have groups that do both phases, as this peer values them.
    pub split: SplitChoice,
    /// What members have set for the swarm, the newest of each.
    #[serde(default)]
    pub settings: Vec<SwarmSetting>,
    /// How many of the requests that ended at this gateway in the last ten minutes kept their targets.
    #[serde(default)]
    pub attainment: Vec<AttainmentView>,
    /// How often pools had no room for this gateway's requests since its start, where requests are pooled.
    #[serde(default)]
    pub overflows: Vec<OverflowView>,
    /// What clients of this gateway asked of each model in the last ten minutes, and how they were served.
    #[serde(default)]
    pub services: Vec<ServiceView>,
    /// Groups whose leaders say they take requests.
    pub ready_groups: Vec<GroupId>,
    /// Every peer known to be alive, this one included, by id.
    pub peers: Vec<PeerView>,
    /// Models somebody in the swarm has, by name.
    pub models: Vec<ModelCard>,
    /// Encoders that somebody in the swarm lends now, by name.
    #[serde(default)]
    pub encoders: Vec<EncoderCard>,
    /// The model of requests that name none.
    #[serde(default)]
    pub default_model: Option<ModelId>,
    /// Models of which a group takes requests.
    #[serde(default)]
    pub loaded: BTreeSet<ModelId>,
    /// Models that what is lent cannot hold.
    #[serde(default)]
    pub short: Vec<Shortfall>,
    /// Peers this one has nothing to do with for now.
    #[serde(default)]
    pub cut_off: Vec<CutOffView>,
    /// Messages refused, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// KV streams refused, by reason.
    #[serde(default)]
    pub kv_refused: BTreeMap<String, u64>,
    /// What came of this gateway's spot checks since the start.
    #[serde(default)]
    pub spot_checks: SpotChecked,
    /// Tokens proposed for answers of groups led here, and those accepted, since the start.
    #[serde(default, rename = "spec_decode")]
    pub drafts: SpeculationTally,
    /// The same by the name that it had in the version before.
    #[serde(default)]
    pub guesses: SpeculationTally,
    /// Since the bandwidths of links from here were last shown (seconds).
    #[serde(default)]
    pub link_ages: BTreeMap<PeerId, f64>,
    /// Where the far ends are of those that go by a socket of their own.
    #[serde(default)]
    pub link_ends: BTreeMap<PeerId, SocketAddr>,
    /// Where this peer looks for its swarm: addresses of the invite, and of members of its last run.
    #[serde(default)]
    pub bootstrap: Vec<String>,
    /// The model that this peer fetches or has fetched since it started, or why it fetches none.
    #[serde(default)]
    pub fetching: Option<Fetching>,
    /// Weights given to other peers since it started (bytes).
    #[serde(default)]
    pub weights_given: u64,
    /// What models have had of this peer's devices since they were lent.
    #[serde(default)]
    pub turns: Vec<ModelTurns>,
    /// What its owner should see to.
    #[serde(default)]
    pub troubles: Vec<Trouble>,
    /// Addresses others can dial this peer at, ending in `/p2p/…`.
    pub addresses: Vec<String>,
    /// Where HTTP listens.
    pub http: Option<SocketAddr>,
}

impl SwarmView {
    /// As a peer sees its swarm before it has heard of anybody.
    #[must_use]
    pub fn first(me: PeerId, swarm: SwarmId, private: bool) -> Self {
        Self {
            me,
            swarm,
            private,
            readiness: Readiness::Probing,
            waiting: None,
            lending: Default::default(),
            left_out: None,
            unused_devices: Vec::new(),
            loading: None,
            weights: Default::default(),
            in_use: Default::default(),
            epoch: Epoch(0),
            term: Term(0),
            coordinator: None,
            plan_id: None,
            plan: None,
            split: Default::default(),
            settings: Vec::new(),
            attainment: Vec::new(),
            overflows: Vec::new(),
            services: Vec::new(),
            ready_groups: Vec::new(),
            peers: Vec::new(),
            models: Vec::new(),
            encoders: Vec::new(),
            default_model: None,
            loaded: BTreeSet::new(),
            short: Vec::new(),
            cut_off: Vec::new(),
            rejected: BTreeMap::new(),
            kv_refused: BTreeMap::new(),
            spot_checks: Default::default(),
            drafts: Default::default(),
            guesses: Default::default(),
            link_ages: BTreeMap::new(),
            link_ends: BTreeMap::new(),
            bootstrap: Vec::new(),
            fetching: None,
            weights_given: 0,
            turns: Vec::new(),
            troubles: Vec::new(),
            addresses: Vec::new(),
            http: None,
        }
    }

    /// Why this peer takes no requests; none where it does.
    #[must_use]
    pub fn why_not(&self) -> Option<NotReady> {
        let by_stage = match self.readiness {
            Readiness::Ready => return None,
            Readiness::Probing => NotReady::Probing,
            Readiness::Joining => NotReady::NoPeer { addresses: 0 },
            Readiness::Planning => NotReady::Planning { who: None },
            Readiness::Loading => NotReady::Loading,
            Readiness::Leaving => NotReady::Leaving,
        };
        Some(self.waiting.clone().unwrap_or(by_stage))
    }

    /// Whether this peer takes requests. Where one model may just have yielded its memory to another, what is asked for waits at the
    /// gateway.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        match self.readiness {
            Readiness::Ready => true,
            Readiness::Loading => self.swaps(),
            Readiness::Probing | Readiness::Joining | Readiness::Planning | Readiness::Leaving => false,
        }
    }

    /// Whether models yield their memory to each other: some device does not hold all at once that it serves.
    #[must_use]
    pub fn swaps(&self) -> bool {
        self.peers.iter().flat_map(|peer| &peer.advert.devices).any(|device| !device.holds_all())
    }

    /// Why this machine lends nothing, and what would lend it; none where it does.
    #[must_use]
    pub fn lends_nothing(&self) -> Option<String> {
        let named = |id| self.models.iter().find(|m| Some(m.id) == id).map(|m| m.name.as_str());
        if let (Lending::OtherModel, Some(far)) = (self.lending, &self.fetching) {
            let first = || format!("{} ({}) is fetched first, and lent then", far.model, Size(far.bytes));
            return Some(far.why.clone().unwrap_or_else(first));
        }
        match (self.lending, named(self.default_model)) {
            (Lending::Lends, _) => None,
            (Lending::OtherModel, Some(name)) => Some(format!(
                "this swarm serves {name}; lend this machine to it with: tsnode join --model PATH-OF-{name}"
            )),
            (other, _) => Some(other.to_string()),
        }
    }
}

/// Whether a model is called so: by its name, or its id.
#[must_use]
pub fn is_called(card: &ModelCard, name: &str) -> bool {
    card.name == name || card.id.to_string() == name
}

/// Devices of this peer that the adopted plan does not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedDevicesView {
    /// Their places among those of its advert.
    pub devices: Vec<u16>,
    /// Which they are, why they are not used, and what to do.
    pub why: String,
}

impl From<&UnusedDevices> for UnusedDevicesView {
    fn from(unused: &UnusedDevices) -> Self {
        Self { devices: unused.devices.keys().copied().collect(), why: unused.to_string() }
    }
}

/// Weights read since the start of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// Stages of which loading was begun.
    pub stages: u64,
    /// Bytes as stored.
    pub bytes: u64,
}

/// A model's turns on the devices of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelTurns {
    /// The model.
    pub model: ModelId,
    /// What it has had.
    #[serde(flatten)]
    pub used: ServiceUse,
}

/// How many requests of a model and class kept their targets, of those for which there were some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttainmentView {
    /// The model's name.
    pub model: String,
    /// The class.
    pub class: RequestClass,
    /// Requests that ended.
    pub requests: usize,
    /// Of them, those that kept every target.
    pub in_time: usize,
}

/// How often pools had no room for answers of one model, which a group of the other pool computed and gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverflowView {
    /// The model's name.
    pub model: String,
    /// The queues of all groups for prompts were too long.
    pub prompts: u64,
    /// No group for answers had memory.
    pub answers: u64,
}

/// What is asked of one model at a gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceView {
    /// The model's name.
    pub model: String,
    /// What its monitor has seen.
    #[serde(flatten)]
    pub report: ServiceReport,
}

/// A peer that is cut off.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CutOffView {
    /// Who.
    pub id: PeerId,
    /// Its name; empty where its advert is not known.
    pub name: String,
    /// What it did.
    pub reason: String,
    /// How often it did what it should not.
    pub offences: u32,
    /// Until it gets another chance (seconds).
    pub seconds_left: f64,
}

/// One peer, as another sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerView {
    /// Who.
    pub id: PeerId,
    /// Its last advert.
    pub advert: Advert,
    /// Its last load, in all.
    pub load: Load,
    /// Groups that it leads and that take requests, with the load of each.
    #[serde(default)]
    pub groups: Vec<GroupLoad>,
    /// Since this peer last heard anything of it (seconds): most heartbeats go to its group's leader and to those who listen
    /// for all.
    pub silent_for: f64,
    /// It is missed: it should have been heard by now, and has not answered those who ask for it yet. One that stays silent is
    /// given up seconds later, and listed no more.
    #[serde(default)]
    pub silent: bool,
    /// The plan it follows.
    pub plan: Option<PlanId>,
    /// It has said that it is leaving.
    pub leaving: bool,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A peer alone in its swarm, with nothing to tell.
    pub fn view() -> SwarmView {
        let first = SwarmView::first(PeerId([1; 32]), SwarmId([2; 16]), false);
        SwarmView { readiness: Readiness::Ready, ..first }
    }
}
