//! Plan flow 4: what may go from devices' memory for a model that waits for its turn ([`super::swapping`]), and the swarm as it
//! would be without that.

use crate::{cards, members::Members, planner::live::LentRoom};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{Advert, Group, ModelId, PeerId};

/// Who waits, and whose memory may be had for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Swap {
    /// Models that are asked for and that nobody serves, the one that has waited longest first; but last those for which no place was
    /// found a while ago.
    pub waits: Vec<ModelId>,
    /// Those of them to whom is left what stands on their devices.
    pub claims: BTreeSet<ModelId>,
    /// Models that nobody asks for.
    pub idle: BTreeSet<ModelId>,
    /// Models whose turns are over, the one that has been there longest first.
    pub over: Vec<ModelId>,
}

/// Models by the devices that they have stages on.
type There = BTreeMap<(PeerId, u16), BTreeSet<ModelId>>;

impl Swap {
    /// For whom a place is to be looked for, and what goes for that: who has waited longest first, and of what stands on its devices
    /// as little as there is room without; where that does not help, all that may go there.
    pub fn tries(&self, members: &Members<'_>, standing: &[Group]) -> Vec<(ModelId, BTreeSet<ModelId>)> {
        let there = there(standing);
        let (mut tries, mut claimed) = (Vec::new(), BTreeSet::new());
        for comes in &self.waits {
            let beside = neighbours(*comes, members, &there);
            let yields = self.yields(&beside.difference(&claimed).copied().collect());
            let enough = yields.iter().find(|go| has_room(*comes, go, members, &there));
            let all = yields.last().filter(|all| Some(*all) != enough);
            tries.extend(enough.into_iter().chain(all).map(|go| (*comes, go.clone())));
            // A large one would never come if each place that it waits for were given away before the others are free.
            if enough.is_none() && self.claims.contains(comes) && has_room(*comes, &beside, members, &there) {
                claimed.extend(beside);
            }
        }
        tries
    }

    /// Whether nothing is left to wait for by a model for which no place was found: all may go that its devices need room of, or that
    /// would not be enough.
    pub fn is_in_vain(&self, comes: ModelId, members: &Members<'_>, standing: &[Group]) -> bool {
        let there = there(standing);
        let beside = neighbours(comes, members, &there);
        let has_room = |go: &BTreeSet<ModelId>| has_room(comes, go, members, &there);
        !has_room(&beside) || has_room(&BTreeSet::new()) || self.yields(&beside).iter().any(has_room)
    }

    /// Which of these may go: those that nobody asks for, and then one more each time.
    pub fn yields(&self, among: &BTreeSet<ModelId>) -> Vec<BTreeSet<ModelId>> {
        let mut go: BTreeSet<ModelId> = self.idle.intersection(among).copied().collect();
        let mut yields = vec![go.clone()];
        for model in self.over.iter().filter(|model| among.contains(*model)) {
            go.insert(*model);
            yields.push(go.clone());
        }
        yields.retain(|models| !models.is_empty());
        yields
    }
}

fn there(standing: &[Group]) -> There {
    let mut there = There::new();
    for group in standing {
        for stage in &group.stages {
            there.entry((stage.peer, stage.device)).or_default().insert(group.model);
        }
    }
    there
}

/// What stands on devices that serve a model, do not hold all, and do not keep it.
fn neighbours(model: ModelId, members: &Members<'_>, there: &There) -> BTreeSet<ModelId> {
    let mut beside = BTreeSet::new();
    for ((peer, device), models) in there {
        let device = members.get(peer).and_then(|advert| advert.devices.get(usize::from(*device)));
        let Some(device) = device.filter(|device| !device.holds_all() && device.served(model).is_some()) else {
            continue;
        };
        let may_go = |other: &&ModelId| device.served(**other).is_some_and(|served| !served.is_kept);
        beside.extend(models.iter().filter(may_go));
    }
    beside
}

/// Whether devices have memory for the whole of a model beside what stands on them, were it not for these.
fn has_room(model: ModelId, go: &BTreeSet<ModelId>, members: &Members<'_>, there: &There) -> bool {
    let mut room = LentRoom::default();
    for (peer, advert) in members {
        for (n, device) in (0..).zip(&advert.devices) {
            let Some(served) = device.served(model) else { continue };
            let stays = there.get(&(*peer, n)).into_iter().flatten().filter(|other| !go.contains(*other));
            let models: BTreeSet<ModelId> = stays.copied().chain([model]).collect();
            if device.holds(&models) {
                room.add(served);
            }
        }
    }
    let card = cards::agreed(model, members.values().copied());
    card.is_some_and(|card| room.holds(&card.shape))
}

