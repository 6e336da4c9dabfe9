//! What peers say of their load, who hears it, and what saying it costs.

use super::{all_is_well, control, seconds};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_coordinator::{
    control::Event,
    policy::{choice::Dispatch, routing::Asked},
    router::{Router, RouterView},
    sample,
};
use tsnode_protocol::{Group, GroupId, GroupLoad, Load, Phase, Plan, Route, Seconds, Stage};
use tsnode_simulator::simulation::{World, sketch::Sketch};

/// A group that takes requests and has none.
fn idle(group: GroupId) -> GroupLoad {
    GroupLoad { group, load: Load::default() }
}

/// One host leads two groups of a model, and is busy with one of them. Whoever routes hears which.
#[test]
fn requests_go_to_the_idle_one_of_two_groups_that_one_host_leads() {
    let mut world = World::of(3, 1);
    world.wait(seconds(6));
    let plan = world.common_plan().unwrap().clone();
    let group = plan.groups[0].clone();
    let leader = world.number(group.leader().unwrap()).unwrap();
    // Beside the plan's, as a host with two devices would lead one on each.
    let with = |stages| Group::new(group.model, Phase::Mixed, stages);
    let other_device = |s: &Stage| Stage { device: 1, ..*s };
    let (busy, idle) = (with(group.stages.clone()), with(group.stages.iter().map(other_device).collect()));
    let load =
        |running, step| Load { running, pending_tokens: 100 * running, step: Some(Seconds(step)), ..Load::default() };
    let ready =
        vec![GroupLoad { group: busy.id, load: load(40, 0.4) }, GroupLoad { group: idle.id, load: load(0, 0.01) }];
    world.tell(leader, Event::Load { load: Load { step: None, ..load(40, 0.0) }, ready: ready.clone() });
    world.wait(seconds(4));
    let route = |g: &Group| Route { prefill: g.id, decode: g.id, share: 0.5 };
    let (routes, groups) = (vec![route(&busy), route(&idle)], vec![busy.clone(), idle.clone()]);
    let plan = Plan { groups, routes, ..plan };
    for n in 0..3 {
        let up = control(&world, n).said_ready();
        assert_eq!((up.get(&busy.id), up.get(&idle.id)), (Some(&ready[0].load), Some(&ready[1].load)), "peer {n}");
        let mut router = Router::new(Dispatch::Live);
        let choice = RouterView { plan: Some(&plan), up: &up, tried: &BTreeSet::new(), weights: &BTreeMap::new() };
        let mut pick = || router.pick(choice, group.model, Asked::new(10, 10), 0).unwrap().decode;
        let to_idle = (0..100).filter(|_| pick() == idle.id).count();
        assert!(to_idle >= 90, "{to_idle} of 100 requests went to the idle group");
    }
}

#[test]
fn a_late_peer_gets_nothing_new_while_another_is_there() {
    let mut world = World::planned_by(Sketch, 5);
    for n in 0..8 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    world.wait(seconds(6));
    let plan = world.common_plan().unwrap().clone();
    for group in &plan.groups {
        let leader = world.number(group.leader().unwrap()).unwrap();
        let theirs = plan.groups.iter().filter(|g| g.leader() == group.leader());
        let ready = theirs.map(|g| idle(g.id)).collect();
        world.tell(leader, Event::Load { load: Default::default(), ready });
    }
    world.wait(seconds(1));
    let asked = world.number(plan.groups[0].leader().unwrap()).unwrap();
    let late = world.number(plan.groups[1].stages.last().unwrap().peer).unwrap();
    let ready = |world: &World| control(world, asked).ready();
    assert_eq!(ready(&world).len(), plan.groups.len());
    world.pause(late, Duration::from_millis(3300));
    world.wait(Duration::from_millis(2900));
    assert!(!ready(&world).contains_key(&plan.groups[1].id) && ready(&world).contains_key(&plan.groups[0].id));
    world.wait(seconds(2));
    assert_eq!(ready(&world).len(), plan.groups.len());
    let figures = &world.checks.figures;
    assert_eq!((figures.false_deaths, figures.excused_deaths), (0, 0));
}

#[test]
fn a_word_to_all_that_nobody_heard_is_said_again_soon() {
    let mut world = World::planned_by(Sketch, 6);
    for n in 0..12 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    world.wait(seconds(20));
    let plan = world.common_plan().unwrap().clone();
    for group in &plan.groups {
        let leader = world.number(group.leader().unwrap()).unwrap();
        let ready = |world: &World| (0..12).filter(|n| control(world, *n).ready().contains_key(&group.id)).count();
        world.tell(leader, Event::Load { load: Default::default(), ready: vec![] });
        world.wait(seconds(3));
        assert_eq!(ready(&world), 0);
        world.net.lost = 1.0;
        world.tell(leader, Event::Load { load: Default::default(), ready: vec![idle(group.id)] });
        world.net.lost = 0.0;
        assert_eq!(ready(&world), 1, "its leader alone knows");
        world.wait(seconds(6));
        assert_eq!(ready(&world), 12, "{group:?}");
    }
}

#[test]
fn gossip_grows_with_the_swarm_and_no_faster() {
    let mut world = World::planned_by(Sketch, 9);
    for n in 0..24 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    world.wait(seconds(10));
    all_is_well(&mut world);
    world.forget_bytes();
    world.wait(seconds(10));
    let bytes: u64 = world.checks.figures.said.values().map(|(_, bytes)| bytes).sum();
    let rate = bytes as f64 / 10.0 / 24.0;
    println!("{rate:.0} bytes said by each of 24 idle peers a second, to all or straight to a leader");
    // A heartbeat to a leader and from there to three who listen is said four times.
    assert!(rate < 550.0, "{rate} bytes a second");
}
