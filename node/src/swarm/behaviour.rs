//! Protocols of the control plane, and their settings.

use super::{SwarmConfig, SwarmError};
use libp2p::{
    connection_limits::{self, ConnectionLimits},
    gossipsub::{
        self, IdentTopic, MessageAuthenticity, MessageId, PeerScoreParams, PeerScoreThresholds, ValidationMode,
    },
    identify, kad, mdns, ping,
    swarm::{NetworkBehaviour, StreamProtocol, behaviour::toggle::Toggle},
};
use std::time::Duration;
use tsnode_protocol::{SwarmId, limits};

/// Connections of one peer: two dials may cross, over two transports.
const PER_PEER: u32 = 4;
const INCOMING: u32 = 512;
const PENDING: u32 = 128;

#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    limits: connection_limits::Behaviour,
    pub(super) gossip: gossipsub::Behaviour,
    pub(super) kad: kad::Behaviour<kad::store::MemoryStore>,
    mdns: Toggle<mdns::tokio::Behaviour>,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

pub(super) fn topic(swarm: SwarmId) -> IdentTopic {
    IdentTopic::new(format!("tsnode/{swarm}"))
}

impl Behaviour {
    pub(super) fn new(config: &SwarmConfig) -> Result<Self, SwarmError> {
        let keypair = config.identity.keypair();
        let me = keypair.public().to_peer_id();
        let limits = ConnectionLimits::default()
            .with_max_established_per_peer(Some(PER_PEER))
            .with_max_established_incoming(Some(INCOMING))
            .with_max_pending_incoming(Some(PENDING))
            .with_max_pending_outgoing(Some(PENDING));
        let mdns = match config.mdns {
            true => Some(mdns::tokio::Behaviour::new(mdns::Config::default(), me).map_err(setup)?),
            false => None,
        };
        let identify = identify::Config::new("/tsnode/id/1".into(), keypair.public())
            .with_agent_version(config.agent.clone())
            .with_interval(Duration::from_secs(300));
        Ok(Self {
            limits: connection_limits::Behaviour::new(limits),
            gossip: gossip(config)?,
            kad: kademlia(me, config.swarm)?,
            mdns: mdns.into(),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(ping::Config::new().with_interval(Duration::from_secs(5))),
        })
    }
}

fn gossip(config: &SwarmConfig) -> Result<gossipsub::Behaviour, SwarmError> {
    let settings = gossipsub::ConfigBuilder::default()
        .max_transmit_size(limits::GOSSIP_BYTES + 1024)
        // Envelopes carry their own signatures; libp2p's would say the same once more.
        .validation_mode(ValidationMode::None)
        .validate_messages()
        .message_id_fn(|message| MessageId::new(&blake3::hash(&message.data).as_bytes()[..20]))
        .heartbeat_interval(Duration::from_secs(1))
        .history_length(10)
        .flood_publish(true)
        .build()
        .map_err(setup)?;
    let mut gossip = gossipsub::Behaviour::new(MessageAuthenticity::Anonymous, settings)
        .map_err(|e| SwarmError::Setup(e.to_owned()))?;
    // Peers of one host share an address; only what they say counts.
    let mut scores = PeerScoreParams { ip_colocation_factor_weight: 0.0, ..PeerScoreParams::default() };
    let topic_scores = gossipsub::TopicScoreParams {
        // Silence is the control machine's to judge.
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -10.0,
        invalid_message_deliveries_decay: 0.9,
        ..gossipsub::TopicScoreParams::default()
    };
    scores.topics.insert(topic(config.swarm).hash(), topic_scores);
    gossip.with_peer_score(scores, PeerScoreThresholds::default()).map_err(SwarmError::Setup)?;
    gossip.subscribe(&topic(config.swarm)).map_err(setup)?;
    Ok(gossip)
}

fn kademlia(me: libp2p::PeerId, swarm: SwarmId) -> Result<kad::Behaviour<kad::store::MemoryStore>, SwarmError> {
    let protocol = StreamProtocol::try_from_owned(format!("/tsnode/{swarm}/kad/1")).map_err(setup)?;
    let mut settings = kad::Config::new(protocol);
    settings.set_periodic_bootstrap_interval(Some(Duration::from_secs(120)));
    let mut kad = kad::Behaviour::with_config(me, kad::store::MemoryStore::new(me), settings);
    kad.set_mode(Some(kad::Mode::Server));
    Ok(kad)
}

fn setup(error: impl std::fmt::Display) -> SwarmError {
    SwarmError::Setup(error.to_string())
}
