//! Plan flow 6: the part that a peer which has rested still has in the plan in force.

use super::Driver;
use std::sync::Arc;
use tsnode_protocol::{Device, Group, ModelCard, PeerId};

impl Driver {
    /// A worker that has rested takes its part in the plan up again, where it lends something and should it still have one. What takes
    /// more memory than its owner lends by now is not loaded: another plan comes, or nobody can serve that.
    pub(super) async fn take_up_again(&mut self, devices: &[Device]) -> Option<()> {
        let Some(mut plan) = self.control.plan().filter(|_| !devices.is_empty()).cloned() else { return Some(()) };
        let (me, models) = (self.control.me(), &self.advert.models);
        plan.groups.retain(|group| {
            let has_room = has_room(group, me, models, devices);
            if !has_room {
                let (group, model) = (group.id, group.model);
                tracing::warn!(%group, %model, "not loaded here: its stage takes more memory than is lent now");
            }
            has_room
        });
        self.worker.adopt(Arc::new(plan), self.beside.clone()).await.ok()
    }
}

/// Whether these devices have memory for what a group has on them. What is not known of is for the worker to find.
fn has_room(group: &Group, me: PeerId, models: &[ModelCard], devices: &[Device]) -> bool {
    let Some(card) = models.iter().find(|card| card.id == group.model) else { return true };
    group.stages.iter().filter(|stage| stage.peer == me).all(|stage| {
        let served = devices.get(usize::from(stage.device)).and_then(|device| device.served(group.model));
        served.is_none_or(|served| card.shape.stage_bytes(stage.layers) <= served.memory_bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;
    use tsnode_protocol::{LayerRange, Phase, Stage};

    #[test]
    fn what_takes_more_than_is_lent_now_is_not_taken_up() {
        let (me, other) = (PeerId([1; 32]), PeerId([2; 32]));
        let (card, mut devices) = (sample::card(), sample::advert(0).devices);
        let stage = |peer, start, end| Stage { peer, device: 0, layers: LayerRange { start, end } };
        let alone = Group::new(card.id, Phase::Mixed, vec![stage(me, 0, 4)]);
        let shared = Group::new(card.id, Phase::Mixed, vec![stage(me, 0, 2), stage(other, 2, 4)]);
        let models = [card];
        let fit = |devices: &[Device]| [&alone, &shared].map(|group| has_room(group, me, &models, devices));
        assert_eq!(fit(&devices), [true, true]);
        // A MiB a layer, and two for each end of the model.
        devices[0].serves[0].memory_bytes = 4 << 20;
        assert_eq!(fit(&devices), [false, true]);
        assert!(has_room(&alone, other, &models, &devices), "others' memory is theirs");
        devices[0].serves.clear();
        assert_eq!(fit(&devices), [true, true], "that it lends none of it, the worker says");
    }
}
