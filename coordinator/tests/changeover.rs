//! What is served while one plan gives way to the next: no moment without groups, and none that keeps what is not wanted.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    changeover::{Changeover, ChangeoverView},
    sample,
};
use tsnode_protocol::{Group, GroupId, LayerRange, Load, ModelId, PeerId, Phase, Plan, Route, Stage, Term};

const MODEL: ModelId = ModelId([1; 16]);
const OTHER: ModelId = ModelId([2; 16]);

/// A group of one stage on each of these peers.
fn group_of(model: ModelId, peers: &[u8]) -> Group {
    let all = peers.len() as u32;
    let stage = |(n, peer): (u32, &u8)| Stage {
        peer: PeerId([*peer; 32]),
        device: 0,
        layers: LayerRange { start: 12 * n / all, end: 12 * (n + 1) / all },
    };
    Group::new(model, Phase::Mixed, (0..).zip(peers).map(stage).collect())
}

fn group(peers: &[u8]) -> Group {
    group_of(MODEL, peers)
}

/// Every group does both, and gets an equal share of its model's requests.
fn plan(term: u32, groups: &[Group]) -> Arc<Plan> {
    let of_model = |model| groups.iter().filter(|g| g.model == model).count() as f64;
    let route = |g: &Group| Route { prefill: g.id, decode: g.id, share: 1.0 / of_model(g.model) };
    let routes = groups.iter().map(route).collect();
    Arc::new(Plan { term: Term(term), ..sample::plan(groups.to_vec(), routes) })
}

/// One peer through a change of plans.
struct Scenario {
    changeover: Changeover,
    up: BTreeMap<GroupId, Load>,
    staying: BTreeSet<PeerId>,
    now: Duration,
}

impl Scenario {
    /// Ten peers that follow a plan of these groups, all up.
    fn under(groups: &[Group]) -> Self {
        let staying = (0..10).map(|n| PeerId([n; 32])).collect();
        let mut scenario =
            Self { changeover: Changeover::default(), up: BTreeMap::new(), staying, now: Duration::from_secs(100) };
        scenario.adopts(1, groups);
        groups.iter().for_each(|g| scenario.comes_up(g));
        scenario
    }

    fn adopts(&mut self, term: u32, groups: &[Group]) {
        let view = ChangeoverView { up: &self.up, staying: &self.staying };
        self.changeover.adopt(self.now, plan(term, groups), view);
    }

    fn look(&mut self) {
        self.changeover.look(self.now, ChangeoverView { up: &self.up, staying: &self.staying });
    }

    fn comes_up(&mut self, group: &Group) {
        self.up.insert(group.id, Load::default());
        self.look();
    }

    fn goes_down(&mut self, group: &Group) {
        self.up.remove(&group.id);
        self.look();
    }

    fn goes(&mut self, peer: u8) {
        self.staying.remove(&PeerId([peer; 32]));
        self.look();
    }

    fn waits(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.look();
    }

    /// Whether requests go to exactly these.
    fn follows(&self, groups: &[&Group]) -> bool {
        let routed = self.changeover.routed().unwrap();
        let ids = |groups: &mut dyn Iterator<Item = &Group>| groups.map(|g| g.id).collect::<BTreeSet<_>>();
        let has = |id| groups.iter().any(|g| g.id == id);
        assert!(routed.routes.iter().all(|r| has(r.prefill) && has(r.decode)), "routes lead to nowhere");
        ids(&mut routed.groups.iter()) == ids(&mut groups.iter().copied())
    }

    /// Whether exactly these are kept beside the adopted plan's.
    fn keeps(&self, groups: &[&Group]) -> bool {
        *self.changeover.standing() == groups.iter().map(|g| g.id).collect()
    }
}

#[test]
fn the_old_groups_serve_until_the_new_ones_are_up_and_linger_for_those_who_hear_late() {
    let (old, new) = ([group(&[1]), group(&[2])], [group(&[1, 2]), group(&[3])]);
    let mut scenario = Scenario::under(&old);
    scenario.adopts(2, &new);
    scenario.waits(60.0);
    assert!(scenario.follows(&[&old[0], &old[1]]) && scenario.keeps(&[&old[0], &old[1]]));
    scenario.comes_up(&new[0]);
    assert!(scenario.follows(&[&old[0], &old[1]]), "half of it carries half");
    scenario.comes_up(&new[1]);
    assert!(scenario.follows(&[&new[0], &new[1]]) && scenario.keeps(&[&old[0], &old[1]]));
    scenario.waits(2.9);
    assert!(scenario.keeps(&[&old[0], &old[1]]));
    scenario.waits(0.1);
    assert!(scenario.keeps(&[]));
}

#[test]
fn what_has_to_be_fetched_is_waited_for_as_much_longer() {
    let (old, new) = ([group(&[1]), group(&[2])], [group(&[1, 2]), group(&[3])]);
    for (fetching, is_late) in [(0, true), (900, false)] {
        let mut scenario = Scenario::under(&old);
        scenario.adopts(2, &new);
        scenario.changeover.waits_for_weights(scenario.now, Duration::from_secs(fetching));
        scenario.comes_up(&new[1]);
        scenario.waits(301.0);
        let followed = if is_late { &new } else { &old };
        assert!(scenario.follows(&[&followed[0], &followed[1]]), "{fetching}");
        scenario.waits(900.0);
        assert!(scenario.follows(&[&new[0], &new[1]]), "it may never come");
    }
}

