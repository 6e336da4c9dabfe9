//! Why a swarm's plan is what it is: the other plans of the same view, and what each loses.

use super::{DevicePlace, SearchInput, inputs_under, sharing::DeviceTime};
use crate::{
    gate::SplitChoice,
    members::Members,
    planner::fetching::Fetch,
    scheduler::{Evaluator, moves::Grouping, search, slo::Slo},
};
use std::collections::BTreeSet;
use tsnode_protocol::{Group, PeerId, Plan};

/// A plan for a model that was not adopted.
#[derive(Clone, Debug, PartialEq)]
pub struct Other {
    /// The groups it would have had.
    pub groups: Vec<Group>,
    /// What it is worth on this view, once it is up.
    pub value: f64,
    /// What hosts would have to fetch for it first.
    pub fetches: Vec<Fetch>,
}

/// A model's adopted groups against others; of a large swarm, one region's.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The model's name.
    pub model: String,
    /// Requests a second that plans are valued at.
    pub rate: f64,
    /// What plans are held against.
    pub slo: Slo,
    /// What the adopted groups are worth on this view; nothing, if some of their devices are gone.
    pub adopted: f64,
    /// What hosts still have to fetch for them.
    pub fetches: Vec<Fetch>,
    /// Its devices that other models' groups use too.
    pub shared: Vec<SharedDevice>,
    /// Others, the best first.
    pub others: Vec<Other>,
}

/// A device that several models share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedDevice {
    /// Whose it is.
    pub peer: PeerId,
    /// Its place in that peer's advert.
    pub device: u16,
    /// Part of its time that the others are planned to take.
    pub taken: f64,
}

/// The adopted plan against what a search on this view finds: for each model, with the others' groups where they are.
#[must_use]
pub fn why(plan: &Plan, members: &Members<'_>, split: SplitChoice) -> Vec<Why> {
    let inputs = inputs_under(members, split, &plan.chosen);
    let taken = DeviceTime::by_groups(&inputs, &plan.groups);
    inputs.iter().map(|input| input.beside_others(&taken).under(Some(plan)).why(plan, &taken)).collect()
}

impl SearchInput {
    fn why(&self, plan: &Plan, taken: &DeviceTime) -> Why {
        let here = |g: &&Group| g.model == self.card.id && g.stages.iter().any(|s| self.has(s));
        let mut adopted: Vec<Group> = plan.groups.iter().filter(here).cloned().collect();
        adopted.sort_by_key(|g| g.id);
        let found = self.search();
        let all = std::iter::once(found.grouping).chain(found.runners_up.into_iter().map(|(grouping, _)| grouping));
        let mut others: Vec<Other> = all.filter_map(|grouping| self.other(&grouping)).collect();
        others.retain(|other| other.groups != adopted);
        others.sort_by(|a, b| b.value.total_cmp(&a.value));
        let (rate, slo) = (self.problem.rate, self.problem.slo);
        let stages = adopted.iter().flat_map(|g| &g.stages).filter(|s| self.has(s));
        let used: BTreeSet<DevicePlace> = stages.map(|s| (s.peer, s.device)).collect();
        let shared = |place: &DevicePlace| {
            let taken = taken.beside(self.card.id, place);
            SharedDevice { peer: place.0, device: place.1, taken }
        };
        let shared = used.iter().map(shared).filter(|device| device.taken > 0.0).collect();
        let fetches = self.holdings.as_ref().map_or_else(Vec::new, |holdings| holdings.fetches(&adopted));
        Why { model: self.card.name.clone(), rate, slo, adopted: self.value(&adopted), fetches, shared, others }
    }

    fn other(&self, grouping: &Grouping) -> Option<Other> {
        let mut evaluator = Evaluator::new(&self.problem);
        let numbers = search::shelved(&mut evaluator, grouping)?;
        let mut groups: Vec<Group> = numbers.iter().map(|g| self.named(&evaluator, *g)).collect();
        let value = evaluator.evaluate(&numbers).value;
        groups.sort_by_key(|g| g.id);
        let fetches = self.fetches(&groups);
        (!groups.is_empty()).then_some(Other { groups, value, fetches })
    }
}
