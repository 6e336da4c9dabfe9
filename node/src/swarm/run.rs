//! The task that owns the libp2p swarm.

use super::{
    Order, SwarmConfig, SwarmError, SwarmEvent,
    admission::Doorkeeper,
    behaviour::{Behaviour, BehaviourEvent, topic},
    name, transport,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, Swarm,
    gossipsub::{self, IdentTopic, MessageAcceptance},
    identify, mdns,
    multiaddr::Protocol,
    swarm::{
        self, DialError,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Gossip, PeerId, Signed, SwarmId, limits};

/// Peers this one keeps connections to by itself; gossip reaches the rest through them.
const DEGREE: usize = 8;
/// How often missing connections are looked for.
const LOOK: Duration = Duration::from_secs(2);
/// Bootstrap addresses are tried again after this, doubled each time up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A peer of another swarm is not dialled again for this long.
const SHUN: Duration = Duration::from_secs(60);
/// Addresses remembered of peers that are not connected.
const KNOWN: usize = 512;
/// How long a socket may take to open.
const LISTEN: Duration = Duration::from_secs(5);
/// Strangers reported and not yet looked at.
const STRANGERS: usize = 64;

pub(super) struct Task {
    swarm: Swarm<Behaviour>,
    topic: IdentTopic,
    swarm_id: SwarmId,
    orders: mpsc::Receiver<Order>,
    events: mpsc::Sender<SwarmEvent>,
    strangers: mpsc::Receiver<(Option<PeerId>, libp2p::PeerId, String)>,
    bootstrap: Vec<Multiaddr>,
    next_bootstrap: Instant,
    pause: Duration,
    known: BTreeMap<libp2p::PeerId, Vec<Multiaddr>>,
    shunned: BTreeMap<libp2p::PeerId, Instant>,
    addresses: Vec<Multiaddr>,
}

impl Task {
    /// Opens the sockets.
    pub(super) async fn start(
        config: SwarmConfig,
        orders: mpsc::Receiver<Order>,
        events: mpsc::Sender<SwarmEvent>,
    ) -> Result<Self, SwarmError> {
        let (refused, strangers) = mpsc::channel(STRANGERS);
        let me = config.identity.peer_id();
        let doorkeeper = Doorkeeper { membership: config.membership.clone(), me, refused };
        let transport = transport::build(&config.identity, doorkeeper)?;
        let behaviour = Behaviour::new(&config)?;
        let local = config.identity.keypair().public().to_peer_id();
        let settings = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        let mut swarm = Swarm::new(transport, behaviour, local, settings);
        let addresses = listen(&mut swarm, config.listen).await?;
        Ok(Self {
            swarm,
            topic: topic(config.swarm),
            swarm_id: config.swarm,
            orders,
            events,
            strangers,
            bootstrap: config.bootstrap,
            next_bootstrap: Instant::now(),
            pause: RETRY.0,
            known: BTreeMap::new(),
            shunned: BTreeMap::new(),
            addresses,
        })
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.tell_addresses().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = self.swarm.select_next_some() => self.on_event(event).await,
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                Some((peer, id, reason)) = self.strangers.recv() => {
                    self.shunned.insert(id, Instant::now() + SHUN);
                    self.known.remove(&id);
                    self.tell(SwarmEvent::Rejected { peer, reason }).await;
                }
                _ = look.tick() => self.look(),
            }
        }
    }

    async fn tell(&mut self, event: SwarmEvent) {
        // The driver being gone, this task is about to end as well.
        let _ = self.events.send(event).await;
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Publish(bytes) => {
                if let Err(error) = self.swarm.behaviour_mut().gossip.publish(self.topic.clone(), bytes) {
                    // Alone, or between two peers' coming and going: what matters is said again.
                    tracing::trace!(%error, "gossip not sent");
                }
            }
            Order::Dial(address) => self.dial(address),
        }
    }

    async fn on_event(&mut self, event: swarm::SwarmEvent<BehaviourEvent>) {
        use swarm::SwarmEvent as E;
        match event {
            E::NewListenAddr { address, .. } => {
                self.addresses.push(address);
                self.tell_addresses().await;
            }
            E::ExpiredListenAddr { address, .. } => {
                self.addresses.retain(|a| *a != address);
                self.tell_addresses().await;
            }
            E::ConnectionEstablished { peer_id, num_established, .. } if num_established.get() == 1 => {
                self.pause = RETRY.0;
                if let Some(peer) = name(&peer_id) {
                    self.tell(SwarmEvent::Connected(peer)).await;
                }
            }
            E::ConnectionClosed { peer_id, num_established: 0, cause, .. } => {
                tracing::debug!(peer = %peer_id, ?cause, "connection closed");
                if let Some(peer) = name(&peer_id) {
                    self.tell(SwarmEvent::Disconnected(peer)).await;
                }
            }
            E::OutgoingConnectionError { peer_id, error, .. } => {
                tracing::debug!(peer = ?peer_id, %error, "dial failed");
                if let (Some(peer), DialError::WrongPeerId { .. } | DialError::Transport(_)) = (peer_id, &error) {
                    self.known.remove(&peer);
                }
            }
            E::Behaviour(event) => self.on_behaviour(event).await,
            _ => {}
        }
    }

    async fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Gossip(gossipsub::Event::Message { propagation_source, message_id, message }) => {
                let heard = read(&message.data, self.swarm_id);
                let acceptance = if heard.is_ok() { MessageAcceptance::Accept } else { MessageAcceptance::Reject };
                let gossip = &mut self.swarm.behaviour_mut().gossip;
                gossip.report_message_validation_result(&message_id, &propagation_source, acceptance);
                let peer = name(&propagation_source);
                self.tell(match heard {
                    Ok(verified) => SwarmEvent::Gossip(Box::new(verified)),
                    Err(reason) => SwarmEvent::Rejected { peer, reason },
                })
                .await;
            }
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
                for (peer, address) in found {
                    self.remember(peer, address);
                }
                self.look();
            }
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                for address in info.listen_addrs.into_iter().take(limits::ADDRESSES) {
                    self.swarm.behaviour_mut().kad.add_address(&peer_id, address.clone());
                    self.remember(peer_id, address);
                }
            }
            BehaviourEvent::Kad(libp2p::kad::Event::RoutingUpdated { peer, addresses, .. }) => {
                for address in addresses.iter().take(limits::ADDRESSES) {
                    self.remember(peer, address.clone());
                }
            }
            _ => {}
        }
    }

    fn remember(&mut self, peer: libp2p::PeerId, address: Multiaddr) {
        let me = *self.swarm.local_peer_id();
        if peer == me || self.shunned.get(&peer).is_some_and(|until| *until > Instant::now()) {
            return;
        }
        if self.known.len() < KNOWN || self.known.contains_key(&peer) {
            let addresses = self.known.entry(peer).or_default();
            if !addresses.contains(&address) && addresses.len() < limits::ADDRESSES {
                addresses.push(address);
            }
        }
    }

    /// Dials known peers up to the degree, and bootstrap addresses while alone.
    fn look(&mut self) {
        let now = Instant::now();
        self.shunned.retain(|_, until| *until > now);
        let connected = self.swarm.connected_peers().count();
        if connected == 0 && now >= self.next_bootstrap {
            self.next_bootstrap = now + self.pause;
            self.pause = (self.pause * 2).min(RETRY.1);
            for address in self.bootstrap.clone() {
                self.dial(address);
            }
        }
        let missing = DEGREE.saturating_sub(connected);
        let strangers: Vec<libp2p::PeerId> =
            self.known.keys().filter(|peer| !self.swarm.is_connected(peer)).take(missing).copied().collect();
        for peer in strangers {
            let addresses = self.known.get(&peer).cloned().unwrap_or_default();
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(addresses)
                .build();
            // A dial under way already is all that is wanted.
            let _ = self.swarm.dial(options);
        }
    }

    fn dial(&mut self, address: Multiaddr) {
        if let Err(error) = self.swarm.dial(address.clone()) {
            tracing::debug!(%address, %error, "not dialled");
        }
    }

    async fn tell_addresses(&mut self) {
        let me = *self.swarm.local_peer_id();
        let whole = |a: &Multiaddr| a.clone().with(Protocol::P2p(me)).to_string();
        // Addresses of the host itself help nobody elsewhere, unless there are no others.
        let local = |a: &&Multiaddr| !a.iter().any(|p| matches!(p, Protocol::Ip4(ip) if ip.is_loopback()));
        let mut addresses: Vec<String> = self.addresses.iter().filter(local).map(whole).collect();
        if addresses.is_empty() {
            addresses = self.addresses.iter().map(whole).collect();
        }
        addresses.truncate(limits::ADDRESSES);
        self.tell(SwarmEvent::Listening(addresses)).await;
    }
}

