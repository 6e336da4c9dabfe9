//! What peers say, and whom it reaches.

use super::{ARCHIVE, Due, World};
use crate::simulation::{byzantine::Lie, chronicle::Note};
use std::sync::Arc;
use tsnode_protocol::{Gossip, Heartbeat, PeerId, Verified};

impl World {
    pub(super) fn publish(&mut self, n: usize, gossip: Gossip, half: Option<usize>) {
        let honest = self.peers[n].lie.is_none();
        let id = self.peers[n].id;
        match &gossip {
            Gossip::Endorsement(e) => {
                self.checks.endorsed_by(e.plan, id);
                if honest {
                    self.checks.nobody_endorses_twice(self.now, id, (e.epoch, e.term), e.plan);
                }
            }
            Gossip::Plan(plan) => {
                self.last_proposed = (plan.epoch, plan.term, plan.id());
                self.note(Note::Proposed(n, plan.epoch, plan.term, plan.id(), plan.reason.clone()));
            }
            _ => {}
        }
        // A message that others would refuse is not sent.
        let Ok(message) = self.peers[n].seal(gossip) else { return };
        if matches!(message.message(), Gossip::Advert(_)) {
            self.adverts.push(message.clone());
        }
        self.peers[n].hear_self(message.clone());
        // Now and then it is lost on its first steps, for everybody.
        if self.net.lost == 0.0 || self.rng.unit() > self.net.lost / 2.0 {
            self.spread(n, &message, half);
        }
    }

    /// Sends heartbeats to a few peers.
    pub(super) fn send_heartbeats(
        &mut self,
        n: usize,
        to: &[PeerId],
        own: Option<Heartbeat>,
        mut heard: Vec<Verified<Gossip>>,
    ) {
        let id = self.peers[n].id;
        if self.peers[n].lie == Some(Lie::Deaf) {
            heard.clear();
        }
        if let Some(own) = own.and_then(|own| self.peers[n].seal(Gossip::Heartbeat(own)).ok()) {
            self.peers[n].heartbeats_to_self(own.clone());
            heard.insert(0, own);
        }
        let bytes: u64 = heard.iter().map(|word| word.proof().to_bytes().len() as u64).sum();
        let words = Arc::new(heard);
        for to in to.iter().filter_map(|to| self.number(*to)).collect::<Vec<_>>() {
            let said = self.checks.figures.said.entry("direct heartbeat").or_default();
            (said.0, said.1) = (said.0 + 1, said.1 + bytes);
            if !self.peers[to].is_running() {
                continue;
            }
            for late in self.net.deliveries(n, to, &mut self.rng).into_iter().flatten() {
                let straight = self.checks.figures.straight.entry(to).or_default();
                *straight += bytes;
                self.put(self.now + late, Due::Heartbeats(to as u32, id, words.clone()));
            }
        }
    }

    /// Sends a message to everybody, or to every second peer.
    pub fn spread(&mut self, from: usize, message: &Verified<Gossip>, half: Option<usize>) {
        let bytes = message.proof().to_bytes().len() as u64;
        let said = self.checks.figures.said.entry(message.message().kind()).or_default();
        (said.0, said.1) = (said.0 + 1, said.1 + bytes);
        if self.archive.len() < ARCHIVE || self.rng.below(50) == 0 {
            let place = self.rng.below(ARCHIVE);
            match self.archive.get_mut(place) {
                Some(old) => *old = message.clone(),
                None => self.archive.push(message.clone()),
            }
        }
        let message = Arc::new(message.clone());
        for to in 0..self.peers.len() {
            if to == from || !self.peers[to].is_running() || half.is_some_and(|h| to % 2 != h) {
                continue;
            }
            for late in self.net.deliveries(from, to, &mut self.rng).into_iter().flatten() {
                self.checks.figures.heard += 1;
                self.checks.figures.heard_bytes += bytes;
                self.put(self.now + late, Due::Message(to as u32, message.clone()));
            }
        }
    }
}
