//! One plan for all: when it is made, whom it names, and how those who come late hear of it.

use super::{all_is_well, coordinator, seconds};
use std::ops::Range;
use std::time::Duration;
use tsnode_coordinator::{
    control::Event,
    members::Members,
    planner::{PlanDraft, PlanOptions, Planner, Scheduler},
    sample,
};
use tsnode_protocol::{Phase, Plan};
use tsnode_simulator::simulation::{World, sketch::Sketch};

#[test]
fn a_swarm_comes_to_one_plan_that_uses_everybody() {
    let mut world = World::of(4, 1);
    world.wait(seconds(4));
    let plan = world.common_plan().unwrap();
    assert_eq!(plan.peers().len(), 4);
    let busy = |id| plan.routes.iter().any(|r| r.share > 0.0 && (r.prefill == id || r.decode == id));
    assert!(plan.groups.iter().all(|g| busy(g.id)), "a group without work");
    let share: f64 = plan.routes.iter().map(|r| r.share).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    all_is_well(&mut world);
}

#[test]
fn one_peer_alone_does_both() {
    let mut world = World::of(1, 1);
    world.wait(seconds(5));
    let plan = world.common_plan().unwrap();
    assert_eq!(plan.groups[0].phase, Phase::Mixed);
}

/// Who starts alone waits for company, but lets nobody wait with it.
#[test]
fn a_client_who_asks_has_a_plan_made_sooner() {
    let (mut idle, mut asked) = (World::of(1, 1), World::of(1, 1));
    asked.tell(0, Event::Asked);
    for world in [&mut idle, &mut asked] {
        world.wait(seconds(1));
    }
    assert!(idle.common_plan().is_err() && asked.common_plan().is_ok());
}

#[test]
fn a_search_holds_nothing_up_and_what_it_finds_is_judged_by_what_has_happened_since() {
    for seed in 0..8 {
        let mut world = World::planned_by(Sketch, seed);
        world.planning = seconds(9);
        for n in 0..6 {
            let n = world.add(sample::advert(n));
            world.start(n);
        }
        world.wait(seconds(15));
        all_is_well(&mut world);
        // Somebody comes, a plan for all is looked for, and one of them goes meanwhile.
        let late = world.add(sample::advert(6));
        world.start(late);
        world.wait(seconds(3));
        world.kill(2);
        world.wait(seconds(30));
        all_is_well(&mut world);
        let figures = &world.checks.figures;
        assert_eq!((figures.false_deaths, figures.excused_deaths), (0, 0), "seed {seed}");
    }
}

/// Each message is handled five seconds after it was said, as where many peers share a full computer, and every peer knows that words wait by
/// one through its own queues. Turns that are over before others have heard what was proposed in them make one rank after another propose.
#[test]
fn where_all_is_handled_late_one_plan_is_proposed_and_not_one_in_each_turn() {
    // In none of them an epoch ends meanwhile.
    for seed in [1, 3, 4] {
        let mut world = World::planned_by(Sketch, seed);
        for n in 0..12 {
            let n = world.add(sample::advert(n));
            world.net.lags.insert(n, seconds(5));
            world.start(n);
            (0..40).for_each(|_| world.tell(n, Event::CameThrough(seconds(1))));
        }
        let adopted = (0..240).find(|_| {
            world.wait(Duration::from_millis(250));
            world.common_plan().is_ok()
        });
        let proposed = world.checks.figures.said.get("plan").map_or(0, |said| said.0);
        assert_eq!((adopted.is_some(), proposed), (true, 1), "seed {seed}");
        world.wait(seconds(12));
        all_is_well(&mut world);
    }
}

#[test]
fn who_comes_late_follows_the_plan_in_force() {
    // A gateway: no device, so no new plan is needed for it. Of many, one that ranks first as soon as it is heard of,
    // when it has no certificate to show yet.
    let joined = |others: usize| {
        let mut world = World::of(3, 4);
        world.wait(seconds(4));
        let late = (0..=others).map(|_| world.add(sample::gateway(9))).last().unwrap();
        world.start(late);
        world.wait(seconds(1));
        (late, world)
    };
    let first = |(late, world): &(usize, World)| coordinator(world) == *late;
    let (_, mut world) = (0..400).map(joined).find(first).unwrap();
    world.wait(seconds(2));
    assert_eq!(world.common_plan().unwrap().peers().len(), 3);
}

/// Has the groups that somebody laid out, and no others: who comes later has no part in any.
#[derive(Debug)]
struct LaidOut(PlanOptions);

impl Planner for LaidOut {
    fn plan(&self, members: &Members<'_>, _: &PlanOptions, standing: Option<&Plan>) -> PlanDraft {
        Scheduler.plan(members, &self.0, standing)
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
        Scheduler.flip(plan, members, &self.0)
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, _: &PlanOptions) -> Option<PlanDraft> {
        Scheduler.grow(plan, members, &self.0)
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, _: &PlanOptions) -> f64 {
        Scheduler.value(plan, members, &self.0)
    }
}

#[test]
fn who_comes_late_and_has_no_part_in_the_plan_follows_it_all_the_same() {
    let wish = PlanOptions { layout: Some("prefill=1,decode=1".parse().unwrap()), ..PlanOptions::default() };
    let mut world = World::planned_by(LaidOut(wish), 4);
    let come = |world: &mut World, lenders: Range<usize>| {
        for n in lenders {
            let n = world.add(sample::advert(n));
            world.start(n);
        }
    };
    come(&mut world, 0..2);
    world.wait(seconds(4));
    let plan = world.common_plan().unwrap().id();
    // One by one, and then more at once than were there: fewer than half of all have endorsed what stands.
    for lenders in [2..3, 3..4, 4..5, 5..12] {
        come(&mut world, lenders.clone());
        world.wait(seconds(3));
        assert_eq!(world.common_plan().map(Plan::id), Ok(plan), "{lenders:?}");
    }
    assert_eq!(world.checks.broken, None);
    assert!(world.checks.one_plan_a_term());
}

#[test]
fn who_has_no_part_in_the_plan_hears_of_it_at_once() {
    let wish = PlanOptions { layout: Some("prefill=1,decode=1".parse().unwrap()), ..PlanOptions::default() };
    for seed in 0..12 {
        let mut world = World::planned_by(LaidOut(wish.clone()), seed);
        let start = |world: &mut World, n| {
            let n = world.add(sample::advert(n));
            world.start(n);
        };
        (0..4).for_each(|n| start(&mut world, n));
        world.wait(seconds(8));
        let plan = world.common_plan().unwrap().id();
        // Up to six come, one after another: each change holds the next plan up, and nobody waits for that.
        for n in 4..5 + (seed as usize % 6) {
            start(&mut world, n);
            world.wait(seconds(1));
            assert_eq!(world.common_plan().map(Plan::id), Ok(plan), "seed {seed}, {n} peers before");
        }
    }
}
