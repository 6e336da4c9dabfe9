//! What members say that a model is. An id is made of a model's weights and of the files that its answers depend on, but who does not
//! have the weights cannot tell by it which of two cards is the model's own: a holder's manifest tells, and until then what most say.

#[cfg(test)]
pub(crate) mod made_up;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_protocol::{Advert, ModelCard, ModelId, ModelOrigin, PeerId};

/// A card of a model, and who says so. Names are everybody's own: it has the first one's.
#[derive(Clone, Debug, PartialEq)]
pub struct SaidCard {
    /// What it says.
    pub card: ModelCard,
    /// Peers whose adverts have this card.
    pub by: Vec<PeerId>,
}

/// What members say that a model is, what most say first; of others the first member's.
#[must_use]
pub fn said<'a>(model: ModelId, members: impl IntoIterator<Item = (&'a PeerId, &'a Advert)>) -> Vec<SaidCard> {
    let mut all: Vec<SaidCard> = Vec::new();
    for (peer, advert) in members {
        // Nobody says it twice.
        let Some(card) = advert.models.iter().find(|card| card.id == model) else { continue };
        let is_same = |said: &&mut SaidCard| said.card.shape == card.shape && said.card.files == card.files;
        match all.iter_mut().find(is_same) {
            Some(said) => said.by.push(*peer),
            None => all.push(SaidCard { card: card.clone(), by: vec![*peer] }),
        }
    }
    sort(&mut all);
    all
}

/// The card of a model whose sizes most members say, of those that say them the first's: by these is planned. Sizes are not in an id.
#[must_use]
pub fn agreed<'a>(model: ModelId, adverts: impl IntoIterator<Item = &'a Advert>) -> Option<&'a ModelCard> {
    let mut all = Vec::new();
    // Nobody says it twice.
    let own = |advert: &'a Advert| advert.models.iter().find(|card| card.id == model);
    adverts.into_iter().filter_map(own).for_each(|card| count(&mut all, card));
    most(all)
}

/// The same of every model: what a member says is looked at once, however many models there are.
#[must_use]
pub fn all_agreed<'a>(adverts: impl IntoIterator<Item = &'a Advert>) -> BTreeMap<ModelId, &'a ModelCard> {
    let mut all = BTreeMap::<ModelId, Vec<(&'a ModelCard, usize)>>::new();
    for advert in adverts {
        let mut said = BTreeSet::new();
        for card in &advert.models {
            // Nobody says it twice.
            if said.insert(card.id) {
                count(all.entry(card.id).or_default(), card);
            }
        }
    }
    all.into_iter().filter_map(|(model, said)| Some((model, most(said)?))).collect()
}

/// One more says so.
fn count<'a>(all: &mut Vec<(&'a ModelCard, usize)>, card: &'a ModelCard) {
    match all.iter_mut().find(|(known, _)| known.shape == card.shape) {
        Some((_, count)) => *count += 1,
        None => all.push((card, 1)),
    }
}

fn most(all: Vec<(&ModelCard, usize)>) -> Option<&ModelCard> {
    // Of those that are said as often, the first.
    all.into_iter().rev().max_by_key(|(_, count)| *count).map(|(card, _)| card)
}

/// What somebody says, with the sizes of models that this peer has itself as their own files say them: of these it knows better, however
/// many say otherwise. Says whether that makes it another.
pub fn correct(said: &mut Arc<Advert>, own: &Advert) -> bool {
    let known = |card: &ModelCard| own.models.iter().find(|known| known.id == card.id).map(|known| known.shape);
    let is_other = |card: &ModelCard| known(card).is_some_and(|shape| shape != card.shape);
    if !said.models.iter().any(is_other) {
        return false;
    }
    for card in &mut Arc::make_mut(said).models {
        card.shape = known(card).unwrap_or(card.shape);
    }
    true
}

/// Somebody gave a manifest, and this is what fits it: with a card that does, no other is the model's own, and that is known now. Who
/// gives one that fits none is not believed in what he says either. Who gave it comes first among those who say so.
pub fn heard(all: &mut Vec<SaidCard>, from: PeerId, fits: impl Fn(&ModelCard) -> bool) -> bool {
    if let Some(own) = all.iter().position(|said| fits(&said.card)) {
        all.swap(0, own);
        all.truncate(1);
        // Who has just answered is there.
        let by = &mut all[0].by;
        if let Some(at) = by.iter().position(|peer| *peer == from) {
            by[..=at].rotate_right(1);
        }
        return true;
    }
    all.iter_mut().for_each(|said| said.by.retain(|by| *by != from));
    all.retain(|said| !said.by.is_empty());
    sort(all);
    false
}

/// Where those who have a model say that it is from, as most of them say it. It is gated where any of them says so: who has it from
/// somebody that does not know is no reason to give on what may not be given on, and a mark that is false keeps it from nobody who has
/// a giver.
#[must_use]
pub fn origin<'a>(model: ModelId, adverts: impl IntoIterator<Item = &'a Advert>) -> Option<ModelOrigin> {
    let mut all: Vec<(&ModelOrigin, usize)> = Vec::new();
    let mut is_gated = false;
    for origin in adverts.into_iter().filter_map(|advert| advert.origin(model)) {
        is_gated |= origin.is_gated;
        let is_same =
            |(known, _): &&mut (&ModelOrigin, usize)| known.source == origin.source && known.licence == origin.licence;
        match all.iter_mut().find(is_same) {
            Some((_, count)) => *count += 1,
            None => all.push((origin, 1)),
        }
    }
    // Of those that are said as often, the first.
    let (most, _) = all.into_iter().rev().max_by_key(|(_, count)| *count)?;
    Some(ModelOrigin { is_gated, is_given: false, ..most.clone() })
}

