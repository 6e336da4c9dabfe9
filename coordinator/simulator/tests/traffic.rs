//! Requests become of another kind: groups change what they do and nobody loads anything (ThunderServe §3.4).
#![expect(clippy::unwrap_used, reason = "a scenario that cannot run fails")]

use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_coordinator::{
    control::Event,
    gate::SplitChoice,
    members::Members,
    planner::{Draft, Planner, Scheduler, Wish},
    sample,
};
use tsnode_protocol::{Advert, GroupId, Phase, Plan, Traffic, traffic::LENGTHS};
use tsnode_simulator::simulation::World;

/// The scheduler, of groups that do one thing only.
#[derive(Clone, Copy, Debug)]
struct Apart;

fn apart(wish: &Wish) -> Wish {
    Wish { split: SplitChoice::Always, ..wish.clone() }
}

impl Planner for Apart {
    fn plan(&self, members: &Members<'_>, wish: &Wish, standing: Option<&Plan>) -> Draft {
        Scheduler.plan(members, &apart(wish), standing)
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, wish: &Wish) -> Option<Draft> {
        Scheduler.flip(plan, members, &apart(wish))
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, wish: &Wish) -> Option<Draft> {
        Scheduler.grow(plan, members, &apart(wish))
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &Wish) -> f64 {
        Scheduler.value(plan, members, &apart(wish))
    }
}

/// A gateway whose clients send so many tokens and get so many.
fn asked_for(prompt: u32, answer: u32) -> Advert {
    let traffic =
        Traffic { model: sample::card().id, rate: 1.0, prompts: [prompt; LENGTHS], answers: [answer; LENGTHS] };
    Advert { traffic: vec![traffic], ..sample::gateway(9) }
}

fn phases(world: &World) -> BTreeMap<GroupId, Phase> {
    world.common_plan().unwrap().groups.iter().map(|g| (g.id, g.phase)).collect()
}

fn prefilling(phases: &BTreeMap<GroupId, Phase>) -> usize {
    phases.values().filter(|p| **p == Phase::Prefill).count()
}

#[test]
fn when_prompts_become_short_and_answers_long_phases_flip_and_no_stage_changes() {
    let mut world = World::planned_by(Apart, 4);
    for n in 0..8 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    let gateway = world.add(asked_for(700, 4));
    world.start(gateway);
    world.wait(Duration::from_secs(20));
    world.agreement().unwrap();
    let before = phases(&world);
    world.tell(gateway, Event::Advertise(asked_for(20, 400)));
    world.wait(Duration::from_secs(6));
    world.agreement().unwrap();
    let after = phases(&world);
    assert!(before.keys().eq(after.keys()), "weights moved: {before:?} {after:?}");
    assert!(prefilling(&after) < prefilling(&before), "{before:?} {after:?}");
    let reason = &world.common_plan().unwrap().reason;
    assert!(reason.contains("flipped") && !reason.contains(" 0 of them"), "{reason}");
    // And back.
    world.tell(gateway, Event::Advertise(asked_for(700, 4)));
    world.wait(Duration::from_secs(6));
    world.agreement().unwrap();
    assert!(before.keys().eq(phases(&world).keys()) && prefilling(&phases(&world)) > prefilling(&after));
    assert_eq!(world.checks.broken, None);
}
