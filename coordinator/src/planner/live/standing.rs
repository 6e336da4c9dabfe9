//! What stands of a plan, its phases and routes made anew, alone or with newcomers beside it.

use super::{BUSY, DevicePlace, FLIPS, ModelPlan, SearchInput, pace};
use crate::scheduler::{
    cluster::InstanceId,
    evaluate::Evaluator,
    rescheduling::{self, StandingGroup},
};
use std::collections::BTreeSet;
use tsnode_protocol::Group;

impl SearchInput {
    /// The groups of a plan that lost none of their devices, with phases and routes made anew and nothing to load; `None`
    /// if none is left (ThunderServe §3.4).
    #[must_use]
    pub fn flipped(&self, groups: &[Group]) -> Option<ModelPlan> {
        self.rephased(&self.standing(groups), 0)
    }

    /// The same with groups of the devices that none of these has, where they can hold the model.
    #[must_use]
    pub fn grown(&self, groups: &[Group]) -> Option<ModelPlan> {
        let mut all = self.standing(groups);
        let newcomers = self.beside(groups);
        let new = newcomers.len();
        all.extend(newcomers);
        self.rephased(&all, new)
    }

    fn standing(&self, groups: &[Group]) -> Vec<Group> {
        let stands = |g: &&Group| g.model == self.card.id && g.stages.iter().all(|s| self.has(s));
        groups.iter().filter(stands).cloned().collect()
    }

    /// The best groups of devices that have no part in `groups`, as if they were alone; of all its devices, beside what is there,
    /// where the model would have none else.
    fn beside(&self, groups: &[Group]) -> Vec<Group> {
        let used: BTreeSet<_> = groups.iter().flat_map(|g| &g.stages).map(|s| (s.peer, s.device)).collect();
        let newcomers = self.of_devices(|place| !used.contains(place));
        let is_served = groups.iter().any(|g| g.model == self.card.id);
        if newcomers.is_empty() && !is_served { self.of_devices(|_| true) } else { newcomers }
    }

    /// The best groups of these of its devices.
    fn of_devices(&self, wanted: impl Fn(&DevicePlace) -> bool) -> Vec<Group> {
        let all = (0..).zip(&self.places).filter(|(_, place)| wanted(place));
        let idle: Vec<(InstanceId, u16)> = all.map(|(i, _)| (InstanceId(i), 1)).collect();
        let alone = || {
            let problem = self.problem.part(&idle)?;
            let (carries, _) = pace(&problem)?;
            let (places, power) =
                idle.iter().map(|(i, _)| (self.places[i.0 as usize], self.power[i.0 as usize])).unzip();
            let problem = problem.at_rate(BUSY * carries);
            Some(SearchInput { places, power, problem, carries, ..self.clone() })
        };
        if idle.is_empty() { Vec::new() } else { alone().map_or_else(Vec::new, |input| input.plan().groups) }
    }

    /// These groups, of which so many are new, with the phases that serve best.
    fn rephased(&self, groups: &[Group], new: usize) -> Option<ModelPlan> {
        let mut evaluator = Evaluator::new(&self.problem);
        let numbers = self.shelve(&mut evaluator, groups)?;
        let all: Vec<StandingGroup> = numbers
            .iter()
            .map(|n| evaluator.shelved(*n))
            .map(|s| StandingGroup { members: s.members.clone(), config: s.rated.config.clone(), phase: s.rated.phase })
            .collect();
        let flipped = rescheduling::reschedule_within(&self.problem, &all, FLIPS / self.regions);
        if flipped.evaluation.shares.is_empty() {
            return None;
        }
        let named = groups.iter().zip(&flipped.phases);
        let named: Vec<Group> = named.map(|(g, phase)| Group { phase: *phase, ..g.clone() }).collect();
        let old = groups.len() - new;
        let flips = groups[..old].iter().zip(&flipped.phases).filter(|(g, phase)| g.phase != **phase).count();
        let newcomers = if new == 0 { String::new() } else { format!(", {new} new") };
        let in_time = flipped.evaluation.attainment * 100.0;
        let reason = format!("{old} groups stand, {flips} of them flipped{newcomers}; {in_time:.0} % in time");
        let routes = self.carry(&mut evaluator, &named, &numbers, &flipped.evaluation);
        Some(ModelPlan { groups: named, routes, reason })
    }
}
