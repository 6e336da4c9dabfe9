//! What the lent devices lack to hold a model: why there is no plan for it.

use super::{DevicePlace, ELEMENT, Model, cluster, pace, sharing};
use crate::{
    members::Members,
    scheduler::{
        cost::{Decode, Prefill},
        problem::{Problem, ProblemError, Space},
        slo::{Reference, Slo},
        workload::Workload,
    },
    traffic,
};
use serde::{Deserialize, Serialize};
use tsnode_protocol::{Bytes, ModelCard, ModelId, Tokens};

/// What is too little.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceShortfall {
    /// Memory for weights and one request (bytes).
    Memory {
        /// What a group must have.
        needs: u64,
        /// What the devices that can work together may use.
        lent: u64,
    },
    /// The same of a model that one device has to hold (bytes).
    MemoryOfOne {
        /// What a device must have.
        needs: u64,
        /// What the largest may use.
        lent: u64,
    },
    /// KV pages, in tokens of all layers.
    Kv {
        /// What one request may take.
        needs: u64,
        /// What all devices together hold; of a model that one has to hold, the one with most.
        holds: u64,
    },
}

/// A model for which the lent devices do not suffice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shortfall {
    /// What people call the model.
    pub model: String,
    /// The model's id: names need not differ.
    pub id: ModelId,
    /// What is missing.
    pub lack: DeviceShortfall,
}

/// Every model that some device is lent for and no group could hold, in the order of their ids.
#[must_use]
pub fn shortfalls(members: &Members<'_>) -> Vec<Shortfall> {
    let short = |(card, places): (&ModelCard, Vec<DevicePlace>)| {
        lack(card, &places, members).map(|lack| Shortfall { model: card.name.clone(), id: card.id, lack })
    };
    sharing::lent(members).filter_map(short).collect()
}

fn lack(card: &ModelCard, places: &[DevicePlace], members: &Members<'_>) -> Option<DeviceShortfall> {
    let model = Model::of_shape(card.name.clone(), card.shape, ELEMENT);
    let asked = traffic::together(card.id, members).and_then(|profile| profile.workload("as asked for"));
    let workload = asked.or_else(|| Workload::named("conversation"))?.within(Tokens(f64::from(card.shape.context)));
    let longest = workload.mean.longest;
    let per_token = f64::from(card.shape.layers) * card.shape.kv_elements_per_token_layer() as f64 * ELEMENT;
    let free = Reference { prefill: Prefill::default(), decode: Decode::default() };
    let space = Space { tensor_parallel: 1, repeat_hosts: false, ..Space::default() };
    let of = |cluster| Problem::new(cluster, model.clone(), workload.clone(), 1.0, Slo::default(), free, space);
    let lent = cluster(places, members, card.id)?;
    let is_enough = of(lent.clone()).is_ok_and(|problem| pace(&problem).is_some());
    // What memory suffices for may still lack KV pages.
    let mut unbounded = lent;
    unbounded.kinds.iter_mut().for_each(|kind| kind.pool = None);
    match of(unbounded) {
        _ if is_enough => None,
        Err(ProblemError::DoesNotFit(lack)) => {
            let [needs, lent] = [lack.need, lack.have].map(|bytes: Bytes| bytes.0.max(0.0).ceil() as u64);
            let is_whole = card.shape.whole;
            Some(if is_whole {
                DeviceShortfall::MemoryOfOne { needs, lent }
            } else {
                DeviceShortfall::Memory { needs, lent }
            })
        }
        Err(_) => None,
        Ok(_) => {
            let device = |(peer, n): &DevicePlace| members.get(peer)?.devices.get(usize::from(*n))?.served(card.id);
            let pool = |place: &DevicePlace| device(place).map(|served| served.kv_bytes);
            let joined: fn(u64, u64) -> u64 = if card.shape.whole { u64::max } else { u64::saturating_add };
            let pools: u64 = places.iter().filter_map(pool).fold(0, joined);
            let pools = pools.saturating_sub(card.shape.state_bytes);
            Some(DeviceShortfall::Kv { needs: longest.0.ceil() as u64, holds: (pools as f64 / per_token) as u64 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Advert, Device, PeerId};

    fn of(adverts: &[Advert]) -> Vec<DeviceShortfall> {
        let members = (0..).zip(adverts).map(|(n, a)| (PeerId([n; 32]), a)).collect();
        shortfalls(&members).into_iter().map(|s| s.lack).collect()
    }

    fn lends(memory_bytes: u64, kv_bytes: u64) -> Advert {
        let mut advert = sample::advert(0);
        let device = Device { memory_bytes, kv_bytes, ..advert.devices[0].clone() };
        advert.devices = vec![device.for_one(advert.models[0].id, None)];
        advert
    }

    #[test]
    fn what_suffices_lacks_nothing_and_who_lends_nothing_is_not_asked() {
        assert_eq!(of(&[lends(1 << 30, 1 << 28)]), []);
        assert_eq!(of(&[sample::gateway(0), Advert { devices: vec![], ..sample::advert(1) }]), []);
    }

    #[test]
    fn room_for_a_part_of_a_model_is_said_in_bytes() {
        // Four layers of a MiB, two MiB for each end.
        let [DeviceShortfall::Memory { needs, lent }] = of(&[lends(5 << 20, 1 << 20)])[..] else {
            panic!("memory is short")
        };
        assert!((8 << 20) < needs && lent <= 5 << 20, "{needs} {lent}");
    }

    #[test]
    fn what_one_has_to_hold_is_said_of_one() {
        let whole = |memory_bytes, kv_bytes| {
            let mut advert = lends(memory_bytes, kv_bytes);
            advert.models[0].shape.whole = true;
            advert
        };
        let both = |memory, kv| of(&[whole(memory, kv), whole(memory, kv)]);
        assert_eq!(both(1 << 30, 1 << 28), []);
        let [DeviceShortfall::MemoryOfOne { needs, lent }] = both(7 << 20, 1 << 20)[..] else {
            panic!("memory is short")
        };
        assert!((8 << 20) < needs && lent <= 7 << 20, "{needs} {lent}");
        // Two MiB in two devices are one for each.
        let kv = both(1 << 30, 1 << 20);
        assert!(matches!(kv[..], [DeviceShortfall::Kv { holds: 512, .. }]), "{kv:?}");
    }

    #[test]
    fn kv_that_holds_no_request_is_said_in_tokens() {
        // A token of four layers with four heads of 32 channels takes 2 KiB at 16 bits.
        let [DeviceShortfall::Kv { needs, holds }] = of(&[lends(1 << 30, 1 << 20)])[..] else { panic!("KV is short") };
        assert_eq!(holds, 512, "a MiB");
        assert!(holds < needs && needs <= 1024, "no request is longer than the context: {needs}");
    }
}
