//! Plan flow 4: what hosts have to fetch before they can serve a plan, from whom, how long that takes, and what it takes off the
//! plan's value.
//!
//! What serves goes on until what comes instead is up ([`crate::changeover`]), so that fetching stops nobody: it delays what a plan is
//! better by. Loading, which may stop somebody, is reckoned beside it.

use crate::{cards, links::UNMEASURED, members::Members};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    Advert, BytesPerSecond, Group, LayerRange, ModelId, ModelShape, PartialModel, PeerId, Plan, Seconds,
};

/// Over which a plan must be worth its fetching: one that fetches for longer is worth what serves meanwhile. An hour is 9 GB at 20 Mbit/s,
/// so that real models find their way to homes, and about as long as it is likely that those who are there stay.
pub const HORIZON: Seconds = Seconds(3600.0);
/// Holders that a host asks at once, as nodes do.
const HOLDERS: usize = 8;

/// What one host has to fetch of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// The host that fetches.
    pub peer: PeerId,
    /// The model whose layers it lacks.
    pub model: ModelId,
    /// Layers that it does not have.
    pub layers: Vec<LayerRange>,
    /// What they are as stored, by the model's card (bytes).
    pub bytes: u64,
    /// Who gives them: of those that have a layer the nearest, so many as are asked at once.
    pub holders: Vec<PeerId>,
    /// How long that takes; none where nobody has some of it.
    pub takes: Option<Seconds>,
}

/// How long all of it takes: hosts fetch beside each other, and one model after the other.
#[must_use]
pub fn takes(fetches: &[Fetch]) -> Seconds {
    let mut hosts: BTreeMap<PeerId, f64> = BTreeMap::new();
    for fetch in fetches {
        *hosts.entry(fetch.peer).or_default() += fetch.takes.map_or(f64::INFINITY, |takes| takes.0);
    }
    Seconds(hosts.into_values().fold(0.0, f64::max))
}

/// What a plan is worth that has to be fetched, while `good` is served: by the part of the horizon that this takes it is better for less
/// time. A plan that is worth no more loses nothing by it.
#[must_use]
pub fn delayed(better: f64, good: f64, takes: Seconds) -> f64 {
    better - (better - good).max(0.0) * (takes / HORIZON).min(1.0)
}

/// How long a plan's groups are waited for by whoever follows it, for the sake of what they fetch.
#[must_use]
pub fn patience(plan: &Plan, members: &Members<'_>) -> Duration {
    let fetches = Holdings::of(members).map_or_else(Vec::new, |holdings| holdings.fetches(&plan.groups));
    Duration::from_secs_f64(takes(&fetches).0.clamp(0.0, HORIZON.0))
}

/// Who has what of models that not everybody has whole, and how fast it travels.
#[derive(Clone, Debug)]
pub struct Holdings {
    models: BTreeMap<ModelId, HeldModel>,
    /// Links to peers that have something in part, by where they come from.
    into: BTreeMap<PeerId, BTreeMap<PeerId, BytesPerSecond>>,
    /// What each peer was seen to send at, to whomever.
    up: BTreeMap<PeerId, BytesPerSecond>,
}

/// A model, and what each peer has of it.
#[derive(Clone, Debug)]
struct HeldModel {
    shape: ModelShape,
    whole: BTreeSet<PeerId>,
    partial: BTreeMap<PeerId, PartialModel>,
    /// Who gives nothing of it, as of a gated repository: it is there for them alone.
    keep: BTreeSet<PeerId>,
}

impl HeldModel {
    fn gives(&self, peer: &PeerId, layer: u32) -> bool {
        let has = self.whole.contains(peer) || self.partial.get(peer).is_some_and(|partial| partial.has(layer));
        has && !self.keep.contains(peer)
    }
}

