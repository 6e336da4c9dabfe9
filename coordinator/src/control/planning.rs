//! Plan flow 4: what the planner is asked, and whether its answer still fits when it comes. Searching takes seconds in a
//! large swarm, in which a peer goes on hearing and speaking: whoever drives the machine has the planner asked elsewhere.

use super::{
    Action, Control, Infeasible, plan_check,
    reload::{PlanJudge, new_groups},
    swap::{self, Swap},
    swapping,
};
use crate::{
    Time,
    members::Members,
    planner::{
        PlanDraft, PlanOptions, Planner,
        fetching::{self, HORIZON, Holdings},
        spare_routes,
    },
    settings::SwarmSettings,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Advert, Group, ModelId, PeerId, Plan, PolicyChoice};

/// How long the planner rests at least before it searches again for links alone, and how many times as long as it has searched: on a
/// large swarm a search takes seconds of a core, and what it found for links of a moment ago is hardly worse.
const REST: Duration = Duration::from_secs(3);
const REST_SHARE: u32 = 20;
/// And at most: a link may have become another for good.
const REST_MOST: Duration = Duration::from_secs(60);
/// How many plans are looked for in which a model has its turn.
const SWAPS_TRIED: usize = 6;

/// What the planner is asked: the swarm as it was then.
#[derive(Clone, Debug)]
pub struct PlannerInput {
    members: BTreeMap<PeerId, Arc<Advert>>,
    standing: Option<Arc<Plan>>,
    wish: PlanOptions,
    margin: f64,
    horizon: Duration,
    /// A plan is wanted even if what stands is as good: another one is to be settled.
    disputed: bool,
    /// A model's turn in memory has come.
    swap: Option<Swap>,
}

impl PlannerInput {
    /// The draft that should replace the plan in force, if one should. This is the search: it may take seconds.
    #[must_use]
    pub fn answer(&self, planner: &dyn Planner) -> Option<PlanDraft> {
        let members = self.members.iter().map(|(peer, advert)| (*peer, &**advert)).collect();
        let draft = self.regrouped(planner, &members);
        self.with_routing(planner, &members, draft)
    }

    /// A draft with what is chosen to route requests and form steps by on it. Where groups stay as they are, another choice, or
    /// other ways for it, is reason enough for another plan: nothing is loaded for it.
    fn with_routing(
        &self,
        planner: &dyn Planner,
        members: &Members<'_>,
        draft: Option<PlanDraft>,
    ) -> Option<PlanDraft> {
        let standing = self.standing.as_deref();
        let before = standing.map_or(&[][..], |plan| &plan.chosen);
        if standing.is_some_and(|plan| plan_check::feasible(&plan.groups, members).is_err()) {
            // After a loss what is left goes on at once, as it was.
            return draft.map(|draft| spared(PlanDraft { chosen: before.to_vec(), ..draft }, members));
        }
        if let Some(draft) = draft {
            let chosen = planner.choose(&draft, members, &self.wish, before);
            return Some(spared(PlanDraft { chosen, ..draft }, members));
        }
        let standing = standing?;
        let Plan { groups, routes, chosen, reason, .. } = standing.clone();
        let as_it_stands = PlanDraft { groups, routes, chosen, reason };
        let chosen = planner.choose(&as_it_stands, members, &self.wish, before);
        let is_there =
            |choice: &PolicyChoice| before.iter().any(|b| (b.model, b.policy) == (choice.model, choice.policy));
        let is_chosen_anew = !chosen.iter().all(is_there);
        let draft = spared(PlanDraft { chosen, ..as_it_stands }, members);
        (is_chosen_anew || draft.routes != standing.routes).then_some(draft)
    }

