//! Plan flow 6: what is served while one plan gives way to the next.
//!
//! An adopted plan's new groups have to be loaded first. Until they are up, those of the plan before go on taking requests, as
//! far as all their peers are there and willing; then gateways change over, and a little later hosts let the old groups drain.
//! Every peer decides this for itself, model by model, from what leaders say of their groups. A request is sent to groups of
//! one plan only.

use crate::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Group, GroupId, Load, ModelId, PeerId, Plan, Route};

/// How long groups take requests after this peer has changed over: others' gateways may hear of the new ones later.
const LINGER: Duration = Duration::from_secs(3);
/// After so long a plan of which something is up is followed, though it carries less than the one before: what is not up by
/// then may never be.
const LATE: Duration = Duration::from_secs(300);
/// What groups carry that no route leads through: a request may be sent to one of them all the same.
const LITTLE: f64 = 1e-6;
/// Shares are summed up in other orders.
const ROUNDING: f64 = 1e-9;

/// What a peer sees of the swarm.
#[derive(Clone, Copy, Debug)]
pub struct ChangeoverView<'a> {
    /// Groups whose leaders say that they take requests.
    pub up: &'a BTreeMap<GroupId, Load>,
    /// Peers that are there, lend devices, and neither leave nor are cut off.
    pub staying: &'a BTreeSet<PeerId>,
}

impl ChangeoverView<'_> {
    fn is_sound(&self, group: &Group) -> bool {
        group.stages.iter().all(|stage| self.staying.contains(&stage.peer))
    }

    fn is_up(&self, group: &Group) -> bool {
        self.up.contains_key(&group.id) && self.is_sound(group)
    }
}

/// A model's part of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
struct PlanPart {
    groups: Vec<Group>,
    routes: Vec<Route>,
}

impl PlanPart {
    fn of(plan: &Plan, model: ModelId) -> Self {
        let groups = plan.groups.iter().filter(|g| g.model == model).cloned().collect();
        Self { groups, routes: plan.routes.clone() }.where_group(|_| true)
    }

    /// Those groups of it for which this is so, and the routes between them.
    fn where_group(mut self, is_so: impl Fn(&Group) -> bool) -> Self {
        self.groups.retain(is_so);
        let has = |id: GroupId| self.groups.iter().any(|g| g.id == id);
        self.routes.retain(|r| has(r.prefill) && has(r.decode));
        self
    }

    /// The part of its requests that groups can take which are up.
    fn carries(&self, view: ChangeoverView<'_>) -> f64 {
        let open = self.clone().where_group(|g| view.is_up(g));
        let shares = |routes: &[Route]| routes.iter().map(|r| r.share).sum::<f64>();
        let (open_share, whole) = (shares(&open.routes), shares(&self.routes));
        match open.groups.is_empty() {
            true => 0.0,
            // Ways that are there for queues alone count for no less than none.
            false if open_share > 0.0 => (open_share / whole).max(LITTLE),
            false => LITTLE,
        }
    }
}

/// A part of the plan before that is still followed.
#[derive(Clone, Debug)]
struct Before {
    part: PlanPart,
    /// When what came instead is late.
    late: Time,
}

/// Which plan one peer's gateway follows, and which groups its host keeps beside those of the adopted plan.
#[derive(Clone, Debug, Default)]
pub struct Changeover {
    adopted: Option<Arc<Plan>>,
    before: BTreeMap<ModelId, Before>,
    /// Groups that nobody here sends requests to any more, and until when they take them.
    lingering: BTreeMap<GroupId, (Group, Time)>,
    routed: Option<Arc<Plan>>,
    standing: BTreeSet<GroupId>,
    /// A stage of the adopted plan has no room here beside what stands.
    out_of_kv_pages: bool,
}

