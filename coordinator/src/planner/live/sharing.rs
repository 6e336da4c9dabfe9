//! Several models on one device (SeaLLM §4.1): which devices are for which models, and what a plan is worth in which their
//! steps share devices' time.
//!
//! Hosts state each model's part of their memory. Where those are together more than there is, a dealing has so many models on a
//! device as it holds at once; a model that nobody asks for yields to one that is asked for, unless its owner keeps it in memory.
//! Time is dealt everywhere. A model is
//! planned for at a rate that is its fair part of what the devices could carry, whoever they are for; a device whose time others
//! take for a part u is slower by 1/(1 − u). So models that share all devices, or divide them, are valued alike: by the requests
//! that are in time.

use super::{DevicePlace, ModelPlan, SearchInput, WeightRoom};
use crate::{
    cards,
    members::Members,
    planner::fetching,
    scheduler::{cluster::InstanceId, evaluate::Evaluator, start},
};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{Group, ModelId, Phase};

/// Of a device's time the most that others are taken to need: beyond it all is late, and plans cannot be told apart.
const MOST_TAKEN: f64 = 0.9;
/// Rounds in which each device is offered to each model it can serve, or taken from it.
const ROUNDS: usize = 3;
/// Dealings looked at, times the square of all devices, with which a look's time grows; no fewer and no more than these.
const LOOKS: usize = 40_000;
const LOOKS_BOUNDS: (usize, usize) = (16, 256);
/// Dealings that are searched in full, the best of those looked at.
const FINALISTS: usize = 2;
/// By such a part of the best one's worth another may be worse at a look: a search makes up for no more, and takes its time.
const NEAR: f64 = 0.1;

/// Which devices are for which models.
type Deal = BTreeSet<(ModelId, DevicePlace)>;

/// Part of each device's time that each model takes.
pub(super) struct DeviceTime(BTreeMap<DevicePlace, BTreeMap<ModelId, f64>>);

impl DeviceTime {
    /// By models that have these devices: each loads its own alike.
    fn by(inputs: &[SearchInput], has: &Deal) -> Self {
        let mut taken: BTreeMap<DevicePlace, BTreeMap<ModelId, f64>> = BTreeMap::new();
        for input in inputs {
            let model = input.card.id;
            let held =
                || input.places.iter().zip(&input.power).filter(move |(place, _)| has.contains(&(model, **place)));
            let part = held().map(|(_, power)| power).sum::<f64>() / input.power.iter().sum::<f64>();
            for (place, _) in held() {
                taken.entry(*place).or_default().insert(model, input.problem.rate / (input.carries * part));
            }
        }
        Self(taken)
    }

    /// By the groups of a plan.
    pub fn by_groups(inputs: &[SearchInput], groups: &[Group]) -> Self {
        Self::by(inputs, &dealt(groups))
    }

    /// What others than this model take of a device.
    pub fn beside(&self, model: ModelId, place: &DevicePlace) -> f64 {
        let models = self.0.get(place).into_iter().flatten();
        models.filter(|(other, _)| **other != model).map(|(_, part)| part).sum()
    }
}

/// What groups have their models' stages on.
fn dealt(groups: &[Group]) -> Deal {
    groups.iter().flat_map(|g| g.stages.iter().map(|s| (g.model, (s.peer, s.device)))).collect()
}

impl SearchInput {
    /// The same where others take that part of its devices' time.
    pub(super) fn beside_others(&self, taken: &DeviceTime) -> Self {
        let slower = |i: InstanceId| {
            let others = taken.beside(self.card.id, &self.places[i.0 as usize]);
            1.0 / (1.0 - others.min(MOST_TAKEN))
        };
        if self.problem.cluster.ids().all(|i| slower(i) <= 1.0) {
            return self.clone();
        }
        Self { problem: self.problem.slowed(slower), ..self.clone() }
    }