/// The same peers as if devices that do not hold all models at once did not serve these, but where they are kept. Their KV pages
/// stay.
pub(super) fn without(members: &Members<'_>, hidden: &BTreeSet<ModelId>) -> BTreeMap<PeerId, Advert> {
    let of = |(peer, advert): (&PeerId, &&Advert)| {
        let mut advert = Advert::clone(advert);
        for device in advert.devices.iter_mut().filter(|device| !device.holds_all()) {
            let goes = |model: &ModelId, is_kept: bool| hidden.contains(model) && !is_kept;
            let gone = device.serves.iter().filter(|served| goes(&served.model, served.is_kept));
            let pages = gone.map(|served| served.kv_bytes).fold(0, u64::saturating_add);
            device.memory_bytes = device.memory_bytes.saturating_sub(pages);
            device.serves.retain(|served| !goes(&served.model, served.is_kept));
        }
        (*peer, advert)
    };
    members.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{LayerRange, Phase, Stage};

    fn set(models: &[u8]) -> BTreeSet<ModelId> {
        models.iter().map(|n| ModelId([*n; 16])).collect()
    }

    #[test]
    fn what_is_hidden_is_where_it_is_kept_or_all_are_and_its_pages_stay_elsewhere() {
        let peer = PeerId([0; 32]);
        let seen = |advert: &Advert| {
            let device = without(&[(peer, advert)].into(), &set(&[1])).remove(&peer).unwrap().devices.remove(0);
            let taken = advert.devices[0].memory_bytes - device.memory_bytes;
            (device.serves.iter().map(|served| served.model).collect::<BTreeSet<_>>(), taken)
        };
        let mut advert = sample::lends_several(0, sample::cards(2));
        assert_eq!(seen(&advert), (set(&[1, 2]), 0), "there is memory for both");
        let device = &mut advert.devices[0];
        let (pages, part) = (device.serves[0].kv_bytes, device.memory_bytes / 4 * 3);
        device.serves.iter_mut().for_each(|served| served.memory_bytes = part);
        assert_eq!(seen(&advert), (set(&[2]), pages));
        advert.devices[0].serves[0].is_kept = true;
        assert_eq!(seen(&advert), (set(&[1, 2]), 0));
    }

    /// A device with room for so many of these models' parts at once, each of all of which a model needs half.
    fn device(peer: u8, models: &[u8], at_once: u64) -> (PeerId, Advert) {
        let cards: Vec<_> = sample::cards(9).into_iter().filter(|card| models.contains(&card.id.0[0])).collect();
        let half = cards[0].shape.stage_bytes(cards[0].shape.all_layers()).div_ceil(2);
        let mut advert = sample::lends_several(0, cards);
        let device = &mut advert.devices[0];
        device.serves.iter_mut().for_each(|served| (served.memory_bytes, served.kv_bytes) = (half, 0));
        device.memory_bytes = at_once * half;
        (PeerId([peer; 32]), advert)
    }

    fn group(model: u8, peers: &[u8]) -> Group {
        let layers = LayerRange { start: 0, end: 4 };
        let stages = peers.iter().map(|peer| Stage { peer: PeerId([*peer; 32]), device: 0, layers }).collect();
        Group::new(ModelId([model; 16]), Phase::Mixed, stages)
    }

    fn tried(devices: &[(PeerId, Advert)], standing: &[Group], swap: &Swap) -> Vec<(u8, BTreeSet<ModelId>)> {
        let members: Members<'_> = devices.iter().map(|(peer, advert)| (*peer, advert)).collect();
        swap.tries(&members, standing).into_iter().map(|(comes, go)| (comes.0[0], go)).collect()
    }

    fn swap(waits: &[u8], idle: &[u8], over: &[u8]) -> Swap {
        let all = |models: &[u8]| models.iter().map(|n| ModelId([*n; 16])).collect::<Vec<_>>();
        Swap { waits: all(waits), claims: set(waits), idle: set(idle), over: all(over) }
    }

    #[test]
    fn a_model_comes_into_the_place_of_those_alone_that_stand_on_its_devices() {
        let pair = |first: u8, models: &[u8]| [device(first, models, 1), device(first + 1, models, 1)];
        let devices = [pair(1, &[1, 2]), pair(3, &[3, 4])].concat();
        let standing = [group(1, &[1, 2]), group(3, &[3, 4])];
        let swap = swap(&[2, 4], &[], &[3, 1]);
        assert_eq!(tried(&devices, &standing, &swap), [(2, set(&[1])), (4, set(&[3]))], "though 3 came before 1");
        let idle = Swap { idle: set(&[3]), over: Vec::new(), ..swap };
        assert_eq!(tried(&devices, &standing, &idle), [(4, set(&[3]))], "1 has its turn still");
    }

    #[test]
    fn what_a_large_model_waits_for_goes_to_no_other_meanwhile() {
        // The fifth needs both devices; on each two others take turns.
        let devices = [device(1, &[1, 2, 5], 1), device(2, &[3, 4, 5], 1)];
        let standing = [group(1, &[1]), group(3, &[2])];
        let waits = swap(&[5, 2, 4], &[], &[1]);
        assert_eq!(tried(&devices, &standing, &waits), [(5, set(&[1]))]);
        let both = swap(&[5, 2, 4], &[], &[1, 3]);
        assert_eq!(tried(&devices, &standing, &both)[0], (5, set(&[1, 3])));
        let is_in_vain = |swap: &Swap, model: u8| {
            let members: Members<'_> = devices.iter().map(|(peer, advert)| (*peer, advert)).collect();
            swap.is_in_vain(ModelId([model; 16]), &members, &standing)
        };
        assert!(!is_in_vain(&waits, 5) && is_in_vain(&both, 5), "for the third's turn to end, and then for nothing");
        assert!(is_in_vain(&waits, 2), "half of it has room at most");
        let late = Swap { claims: set(&[]), ..waits };
        assert_eq!(tried(&devices, &standing, &late), [(5, set(&[1])), (2, set(&[1]))], "it may never come");
    }
}
