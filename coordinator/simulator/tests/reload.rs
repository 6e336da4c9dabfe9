//! When a swarm changes to a plan that has to be loaded, and when it makes do with what it has (ThunderServe §3.4).
#![expect(clippy::unwrap_used, reason = "a scenario that cannot run fails")]

use std::collections::BTreeSet;
use std::time::Duration;
use tsnode_coordinator::{
    members::Members,
    planner::{PlanDraft, PlanOptions, Planner},
    sample,
};
use tsnode_protocol::{Advert, Device, Group, GroupId, LayerRange, Phase, Plan, Route, Stage};
use tsnode_simulator::simulation::{World, sketch::Sketch};

/// Finds one group of everybody, and holds it to be so much better than any other plan.
#[derive(Clone, Copy, Debug)]
struct AllInOne {
    gain: f64,
}

impl Planner for AllInOne {
    fn plan(&self, members: &Members<'_>, _: &PlanOptions, _: Option<&Plan>) -> PlanDraft {
        let (card, all) = (sample::card(), members.len() as u32);
        let layers = |k: u32| LayerRange { start: LAYERS * k / all, end: LAYERS * (k + 1) / all };
        let stages = (0..).zip(members.keys()).map(|(k, peer)| Stage { peer: *peer, device: 0, layers: layers(k) });
        let group = Group::new(card.id, Phase::Mixed, stages.collect());
        let routes = vec![Route { prefill: group.id, decode: group.id, share: 1.0 }];
        PlanDraft { groups: vec![group], routes, chosen: vec![], reason: "all in one".into() }
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        Sketch.flip(plan, members, wish)
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        Sketch.grow(plan, members, wish)
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> f64 {
        let gain = if plan.groups.len() == 1 { self.gain } else { 0.0 };
        Sketch.value(plan, members, wish) * (1.0 + gain)
    }
}

const LAYERS: u32 = 8;
/// Peers at first.
const PEERS: usize = 4;

/// A model of so many bytes, and devices that can hold it whole.
fn advert(n: usize, bytes: u64) -> Advert {
    let mut advert = sample::advert(n);
    let shape = &mut advert.models[0].shape;
    (shape.layers, shape.layer_bytes) = (LAYERS, bytes / u64::from(LAYERS));
    let device = Device { memory_bytes: 1 << 40, ..advert.devices[0].clone() };
    advert.devices = vec![device.for_one(advert.models[0].id, None)];
    advert
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A swarm under one plan, to which one more peer comes. The sizes of its groups before, and when all has settled.
fn with_a_newcomer(gain: f64, bytes: u64) -> (Vec<usize>, Vec<usize>) {
    let mut world = World::planned_by(AllInOne { gain }, 3);
    for n in 0..PEERS {
        let n = world.add(advert(n, bytes));
        world.start(n);
    }
    let sizes = |world: &World| world.common_plan().unwrap().groups.iter().map(|g| g.stages.len()).collect();
    world.wait(seconds(6));
    let before = sizes(&world);
    let late = world.add(advert(PEERS, bytes));
    world.start(late);
    world.wait(seconds(6));
    world.agreement().unwrap();
    assert_eq!(world.checks.broken, None);
    let soon: Vec<usize> = sizes(&world);
    world.wait(seconds(30));
    world.agreement().unwrap();
    assert_eq!(sizes(&world), soon, "it was settled");
    (before, soon)
}

/// Bytes of a model a fifth of which is loaded in this time, at the rate that is reckoned with.
fn loaded_in(seconds: f64) -> u64 {
    (5.0 * 0.6e9 * seconds) as u64
}

#[test]
fn a_better_plan_that_stops_everybody_is_not_adopted_for_a_small_gain() {
    // A fifth more for the eight minutes after two without anything.
    assert_eq!(with_a_newcomer(0.2, loaded_in(120.0)), (vec![PEERS], vec![PEERS, 1]));
}

#[test]
fn it_is_for_a_large_one_or_when_it_is_loaded_soon() {
    for (gain, bytes) in [(0.5, loaded_in(120.0)), (0.2, loaded_in(10.0))] {
        assert_eq!(with_a_newcomer(gain, bytes), (vec![PEERS], vec![PEERS + 1]), "{gain}");
    }
}

#[test]
fn a_plan_that_is_no_better_than_views_differ_moves_nobody() {
    assert_eq!(with_a_newcomer(0.05, loaded_in(0.01)), (vec![PEERS], vec![PEERS, 1]));
}

#[test]
fn a_newcomer_is_taken_in_at_once_and_nobody_who_serves_loads() {
    let mut world = World::of(4, 2);
    world.wait(seconds(4));
    let groups =
        |world: &World| -> BTreeSet<GroupId> { world.common_plan().unwrap().groups.iter().map(|g| g.id).collect() };
    let before = groups(&world);
    let late = world.add(sample::advert(4));
    world.start(late);
    let soon = std::iter::repeat_with(|| {
        world.wait(seconds(1));
        world.agreement()
    });
    soon.take(8).find(Result::is_ok).expect("it is taken in within seconds").unwrap();
    assert!(groups(&world).is_superset(&before), "who served is to load");
    assert_eq!(groups(&world).len(), before.len() + 1);
    let plan = world.common_plan().unwrap();
    let share: f64 = plan.routes.iter().map(|r| r.share).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
}
