//! What fetching takes off the plans of a search: the same as when one is held against the plan in force (`control/reload.rs`).

use super::{NOISE, SearchInput};
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

impl SearchInput {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gate::SplitChoice,
        planner::live::inputs,
        sample,
        scheduler::{cluster::InstanceId, evaluate::Evaluation, moves::DeviceGroup},
    };
    use tsnode_protocol::{
        Advert, BytesPerSecond, Epoch, LayerRange, Link, PartialModel, PathKind, PeerId, Phase, Seconds, Stage, Term,
    };

    const HOSTS: [PeerId; 2] = [PeerId([0; 32]), PeerId([1; 32])];

    fn fresh() -> Advert {
        Advert { partial: vec![PartialModel::of(sample::card().id, [])], ..sample::advert(0) }
    }

    /// How many hosts serve after a search that prefers both, each with the whole model, to the first alone; it sends at that rate.
    fn serve(second: &Advert, bandwidth: f64, standing: Option<&Plan>) -> usize {
        let bandwidth = BytesPerSecond(bandwidth);
        let link = Link { to: HOSTS[1], latency: Seconds(0.01), bandwidth, path: PathKind::Direct };
        let first = Advert { links: vec![link], ..sample::advert(0) };
        let members = [(HOSTS[0], &first), (HOSTS[1], second)].into();
        let input = inputs(&members, SplitChoice::Auto).remove(0).under(standing);
        let of = |hosts: &[PeerId]| {
            let place = |host: &PeerId| input.places.iter().position(|(peer, _)| peer == host).unwrap();
            let part =
                |host: &PeerId| DeviceGroup { members: vec![(InstanceId(place(host) as u32), 1)], phase: Phase::Mixed };
            Grouping::new(hosts.iter().map(part).collect())
        };
        let (grouping, runners_up) = (of(&HOSTS), vec![(of(&HOSTS[..1]), 0.0)]);
        let found = Found { grouping, evaluation: Evaluation::default(), runners_up, evaluations: 0 };
        input.soonest(found).grouping.parts.len()
    }

    #[test]
    fn of_a_searchs_last_candidates_one_that_fetches_for_too_long_is_left_for_one_that_does_not() {
        assert_eq!(serve(&sample::advert(0), 1e3, None), 2, "nothing is fetched");
        assert_eq!(serve(&fresh(), 125e6, None), 2, "a tenth of a second");
        assert_eq!(serve(&fresh(), 1e3, None), 1, "more than two hours");
        // What is in force fetches anyway.
        let layers = LayerRange { start: 0, end: 4 };
        let group = |peer: PeerId| Group::new(sample::card().id, Phase::Mixed, vec![Stage { peer, device: 0, layers }]);
        let (epoch, term, groups) = (Epoch(0), Term(0), HOSTS.map(group).to_vec());
        let plan = Plan { epoch, term, parent: None, groups, routes: vec![], chosen: vec![], reason: String::new() };
        assert_eq!(serve(&fresh(), 1e3, Some(&plan)), 2);
    }
}
