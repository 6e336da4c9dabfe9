//! The protocols spoken on admitted connections, and their settings.

use super::{SwarmConfig, SwarmError, gossip};
use libp2p::{
    StreamProtocol, allow_block_list,
    connection_limits::{self, ConnectionLimits},
    gossipsub, identify,
    kad::{self, store::MemoryStore},
    mdns, ping,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};
use std::{collections::HashMap, time::Duration};
use tsnode_protocol::{SwarmId, limits};

/// What identify calls our protocol family.
const FAMILY: &str = "tsnode/1";
/// How often a connection is checked.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take before the connection counts as dead.
const PING_LIMIT: Duration = Duration::from_secs(10);
/// One gossip frame: the largest message and what gossipsub writes around it.
const FRAME_BYTES: usize = limits::GOSSIP_BYTES + 4 * 1024;
/// Messages waiting for one slow neighbour.
const NEIGHBOUR_QUEUE: usize = 512;
/// Copies of a message are recognised for so long.
const DUPLICATES_FOR: Duration = Duration::from_secs(120);
/// An invalid message stops counting against its sender after about so long.
const BLAME_FOR: Duration = Duration::from_secs(600);

/// All protocols of the control plane. The first two only refuse connections.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    limits: connection_limits::Behaviour,
    pub(super) blocked: allow_block_list::Behaviour<allow_block_list::BlockedPeers>,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub(super) kad: kad::Behaviour<MemoryStore>,
    mdns: Toggle<mdns::tokio::Behaviour>,
    pub(super) gossipsub: gossipsub::Behaviour,
}

impl Behaviour {
    pub(super) fn new(config: &SwarmConfig) -> Result<Self, SwarmError> {
        let keypair = config.identity.libp2p_keypair();
        let identify = identify::Config::new(FAMILY.into(), keypair.public())
            .with_agent_version(config.agent.clone())
            .with_push_listen_addr_updates(true);
        Ok(Self {
            limits: connection_limits::Behaviour::new(connection_limits()),
            blocked: allow_block_list::Behaviour::default(),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_EVERY).with_timeout(PING_LIMIT)),
            kad: kademlia(config.swarm, keypair.public().to_peer_id())?,
            mdns: mdns(config.mdns, keypair.public().to_peer_id()).into(),
            gossipsub: gossipsub(config.swarm)?,
        })
    }
}

/// Enough for the neighbours of a large swarm and its newcomers; small enough for a home router.
fn connection_limits() -> ConnectionLimits {
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(64))
        .with_max_pending_outgoing(Some(64))
        .with_max_established_incoming(Some(192))
        .with_max_established(Some(256))
        .with_max_established_per_peer(Some(4))
}

/// Used to find peers only: records of others are never stored.
fn kademlia(swarm: SwarmId, own: libp2p::PeerId) -> Result<kad::Behaviour<MemoryStore>, SwarmError> {
    let name = StreamProtocol::try_from_owned(format!("/tsnode/{swarm}/kad/1"))
        .map_err(|e| SwarmError::Setup(e.to_string()))?;
    let mut config = kad::Config::new(name);
    config
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_kbucket_inserts(kad::BucketInserts::Manual)
        .set_query_timeout(Duration::from_secs(10));
    let mut kad = kad::Behaviour::with_config(own, MemoryStore::new(own), config);
    kad.set_mode(Some(kad::Mode::Server));
    Ok(kad)
}

/// A LAN without multicast is no reason not to start.
fn mdns(wanted: bool, own: libp2p::PeerId) -> Option<mdns::tokio::Behaviour> {
    if !wanted {
        return None;
    }
    mdns::tokio::Behaviour::new(mdns::Config::default(), own)
        .inspect_err(|error| tracing::warn!(%error, "cannot look for peers on the local network"))
        .ok()
}

/// Envelopes carry their own signatures, so gossipsub's are off, and every message waits for our judgement.
fn gossipsub(swarm: SwarmId) -> Result<gossipsub::Behaviour, SwarmError> {
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(gossip::message_id)
        .max_transmit_size(FRAME_BYTES)
        .duplicate_cache_time(DUPLICATES_FOR)
        .connection_handler_queue_len(NEIGHBOUR_QUEUE)
        .flood_publish(true)
        .build()
        .map_err(|e| SwarmError::Setup(e.to_string()))?;
    let mut gossipsub = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, config)
        .map_err(|e| SwarmError::Setup(e.to_owned()))?;
    let topic = gossip::topic(swarm);
    gossipsub
        .with_peer_score(scoring(topic.hash()), gossipsub::PeerScoreThresholds::default())
        .map_err(SwarmError::Setup)?;
    gossipsub.subscribe(&topic).map_err(|e| SwarmError::Setup(e.to_string()))?;
    Ok(gossipsub)
}

/// Blame for invalid messages, and for breaking gossipsub's rules; nothing for being quiet or sharing an address,
/// which honest peers of one household or testnet do. The third invalid message within minutes makes a neighbour
/// unheard (-10 × 3², below the default threshold of -80).
fn scoring(topic: gossipsub::TopicHash) -> gossipsub::PeerScoreParams {
    let invalid_only = gossipsub::TopicScoreParams {
        topic_weight: 1.0,
        time_in_mesh_weight: 0.0,
        first_message_deliveries_weight: 0.0,
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -10.0,
        invalid_message_deliveries_decay: gossipsub::score_parameter_decay(BLAME_FOR),
        ..Default::default()
    };
    gossipsub::PeerScoreParams {
        topics: HashMap::from([(topic, invalid_only)]),
        ip_colocation_factor_weight: 0.0,
        behaviour_penalty_threshold: 6.0,
        ..Default::default()
    }
}
