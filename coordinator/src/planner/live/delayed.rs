//! What fetching takes off the plans of a search, and of a dealing of devices: the same as when one is held against the plan in force
//! (`control/reload.rs`).

use super::{NOISE, Scene, sharing};
use crate::{
    planner::fetching::{self, Fetch},
    scheduler::{
        evaluate::Evaluator,
        moves::Grouping,
        search::{self, Found},
    },
};
use std::sync::Arc;
use tsnode_protocol::{Group, Plan};

impl Scene {
    /// The same while a plan is in force.
    pub(super) fn under(self, standing: Option<&Plan>) -> Self {
        let standing: Arc<[Group]> = standing.map_or_else(Vec::new, |plan| plan.groups.clone()).into();
        Self { standing, ..self }
    }

    /// What hosts have to fetch for those of these groups that are not in force.
    pub(super) fn fetches(&self, groups: &[Group]) -> Vec<Fetch> {
        let Some(holdings) = &self.holdings else { return Vec::new() };
        let is_new = |group: &&Group| self.standing.iter().all(|there| there.id != group.id);
        holdings.fetches(&groups.iter().filter(is_new).cloned().collect::<Vec<Group>>())
    }

    /// The candidate of a search that is worth most when what its hosts have to fetch is counted. One that fetches nothing stays, for
    /// its replay has chosen it.
    pub(super) fn soonest(&self, mut found: Found) -> Found {
        if self.holdings.is_none() {
            return found;
        }
        let here = |g: &&Group| g.model == self.card.id && g.stages.iter().all(|s| self.has(s));
        let good = self.value(&self.standing.iter().filter(here).cloned().collect::<Vec<Group>>());
        let mut evaluator = Evaluator::new(&self.problem);
        let mut rate = |grouping: &Grouping| {
            let numbers = search::shelved(&mut evaluator, grouping)?;
            let evaluation = evaluator.evaluate(&numbers);
            let groups: Vec<Group> = numbers.iter().map(|g| self.named(&evaluator, *g)).collect();
            let worth = fetching::delayed(evaluation.value, good, fetching::takes(&self.fetches(&groups)));
            Some((worth, evaluation))
        };
        let Some((mut best, evaluation)) = rate(&found.grouping) else { return found };
        if best >= evaluation.value {
            return found;
        }
        for place in 0..found.runners_up.len() {
            let Some((worth, evaluation)) = rate(&found.runners_up[place].0) else { continue };
            if worth > best + NOISE {
                let beaten = (std::mem::take(&mut found.grouping), found.evaluation.value);
                found.grouping = std::mem::replace(&mut found.runners_up[place], beaten).0;
                (found.evaluation, best) = (evaluation, worth);
            }
        }
        found
    }
}

/// What groups of all models are worth when what their hosts have to fetch is counted.
pub(super) fn worth(scenes: &[Scene], groups: &[Group]) -> f64 {
    let worth = sharing::worth(scenes, groups);
    let Some(scene) = scenes.first().filter(|scene| scene.holdings.is_some()) else { return worth };
    fetching::delayed(worth, sharing::worth(scenes, &scene.standing), fetching::takes(&scene.fetches(groups)))
}
