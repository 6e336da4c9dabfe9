//! What `tsnode doctor` says of the network: calls members, asks the peer that runs here what it knows, and concludes.

use super::{DoctorFinding, State};
use crate::{
    cli::{
        ask::PeerClient,
        output::{name, names},
        ways,
    },
    config::Settings,
    control_plane::swarm::{self, ProcessId},
    node::{Membering, NodeConfig, former_addresses},
    reachability::{
        self, Observations, conclude,
        observation::RunningPeer,
        probe::{self, ProbeTarget, targets},
    },
    store::{
        HTTP_FILE, Store,
        identity::{Identity, KEY_FILE},
        invited_to,
        invites::{span, unix_now},
    },
    view::{SwarmView, Trouble},
};
use tsnode_protocol::{Invite, Secret, SwarmId, proof::Membership};

/// What is looked for: a swarm, and where its members may be.
struct Sought {
    swarm: SwarmId,
    /// What proves membership, where that is known here.
    membership: Option<Membership>,
    targets: Vec<ProbeTarget>,
}

pub(super) async fn examine(settings: &Settings, config: &NodeConfig) -> Vec<DoctorFinding> {
    let view = running(settings).await;
    let invite = if let Membering::Invited(invite) = &config.membering { Some(invite) } else { None };
    let sought = match (invite, &view) {
        (Some(invite), _) => Some(by_invite(invite, config, view.is_some())),
        (None, Some(view)) => Some(by_view(view)),
        (None, None) => by_notes(config),
    };
    let looking = async {
        match sought {
            Some(Sought { swarm, membership, targets }) => probe::call(targets, swarm, membership.as_ref()).await,
            None => probe::ProbeCalls::default(),
        }
    };
    let (calls, twin) = tokio::join!(looking, twin(settings, view.as_ref()));
    let expired = invite.and_then(|invite| invite.ticket).map(|ticket| unix_now().saturating_sub(ticket.expires));
    let seen = Observations {
        own: probe::own(&calls.peers),
        twin,
        expired: expired.filter(|ago| *ago > 0).map(span),
        unusable: calls.unusable,
        peers: calls.peers,
        running: view.as_ref().map(|view| known(view, config.listen.port())),
    };
    conclude(&seen).into_iter().map(DoctorFinding::from).collect()
}

impl From<reachability::Finding> for DoctorFinding {
    fn from(found: reachability::Finding) -> Self {
        let state = match found.state {
            reachability::Severity::Ok => State::Ok,
            reachability::Severity::Note => State::Note,
            reachability::Severity::Fail => State::Fail,
        };
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            what: found.what,
            state,
            detail: found.said,
            profile: None,
            cause: found.cause,
            evidence: text(found.evidence),
            remedy: text(found.remedy),
        }
    }
}

/// What the peer that runs here sees; none where none does.
async fn running(settings: &Settings) -> Option<SwarmView> {
    if !settings.data_dir().join(HTTP_FILE).exists() {
        return None;
    }
    PeerClient::own(settings).ok()?.view().await.ok()
}

fn by_invite(invite: &Invite, config: &NodeConfig, is_running: bool) -> Sought {
    let secret = (!is_running).then(|| noted(config)).flatten().filter(|(swarm, ..)| *swarm == invite.swarm);
    let membership = match (secret, invite.ticket) {
        (Some((swarm, secret, _)), _) => Some(Membership::new(swarm, secret)),
        (None, None) => Some(Membership::new(invite.swarm, None)),
        (None, Some(_)) => None,
    };
    Sought { swarm: invite.swarm, membership, targets: targets(&invite.addresses) }
}

/// Members that say that they can be called; else where the peer began from.
fn by_view(view: &SwarmView) -> Sought {
    let all = names(view);
    let others = view.peers.iter().filter(|peer| peer.id != view.me && !peer.leaving && peer.advert.reachable);
    let target = |peer: &crate::view::PeerView| ProbeTarget {
        id: Some(peer.id),
        name: name(&all, peer.id),
        is_alive: true,
        addresses: peer.advert.addresses.iter().filter_map(|a| a.parse().ok()).collect(),
        data: peer.advert.data_addresses.clone(),
    };
    let met: Vec<ProbeTarget> = others.map(target).collect();
    let targets = if met.is_empty() { targets(&view.bootstrap) } else { met };
    let membership = (!view.private).then(|| Membership::new(view.swarm, None));
    Sought { swarm: view.swarm, membership, targets }
}

/// What the last run has left.
fn by_notes(config: &NodeConfig) -> Option<Sought> {
    let (swarm, secret, known) = noted(config)?;
    Some(Sought { swarm, membership: Some(Membership::new(swarm, secret)), targets: targets(&known) })
}

/// The swarm, its secret, and members' addresses, as they are remembered here.
fn noted(config: &NodeConfig) -> Option<(SwarmId, Option<Secret>, Vec<String>)> {
    // A folder that no peer has used stays as it is.
    if !config.data_dir.join(KEY_FILE).exists() {
        return None;
    }
    let store = Store::open(&config.data_dir).ok()?;
    let belonging = store.swarm().ok()??;
    Some((belonging.swarm, belonging.secret, store.known(belonging.swarm)))
}

/// Where another process has this peer's identity.
async fn twin(settings: &Settings, view: Option<&SwarmView>) -> Option<String> {
    let said =
        |at: &Option<String>| at.as_ref().map_or_else(|| "somewhere in the swarm".into(), |at| format!("at {at}"));
    if let Some(view) = view {
        let twin = |trouble: &Trouble| if let Trouble::Twin { at } = trouble { Some(said(at)) } else { None };
        return view.troubles.iter().find_map(twin);
    }
    let folder = settings.data_dir();
    if !folder.join(KEY_FILE).exists() {
        return None;
    }
    let identity = Identity::load(&folder, invited_to(&folder)).ok()??;
    let found = swarm::find_twin(&identity, ProcessId::draw(), &former_addresses(&folder)).await;
    found.map(|at| said(&Some(at.to_string())))
}

/// What the peer that runs here knows of its place.
fn known(view: &SwarmView, port: u16) -> RunningPeer {
    let own = view.peers.iter().find(|peer| peer.id == view.me);
    let met_strangers = view.rejected.keys().any(|reason| reason.contains("does not know this swarm's secret"));
    RunningPeer {
        is_reachable: own.is_none_or(|own| own.advert.reachable),
        others: view.peers.iter().filter(|peer| peer.id != view.me).count(),
        port,
        met_strangers,
        paths: ways::of(view).into_iter().map(|(_, path)| path).collect(),
    }
}
