//! Plan flow 6: what of a plan a peer loads, and takes up again once it has rested. A plan may be of a time when more memory was lent
//! here: this peer was started again with less, and its swarm has that plan still.
//!
//! Only what its owner said is held to. Where nobody said anything, half of what is free is lent, and that is less for a moment in which
//! another program runs: to refuse by it what was served until now would cost others the model, and save the owner nothing that he
//! asked for.

use super::Driver;
use std::collections::BTreeSet;
use std::sync::Arc;
use tsnode_protocol::{Device, Group, ModelCard, ModelId, PeerId, Plan};

impl Driver {
    /// A worker that has rested takes its part in the plan up again, where it lends something and should it still have one.
    pub(super) async fn take_up_again(&mut self, devices: &[Device]) -> Option<()> {
        let Some(plan) = self.control.plan().filter(|_| !devices.is_empty()).cloned() else { return Some(()) };
        let plan = self.within_limits(Arc::new(plan), devices);
        self.worker.adopt(plan, self.beside.clone()).await.ok()
    }

    /// A plan without what takes more memory on these devices than their owner said that they may lend: that is not loaded. Another plan
    /// comes, or nobody can serve that.
    pub(super) fn within_limits(&self, plan: Arc<Plan>, devices: &[Device]) -> Arc<Plan> {
        let lent = LentHere { me: self.control.me(), models: &self.advert.models, limited: &self.limited, devices };
        let Some(plan) = lent.without_too_large(&plan) else { return plan };
        Arc::new(plan)
    }
}

/// What a peer lends, to hold a plan against.
struct LentHere<'a> {
    me: PeerId,
    models: &'a [ModelCard],
    /// Models for which the owner said how much memory there is.
    limited: &'a BTreeSet<ModelId>,
    devices: &'a [Device],
}

impl LentHere<'_> {
    /// The plan as it is to be loaded, where that is another. It is said what is left out.
    fn without_too_large(&self, plan: &Plan) -> Option<Plan> {
        let is_too_large = |group: &Group| !self.has_room(group);
        let too_large: BTreeSet<_> = plan.groups.iter().filter(|group| is_too_large(group)).map(|g| g.id).collect();
        if too_large.is_empty() {
            return None;
        }
        for group in &too_large {
            tracing::warn!(
                %group,
                "not loaded here: its stage takes more memory than this peer was told to lend (--memory, a variable, the settings file, or \
                 tsnode limits); others have to hold it, or this peer has to be told more"
            );
        }
        let groups = plan.groups.iter().filter(|group| !too_large.contains(&group.id)).cloned().collect();
        Some(Plan { groups, ..plan.clone() })
    }

    /// Whether the devices have memory for what a group has on them. What is not known of is for the worker to find.
    fn has_room(&self, group: &Group) -> bool {
        let is_limited = |card: &&ModelCard| card.id == group.model && self.limited.contains(&card.id);
        let Some(card) = self.models.iter().find(is_limited) else { return true };
        group.stages.iter().filter(|stage| stage.peer == self.me).all(|stage| {
            let served = self.devices.get(usize::from(stage.device)).and_then(|device| device.served(group.model));
            served.is_none_or(|served| card.shape.stage_bytes(stage.layers) <= served.memory_bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;
    use tsnode_protocol::{Epoch, LayerRange, Phase, Stage, Term};

    #[test]
    fn what_takes_more_than_the_owner_said_is_not_loaded() {
        let (me, other) = (PeerId([1; 32]), PeerId([2; 32]));
        let (card, mut devices) = (sample::card(), sample::advert(0).devices);
        let stage = |peer, start, end| Stage { peer, device: 0, layers: LayerRange { start, end } };
        let alone = Group::new(card.id, Phase::Mixed, vec![stage(me, 0, 4)]);
        let shared = Group::new(card.id, Phase::Mixed, vec![stage(me, 0, 2), stage(other, 2, 4)]);
        let (models, said) = ([card], BTreeSet::from([alone.model]));
        let groups = vec![alone, shared];
        let (epoch, term) = (Epoch(1), Term(0));
        let plan = Plan { epoch, term, parent: None, groups, routes: vec![], chosen: vec![], reason: String::new() };
        let left_out = |me, limited: &BTreeSet<ModelId>, devices: &[Device]| {
            let lent = LentHere { me, models: &models, limited, devices };
            lent.without_too_large(&plan).map_or(0, |loaded| {
                assert_eq!(loaded.groups[..], plan.groups[1..], "the shared one");
                plan.groups.len() - loaded.groups.len()
            })
        };
        assert_eq!(left_out(me, &said, &devices), 0);
        // A MiB a layer, and two for each end of the model.
        devices[0].serves[0].memory_bytes = 4 << 20;
        assert_eq!(left_out(me, &said, &devices), 1);
        assert_eq!(left_out(me, &BTreeSet::new(), &devices), 0, "half of what was free is no word of the owner's");
        assert_eq!(left_out(other, &said, &devices), 0, "others' memory is theirs: the shared part fits");
        devices[0].serves.clear();
        assert_eq!(left_out(me, &said, &devices), 0, "that it lends none of it, the worker says");
    }
}