impl Holdings {
    /// What these say; none where everybody has what he lends.
    #[must_use]
    pub fn of(members: &Members<'_>) -> Option<Self> {
        if members.values().all(|advert| advert.partial.is_empty()) {
            return None;
        }
        let all_agreed = cards::all_agreed(members.values().copied());
        let mut models: BTreeMap<ModelId, HeldModel> = BTreeMap::new();
        for (peer, advert) in members {
            for card in &advert.models {
                let held = models.entry(card.id).or_insert_with(|| HeldModel {
                    shape: all_agreed.get(&card.id).copied().unwrap_or(card).shape,
                    whole: BTreeSet::new(),
                    partial: BTreeMap::new(),
                    keep: BTreeSet::new(),
                });
                match advert.partial(card.id) {
                    Some(partial) => _ = held.partial.insert(*peer, partial.clone()),
                    None => _ = held.whole.insert(*peer),
                }
                if !advert.gives(card.id) {
                    held.keep.insert(*peer);
                }
            }
        }
        models.retain(|_, held| !held.partial.is_empty());
        let fetches = |peer: &PeerId| members.get(peer).is_some_and(|advert| !advert.partial.is_empty());
        let mut into: BTreeMap<PeerId, BTreeMap<PeerId, BytesPerSecond>> = BTreeMap::new();
        for (from, advert) in members {
            for link in advert.links.iter().filter(|link| fetches(&link.to)) {
                into.entry(link.to).or_default().insert(*from, link.bandwidth);
            }
        }
        let up = members.iter().filter_map(|(peer, advert)| Some((*peer, fastest(advert)?))).collect();
        Some(Self { models, into, up })
    }

    /// What hosts have to fetch for these groups, host by host; of a layer that two stages of a host have, once.
    #[must_use]
    pub fn fetches(&self, groups: &[Group]) -> Vec<Fetch> {
        let mut missing: BTreeMap<(ModelId, PeerId), BTreeSet<u32>> = BTreeMap::new();
        for group in groups {
            let Some(held) = self.models.get(&group.model) else { continue };
            for stage in &group.stages {
                let Some(here) = held.partial.get(&stage.peer) else { continue };
                let layers = held.shape.all_layers().intersection(stage.layers);
                let lacks = layers.iter().filter(|layer| !here.has(*layer));
                missing.entry((group.model, stage.peer)).or_default().extend(lacks);
            }
        }
        missing.retain(|_, layers| !layers.is_empty());
        let mut at_once: BTreeMap<ModelId, usize> = BTreeMap::new();
        missing.keys().for_each(|(model, _)| *at_once.entry(*model).or_default() += 1);
        let fetch = |((model, peer), layers): (&(ModelId, PeerId), &BTreeSet<u32>)| {
            let (held, others) = (self.models.get(model)?, at_once.get(model).copied().unwrap_or(1));
            Some(self.fetch((*peer, *model), held, layers, others))
        };
        missing.iter().filter_map(fetch).collect()
    }

    /// What a host fetches while so many fetch of this model. It is given no more than any one link was seen to bring it; and who gives
    /// has what he was seen to send for all of them.
    fn fetch(
        &self,
        (peer, model): (PeerId, ModelId),
        held: &HeldModel,
        layers: &BTreeSet<u32>,
        at_once: usize,
    ) -> Fetch {
        let links = self.into.get(&peer);
        let down = links.and_then(|links| links.values().map(|b| b.0).reduce(f64::max));
        let (_, unmeasured) = UNMEASURED;
        let down = down.unwrap_or(unmeasured.0);
        let rate = |from: &PeerId| {
            let link = links.and_then(|links| links.get(from)).unwrap_or(&unmeasured).0;
            link.min(self.up.get(from).unwrap_or(&unmeasured).0 / at_once as f64)
        };
        let others = held.whole.iter().chain(held.partial.keys()).filter(|holder| **holder != peer);
        let mut known: Vec<(PeerId, f64)> = others.map(|holder| (*holder, rate(holder))).collect();
        known.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let (mut bytes, mut takes, mut holders) = (0, 0.0, BTreeSet::new());
        for layer in layers {
            let of_layer = held.shape.stage_bytes(LayerRange { start: *layer, end: layer + 1 });
            let givers = known.iter().filter(|(holder, _)| held.gives(holder, *layer)).take(HOLDERS);
            let sum: f64 = givers.inspect(|(holder, _)| _ = holders.insert(*holder)).map(|(_, rate)| rate).sum();
            bytes += of_layer;
            // Nothing where nobody has it: that takes forever.
            takes += of_layer as f64 / sum.min(down);
        }
        let mut holders: Vec<PeerId> = holders.into_iter().collect();
        holders.sort_by_key(|holder| (Reverse(held.whole.contains(holder)), *holder));
        let takes = Some(Seconds(takes)).filter(|takes| takes.0.is_finite());
        let layers = PartialModel::of(model, layers.iter().copied()).layers;
        Fetch { peer, model, layers, bytes, holders, takes }
    }
}

