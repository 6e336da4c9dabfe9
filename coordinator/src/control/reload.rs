//! Plan flow 4: whether a plan is worth changing to. It is reckoned as if who serves in a group that goes served nothing until
//! what comes instead has been loaded (ThunderServe §3.4: "it would lead to severe interruption"): hosts that have room for both
//! stages serve on ([`crate::changeover`]), but that they have is not known here.

use crate::{
    members::Members,
    planner::{Draft, Planner, Wish, live},
    scheduler::light,
    traffic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{Bytes, BytesPerSecond, Group, GroupId, ModelId, PeerId, Plan, Seconds, Stage};

/// Rate at which a host gets weights from its disk, of which adverts say nothing: ThunderServe's Table 4 has 103 s for
/// reloading LLaMA-30B, 65 GB in 16 bit.
const LOADS: BytesPerSecond = BytesPerSecond(0.6e9);

/// Drafts held against the plan that stands.
pub(super) struct Judge<'a> {
    pub planner: &'a dyn Planner,
    pub members: &'a Members<'a>,
    pub wish: &'a Wish,
    pub standing: &'a Plan,
    /// Part by which a plan must be better.
    pub margin: f64,
    /// Over which it must repay its loading.
    pub horizon: Duration,
}

impl Judge<'_> {
    /// The draft that is left of these: the light one unless the full one repays what it interrupts. Where there is no light
    /// one, the plan itself is that.
    pub fn chosen(&self, light: Option<Draft>, full: Draft) -> Draft {
        let light = light.unwrap_or_else(|| self.as_it_stands());
        let laid_out = self.wish.layout.is_some();
        let repays = || !self.only_swaps(&full) && self.repays(&full, &light);
        if !full.groups.is_empty() && (laid_out || repays()) { full } else { light }
    }

    /// Whether all that a draft does for models that are asked for is to put some into the place of others, where devices do not
    /// hold all at once. Of a busy one fewer requests are in time: by values it would go whenever another is asked for at all.
    fn only_swaps(&self, draft: &Draft) -> bool {
        let is_asked = |model: &ModelId| traffic::together(*model, self.members).is_some();
        let asked =
            |groups: &[Group]| -> BTreeSet<ModelId> { groups.iter().map(|g| g.model).filter(is_asked).collect() };
        let (before, after) = (asked(&self.standing.groups), asked(&draft.groups));
        live::is_scarce(self.members) && after.len() <= before.len() && !before.is_subset(&after)
    }

    /// Whether a draft is better than what stands, by more than views differ.
    pub fn is_better(&self, draft: &Draft) -> bool {
        let Plan { groups, routes, .. } = self.standing;
        let same = draft.groups == *groups && draft.routes == *routes;
        !same && self.worth(draft) > self.worth(&self.as_it_stands()) * (1.0 + self.margin)
    }

    /// Whether a draft gives work to a peer that has none.
    pub fn takes_in(&self, draft: &Draft) -> bool {
        let used = self.standing.peers();
        draft.groups.iter().flat_map(|g| &g.stages).any(|s| !used.contains(&s.peer))
    }

    /// Whether a draft has no group that is not there.
    pub fn loads_nothing(&self, draft: &Draft) -> bool {
        new_groups(self.standing, draft).next().is_none()
    }

    fn repays(&self, full: &Draft, light: &Draft) -> bool {
        let (better, good) = (self.worth(full), self.worth(light));
        let horizon = Seconds(self.horizon.as_secs_f64());
        let (changing, loading) = (self.changing(full), self.loading(full));
        better > good * (1.0 + self.margin) && light::repays(better, good, changing, loading, horizon)
    }

    /// Part of the devices that serve now whose groups the draft does not have.
    fn changing(&self, draft: &Draft) -> f64 {
        let kept: BTreeSet<GroupId> = draft.groups.iter().map(|g| g.id).collect();
        let devices = |groups: &mut dyn Iterator<Item = &Group>| groups.map(|g| g.stages.len()).sum::<usize>() as f64;
        let go = devices(&mut self.standing.groups.iter().filter(|g| !kept.contains(&g.id)));
        go / devices(&mut self.standing.groups.iter()).max(1.0)
    }

    /// What the slowest host takes to load its new stages: hosts load beside each other, and one stage after the other.
    fn loading(&self, draft: &Draft) -> Seconds {
        let mut bytes: BTreeMap<PeerId, u64> = BTreeMap::new();
        for group in new_groups(self.standing, draft) {
            for stage in &group.stages {
                *bytes.entry(stage.peer).or_default() += self.bytes(group, stage);
            }
        }
        Bytes(bytes.into_values().max().unwrap_or_default() as f64) / LOADS
    }

    fn bytes(&self, group: &Group, stage: &Stage) -> u64 {
        let card = self.members.get(&stage.peer).and_then(|a| a.models.iter().find(|m| m.id == group.model));
        card.map_or(0, |card| card.shape.stage_bytes(stage.layers))
    }

    fn worth(&self, draft: &Draft) -> f64 {
        let plan = Plan { groups: draft.groups.clone(), routes: draft.routes.clone(), ..self.standing.clone() };
        self.planner.value(&plan, self.members, self.wish)
    }

    fn as_it_stands(&self) -> Draft {
        let Plan { groups, routes, chosen, reason, .. } = self.standing.clone();
        Draft { groups, routes, chosen, reason }
    }
}

fn new_groups<'d>(standing: &Plan, draft: &'d Draft) -> impl Iterator<Item = &'d Group> {
    let there: BTreeSet<GroupId> = standing.groups.iter().map(|g| g.id).collect();
    draft.groups.iter().filter(move |g| !there.contains(&g.id))
}