fn read(bytes: &[u8], swarm: SwarmId) -> Result<tsnode_protocol::Verified<Gossip>, String> {
    let signed = Signed::<Gossip>::from_bytes(bytes).map_err(|e| e.to_string())?;
    signed.verify(swarm).map_err(|e| e.to_string())
}

/// Opens TCP and QUIC at the address, waits until both are, and says where.
async fn listen(swarm: &mut Swarm<Behaviour>, at: SocketAddr) -> Result<Vec<Multiaddr>, SwarmError> {
    let refused = |error: String| SwarmError::Listen { address: at, in_use: error.contains("in use"), error };
    let ip: Multiaddr = Multiaddr::empty().with(at.ip().into());
    let wanted = [ip.clone().with(Protocol::Tcp(at.port())), ip.with(Protocol::Udp(at.port())).with(Protocol::QuicV1)];
    for address in wanted {
        // QUIC reports a taken port here, TCP as an event.
        swarm.listen_on(address).map_err(|e| refused(chain(&e)))?;
    }
    let opened = async {
        let mut open = Vec::new();
        while !([Protocol::Tcp(0), Protocol::Udp(0)].iter().all(|kind| open.iter().any(|a| has(a, kind)))) {
            match swarm.select_next_some().await {
                swarm::SwarmEvent::NewListenAddr { address, .. } => open.push(address),
                swarm::SwarmEvent::ListenerClosed { reason: Err(error), .. } => return Err(refused(error.to_string())),
                swarm::SwarmEvent::ListenerError { error, .. } => return Err(refused(error.to_string())),
                _ => {}
            }
        }
        Ok(open)
    };
    timeout(LISTEN, opened).await.unwrap_or_else(|_| Err(refused("the sockets did not open in time".into())))
}

/// Whether an address is of this kind, whatever the port.
fn has(address: &Multiaddr, kind: &Protocol<'_>) -> bool {
    address.iter().any(|p| p.tag() == kind.tag())
}

/// An error with its causes, for messages.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
