//! Which model a request gets that names none: one for the whole swarm, since it follows from what all have heard.

use crate::cards;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tsnode_protocol::{Advert, ModelCard, ModelId};

/// The model of which the lent devices can hold the most bytes of weights, each as many as the model has: so one peer with a large
/// model outweighs many with a small one. Of two that are alike, the first by name and then by id.
#[must_use]
pub fn default_model<'a>(adverts: impl IntoIterator<Item = &'a Advert>) -> Option<&'a ModelCard> {
    let adverts: Vec<&Advert> = adverts.into_iter().collect();
    let all_agreed = cards::all_agreed(adverts.iter().copied());
    let mut held = BTreeMap::<ModelId, (u64, &ModelCard)>::new();
    for advert in &adverts {
        for card in &advert.models {
            let agreed = all_agreed.get(&card.id).copied().unwrap_or(card);
            let (held, agreed) = held.entry(card.id).or_insert((0, agreed));
            let weights = agreed.shape.stage_bytes(agreed.shape.all_layers());
            // Parts of a model that is not cut are of no use.
            let least = if agreed.shape.whole { weights } else { 0 };
            let served = advert.devices.iter().filter_map(|d| d.served(card.id)).filter(|s| s.memory_bytes >= least);
            *held = served.fold(*held, |sum, s| sum.saturating_add(s.memory_bytes.min(weights)));
        }
    }
    held.into_values().max_by_key(|(held, card)| (*held, Reverse((card.name.as_str(), card.id)))).map(|(_, card)| card)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::ModelShape;

    fn lends(id: u8, name: &str, layer_bytes: u64) -> Advert {
        let card = sample::card();
        let shape = ModelShape { layer_bytes, ..card.shape };
        sample::lends(0, ModelCard { id: ModelId([id; 16]), name: name.into(), shape, ..card })
    }

    fn default(adverts: &[Advert]) -> Option<&str> {
        default_model(adverts).map(|card| card.name.as_str())
    }

    #[test]
    fn many_with_a_small_model_do_not_outweigh_one_with_a_large_one() {
        let (large, small) = (lends(1, "large", 100 << 20), lends(2, "small", 1 << 20));
        let mut swarm = vec![small.clone(); 9];
        assert_eq!(default(&swarm), Some("small"), "it is the only one");
        swarm.push(large.clone());
        assert_eq!(default(&swarm), Some("large"));
        // Who lends nothing now still has its model, and a swarm of nothing else has a default.
        let paused = |advert: Advert| Advert { devices: vec![], ..advert };
        assert_eq!(default(&[small.clone(), paused(large.clone())]), Some("small"));
        assert_eq!(default(&[paused(large)]), Some("large"));
        assert_eq!((default(&[sample::gateway(0)]), default(&[])), (None, None));
    }

    #[test]
    fn a_model_that_is_not_cut_is_held_where_all_of_it_is() {
        // A device lends a GiB; its four layers take that, embedding and head four MiB more.
        let (mut large, small) = (lends(1, "large", 256 << 20), lends(2, "small", 1 << 20));
        assert_eq!(default(&[large.clone(), small.clone()]), Some("large"));
        large.models[0].shape.whole = true;
        assert_eq!(default(&[large.clone(), small.clone()]), Some("small"));
        large.devices[0].serves[0].memory_bytes += 4 << 20;
        assert_eq!(default(&[large, small]), Some("large"));
    }

    #[test]
    fn whoever_hears_the_same_has_the_same_in_whatever_order() {
        let [a, b] = [lends(1, "b", 1 << 20), lends(2, "a", 1 << 20)];
        assert_eq!(default(&[a.clone(), b.clone()]), Some("a"));
        assert_eq!(default(&[b, a]), Some("a"));
    }
}
