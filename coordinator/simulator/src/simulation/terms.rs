//! Which plans took effect in a term, who adopted them, and what each of these saw.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_coordinator::Time;
use tsnode_protocol::{Epoch, PeerId, Plan, PlanId, Term};

/// One honest peer's adoption of a plan.
#[derive(Clone, Debug)]
pub(super) struct PlanAdoption {
    /// Which peer's.
    pub peer: usize,
    /// When.
    pub at: Time,
    /// Whom it took for those who decide: the living lenders it saw.
    pub electorate: Arc<BTreeSet<PeerId>>,
    /// Since when nothing had been wrong with it or the network; now, where something was.
    pub calm_since: Time,
}

/// All plans that took effect.
#[derive(Debug, Default)]
pub(super) struct AdoptedTerms {
    adopted: BTreeMap<(Epoch, Term), BTreeMap<PlanId, Vec<PlanAdoption>>>,
}

impl AdoptedTerms {
    /// Notes an adoption. Says who adopted other plans of the same term, and whether nobody had adopted this one.
    pub fn adopt(&mut self, plan: &Plan, mut adoption: PlanAdoption) -> (Vec<(PlanId, &PlanAdoption)>, bool) {
        let plans = self.adopted.entry((plan.epoch, plan.term)).or_default();
        let id = plan.id();
        let of_this = plans.entry(id).or_default();
        let is_first = of_this.is_empty();
        // Most see the same peers: one set stands for all of them.
        if let Some(same) = of_this.iter().rev().find(|a| a.electorate == adoption.electorate) {
            adoption.electorate = same.electorate.clone();
        }
        of_this.push(adoption);
        let others = plans.iter().filter(|(other, _)| **other != id);
        (others.flat_map(|(other, all)| all.iter().map(|a| (*other, a))).collect(), is_first)
    }

    /// Whether no term has more than one.
    pub fn one_plan_each(&self) -> bool {
        self.adopted.values().all(|plans| plans.len() <= 1)
    }

    /// The plans of each term that has several.
    pub fn contested(&self) -> impl Iterator<Item = (&(Epoch, Term), Vec<&PlanId>)> {
        self.adopted.iter().filter(|(_, plans)| plans.len() > 1).map(|(at, plans)| (at, plans.keys().collect()))
    }
}

/// Whether any majority of the one and any majority of the other share a peer that votes once in a term: no two plans of one can
/// have both.
pub(super) fn must_meet(a: &BTreeSet<PeerId>, b: &BTreeSet<PeerId>, byzantine: &BTreeSet<PeerId>) -> bool {
    let both = a.intersection(b).count();
    let twice = a.intersection(b).filter(|p| byzantine.contains(*p)).count();
    let majority = |of: &BTreeSet<PeerId>| of.len() / 2 + 1;
    majority(a) + majority(b) > a.len() + b.len() - both + twice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<PeerId> {
        numbers.into_iter().map(|n| PeerId([n; 32])).collect()
    }

    #[test]
    fn majorities_meet_where_views_differ_little_and_nobody_there_votes_twice() {
        let (nobody, one) = (peers([]), peers([3]));
        assert!(must_meet(&peers(0..5), &peers(0..5), &nobody));
        assert!(
            !must_meet(&peers(0..5), &peers(0..5), &one),
            "three and three of five may share the byzantine peer alone"
        );
        assert!(must_meet(&peers(0..6), &peers(0..6), &one), "four and four of six share two");
        assert!(must_meet(&peers(0..5), &peers(0..6), &nobody));
        assert!(!must_meet(&peers(0..4), &peers(0..7), &nobody), "three of the four, and the others");
        assert!(!must_meet(&peers(0..3), &peers(3..6), &nobody));
    }
}
