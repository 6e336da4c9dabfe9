//! Who is in the swarm and where their data plane listens: written by the driver, read by everyone who dials.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use tsnode_coordinator::{
    cards::{self, SaidCard},
    settings::SwarmSettings,
};
use tsnode_protocol::{Advert, BatchPolicy, Group, LayerProfile, ModelId, PeerId, PolicyChoice, Stage};

/// The latest adverts by peer.
pub type Adverts = Arc<BTreeMap<PeerId, Advert>>;

/// What the plan that requests are routed by has chosen, of what members have left to measurement.
pub type ChosenPolicies = Arc<Vec<PolicyChoice>>;

/// A reader of the latest adverts.
#[derive(Clone, Debug)]
pub struct Roster {
    adverts: watch::Receiver<Adverts>,
    chosen: watch::Receiver<ChosenPolicies>,
}

/// The ends that write a roster.
#[derive(Debug)]
pub struct RosterWriter {
    /// All adverts.
    pub adverts: watch::Sender<Adverts>,
    /// What the plan has chosen.
    pub chosen: watch::Sender<ChosenPolicies>,
}

impl Roster {
    /// A roster and what writes it.
    #[must_use]
    pub fn channel() -> (RosterWriter, Self) {
        let (said, adverts) = watch::channel(Adverts::default());
        let (chose, chosen) = watch::channel(ChosenPolicies::default());
        (RosterWriter { adverts: said, chosen: chose }, Self { adverts, chosen })
    }

    /// All of them as they are now.
    #[must_use]
    pub fn adverts(&self) -> Adverts {
        self.adverts.borrow().clone()
    }

    /// Resolves when somebody has said something new since the last time, or a plan chosen otherwise; `false` when nobody will any
    /// more.
    pub async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.adverts.changed() => changed.is_ok(),
            changed = self.chosen.changed() => changed.is_ok(),
        }
    }

    /// Where `peer`'s data plane listens; empty for a peer not known.
    #[must_use]
    pub fn data_addresses(&self, peer: PeerId) -> Vec<SocketAddr> {
        self.adverts.borrow().get(&peer).map(|a| a.data_addresses.clone()).unwrap_or_default()
    }

    /// What was measured of a group's model on the devices of its stages, as far as it was.
    #[must_use]
    pub fn profiles(&self, group: &Group) -> Vec<LayerProfile> {
        let adverts = self.adverts.borrow();
        let device = |stage: &Stage| adverts.get(&stage.peer)?.devices.get(usize::from(stage.device));
        group.stages.iter().filter_map(|stage| device(stage)?.profile(group.model).copied()).collect()
    }

    /// Whether a device of one of a group's stages serves other models as well.
    #[must_use]
    pub fn shares_devices(&self, group: &Group) -> bool {
        let adverts = self.adverts.borrow();
        let device = |stage: &Stage| adverts.get(&stage.peer)?.devices.get(usize::from(stage.device));
        group.stages.iter().any(|stage| device(stage).is_some_and(|device| device.serves.len() > 1))
    }

    /// How groups of a model form their steps, as members have set, or as the plan has chosen where they left that to it.
    #[must_use]
    pub fn batch_policy(&self, model: ModelId) -> BatchPolicy {
        let settings = SwarmSettings::of(self.adverts.borrow().values());
        settings.batched(model, &self.chosen.borrow())
    }

    /// All peers but `me` with a data plane, and where it listens.
    #[must_use]
    pub fn others(&self, me: PeerId) -> Vec<(PeerId, Vec<SocketAddr>)> {
        let adverts = self.adverts.borrow();
        let others = adverts.iter().filter(|(peer, a)| **peer != me && !a.data_addresses.is_empty());
        others.map(|(peer, a)| (*peer, a.data_addresses.clone())).collect()
    }

    /// To whom the link from `me` counts: KV, activations, tokens and weights come from a host that lends, or go to one. Nothing that is
    /// planned goes from one gateway to another.
    #[must_use]
    pub fn worth_measuring(&self, me: PeerId) -> BTreeSet<PeerId> {
        let adverts = self.adverts.borrow();
        let lends = |a: &Advert| !(a.devices.is_empty() && a.encoders.is_empty());
        let is_lender = adverts.get(&me).is_none_or(lends);
        let others = adverts.iter().filter(|(peer, a)| **peer != me && (is_lender || lends(a)));
        others.map(|(peer, _)| *peer).collect()
    }

    /// Peers that say they have `model`.
    #[must_use]
    pub fn holders(&self, model: ModelId) -> Vec<PeerId> {
        let has = |a: &Advert| a.models.iter().any(|m| m.id == model);
        self.adverts.borrow().iter().filter(|(_, a)| has(a)).map(|(peer, _)| *peer).collect()
    }

    /// Peers that say they lend this encoder now.
    #[must_use]
    pub fn encoding(&self, model: ModelId) -> Vec<PeerId> {
        let lends = |a: &Advert| a.encoders.iter().any(|card| card.id == model);
        self.adverts.borrow().iter().filter(|(_, a)| lends(a)).map(|(peer, _)| *peer).collect()
    }

    /// What peers say that `model` is, what most say first.
    #[must_use]
    pub fn cards(&self, model: ModelId) -> Vec<SaidCard> {
        cards::said(model, self.adverts.borrow().iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;

    #[test]
    fn a_link_counts_where_one_of_its_ends_lends() {
        let (writer, roster) = Roster::channel();
        let [gateway, other, lender, newcomer] = [1, 2, 3, 4].map(|n| PeerId([n; 32]));
        let adverts = [(gateway, sample::gateway(1)), (other, sample::gateway(2)), (lender, sample::advert(3))];
        writer.adverts.send_replace(Arc::new(BTreeMap::from(adverts)));
        assert_eq!(roster.worth_measuring(gateway), BTreeSet::from([lender]));
        assert_eq!(roster.worth_measuring(lender), BTreeSet::from([gateway, other]));
        assert_eq!(roster.worth_measuring(newcomer).len(), 3, "it has not heard itself yet");
    }
}