    /// The same with those of its devices alone that are for it; `None` if they cannot hold the model.
    fn on(&self, deal: &Deal) -> Option<Self> {
        let is_dealt = |place: &DevicePlace| deal.contains(&(self.card.id, *place));
        if self.places.iter().all(is_dealt) {
            return Some(self.clone());
        }
        let kept: Vec<usize> = (0..self.places.len()).filter(|i| is_dealt(&self.places[*i])).collect();
        if kept.is_empty() {
            return None;
        }
        let members: Vec<(InstanceId, u16)> = kept.iter().map(|i| (InstanceId(*i as u32), 1)).collect();
        let problem = self.problem.part(&members)?;
        let (places, power) = kept.iter().map(|i| (self.places[*i], self.power[*i])).unzip();
        Some(Self { places, power, problem, ..self.clone() })
    }

    /// What groups that are just large enough are worth, each doing both; `None` if there are none.
    fn guess(&self) -> Option<f64> {
        let mut evaluator = Evaluator::new(&self.problem);
        let small = start::small(&self.problem, 1.0);
        let groups: Vec<_> = small.iter().filter_map(|members| evaluator.group(members, Phase::Mixed)).collect();
        (!groups.is_empty()).then(|| evaluator.evaluate(&groups).value)
    }
}

/// What a plan's groups are worth: their models' values, each alike. A model that nobody serves takes away what it could be
/// worth: late is better than not at all.
pub(super) fn worth(inputs: &[SearchInput], groups: &[Group]) -> f64 {
    let taken = DeviceTime::by_groups(inputs, groups);
    let value = |input: &SearchInput| {
        let here = |g: &&Group| g.model == input.card.id && g.stages.iter().all(|s| input.has(s));
        let here: Vec<Group> = groups.iter().filter(here).cloned().collect();
        if here.is_empty() { 0.0 } else { input.share * input.beside_others(&taken).value(&here) }
    };
    let models: BTreeMap<ModelId, Option<f64>> = inputs.iter().map(|s| (s.card.id, s.without)).collect();
    let unserved = models.into_iter().filter(|(model, _)| groups.iter().all(|g| g.model != *model));
    without(inputs.iter().map(value).sum(), unserved.map(|(_, without)| without)).max(0.0)
}

/// The same when what hosts have to fetch for it is counted.
fn delayed(inputs: &[SearchInput], groups: &[Group]) -> f64 {
    let worth_of = |groups: &[Group]| worth(inputs, groups);
    let Some(input) = inputs.first().filter(|input| input.holdings.is_some()) else { return worth_of(groups) };
    fetching::delayed(worth_of(groups), worth_of(&input.standing), fetching::takes(&input.fetches(groups)))
}

/// What is left of models' values where nobody serves some others.
fn without(sum: f64, unserved: impl Iterator<Item = Option<f64>>) -> f64 {
    unserved.fold(sum, |worth, part| part.map_or(worth - 1.0, |part| worth * part))
}

/// Plans for all models. Where devices can serve several of them, which ones are for which is searched first.
pub(super) fn planned(inputs: Vec<SearchInput>) -> Vec<(SearchInput, ModelPlan)> {
    let able = able(&inputs);
    if able.values().all(|models| models.len() < 2) {
        return inputs.into_iter().map(|input| (input.plan(), input)).map(|(part, input)| (input, part)).collect();
    }
    let on_deal = |deal: &Deal| -> Vec<ModelPlan> {
        let taken = DeviceTime::by(&inputs, deal);
        inputs.iter().map(|s| s.beside_others(&taken).on(deal).map_or_else(ModelPlan::default, |s| s.plan())).collect()
    };
    let of = |parts: Vec<ModelPlan>| {
        let groups: Vec<Group> = parts.iter().flat_map(|p| p.groups.clone()).collect();
        (delayed(&inputs, &groups), parts)
    };
    let all = finalists(&inputs, &able).into_iter().map(|deal| of(on_deal(&deal)));
    let best = all.reduce(|best, other| if other.0 > best.0 { other } else { best });
    inputs.into_iter().zip(best.map(|(_, parts)| parts).unwrap_or_default()).collect()
}

/// Models by the devices that can serve them.
fn able(inputs: &[SearchInput]) -> BTreeMap<DevicePlace, BTreeSet<ModelId>> {
    let mut able: BTreeMap<DevicePlace, BTreeSet<ModelId>> = BTreeMap::new();
    for input in inputs {
        input.places.iter().for_each(|place| _ = able.entry(*place).or_default().insert(input.card.id));
    }
    able
}

