//! Plan flow 5: whether a plan can be carried out at all, by a peer's own view.

use crate::members::Members;
use std::collections::BTreeMap;
use std::fmt;
use tsnode_protocol::{Group, PeerId};

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
    /// It gives a device more than one stage.
    Twice(PeerId),
    /// It gives a device more weights than it has memory.
    Memory(PeerId),
    /// A group's stages end before the model's last layer, or after.
    Layers,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no group"),
            Self::NoPeer(p) => write!(f, "{} is not there", p.short()),
            Self::NoDevice(p) => write!(f, "{} has no such device", p.short()),
            Self::NoModel(p) => write!(f, "{} has not that model", p.short()),
            Self::Twice(p) => write!(f, "a device of {} is used twice", p.short()),
            Self::Memory(p) => write!(f, "{} has too little memory", p.short()),
            Self::Layers => f.write_str("layers not covered"),
        }
    }
}

/// Checks that every stage has its peer, device, model and memory, and every group all layers.
pub(super) fn feasible(groups: &[Group], members: &Members<'_>) -> Result<(), Infeasible> {
    if groups.is_empty() {
        return Err(Infeasible::Empty);
    }
    let mut used = BTreeMap::new();
    for group in groups {
        let mut end = 0;
        let mut layers = 0;
        for stage in &group.stages {
            let peer = stage.peer;
            let advert = members.get(&peer).ok_or(Infeasible::NoPeer(peer))?;
            let device = advert.devices.get(usize::from(stage.device)).ok_or(Infeasible::NoDevice(peer))?;
            let card = advert.models.iter().find(|m| m.id == group.model).ok_or(Infeasible::NoModel(peer))?;
            if used.insert((peer, stage.device), ()).is_some() {
                return Err(Infeasible::Twice(peer));
            }
            if card.shape.stage_bytes(stage.layers) > device.memory_bytes {
                return Err(Infeasible::Memory(peer));
            }
            end = stage.layers.end;
            layers = card.shape.layers;
        }
        if end != layers {
            return Err(Infeasible::Layers);
        }
    }
    Ok(())
}