#[test]
fn who_goes_is_let_go_at_once() {
    let (a, b, c) = (group(&[1, 2]), group(&[3, 4]), group(&[2, 5]));
    let mut scenario = Scenario::under(&[a.clone(), b.clone()]);
    scenario.goes(1);
    scenario.adopts(2, &[b.clone(), c.clone()]);
    assert!(scenario.keeps(&[]), "a peer of the group wants its machine back");
    assert!(scenario.follows(&[&b, &c]), "what stands of both plans is the same");
    // Also when it goes while plans change.
    let mut scenario = Scenario::under(&[a.clone(), b.clone()]);
    scenario.adopts(2, &[group(&[1, 2, 3, 4])]);
    assert!(scenario.keeps(&[&a, &b]));
    scenario.goes(4);
    assert!(scenario.keeps(&[&a]) && scenario.follows(&[&a]));
    scenario.goes(1);
    assert!(scenario.keeps(&[]) && scenario.follows(&[&group(&[1, 2, 3, 4])]), "there is nothing to go on with");
}

#[test]
fn phases_that_flip_are_followed_at_once() {
    let old = [group(&[1]), group(&[2])];
    let mut scenario = Scenario::under(&old);
    let flipped = [Group { phase: Phase::Prefill, ..old[0].clone() }, Group { phase: Phase::Decode, ..old[1].clone() }];
    scenario.adopts(2, &flipped);
    assert_eq!(scenario.changeover.routed().unwrap().groups, flipped);
    assert!(scenario.keeps(&[]));
}

#[test]
fn what_is_left_after_a_loss_serves_until_as_much_is_up_again() {
    let old = [group(&[1]), group(&[2]), group(&[3]), group(&[4])];
    let new = [group(&[1, 2]), group(&[4, 5])];
    let mut scenario = Scenario::under(&old);
    scenario.goes(3);
    scenario.goes(4);
    scenario.staying.insert(PeerId([4; 32]));
    scenario.goes_down(&old[3]);
    scenario.adopts(2, &new);
    assert!(scenario.follows(&[&old[0], &old[1], &old[3]]));
    scenario.comes_up(&new[0]);
    assert!(scenario.follows(&[&new[0], &new[1]]), "half of the old plan's is up, and half of the new one's");
}

#[test]
fn a_group_that_is_down_for_a_moment_is_no_reason_to_change_over_to_nothing() {
    let (old, new) = (group(&[1]), group(&[2]));
    let mut scenario = Scenario::under(std::slice::from_ref(&old));
    scenario.adopts(2, std::slice::from_ref(&new));
    scenario.goes_down(&old);
    assert!(scenario.follows(&[&old]) && scenario.keeps(&[&old]));
    scenario.comes_up(&old);
    assert!(scenario.follows(&[&old]));
    scenario.goes_down(&old);
    scenario.comes_up(&new);
    assert!(scenario.follows(&[&new]));
}

#[test]
fn a_plan_that_never_comes_up_whole_is_followed_at_last_and_one_that_does_not_at_all_is_not() {
    let (old, new) = ([group(&[1]), group(&[2])], [group(&[1, 2]), group(&[3])]);
    let mut scenario = Scenario::under(&old);
    scenario.adopts(2, &new);
    scenario.waits(301.0);
    assert!(scenario.follows(&[&old[0], &old[1]]) && scenario.keeps(&[&old[0], &old[1]]), "it is better than nothing");
    scenario.comes_up(&new[1]);
    assert!(scenario.follows(&[&new[0], &new[1]]));
    scenario.waits(3.0);
    assert!(scenario.keeps(&[]));
}

#[test]
fn a_third_plan_is_waited_for_under_the_first() {
    let (first, second, third) = ([group(&[1]), group(&[2])], [group(&[1, 2])], [group(&[2]), group(&[3])]);
    let mut scenario = Scenario::under(&first);
    scenario.adopts(2, &second);
    scenario.adopts(3, &third);
    assert!(scenario.follows(&[&first[0], &first[1]]) && scenario.keeps(&[&first[0]]), "the plan has the other anyway");
    scenario.comes_up(&third[1]);
    assert!(scenario.follows(&[&third[0], &third[1]]));
}

#[test]
fn each_model_changes_over_by_itself() {
    let (a, b) = (group(&[1]), group_of(OTHER, &[2]));
    let (new_a, new_b) = (group(&[3]), group_of(OTHER, &[4]));
    let mut scenario = Scenario::under(&[a.clone(), b.clone()]);
    scenario.adopts(2, &[new_a.clone(), new_b.clone()]);
    scenario.comes_up(&new_b);
    assert!(scenario.follows(&[&a, &new_b]) && scenario.keeps(&[&a, &b]));
    scenario.waits(3.0);
    assert!(scenario.follows(&[&a, &new_b]) && scenario.keeps(&[&a]));
    // Nobody serves a model any more that the plan does not have.
    scenario.adopts(3, std::slice::from_ref(&new_b));
    assert!(scenario.follows(&[&new_b]) && scenario.keeps(&[]));
}

#[test]
fn where_the_new_does_not_fit_beside_the_old_the_old_goes_first() {
    let (old, new) = (group(&[1]), group(&[1, 2]));
    let mut scenario = Scenario::under(std::slice::from_ref(&old));
    scenario.adopts(2, std::slice::from_ref(&new));
    scenario.changeover.make_room();
    scenario.waits(1.0);
    assert!(scenario.keeps(&[]));
    scenario.goes_down(&old);
    scenario.comes_up(&new);
    assert!(scenario.follows(&[&new]));
    // The next plan may fit.
    scenario.adopts(3, std::slice::from_ref(&old));
    assert!(scenario.keeps(&[&new]));
}