fn sort(all: &mut [SaidCard]) {
    all.sort_by_key(|said| Reverse(said.by.len()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::ModelFile;

    /// An advert of the model with this template.
    fn with(template: u8) -> Advert {
        let file = ModelFile { name: "chat_template.jinja".into(), bytes: 1, hash: [template; 32] };
        let card = ModelCard { files: vec![file], ..sample::card() };
        // Who says it more than once counts once.
        Advert { models: vec![card; usize::from(template)], ..sample::advert(0) }
    }

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// Who says what, by the templates of peers 0, 1 and so on.
    fn by(templates: &[u8]) -> Vec<SaidCard> {
        let members: Vec<(PeerId, Advert)> = (0..).zip(templates).map(|(n, t)| (peer(n), with(*t))).collect();
        said(sample::card().id, members.iter().map(|(peer, advert)| (peer, advert)))
    }

    fn has(template: u8) -> impl Fn(&ModelCard) -> bool {
        move |card| card.files[0].hash == [template; 32]
    }

    #[test]
    fn what_most_say_comes_before_what_the_first_says() {
        assert_eq!(by(&[]), []);
        let all = by(&[9, 1, 1]);
        assert_eq!(all.iter().map(|said| said.by.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(has(1)(&all[0].card) && all[0].by == [peer(1), peer(2)]);
        assert!(has(9)(&by(&[9, 1])[0].card), "where as many say both, the first");
    }

    /// An advert of the model with so many layers, said more than once.
    fn sized(layers: u32) -> Advert {
        let card = sample::card();
        let shape = tsnode_protocol::ModelShape { layers, ..card.shape };
        Advert { models: vec![ModelCard { shape, ..card }; layers as usize], ..sample::advert(0) }
    }

    #[test]
    fn by_the_sizes_that_most_say_is_planned() {
        let of = |layers: &[u32]| {
            let adverts: Vec<Advert> = layers.iter().map(|layers| sized(*layers)).collect();
            let one = agreed(sample::card().id, &adverts);
            assert_eq!(one, all_agreed(&adverts).values().next().copied());
            one.map(|card| card.shape.layers)
        };
        assert_eq!((of(&[]), of(&[9, 4, 4]), of(&[9, 4])), (None, Some(4), Some(9)));
        assert_eq!(agreed(ModelId([99; 16]), &[sized(4)]), None);
    }

    #[test]
    fn who_has_a_model_knows_its_sizes_better_than_all_who_say_otherwise() {
        let (own, mut said) = (sized(4), Arc::new(sized(9)));
        assert!(correct(&mut said, &own) && said.models.iter().all(|card| card.shape == own.models[0].shape));
        assert!(!correct(&mut said, &own), "it is as it should be");
        let mut other = Arc::new(sized(9));
        assert!(!correct(&mut other, &sample::gateway(0)) && other.models[0].shape.layers == 9, "it has none");
    }

    #[test]
    fn an_origin_is_what_most_say_and_gated_where_anybody_says_so() {
        let from = |source: &str, is_gated: bool| {
            let (model, source) = (sample::card().id, source.to_owned());
            let origin = ModelOrigin { model, source, licence: None, is_gated, is_given: true };
            Advert { origins: vec![origin], ..sample::advert(0) }
        };
        let of = |adverts: &[Advert]| {
            origin(sample::card().id, adverts).map(|origin| (origin.source, origin.is_gated, origin.is_given))
        };
        let [a, b, gated] = [from("org/a@0", false), from("org/b@0", false), from("org/b@0", true)];
        assert_eq!(of(&[sample::advert(0)]), None);
        assert_eq!(of(&[a.clone(), b.clone()]), Some(("org/a@0".into(), false, false)));
        assert_eq!(of(&[a.clone(), b.clone(), b]), Some(("org/b@0".into(), false, false)));
        assert_eq!(of(&[a.clone(), a, gated]), Some(("org/a@0".into(), true, false)));
    }

    #[test]
    fn one_manifest_that_fits_is_worth_more_than_all_who_say_something_else() {
        let mut all = by(&[9, 9, 9, 1]);
        assert!(heard(&mut all, peer(3), has(1)));
        assert!(all.len() == 1 && has(1)(&all[0].card));
        // The first of them may hang; this one does not.
        let mut all = by(&[1, 9, 1, 1]);
        assert!(heard(&mut all, peer(2), has(1)) && all[0].by == [peer(2), peer(0), peer(3)], "{all:?}");
    }

    #[test]
    fn who_gives_a_manifest_that_fits_nothing_is_not_believed() {
        let mut all = by(&[9, 9, 1]);
        assert!(!heard(&mut all, peer(0), |_| false) && all[0].by == [peer(1)], "{all:?}");
        assert!(!heard(&mut all, peer(1), |_| false) && has(1)(&all[0].card), "{all:?}");
        assert!(!heard(&mut all, peer(2), |_| false) && all.is_empty());
    }
}