/// The best dealings found: from all devices shared by all, but for those that do not hold all at once, and from each for one
/// model, by small changes.
fn finalists(inputs: &[SearchInput], able: &BTreeMap<DevicePlace, BTreeSet<ModelId>>) -> Vec<Deal> {
    let kept = kept(inputs);
    let mut alone = divided(inputs, able);
    alone.extend(&kept);
    let mut shared: Deal = able.iter().flat_map(|(place, models)| models.iter().map(|m| (*m, *place))).collect();
    for place in able.keys() {
        if !fits_at(inputs, &shared, place) {
            shared.retain(|(model, at)| at != place || alone.contains(&(*model, *at)));
        }
    }
    let devices = able.len().max(1);
    let mut looks = (LOOKS / (devices * devices)).clamp(LOOKS_BOUNDS.0, LOOKS_BOUNDS.1);
    let mut found: Vec<(f64, Deal)> = Vec::new();
    let alone = Some(alone).filter(|alone| *alone != shared);
    for start in [Some(shared.clone()), alone].into_iter().flatten() {
        let (value, deal) = improved(inputs, (able, &kept), start, &mut looks);
        if found.iter().all(|(_, other)| *other != deal) {
            found.push((value, deal));
        }
    }
    if found.iter().all(|(_, deal)| *deal != shared) {
        found.push((guess(inputs, &shared), shared));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate(FINALISTS);
    let best = found.first().map_or(0.0, |(value, _)| *value);
    found.retain(|(value, _)| *value >= best - NEAR * best.abs() || value.is_nan());
    found.into_iter().map(|(_, deal)| deal).collect()
}

/// Whether a device has memory for all models that it is for.
fn fits_at(inputs: &[SearchInput], deal: &Deal, place: &DevicePlace) -> bool {
    let mut models = BTreeSet::new();
    let dealt = inputs.iter().filter(|s| deal.contains(&(s.card.id, *place)) && models.insert(s.card.id));
    let sum = |(need, most): (u64, u64), room: &WeightRoom| (need.saturating_add(room.need), most.min(room.most));
    let (need, most) = dealt.filter_map(|s| s.rooms.get(place)).fold((0, u64::MAX), sum);
    need <= most
}

/// Each device for one model: the most able first, to the model that has least of what it could use.
fn divided(inputs: &[SearchInput], able: &BTreeMap<DevicePlace, BTreeSet<ModelId>>) -> Deal {
    // What a device is to a model: its part of all that the model could use.
    let part = |model: ModelId, place: &DevicePlace| {
        let of = |input: &SearchInput| {
            let at = input.places.iter().position(|p| p == place)?;
            Some(input.share * input.power[at] / input.power.iter().sum::<f64>())
        };
        inputs.iter().filter(|s| s.card.id == model).find_map(of).unwrap_or(0.0)
    };
    let most = |(place, models): &(&DevicePlace, &BTreeSet<ModelId>)| {
        models.iter().map(|m| part(*m, place)).fold(0.0, f64::max)
    };
    // What only one can use is dealt before.
    let mut order: Vec<(&DevicePlace, &BTreeSet<ModelId>)> = able.iter().collect();
    order.sort_by(|a, b| (a.1.len() > 1).cmp(&(b.1.len() > 1)).then(most(b).total_cmp(&most(a))).then(a.0.cmp(b.0)));
    let (mut has, mut deal) = (BTreeMap::<ModelId, f64>::new(), Deal::new());
    for (place, models) in order {
        let had = |m: &ModelId| has.get(m).copied().unwrap_or(0.0);
        let Some(poorest) = models.iter().copied().min_by(|a, b| had(a).total_cmp(&had(b)).then(a.cmp(b))) else {
            continue;
        };
        *has.entry(poorest).or_default() += part(poorest, place);
        deal.insert((poorest, *place));
    }
    deal
}

/// Devices that keep a model in memory, whatever else is dealt to them.
fn kept(inputs: &[SearchInput]) -> Deal {
    let of = |input: &SearchInput| {
        let stays = |place: &&DevicePlace| input.rooms.get(*place).is_some_and(|room| room.is_kept);
        input.places.iter().filter(stays).map(|place| (input.card.id, *place)).collect::<Vec<_>>()
    };
    inputs.iter().flat_map(of).collect()
}

/// A dealing, made better device by device as long as that is seen to help. What is kept stays.
fn improved(
    inputs: &[SearchInput],
    (able, kept): (&BTreeMap<DevicePlace, BTreeSet<ModelId>>, &Deal),
    mut deal: Deal,
    looks: &mut usize,
) -> (f64, Deal) {
    let mut value = guess(inputs, &deal);
    for _ in 0..ROUNDS {
        let before = value;
        for (place, models) in able.iter().filter(|(_, models)| models.len() > 1) {
            for model in models.iter().filter(|model| !kept.contains(&(**model, *place))) {
                if *looks == 0 {
                    return (value, deal);
                }
                *looks -= 1;
                let mut other = deal.clone();
                if !other.remove(&(*model, *place)) {
                    other.insert((*model, *place));
                    if !fits_at(inputs, &other, place) {
                        // It comes instead of those that are there.
                        other.retain(|dealt| dealt.1 != *place || dealt.0 == *model || kept.contains(dealt));
                    }
                }
                if !fits_at(inputs, &other, place) {
                    continue;
                }
                let worth = guess(inputs, &other);
                if worth > value {
                    (value, deal) = (worth, other);
                }
            }
        }
        if value <= before {
            break;
        }
    }
    (value, deal)
}

/// What a dealing is worth before anything is searched in it.
fn guess(inputs: &[SearchInput], deal: &Deal) -> f64 {
    let taken = DeviceTime::by(inputs, deal);
    let (mut sum, mut unserved) = (0.0, inputs.iter().map(|s| (s.card.id, s.without)).collect::<BTreeMap<_, _>>());
    for input in inputs {
        if let Some(value) = input.beside_others(&taken).on(deal).and_then(|s| s.guess()) {
            sum += input.share * value;
            unserved.remove(&input.card.id);
        }
    }
    without(sum, unserved.into_values())
}

/// Part of each device's time that is fair to each model of those that it can serve, by what they are asked for.
pub(super) struct Fair(BTreeMap<DevicePlace, f64>);

impl Fair {
    /// Of models with these demands, each a part of all its devices' time, on these devices.
    pub fn of<'s>(services: impl IntoIterator<Item = (f64, &'s [DevicePlace])>) -> Self {
        let mut sums = BTreeMap::new();
        for (demand, places) in services {
            places.iter().for_each(|place| *sums.entry(*place).or_insert(0.0) += demand);
        }
        Self(sums)
    }

    /// What a model with that demand has of a device's time.
    pub fn part(&self, demand: f64, place: &DevicePlace) -> f64 {
        self.0.get(place).map_or(1.0, |sum| demand / sum)
    }
}

