//! Requests become of another kind: groups change what they do and nobody loads anything (ThunderServe §3.4). Or they become
//! requests for another model: devices change hands, while there are faults too.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot run fails")]

use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_coordinator::{
    control::Event,
    gate::SplitChoice,
    members::Members,
    planner::{PlanDraft, PlanOptions, Planner, Scheduler},
    sample,
};
use tsnode_protocol::{Advert, GroupId, ModelId, PeerId, Phase, Plan, Traffic, traffic::LENGTHS};
use tsnode_simulator::simulation::World;

/// The scheduler, of groups that do one thing only.
#[derive(Clone, Copy, Debug)]
struct OneRoleGroups;

fn apart(wish: &PlanOptions) -> PlanOptions {
    PlanOptions { split: SplitChoice::Always, ..wish.clone() }
}

impl Planner for OneRoleGroups {
    fn plan(&self, members: &Members<'_>, wish: &PlanOptions, standing: Option<&Plan>) -> PlanDraft {
        Scheduler.plan(members, &apart(wish), standing)
    }

    fn flip(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        Scheduler.flip(plan, members, &apart(wish))
    }

    fn grow(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> Option<PlanDraft> {
        Scheduler.grow(plan, members, &apart(wish))
    }

    fn value(&self, plan: &Plan, members: &Members<'_>, wish: &PlanOptions) -> f64 {
        Scheduler.value(plan, members, &apart(wish))
    }
}

/// A gateway whose clients send so many tokens and get so many.
fn asked_for(prompt: u32, answer: u32) -> Advert {
    let traffic = Traffic {
        model: sample::card().id,
        rate: 1.0,
        variation: 1.0,
        prompts: [prompt; LENGTHS],
        answers: [answer; LENGTHS],
    };
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
    let mut world = World::planned_by(OneRoleGroups, 4);
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

const HOSTS: usize = 4;

/// Models of the hosts, each lent by all.
fn models() -> [ModelId; 2] {
    [1, 2].map(|n| ModelId([n; 16]))
}

/// A gateway whose clients ask for so much of what all hosts would carry of each model alone.
fn asks<const N: usize>(parts: [f64; N]) -> Advert {
    let adverts: Vec<Advert> = (0..HOSTS).map(|n| sample::lends_several(n, sample::cards(1))).collect();
    let members = (0..).map(|n| PeerId([n; 32])).zip(&adverts).collect();
    let all = tsnode_coordinator::planner::live::inputs(&members, SplitChoice::Auto).remove(0).problem.rate / 0.6;
    let traffic = |(model, part): (ModelId, f64)| Traffic {
        model,
        rate: part * all,
        variation: 1.0,
        prompts: [200; LENGTHS],
        answers: [50; LENGTHS],
    };
    let traffic = (1..).map(|n| ModelId([n; 16])).zip(parts).filter(|(_, part)| *part > 0.0).map(traffic);
    Advert { traffic: traffic.collect(), ..sample::gateway(9) }
}

/// Devices that each model's groups have in the plan that all follow.
fn devices(world: &World) -> [usize; 2] {
    let plan = world.common_plan().unwrap();
    let of = |model: ModelId| plan.groups.iter().filter(|g| g.model == model).map(|g| g.stages.len()).sum();
    models().map(of)
}

fn settled(world: &mut World) -> [usize; 2] {
    for _ in 0..60 {
        world.wait(Duration::from_secs(1));
        if world.agreement().is_ok() {
            break;
        }
    }
    world.agreement().unwrap();
    assert_eq!(world.checks.broken, None);
    devices(world)
}

#[test]
fn a_wish_that_wavers_moves_nothing_and_one_that_turns_over_while_a_host_dies_leaves_both_models_served() {
    let mut world = World::new(4);
    for n in 0..HOSTS {
        let n = world.add(sample::lends_several(n, sample::cards(2)));
        world.start(n);
    }
    let gateway = world.add(asks([1.1, 0.05]));
    world.start(gateway);
    world.wait(Duration::from_secs(20));
    let before = settled(&mut world);
    assert!(before.iter().all(|devices| *devices > 0), "{before:?} devices");
    // Nobody says anything of the second model: no more is asked of it.
    let plans = world.checks.figures.plans;
    for parts in [[1.0, 0.06], [1.2, 0.05], [0.9, 0.04], [1.1, 0.0]] {
        world.tell(gateway, Event::Advertise(asks(parts)));
        world.wait(Duration::from_secs(10));
        assert_eq!(settled(&mut world), before, "{parts:?}");
    }
    assert_eq!(world.checks.figures.plans, plans, "what wavers moves nothing");
    world.tell(gateway, Event::Advertise(asks([0.05, 1.1])));
    world.wait(Duration::from_secs(10));
    let [first, second] = settled(&mut world);
    assert!(second >= first && first > 0, "{first} and {second} devices");
    assert!(world.checks.figures.plans <= plans + 2, "{} plans, and {plans} before", world.checks.figures.plans);
    // And back, while a host dies.
    world.tell(gateway, Event::Advertise(asks([1.1, 0.05])));
    world.wait(Duration::from_millis(300));
    world.kill(1);
    world.wait(Duration::from_secs(20));
    let [first, second] = settled(&mut world);
    assert!(first >= second && second > 0, "{first} and {second} devices");
}

/// Those models that anybody serves, of so many.
fn served(world: &World, models: u8) -> Vec<u8> {
    let plan = world.common_plan().unwrap();
    (1..=models).filter(|n| plan.groups.iter().any(|group| group.model == ModelId([*n; 16]))).collect()
}

/// What a peer says that lends so many models and holds one at a time.
fn crowded(n: usize, models: u8) -> Advert {
    let mut advert = sample::lends_several(n, sample::cards(models));
    for device in &mut advert.devices {
        let part = device.memory_bytes / 4 * 3;
        device.serves.iter_mut().for_each(|served| served.memory_bytes = part);
    }
    advert
}

#[test]
fn a_model_that_nobody_asks_for_yields_its_memory_to_one_that_is_asked_for_and_comes_back() {
    let mut world = World::new(4);
    let gateway = asks([0.05, 0.0]);
    let all = [crowded(0, 2), sample::gateway(8), gateway].map(|advert| world.add(advert));
    all.iter().for_each(|n| world.start(*n));
    world.wait(Duration::from_secs(20));
    assert_eq!(settled(&mut world), [1, 0]);
    let cases = [
        ([0.05, 0.05], [1, 0]),
        // However busy the one that is loaded is.
        ([1.1, 0.05], [1, 0]),
        ([0.0, 0.05], [0, 1]),
        ([0.05, 0.05], [0, 1]),
        ([0.05, 0.0], [1, 0]),
    ];
    for (parts, expected) in cases {
        let plans = world.checks.figures.plans;
        world.tell(all[2], Event::Advertise(asks(parts)));
        world.wait(Duration::from_secs(10));
        assert_eq!(settled(&mut world), expected, "asked for: {parts:?}");
        assert!(world.checks.figures.plans <= plans + 1, "it is moved once");
    }
}

/// Two models that are asked for all the time, of which devices hold one: neither waits longer than a turn, which is at least half
/// a minute and at most two, whichever is busier.
#[test]
fn models_that_are_asked_for_all_the_time_take_turns_in_memory() {
    let mut world = World::new(4);
    let all = [crowded(0, 2), sample::gateway(8), asks([1.1, 0.05])].map(|advert| world.add(advert));
    all.iter().for_each(|n| world.start(*n));
    world.wait(Duration::from_secs(20));
    let (mut now, mut turns) = (served(&world, 2), Vec::new());
    let mut lasted = 0;
    for _ in 0..600 {
        world.wait(Duration::from_secs(1));
        lasted += 1;
        let Ok(plan) = world.common_plan() else { continue };
        assert!(!plan.groups.is_empty());
        let then = served(&world, 2);
        if then != now {
            turns.push(lasted);
            (now, lasted) = (then, 0);
        }
    }
    assert_eq!(world.checks.broken, None);
    assert_eq!(now.len(), 1, "there is room for one");
    assert!(turns.len() >= 5, "turns: {turns:?} s");
    assert!(turns.iter().skip(1).all(|lasted| (25..=130).contains(lasted)), "turns: {turns:?} s");
}

#[test]
fn a_model_that_is_kept_stays_while_others_take_its_neighbours_place() {
    let keeps = || {
        let mut advert = sample::lends_several(0, sample::cards(3));
        for device in &mut advert.devices {
            let part = device.memory_bytes / 5 * 2;
            device.serves.iter_mut().for_each(|served| served.memory_bytes = part);
            device.serves[0].is_kept = true;
        }
        advert
    };
    let mut world = World::new(4);
    let all = [keeps(), sample::gateway(8), asks([0.0, 0.05])].map(|advert| world.add(advert));
    all.iter().for_each(|n| world.start(*n));
    world.wait(Duration::from_secs(20));
    settled(&mut world);
    assert_eq!(served(&world, 3), [1, 2]);
    for (parts, expected) in [([0.0, 0.0, 0.05], [1, 3]), ([0.0, 0.05, 0.0], [1, 2])] {
        world.tell(all[2], Event::Advertise(asks(parts)));
        world.wait(Duration::from_secs(10));
        settled(&mut world);
        assert_eq!(served(&world, 3), expected, "asked for: {parts:?}, and nobody asks for the first");
    }
}

/// Three models that are asked for all the time, and two hosts, each of which holds one.
#[test]
fn a_loss_is_planned_for_whoever_has_its_turn_in_memory() {
    let mut world = World::new(4);
    let adverts = [crowded(0, 3), crowded(1, 3), sample::gateway(8), asks([0.5, 0.5, 0.5])];
    let all = adverts.map(|advert| world.add(advert));
    all.iter().for_each(|n| world.start(*n));
    // As the first turns end.
    world.wait(Duration::from_secs(70));
    world.kill(all[1]);
    world.wait(Duration::from_secs(20));
    settled(&mut world);
    assert_eq!(world.common_plan().unwrap().peers().len(), 1);
    assert_eq!(served(&world, 3).len(), 1, "there is room for one");
}
