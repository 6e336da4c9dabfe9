//! The ways of a peer to others: its control plane and its data plane, started.

use super::{
    context::NodeContext,
    setup::{NodeError, next_port},
};
use crate::{
    control_plane::swarm::{self, SwarmConfig, SwarmEvent, SwarmHandle, names},
    data_plane::{
        carrier,
        heartbeats::Inbox,
        links::{GonePeers, Incoming, Links, LinksConfig},
        offences::OffenceReporter,
    },
    faults::Faults,
};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tsnode_protocol::proof::Membership;

/// The ways to other peers.
pub(super) struct Planes {
    pub links: Links,
    pub incoming: Incoming,
    pub gone: GonePeers,
    pub data_port: u16,
    pub swarm: SwarmHandle,
    pub events: mpsc::Receiver<SwarmEvent>,
}

impl NodeContext {
    pub async fn planes(
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
}
