//! What is served while one plan gives way to the next: no moment without groups, and none that keeps what is not wanted.
#![expect(clippy::unwrap_used, reason = "a story that cannot be told fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::changeover::{Changeover, Scene};
use tsnode_protocol::{Epoch, Group, GroupId, LayerRange, Load, ModelId, PeerId, Phase, Plan, Route, Stage, Term};

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
    Plan { epoch: Epoch(1), term: Term(term), parent: None, groups: groups.to_vec(), routes, reason: String::new() }
        .into()
}

/// One peer through a change of plans.
struct Story {
    changeover: Changeover,
    up: BTreeMap<GroupId, Load>,
    staying: BTreeSet<PeerId>,
    now: Duration,
}

impl Story {
    /// Ten peers that follow a plan of these groups, all up.
    fn under(groups: &[Group]) -> Self {
        let staying = (0..10).map(|n| PeerId([n; 32])).collect();
        let mut story =
            Self { changeover: Changeover::default(), up: BTreeMap::new(), staying, now: Duration::from_secs(100) };
        story.adopts(1, groups);
        groups.iter().for_each(|g| story.comes_up(g));
        story
    }

    fn adopts(&mut self, term: u32, groups: &[Group]) {
        let scene = Scene { up: &self.up, staying: &self.staying };
        self.changeover.adopt(self.now, plan(term, groups), scene);
    }

    fn look(&mut self) {
        self.changeover.look(self.now, Scene { up: &self.up, staying: &self.staying });
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
    let mut story = Story::under(&old);
    story.adopts(2, &new);
    story.waits(60.0);
    assert!(story.follows(&[&old[0], &old[1]]) && story.keeps(&[&old[0], &old[1]]));
    story.comes_up(&new[0]);
    assert!(story.follows(&[&old[0], &old[1]]), "half of it carries half");
    story.comes_up(&new[1]);
    assert!(story.follows(&[&new[0], &new[1]]) && story.keeps(&[&old[0], &old[1]]));
    story.waits(2.9);
    assert!(story.keeps(&[&old[0], &old[1]]));
    story.waits(0.1);
    assert!(story.keeps(&[]));
}

#[test]
fn who_goes_is_let_go_at_once() {
    let (a, b, c) = (group(&[1, 2]), group(&[3, 4]), group(&[2, 5]));
    let mut story = Story::under(&[a.clone(), b.clone()]);
    story.goes(1);
    story.adopts(2, &[b.clone(), c.clone()]);
    assert!(story.keeps(&[]), "a peer of the group wants its machine back");
    assert!(story.follows(&[&b, &c]), "what stands of both plans is the same");
    // Also when it goes while plans change.
    let mut story = Story::under(&[a.clone(), b.clone()]);
    story.adopts(2, &[group(&[1, 2, 3, 4])]);
    assert!(story.keeps(&[&a, &b]));
    story.goes(4);
    assert!(story.keeps(&[&a]) && story.follows(&[&a]));
    story.goes(1);
    assert!(story.keeps(&[]) && story.follows(&[&group(&[1, 2, 3, 4])]), "there is nothing to go on with");
}

#[test]
fn phases_that_flip_are_followed_at_once() {
    let old = [group(&[1]), group(&[2])];
    let mut story = Story::under(&old);
    let flipped = [Group { phase: Phase::Prefill, ..old[0].clone() }, Group { phase: Phase::Decode, ..old[1].clone() }];
    story.adopts(2, &flipped);
    assert_eq!(story.changeover.routed().unwrap().groups, flipped);
    assert!(story.keeps(&[]));
}

#[test]
fn what_is_left_after_a_loss_serves_until_as_much_is_up_again() {
    let old = [group(&[1]), group(&[2]), group(&[3]), group(&[4])];
    let new = [group(&[1, 2]), group(&[4, 5])];
    let mut story = Story::under(&old);
    story.goes(3);
    story.goes(4);
    story.staying.insert(PeerId([4; 32]));
    story.goes_down(&old[3]);
    story.adopts(2, &new);
    assert!(story.follows(&[&old[0], &old[1], &old[3]]));
    story.comes_up(&new[0]);
    assert!(story.follows(&[&new[0], &new[1]]), "half of the old plan's is up, and half of the new one's");
}

#[test]
fn a_group_that_is_down_for_a_moment_is_no_reason_to_change_over_to_nothing() {
    let (old, new) = (group(&[1]), group(&[2]));
    let mut story = Story::under(std::slice::from_ref(&old));
    story.adopts(2, std::slice::from_ref(&new));
    story.goes_down(&old);
    assert!(story.follows(&[&old]) && story.keeps(&[&old]));
    story.comes_up(&old);
    assert!(story.follows(&[&old]));
    story.goes_down(&old);
    story.comes_up(&new);
    assert!(story.follows(&[&new]));
}

#[test]
fn a_plan_that_never_comes_up_whole_is_followed_at_last_and_one_that_does_not_at_all_is_not() {
    let (old, new) = ([group(&[1]), group(&[2])], [group(&[1, 2]), group(&[3])]);
    let mut story = Story::under(&old);
    story.adopts(2, &new);
    story.waits(301.0);
    assert!(story.follows(&[&old[0], &old[1]]) && story.keeps(&[&old[0], &old[1]]), "it is better than nothing");
    story.comes_up(&new[1]);
    assert!(story.follows(&[&new[0], &new[1]]));
    story.waits(3.0);
    assert!(story.keeps(&[]));
}

#[test]
fn a_third_plan_is_waited_for_under_the_first() {
    let (first, second, third) = ([group(&[1]), group(&[2])], [group(&[1, 2])], [group(&[2]), group(&[3])]);
    let mut story = Story::under(&first);
    story.adopts(2, &second);
    story.adopts(3, &third);
    assert!(story.follows(&[&first[0], &first[1]]) && story.keeps(&[&first[0]]), "the plan has the other anyway");
    story.comes_up(&third[1]);
    assert!(story.follows(&[&third[0], &third[1]]));
}

#[test]
fn each_model_changes_over_by_itself() {
    let (a, b) = (group(&[1]), group_of(OTHER, &[2]));
    let (new_a, new_b) = (group(&[3]), group_of(OTHER, &[4]));
    let mut story = Story::under(&[a.clone(), b.clone()]);
    story.adopts(2, &[new_a.clone(), new_b.clone()]);
    story.comes_up(&new_b);
    assert!(story.follows(&[&a, &new_b]) && story.keeps(&[&a, &b]));
    story.waits(3.0);
    assert!(story.follows(&[&a, &new_b]) && story.keeps(&[&a]));
    // Nobody serves a model any more that the plan does not have.
    story.adopts(3, std::slice::from_ref(&new_b));
    assert!(story.follows(&[&new_b]) && story.keeps(&[]));
}

#[test]
fn where_the_new_does_not_fit_beside_the_old_the_old_goes_first() {
    let (old, new) = (group(&[1]), group(&[1, 2]));
    let mut story = Story::under(std::slice::from_ref(&old));
    story.adopts(2, std::slice::from_ref(&new));
    story.changeover.make_room();
    story.waits(1.0);
    assert!(story.keeps(&[]));
    story.goes_down(&old);
    story.comes_up(&new);
    assert!(story.follows(&[&new]));
    // The next plan may fit.
    story.adopts(3, std::slice::from_ref(&old));
    assert!(story.keeps(&[&new]));
}