    /// The draft whose groups and routes should replace those in force, if some should, ways for queues alone left out.
    fn regrouped(&self, planner: &dyn Planner, members: &Members<'_>) -> Option<PlanDraft> {
        let wish = &self.wish;
        let full = || planner.plan(members, wish, self.standing.as_deref());
        let anew = || Some(full()).filter(|draft| !draft.groups.is_empty());
        let Some(standing) = self.standing.as_deref() else { return anew() };
        // After a loss, what stands goes on at once; what else could be done is looked for when that is in force.
        let is_feasible = |draft: &PlanDraft| plan_check::feasible(&draft.groups, members).is_ok();
        if plan_check::feasible(&standing.groups, members).is_err() {
            return planner.flip(standing, members, wish).filter(is_feasible).or_else(anew);
        }
        if let Some(swapped) = self.swapped(planner, members, standing) {
            return Some(swapped);
        }
        let (margin, horizon) = (self.margin, self.horizon);
        let judge = PlanJudge { planner, members, wish, standing, margin, horizon };
        let light = planner.grow(standing, members, wish).filter(is_feasible);
        // So does what is better and loads nothing.
        let at_once = light.as_ref().filter(|draft| !self.disputed && judge.loads_nothing(draft));
        if let Some(flipped) = at_once.filter(|draft| judge.is_better(draft)) {
            return Some(flipped.clone());
        }
        let chosen = judge.chosen(light, full());
        (self.disputed || judge.takes_in(&chosen) || judge.is_better(&chosen)).then_some(chosen)
    }

    /// The draft in which a model whose turn has come is served where others were that may go, and none else goes: with all other
    /// groups as they stand, or with groups made anew.
    fn swapped(&self, planner: &dyn Planner, members: &Members<'_>, standing: &Plan) -> Option<PlanDraft> {
        let swap = self.swap.as_ref()?;
        let here: BTreeSet<ModelId> = standing.groups.iter().map(|group| group.model).collect();
        let served = || members.values().flat_map(|advert| &advert.devices).flat_map(|device| &device.serves);
        let tries = swap.tries(members, &standing.groups);
        // What nobody gives, or is fetched for too long, would take others' places and serve nobody.
        let holdings = Holdings::of(members);
        let comes_in_time = |draft: &PlanDraft| {
            let new: Vec<Group> = new_groups(standing, draft).cloned().collect();
            holdings.as_ref().is_none_or(|holdings| fetching::takes(&holdings.fetches(&new)).0 < HORIZON.0)
        };
        tries.into_iter().take(SWAPS_TRIED).find_map(|(comes, go)| {
            let others = served().map(|served| served.model).filter(|model| !here.contains(model) && *model != comes);
            let hidden: BTreeSet<ModelId> = go.iter().copied().chain(others).collect();
            let adverts = swap::without(members, &hidden);
            let view: Members<'_> = adverts.iter().map(|(peer, advert)| (*peer, advert)).collect();
            // Others judge it by views of their own, and would refuse one that takes from those that stay.
            let value = |plan: &Plan| planner.value(plan, members, &self.wish);
            let takes_nothing = |draft: &PlanDraft| {
                let plan = Plan { groups: draft.groups.clone(), ..standing.clone() };
                swapping::is_as_good(&plan, standing, self.margin / 2.0, value)
            };
            let is_right = |draft: &PlanDraft| {
                let serves = |model: ModelId| draft.groups.iter().any(|group| group.model == model);
                let stay = here.difference(&go).all(|model| serves(*model));
                let fits = plan_check::feasible(&draft.groups, members).is_ok();
                serves(comes) && stay && fits && comes_in_time(draft) && takes_nothing(draft)
            };
            let light = planner.grow(standing, &view, &self.wish).filter(is_right);
            light.or_else(|| Some(planner.plan(&view, &self.wish, Some(standing))).filter(is_right))
        })
    }

    /// Who waits first, if no place was found for it, though there is nothing that it could wait for.
    fn waits_in_vain(&self, draft: Option<&PlanDraft>) -> Option<ModelId> {
        let (swap, standing) = (self.swap.as_ref()?, self.standing.as_deref()?);
        let first = *swap.waits.first()?;
        let members: Members<'_> = self.members.iter().map(|(peer, advert)| (*peer, &**advert)).collect();
        // After a loss nobody's turn was looked at.
        let stands = plan_check::feasible(&standing.groups, &members).is_ok();
        let is_served = draft.is_some_and(|draft| draft.groups.iter().any(|group| group.model == first));
        (stands && !is_served && swap.is_in_vain(first, &members, &standing.groups)).then_some(first)
    }

