//! Plan flow 4: whether a plan is worth changing to. It is reckoned as if who serves in a group that goes served nothing until
//! what comes instead has been loaded (ThunderServe §3.4: "it would lead to severe interruption"): hosts that have room for both
//! stages serve on ([`crate::changeover`]), but that they have is not known here. Fetching what is not on a host's disk stops nobody: it
//! delays what the plan is better by ([`fetching`]).

use crate::{
    members::Members,
    planner::{
        PlanDraft, PlanOptions, Planner,
        fetching::{self, Holdings},
        live,
    },
    scheduler::rescheduling,
    traffic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{Bytes, BytesPerSecond, Group, GroupId, ModelId, PeerId, Plan, Seconds, Stage};

/// Rate at which a host gets weights from its disk, of which adverts say nothing: ThunderServe's Table 4 has 103 s for
/// reloading LLaMA-30B, 65 GB in 16 bit.
const LOADS: BytesPerSecond = BytesPerSecond(0.6e9);

/// So many times as long as loading takes a model stays that takes turns with others in a device's memory ([`super::swapping`]): a
/// tenth of the time goes into that. But no longer than this for it, since gateways wait ten minutes for a model to come, unless
/// half of the time went into it.
const TIMES: f64 = 10.0;
const LONG: Seconds = Seconds(300.0);
const TIMES_AT_LEAST: f64 = 2.0;

/// What loading weights takes.
pub(super) fn loading(bytes: u64) -> Seconds {
    Bytes(bytes as f64) / LOADS
}

/// The shortest turn of a model that takes so long to load.
pub(super) fn least_turn(loading: Seconds) -> Seconds {
    (loading * TIMES).min(LONG).max(loading * TIMES_AT_LEAST)
}

/// Drafts held against the plan that stands.
pub(super) struct PlanJudge<'a> {
    pub planner: &'a dyn Planner,
    pub members: &'a Members<'a>,
    pub wish: &'a PlanOptions,
    pub standing: &'a Plan,
    /// Part by which a plan must be better.
    pub margin: f64,
    /// Over which it must repay its loading.
    pub horizon: Duration,
}

impl PlanJudge<'_> {
    /// The draft that is left of these: the light one unless the full one repays what it interrupts. Where there is no light
    /// one, the plan itself is that.
    pub fn chosen(&self, light: Option<PlanDraft>, full: PlanDraft) -> PlanDraft {
        let light = light.unwrap_or_else(|| self.as_it_stands());
        let laid_out = self.wish.layout.is_some();
        let repays = || !self.takes_places(&full) && self.repays(&full, &light);
        if !full.groups.is_empty() && (laid_out || repays()) { full } else { light }
    }

    /// Whether a draft takes its place from a model that is asked for, where devices do not hold all at once, be it for several
    /// others. Of a busy one fewer requests are in time: by values it would go whenever another is asked for at all. When it goes,
    /// its turn says ([`super::swapping`]).
    fn takes_places(&self, draft: &PlanDraft) -> bool {
        if !live::is_scarce(self.members) {
            return false;
        }
        let is_asked = |model: &ModelId| traffic::together(*model, self.members).is_some();
        let asked =
            |groups: &[Group]| -> BTreeSet<ModelId> { groups.iter().map(|g| g.model).filter(is_asked).collect() };
        let (before, after) = (asked(&self.standing.groups), asked(&draft.groups));
        !before.is_subset(&after)
    }

    /// Whether a draft is better than what stands, by more than views differ.
    pub fn is_better(&self, draft: &PlanDraft) -> bool {
        let Plan { groups, routes, .. } = self.standing;
        let same = draft.groups == *groups && draft.routes == *routes;
        let good = self.worth(&self.as_it_stands());
        !same && self.delayed(draft, good) > good * (1.0 + self.margin)
    }

    /// Whether a draft gives work to a peer that has none.
    pub fn takes_in(&self, draft: &PlanDraft) -> bool {
        let used = self.standing.peers();
        draft.groups.iter().flat_map(|g| &g.stages).any(|s| !used.contains(&s.peer))
    }

    /// Whether a draft has no group that is not there.
    pub fn loads_nothing(&self, draft: &PlanDraft) -> bool {
        new_groups(self.standing, draft).next().is_none()
    }

    fn repays(&self, full: &PlanDraft, light: &PlanDraft) -> bool {
        // Either comes as late as it is fetched: what would be there tomorrow is no reason to leave what is there now.
        let stands = self.worth(&self.as_it_stands());
        let (good, better) = (self.delayed(light, stands), self.delayed(full, stands));
        let horizon = Seconds(self.horizon.as_secs_f64());
        let (changing, loading) = (self.changing(full), self.loading(full));
        better > good * (1.0 + self.margin) && rescheduling::repays(better, good, changing, loading, horizon)
    }

    /// Part of the devices that serve now whose groups the draft does not have.
    fn changing(&self, draft: &PlanDraft) -> f64 {
        let kept: BTreeSet<GroupId> = draft.groups.iter().map(|g| g.id).collect();
        let devices = |groups: &mut dyn Iterator<Item = &Group>| groups.map(|g| g.stages.len()).sum::<usize>() as f64;
        let go = devices(&mut self.standing.groups.iter().filter(|g| !kept.contains(&g.id)));
        go / devices(&mut self.standing.groups.iter()).max(1.0)
    }

    /// What the slowest host takes to load its new stages: hosts load beside each other, and one stage after the other.
    fn loading(&self, draft: &PlanDraft) -> Seconds {
        let mut bytes: BTreeMap<PeerId, u64> = BTreeMap::new();
        for group in new_groups(self.standing, draft) {
            for stage in &group.stages {
                *bytes.entry(stage.peer).or_default() += self.bytes(group, stage);
            }
        }
        loading(bytes.into_values().max().unwrap_or_default())
    }

    fn bytes(&self, group: &Group, stage: &Stage) -> u64 {
        let card = self.members.get(&stage.peer).and_then(|a| a.models.iter().find(|m| m.id == group.model));
        card.map_or(0, |card| card.shape.stage_bytes(stage.layers))
    }

    /// What a draft is worth that hosts have to fetch, while what is worth `good` is served. Who laid groups out wants them, however
    /// long they take.
    fn delayed(&self, draft: &PlanDraft, good: f64) -> f64 {
        let worth = self.worth(draft);
        let Some(holdings) = Holdings::of(self.members).filter(|_| self.wish.layout.is_none()) else { return worth };
        let new: Vec<Group> = new_groups(self.standing, draft).cloned().collect();
        fetching::delayed(worth, good, fetching::takes(&holdings.fetches(&new)))
    }

    fn worth(&self, draft: &PlanDraft) -> f64 {
        let plan = Plan { groups: draft.groups.clone(), routes: draft.routes.clone(), ..self.standing.clone() };
        self.planner.value(&plan, self.members, self.wish)
    }

    fn as_it_stands(&self) -> PlanDraft {
        let Plan { groups, routes, chosen, reason, .. } = self.standing.clone();
        PlanDraft { groups, routes, chosen, reason }
    }
}