impl Changeover {
    /// A plan has taken effect. What gateways follow until then stays in force, for every model that the plan has.
    pub fn adopt(&mut self, now: Time, plan: Arc<Plan>, view: ChangeoverView<'_>) {
        let models: BTreeSet<ModelId> = plan.groups.iter().map(|g| g.model).collect();
        let old = self.adopted.replace(plan);
        let late = now + LATE;
        let of_old = |model: &ModelId| Some(Before { part: PlanPart::of(old.as_deref()?, *model), late });
        let mut before = std::mem::take(&mut self.before);
        let parts =
            models.into_iter().filter_map(|model| Some((model, before.remove(&model).or_else(|| of_old(&model))?)));
        self.before = parts.filter(|(_, b)| !b.part.groups.is_empty()).collect();
        self.out_of_kv_pages = false;
        self.look(now, view);
    }

    /// Hosts have to fetch for the plan that was adopted now, and that takes them so long: it is late as much later.
    pub fn waits_for_weights(&mut self, now: Time, takes: Duration) {
        let late = now + LATE + takes;
        self.before.values_mut().filter(|_| !takes.is_zero()).for_each(|before| before.late = before.late.max(late));
    }

    /// Time has gone by, or the swarm has changed.
    pub fn look(&mut self, now: Time, view: ChangeoverView<'_>) {
        let Some(adopted) = self.adopted.clone() else { return };
        let (over, before): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.before)
            .into_iter()
            .partition(|(model, before)| is_over(now, before, &PlanPart::of(&adopted, *model), view));
        self.before = before;
        for group in over.into_values().flat_map(|b| b.part.groups) {
            self.lingering.insert(group.id, (group, now + LINGER));
        }
        self.lingering.retain(|_, (group, until)| now < *until && view.is_sound(group));
        self.standing = self.to_keep(&adopted, view);
        let routed = self.to_follow(adopted, view);
        if self.routed.as_ref() != Some(&routed) {
            self.routed = Some(routed);
        }
    }

    /// A stage of the adopted plan does not fit beside what stands here: that goes first. What is led elsewhere of it ends there
    /// when this peer's stage has.
    pub fn make_room(&mut self) {
        self.out_of_kv_pages = true;
        self.standing.clear();
    }

    /// What gateways route by: the adopted plan, but for models whose groups are not up yet.
    #[must_use]
    pub fn routed(&self) -> Option<&Arc<Plan>> {
        self.routed.as_ref()
    }

    /// Groups that go on taking requests though the adopted plan does not have them.
    #[must_use]
    pub fn standing(&self) -> &BTreeSet<GroupId> {
        &self.standing
    }

    fn to_keep(&self, adopted: &Plan, view: ChangeoverView<'_>) -> BTreeSet<GroupId> {
        if self.out_of_kv_pages {
            return BTreeSet::new();
        }
        let before = self.before.values().flat_map(|b| &b.part.groups);
        let all = before.chain(self.lingering.values().map(|(group, _)| group));
        all.filter(|g| view.is_sound(g) && adopted.group(g.id).is_none()).map(|g| g.id).collect()
    }

    fn to_follow(&self, adopted: Arc<Plan>, view: ChangeoverView<'_>) -> Arc<Plan> {
        if self.before.is_empty() {
            return adopted;
        }
        let mut plan = Plan { groups: Vec::new(), routes: Vec::new(), ..(*adopted).clone() };
        let models: BTreeSet<ModelId> = adopted.groups.iter().map(|g| g.model).collect();
        for model in models {
            let part = match self.before.get(&model) {
                Some(before) => before.part.clone().where_group(|g| view.is_sound(g)),
                None => PlanPart::of(&adopted, model),
            };
            plan.groups.extend(part.groups);
            plan.routes.extend(part.routes);
        }
        Arc::new(plan)
    }
}

/// Whether what came instead carries as much as what is left of the part before, or is late and carries something. Groups that
/// are down for a moment are waited for, as long as nothing else is up.
fn is_over(now: Time, before: &Before, new: &PlanPart, view: ChangeoverView<'_>) -> bool {
    let (old, new) = (before.part.carries(view), new.carries(view));
    let (is_left, is_late) = (before.part.groups.iter().any(|g| view.is_sound(g)), now >= before.late);
    match new > 0.0 {
        true => new + ROUNDING >= old || is_late,
        false => old == 0.0 && (!is_left || is_late),
    }
}
