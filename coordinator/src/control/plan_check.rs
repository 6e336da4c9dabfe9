//! Plan flow 5: whether a plan can be carried out at all, by a peer's own view.

use crate::{cards, members::Members};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tsnode_protocol::{Group, ModelId, ModelShape, PeerId};

/// Why a plan cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Infeasible {
    /// It has no group.
    Empty,
    /// It names a peer that is not there.
    NoPeer(PeerId),
    /// It names a device the peer does not have.
    NoDevice(PeerId),
    /// It gives a peer a model it does not have.
    NoModel(PeerId),
    /// It gives a device more than one stage of a model.
    Twice(PeerId),
    /// It gives a device more weights than a model's part of its memory, or models of which it does not hold all at once.
    Memory(PeerId),
    /// A group's stages end before the model's last layer, or after.
    Layers,
    /// Several stages of a model that one has to hold.
    Whole,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no group"),
            Self::NoPeer(p) => write!(f, "{} is not there", p.short()),
            Self::NoDevice(p) => write!(f, "{} has no such device", p.short()),
            Self::NoModel(p) => write!(f, "{} has not that model", p.short()),
            Self::Twice(p) => write!(f, "a device of {} has two stages of one model", p.short()),
            Self::Memory(p) => write!(f, "{} has too little memory", p.short()),
            Self::Layers => f.write_str("layers not covered"),
            Self::Whole => f.write_str("several stages of a model that one has to hold"),
        }
    }
}

/// Checks that every stage has its peer, device, model and memory, beside all others there, and every group all layers.
pub(super) fn feasible(groups: &[Group], members: &Members<'_>) -> Result<(), Infeasible> {
    if groups.is_empty() {
        return Err(Infeasible::Empty);
    }
    let (mut used, mut models) = (BTreeSet::new(), BTreeMap::<_, BTreeSet<ModelId>>::new());
    let mut shapes = BTreeMap::new();
    for group in groups {
        // The sizes by which it was planned, whatever a stage's own peer says.
        let agreed = || cards::agreed(group.model, members.values().copied()).map(|card| card.shape);
        let shape: Option<ModelShape> = *shapes.entry(group.model).or_insert_with(agreed);
        let mut end = 0;
        let mut layers = 0;
        for stage in &group.stages {
            let peer = stage.peer;
            let advert = members.get(&peer).ok_or(Infeasible::NoPeer(peer))?;
            let device = advert.devices.get(usize::from(stage.device)).ok_or(Infeasible::NoDevice(peer))?;
            let has = advert.models.iter().any(|card| card.id == group.model);
            let shape = shape.filter(|_| has).ok_or(Infeasible::NoModel(peer))?;
            let served = device.served(group.model).ok_or(Infeasible::NoModel(peer))?;
            if group.stages.len() > shape.most_stages() as usize {
                return Err(Infeasible::Whole);
            }
            if !used.insert((peer, stage.device, group.model)) {
                return Err(Infeasible::Twice(peer));
            }
            let bytes = shape.stage_bytes(stage.layers);
            let beside = models.entry((peer, stage.device)).or_default();
            beside.insert(group.model);
            if bytes > served.memory_bytes || !device.holds(beside) {
                return Err(Infeasible::Memory(peer));
            }
            end = stage.layers.end;
            layers = shape.layers;
        }
        if end != layers {
            return Err(Infeasible::Layers);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Advert, LayerRange, Phase, Stage};

    fn on(model: u8, layers: std::ops::Range<u32>) -> Group {
        let layers = LayerRange { start: layers.start, end: layers.end };
        Group::new(ModelId([model; 16]), Phase::Mixed, vec![Stage { peer: PeerId([0; 32]), device: 0, layers }])
    }

    fn found(advert: &Advert, groups: &[Group]) -> Result<(), Infeasible> {
        feasible(groups, &[(PeerId([0; 32]), advert)].into())
    }

    #[test]
    fn one_stage_holds_a_model_that_is_not_cut() {
        let (mut advert, peer) = (sample::advert(0), PeerId([0; 32]));
        advert.models[0].shape.whole = true;
        let part = |start, end| Stage { peer, device: 0, layers: LayerRange { start, end } };
        let cut = Group::new(ModelId([1; 16]), Phase::Mixed, vec![part(0, 2), part(2, 4)]);
        assert_eq!(found(&advert, &[cut]), Err(Infeasible::Whole));
        assert_eq!(found(&advert, &[on(1, 0..4)]), Ok(()));
    }

    #[test]
    fn a_device_holds_groups_of_several_models_as_far_as_its_memory_goes() {
        let (both, peer) = (sample::lends_several(0, sample::cards(2)), PeerId([0; 32]));
        let groups = [on(1, 0..4), on(2, 0..4)];
        assert_eq!(found(&both, &groups), Ok(()));
        assert_eq!(found(&both, &[on(1, 0..4), on(1, 0..4)]), Err(Infeasible::Twice(peer)));
        assert_eq!(found(&both, &[on(3, 0..4)]), Err(Infeasible::NoModel(peer)));
        // Each model has eight MiB of weights: its part, and then both at once, beside two of pages.
        let with = |device: u64, part: u64| {
            let mut advert = both.clone();
            advert.devices[0].memory_bytes = device << 20;
            for served in &mut advert.devices[0].serves {
                (served.memory_bytes, served.kv_bytes) = (part << 20, 2 << 20);
            }
            advert
        };
        assert_eq!(found(&with(20, 10), &groups), Ok(()));
        assert_eq!(found(&with(20, 7), &groups), Err(Infeasible::Memory(peer)));
        assert_eq!(found(&with(15, 10), &groups), Err(Infeasible::Memory(peer)));
        assert_eq!(found(&with(15, 10), &groups[..1]), Ok(()), "one at a time");
        assert_eq!(found(&with(11, 10), &groups[1..]), Err(Infeasible::Memory(peer)), "the other's pages stay");
    }

    #[test]
    fn layers_are_those_that_most_say() {
        let peer = |n: u8| PeerId([n; 32]);
        let (own, mut lies) = (sample::lends_several(0, sample::cards(1)), sample::lends_several(0, sample::cards(1)));
        lies.models[0].shape.layers = 2;
        let at = |n: u8, start, end| Stage { peer: peer(n), device: 0, layers: LayerRange { start, end } };
        let group = Group::new(ModelId([1; 16]), Phase::Mixed, vec![at(0, 0, 2), at(2, 2, 4)]);
        let members: Members<'_> = [(peer(0), &own), (peer(1), &own), (peer(2), &lies)].into();
        assert_eq!(feasible(&[group], &members), Ok(()));
        let short = Group::new(ModelId([1; 16]), Phase::Mixed, vec![at(2, 0, 2)]);
        assert_eq!(feasible(&[short], &members), Err(Infeasible::Layers));
    }

    #[test]
    fn who_has_a_model_that_a_device_does_not_serve_gets_no_stage_of_it_there() {
        let mut advert = sample::lends_several(0, sample::cards(2));
        advert.devices[0].serves.retain(|served| served.model == ModelId([1; 16]));
        assert_eq!(found(&advert, &[on(2, 0..4)]), Err(Infeasible::NoModel(PeerId([0; 32]))));
    }
}