/// Models, with the sizes that most say, and the devices that can serve them, in the order of their ids.
pub(super) fn lent<'a>(
    members: &'a Members<'_>,
) -> impl Iterator<Item = (&'a tsnode_protocol::ModelCard, Vec<DevicePlace>)> {
    let all_agreed = cards::all_agreed(members.values().copied());
    let mut by_model: BTreeMap<ModelId, (&tsnode_protocol::ModelCard, Vec<DevicePlace>)> = BTreeMap::new();
    for (peer, advert) in members {
        for card in &advert.models {
            let able = |d: &tsnode_protocol::Device| {
                d.flops.0 > 0.0 && d.bandwidth.0 > 0.0 && d.served(card.id).is_some_and(|s| s.memory_bytes > 0)
            };
            let places = advert.devices.iter().enumerate().filter(|(_, d)| able(d)).map(|(n, _)| (*peer, n as u16));
            let agreed = || all_agreed.get(&card.id).copied().unwrap_or(card);
            by_model.entry(card.id).or_insert_with(|| (agreed(), Vec::new())).1.extend(places);
        }
    }
    by_model.into_values().filter(|(_, places)| !places.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_somebody_made_up_are_looked_at_once() {
        assert!(cards::made_up::is_seen_once(|members| lent(members).count()));
    }
}
