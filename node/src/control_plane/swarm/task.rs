//! The task that owns the network: turns what happens on it into events, and orders into what happens.

mod reach;
mod restart;

use super::{
    SwarmEvent,
    address_changes::Moves,
    admission::Rejection,
    behaviour::{Behaviour, BehaviourEvent},
    dialer::{Attempt, Dialer},
    exchange::Verdict,
    gossip::{self, MessageRefusal},
    handle::{Ban, SwarmCommand},
    heard::{Excess, HeardSigners},
    network::Maker,
    not_hearing::NotHearing,
    outbox::Outbox,
    seated, to_libp2p_id, to_own_id,
    unproven::Unproven,
};
use crate::data_plane::carrier::{Ask, Carried};
use crate::data_plane::doors::Doors;
use futures::{FutureExt as _, StreamExt as _};
use libp2p::{
    Multiaddr, Swarm, gossipsub, identify,
    kad::{self, store::MemoryStore},
    mdns, ping, relay,
    swarm::{ConnectionId, SwarmEvent as NetEvent, dial_opts::DialOpts},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{Gossip, PeerId, SwarmId, Verified, limits};

pub(super) use reach::{Reach, WaitingStreams};

/// How often it is considered whom to dial.
const DIAL_EVERY: Duration = Duration::from_secs(1);
/// How often neighbours are asked for more peers, while there are too few.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
/// How long the last messages, such as that we are leaving, have to get out.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long closing connections may take at the end.
const GOODBYE: Duration = Duration::from_millis(500);

/// The owner of the network.
pub(super) struct SwarmTask {
    pub(super) net: Swarm<Behaviour>,
    pub(super) own: PeerId,
    pub(super) swarm: SwarmId,
    pub(super) degree: usize,
    pub(super) dialer: Dialer,
    pub(super) outbox: Outbox,
    pub(super) addresses: watch::Sender<Vec<String>>,
    pub(super) peers: watch::Sender<Vec<PeerId>>,
    /// Peers with an open connection.
    pub(super) connected: BTreeSet<PeerId>,
    /// Those of them that hear our gossip: the ones announced as connected.
    pub(super) hearing: BTreeSet<PeerId>,
    /// And those that do not.
    pub(super) not_hearing: NotHearing,
    /// Whether others reach us, and over whom.
    pub(super) reach: Reach,
    /// Takes streams that others open for the data plane.
    pub(super) came: mpsc::Sender<Carried>,
    /// What the data plane waits for.
    pub(super) wanted: BTreeMap<PeerId, WaitingStreams>,
    /// Who is kept away, and why; as many as whoever orders it remembers.
    pub(super) bans: BTreeSet<(PeerId, Ban)>,
    /// What everybody said last.
    pub(super) heard: HeardSigners,
    /// Who left the door and may come in another way.
    pub(super) unproven: Unproven,
    /// Which connections a change of addresses cuts.
    pub(super) moves: Moves<ConnectionId>,
    /// They know where members are.
    pub(super) doors: Doors,
    /// What is to be said behind all that is to be heard.
    pub(super) echo: Option<tokio::time::Instant>,
}

/// What the task is told by others.
pub(super) struct Inputs {
    pub(super) commands: mpsc::Receiver<SwarmCommand>,
    pub(super) rejections: mpsc::Receiver<Rejection>,
    pub(super) asks: mpsc::Receiver<Ask>,
}

impl SwarmTask {
    /// Runs until `stop`, or until nobody takes events any more; a network that panics is made again.
    pub(super) async fn run(mut self, mut inputs: Inputs, maker: Maker, stop: CancellationToken) {
        while let Err(panic) = AssertUnwindSafe(self.serve(&mut inputs, &stop)).catch_unwind().await {
            match self.with_another_network(panic, &maker, &stop).await {
                Some(task) => self = task,
                None => return,
            }
        }
        let _ = AssertUnwindSafe(self.end(inputs)).catch_unwind().await;
    }

    /// Local orders go before remote traffic, and an echo of one behind it.
    async fn serve(&mut self, Inputs { commands, rejections, asks }: &mut Inputs, stop: &CancellationToken) {
        let mut dial = interval(DIAL_EVERY);
        let mut search = interval(SEARCH_EVERY);
        dial.set_missed_tick_behavior(MissedTickBehavior::Delay);
        search.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                sent = self.outbox.flush_one(), if self.outbox.is_waiting() => if sent.is_err() { break },
                Some(command) = commands.recv() => self.apply_command(command),
                Some(rejection) = rejections.recv() => self.on_rejection(rejection),
                Some(ask) = asks.recv() => self.on_ask(ask),
                _ = dial.tick() => {
                    self.dial_due();
                    self.seek_places();
                    self.count_unproven();
                    self.connect_anew();
                }
                _ = search.tick() => self.search(),
                event = self.net.select_next_some(), if !self.outbox.is_waiting() => self.on_event(event),
                // The last of them: nothing else is ready.
                () = std::future::ready(()), if self.echo.is_some() && !self.outbox.is_waiting() => self.answer_echo(),
            }
        }
    }

    /// What was to be heard has been heard.
    fn answer_echo(&mut self) {
        if let Some(said) = self.echo.take() {
            self.outbox.push(SwarmEvent::Echo(said));
        }
    }

    async fn end(mut self, mut inputs: Inputs) {
        while let Ok(command) = inputs.commands.try_recv() {
            self.apply_command(command);
        }
        self.say_goodbye().await;
    }

    fn apply_command(&mut self, command: SwarmCommand) {
        match command {
            #[cfg(test)]
            SwarmCommand::Panic => panic!("as a test wants it"),
            SwarmCommand::Publish(bytes) => self.publish(bytes),
            SwarmCommand::Dial(address) => self.attempt(Attempt::to(address)),
            SwarmCommand::Disconnect(peer) => self.disconnect(peer),
            SwarmCommand::Echo(said) => self.echo = Some(said),
            SwarmCommand::Present(peers) => peers.into_iter().for_each(|peer| self.dialer.heard(peer, Instant::now())),
            SwarmCommand::Allow(peer, why) => {
                self.bans.remove(&(peer, why));
                if [Ban::Offence, Ban::Fault].iter().any(|other| self.bans.contains(&(peer, *other))) {
                    return;
                }
                self.dialer.allow(peer);
                if let Some(id) = to_libp2p_id(peer) {
                    self.net.behaviour_mut().blocked.unblock_peer(id);
                }
            }
            SwarmCommand::Ban(peer, why) => {
                self.bans.insert((peer, why));
                self.dialer.ban(peer);
                if let Some(id) = to_libp2p_id(peer) {
                    self.net.behaviour_mut().blocked.block_peer(id);
                }
            }
        }
    }

    fn publish(&mut self, bytes: Vec<u8>) {
        match self.net.behaviour_mut().gossipsub.publish(gossip::topic(self.swarm), bytes) {
            Ok(id) => tracing::trace!(%id, "published"),
            // A lonely peer speaks to nobody; who connects later gets what is said then.
            Err(error) => tracing::debug!(%error, "not published"),
        }
    }

    pub(super) fn disconnect(&mut self, peer: PeerId) {
        if let Some(id) = to_libp2p_id(peer)
            && self.net.disconnect_peer_id(id).is_err()
        {
            tracing::debug!(%peer, "was not connected");
        }
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for attempt in self.dialer.due(now, &self.connected).into_iter().chain(self.dialer.probe(now, &self.connected))
        {
            self.attempt(attempt);
        }
    }

    /// Does nothing when the peer is connected or being dialled.
    fn attempt(&mut self, attempt: Attempt) {
        tracing::debug!(?attempt, "dialling");
        let to = match attempt {
            Attempt::Address(address) => DialOpts::from(address),
            Attempt::Peer { peer, addresses } => match to_libp2p_id(peer) {
                Some(id) => DialOpts::peer_id(id).addresses(addresses).build(),
                None => return,
            },
        };
        if let Err(error) = self.net.dial(to) {
            tracing::debug!(%error, "not dialled");
        }
    }

    /// Kademlia's walk towards our own id connects to the peers it meets.
    fn search(&mut self) {
        if !self.connected.is_empty() && self.connected.len() < self.degree {
            // Fails only while no peer's address is known, and then there is nobody to ask.
            let _ = self.net.behaviour_mut().kad.bootstrap();
        }
    }

    fn on_rejection(&mut self, rejection: Rejection) {
        tracing::debug!(?rejection, "not admitted");
        if rejection.verdict == Verdict::Twin {
            return self.outbox.push(SwarmEvent::Twin);
        }
        if let (Some(peer), Verdict::Stranger) = (rejection.peer, rejection.verdict) {
            self.dialer.refused(peer, Instant::now());
        }
        if let Some(theirs) = rejection.version {
            self.outbox.push(SwarmEvent::OtherVersion { theirs });
        }
        let counted = match (rejection.peer, rejection.verdict) {
            (Some(peer), Verdict::Unproven) if self.is_member(peer) => None,
            (Some(peer), Verdict::Unproven) => self.unproven.wait(Instant::now(), peer, rejection),
            _ => Some(rejection),
        };
        if let Some(rejection) = counted {
            self.outbox.push(rejection.into());
        }
    }

    /// Whether a peer is in, or what it signed has been heard.
    fn is_member(&self, peer: PeerId) -> bool {
        self.connected.contains(&peer) || self.heard.knows(peer)
    }

    /// Who has been connected for long and does not hear us has an old connection to blame for it: all are closed, and it is dialled again.
    fn connect_anew(&mut self) {
        for peer in self.not_hearing.due(Instant::now()) {
            tracing::info!(%peer, "does not hear this peer: it is connected anew");
            self.disconnect(peer);
        }
    }

    /// Counts those who have not come in another way.
    fn count_unproven(&mut self) {
        for rejection in self.unproven.stayed_out(Instant::now()) {
            if !rejection.peer.is_some_and(|peer| self.is_member(peer)) {
                self.outbox.push(rejection.into());
            }
        }
    }

    fn on_event(&mut self, event: NetEvent<BehaviourEvent>) {
        match event {
            NetEvent::Behaviour(event) => self.on_protocol(event),
            NetEvent::NewListenAddr { address, .. } => self.on_listening(address),
            NetEvent::ExpiredListenAddr { address, .. } => {
                self.on_no_longer_listening([&address]);
                self.on_address_lost(&address);
            }
            NetEvent::ExternalAddrConfirmed { address } => self.on_confirmed(address),
            NetEvent::ConnectionEstablished { peer_id, endpoint, connection_id, num_established, .. } => {
                if let Some(peer) = to_own_id(&peer_id) {
                    tracing::debug!(%peer, address = %endpoint.get_remote_address(), "connection opened");
                    seated::address(endpoint.get_remote_address()).into_iter().for_each(|at| self.doors.meet(at));
                    self.connected.insert(peer);
                    if !self.hearing.contains(&peer) {
                        self.not_hearing.came(peer, Instant::now());
                    }
                    self.unproven.came(peer);
                    self.dialer.connected(peer);
                    self.on_connection(peer, connection_id, &endpoint, num_established.get() > 1);
                }
            }
            NetEvent::ConnectionClosed { peer_id, num_established, connection_id, cause, endpoint } => {
                let Some(peer) = to_own_id(&peer_id) else { return };
                self.on_connection_closed(peer, connection_id, num_established == 0);
                // Without a cause it was closed here.
                let host = seated::address(endpoint.get_remote_address()).filter(|_| cause.is_some());
                if num_established == 0 {
                    self.on_gone(peer, cause.map(|cause| cause.to_string()));
                }
                if let Some(host) = host {
                    self.outbox.push(SwarmEvent::BrokeOff { peer, host });
                }
            }
            NetEvent::OutgoingConnectionError { peer_id, error, connection_id, .. } => {
                self.on_dial_failed(connection_id);
                tracing::debug!(?peer_id, %error, "dialling failed");
            }
            NetEvent::ListenerError { error, .. } => tracing::warn!(%error, "cannot accept a connection"),
            NetEvent::ListenerClosed { reason, addresses, listener_id } => {
                tracing::debug!(?reason, "a listener has closed");
                self.on_listener_closed(listener_id, &addresses);
            }
            _ => {}
        }
    }

    fn on_protocol(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Gossipsub(event) => self.on_gossipsub(event),
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                if let Some(peer) = to_own_id(&peer_id) {
                    self.on_listens(peer, &info.listen_addrs);
                    self.on_protocols(peer, &info.protocols, &info.listen_addrs);
                }
                self.learn(&peer_id, info.listen_addrs);
            }
            BehaviourEvent::Autonat(event) => self.on_autonat(event),
            BehaviourEvent::Carry(carried) => self.on_carried(carried),
            BehaviourEvent::Circuits(relay::client::Event::ReservationReqAccepted { relay_peer_id, .. }) => {
                self.on_place_given(&relay_peer_id);
            }
            BehaviourEvent::Circuits(event) => tracing::debug!(?event, "circuits"),
            BehaviourEvent::Relay(event) => tracing::debug!(?event, "relaying"),
            BehaviourEvent::Dcutr(event) => tracing::debug!(?event, "hole punching"),
            BehaviourEvent::Mdns(mdns::Event::Discovered(found))
            | BehaviourEvent::Mdns6(mdns::Event::Discovered(found)) => {
                for (peer, address) in found {
                    if let Some(peer) = to_own_id(&peer) {
                        self.dialer.learn(peer, [address]);
                    }
                }
                self.dial_due();
            }
            BehaviourEvent::Ping(ping::Event { peer, connection, result: Err(error) })
                // Not to know ping is odd, but no sign of death.
                if !matches!(error, ping::Failure::Unsupported) =>
            {
                tracing::debug!(%peer, %error, "connection is dead");
                self.net.close_connection(connection);
            }
            _ => {}
        }
    }

    /// A connected peer tells where it listens: worth remembering, and worth telling others by Kademlia.
    fn learn(&mut self, id: &libp2p::PeerId, addresses: Vec<Multiaddr>) {
        let Some(peer) = to_own_id(id) else { return };
        let kad = &mut self.net.behaviour_mut().kad;
        if addresses_of(kad, id) >= limits::ADDRESSES {
            kad.remove_peer(id);
        }
        for address in addresses.iter().take(limits::ADDRESSES) {
            kad.add_address(id, address.clone());
        }
        self.dialer.learn(peer, addresses);
    }

    fn on_gossipsub(&mut self, event: gossipsub::Event) {
        match event {
            gossipsub::Event::Message { propagation_source, message_id, message } => {
                let acceptance = self.on_message(&propagation_source, &message.data);
                self.net.behaviour_mut().gossipsub.report_message_validation_result(
                    &message_id,
                    &propagation_source,
                    acceptance,
                );
            }
            gossipsub::Event::Subscribed { peer_id, topic } if topic == gossip::topic(self.swarm).hash() => {
                if let Some(peer) = to_own_id(&peer_id) {
                    self.on_hearing(peer);
                }
            }
            _ => {}
        }
    }

    fn on_message(&mut self, from: &libp2p::PeerId, bytes: &[u8]) -> gossipsub::MessageAcceptance {
        match gossip::judge(bytes, self.swarm, self.own) {
            Ok(message) => {
                if let Err(excess) = self.heard.note(&message) {
                    self.on_excess(from, message.signer(), excess);
                    return gossipsub::MessageAcceptance::Ignore;
                }
                self.dialer.heard(message.signer(), Instant::now());
                self.learn_from_advert(&message);
                self.outbox.push(SwarmEvent::Gossip(message));
                gossipsub::MessageAcceptance::Accept
            }
            Err(MessageRefusal::Ignore(reason)) => {
                tracing::debug!(%from, reason, "gossip ignored");
                gossipsub::MessageAcceptance::Ignore
            }
            Err(MessageRefusal::Reject(reason)) => {
                tracing::debug!(%from, reason, "gossip rejected");
                let peer = to_own_id(from);
                self.outbox.push(SwarmEvent::Rejected { peer, reason });
                self.blame(peer, Offence::Garbage);
                gossipsub::MessageAcceptance::Reject
            }
        }
    }

    /// Old messages are the fault of the neighbour that brings them, too many that of whoever signs them.
    fn on_excess(&mut self, from: &libp2p::PeerId, signer: PeerId, excess: Excess) {
        tracing::trace!(%from, %signer, ?excess, "gossip ignored");
        match excess {
            Excess::Late => {}
            Excess::Old => self.blame(to_own_id(from), Offence::Replay),
            Excess::TooMuch => self.blame(Some(signer), Offence::Flood),
        }
    }

    fn blame(&mut self, peer: Option<PeerId>, offence: Offence) {
        if let Some(peer) = peer {
            self.outbox.push(SwarmEvent::Offence { peer, offence });
        }
    }

    fn learn_from_advert(&mut self, message: &Verified<Gossip>) {
        if let Gossip::Advert(advert) = message.message() {
            let addresses = advert.addresses.iter().filter_map(|address| address.parse().ok());
            self.dialer.learn(message.signer(), addresses);
            self.dial_due();
        }
    }

    /// A peer counts as connected once it hears us: what is published on that news reaches it.
    fn on_hearing(&mut self, peer: PeerId) {
        if self.connected.contains(&peer) && self.hearing.insert(peer) {
            self.not_hearing.settled(peer);
            tracing::info!(%peer, "connected");
            self.peers.send_replace(self.hearing.iter().copied().collect());
            self.outbox.push(SwarmEvent::Connected(peer));
        }
    }

    fn on_gone(&mut self, peer: PeerId, cause: Option<String>) {
        self.connected.remove(&peer);
        self.not_hearing.settled(peer);
        if self.hearing.remove(&peer) {
            tracing::info!(%peer, ?cause, "disconnected");
            self.peers.send_replace(self.hearing.iter().copied().collect());
            self.outbox.push(SwarmEvent::Disconnected(peer));
        }
    }

    /// Lets last words out, then closes connections in order, so that neighbours need no timeout to notice.
    async fn say_goodbye(mut self) {
        let speak = async {
            loop {
                self.net.select_next_some().await;
            }
        };
        if !self.hearing.is_empty() {
            let _: Result<(), _> = timeout(LAST_WORDS, speak).await;
        }
        for peer in std::mem::take(&mut self.connected) {
            self.disconnect(peer);
        }
        let closed = async {
            while self.net.connected_peers().next().is_some() {
                self.net.next().await;
            }
        };
        if timeout(GOODBYE, closed).await.is_err() {
            tracing::debug!("left without waiting for every connection to close");
        }
    }
}

/// How many addresses of a peer Kademlia keeps; it forgets none by itself.
fn addresses_of(kad: &mut kad::Behaviour<MemoryStore>, id: &libp2p::PeerId) -> usize {
    let bucket = kad.kbucket(*id);
    bucket
        .iter()
        .flat_map(|bucket| bucket.iter())
        .find(|entry| entry.node.key.preimage() == id)
        .map_or(0, |entry| entry.node.value.len())
}