    /// Whether the same devices are there for the same models, and the same is set; links are measured anew all the time.
    fn is_of(&self, now: &Members<'_>) -> bool {
        if SwarmSettings::of(self.members.values().map(|a| &**a)) != SwarmSettings::of(now.values().copied()) {
            return false;
        }
        let lends = |a: &Advert| !a.devices.is_empty();
        let then = self.members.iter().map(|(peer, a)| (peer, &**a)).filter(|(_, a)| lends(a));
        let now = now.iter().map(|(peer, a)| (peer, *a)).filter(|(_, a)| lends(a));
        then.map(|(peer, a)| (peer, &a.devices, &a.models)).eq(now.map(|(peer, a)| (peer, &a.devices, &a.models)))
    }
}

/// A draft with the ways that are there for queues alone.
fn spared(draft: PlanDraft, members: &Members<'_>) -> PlanDraft {
    let routes = spare_routes::routes(&draft.groups, &draft.routes, &draft.chosen, members);
    PlanDraft { routes, ..draft }
}

/// How far this peer is with a plan of its own.
#[derive(Clone, Debug, Default)]
pub(super) enum Planning {
    /// The planner was not asked since the view changed.
    #[default]
    Idle,
    /// It is at work; its turn had come when it was asked.
    Asked(Arc<PlannerInput>),
    /// What it found for this view: none where what stands is as good.
    Found {
        draft: Option<PlanDraft>,
        /// To settle a dispute.
        disputed: bool,
        /// The turn in which it was asked is not used up.
        due: bool,
    },
}

impl Planning {
    /// What it looks at has changed. A search that is under way is let come to its end.
    pub(super) fn view_changed(&mut self) {
        if matches!(self, Self::Found { .. }) {
            *self = Self::Idle;
        }
    }

    /// Whether nothing better than what stands was found.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self, Self::Found { draft: None, .. })
    }

    /// Whether an answer waits to be proposed.
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Found { draft: Some(_), due: true, .. })
    }
}

/// When links that were measured anew are reason enough to search again: they are all the time, wherever something runs beside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SearchPause {
    /// When the planner was asked last.
    asked: Time,
    /// Until when it rests.
    until: Time,
    /// Links were measured anew since its answer.
    is_stale: bool,
}

impl SearchPause {
    fn asked(&mut self, now: Time) {
        *self = Self { asked: now, is_stale: false, ..*self };
    }

    fn answered(&mut self, now: Time) {
        let took = now.saturating_sub(self.asked);
        self.until = now + (took * REST_SHARE).clamp(REST, REST_MOST);
    }

    /// Whether an answer is to be forgotten for what was measured since.
    fn is_over(&self, now: Time) -> bool {
        self.is_stale && now >= self.until
    }
}

impl Control {
    /// Links were measured anew: what follows is found out by and by.
    pub(super) fn links_changed(&mut self) {
        self.derived = None;
        self.turn.rest.is_stale = true;
    }

    /// Forgets an answer for new links, once the planner has rested.
    pub(super) fn end_rest(&mut self) {
        if self.turn.rest.is_over(self.now) {
            self.turn.rest.is_stale = false;
            self.view_changed();
        }
    }

    /// What there is to propose. Asks the planner where that is not known.
    pub(super) fn draft(&mut self, disputed: bool, out: &mut Vec<Action>) -> Option<PlanDraft> {
        match &mut self.turn.planning {
            Planning::Asked(_) => return None,
            Planning::Found { draft: None, disputed: false, .. } if disputed => {}
            Planning::Found { draft, due, .. } => {
                *due = false;
                return draft.clone();
            }
            Planning::Idle => {}
        }
        let question = Arc::new(self.question(disputed));
        self.turn.rest.asked(self.now);
        self.turn.planning = Planning::Asked(question.clone());
        out.push(Action::AskPlanner(question));
        None
    }

    fn question(&self, disputed: bool) -> PlannerInput {
        let planned = self.planned().filter_map(|(peer, m)| Some((*peer, m.advert.clone()?)));
        PlannerInput {
            members: planned.collect(),
            standing: self.adoption.adopted.as_ref().map(|a| a.plan.clone()),
            wish: self.config.wish.clone(),
            margin: self.config.margin,
            horizon: self.config.horizon,
            disputed,
            swap: self.swap(),
        }
    }

