//! The queue of events towards the control machine, and what happens when it is full.
//!
//! Heartbeats and rejections are dropped: what is lost of the first shows in the next roll and is asked for, the second may be
//! a flood. Everything else waits here, and while anything waits the network is not read, so that at most the events of one network
//! event wait and the pressure reaches the senders.

use super::SwarmEvent;
use std::collections::VecDeque;
use tokio::sync::mpsc::{self, error::TrySendError};
use tsnode_protocol::Gossip;

/// Sending side of the event queue.
pub(super) struct Outbox {
    sender: mpsc::Sender<SwarmEvent>,
    waiting: VecDeque<SwarmEvent>,
}

/// Nobody listens any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl Outbox {
    pub(super) fn new(sender: mpsc::Sender<SwarmEvent>) -> Self {
        Self { sender, waiting: VecDeque::new() }
    }

    /// Sends, keeps or drops `event`, as the queue's state and the event's kind want it.
    pub(super) fn push(&mut self, event: SwarmEvent) {
        let unsent = if self.waiting.is_empty() { self.try_send(event) } else { Some(event) };
        match unsent {
            Some(event) if is_droppable(&event) => tracing::debug!("event queue is full: dropped a repeatable event"),
            Some(event) => self.waiting.push_back(event),
            None => {}
        }
    }

    /// Whether events wait for room in the queue.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends one waiting event as soon as there is room. Loses nothing when dropped half-way.
    pub(super) async fn flush_one(&mut self) -> Result<(), Closed> {
        let room = self.sender.reserve().await.map_err(|_| Closed)?;
        if let Some(event) = self.waiting.pop_front() {
            room.send(event);
        }
        Ok(())
    }

    fn try_send(&self, event: SwarmEvent) -> Option<SwarmEvent> {
        match self.sender.try_send(event) {
            Ok(()) => None,
            // `flush_one` notices that the queue is closed.
            Err(TrySendError::Full(event) | TrySendError::Closed(event)) => Some(event),
        }
    }
}

fn is_droppable(event: &SwarmEvent) -> bool {
    match event {
        SwarmEvent::Gossip(gossip) => matches!(gossip.message(), Gossip::Heartbeat(_)),
        SwarmEvent::Rejected { .. }
        | SwarmEvent::OtherVersion { .. }
        | SwarmEvent::Offence { .. }
        | SwarmEvent::BrokeOff { .. }
        | SwarmEvent::Twin => true,
        SwarmEvent::Connected(_)
        | SwarmEvent::Disconnected(_)
        | SwarmEvent::Listening(_)
        | SwarmEvent::Reachable(_)
        | SwarmEvent::Echo(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::PeerId;

    fn connected(n: u8) -> SwarmEvent {
        SwarmEvent::Connected(PeerId([n; 32]))
    }

    fn rejected() -> SwarmEvent {
        SwarmEvent::Rejected { peer: None, reason: "test".into() }
    }

    #[tokio::test]
    async fn what_is_not_repeated_waits_in_order_and_the_rest_is_dropped() {
        let (sender, mut queue) = mpsc::channel(1);
        let mut outbox = Outbox::new(sender);
        for event in [connected(1), rejected(), connected(2), rejected(), connected(3)] {
            outbox.push(event);
        }
        for n in [1, 2, 3] {
            assert_eq!(queue.recv().await, Some(connected(n)));
            assert_eq!(outbox.is_waiting(), n < 3);
            outbox.flush_one().await.unwrap_or_else(|Closed| panic!("closed"));
        }
        drop(queue);
        assert_eq!(outbox.flush_one().await, Err(Closed));
    }
}
