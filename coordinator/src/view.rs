//! What a gateway knows of the swarm, and routes by.

use crate::cards;
use crate::planner::live;
use crate::witnesses::Witnesses;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_protocol::{Advert, Group, GroupId, Load, ModelId, PeerId, Plan};

/// What a gateway routes by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The adopted plan.
    pub plan: Option<Arc<Plan>>,
    /// Groups whose leaders say they take requests, with what they have to do.
    pub up: BTreeMap<GroupId, Load>,
    /// Adverts of all members, by peer.
    pub adverts: Arc<BTreeMap<PeerId, Advert>>,
    /// Who led prefill and decode where the KV between them was found wrong, or may have been: such prompts are computed where they
    /// are decoded.
    pub barred: Arc<BTreeSet<(PeerId, PeerId)>>,
    /// What other gateways say of groups whose claims are in doubt.
    pub witnesses: Arc<Witnesses>,
    /// Peers whose models share pages of which few are free now, whoever has them: a group there says what its model may count on, and
    /// may have to wait for it.
    pub short: Arc<BTreeSet<PeerId>>,
}

/// Pages are short where fewer than one in so many is free: answers may have to wait for others' ends.
const SHORT: u64 = 8;

impl View {
    /// Whether few of the pages are free that something is said of.
    #[must_use]
    pub fn lacks_pages(load: &Load) -> bool {
        u64::from(load.free_pages) * SHORT < u64::from(load.total_pages)
    }

    /// Those of which this is known that share pages which are short.
    #[must_use]
    pub fn short_of<'a>(peers: impl IntoIterator<Item = (PeerId, &'a Advert, &'a Load)>) -> BTreeSet<PeerId> {
        let shares = |advert: &Advert| advert.devices.iter().any(|device| device.serves.len() > 1);
        let short = peers.into_iter().filter(|(_, advert, load)| Self::lacks_pages(load) && shares(advert));
        short.map(|(peer, ..)| peer).collect()
    }

    /// A group of the plan.
    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.plan.as_ref()?.group(id)
    }

    /// Whether KV between two groups was found wrong, or may have been.
    pub(crate) fn is_barred(&self, prefill: &Group, decode: &Group) -> bool {
        prefill.leader().zip(decode.leader()).is_some_and(|pair| self.barred.contains(&pair))
    }

    /// Whether every peer of a group is there.
    pub(crate) fn is_whole(&self, group: &Group) -> bool {
        group.stages.iter().all(|stage| self.adverts.contains_key(&stage.peer))
    }

    /// Models that may have to yield their memory to others, on some device. Those for which devices have too little are not waited
    /// for.
    pub(crate) fn yielding(&self) -> BTreeSet<ModelId> {
        let scarce = self.adverts.values().flat_map(|advert| &advert.devices).filter(|device| !device.holds_all());
        let models: BTreeSet<ModelId> = scarce.flat_map(|device| &device.serves).map(|served| served.model).collect();
        // Most views have none, and a view is made whenever anybody says anything.
        if models.is_empty() {
            return models;
        }
        let room = live::weights_room(self.adverts.values());
        let all_agreed = cards::all_agreed(self.adverts.values());
        let may_fit = |model: &ModelId| {
            let sizes = all_agreed.get(model).map(|card| &card.shape);
            sizes.is_some_and(|shape| room.get(model).is_some_and(|room| room.holds(shape)))
        };
        models.into_iter().filter(may_fit).collect()
    }

    /// Whether no group of a model takes requests.
    pub(crate) fn is_down(&self, model: ModelId) -> bool {
        !self.up.keys().any(|id| self.group(*id).is_some_and(|group| group.model == model))
    }

    /// Without the groups that have lost a peer: their leaders may not have noticed yet.
    pub(crate) fn of_whole_groups(mut self) -> Self {
        let up = std::mem::take(&mut self.up);
        let group = |id: &GroupId| self.plan.as_ref().and_then(|plan| plan.group(*id));
        let whole = up.into_iter().filter(|(id, _)| group(id).is_none_or(|group| self.is_whole(group)));
        self.up = whole.collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_somebody_made_up_are_looked_at_once_and_yield_to_each_other() {
        let adverts = cards::made_up::adverts();
        let models = adverts.iter().map(|(_, advert)| advert.models.len()).sum::<usize>();
        let view = View { adverts: Arc::new(adverts.into_iter().collect()), ..View::default() };
        assert_eq!(view.yielding().len(), models);
        assert!(cards::made_up::is_seen_once(|_| view.yielding()));
    }
}