    /// The planner's answer. The swarm may be another by now.
    pub(super) fn planned_this(&mut self, draft: Option<PlanDraft>) {
        let Planning::Asked(question) = std::mem::take(&mut self.turn.planning) else { return };
        self.turn.rest.answered(self.now);
        self.next_look = self.now;
        if let Some(model) = question.waits_in_vain(draft.as_ref()) {
            self.swapping.was_in_vain(self.now, model);
        }
        if self.still_answers(&question, draft.as_ref()) {
            self.turn.planning = Planning::Found { draft, disputed: question.disputed, due: true };
        }
    }

    /// Whether an answer is one to what would be asked now. Where no plan fits any more, one that does is not thrown away
    /// for leaving newcomers out.
    fn still_answers(&self, question: &PlannerInput, draft: Option<&PlanDraft>) -> bool {
        if question.standing.as_ref().map(|p| p.id()) != self.plan_id() {
            return false;
        }
        let members = self.planned_members();
        let same_devices = question.is_of(&members);
        let feasible = |groups: &[_]| -> Result<(), Infeasible> { plan_check::feasible(groups, &members) };
        let stands = self.adoption.adopted.as_ref().is_some_and(|a| feasible(&a.plan.groups).is_ok());
        // Turns come and end while the planner is at work: what it found holds where all that goes may still go, and after a loss
        // whoever's turn it is.
        let holds = || question.swap == self.swap() || draft.is_some_and(|draft| self.may_go_now(draft));
        if stands && !holds() {
            return false;
        }
        match draft {
            Some(draft) => feasible(&draft.groups).is_ok() && (same_devices || !stands),
            None => same_devices && stands == question.standing.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{
        Epoch, LayerRange, PartialModel, Phase, Route, RoutePolicy, SettingKey, SettingValue, Stage, SwarmSetting, Term,
    };

    fn question() -> Arc<PlannerInput> {
        let (members, wish, horizon) = (BTreeMap::new(), PlanOptions::default(), Duration::ZERO);
        Arc::new(PlannerInput { members, standing: None, wish, margin: 0.0, horizon, disputed: false, swap: None })
    }

    fn draft() -> PlanDraft {
        PlanDraft { groups: Vec::new(), routes: Vec::new(), chosen: Vec::new(), reason: "a test".into() }
    }

    fn found(draft: Option<PlanDraft>) -> Planning {
        Planning::Found { draft, disputed: false, due: true }
    }

    #[test]
    fn an_answer_is_forgotten_with_the_view_it_was_for_and_a_search_is_not() {
        for (mut planning, stays) in
            [(found(None), false), (found(Some(draft())), false), (Planning::Asked(question()), true)]
        {
            planning.view_changed();
            assert_eq!(matches!(planning, Planning::Asked(_)), stays);
            assert_eq!(matches!(planning, Planning::Idle), !stays);
        }
    }

    /// Has the second model in the first one's place; any plan is worth as much.
    #[derive(Debug)]
    struct Second;

    impl Planner for Second {
        fn plan(&self, _: &Members<'_>, _: &PlanOptions, _: Option<&Plan>) -> PlanDraft {
            PlanDraft { groups: vec![group(2)], ..draft() }
        }

        fn flip(&self, _: &Plan, _: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
            None
        }

        fn grow(&self, _: &Plan, _: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
            None
        }

        fn value(&self, _: &Plan, _: &Members<'_>, _: &PlanOptions) -> f64 {
            1.0
        }
    }

    fn group(model: u8) -> Group {
        let stage = Stage { peer: PeerId([0; 32]), device: 0, layers: LayerRange { start: 0, end: 4 } };
        Group::new(ModelId([model; 16]), Phase::Mixed, vec![stage])
    }

    #[test]
    fn no_model_gives_its_place_to_one_that_nobody_gives() {
        let [one, two] = [1, 2].map(|n| ModelId([n; 16]));
        let mut whole = sample::lends_several(0, sample::cards(2));
        let device = &mut whole.devices[0];
        let part = device.memory_bytes / 4 * 3;
        device.serves.iter_mut().for_each(|served| served.memory_bytes = part);
        let fetches = Advert { partial: vec![PartialModel::of(two, [])], ..whole.clone() };
        let gives = Advert { devices: vec![], ..whole.clone() };
        let swaps = |adverts: &[&Advert]| {
            let members = (0..).map(|n| PeerId([n; 32])).zip(adverts.iter().map(|a| Arc::new(Advert::clone(a))));
            let (epoch, term, groups) = (Epoch(0), Term(0), vec![group(1)]);
            let standing =
                Plan { epoch, term, parent: None, groups, routes: vec![], chosen: vec![], reason: String::new() };
            let (waits, claims, idle, over) = (vec![two], BTreeSet::new(), BTreeSet::from([one]), vec![]);
            let question = PlannerInput {
                members: members.collect(),
                standing: Some(Arc::new(standing)),
                swap: Some(Swap { waits, claims, idle, over }),
                ..PlannerInput::clone(&question())
            };
            let answer = question.answer(&Second);
            let in_vain = question.waits_in_vain(answer.as_ref()).is_some();
            assert_ne!(answer.is_some(), in_vain);
            answer.is_some()
        };
        assert!(swaps(&[&whole]) && swaps(&[&fetches, &gives]));
        assert!(!swaps(&[&fetches]));
    }

    #[test]
    fn where_requests_are_pooled_from_now_on_another_plan_has_ways_for_that_and_is_the_same_but_for_them() {
        let layers = LayerRange { start: 0, end: 4 };
        let on = |(n, phase): (u8, Phase)| {
            Group::new(sample::card().id, phase, vec![Stage { peer: PeerId([n; 32]), device: 0, layers }])
        };
        let phases = [Phase::Prefill, Phase::Prefill, Phase::Decode, Phase::Decode];
        let groups: Vec<Group> = (0..).zip(phases).map(on).collect();
        let route = |a: usize, b: usize| Route { prefill: groups[a].id, decode: groups[b].id, share: 0.5 };
        let routes = vec![route(0, 2), route(1, 3)];
        let answer = |settings: &[SwarmSetting]| {
            let (epoch, term, groups, routes) = (Epoch(0), Term(0), groups.clone(), routes.clone());
            let standing = Plan { epoch, term, parent: None, groups, routes, chosen: vec![], reason: String::new() };
            let advert = |n: u8| Advert { settings: settings.to_vec(), ..sample::advert(n.into()) };
            let members = (0..4).map(|n| (PeerId([n; 32]), Arc::new(advert(n)))).collect();
            let standing = Some(Arc::new(standing));
            PlannerInput { members, standing, ..PlannerInput::clone(&question()) }.answer(&Second)
        };
        assert_eq!(answer(&[]), None);
        let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(RoutePolicy::Pools)));
        let pooled = answer(&[SwarmSetting { key, value, at: 1, by: PeerId([0; 32]) }]).unwrap();
        assert_eq!((&pooled.groups, &pooled.routes[..2], pooled.routes.len()), (&groups, &routes[..], 4));
    }

    #[test]
    fn a_peer_is_settled_when_nothing_better_was_found_and_due_when_something_waits() {
        let told = |planning: Planning| (planning.is_settled(), planning.is_due());
        assert_eq!(told(Planning::Idle), (false, false));
        assert_eq!(told(Planning::Asked(question())), (false, false));
        assert_eq!(told(found(None)), (true, false));
        assert_eq!(told(found(Some(draft()))), (false, true));
        assert_eq!(told(Planning::Found { draft: Some(draft()), disputed: true, due: false }), (false, false));
    }

    #[test]
    fn the_planner_rests_as_long_as_it_searched_many_times() {
        let (at, mut rest) = (Time::from_secs, SearchPause::default());
        rest.is_stale = true;
        assert!(rest.is_over(at(0)), "nothing was asked yet");
        rest.asked(at(10));
        rest.answered(at(10));
        assert!(!rest.is_over(at(20)), "links are as they were");
        rest.is_stale = true;
        assert_eq!([12, 13].map(|now| rest.is_over(at(now))), [false, true]);
        rest.asked(at(20));
        rest.answered(at(22));
        rest.is_stale = true;
        assert_eq!([61, 62].map(|now| rest.is_over(at(now))), [false, true]);
    }
}
