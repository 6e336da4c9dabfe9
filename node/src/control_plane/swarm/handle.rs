//! How the rest of the node speaks to the task that owns the network.

use super::gossip::Sealer;
use libp2p::Multiaddr;
use std::sync::Arc;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    time::Instant,
};
use tsnode_protocol::{Gossip, PeerId, Verified, envelope::EnvelopeError};

/// Orders to the task; full means that the task is stuck, and the caller is told so instead of waiting.
pub(super) const COMMANDS: usize = 256;

/// An order to the task.
#[derive(Debug)]
pub(super) enum SwarmCommand {
    /// Send a sealed message to everybody.
    Publish(Vec<u8>),
    /// Connect to an address.
    Dial(Multiaddr),
    /// Close all connections with a peer.
    Disconnect(PeerId),
    /// Close them, and allow no new ones.
    Ban(PeerId, Ban),
    /// These peers are heard of, if not by gossip.
    Present(Vec<PeerId>),
    /// Allow them again, should nothing else keep the peer away.
    Allow(PeerId, Ban),
    /// Say this behind all that is to be heard.
    Echo(Instant),
    /// Do as the network's library does where its books do not agree.
    #[cfg(test)]
    Panic,
}

/// Why a peer is kept away. Each reason is lifted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ban {
    /// It is cut off for what it did.
    Offence,
    /// A testnet has cut the network between it and us.
    Fault,
}

/// The task cannot take an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Too many orders wait.
    #[error("the network task is {COMMANDS} orders behind")]
    Busy,
    /// The task has ended.
    #[error("the network task has ended")]
    Stopped,
}

/// Why a message was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Other peers would refuse it, so it was not sent.
    #[error("other peers would refuse this message: {0}")]
    Refused(#[from] EnvelopeError),
    /// The task cannot take it.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Orders the network task, and sees what it sees. Clones are equal; nothing here blocks.
#[derive(Clone)]
pub struct SwarmHandle {
    pub(super) sealer: Arc<Sealer>,
    pub(super) commands: mpsc::Sender<SwarmCommand>,
    pub(super) addresses: watch::Receiver<Vec<String>>,
    pub(super) peers: watch::Receiver<Vec<PeerId>>,
}

impl SwarmHandle {
    /// Signs `message` with the next sequence number, sends it to everybody, and returns it as others read it.
    ///
    /// With no other peer connected it reaches nobody and is not kept: who connects later gets what is said then.
    ///
    /// # Errors
    /// When others would refuse the message, or the task cannot take it.
    pub fn publish(&self, message: &Gossip) -> Result<Verified<Gossip>, PublishError> {
        let (verified, bytes) = self.sealer.seal(message)?;
        self.order(SwarmCommand::Publish(bytes))?;
        Ok(verified)
    }

    /// Signs `message` with the next sequence number, for those it is sent to otherwise.
    ///
    /// # Errors
    /// When others would refuse the message.
    pub fn seal(&self, message: &Gossip) -> Result<Verified<Gossip>, PublishError> {
        Ok(self.sealer.seal(message)?.0)
    }

    /// The same, as bytes.
    ///
    /// # Errors
    /// When others would refuse the message.
    pub(crate) fn seal_bytes(&self, message: &Gossip) -> Result<Vec<u8>, PublishError> {
        Ok(self.sealer.seal(message)?.1)
    }

    /// Sends bytes to everybody, whatever they are.
    ///
    /// # Errors
    /// When the task cannot take them.
    pub(crate) fn say(&self, bytes: Vec<u8>) -> Result<(), CommandError> {
        self.order(SwarmCommand::Publish(bytes))
    }

    /// These peers are there, though they may be silent to all: there is no need to look for them.
    ///
    /// # Errors
    /// When the task cannot take the order.
    pub fn present(&self, peers: Vec<PeerId>) -> Result<(), CommandError> {
        self.order(SwarmCommand::Present(peers))
    }

    /// Has [`SwarmEvent::Echo`](super::SwarmEvent::Echo) come behind all that is to be heard here.
    ///
    /// # Errors
    /// When the task cannot take the order.
    pub fn echo(&self, now: Instant) -> Result<(), CommandError> {
        self.order(SwarmCommand::Echo(now))
    }

    /// Connects to an address; a failure is only logged.
    ///
    /// # Errors
    /// When the task cannot take the order.
    pub fn dial(&self, address: Multiaddr) -> Result<(), CommandError> {
        self.order(SwarmCommand::Dial(address))
    }

    /// Closes all connections with `peer`, which may connect again.
    ///
    /// # Errors
    /// When the task cannot take the order.
    pub fn disconnect(&self, peer: PeerId) -> Result<(), CommandError> {
        self.order(SwarmCommand::Disconnect(peer))
    }

    /// Closes all connections with `peer` and allows no more; what it says may still come over others.
    ///
    /// # Errors
    /// When the task cannot take the order.
    pub fn ban(&self, peer: PeerId, why: Ban) -> Result<(), CommandError> {
        self.order(SwarmCommand::Ban(peer, why))
    }

    /// Lifts a ban: `peer` may connect, and is dialled, again, unless it is banned for another reason, too.
    ///
    /// # Errors
    /// When the task cannot take the order.
    pub fn allow(&self, peer: PeerId, why: Ban) -> Result<(), CommandError> {
        self.order(SwarmCommand::Allow(peer, why))
    }

    /// Where other peers can reach this one: multiaddrs ending in `/p2p/<peer id>`, best first.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.borrow().clone()
    }

    /// The peers connected now, in order of their ids.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerId> {
        self.peers.borrow().clone()
    }

    fn order(&self, command: SwarmCommand) -> Result<(), CommandError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => CommandError::Busy,
            TrySendError::Closed(_) => CommandError::Stopped,
        })
    }
}