/// Groups of a draft that are not there.
pub(super) fn new_groups<'d>(standing: &Plan, draft: &'d PlanDraft) -> impl Iterator<Item = &'d Group> {
    let there: BTreeSet<GroupId> = standing.groups.iter().map(|g| g.id).collect();
    draft.groups.iter().filter(move |g| !there.contains(&g.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Advert, Epoch, LayerRange, Link, PartialModel, PathKind, Phase, Term};

    /// Values a plan by how many peers it has.
    #[derive(Debug)]
    struct ByPeers;

    impl Planner for ByPeers {
        fn plan(&self, _: &Members<'_>, _: &PlanOptions, _: Option<&Plan>) -> PlanDraft {
            drafted(vec![])
        }

        fn flip(&self, _: &Plan, _: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
            None
        }

        fn grow(&self, _: &Plan, _: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
            None
        }

        fn value(&self, plan: &Plan, _: &Members<'_>, _: &PlanOptions) -> f64 {
            plan.peers().len() as f64
        }
    }

    fn drafted(groups: Vec<Group>) -> PlanDraft {
        PlanDraft { groups, routes: vec![], chosen: vec![], reason: String::new() }
    }

    /// A group of these peers, which have equal parts of the four layers.
    fn group(peers: &[u8]) -> Group {
        let each = 4 / peers.len() as u32;
        let layers = |n: u32| LayerRange { start: each * n, end: each * (n + 1) };
        let stage = |(n, peer): (u32, &u8)| Stage { peer: PeerId([*peer; 32]), device: 0, layers: layers(n) };
        Group::new(sample::card().id, Phase::Mixed, (0..).zip(peers).map(stage).collect())
    }

    /// Whether the second of two peers is given half of what the first has, when it has to fetch that in so many seconds.
    fn moves(seconds: f64, wish: &PlanOptions) -> bool {
        let bytes = sample::card().shape.stage_bytes(LayerRange { start: 2, end: 4 }) as f64;
        let link = Link {
            to: PeerId([1; 32]),
            latency: Seconds(0.01),
            bandwidth: BytesPerSecond(bytes / seconds),
            path: PathKind::Direct,
        };
        let holder = Advert { links: vec![link], ..sample::advert(0) };
        let fetcher = Advert { partial: vec![PartialModel::of(sample::card().id, [0])], ..sample::advert(1) };
        let members: Members<'_> = [(PeerId([0; 32]), &holder), (PeerId([1; 32]), &fetcher)].into();
        let (epoch, term, groups) = (Epoch(0), Term(0), vec![group(&[0])]);
        let standing =
            Plan { epoch, term, parent: None, groups, routes: vec![], chosen: vec![], reason: String::new() };
        let (planner, horizon) = (&ByPeers, Duration::from_secs(600));
        let judge = PlanJudge { planner, members: &members, wish, standing: &standing, margin: 0.1, horizon };
        let full = drafted(vec![group(&[0, 1])]);
        let is_better = judge.is_better(&full);
        let chosen = judge.chosen(None, full.clone());
        assert_eq!(chosen == full, is_better || wish.layout.is_some());
        is_better
    }

    #[test]
    fn layers_move_to_who_has_to_fetch_them_where_that_pays_within_the_horizon() {
        let wish = PlanOptions::default();
        // Twice as good, but for the time that it fetches.
        for (seconds, pays) in [(1.0, true), (600.0, true), (3000.0, true), (3300.0, false), (36_000.0, false)] {
            assert_eq!(moves(seconds, &wish), pays, "{seconds}");
        }
        let laid_out = PlanOptions { layout: Some("mixed=2".parse().unwrap()), ..wish };
        assert!(moves(36_000.0, &laid_out), "who wants it so waits");
    }
}
