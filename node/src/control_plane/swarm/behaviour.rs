//! The protocols spoken on admitted connections, and their settings.

use super::{SwarmConfig, SwarmError, carry, gossip, wall};
use crate::data_plane::listening::of_each_kind;
use libp2p::{
    StreamProtocol, allow_block_list, autonat,
    connection_limits::{self, ConnectionLimits},
    dcutr, gossipsub, identify,
    kad::{self, store::MemoryStore},
    mdns, ping, relay,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};
use std::{collections::HashMap, net::SocketAddr, time::Duration};
use tsnode_coordinator::places::FileShares;
use tsnode_protocol::{SwarmId, limits};

/// What identify calls our protocol family.
const FAMILY: &str = "tsnode/1";
/// How often a connection is checked.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take before the connection counts as dead: who is dead is known sooner by its silence, and where many peers
/// share a full computer, connections that were only slow would have to be made again.
const PING_LIMIT: Duration = Duration::from_secs(20);
/// One gossip frame: the largest message and what gossipsub writes around it.
const FRAME_BYTES: usize = limits::GOSSIP_BYTES + 4 * 1024;
/// Messages waiting for one slow neighbour.
const NEIGHBOUR_QUEUE: usize = 512;
/// Of a larger message each who has it tells its neighbours so, that they need not send it. Copies of a smaller one, as an advert is, are
/// on their way before that is heard: it would be as many words as it saves.
const LARGE_MESSAGE: usize = 16 * 1024;
/// Copies of a message are recognised for so long.
const DUPLICATES_FOR: Duration = Duration::from_secs(120);
/// An invalid message stops counting against its sender after about so long.
const BLAME_FOR: Duration = Duration::from_secs(600);

/// How often reachability is asked after while little is known of it, and once much is.
const REACH_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5 * 60));
/// Before it is first asked after, and before the same peer is asked again.
const REACH_FIRST: Duration = Duration::from_secs(1);
/// How long an answer may take: the far end dials back.
const REACH_LIMIT: Duration = Duration::from_secs(20);
/// Equal answers that make one sure; a different one must come as often to change it.
const REACH_SURE: usize = 1;
/// Requests of others for dialling back, from one and from all, in this time.
const DIAL_BACKS: (usize, usize, Duration) = (3, 30, Duration::from_secs(10));
/// Peers that have a place here, and circuits between them and others, of all and of one.
const PLACES: usize = 64;
const CIRCUITS: (usize, usize) = (64, 16);
/// What one circuit may carry in each direction, and for how long: a few KV transfers of a long prompt's KV. Whoever
/// needs more asks for another.
const CIRCUIT_BYTES: u64 = 4 << 30;
const CIRCUIT_FOR: Duration = Duration::from_secs(3600);
/// A place must be asked for again after that.
const PLACE_FOR: Duration = Duration::from_secs(1800);

/// All protocols of the control plane. The first three only refuse connections.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    limits: connection_limits::Behaviour,
    wall: wall::Behaviour,
    pub(super) blocked: allow_block_list::Behaviour<allow_block_list::BlockedPeers>,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub(super) kad: kad::Behaviour<MemoryStore>,
    mdns: Toggle<mdns::tokio::Behaviour>,
    /// The same over IPv6: a host may have nothing else.
    mdns6: Toggle<mdns::tokio::Behaviour>,
    pub(super) gossipsub: gossipsub::Behaviour,
    pub(super) autonat: autonat::v1::Behaviour,
    pub(super) relay: Toggle<relay::Behaviour>,
    circuits: relay::client::Behaviour,
    dcutr: dcutr::Behaviour,
    pub(super) carry: carry::Behaviour,
}

impl Behaviour {
    pub(super) fn new(config: &SwarmConfig, circuits: relay::client::Behaviour) -> Result<Self, SwarmError> {
        let keypair = config.identity.libp2p_keypair();
        let own = keypair.public().to_peer_id();
        let has = |kind: fn(&SocketAddr) -> bool| of_each_kind(config.listen).iter().any(kind);
        let identify = identify::Config::new(FAMILY.into(), keypair.public())
            .with_agent_version(config.agent.clone())
            .with_push_listen_addr_updates(true);
        Ok(Self {
            limits: connection_limits::Behaviour::new(connection_limits(&config.doors.shares)),
            wall: wall::Behaviour::new(config.faults.clone()),
            blocked: allow_block_list::Behaviour::default(),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_EVERY).with_timeout(PING_LIMIT)),
            kad: kademlia(config.swarm, own)?,
            mdns: mdns(config.mdns && has(SocketAddr::is_ipv4), false, own).into(),
            mdns6: mdns(config.mdns && has(SocketAddr::is_ipv6), true, own).into(),
            gossipsub: gossipsub(config.swarm)?,
            autonat: autonat::v1::Behaviour::new(own, autonat(config.listen.ip().is_loopback())),
            relay: config.relay.then(|| relaying(own)).into(),
            circuits,
            dcutr: dcutr::Behaviour::new(own),
            carry: carry::Behaviour::default(),
        })
    }
}

/// Peers of one household reach each other and say so: only those elsewhere are asked, unless all are on this host.
fn autonat(on_one_host: bool) -> autonat::v1::Config {
    let (throttle_clients_peer_max, throttle_clients_global_max, throttle_clients_period) = DIAL_BACKS;
    autonat::v1::Config {
        timeout: REACH_LIMIT,
        boot_delay: REACH_FIRST,
        retry_interval: REACH_EVERY.0,
        refresh_interval: REACH_EVERY.1,
        throttle_server_period: REACH_FIRST,
        confidence_max: REACH_SURE,
        throttle_clients_peer_max,
        throttle_clients_global_max,
        throttle_clients_period,
        only_global_ips: !on_one_host,
        ..autonat::v1::Config::default()
    }
}

/// Relays until this peer turns out not to be reachable; libp2p would judge by addresses, and tell connections that panic then
/// (`task/reach.rs`).
fn relaying(own: libp2p::PeerId) -> relay::Behaviour {
    let mut relaying = relay::Behaviour::new(own, relay());
    relaying.set_status(Some(relay::Status::Enable));
    relaying
}

/// Serves while this peer is reachable, and nobody but members, as nobody else is connected.
fn relay() -> relay::Config {
    relay::Config {
        max_reservations: PLACES,
        max_reservations_per_peer: 1,
        reservation_duration: PLACE_FOR,
        max_circuits: CIRCUITS.0,
        max_circuits_per_peer: CIRCUITS.1,
        max_circuit_duration: CIRCUIT_FOR,
        max_circuit_bytes: CIRCUIT_BYTES,
        ..relay::Config::default()
    }
}

/// Enough for the neighbours of a large swarm; small enough for a home router. Who has to prove itself yet has a place elsewhere
/// (`seated.rs`), so that it is not the newcomer who goes where all are taken.
fn connection_limits(shares: &FileShares) -> ConnectionLimits {
    let most = |connections: usize| Some(u32::try_from(connections).unwrap_or(u32::MAX));
    ConnectionLimits::default()
        .with_max_pending_outgoing(Some(64))
        .with_max_established_incoming(most(shares.neighbours_incoming))
        .with_max_established(most(shares.neighbours))
        .with_max_established_per_peer(Some(6))
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
fn mdns(wanted: bool, enable_ipv6: bool, own: libp2p::PeerId) -> Option<mdns::tokio::Behaviour> {
    if !wanted {
        return None;
    }
    mdns::tokio::Behaviour::new(mdns::Config { enable_ipv6, ..Default::default() }, own)
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
        .idontwant_message_size_threshold(LARGE_MESSAGE)
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