/// The fastest of a peer's links.
fn fastest(advert: &Advert) -> Option<BytesPerSecond> {
    advert.links.iter().map(|link| link.bandwidth.0).reduce(f64::max).map(BytesPerSecond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Link, PathKind, Phase, Stage};

    /// 10 Mbit/s and 100.
    const SLOW: f64 = 1.25e6;
    const FAST: f64 = 12.5e6;
    const MIB: f64 = 1_048_576.0;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// One that sends to others at these rates, with these layers of the model, or all.
    fn has(layers: Option<&[u32]>, links: &[(u8, f64)]) -> Advert {
        let link = |(to, bandwidth): &(u8, f64)| Link {
            to: peer(*to),
            latency: Seconds(0.01),
            bandwidth: BytesPerSecond(*bandwidth),
            path: PathKind::Direct,
        };
        let partial = layers.map(|layers| PartialModel::of(sample::card().id, layers.iter().copied()));
        Advert { partial: partial.into_iter().collect(), links: links.iter().map(link).collect(), ..sample::advert(0) }
    }

    /// A group of four layers, each with a peer of its own, or two with each of two.
    fn group(peers: &[u8]) -> Group {
        let each = 4 / peers.len() as u32;
        let stage = |(n, at): (u32, &u8)| Stage {
            peer: peer(*at),
            device: 0,
            layers: LayerRange { start: each * n, end: each * (n + 1) },
        };
        Group::new(sample::card().id, Phase::Mixed, (0..).zip(peers).map(stage).collect())
    }

    fn fetches(adverts: &[Advert], groups: &[Group]) -> Vec<Fetch> {
        let members = (0..).zip(adverts).map(|(n, advert)| (peer(n), advert)).collect();
        Holdings::of(&members).map_or_else(Vec::new, |holdings| holdings.fetches(groups))
    }

    fn seconds(fetch: &Fetch) -> f64 {
        fetch.takes.unwrap().0
    }

    #[test]
    fn only_what_is_not_there_is_fetched_from_who_has_it() {
        let adverts = [has(None, &[(1, FAST), (2, FAST)]), has(Some(&[0]), &[]), has(Some(&[2, 3]), &[])];
        assert_eq!(fetches(&adverts[..1], &[group(&[0])]), [], "all have what they lend");
        // The first lacks layer 1; the second lacks nothing.
        let all = fetches(&adverts, &[group(&[1, 2])]);
        let [Fetch { peer: who, layers, bytes, holders, .. }] = &all[..] else { panic!("{all:?}") };
        assert_eq!((*who, *bytes, &holders[..]), (peer(1), 1 << 20, &[peer(0)][..]));
        assert_eq!(layers[..], [LayerRange { start: 1, end: 2 }]);
        assert!((seconds(&all[0]) - MIB / FAST).abs() < 1e-9, "{all:?}");
        assert_eq!(takes(&all), Seconds(seconds(&all[0])));
        // The first layer comes with the embedding, the last with the head: two MiB each.
        let other = fetches(&adverts, &[group(&[2, 1])]);
        assert_eq!(other.iter().map(|fetch| fetch.bytes).collect::<Vec<_>>(), [4 << 20, 4 << 20]);
        // The second layer of the two has one who has it; and of its first one more, who was not measured.
        assert_eq!(other[1].holders, [peer(0), peer(1)]);
    }

    #[test]
    fn several_give_more_than_one_and_no_more_than_comes_in() {
        let of = |from: &[f64], beside: f64| {
            let mut adverts = vec![has(Some(&[]), &[])];
            adverts.extend(from.iter().map(|rate| has(None, &[(0, *rate)])));
            // It has nothing to give, and shows what comes in at all.
            adverts.push(has(Some(&[]), &[(0, beside)]));
            8.0 * MIB / seconds(&fetches(&adverts, &[group(&[0])])[0])
        };
        assert!((of(&[SLOW; 3], FAST) / (3.0 * SLOW) - 1.0).abs() < 1e-9);
        assert!((of(&[FAST; 3], FAST) / FAST - 1.0).abs() < 1e-9);
        assert!((of(&[SLOW; 3], SLOW) / SLOW - 1.0).abs() < 1e-9, "more was never seen");
        assert!((of(&[SLOW; 20], 1e9) / (8.0 * SLOW) - 1.0).abs() < 1e-9, "no more are asked");
    }

    #[test]
    fn who_gives_to_several_gives_each_a_part() {
        let fresh = || has(Some(&[]), &[]);
        let holder = has(None, &[(1, FAST), (2, FAST), (3, SLOW)]);
        let all = fetches(&[holder, fresh(), fresh(), fresh()], &[group(&[1]), group(&[2]), group(&[3])]);
        let rates: Vec<f64> = all.iter().map(|fetch| 8.0 * MIB / seconds(fetch)).collect();
        assert!((rates[0] / (FAST / 3.0) - 1.0).abs() < 1e-9 && (rates[2] / SLOW - 1.0).abs() < 1e-9, "{rates:?}");
        assert!((takes(&all).0 - 8.0 * MIB / SLOW).abs() < 1e-6, "the slowest");
    }

    #[test]
    fn what_nobody_has_is_waited_for_forever() {
        let all = fetches(&[has(Some(&[0, 1]), &[]), has(Some(&[0, 1, 2]), &[])], &[group(&[0])]);
        assert_eq!((all[0].takes, takes(&all)), (None, Seconds(f64::INFINITY)));
        assert_eq!(all[0].layers, [LayerRange { start: 2, end: 4 }]);
    }

    #[test]
    fn who_gives_nothing_is_no_holder_and_fetches_only_what_it_lacks() {
        let kept = |advert: Advert| {
            let model = sample::card().id;
            let (source, licence) = ("org/gated@0".into(), None);
            let origin = tsnode_protocol::ModelOrigin { model, source, licence, is_gated: true, is_given: false };
            Advert { origins: vec![origin], ..advert }
        };
        let all = [kept(has(None, &[])), kept(has(Some(&[0, 1]), &[])), has(Some(&[]), &[])];
        let fresh = fetches(&all, &[group(&[2])]);
        assert_eq!((fresh[0].takes, fresh[0].holders.len()), (None, 0), "two have it, and none gives it");
        assert_eq!(fetches(&all, &[group(&[0])]), [], "its own is there for itself");
        assert_eq!(fetches(&all, &[group(&[1])])[0].layers, [LayerRange { start: 2, end: 4 }]);
    }

    #[test]
    fn models_that_somebody_made_up_are_looked_at_once() {
        // Who has some of a model makes all say what they have of theirs.
        let fetches = has(Some(&[0]), &[]);
        assert!(cards::made_up::is_seen_once(|members| {
            let fetches = [(peer(255), &fetches)];
            Holdings::of(&members.iter().map(|(peer, advert)| (*peer, *advert)).chain(fetches).collect())
        }));
    }

    #[test]
    fn a_plan_loses_by_fetching_what_it_is_better_by() {
        let half = HORIZON / 2.0;
        assert!((delayed(0.9, 0.5, half) - 0.7).abs() < 1e-12);
        assert_eq!(delayed(0.9, 0.5, Seconds(0.0)), 0.9);
        assert!((delayed(0.9, 0.5, Seconds(f64::INFINITY)) - 0.5).abs() < 1e-12);
        assert!((delayed(0.9, 0.5, HORIZON * 3.0) - 0.5).abs() < 1e-12);
        assert_eq!(delayed(0.4, 0.5, half), 0.4, "what is worse is no better for coming late");
    }

    #[test]
    fn a_plan_is_waited_for_as_long_as_it_fetches_and_no_longer_than_the_horizon() {
        let of = |adverts: &[Advert]| {
            let members = (0..).zip(adverts).map(|(n, advert)| (peer(n), advert)).collect();
            let (epoch, term) = (tsnode_protocol::Epoch(0), tsnode_protocol::Term(0));
            let groups = vec![group(&[1])];
            let plan =
                Plan { epoch, term, parent: None, groups, routes: vec![], chosen: vec![], reason: String::new() };
            patience(&plan, &members).as_secs_f64()
        };
        assert_eq!(of(&[has(None, &[]), has(None, &[])]), 0.0);
        let takes = of(&[has(None, &[(1, SLOW)]), has(Some(&[]), &[])]);
        assert!((takes - 8.0 * MIB / SLOW).abs() < 1e-6, "{takes}");
        assert_eq!(of(&[sample::gateway(0), has(Some(&[]), &[])]), HORIZON.0, "nobody has it");
    }
}
